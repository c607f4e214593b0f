--[[ token_bucket: one token bucket that lends its tokens.

A process leases tokens, spends them without asking, and reports with its next call. Leased tokens are escrow: they
have left the level, and it is not known yet whether they are spent. At every moment level + escrow <= cap. So all
that can be spent anywhere never exceeds one full bucket, and any interval of length t admits at most cap + rate * t,
with any number of processes.

KEYS[1]  a hash that only this script writes
  v  format mark 'tb2'                          l  level, a double, may be negative (debt)
  t  time of the level                          c  epoch: when the bucket was created
  s  overflow: tokens of the refill that were lost because the bucket was full. It starts at 2^40 and stops at 2^52.
     What came since the start is stored, in 4096ths of a token: the step of a double there, so a whole number is short. Not
     stored at 0
  r  terms that govern: cap/tokens/period, and /most, the largest cap ever, if that is larger
  h  until when cap governs/until when tokens per period do/t when this was written. Absent while all callers have the same
     limit, and so have all leases. If t is later, a caller with the terms that govern has written since, and they govern HOLD longer than that
  z  how far the server's clock was set back: the bucket's time is the server's plus z, so what is stored keeps its age.
     Not stored at 0
  and once a lease was granted:
  o  escrow, tokens        w  sum of the leases' wants     a  leases that hold or want tokens
  g  next sweep, 0 none    e  end of the latest lease      p<lease id>  seq|grant|out|want|end|debt charged, kept to its end

ARGV  whole numbers 0 .. 2^53-1 except 7; times in microseconds
   1 cap       burst, 1 .. 2^40                              2 tokens    refilled per period
   3 period    >= 1                                          4 want      asked for, clamped to cap
   5 min       grant no fewer, <= want (0 counts as 1)       6 ttl       of a lease, 1 .. 2^50 (35 years)
   7 lease id  random, one per process start; '' takes directly: no record, so 10-13 must be 0
   8 seq       higher with every call, or 0 for a dry run    9 ack       highest seq whose reply was accepted, < seq
  10 hold      unspent tokens the caller keeps, <= 2^40     11 ret       leased tokens given back; needs hold = 0
  12 refund    admitted, then not used; credited only under a deadline <= now + ttl
  13 debt      admitted without the bucket                  14 deadline  from this server time on do nothing; 0 none
  15 epoch     as last seen, 0 unknown                      16 now       0 reads TIME; anything else is for tests
  17 maxback   longest step back that is waited out         18 owed      part of the debt charged in any case, <= debt
  19 seen      overflow when the debt was last 0            20 fleet     processes that share the bucket, >= 1
  21 maxdebt   how far below zero the level may go if that is more than cap, <= 2^40; 0 when left out
  22 to        1 for a call that settles and takes directly: its grant is in no lease and is never undone; 0 when left out
A direct take has a short form of 8 to 10: 1-6, then deadline, epoch, now and maxdebt (0 when left out). In the long
form that is 7 '', 17 one second, 20 one and the rest 0. Errors number the arguments of the long form, whichever was sent.

A dry run (seq 0 with a lease id) is answered as the call would be, but with what is there before its grant. It writes
nothing.

Reply  {code, grant, floor(level), retry, active, ttl left, now, epoch, flags, floor(overflow)}, and if it is not 0:
  forgiven  tokens of the debt that were not charged, because the level is as low as it may go; 0 in a replay
  code   0 granted   1 denied   2 replay of this seq, same grant   3 stale, ignore it   4 never, min > cap   5 late, nothing done
  retry  until min tokens may be there, -1 never         active  leases that hold or want tokens
  flags  added up: 1 there was no bucket   2 a step back of the clock was believed   4 the caller held more than was recorded
         8 the caller knew another epoch   64 a larger limit than the caller's governs   16 ack is not on record: writes were lost, the lease is over or the
         caller began anew (then its ack is seq - 1)   32 the refund was not credited: there is no deadline, or it lies
         beyond now + ttl (one that met a full bucket was credited). A replay says what its first execution did, as the
         record tells it: that may be wrong if the server's clock was set back since, or was waited for then
Errors  nothing is written, and no text of the caller is repeated
  RLARG argument n      not a whole number in range, or against its rule
  RLFOREIGN key         a hash that is not ours            WRONGTYPE ...  not a hash
  RLCORRUPT field|lease ours, but damaged

If callers have different limits, the larger cap and the larger rate govern, each by itself. A caller with a larger one
sets it at once, and the level stays as it is. A caller with a smaller one leaves it until nobody has used the stored one
for HOLD: then it sets its own, and the level is cut to the room. The hold runs from the last use, or from the end of the
lease that it got. Want, min and the level in the reply go by the caller's own cap, and all else by the terms that govern.

A new limit counts from its first call on. Until then the bucket refills by the stored terms, so the call that changes
what governs always writes. Otherwise a direct take that is denied writes nothing, unless the terms that it has govern,
others have smaller ones, and less than half of HOLD is left. A peek (want = 0 without a lease id) writes nothing else.
Every other call writes what it answered. Each write sets the key's time to live so that the key outlives everything that
a missing (full) bucket would forget, by the largest cap: the next caller may have that one.
]]

local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min
local call, format, tonumber = redis.call, string.format, tonumber
local FORMAT = 'tb2'
local WHOLE = 2 ^ 53           -- from here on doubles skip whole numbers
local OVERFLOW_START, OVERFLOW_END, OVERFLOW_PARTS = 2 ^ 40, 2 ^ 52, 2 ^ 12
-- Tokens, and microseconds. Sums of these are stored, and they must stay below 2^53.
local MOST, LONGEST = 2 ^ 40, 2 ^ 50
local LONGEST_TTL_MS = 2 ^ 43 -- 279 years are for ever; Go clients and miniredis count it in 63 bits of nanoseconds
local SECOND, MINUTE = 1000000, 60000000
local HOLD = 10 * SECOND       -- longer than a caller that is denied waits, and one lost call of it besides: lua.TermsHold
local ROUNDING = 1e-9          -- tokens: 0.9999999999 is a rounding error of the refill, not a missing token
local SHORT = 10               -- the most arguments of the short form
local GRANTED, DENIED, REPLAY, STALE, NEVER, LATE = 0, 1, 2, 3, 4, 5
local CREATED, STEPPED_BACK, ADOPTED, OTHER_EPOCH, UNRECORDED, UNAPPLIED, OTHER_TERMS = 1, 2, 4, 8, 16, 32, 64

-- 0. The short way is for a direct take in the short form that is granted in full by a bucket that never lent. It
-- takes the steps below without what is 0 then, in 12 us instead of 20. It refuses nothing: anything else is left
-- to the long way (break), with nothing written. Before it and in it only Redis' own functions are called and none
-- is made: that would cost 1 us of the 12.
local key, argv = KEYS[1], ARGV
if #ARGV <= SHORT then
  repeat
    local cap, refill, period, want = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
    local least, ttl, deadline, epoch = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
    local server, maxdebt = tonumber(ARGV[9] or 0), tonumber(ARGV[10] or 0)
    if not (cap and refill and period and want and least and ttl and deadline and epoch and server and maxdebt) then break end
    if cap % 1 + refill % 1 + period % 1 + want % 1 + least % 1 + ttl % 1 + deadline % 1 + epoch % 1 + server % 1 + maxdebt % 1 ~= 0 then break end
    if min(refill, least, deadline, epoch, server, maxdebt) < 0 or max(refill, period, deadline, epoch, server) >= WHOLE then break end
    if max(cap, maxdebt) > MOST or period < 1 or want < 1 or want > cap or least > want or ttl < 1 or ttl > LONGEST then break end
    if server == 0 then
      local time = call('TIME')
      server = time[1] * SECOND + time[2]
    end
    if deadline > 0 and server >= deadline then break end

    local stored = call('HMGET', key, 'v', 'l', 's', 't', 'c', 'z', 'o', 'r')
    local exists, lends = stored[1] == FORMAT, stored[7]
    local level, overflow, last, born, behind, most = cap, OVERFLOW_START, server, server, 0, cap
    if exists then
      level, overflow = tonumber(stored[2]), tonumber(stored[3] or 0)
      last, born, behind = tonumber(stored[4]), tonumber(stored[5]), tonumber(stored[6] or 0)
      if lends then break end
      local terms = ARGV[1] .. '/' .. ARGV[2] .. '/' .. ARGV[3]
      if stored[8] ~= terms then
        local same, largest = string.match(stored[8] or '', '^(%d+/%d+/%d+)/(%d+)$')
        if same ~= terms then break end -- other terms
        most = max(cap, tonumber(largest) or 0)
      end
      if not (level and overflow and last and born and behind) then break end
      overflow = OVERFLOW_START + overflow / OVERFLOW_PARTS
      if not (level > -WHOLE and level < WHOLE and overflow >= OVERFLOW_START and overflow < WHOLE) then break end
      if last % 1 + born % 1 + behind % 1 ~= 0 or min(last, born, behind) < 0 or max(last, born, behind) >= WHOLE then break end
    elseif stored[1] or call('EXISTS', key) == 1 then break end
    local unguarded = server + behind
    if last - unguarded > SECOND then break end
    local now = max(unguarded, last)

    local refilled = level + (now - last) * refill / period
    level = min(refilled, cap)
    local spilt = min(overflow + (refilled - level), OVERFLOW_END)
    if level + ROUNDING < want then break end
    level = level - want
    if not exists then
      local instant = format('%d', now)
      local terms = format('%d/%d/%d', cap, refill, period)
      call('HSET', key, 'v', FORMAT, 'l', level, 't', instant, 'c', instant, 'r', terms)
    elseif spilt ~= overflow then
      overflow = spilt
      local parts = (overflow - OVERFLOW_START) * OVERFLOW_PARTS
      call('HSET', key, 'l', format('%.17g', level), 't', format('%d', now), 's', format('%.17g', parts))
    else
      call('HSET', key, 'l', format('%.17g', level), 't', format('%d', now))
    end
    local keep = LONGEST_TTL_MS
    if refill > 0 then
      keep = min(ceil((most - level) * period / refill / 1000) + ceil((now - unguarded) / 1000) + 1000, LONGEST_TTL_MS)
    end
    call('PEXPIRE', key, keep)
    local flags = (exists and 0 or CREATED) + (epoch > 0 and epoch ~= born and OTHER_EPOCH or 0)
    do return {GRANTED, want, floor(level + ROUNDING), 0, 0, 0, server, born, flags, floor(overflow)} end
  until true
  argv = { -- the long form
    ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], '', 0, 0, 0, 0, 0, 0, ARGV[7], ARGV[8], ARGV[9] or 0, SECOND, 0, 0, 1,
    ARGV[10],
  }
end

local function whole(x) return x and x >= 0 and x < WHOLE and x % 1 == 0 end -- false for NaN and Inf
local function tokens(x) return floor(x + ROUNDING) end

-- 1. Arguments: all are checked before anything is read.
local arg = {}
argv[21], argv[22] = argv[21] or 0, argv[22] or 0
for i = 1, 22 do
  local n = i == 7 and 0 or tonumber(argv[i])
  if not whole(n) then return redis.error_reply('RLARG argument ' .. i) end
  arg[i] = n
end
local id = argv[7]
local cap, refill, period, want, least, ttl, _, seq, ack, hold, ret, refund, debt, deadline, epoch, server, maxback, owed, seen, fleet,
  maxdebt, to = unpack(arg)
local leased = id ~= ''
local dry = leased and seq == 0

local function broken_rule()
  if cap < 1 or cap > MOST then return 1 end
  if period < 1 then return 3 end
  if least > want then return 5 end
  if ttl < 1 or ttl > LONGEST then return 6 end
  if seq > 0 and leased and ack >= seq then return 9 end
  if hold > (leased and MOST or 0) then return 10 end
  -- ret beside a hold, sent again, would turn tokens spent meanwhile into returned ones.
  if ret > 0 and (hold > 0 or not leased) then return 11 end
  if not leased and refund > 0 then return 12 end
  if not leased and debt > 0 then return 13 end
  if owed > debt then return 18 end
  if fleet < 1 then return 20 end
  if maxdebt > MOST then return 21 end
  if to > 1 then return 22 end
end
local broken = broken_rule()
if broken then return redis.error_reply('RLARG argument ' .. broken) end

-- 2. Too late, or never.
if server == 0 then
  local time = call('TIME')
  server = time[1] * SECOND + time[2]
end
if deadline > 0 and server >= deadline then return {LATE, 0, 0, 0, 0, 0, server, 0, 0, 0} end
if least > cap then return {NEVER, 0, 0, -1, 0, 0, server, 0, 0, 0} end
want, least = min(want, cap), max(least, 1)
local peek = not leased and want == 0

-- 3. Load, or start full. A bucket without leases lacks the fields o w a g e.
local own = 'p' .. id
local stored = redis.call('HMGET', key, 'v', 'l', 's', 't', 'c', 'z', 'o', 'w', 'a', 'g', 'e', own, 'r', 'h')
local exists, lends = stored[1] == FORMAT, stored[7] and true or false
local level, overflow, last, born, behind = cap, OVERFLOW_START, server, server, 0
local escrow, wants, active, sweep, latest = 0, 0, 0, 0, 0
local flags = 0
local was_cap, was_refill, was_period, most = cap, refill, period, cap -- the stored terms
local cap_until, rate_until, noted = 0, 0, nil
if exists then
  if stored[13] ~= argv[1] .. '/' .. argv[2] .. '/' .. argv[3] then
    local c, f, p, largest = string.match(stored[13] or '', '^(%d+)/(%d+)/(%d+)/?(%d*)$')
    was_cap, was_refill, was_period = tonumber(c), tonumber(f), tonumber(p)
    if not (whole(was_cap) and whole(was_refill) and whole(was_period) and was_period > 0) then
      return redis.error_reply('RLCORRUPT field')
    end
    most = max(cap, was_cap, tonumber(largest) or 0)
  end
  if stored[14] then
    local c, f, n = string.match(stored[14], '^(%d+)/(%d+)/(%d+)$')
    cap_until, rate_until, noted = tonumber(c), tonumber(f), tonumber(n)
    if not (whole(cap_until) and whole(rate_until) and whole(noted)) then return redis.error_reply('RLCORRUPT field') end
  end
  local parts = tonumber(stored[3] or 0)
  if not (parts and parts >= 0) then return redis.error_reply('RLCORRUPT field') end
  stored[3], stored[6] = OVERFLOW_START + parts / OVERFLOW_PARTS, stored[6] or 0
  for i = 2, 11 do
    local x = tonumber(i > 6 and not lends and not stored[i] and 0 or stored[i])
    -- The level may be negative and, like the overflow, fractional; nothing may be NaN, infinite or out of range.
    local ok = whole(x) or i <= 3 and x and x < WHOLE and x > (i == 2 and -WHOLE or 0)
    if not ok or i > 7 and not lends and x > 0 then return redis.error_reply('RLCORRUPT field') end
    stored[i] = x
  end
  level, overflow, last, born, behind, escrow, wants, active, sweep, latest = unpack(stored, 2, 11)
elseif stored[1] or redis.call('EXISTS', key) == 1 then
  return redis.error_reply('RLFOREIGN key')
else
  flags = CREATED
end
if epoch > 0 and epoch ~= born then flags = flags + OTHER_EPOCH end
local now = max(server + behind, last) -- also after a step back of the clock: see 5

-- From here on cap, refill and period are those that govern.
local own_cap = cap
if not noted then
  cap_until = max(last, latest) + HOLD
  rate_until = cap_until
elseif noted < last then
  cap_until, rate_until = max(cap_until, last + HOLD), max(rate_until, last + HOLD)
end
local rate, was_rate = refill / period, was_refill / was_period
local lesser_cap, lesser_rate = cap < was_cap and now < cap_until, rate < was_rate and now < rate_until
local soon, used_until = now + HOLD / 2, now + (leased and ttl or 0) + HOLD
local expiring = noted and now > last and (not lesser_cap and cap_until < soon or not lesser_rate and rate_until < soon)
if lesser_cap then
  cap = was_cap
else
  cap_until = cap == was_cap and max(cap_until, used_until) or used_until
end
if not lesser_rate then rate_until = rate == was_rate and max(rate_until, used_until) or used_until end
if lesser_rate or rate == was_rate then refill, period = was_refill, was_period end
if lesser_cap or lesser_rate then flags = flags + OTHER_TERMS end
local changed = cap ~= was_cap or refill ~= was_refill or period ~= was_period
local notes = lesser_cap or lesser_rate or noted and (leased or changed) or changed and latest > now

local function parse(record)
  local s, g, o, w, e, d = string.match(record, '^(%d+)|(%d+)|(%d+)|(%d+)|(%d+)|(%d+)$')
  return tonumber(s), tonumber(g), tonumber(o), tonumber(w), tonumber(e), tonumber(d)
end

-- retry_after tells in how long least tokens may be there: by the refill or, if the bucket takes more than a minute to be full,
-- when others may give back what they hold. A holder that lives calls a quarter of its lease's life before that ends at the
-- latest. It returns nil if a lease is damaged.
local function retry_after()
  if refill == 0 then return -1 end
  local us = max(1, ceil((least - level) * period / refill))
  if least > cap - escrow then us = max(us, sweep - now) end -- no room before a lease is over
  if us > ttl and cap * period / refill > MINUTE and escrow > hold and latest > now then
    local all, quarter = redis.call('HGETALL', key), floor(ttl / 4)
    for i = 1, #all, 2 do
      if #all[i] > 1 and all[i] ~= own then
        local _, _, out, _, stop, charged = parse(all[i + 1])
        if not charged then return nil end
        if out > 0 and stop > now then
          local left = stop - server - behind
          us = min(us, max(left - quarter, min(left, quarter)))
        end
      end
    end
    us = max(1, us)
  end
  return min(us, WHOLE)
end

-- 4. The network repeats and reorders: an executed call gets its reply again, an older one is ignored.
local r_seq, r_grant, r_out, r_want, r_end, r_debt
if leased and stored[12] then
  r_seq, r_grant, r_out, r_want, r_end, r_debt = parse(stored[12])
  if not r_debt or r_grant > r_out or r_out > escrow or r_want > wants then return redis.error_reply('RLCORRUPT lease') end
  if not dry and seq <= r_seq then
    local left = r_end - now
    level = min(level + (now - last) * was_refill / was_period, min(cap, was_cap) - escrow)
    if seq < r_seq or left <= 0 then
      return {STALE, 0, tokens(min(level, own_cap)), 0, active, 0, server, born, flags, floor(overflow)}
    end
    local after = 0
    if r_grant == 0 and want > 0 then after = retry_after() end
    if not after then return redis.error_reply('RLCORRUPT lease') end
    if refund > 0 and not (deadline > 0 and deadline <= r_end - behind) then flags = flags + UNAPPLIED end
    return {REPLAY, r_grant, tokens(min(level, own_cap)), after, active, left, server, born, flags, floor(overflow)}
  end
end

-- 5. Clock: a small step back is waited out. A large one is believed, and z makes up for it.
local stepped = last - server - behind > maxback
if stepped then behind, flags = last - server, flags + STEPPED_BACK end
local unguarded = server + behind

-- 6. Sweep: tokens of ended leases are burnt, and their room is free. All records are parsed before any is deleted.
local escrow_before, last_ended = escrow, 0
local swept = sweep > 0 and now >= sweep
local ended = {}
if swept then
  escrow, wants, active, sweep, latest = 0, 0, 0, 0, 0
  local all = redis.call('HGETALL', key)
  for i = 1, #all, 2 do
    if #all[i] > 1 then -- the bucket's own fields have one letter
      local _, _, out, wanted, stop, charged = parse(all[i + 1])
      if not charged then return redis.error_reply('RLCORRUPT lease') end
      if stop > now then
        escrow, wants, latest = escrow + out, wants + wanted, max(latest, stop)
        if out + wanted > 0 then active = active + 1 end
      else
        ended[#ended + 1], last_ended = all[i], max(last_ended, stop)
        if all[i] == own then r_seq = nil end
      end
    end
  end
  if latest > 0 then sweep = now + ceil(ttl / 2) end
end

-- 7. Refill by the terms that governed until now. Room of ended leases fills only from the last such end on. The stored
-- escrow decides that, not this sweep: an interrupted run has deleted records and left the escrow too high, which
-- errs on the safe side.
local elapsed = now - last
local refilled = min(level, was_cap - escrow_before) + elapsed * was_refill / was_period
level = refilled
if escrow < escrow_before then
  local since = last_ended > 0 and last_ended or now
  level = min(level, was_cap - escrow_before + (now - max(since, last)) * was_refill / was_period)
end
level = min(level, was_cap - escrow)
overflow = min(overflow + (refilled - level), OVERFLOW_END) -- without the brackets rounding alone lowers it
-- If a lower cap governs now, the level is reduced below, once it is known what is still out. That is no overflow.

-- 8. Settle. A grant whose reply was not accepted is undone. What the caller no longer holds was spent. What it
-- holds beyond its record (the bucket was lost, the lease is over) is charged. A debt whose reply was not accepted
-- is reported again, and counts as charged. It is never undone: unlike a grant it kept no room free. The refill
-- since may have paid it and others may have taken that, so undoing it would create tokens.
local charged = 0
if r_seq then
  escrow, wants = escrow - r_out, wants - r_want
  if r_out + r_want > 0 then active = active - 1 end
  if ack < r_seq then level, r_out, charged = level + r_grant, r_out - r_grant, r_debt end
  ret = min(ret, r_out)
  level, r_out = level + ret, r_out - ret
else
  r_out = 0
end
if hold > r_out then level, flags = level - (hold - r_out), flags + ADOPTED end
if ack > (r_seq or 0) then flags = flags + UNRECORDED end

-- 9. Escrow includes the hold. Refill that was lost while the caller could not reach the bucket pays its part of
-- the debt. The floor forgives the rest, so that a bucket needs at most (cap + max(cap, maxdebt)) / rate + 1 s to be
-- full. The floor is one second of refill below -max(cap, maxdebt), because so much may be admitted beside the bucket
-- each time that it comes back: a breaker closes within a second. A floor without that second would forgive it again
-- and again while the server flaps.
escrow = escrow + hold
local room, lowest = cap - escrow, -max(cap, maxdebt) - min(floor(refill * SECOND / period), MOST)
level = max(min(level, room), lowest)
if epoch ~= born then seen = 0 end
debt = max(owed, debt - floor(max(0, overflow - seen) / fleet))
local due = max(0, debt - charged)
local charge = min(due, floor(level - lowest))
level, charged = level - charge, charged + charge
-- The deadline ends every copy of this call before the record that knows its seq is swept: no refund counts twice.
if deadline > 0 and deadline <= server + ttl then level = max(level, min(room, level + refund)) end
if refund > 0 and not (deadline > 0 and deadline <= server + ttl) then flags = flags + UNAPPLIED end

-- 10. Grant all that the caller wants, or one and a half times its part of what all leases want, if there is so
-- much. With its part alone more tokens would stay here, and overflow, for processes that do not ask now.
local code, grant, after = GRANTED, 0, 0
local avail, wanted = tokens(level), wants + want
if want > 0 and avail >= least then
  grant = min(max(floor(1.5 * avail * want / wanted), least), want, avail)
end
if not dry then level = level - grant end
if want > 0 and grant == 0 then code, after = DENIED, retry_after() end
if not after then return redis.error_reply('RLCORRUPT lease') end

-- 11. Write: deletions, then one HSET, then PEXPIRE. An interrupted run leaves the escrow too high, never too low.
-- Redis refuses a command that needs memory (OOM) only while a run has written nothing. So an HSET that changes nothing
-- comes before the deletions. Without it a full Redis would execute the calls that sweep, and refuse all others.
local left, record = 0, nil
if leased and not dry then
  local lent, wish = 0, 0
  if to == 0 then lent, wish = grant, want end
  left, latest, escrow, wants = ttl, max(latest, now + ttl), escrow + lent, wants + wish
  if hold + lent + wish > 0 then active = active + 1 end
  if sweep == 0 then sweep = now + ttl end
  record = string.format('%d|%d|%d|%d|%d|%d', seq, lent, hold + lent, wish, now + ttl, charged)
end
if not dry and (leased or exists and changed or not peek and (grant > 0 or swept or stepped or expiring)) then
  if #ended > 0 then redis.call('HSET', key, 'v', FORMAT) end
  for _, field in ipairs(ended) do redis.call('HDEL', key, field) end
  local fields = {} -- only fields that are not at their default
  local function put(field, x) fields[#fields + 1], fields[#fields + 2] = field, x end
  if leased then
    fields = {'o', escrow, 'w', wants, 'a', active, 'g', sweep, 'e', latest, own, record}
  elseif swept then
    fields = {'o', escrow, 'w', wants, 'a', active, 'g', sweep, 'e', latest}
  end
  if overflow > OVERFLOW_START then put('s', format('%.17g', (overflow - OVERFLOW_START) * OVERFLOW_PARTS)) end
  if behind > 0 then put('z', behind) end
  if changed or not exists then put('r', format('%d/%d/%d', cap, refill, period) .. (most > cap and format('/%d', most) or '')) end
  -- Who takes directly by the terms that govern says so by t, as the short way does.
  if notes then put('h', format('%d/%d/%d', cap_until, rate_until, now)) end
  redis.call('HSET', key, 'v', FORMAT, 'l', string.format('%.17g', level), 't', now, 'c', born, unpack(fields))
  -- The key may expire when its bucket would be full and its leases over (never, without a rate). Redis counts the
  -- time by its own clock, which is behind the bucket's during a small step back. 1 s is margin.
  local ms = LONGEST_TTL_MS
  if refill > 0 then
    ms = ceil((most - level) * period / refill / 1000) + ceil((max(now, latest) - unguarded) / 1000) + 1000
  end
  redis.call('PEXPIRE', key, string.format('%d', min(ms, LONGEST_TTL_MS)))
elseif not exists then
  born = 0 -- nothing was written, so there is no bucket of this epoch
end
return {code, grant, tokens(min(level, own_cap)), after, active, left, server, born, flags, floor(overflow), due > charge and due - charge or nil}
