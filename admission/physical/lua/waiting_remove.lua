#!lua flags=allow-oom
-- Forget a token that waits no more.
--
-- ARGV[1] token
-- Returns {'ok'}.
-- Invariant: touches no holder.
redis.call('HDEL', WAITING, ARGV[1])
return {'ok'}
