--[[ token_bucket: one token bucket that lends its tokens.

A process leases tokens, spends them without asking, and reports with its next call. Leased tokens
are escrow: they have left the level, and it is not known yet whether they are spent. At every
moment level + escrow <= cap. So what can be spent anywhere never exceeds one full bucket. Any
interval of length t admits at most cap + rate * t, with any number of processes.

KEYS[1]  a hash that only this script writes
  v  format mark 'tb2'                          l  level, a double, may be negative (debt)
  t  time of the level                          c  epoch: when the bucket was created
  s  overflow: tokens of the refill that were lost because the bucket was full. It starts at 2^40
     and stops at 2^52. Stored is what came since the start, in 4096ths of a token, so that it is a
     short whole number: 4096ths are the step of a double there. Not stored at 0
  r  terms that govern: cap/tokens/period, and /most, the largest cap ever, if that is larger
  h  until when cap governs/until when tokens per period do/t when this was written. It is absent
     while all callers, and all leases, have the same limit. If t is later, a caller with the terms
     that govern has written since. Then these govern for HOLD from that time on
  z  how far the server's clock was set back: the bucket's time is the server's plus z, so what is
     stored keeps its age. Not stored at 0
  and once a lease was granted the fields of lease.lua. The escrow is all that leases hold

ARGV  see call.lua. One limit: cap, period, tokens refilled per period (0 for none). 18 has no
effect here, and 21 must be 0. Refund needs a deadline <= now + ttl, else flag 32 is set; one that
met a full bucket was credited.

If callers have different limits, the larger cap and the larger rate govern, each by itself. A
caller with a larger one sets it at once, and the level stays as it is. A caller with a smaller one
leaves the larger one until nobody has used it for HOLD. Then it sets its own, and the level is cut
to the room. HOLD runs from the last use, or from the end of the lease that this use got. Want, min
and the level in the reply go by the caller's own cap, and all else by the terms that govern. Only
retry may not: if the larger rate ends before the tokens are there, retry goes by the caller's own
rate from then on.

A new limit counts from its first call on. Until then the bucket refills by the stored terms, so a
call that changes what governs always writes. Otherwise a direct take that is denied writes nothing,
with one exception: its terms govern, others have smaller ones, and less than half of HOLD is left.
A peek (want = 0 without a lease id) writes nothing else. Every other call writes what it answered.
Each write sets the key's time to live. The key outlives everything that a missing (full) bucket
would forget, by the largest cap: the next caller may have that one.
]]

--@ rules
local cap, period, refill = arg[22], arg[23], arg[24]
if to > 1 then return refuse(19) end
if reset > 0 then return refuse(21) end
if limits > 1 then return refuse(25) end

--@ load
local FORMAT = 'tb2'
local OVERFLOW_START, OVERFLOW_END, OVERFLOW_PARTS = 2 ^ 40, 2 ^ 52, 2 ^ 12
local MINUTE = 60 * SECOND
-- HOLD, which is lua.TermsHold, is longer than a caller that is denied waits, also if one of its
-- calls is lost.
local HOLD, OTHER_TERMS = 10 * SECOND, 64
local ROUNDING = 1e-9 -- tokens: 0.9999999999 is a rounding error of the refill, not a missing token
local LOST = 0.001    -- microseconds: so much of a time until a retry is a rounding error, not time

-- Load, or start full. A bucket without leases lacks the fields o w a g e.
local stored = call('HMGET', key, 'v', 'l', 's', 't', 'c', 'z', 'o', 'w', 'a', 'g', 'e', own, 'r', 'h')
local exists, lends = stored[1] == FORMAT, stored[7] and true or false
local level, overflow, last, born, behind = cap, OVERFLOW_START, server, server, 0
local escrow, wants, active, sweep, latest = 0, 0, 0, 0, 0
local flags = 0
local was_cap, was_refill, was_period, most = cap, refill, period, cap -- the stored terms
local cap_until, rate_until, noted = 0, 0, nil
if exists then
  if stored[13] ~= format('%d/%d/%d', cap, refill, period) then
    local c, f, p, largest = string.match(stored[13] or '', '^(%d+)/(%d+)/(%d+)/?(%d*)$')
    was_cap, was_refill, was_period = tonumber(c), tonumber(f), tonumber(p)
    if not (whole(was_cap) and whole(was_refill) and whole(was_period) and was_period > 0) then
      return corrupt('field')
    end
    most = max(cap, was_cap, tonumber(largest) or 0)
  end
  if stored[14] then
    local c, f, n = string.match(stored[14], '^(%d+)/(%d+)/(%d+)$')
    cap_until, rate_until, noted = tonumber(c), tonumber(f), tonumber(n)
    if not (whole(cap_until) and whole(rate_until) and whole(noted)) then return corrupt('field') end
  end
  local parts = tonumber(stored[3] or 0)
  if not (parts and parts >= 0) then return corrupt('field') end
  stored[3], stored[6] = OVERFLOW_START + parts / OVERFLOW_PARTS, stored[6] or 0
  for i = 2, 11 do
    local x = tonumber(i > 6 and not lends and not stored[i] and 0 or stored[i])
    -- The level may be negative and, like the overflow, fractional. Nothing may be NaN, infinite or
    -- out of range.
    local ok = whole(x) or i <= 3 and x and x < WHOLE and x > (i == 2 and -WHOLE or 0)
    if not ok or i > 7 and not lends and x > 0 then return corrupt('field') end
    stored[i] = x
  end
  level, overflow, last, born, behind, escrow, wants, active, sweep, latest = unpack(stored, 2, 11)
elseif stored[1] or call('EXISTS', key) == 1 then
  return redis.error_reply('RLFOREIGN key')
else
  flags = CREATED
end
if epoch > 0 and epoch ~= born then flags = flags + OTHER_EPOCH end
local now = max(server + behind, last) -- also after a step back of the clock: see refill

-- From here on cap, refill and period are those that govern.
if not noted then
  cap_until = max(last, latest) + HOLD
  rate_until = cap_until
elseif noted < last then
  cap_until, rate_until = max(cap_until, last + HOLD), max(rate_until, last + HOLD)
end
local rate, was_rate = refill / period, was_refill / was_period
local lesser_cap, lesser_rate = cap < was_cap and now < cap_until, rate < was_rate and now < rate_until
local lesser = lesser_cap or lesser_rate
local turn = now -- the stored rate counted until then: a larger one ends with its hold
if rate < was_rate and not lesser_rate then turn = max(last, rate_until) end
local soon, used_until = now + HOLD / 2, now + (leased and ttl or 0) + HOLD
local expiring = noted and now > last and (not lesser_cap and cap_until < soon or not lesser_rate and rate_until < soon)
if lesser_cap then
  cap = was_cap
else
  cap_until = cap == was_cap and max(cap_until, used_until) or used_until
end
if not lesser_rate then rate_until = rate == was_rate and max(rate_until, used_until) or used_until end
local own_refill, own_period = refill, period
if lesser_rate or rate == was_rate then refill, period = was_refill, was_period end
if lesser then flags = flags + OTHER_TERMS end
local changed = cap ~= was_cap or refill ~= was_refill or period ~= was_period
local notes = lesser or noted and (leased or changed) or changed and latest > now
local stop, promise, keeps, forgets, rated, stepped, forgiven = now + ttl, WHOLE, false, false, true, false, 0
local record = stored[12]

--@ remember
memory = refill > 0 and (cap + max(cap, maxdebt)) * period / refill or WHOLE -- the bucket is full by then, if nobody uses it

--@ look
level = min(level + ((turn - last) * was_refill / was_period + (now - turn) * refill / period), min(cap, was_cap) - escrow)

--@ refill
-- Clock: a small step back is waited out. A large one is believed, and z makes up for it.
stepped = last - server - behind > maxback
if stepped then behind, flags = last - server, flags + STEPPED_BACK end
-- Refill by the terms that governed. The room of ended leases fills only from the last such end on.
-- The stored escrow tells how much that is, not this sweep: an interrupted run has deleted records
-- and left the escrow too high, which is the safe side.
local refilled = min(level, was_cap - escrow_then) + ((turn - last) * was_refill / was_period + (now - turn) * refill / period)
level = refilled
if escrow < escrow_then then
  local since_end = max(last_ended > 0 and last_ended or now, last)
  turn = max(turn, since_end)
  level = min(level, was_cap - escrow_then + ((turn - since_end) * was_refill / was_period + (now - turn) * refill / period))
end
level = min(level, was_cap - escrow)
overflow = min(overflow + (refilled - level), OVERFLOW_END) -- without the brackets rounding alone lowers it
-- If a lower cap governs now, the charge reduces the level, once it is known what is still out.
-- That is no overflow.

--@ take_back
level = level + back

--@ carry
if hold > out then level = level - (hold - out) end

--@ charge
-- The refill that was lost while the caller could not reach the bucket pays its part of the debt.
-- What is below the floor is forgiven, so that a bucket is full after (cap + max(cap, maxdebt)) /
-- rate + 1 s at most. The floor is one second of refill below -max(cap, maxdebt): so much may be
-- admitted beside the bucket each time that it comes back, because a breaker closes within a
-- second. Without that second the floor would forgive it again and again while the server flaps.
-- What the call gives back makes room for its debt, and its debt makes room for what it gives back.
local room, lowest = cap - escrow, -max(cap, maxdebt) - min(floor(refill * SECOND / period), MOST)
level = max(min(level, room), lowest)
if epoch ~= born then seen = 0 end
local due = max(0, max(owed, debt - floor(max(0, overflow - seen) / fleet)) - charged)
local given = once and refund or 0
local charge = min(due, floor(level + given - lowest))
level, charged, forgiven = max(min(room, level - charge + given), lowest), charged + charge, due - charge

--@ level
avail, tightest = floor(level + ROUNDING), 1

--@ lend
level = level - grant

--@ retry
-- After tells when the refill brings the tokens. Others may give some back sooner. That matters if
-- the refill takes longer than a lease lives, and the bucket takes more than a minute to be full.
after, sooner = -1, false
if refill > 0 then
  local lost = min(ROUNDING / 2 * period / refill, LOST) -- avail forgives as much
  local us = max(1, ceil((least - level) * period / refill - lost))
  -- The larger rate counts for so long, and then the caller's own, unless somebody uses the larger
  -- one again.
  local larger = rate_until - now
  if lesser_rate and us > larger then
    lost = min(ROUNDING / 2 * own_period / own_refill, LOST)
    local rest = ceil((least - level - larger * refill / period) * own_period / own_refill - lost)
    us = own_refill > 0 and larger + max(0, rest) or WHOLE
  end
  if least > cap - escrow then us = max(us, sweep - now) end -- no room before a lease is over
  after, sooner = min(us, WHOLE), us > ttl and cap * period / refill > MINUTE
end

--@ store
put('l', format('%.17g', level))
if overflow > OVERFLOW_START then put('s', format('%.17g', (overflow - OVERFLOW_START) * OVERFLOW_PARTS)) end
if behind > 0 then put('z', behind) end
if changed or not exists then put('r', format('%d/%d/%d', cap, refill, period) .. (most > cap and format('/%d', most) or '')) end
-- A caller that takes directly by the terms that govern says so by t, as the short way does.
if notes then put('h', format('%d/%d/%d', cap_until, rate_until, now)) end
-- The key lives until the bucket would be full and its leases are over; without a rate it lives for
-- ever. During a small step back Redis' clock is behind the bucket's. 1 s is margin.
keep = LONGEST_TTL_MS
if refill > 0 then
  keep = ceil((most - level) * period / refill / 1000) + ceil((max(now, latest) - server - behind) / 1000) + 1000
end

--@ tail
(lesser or forgiven > 0) and forgiven or nil, lesser and cap or nil, refill, period
