#!lua
-- End a lockdown after a pass that found no container without a token.
--
-- ARGV[4] the id of the lockdown under which that pass began
-- Returns {'cleared'}, {'clear'}: none is set, {'changed', 'lockdown'}: another began since, or {'refused', reason}.
-- Invariant: a pass ends only the lockdown that it looked at.
local config = configuration()
local reason = mismatch(config)
if reason then return {'refused', reason} end
if not config.lockdown then return {'clear'} end
if config.lockdown ~= ARGV[4] then return {'changed', 'lockdown'} end
redis.call('HDEL', CONFIG, 'lockdown', 'lockdown_reason', 'lockdown_since')
return {'cleared'}
