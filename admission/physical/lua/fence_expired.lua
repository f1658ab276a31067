#!lua flags=allow-oom
-- Fence what expired; name everything that is fenced.
--
-- ARGV[4] generation   ARGV[5] limit   ARGV[6] most entries to name
-- Returns {'ok', token, container or '-', owner, generation, run, ...} or {'refused', reason}.
-- Invariant: an entry that its owner may still use is not touched; a fence is stored and never undone; the id named is
--   the one recorded in this step. A caller with another generation or limit reaps nothing.
-- Runs at maxmemory too. Also forgets who stopped waiting without a word.
-- No deadline is further away than a period: one that is was written before the server's clock was set back. It is put
--   to a period from now, never earlier than its owner was promised, or a dead owner's would stay for as long as the step.
local generation, limit, most = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local config = configuration()
local reason = mismatch(config)
if reason then return {'refused', reason} end
if generation < config.generation then return {'refused', 'older'} end
if generation > config.generation then return {'refused', 'newer'} end
if limit ~= config.limit then return {'refused', 'limit'} end
local now = clock()
local answer = {'ok'}
local all = redis.call('HGETALL', HOLDERS)
for i = 1, #all, 2 do
  local entry = decode(all[i + 1])
  if entry.state ~= 'fenced' and entry.deadline > now + HOLD_US then
    entry.deadline = now + HOLD_US
    store(all[i], entry)
  end
  if #answer < 5 * most and lapsed(entry, now) then
    if entry.state ~= 'fenced' then
      entry.state = 'fenced'
      store(all[i], entry)
    end
    for _, field in ipairs({
      all[i], entry.container, entry.owner, string.format('%.0f', entry.generation), entry.run,
    }) do
      answer[#answer + 1] = field
    end
  end
end
local waiting = redis.call('HGETALL', WAITING)
for i = 1, #waiting, 2 do
  if not is_waiting(waiting[i + 1], now) then redis.call('HDEL', WAITING, waiting[i]) end
end
return answer
