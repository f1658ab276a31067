#!lua
-- Note a token as waiting, or as still waiting.
--
-- ARGV[1] token   ARGV[2] owner   ARGV[3] run
-- Returns {'ok'}.
-- Invariant: takes no capacity and gives no place: for the metric only.
note_waiting(ARGV[1], ARGV[2], ARGV[3], clock())
return {'ok'}
