--[[ sliding_window: each limit counts its last span blocks of one period. Direct or leased; up to 8
limits on the key.

A span of ceil(D / period) + 1 contains every interval of length D, so at most cap tokens are
admitted in any of them. A token comes back D to D + 2 periods after its use. A span of one block
less would admit twice as much within D. All limits are checked, then all count: a refusal by one
changes none.

Leased tokens count in the block in which the lease ends. Once they are spent, they count in the
block of the settlement. That is never before the block of their use, and blocks in the future are
counted. So the bound is the same, leased or not.

Versions of a policy share the key, as in a deploy or after SetPolicy: limits with another period or
span count side by side. Every call counts in the limits of all versions that are in use, and only
its own limits decide. So a process is held to its own limits, whatever other versions grant.

A limit that the key does not know begins with the blocks of another limit: of the one that counts
least among those at least as long, or else of the one that counts most. A block counts at its end,
or at the newest time if that is sooner, and leased tokens count where their lease ends. There are
at most 4 versions. If there are more, the one with the shortest limits is dropped: when it comes
back it finds a longer limit to begin from.

KEYS[1]  a hash that only this script writes
  v  format mark 'sw3'      c  epoch      t  newest time, after a reset 1 µs more
  z  how far the server's clock was set back: the key's time is the server's plus z
  x  until then something counts
  f  time of the last reset: what was counted by then never comes back
  u  the limits in use. Of a single version <tag>,... and of several <tag>,...@<until>;... where
     until is the time after which nothing of the version's last grant counts
  and per limit, tag = <period>x<span>:
  <tag>  tokens counted     <tag>:<b>  of them, those of block b = floor(time / period), if any
  and once a lease was granted the fields of lease.lua

ARGV  see call.lua. Limits: cap, period of a block, span (1 .. 512, span * period <= 2^51); no two
with the same period and span.
  at      the stamp of what is refunded; its block gives back no more than it holds. The tokens may
          count in a later block, because what a lease spent counts from the settlement on. So a
          refund comes off the first block, from that of the stamp on, that counts anything, then
          off the next. What stays counted stays longest
  debt    counts in the block of since: in this version's limits as far as they are not full, and in
          those of other versions in full
  reset   leaves what is out in leases that have not ended. Refund and reset need a deadline <= now
          + ttl
Flag 32 is set if they lack the deadline, or if a refund finds no key or one of another epoch. It is
not set if the refund's block has left the window, or if a reset has forgotten it.

Bounded work: at the edge of a block those that left the window are read and deleted, at most 2 *
span per limit, or all fields once if a lease outlives its window. A refusal reads as many for its
retry, and all fields while others hold tokens; a refund reads at most span per limit. All fields
are also read when a limit is added or dropped. A refused direct take writes nothing, unless it
swept, found a large step back of the clock, added a limit, or its version was about to be forgotten
(twice in its longest window). A peek writes nothing.
]]
--@ rules
local FORMAT = 'sw3'
local LONGEST_SPAN, LONGEST_WINDOW = 512, 2 ^ 51
local SOME = 1000  -- fields per command: unpack has a limit
local LOOK = 32    -- blocks read at a time for a retry
local MOST_VERSIONS = 4
local USE = 11     -- of names: which versions there are
local m, n = limits, limits -- of this version, and with those of others behind them
local mine, window = '', 0  -- the tags of this version, and its longest window
local cap, period, span, tag, names = {}, {}, {}, {}, {'v', 'c', 't', 'z', 'x', 'w', 'a', 'g', 'e', 'o', 'u', own}
local FIXED = #names
if to > 1 then return refuse(19) end
for i = 1, m do
  local first = BEFORE_LIMITS + 3 * i - 2
  cap[i], period[i], span[i] = arg[first], arg[first + 1], arg[first + 2]
  if span[i] < 1 or span[i] > LONGEST_SPAN or span[i] * period[i] > LONGEST_WINDOW then return refuse(first + 2) end
  tag[i] = format('%.0fx%.0f', period[i], span[i])
  for j = 1, i - 1 do
    if tag[j] == tag[i] then return refuse(first + 1) end
  end
  mine, window = i == 1 and tag[i] or mine .. ',' .. tag[i], max(window, span[i] * period[i])
  names[FIXED + i] = tag[i]
end

--@ nothing
0, 0, 0

--@ load

-- Load, or start empty.
local stored = call('HMGET', key, unpack(names))
local exists, lends = stored[1] == FORMAT, stored[6] and true or false
local born, last, behind, until_, wants, active, sweep, latest, escrow, flags, overflow = server, server, 0, 0, 0, 0, 0, 0, 0, 0, 0
if exists then
  for i = 2, 10 do
    stored[i] = tonumber(i > 5 and not lends and 0 or stored[i])
    if not whole(stored[i]) then return corrupt('field') end
  end
  born, last, behind, until_, wants, active, sweep, latest, escrow = unpack(stored, 2, 10)
elseif stored[1] or call('EXISTS', key) == 1 then
  return redis.error_reply('RLFOREIGN key')
else
  flags = CREATED
end
if epoch > 0 and epoch ~= born then flags = flags + OTHER_EPOCH end

-- Clock: a small step back is waited out. A large one is believed, and z makes up for it.
local stepped = last - server - behind > maxback
if stepped then behind, flags = last - server, flags + STEPPED_BACK end
local now = max(server + behind, last)
local stop = now + ttl

-- Versions: the limits of the others come behind this one's, without a cap.
local beside, until_mine, ended = {}, 0, false -- text, until and longest window of each; this one's until; any has gone
if exists and stored[USE] ~= mine then
  local use = stored[USE] or ''
  if not string.match(use, '^[%dx,@;]+$') then return corrupt('field') end
  for text, till in string.gmatch(use, '([%dx,]+)@?(%d*)') do
    local long = 0
    for p, s in string.gmatch(text, '(%d+)x(%d+)') do long = max(long, p * s) end
    till = till == '' and max(last, latest) + long or tonumber(till)
    if text == mine then
      until_mine = till
    elseif till > now then
      beside[#beside + 1] = {text, till, long}
    else
      ended = true
    end
  end
  while #beside >= MOST_VERSIONS do
    local short = 1
    for j = 2, #beside do
      if beside[j][3] < beside[short][3] then short = j end
    end
    local goes = table.remove(beside, short)
    ended = true
    for _, o in ipairs(beside) do o[2] = max(o[2], goes[2]) end -- it may come back until then
  end
  local known, more = {}, {}
  for i = 1, m do known[tag[i]] = true end
  for _, o in ipairs(beside) do
    for t, p, s in string.gmatch(o[1], '((%d+)x(%d+))') do
      if not known[t] then
        known[t], n = true, n + 1
        tag[n], period[n], span[n] = t, tonumber(p), tonumber(s)
        more[#more + 1] = t
      end
    end
  end
  if #more > 0 then
    for j, held in ipairs(call('HMGET', key, unpack(more))) do stored[FIXED + m + j] = held end
  end
end

-- Trim: total is what counts, first is the oldest block that counts, gone has the fields to delete.
local total, first = {}, {}
local function name(i, b) return format('%s:%.0f', tag[i], b) end
-- leaving names the blocks of a limit that counted when the key was last written, and do not count
-- now.
local function leaving(i)
  local f, old = floor((last - 1) / period[i]) - span[i] + 1, {} -- a reset that came last counted 1 µs before
  local upto = min(first[i], floor(max(last, latest) / period[i]) + 1) -- no newer one was counted in
  if upto - f <= 2 * span[i] then
    for b = f, upto - 1 do old[#old + 1] = name(i, b) end
    return old
  end
  fields = fields or call('HGETALL', key)
  local some, start = fields, tag[i] .. ':'
  for j = 1, #some, 2 do
    local b = string.sub(some[j], 1, #start) == start and tonumber(string.sub(some[j], #start + 1))
    if b and b < first[i] then old[#old + 1] = some[j] end
  end
  return old
end
for i = 1, n do
  total[i], first[i] = tonumber(stored[FIXED + i] or 0), floor(now / period[i]) - span[i] + 1
  if not whole(total[i]) then return corrupt('field') end
  if stored[FIXED + i] then
    local old = leaving(i)
    for from = 1, #old, SOME do
      local upto = min(from + SOME - 1, #old)
      local held = call('HMGET', key, unpack(old, from, upto))
      for j = 1, upto - from + 1 do
        if held[j] then
          local n = tonumber(held[j])
          if not whole(n) then return corrupt('field') end
          total[i], gone[#gone + 1] = total[i] - n, old[from + j - 1]
        end
      end
    end
    total[i] = max(0, total[i])
  end
end

-- blocks are those that this call has read: their counts, and whether they existed. Their fields
-- are the keys, because other Luas allocate an array as long as a numeric key is large.
local blocks, cleared = {}, false
for i = 1, n do blocks[i] = {} end
local function block(i, b)
  local field = name(i, b)
  local known = blocks[i][field]
  if not known then
    local held = call('HMGET', key, field)[1]
    local n = tonumber(held or 0)
    if not whole(n) then n, damaged = 0, true end
    known = {cleared and 0 or n, held and true or false}
    blocks[i][field] = known
  end
  return known
end
-- change adds k tokens at a time to a limit that still counts it. k may be negative; a block never
-- falls below 0.
local function change(i, time, k)
  local b = floor(time / period[i])
  if k == 0 or b < first[i] then return end
  local known = block(i, b)
  local after = max(0, known[1] + k)
  total[i], known[1] = total[i] + after - known[1], after
end
local function count(time, k)
  for i = 1, n do change(i, time, k) end
end
-- give_back takes k tokens off that were counted at a time or later.
local function give_back(time, k)
  for i = 1, n do
    local b, left = floor(time / period[i]), k
    while b >= first[i] and b <= floor(now / period[i]) and left > 0 do
      local known = block(i, b)
      local off = min(left, known[1])
      known[1], total[i], left, b = known[1] - off, total[i] - off, left - off, b + 1
    end
  end
end
-- begin gives a limit that is new to the key the blocks of another. It returns true if a lease is
-- damaged.
local function begin(i)
  local from, long = 0, false
  for j = 1, n do
    if stored[FIXED + j] then
      local enough = (span[j] - 1) * period[j] >= max(span[i] - 1, 1) * period[i]
      if from == 0 or enough and not long or enough and total[j] < total[from] or not long and total[j] > total[from] then
        from, long = j, enough
      end
    end
  end
  local held = {}
  fields = fields or call('HGETALL', key)
  local some = fields
  local start = from > 0 and tag[from] .. ':'
  for j = 1, #some, 2 do
    local b = start and string.sub(some[j], 1, #start) == start and tonumber(string.sub(some[j], #start + 1))
    if b and b >= first[from] then
      local count = tonumber(some[j + 1])
      if not whole(count) then count, damaged = 0, true end
      held[some[j]] = {b, count}
    end
  end
  for j = 1, #some, 2 do
    if string.sub(some[j], 1, 1) == 'p' then
      local _, _, out, _, ends, charged = parse(some[j + 1])
      if not charged then return true end
      change(i, ends, out)
      local there = start and held[name(from, floor(ends / period[from]))]
      if there then there[2] = max(0, there[2] - out) end
    end
  end
  for _, there in pairs(held) do change(i, min((there[1] + 1) * period[from] - 1, last), there[2]) end
end
local begun = false -- a refusal stores it too, or each would read all fields
for i = 1, exists and m or 0 do
  if not stored[FIXED + i] then
    if begin(i) then return corrupt('lease') end
    begun = true
  end
end

-- A reset forgets what ended leases held too. Their tokens count where the leases ended.
local forgets = reset > 0 and once
-- A version whose calls are only denied would be forgotten, so it is stored again in time.
local expiring = begun or #beside > 0 and until_mine > 0 and until_mine < now + window / 2
local record, promise, keeps, changed, rated = stored[FIXED], WHOLE, false, false, false

--@ remember
for i = 1, n do memory = max(memory, span[i] * period[i]) end

--@ take_back
count(r_end, -back)

--@ carry
-- What is still held counts at the new end from now on, and what was spent counts now.
count(r_end, -out)
count(min(now, r_end), max(0, out - hold))
count(stop, hold)

--@ charge
-- What was given back makes room for what was charged since.
if refund > 0 and once and exists and epoch == born then
  local before = forgets and now or tonumber(call('HMGET', key, 'f')[1] or 0)
  if not whole(before) then before, damaged = 0, true end
  if min(at, now) > before then give_back(min(at, now), refund) end
end
if debt > charged then
  for i = 1, n do change(i, min(since + behind, now), min(debt - charged, cap[i] and max(0, cap[i] - total[i]) or debt)) end
  charged = debt
end
if forgets then
  fields = fields or call('HGETALL', key)
  local some = fields
  for i = 1, n do
    local start = tag[i] .. ':'
    for j = 1, #some, 2 do
      if string.sub(some[j], 1, #start) == start then gone[#gone + 1] = some[j] end
    end
    total[i], blocks[i] = 0, {}
  end
  cleared = true
  for j = 1, #some, 2 do
    if string.sub(some[j], 1, 1) == 'p' and some[j] ~= own then
      local _, _, lent, _, ends = parse(some[j + 1])
      if ends > now then count(ends, lent) end
    end
  end
  count(stop, hold)
end

--@ refunds
takes = exists and epoch == born

--@ level
avail, tightest = WHOLE, 1
for i = 1, m do
  if cap[i] - total[i] < avail then avail, tightest = cap[i] - total[i], i end
end

--@ lend
count(borrows and stop or now, grant)

--@ retry
-- A repeated reply does not look into blocks.
after, longest, sooner = 1, tightest, not repeats
for i = 1, repeats and 0 or m do -- so many blocks must leave that the missing tokens come back
  local over, b, beyond = total[i] + least - cap[i], first[i], first[i] + 2 * span[i]
  while over > 0 and b < beyond do
    local some = {}
    for j = 0, LOOK - 1 do some[j + 1] = name(i, b + j) end
    local held = call('HMGET', key, unpack(some))
    for j = 1, LOOK do
      if over > 0 and b < beyond then
        local known = blocks[i][some[j]]
        local n = known and known[1] or cleared and 0 or tonumber(held[j] or 0)
        if not whole(n) then n, damaged = 0, true end
        over, b = over - n, b + 1
      end
    end
  end
  if over > 0 then b = floor(max(now, latest) / period[i]) + 1 end -- leases that outlive the window hold them
  local later = (b - 1 + span[i]) * period[i] - server - behind
  if later > after then after, longest = later, i end
end

--@ store
put('z', behind)
local use = mine
if #beside > 0 then
  use = format('%s@%.0f', mine, max(until_mine, (leased and stop or now) + window))
  for _, o in ipairs(beside) do use = format('%s;%s@%.0f', use, o[1], o[2]) end
end
if use ~= stored[USE] then put('u', use) end
if ended then -- the fields of limits that nobody uses any more
  fields = fields or call('HGETALL', key)
  local some, used = fields, {}
  for i = 1, n do used[tag[i]] = true end
  for j = 1, #some, 2 do
    local t = string.match(some[j], '^%d+x%d+')
    if t and not used[t] then gone[#gone + 1] = some[j] end
  end
end
for i = 1, n do
  put(tag[i], total[i])
  for field, known in pairs(blocks[i]) do
    if known[1] > 0 then put(field, known[1]) elseif known[2] then gone[#gone + 1] = field end
  end
  until_ = max(until_, (floor(max(now, latest) / period[i]) + span[i]) * period[i])
end
put('x', until_)
if forgets then
  put('f', now)
  put('t', now + 1) -- what is taken from here on was not counted by then, also while the clock is behind
end
keep = ceil((until_ - server - behind) / 1000) + 1000

--@ clear
-- An upper bound.
local till = now
if escrow > 0 then till = max(now, latest, dry and hold > 0 and stop or 0) end -- what is out counts where its lease ends
for i = 1, m do
  if total[i] > 0 then clear = max(clear, (floor(till / period[i]) + span[i]) * period[i] - server - behind) end
end

--@ tail
which or tightest, clear, now
