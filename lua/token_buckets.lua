--[[ token_buckets: several token buckets on one key, each token debited from all of them. Direct or
leased; up to 8.

All are checked, then all are debited: a refusal by one changes none. There is one escrow, because
what is out in a lease is out of each bucket. At every moment level + escrow <= cap holds for each,
so each limit has the bound of a single bucket. The steps and their reasons are those of
token_bucket.lua. There is one overflow: the smallest of what the buckets lost. It is never more
than a bucket's own, so each is charged at least as much as a single bucket would be.

KEYS[1]  a hash that only this script writes
  v  format mark 'tm2'      c  epoch      t  newest time
  z  how far the server's clock was set back: the key's time is the server's plus z
  x  from then on the buckets are full and no lease is out
  s  overflow, a double: starts at 2^40, stops at 2^52
  l<period>  level of the bucket of that period, a double, may be negative (debt)
  r  terms of each that govern, with commas: period:cap/tokens, and /most, the largest cap, if that
     is larger
  h  of each, with commas: period:until when that cap governs/until when those tokens do. Absent
     while all callers have the same limits. Every call that writes keeps it up to date
  and once a lease was granted the fields of lease.lua

ARGV  see call.lua. Limits: cap, period, tokens refilled per period (1 .. 2^40); no two with the
same period. 18 has no effect here: what comes back raises the levels, whenever it was taken. Refund
and reset need a deadline <= now + ttl, else flag 32 is set. A reset fills each bucket, except for
the room that leases take.

A refused direct take writes nothing, unless it swept, found a large step back of the clock, changes
what governs, or has to note that its terms still do. A peek writes nothing, unless it changes what
governs.
]]
--@ rules
local m = limits
local cap, period, refill, names = {}, {}, {}, {'v', 'c', 't', 'z', 'x', 's', 'o', 'w', 'a', 'g', 'e', own}
local FIXED = #names
if to > 1 then return refuse(19) end
for i = 1, m do
  local first = BEFORE_LIMITS + 3 * i - 2
  cap[i], period[i], refill[i] = arg[first], arg[first + 1], arg[first + 2]
  if refill[i] < 1 or refill[i] > MOST then return refuse(first + 2) end
  for j = 1, i - 1 do
    if period[j] == period[i] then return refuse(first + 1) end
  end
  names[FIXED + i] = 'l' .. text(period[i])
end
names[FIXED + m + 1], names[FIXED + m + 2] = 'r', 'h'

--@ nothing
0, 0, 0

--@ load
local FORMAT = 'tm2'
local ROUNDING = 1e-9 -- tokens: 0.9999999999 is a rounding error of the refill, not a missing token
local LOST = 0.001    -- microseconds: so much of a time until a retry is a rounding error, not time
local MINUTE = 60 * SECOND
local OVERFLOW_START, OVERFLOW_END = 2 ^ 40, 2 ^ 52
local HOLD, OTHER_TERMS = 10 * SECOND, 64 -- see token_bucket.lua
local function tokens(x) return floor(x + ROUNDING) end

-- Load, or start full.
local stored = call('HMGET', key, unpack(names))
local exists, lends = stored[1] == FORMAT, stored[7] and true or false
local born, last, behind, until_, overflow, escrow, wants, active, sweep, latest, flags =
  server, server, 0, 0, OVERFLOW_START, 0, 0, 0, 0, 0, 0
if exists then
  for i = 2, 11 do
    local x = tonumber(i > 6 and not lends and 0 or stored[i])
    if not (whole(x) or i == 6 and x and x > 0 and x < WHOLE) then return corrupt('field') end
    stored[i] = x
  end
  born, last, behind, until_, overflow, escrow, wants, active, sweep, latest = unpack(stored, 2, 11)
elseif stored[1] or call('EXISTS', key) == 1 then
  return redis.error_reply('RLFOREIGN key')
else
  flags = CREATED
end
if epoch > 0 and epoch ~= born then flags = flags + OTHER_EPOCH end
local now = max(server + behind, last) -- also after a step back of the clock
local level, terms, turn = {}, {}, {} -- turn: until when the stored refill counts
local was_cap, was_refill, most = cap, refill, cap -- by which the time since the last write counts
for i = 1, m do
  local l = tonumber(stored[FIXED + i] or cap[i] - escrow) -- none: a limit that is new on this key
  if not (l and l > -WHOLE and l < WHOLE) then return corrupt('field') end
  level[i], terms[i], turn[i] = l, format('%d:%d/%d', period[i], cap[i], refill[i]), now
end
local known, noted = stored[FIXED + m + 1] or '', stored[FIXED + m + 2]
local told, until_told = table.concat(terms, ','), nil
local changed, unknown, lesser, expiring = false, false, false, false
local own_refill, larger_until = refill, {} -- until when a refill governs that is larger than the caller's
if exists and (known ~= told or noted) then
  local place, others, ends = {}, {}, {}
  was_cap, was_refill, most = {}, {}, {}
  for i = 1, m do place[text(period[i])] = i end
  for one in string.gmatch(known, '[^,]+') do
    local p, c, f, largest = string.match(one, '^(%d+):(%d+)/(%d+)/?(%d*)$')
    local i = place[p]
    if not i then
      others[#others + 1] = one -- of a limit that this caller does not have
    else
      was_cap[i], was_refill[i], most[i] = tonumber(c), tonumber(f), max(cap[i], tonumber(c), tonumber(largest) or 0)
    end
  end
  for i = 1, m do
    if not stored[FIXED + i] then was_cap[i], was_refill[i], most[i], unknown = cap[i], refill[i], cap[i], true end
    if not (whole(was_cap[i]) and whole(was_refill[i])) then return corrupt('field') end
  end

  -- The larger cap and the larger refill govern, each by itself. From here on cap and refill are
  -- those.
  for one in string.gmatch(noted or '', '[^,]+') do
    local p, c, f = string.match(one, '^(%d+):(%d+)/(%d+)$')
    if not p then return corrupt('field') end
    ends[p] = {tonumber(c), tonumber(f)}
  end
  local unnoted, soon, used = max(last, latest) + HOLD, now + HOLD / 2, now + (leased and ttl or 0) + HOLD
  local govern_cap, govern_refill, held = {}, {}, {}
  for i = 1, m do
    local p, c, f = text(period[i]), cap[i], refill[i]
    local cap_until, refill_until = unpack(ends[p] or {unnoted, unnoted})
    if not (whole(cap_until) and whole(refill_until)) then return corrupt('field') end
    if c < was_cap[i] and now < cap_until then
      c, lesser = was_cap[i], true
    else
      expiring = expiring or cap_until < soon
      cap_until = c == was_cap[i] and max(cap_until, used) or used
    end
    if f < was_refill[i] and now < refill_until then
      f, lesser, larger_until[i] = was_refill[i], true, refill_until
    else
      if f < was_refill[i] then turn[i] = max(last, refill_until) end -- nobody has used the larger one since
      expiring = expiring or refill_until < soon
      refill_until = f == was_refill[i] and max(refill_until, used) or used
    end
    changed = changed or c ~= was_cap[i] or f ~= was_refill[i]
    govern_cap[i], govern_refill[i] = c, f
    terms[i], held[i] = format('%s:%d/%d', p, c, f), format('%s:%d/%d', p, cap_until, refill_until)
    if most[i] > c then terms[i] = terms[i] .. format('/%d', most[i]) end
  end
  cap, refill, expiring = govern_cap, govern_refill, expiring and noted and now > last
  for _, one in ipairs(others) do
    local p = string.match(one, '^%d+') or ''
    local cap_until, refill_until = unpack(ends[p] or {unnoted, unnoted})
    terms[#terms + 1], held[#held + 1] = one, format('%s:%d/%d', p, cap_until, refill_until)
  end
  told = table.concat(terms, ',')
  if noted or lesser or changed and latest > now then until_told = table.concat(held, ',') end
  if lesser then flags = flags + OTHER_TERMS end
end

local forgiven = 0 -- by the limit that forgives the most
local record, stop, promise, keeps, forgets, rated, stepped = stored[FIXED], now + ttl, WHOLE, false, false, false, false

--@ remember
for i = 1, m do memory = max(memory, (cap[i] + max(cap[i], maxdebt)) * period[i] / refill[i]) end

--@ look
for i = 1, m do
  local came = (turn[i] - last) * was_refill[i] / period[i] + (now - turn[i]) * refill[i] / period[i]
  level[i] = min(level[i] + came, min(cap[i], was_cap[i]) - escrow)
end

--@ refill
-- Clock: a small step back is waited out, a large one is believed and z makes up for it.
stepped = last - server - behind > maxback
if stepped then behind, flags = last - server, flags + STEPPED_BACK end
-- Refill by the terms that governed. The room of ended leases fills only from the last such end on.
local lost = OVERFLOW_END
for i = 1, m do
  local t = turn[i]
  local refilled = min(level[i], was_cap[i] - escrow_then) + ((t - last) * was_refill[i] / period[i] + (now - t) * refill[i] / period[i])
  local l = refilled
  if escrow < escrow_then then
    local since_end = max(last_ended > 0 and last_ended or now, last)
    t = max(t, since_end)
    l = min(l, was_cap[i] - escrow_then + ((t - since_end) * was_refill[i] / period[i] + (now - t) * refill[i] / period[i]))
  end
  level[i] = min(l, was_cap[i] - escrow) -- a lower cap that governs now clamps below: that is no overflow
  lost = min(lost, refilled - level[i])
end
overflow = min(overflow + lost, OVERFLOW_END)

--@ take_back
for i = 1, m do level[i] = level[i] + back end

--@ carry
if hold > out then
  for i = 1, m do level[i] = level[i] + (out - hold) end
end

--@ charge
if epoch ~= born then seen = 0 end
local due = max(0, max(owed, debt - floor(max(0, overflow - seen) / fleet)) - charged)
local given = once and (reset > 0 and WHOLE or refund) or 0
for i = 1, m do
  local room, lowest = cap[i] - escrow, -max(cap[i], maxdebt) - min(floor(refill[i] * SECOND / period[i]), MOST)
  local l = max(min(level[i], room), lowest)
  local part = min(due, floor(l + given - lowest))
  level[i], forgiven = max(min(room, l - part + given), lowest), max(forgiven, due - part)
end
charged = charged + due

--@ level
avail, tightest = level[1], 1
for i = 2, m do
  if level[i] < avail then avail, tightest = level[i], i end
end
avail = tokens(avail)

--@ lend
for i = 1, m do level[i] = level[i] - grant end

--@ retry
-- Others may give some back sooner. That matters if the refill takes longer than a lease lives, and
-- a bucket takes more than a minute to be full.
local us, fills = 0, 0
longest = 1
for i = 1, m do
  fills = max(fills, cap[i] * period[i] / refill[i])
  local lost = min(ROUNDING / 2 * period[i] / refill[i], LOST) -- tokens forgives as much
  local wait = ceil((least - level[i]) * period[i] / refill[i] - lost)
  local larger = larger_until[i] and larger_until[i] - now
  if larger and wait > larger then -- see token_bucket.lua
    lost = min(ROUNDING / 2 * period[i] / own_refill[i], LOST)
    wait = larger + max(0, ceil((least - level[i] - larger * refill[i] / period[i]) * period[i] / own_refill[i] - lost))
  end
  if least > cap[i] - escrow then wait = max(wait, sweep - now) end -- no room before a lease is over
  if wait > us then us, longest = wait, i end
end
after, sooner = min(max(1, us), WHOLE), us > ttl and fills > MINUTE

--@ store
put('z', behind)
put('s', format('%.17g', overflow))
until_ = max(until_, latest)
local settled = max(now, latest) -- what is out until then leaves room that fills only afterwards
for i = 1, m do
  put(names[FIXED + i], format('%.17g', level[i]))
  until_ = max(until_, min(settled + ceil((most[i] - level[i]) * period[i] / refill[i]), WHOLE - 1))
end
put('x', until_)
if changed or unknown or until_told or not exists then put('r', told) end
if until_told then put('h', until_told) end
keep = ceil((max(until_, now) - server - behind) / 1000) + 1000

--@ clear
for i = 1, m do clear = max(clear, ceil((cap[i] - level[i]) * period[i] / refill[i])) end
clear = min(clear, WHOLE - 1)

--@ tail
which or tightest, clear, now, forgiven > 0 and forgiven or nil
