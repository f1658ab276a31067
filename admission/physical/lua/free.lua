#!lua flags=allow-oom
-- Give a slot back: the last step, after the removal was confirmed.
--
-- ARGV[4] token   ARGV[5] the id whose absence was confirmed, or '-': none was recorded, and a listing made after the
--   fence found no container of the token
-- Returns {'freed'}, {'absent'}, {'changed', reason}, {'refused', reason}.
-- Invariant: only a fenced entry goes, and only if it says what the caller confirmed: the confirmation and the entry
--   are about the same container.
local token, container = ARGV[4], ARGV[5]
local reason = mismatch(configuration())
if reason then return {'refused', reason} end
local entry = entry_of(token)
if not entry then return {'absent'} end
if entry.state ~= 'fenced' then return {'changed', 'state'} end
if entry.container ~= container then return {'changed', 'container'} end
redis.call('HDEL', HOLDERS, token)
return {'freed'}
