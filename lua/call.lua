--[[ call: the beginning of all scripts: one set of arguments, one set of rules and one clock. Only
the short ways come before it. Like lease.lua it has places for parts of the scripts: rules are the
script's own, and nothing is what its reply has besides the first ten numbers if nothing was done.

ARGV  whole numbers 0 .. 2^53-1 except 4; times in microseconds
   1 want      asked for; at most the least cap is granted
   2 min       grant no fewer, <= want (0 counts as 1)
   3 ttl       of a lease, 1 .. 2^50
   4 lease id  '' takes directly: 5-10 and 21 must be 0 then
   5 seq       higher with every call of a lease id, or 0 for a dry run
   6 ack       highest seq whose reply was accepted, < seq
   7 hold      unspent tokens the caller keeps, <= 2^40
   8 ret       leased tokens given back; needs hold = 0
   9 refund    admitted, then not used; only under a deadline <= now + ttl
  10 debt      admitted without the key
  11 deadline  from this server time on do nothing; 0 none
  12 epoch     as last seen, 0 unknown
  13 now       0 reads TIME; anything else is for tests
  14 maxback   longest step back that is waited out
  15 owed      part of the debt that is charged in any case, <= debt
  16 seen      overflow when the debt was last 0
  17 fleet     processes that share the key, >= 1
  18 at        stamp of what is refunded or settled
  19 to        the cost that the entry of that stamp gets. Where there are leases, 1 means that the
               call settles and takes directly: its grant counts at once, is in no lease and is
               never undone
  20 since     server time of the admissions that debt is for, needed with it
  21 reset     server time: forget what was counted by then (0 nothing)
  22 ...       1 to 8 limits of three numbers: cap (1 .. 2^40), period (1 .. 2^52) and one that the
               script names
  last         maxdebt: how far below zero a level may go if that is more than its cap, <= 2^40;
               left out if 0. Only token buckets use it
A direct take by at most five limits has a short form of 9 to 22: 1-3, deadline, epoch, now, the
limits and maxdebt. In the long form that is 4 '', 14 one second, 17 one and the rest 0. Errors
number the arguments of the long form, whichever was sent.

A dry run (seq 0 with a lease id) is answered as the call would be, but with what is there before
its grant. It writes nothing.

Reply  {code, grant, level, retry, active, ttl left, now, epoch, flags, overflow, which, reset,
stamp}; of a single token bucket the first ten
  code   0 granted   1 denied   2 replay of this seq, same grant   3 stale, ignore it
         4 never, min > cap   5 late, nothing done
  level  of the tightest limit, whole tokens
  retry  until min tokens may be there, -1 never; sooner if others hold tokens that may come back. A
         lease of a window or of several buckets may take the last token and still be smaller than
         asked for. Then retry is for the next token
  active leases that hold or want tokens
  flags  added up:
           1 there was no key
           2 a step back of the clock was believed
           4 the caller held more than was recorded
           8 the caller knew another epoch
          16 ack is not on record: writes were lost, the lease is over or the caller began anew
             (then its ack is seq - 1)
          32 a refund, a reset or the settling of an entry was asked for and not done: each script
             says why that may be. A replay repeats what the record says of the first execution.
             That may be wrong if the server's clock was set back since, or was waited for then
          64 a larger limit than the caller's governs a token bucket
         128 of a dry run: the call would tell what was spent or is owed, or change what governs. If
             it is not made, the key does not have its tokens when retry says
  which  the limit, from 1, that makes a refused caller wait longest, else the tightest
  reset  until everything that counts has left; an upper bound
  stamp  the instant, on the key's clock, of this call; 0 if it is late by its deadline
  and of token buckets, if it is not 0, forgiven: tokens of the debt that were not charged, because
  the level is as low as it may go; 0 in a replay. A single token bucket with flag 64 adds forgiven,
  also if it is 0, and the terms that govern: cap, tokens, period
Errors  nothing is written, and no text of the caller is repeated
  RLARG argument n      not a whole number in range, or against its rule
  RLFOREIGN key         a key that is not ours
  WRONGTYPE ...         a key of another type
  RLCORRUPT field|lease ours, but damaged
]]

local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min
local call, format, tonumber = redis.call, string.format, tonumber
local WHOLE = 2 ^ 53                 -- from here on doubles skip whole numbers
local MOST, LONGEST, LONGEST_PERIOD = 2 ^ 40, 2 ^ 50, 2 ^ 52 -- tokens; µs of a lease, and of a limit
-- 279 years are for ever. Go clients and miniredis count them in 63 bits of nanoseconds.
local LONGEST_TTL_MS = 2 ^ 43
local SECOND = 1000000
local BEFORE_LIMITS, MOST_LIMITS = 21, 8
local SHORT, BEFORE_SHORT_LIMITS = 22, 6 -- most arguments of the short form; those before its limits
local GRANTED, DENIED, REPLAY, STALE, NEVER, LATE = 0, 1, 2, 3, 4, 5
local CREATED, STEPPED_BACK, ADOPTED, OTHER_EPOCH, UNRECORDED, UNAPPLIED, NEWS = 1, 2, 4, 8, 16, 32, 128

local function refuse(n) return redis.error_reply('RLARG argument ' .. n) end
local function whole(x) return x and x >= 0 and x < WHOLE and x % 1 == 0 end -- false for NaN and Inf
local function text(x) return format('%.0f', x) end -- .. and tostring keep 14 digits

local key, id, arg = KEYS[1], ARGV[4], {}
local count = #ARGV
local maxdebt = 0
if count % 3 == 1 and count > BEFORE_SHORT_LIMITS then -- limits are threes, and so is what comes before them
  maxdebt, count = tonumber(ARGV[count]), count - 1
end
local given = max(count, BEFORE_LIMITS + 3)
if #ARGV <= SHORT then
  id, arg, given = '', {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, SECOND, 0, 0, 1, 0, 0, 0, 0}, max(count, BEFORE_SHORT_LIMITS + 3)
  given = given + -given % 3
  for i = 1, given do
    local place = i <= 3 and i or i <= BEFORE_SHORT_LIMITS and i + 7 or i + 15
    arg[place] = tonumber(ARGV[i])
    if not whole(arg[place]) then return refuse(place) end
  end
  given = given + BEFORE_LIMITS - BEFORE_SHORT_LIMITS
else
  given = given + -given % 3 -- 21 and every limit are threes
  for i = 1, given do
    arg[i] = i == 4 and 0 or tonumber(ARGV[i])
    if not whole(arg[i]) then return refuse(i) end
  end
end
local want, least, ttl, _, seq, ack, hold, ret, refund, debt, deadline, epoch, server, maxback, owed, seen, fleet, at, to, since,
  reset = unpack(arg, 1, BEFORE_LIMITS)
if not whole(maxdebt) or maxdebt > MOST then return refuse(given + 1) end
local leased, own = id ~= '', 'p' .. id
local dry = leased and seq == 0
local limits = (given - BEFORE_LIMITS) / 3
local tightest_cap = WHOLE

-- ret is refused beside a hold: if such a call were sent again, tokens that were spent meanwhile
-- would come back.
local broken = least > want and 2 or (ttl < 1 or ttl > LONGEST) and 3 or leased and seq > 0 and ack >= seq and 6
  or hold > (leased and MOST or 0) and 7 or ret > 0 and (hold > 0 or not leased) and 8
  or not leased and (refund > 0 and 9 or debt > 0 and 10) or owed > debt and 15 or fleet < 1 and 17
  or debt > 0 and since < 1 and 20 or not leased and reset > 0 and 21
  or limits > MOST_LIMITS and BEFORE_LIMITS + 3 * MOST_LIMITS + 1
for i = BEFORE_LIMITS + 1, broken and 0 or given, 3 do
  if arg[i] < 1 or arg[i] > MOST then
    broken = i
    break
  elseif arg[i + 1] < 1 or arg[i + 1] > LONGEST_PERIOD then
    broken = i + 1
    break
  end
  tightest_cap = min(tightest_cap, arg[i])
end
if broken then return refuse(broken) end
--@ rules

-- The call may be late, or no limit may ever grant it.
if server == 0 then
  local time = call('TIME')
  server = time[1] * SECOND + time[2]
end
local early = deadline > 0 and server >= deadline and LATE or least > tightest_cap and NEVER
if early then
  return {
    early, 0, 0, early == NEVER and -1 or 0, 0, 0, server, 0, 0, 0,
    --@ nothing
  }
end
want, least = min(want, tightest_cap), max(least, 1)
local peek = not leased and want == 0

