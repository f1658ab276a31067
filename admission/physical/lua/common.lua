-- Prepended to every script, after its shebang: the clock, the entries, the configuration. Not a script of its own.
--
-- KEYS[1] holders  hash token -> entry; every entry takes capacity, whatever its state and age
-- KEYS[2] config   hash protocol, daemon, limit, generation, ledger_number, ledger,
--                  and while locked down: lockdown, lockdown_reason, lockdown_since
-- KEYS[3] waiting  hash token -> "since last owner run"; for the metric only
-- ARGV[1..3]       protocol, daemon, ledger that the caller believes in (but for `read` and the two of `waiting`)
--
-- Entry: "state generation deadline since owner container run", '-' for none; times in microseconds of this server.
-- Numbers are written by format: Lua's .. keeps 14 digits of them, and a microsecond of today has 16.
-- A deadline is strict: at it, the entry is expired.
-- HOLD_US and WAITER_US are put in front of this file by admission.physical.scripts.

local HOLDERS, CONFIG, WAITING = KEYS[1], KEYS[2], KEYS[3]

local function clock()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

local function decode(value)
  local state, generation, deadline, since, owner, container, run =
    string.match(value, '^(%a+) (%d+) (%d+) (%d+) (%S+) (%S+) (%S+)$')
  if not state then
    -- Only an edit by hand writes such a thing. An error keeps its capacity taken and tells everybody.
    error('UNREADABLE entry in ' .. HOLDERS .. ': ' .. value)
  end
  return {
    state = state, generation = tonumber(generation), deadline = tonumber(deadline), since = tonumber(since),
    owner = owner, container = container, run = run,
  }
end

local function entry_of(token)
  local value = redis.call('HGET', HOLDERS, token)
  return value and decode(value)
end

local function store(token, entry)
  redis.call('HSET', HOLDERS, token, string.format('%s %.0f %.0f %.0f %s %s %s', entry.state, entry.generation,
    entry.deadline, entry.since, entry.owner, entry.container, entry.run))
end

-- Why this entry gives its owner no right any more, or nil.
local function lapsed(entry, now)
  if entry.state == 'fenced' then return 'fenced' end
  if entry.deadline <= now then return 'expired' end
  return nil
end

local function configuration()
  local values = redis.call('HMGET', CONFIG, 'protocol', 'daemon', 'ledger', 'generation', 'limit', 'lockdown')
  if not values[1] then return nil end
  return {
    protocol = values[1], daemon = values[2], ledger = values[3],
    generation = tonumber(values[4]), limit = tonumber(values[5]), lockdown = values[6],
  }
end

-- Why the caller has no business with this dataset, or nil.
local function mismatch(config)
  if not config then return 'no_config' end
  if config.protocol ~= ARGV[1] then return 'protocol' end
  if config.daemon ~= ARGV[2] then return 'daemon' end
  if config.ledger ~= ARGV[3] then return 'ledger' end
  return nil
end

-- The same for a script that lets something new begin.
local function closed(config)
  local reason = mismatch(config)
  if reason then return reason end
  if config.lockdown then return 'lockdown' end
  return nil
end

local function note_waiting(token, owner, run, now)
  local known = redis.call('HGET', WAITING, token)
  local since = known and tonumber(string.match(known, '^(%d+) ')) or now
  redis.call('HSET', WAITING, token, string.format('%.0f %.0f %s %s', since, now, owner, run))
end

local function is_waiting(value, now)
  local last = tonumber(string.match(value, '^%d+ (%d+) '))
  -- One noted in the future was noted before the server's clock was set back; who still waits is noted again.
  return last <= now and last + WAITER_US > now
end
