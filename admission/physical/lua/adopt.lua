#!lua flags=allow-oom
-- Take over the running container of a process that is proven gone (R10).
--
-- ARGV[4] token   ARGV[5] old owner   ARGV[6] new owner
-- Returns {'ok'}, also to a repeat, or {'refused', reason}: physical recovery removes its container.
-- Invariant: an entry has one owner; it changes only while live, so removal by recovery and adoption exclude each
--   other.
local token, old_owner, new_owner = ARGV[4], ARGV[5], ARGV[6]
local config = configuration()
local reason = closed(config)
if reason then return {'refused', reason} end
local entry = entry_of(token)
if not entry then return {'refused', 'unknown'} end
if entry.owner ~= old_owner and entry.owner ~= new_owner then return {'refused', 'owner'} end
local now = clock()
reason = lapsed(entry, now)
if reason then return {'refused', reason} end
if entry.state ~= 'running' then return {'refused', 'state'} end
if entry.generation ~= config.generation then return {'refused', 'older'} end
entry.owner, entry.deadline = new_owner, now + HOLD_US
store(token, entry)
return {'ok'}
