#!lua flags=allow-oom
-- First step of a release by the owner.
--
-- ARGV[4] token   ARGV[5] owner
-- Returns {'fenced', container or '-'}, also to a repeat and for an expired entry, {'unknown'}, {'displaced'},
--   {'refused', reason}.
-- Invariant: afterwards nothing can be registered under the token; the id named is the one recorded in this step.
--   Only the owner fences what is live.
-- Runs at maxmemory too: releases must go on.
local token, owner = ARGV[4], ARGV[5]
local reason = mismatch(configuration())
if reason then return {'refused', reason} end
local entry = entry_of(token)
if not entry then return {'unknown'} end
if entry.owner ~= owner then return {'displaced'} end
if entry.state ~= 'fenced' then
  entry.state = 'fenced'
  store(token, entry)
end
return {'fenced', entry.container}
