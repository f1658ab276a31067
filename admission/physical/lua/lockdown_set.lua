#!lua flags=allow-oom
-- Let nothing new begin: a container was found that nobody counted.
--
-- ARGV[4] an id for this lockdown   ARGV[5] reason
-- Returns {'set' | 'already', the id of the lockdown in force} or {'refused', reason}.
-- Invariant: while it is set, acquire, register, adopt and install refuse. Set twice is set once.
local config = configuration()
local reason = mismatch(config)
if reason then return {'refused', reason} end
if config.lockdown then return {'already', config.lockdown} end
redis.call('HSET', CONFIG, 'lockdown', ARGV[4], 'lockdown_reason', ARGV[5],
  'lockdown_since', string.format('%.0f', clock()))
return {'set', ARGV[4]}
