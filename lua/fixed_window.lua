--[[ fixed_window: at most cap tokens in each aligned window. Direct or leased. O(1) but for sweeps.

Windows begin at phase + k * period of the server's clock, or there is only the one window that the
caller means. A lease ends with its window at the latest. So every token is used in the window that
counted it, and what is counted never exceeds cap.

KEYS[1]  a hash that only this script writes. Its name has the period, because another period would
         misread its count
  v  format mark 'fw2'      c  epoch      t  newest time      n  tokens counted in the window of t
  f  if it was reset, the newest time of all until then: what was counted by then never comes back
  b  if the server's clock was set back in it, the newest time before
  and once a lease was granted the fields of lease.lua. o has ended leases too, and their records
  are kept to the end of the window, because what they hold may come back. A sweep sets their want
  to 0, so that they have no part in what is granted until the edge

ARGV  see call.lua. One limit: cap, period, phase.
  phase   if it is >= period, it is the beginning of a window of the calendar that the caller worked
          out: phase to phase + period. If the key's time is in another window, the call is late,
          nothing is done, and stamp tells the key's time. What was counted before phase belongs to
          an ended window, whatever window counted it
  at      the stamp of what is refunded: a refund counts only in the window of its stamp
  debt    counts only in the window of since
  reset   the count falls to what is out in leases that have not ended. Like a refund it needs a
          deadline <= now + ttl. What ended leases held is spent by then, so it is forgotten, and
          nothing of it comes back
Flag 32 is set if a refund or reset lacks that deadline. It is also set if a refund finds no key,
one of another epoch, or a window before its own (the clock was set back). If the window has ended,
or a reset has forgotten the count, there is nothing to refund, and no flag.

A refused caller is told the window's edge or, while others hold tokens in leases, when these may be
back: see lease.lua.

An ended window is deleted at once, leases included (UNLINK), so a key that lost its time to live
gets one with the next take. A refused direct take writes nothing, unless it swept or found a large
step back of the clock. A peek writes nothing.
]]
--@ rules
local cap, period, phase = arg[22], arg[23], arg[24]
if to > 1 then return refuse(19) end
if limits > 1 then return refuse(25) end

--@ nothing
0, 0, 0

--@ load
local FORMAT = 'fw2'

local function window(instant) return floor((instant - phase) / period) end

-- Load, or start empty.
local stored = call('HMGET', key, 'v', 'c', 't', 'n', 'w', 'a', 'e', 'g', 'o', own)
local exists, lends = stored[1] == FORMAT, stored[5] and true or false
local born, last, count, wants, active, latest, sweep, escrow, flags = server, server, 0, 0, 0, 0, 0, 0, 0
if exists then
  for i = 2, 9 do -- an earlier version wrote no g
    stored[i] = tonumber((i > 4 and not lends or i == 8 and not stored[i]) and 0 or stored[i])
    if not whole(stored[i]) then return corrupt('field') end
  end
  born, last, count, wants, active, latest, sweep, escrow = unpack(stored, 2, 9)
elseif stored[1] or call('EXISTS', key) == 1 then
  return redis.error_reply('RLFOREIGN key')
else
  flags = CREATED
end
if epoch > 0 and epoch ~= born then flags = flags + OTHER_EPOCH end

-- Clock: a small step back is waited out, a larger one is believed. Windows keep their alignment,
-- so then the count belongs to the window in which the clock is now. While leases that it counted
-- may still be out, it belongs to the next window too. These leases keep their remaining life.
-- Otherwise nobody would be admitted before the clock is where it was.
local now, stepped, behind, overflow = server, false, 0, 0
if now < last then
  stepped = last - now > maxback
  if stepped then
    flags, latest = flags + STEPPED_BACK, max(now, now + latest - last)
    if sweep > 0 then sweep = max(now, now + sweep - last) end
  else
    now = last
  end
end
local k = window(now)
if k ~= 0 and phase >= period then return {LATE, 0, 0, 0, 0, 0, server, 0, 0, 0, 0, 0, now} end
local edge = phase + (k + 1) * period
local record = stored[10]
local fresh = exists and k > window(last) and latest <= now
if fresh then count, wants, active, latest, sweep, escrow, lends, record = 0, 0, 0, 0, 0, 0, false, false end

-- While a step back is waited out, the time of a reset may lie in the window before. The reset
-- means the window that waits.
local forgets = reset > 0 and once and window(now > server and now or min(reset, now)) == k
-- If a window of the calendar has ended, but leases of it are not over, only what is out in them
-- goes on to count.
if phase >= period and exists and k > window(last) and not fresh then forgets = true end
-- b and f of an ended window say nothing.
local noted = (forgets or stepped) and not fresh and call('HMGET', key, 'b')[1] or 0
local newest = (forgets or stepped) and max(now, last, tonumber(noted) or WHOLE)
if newest and newest >= WHOLE then return corrupt('field') end
local stop = min(now + ttl, edge)
local promise, keeps, changed, expiring, rated = stop, true, false, false, false

--@ take_back
count = count - back

--@ carry
count = count + max(0, hold - out)

--@ charge
-- A refund counts in its own window, once, and an ended window takes none. The same holds for a
-- debt, as far as the window is not full. The refund comes first, because what was given back makes
-- room for what was charged since.
if refund > 0 and once and exists and epoch == born and window(at) == k then
  local before = forgets and newest or tonumber(not fresh and call('HMGET', key, 'f')[1] or 0)
  if not whole(before) then before, damaged = 0, true end
  if at > before then count = max(count - refund, hold) end
end
if debt > 0 and window(since) == k then
  local more = min(max(0, debt - charged), max(0, cap - count))
  count, charged = count + more, charged + more
end
if forgets then count = min(count, escrow) end
count = max(count, hold)

--@ refunds
takes = exists and epoch == born and window(at) <= window(instant)

--@ level
avail, tightest = cap - count, 1

--@ lend
count = count + grant

--@ retry
after, longest = max(1, edge - server), 1

--@ store
if fresh then
  call('HSET', key, 'v', FORMAT) -- without memory nothing is executed: see lease.lua
  call('UNLINK', key)
end
put('n', count)
if forgets then put('f', newest) end
if stepped then put('b', newest) end
-- The key lives until the window and the last lease are over. After a step back the lease may be
-- the later one.
keep = ceil((max(edge, latest) - server) / 1000) + 1000

--@ clear
if count > 0 then clear = max(0, edge - server) end

--@ tail
which or tightest, clear, now
