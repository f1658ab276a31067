#!lua flags=allow-oom
-- Install a newer generation with its limit.
--
-- ARGV[4] generation   ARGV[5] limit
-- Returns {'installed', holders fenced by it}, {'same', 0}, {'superseded', 'older'}, {'refused', reason}.
-- Invariant: the installed generation only grows, and with the step that raises it every entry is fenced: what an
--   older generation holds can from then on neither be renewed nor registered.
-- Runs at maxmemory too: it makes no entry longer.
local generation, limit = tonumber(ARGV[4]), tonumber(ARGV[5])
local config = configuration()
local reason = closed(config)
if reason then return {'refused', reason} end
if generation < config.generation then return {'superseded', 'older'} end
if generation == config.generation then
  if limit ~= config.limit then return {'refused', 'limit'} end
  return {'same', 0}
end
local fenced = 0
local all = redis.call('HGETALL', HOLDERS)
for i = 1, #all, 2 do
  local entry = decode(all[i + 1])
  if entry.state ~= 'fenced' then
    entry.state = 'fenced'
    store(all[i], entry)
    fenced = fenced + 1
  end
end
redis.call('HSET', CONFIG, 'generation', ARGV[4], 'limit', ARGV[5])
return {'installed', fenced}
