#!lua flags=no-writes
-- Everything, from one instant.
--
-- Returns {time, {config field, value, ...}, {token, entry, ...}, {token, waiting entry, ...}}; who did not ask again
--   for WAITER_US is left out.
-- Invariant: writes nothing.
local now = clock()
local waiting, all = {}, redis.call('HGETALL', WAITING)
for i = 1, #all, 2 do
  if is_waiting(all[i + 1], now) then
    waiting[#waiting + 1] = all[i]
    waiting[#waiting + 1] = all[i + 1]
  end
end
return {string.format('%.0f', now), redis.call('HGETALL', CONFIG), redis.call('HGETALL', HOLDERS), waiting}
