#!lua
-- Take a slot, if one is free.
--
-- ARGV[4] token   ARGV[5] owner   ARGV[6] generation   ARGV[7] limit   ARGV[8] run
-- Returns {'granted' | 'held' | 'wait', holders, recoverable, old holders}, {'superseded'}, {'refused', reason}.
--   held: this token is its owner's already, and live: the answer to a repeat.
--   wait: full, or a holder of an older generation is left; the token is noted as waiting.
-- Invariant: entries, in any state, never outnumber the limit of the installed generation by an entry of that
--   generation; none of that generation is made while one of an older is left. Generation and limit are compared here,
--   in the same step as the count: a resize cannot come between.
local token, owner, run = ARGV[4], ARGV[5], ARGV[8]
local generation, limit = tonumber(ARGV[6]), tonumber(ARGV[7])
local config = configuration()
local reason = closed(config)
if reason then return {'refused', reason} end
if generation < config.generation then return {'superseded', 'older'} end
if generation > config.generation then return {'refused', 'newer'} end
if limit ~= config.limit then return {'refused', 'limit'} end

local now = clock()
local holders, recoverable, old, own = 0, 0, 0, nil
local all = redis.call('HGETALL', HOLDERS)
for i = 1, #all, 2 do
  local entry = decode(all[i + 1])
  holders = holders + 1
  if lapsed(entry, now) then recoverable = recoverable + 1 end
  if entry.generation < config.generation then old = old + 1 end
  if all[i] == token then own = entry end
end
if own then
  if own.owner ~= owner then return {'refused', 'owner'} end
  reason = lapsed(own, now)
  if reason then return {'refused', reason} end
  return {'held', holders, recoverable, old}
end
if old > 0 or holders >= limit then
  note_waiting(token, owner, run, now)
  return {'wait', holders, recoverable, old}
end
store(token, {
  state = 'reserved', generation = generation, deadline = now + HOLD_US, since = now, owner = owner, container = '-',
  run = run,
})
redis.call('HDEL', WAITING, token)
return {'granted', holders + 1, recoverable, old}
