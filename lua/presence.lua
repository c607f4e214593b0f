--[[ presence: which processes share the buckets of this node.

KEYS[1]  a sorted set: one member per process, its score the server time in microseconds at which it was last here
ARGV     1 process id, not empty   2 ttl, microseconds, 1 .. 2^53-1: how long a silent process counts; 0 leaves at
once
         3 now, 0 reads TIME; anything else is for tests
Reply    {processes here, this one included; now, server time in microseconds}
Errors   nothing is written: RLARG argument n, WRONGTYPE ... a key that is not a sorted set

The work is O(log n) per call and per process that went away. The key outlives its youngest entry by one ttl.
]]

local WHOLE = 2 ^ 53
local key, id = KEYS[1], ARGV[1]
if id == '' then return redis.error_reply('RLARG argument 1') end
for i = 2, 3 do
  local n = tonumber(ARGV[i])
  if not (n and n >= 0 and n < WHOLE and n % 1 == 0) then return redis.error_reply('RLARG argument ' .. i) end
end
local ttl, now = tonumber(ARGV[2]), tonumber(ARGV[3])
if now == 0 then
  local t = redis.call('TIME')
  now = t[1] * 1000000 + t[2]
end

if ttl == 0 then
  redis.call('ZREM', key, id)
else
  -- ZADD comes first, because a full Redis refuses it only while nothing is written.
  redis.call('ZADD', key, string.format('%.0f', now), id)
  -- An entry more than one ttl in the future was written before the clock was set back. Its process renews it if it
  -- is alive.
  redis.call('ZREMRANGEBYSCORE', key, '-inf', string.format('%.0f', now - ttl))
  redis.call('ZREMRANGEBYSCORE', key, string.format('(%.0f', now + ttl), '+inf')
  redis.call('PEXPIRE', key, string.format('%.0f', math.ceil(ttl / 500))) -- two ttl, in milliseconds
end
return {redis.call('ZCARD', key), now}
