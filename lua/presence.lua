--[[ presence: which processes share the buckets of this node, and which of them have a policy.

KEYS[1]  a sorted set. Its members are of four kinds, which their scores tell apart:
         p<id>            a process; score: the server time in microseconds at which it was last
                          here, >= 0
         a<n>:<id><what>  what the process announces, if it does; n is the length of the id;
                          score: a number that the id hashes to, by which the member is found,
                          <= -2^48
         n, l, s, b ...   a count of the processes that announce something: see counts; score: minus
                          the count
         f<e><name>       since when e eighths of a policy were in use, and t<e><name>, until when
                          at least; score: minus the seconds since 1970, below -2^40
ARGV     1 process id, not empty
         2 ttl, microseconds, 1 .. 2^53-1: how long a silent process counts; 0 leaves at once
         3 now, 0 reads TIME; anything else is for tests
         4 what the process announces; empty or missing: nothing. 16 hex digits stand for its
           service. Then come 34 for each of its policies, at most 512 and each once: 16 for the
           name, 16 for the limits, and two of 0 to 6. The first of these says how many eighths of
           the limits it wants the processes to share, the second by how many it uses shares
         5 keep, seconds, 0 .. 2^32: for so long the key keeps which parts of the policies of
           ARGV[4] were in use. A process needs that to know about a window that began before it
           came. 0 or missing: it does not ask
Reply    {processes here, this one included; now, server time in microseconds; silent: those of them
         that announce nothing;
         for each policy of ARGV[4]: the processes that announce it or nothing, those of other
         services with other limits, those of the same service with other limits, those that
         announce it and want as much as this one (0 if this one wants nothing), and the most by
         which any uses shares;
         for each part that was in use in the last keep seconds: the policy's number from 1, the
         eighths, since when and until when at least, in microseconds}
Errors   nothing is written: RLARG argument n, WRONGTYPE ... a key that is not a sorted set

The work is O(log n) and O(policies) per call and per process that came, changed or went away, and
O(parts in use) with keep. The key outlives its youngest entry by one ttl, and a part that was in
use by keep.
]]

local WHOLE, FOUND, USED, DIGITS, EACH, MOST, SOME = 2 ^ 53, 2 ^ 48, 2 ^ 40, 16, 34, 512, 1000
local key, id, what = KEYS[1], ARGV[1], ARGV[4] or ''
local sub, call = string.sub, redis.call
if id == '' then return redis.error_reply('RLARG argument 1') end
for i = 2, 3 do
  local n = tonumber(ARGV[i])
  if not (n and n >= 0 and n < WHOLE and n % 1 == 0) then return redis.error_reply('RLARG argument ' .. i) end
end
local ttl, now, keep = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[5] or '0')
if not (keep and keep >= 0 and keep <= 2 ^ 32 and keep % 1 == 0) then return redis.error_reply('RLARG argument 5') end
if what ~= '' and ((#what - DIGITS) % EACH ~= 0 or #what > DIGITS + MOST * EACH or string.find(what, '[^0-9a-f]')) then
  return redis.error_reply('RLARG argument 4')
end
local service, names, policies, wants, uses, known = sub(what, 1, DIGITS), {}, {}, {}, {}, {}
for i = DIGITS + 1, #what, EACH do
  local name, shares = sub(what, i, i + DIGITS - 1), sub(what, i + 2 * DIGITS, i + EACH - 1)
  if known[name] or string.find(shares, '[^0-6]') then return redis.error_reply('RLARG argument 4') end
  names[#names + 1] = name
  known[name] = #names
  policies[#names] = sub(what, i, i + 2 * DIGITS - 1) -- its name and its limits
  wants[#names], uses[#names] = sub(shares, 1, 1), sub(shares, 2, 2)
end
if now == 0 then
  local t = call('TIME')
  now = t[1] * 1000000 + t[2]
end

local function text(n) return string.format('%.0f', n) end

-- counts names the counts in which a process is that announces a policy. They count the processes
-- with this policy; those of its service with the same limits; those of any service with the same
-- limits; those of its service with any limits; and those that want, or use, so many eighths.
local function counts(its, said)
  local name, policy = sub(said, 1, DIGITS), sub(said, 1, 2 * DIGITS)
  local all = {'n' .. name, 'b' .. policy .. its, 'l' .. policy, 's' .. name .. its}
  local want, use = sub(said, EACH - 1, EACH - 1), sub(said, EACH, EACH)
  if want ~= '0' then all[#all + 1] = 'w' .. want .. name end
  if use ~= '0' then
    all[#all + 1] = 'u' .. name
    all[#all + 1] = 'u' .. use .. name
  end
  return all
end

-- announced returns what a process announces and the member that says so, and the score of such a
-- member.
local function announced(process)
  local start = 'a' .. #process .. ':' .. process
  local score = text(-FOUND - tonumber(sub(redis.sha1hex(process), 1, 12), 16))
  for _, member in ipairs(call('ZRANGEBYSCORE', key, score, score)) do
    if sub(member, 1, #start) == start then return sub(member, #start + 1), member, score end
  end
  return '', nil, score
end

-- All is read before anything is written.
local change, gone = {}, {} -- by how much counts rise; members to remove
local function count(said, by)
  for i = DIGITS + 1, #said, EACH do
    for _, name in ipairs(counts(sub(said, 1, DIGITS), sub(said, i, i + EACH - 1))) do
      change[name] = (change[name] or 0) + by
    end
  end
end
local function forget(member)
  local said, its = announced(sub(member, 2))
  count(said, -1)
  gone[#gone + 1], gone[#gone + 2] = member, its
end

local written = {} -- of ZADD: a score and a member, and so on
if ttl == 0 then
  forget('p' .. id)
else
  written = {text(now), 'p' .. id}
  local before, member, score = announced(id)
  if before ~= what then
    count(before, -1)
    count(what, 1)
    gone[1] = member
    if what ~= '' then written[3], written[4] = score, 'a' .. #id .. ':' .. id .. what end
  end
  -- An entry more than one ttl in the future was written before the clock was set back. Its process
  -- renews it if it is alive.
  for _, range in ipairs({{'0', text(now - ttl)}, {'(' .. text(now + ttl), '+inf'}}) do
    for _, other in ipairs(call('ZRANGEBYSCORE', key, range[1], range[2])) do
      if other ~= 'p' .. id then forget(other) end
    end
  end
end

-- of holds counts, as they are after this call.
local of = {}
local function read(wanted)
  for i = 1, #wanted, SOME do
    local last = math.min(i + SOME - 1, #wanted)
    for j, score in ipairs(call('ZMSCORE', key, unpack(wanted, i, last))) do
      local name = wanted[i + j - 1]
      of[name] = math.max(0, (change[name] or 0) - tonumber(score or 0))
    end
  end
end
local wanted = {}
for name in pairs(change) do wanted[#wanted + 1] = name end
for i, policy in ipairs(policies) do
  wanted[#wanted + 1], wanted[#wanted + 2], wanted[#wanted + 3] = 'n' .. names[i], 'b' .. policy .. service, 'u' .. names[i]
  if wants[i] ~= '0' then wanted[#wanted + 1] = 'w' .. wants[i] .. names[i] end
end
read(wanted)
-- In most cases all processes with a policy are of one service and have the same limits. Then there
-- are no others. And in most cases none uses shares.
wanted = {}
for i, policy in ipairs(policies) do
  if of['n' .. names[i]] ~= of['b' .. policy .. service] then
    wanted[#wanted + 1], wanted[#wanted + 2] = 'l' .. policy, 's' .. names[i] .. service
  end
  if of['u' .. names[i]] > 0 then
    for use = 1, 6 do wanted[#wanted + 1] = 'u' .. use .. names[i] end
  end
end
read(wanted)
for name, by in pairs(change) do
  if of[name] == 0 then
    gone[#gone + 1] = name
  elseif by ~= 0 then
    written[#written + 1], written[#written + 2] = text(-of[name]), name
  end
end

-- Note which parts of the caller's policies were in use, since when and until when, in seconds. If
-- the clock is set back, that shortens nothing.
local inUse = {}
if keep > 0 and ttl > 0 then
  local all, at = {}, {from = math.floor(now / 1000000), to = math.ceil(now / 1000000)}
  local stored = call('ZRANGEBYSCORE', key, text(-2 * USED), text(-USED), 'WITHSCORES')
  for i = 1, #stored, 2 do
    local kind, part = sub(stored[i], 1, 1), sub(stored[i], 2)
    if known[sub(part, 2)] then
      all[part] = all[part] or {}
      all[part][kind] = -stored[i + 1] - USED
    end
  end
  for i, use in ipairs(uses) do
    if use ~= '0' then
      local part = use .. names[i]
      local it = all[part] or {}
      if it.t and it.t < at.from - keep then it = {} end
      all[part] = {f = math.min(it.f or at.from, at.from), t = math.max(it.t or at.to, at.to)}
      written[#written + 1], written[#written + 2] = text(-USED - all[part].f), 'f' .. part
      written[#written + 1], written[#written + 2] = text(-USED - all[part].t), 't' .. part
    end
  end
  for part, it in pairs(all) do
    if it.f and it.t and it.t >= at.from - keep then
      inUse[#inUse + 1] = {known[sub(part, 2)], tonumber(sub(part, 1, 1)), it.f * 1000000, it.t * 1000000}
    else
      gone[#gone + 1], gone[#gone + 2] = 'f' .. part, 't' .. part
    end
  end
  table.sort(inUse, function(a, b) return a[1] < b[1] or a[1] == b[1] and a[2] < b[2] end)
end

local function remove()
  for i = 1, #gone, SOME do call('ZREM', key, unpack(gone, i, math.min(i + SOME - 1, #gone))) end
end
-- A full Redis refuses ZADD only while nothing is written. It must refuse a process that comes, and
-- let one leave.
if ttl == 0 then remove() end
for i = 1, #written, SOME do call('ZADD', key, unpack(written, i, math.min(i + SOME - 1, #written))) end
if ttl > 0 then
  remove()
  local life = math.ceil(ttl / 500) -- two ttl, in milliseconds
  if call('ZCOUNT', key, text(-2 * USED), text(-USED)) > 0 then -- another process may keep more, or for longer
    life = math.max(life, #inUse > 0 and keep * 1000 or 0, call('PTTL', key))
  end
  call('PEXPIRE', key, text(life))
end

local reply = {call('ZCOUNT', key, '0', '+inf'), now}
local silent = reply[1] - call('ZCOUNT', key, '-inf', text(-FOUND))
reply[3] = silent
for i, policy in ipairs(policies) do
  local all, mine = of['n' .. names[i]], of['b' .. policy .. service]
  local elsewhere, here = 0, 0
  if all ~= mine then
    here = of['s' .. names[i] .. service] - mine
    elsewhere = all - of['l' .. policy] - here
  end
  local used = 0
  for use = 1, 6 do
    if (of['u' .. use .. names[i]] or 0) > 0 then used = use end
  end
  local at = 5 * i - 2 -- the numbers of a policy follow the first three, and the last one's
  reply[at + 1], reply[at + 2], reply[at + 3] = all + silent, elsewhere, here
  reply[at + 4], reply[at + 5] = of['w' .. wants[i] .. names[i]] or 0, used
end
for _, part in ipairs(inUse) do
  for _, number in ipairs(part) do reply[#reply + 1] = number end
end
return reply
