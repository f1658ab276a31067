#!lua
-- Begin a new ledger: the first one, or after the dataset was lost or replaced by another.
--
-- ARGV[1..3] protocol, daemon, the NEW ledger's id   ARGV[4] its number   ARGV[5] generation   ARGV[6] limit
-- ARGV[7] the id of the ledger that it replaces, or '-': none may be there
-- Returns {'initialised'}, also to a repeat, or {'present'}: read what is there and compare.
-- Invariant: the caller's pass found no container of the instance, so no entry of an earlier ledger stands for
--   anything: the new one begins empty. Calls that still name the earlier ledger are refused from now on.
local ledger, number, generation, limit, replaced = ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local found = redis.call('HGET', CONFIG, 'ledger')
if found == ledger then return {'initialised'} end
if (found or '-') ~= replaced then return {'present'} end
redis.call('DEL', HOLDERS, CONFIG, WAITING)
redis.call('HSET', CONFIG, 'protocol', ARGV[1], 'daemon', ARGV[2], 'ledger', ledger, 'ledger_number', number,
  'generation', generation, 'limit', limit)
return {'initialised'}
