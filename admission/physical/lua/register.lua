#!lua flags=allow-oom
-- Record the container that was created under a token; only then may it be started.
--
-- ARGV[4] token   ARGV[5] owner   ARGV[6] container, the full id
-- Returns {'ok'}, also to a repeat, or {'refused', reason}: never start it, remove it.
-- Invariant: one id per token, set once, under a live entry of the installed generation. What is fenced or expired
--   can never become startable again.
-- Runs at maxmemory too: a slot that was granted must be usable.
local token, owner, container = ARGV[4], ARGV[5], ARGV[6]
local config = configuration()
local reason = closed(config)
if reason then return {'refused', reason} end
local entry = entry_of(token)
if not entry then return {'refused', 'unknown'} end
if entry.owner ~= owner then return {'refused', 'owner'} end
reason = lapsed(entry, clock())
if reason then return {'refused', reason} end
if entry.generation ~= config.generation then return {'refused', 'older'} end
if entry.state == 'running' then
  if entry.container == container then return {'ok'} end
  return {'refused', 'container'}
end
entry.state, entry.container = 'running', container
store(token, entry)
return {'ok'}
