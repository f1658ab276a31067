#!lua flags=allow-oom
-- Keep a slot for another period.
--
-- ARGV[4] token   ARGV[5] owner
-- Returns {'renewed' | 'unknown' | 'displaced' | 'fenced' | 'expired'} or {'refused', reason}.
-- Invariant: only the owner of a live entry moves its deadline; an expired one is never revived.
-- Runs at maxmemory too: a full memory must not end what runs.
local token, owner = ARGV[4], ARGV[5]
local reason = mismatch(configuration())
if reason then return {'refused', reason} end
local entry = entry_of(token)
if not entry then return {'unknown'} end
if entry.owner ~= owner then return {'displaced'} end
local now = clock()
reason = lapsed(entry, now)
if reason then return {reason} end
entry.deadline = now + HOLD_US
store(token, entry)
return {'renewed'}
