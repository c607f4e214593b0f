--[[ standing: lends fractions of the standing shares to the processes.

A limit with standing shares is split for good: a part is in Redis' bucket, and the rest is divided
over the processes. A process with a fraction f of the POOL owns f of that rest, of every key, and
spends it without a call. This table lends the fractions. All that may be used at one moment is at
most POOL.

KEYS[1]  a hash that only this script writes
  v  format mark 'st1'
  c  epoch: when the table was created; a new one means that all members were forgotten
  n  server time of the last call
  u  table time, microseconds since the epoch began
  h  table time at which the quarantine ends
  m<member id>  seq|out|end: the last call, the units that may be in use, and the table time at
                which the record ends

ARGV  whole numbers 0 .. 2^53-1 except 1; times in microseconds
  1 member id  random, not empty; a new one when its right is over
  2 seq    >= 1, higher with every call of a member
  3 ack    highest seq whose reply was accepted, < seq
  4 hold   units in use until the next reply is accepted, <= POOL
  5 want   1, or 0: nothing more is wanted
  6 ttl    1 .. 2^50: how long the right lasts, counted from when the call is sent
  7 epoch  as last seen, 0 unknown
  8 now    0 reads TIME; anything else is for tests
Reply  {code, grant, epoch, members, flags, now}
  code   0 done
         3 stale: a call of this member with this seq or a higher one was executed; ignore the reply
         4 over: the member has no record, so its right is over; it comes back under a new id.
         3 and 4 write nothing
  grant  units that may be used once the reply is accepted; may be less than hold
  members  with a record, the caller included; 0 after 3 and 4
  flags  added up: 1 there was no table   2 writes were lost: new epoch
         4 quarantine: no grant above hold
  now    server time
Errors  nothing is written, and no text of the caller is repeated
  RLARG argument n       not a whole number in range, or against its rule
  RLFOREIGN key          a hash that is not ours
  WRONGTYPE ...          not a hash
  RLCORRUPT field|member ours, but damaged

A member counts its right from when it sends the call, so for it the right ends before the record
does. A member that is silent loses its record. The work of a call is O(members).
]]

local max, min, floor, call = math.max, math.min, math.floor, redis.call
local FORMAT, POOL, WHOLE, LONGEST, SOME = 'st1', 2 ^ 20, 2 ^ 53, 2 ^ 50, 1000
local STEP = 5000000 -- the most that one call adds to the table time
local DONE, STALE, OVER = 0, 3, 4
local CREATED, LOST, QUARANTINE = 1, 2, 4
local key, id = KEYS[1], ARGV[1]

-- 1. Arguments.
if not id or id == '' then return redis.error_reply('RLARG argument 1') end
local function whole(x) return x and x >= 0 and x < WHOLE and x % 1 == 0 end
local numbers = {}
for i = 2, 8 do
  numbers[i] = tonumber(ARGV[i])
  if not whole(numbers[i]) then return redis.error_reply('RLARG argument ' .. i) end
end
local seq, ack, hold, want, ttl, epoch, server = unpack(numbers, 2, 8)
local broken = seq < 1 and 2 or ack >= seq and 3 or hold > POOL and 4 or want > 1 and 5
  or (ttl < 1 or ttl > LONGEST) and 6
if broken then return redis.error_reply('RLARG argument ' .. broken) end
if server == 0 then
  local t = call('TIME')
  server = t[1] * 1000000 + t[2]
end

-- 2. Read all before anything is written.
local stored, fields, members, damaged = call('HGETALL', key), {}, {}, false
for i = 1, #stored, 2 do
  local name = stored[i]
  if string.sub(name, 1, 1) == 'm' then
    local s, o, e = string.match(stored[i + 1], '^(%d+)|(%d+)|(%d+)$')
    local r = {seq = tonumber(s), out = tonumber(o), stop = tonumber(e)}
    if not (whole(r.seq) and whole(r.out) and r.out <= POOL and whole(r.stop)) then damaged = true end
    members[string.sub(name, 2)] = r
  else
    fields[name] = stored[i + 1]
  end
end
if #stored > 0 and fields.v ~= FORMAT then return redis.error_reply('RLFOREIGN key') end
local born, last, now, quarantine = tonumber(fields.c), tonumber(fields.n), tonumber(fields.u), tonumber(fields.h)
if #stored > 0 and not (whole(born) and whole(last) and whole(now) and whole(quarantine)) then
  return redis.error_reply('RLCORRUPT field')
end
if damaged then return redis.error_reply('RLCORRUPT member') end

-- 3. A new epoch forgets all members. Then nobody knows what is in use. So until all earlier rights
-- are over, nobody is granted more than it holds.
local flags, gone = 0, {} -- gone holds the ids of records that are removed
local function begin()
  born, last, now, quarantine = max(server, (born or -1) + 1), server, 0, ttl + STEP
  for m in pairs(members) do gone[m] = true end
  members = {}
end
if #stored == 0 then
  begin()
  flags = CREATED
else
  -- A record lives STEP longer than its owner believes. So a clock that jumps ahead once in a ttl
  -- ends no record too early. A step back stops the table time for one call.
  now = now + max(0, min(server - last, STEP))
  last = server
  local own = members[id]
  -- An older call must not undo what a newer one said is in use.
  if own and own.seq >= seq then return {STALE, 0, born, 0, 0, server} end
  -- The member has seen a reply that its record does not know: a failover lost writes of this
  -- member, and maybe of others.
  if own and epoch == born and own.seq < ack then
    begin()
    flags = LOST
  end
end

-- 4. A member that was silent for a ttl no longer uses what it had.
local others, count = 0, 1
for m, r in pairs(members) do
  if r.stop <= now then
    gone[m], members[m] = true, nil
  elseif m ~= id then
    others, count = others + r.out, count + 1
  end
end
local quiet = now < quarantine
if quiet then flags = flags + QUARANTINE end
-- A record begins with the first call of an id. In the quarantine a member of a lost table gets a
-- record too, with what it says that it holds. Any other call is late: the id's right is over, and
-- what it holds may be lent to others.
local exists = members[id] ~= nil
if not exists and ack > 0 and (epoch == born or not quiet) then return {OVER, 0, born, 0, flags, server} end

-- 5. Grant an equal part, as far as the others confirmed that they do not use it. What the member
-- holds is in use until it has the reply. So the larger of hold and grant is out.
local grant = 0
if want > 0 then
  grant = min(floor(POOL / count), max(0, POOL - others))
  if quiet then grant = min(grant, hold) end
end

-- 6. Write. The deletions come last. So an interrupted run leaves too many records, and a full
-- Redis refuses the call as a whole: it refuses HSET only while a run has written nothing.
local function text(n) return string.format('%.0f', n) end
local own = {}
if want > 0 or hold > 0 then
  own = {'m' .. id, text(seq) .. '|' .. text(max(hold, grant)) .. '|' .. text(now + ttl + STEP)}
  gone[id] = nil
elseif exists then
  gone[id] = true
end
call('HSET', key, 'v', FORMAT, 'c', text(born), 'n', text(last), 'u', text(now), 'h', text(quarantine), unpack(own))
local names = {}
for m in pairs(gone) do names[#names + 1] = 'm' .. m end
for i = 1, #names, SOME do call('HDEL', key, unpack(names, i, min(i + SOME - 1, #names))) end
-- When nobody has called for that long, all rights are over. A new table costs a quarantine and
-- nothing else.
call('PEXPIRE', key, text(4 * math.ceil(ttl / 1000) + 60000))
return {DONE, grant, born, count, flags, server}
