--[[ fixed_window: at most cap tokens in each aligned window. Direct or leased. O(1), but for sweeps.

Windows begin at phase + k * period of the server's clock. A lease ends with its window at the latest. So every token
is used in the window that counted it, and what is counted never exceeds cap.

KEYS[1]  a hash that only this script writes. Its name has the period, because another period would misread its count
  v  format mark 'fw2'      c  epoch      t  newest time      n  tokens counted in the window of t
  and once a lease was granted:
  o  tokens that leases hold, ended ones too     w  sum of the leases' wants     a  leases that hold or want tokens
  e  end of the latest lease                     g  next sweep, 0 none
  p<lease id>  seq|grant|out|want|end|debt charged, kept to the end of the window: what it holds may come back. A sweep
               sets the want of an ended lease to 0, so that it has no part in what is granted until the edge

ARGV  see call.lua. One limit: cap, period, phase (< period). at is the stamp of what is refunded: it
counts only in its own window. debt counts only in the window of since. reset: the count falls to what is out in
leases that have not ended, under a deadline <= now + ttl like a refund. What ended leases held is spent by then, so it is
forgotten, and nothing of it comes back. Flag 32 is set if a refund or reset lacks that deadline, and if a
refund finds no key, one of another epoch, or a window before its own (the clock was set back). The count of an ended
window is forgotten, so there is nothing to do for it, and no flag.

A refused caller is told the window's edge or, while others hold tokens in leases, when these may be back: see below.

An ended window is deleted at once, leases included (UNLINK), so a key that lost its time to live gets one with the
next take. A refused direct take writes nothing, unless it swept or found a large step back of the clock. A peek
writes nothing.
]]

local FORMAT = 'fw2'
local CHUNK = 1000 -- arguments per command: unpack has a limit
local cap, period, phase = arg[22], arg[23], arg[24]
if to > 1 then return refuse(19) end
if phase >= period then return refuse(24) end
if limits > 1 then return refuse(25) end
local too = too_late()
if too then return too end

local function window(instant) return floor((instant - phase) / period) end

-- Load, or start empty.
local own = 'p' .. id
local stored = call('HMGET', key, 'v', 'c', 't', 'n', 'w', 'a', 'e', 'g', 'o', own)
local exists, lends = stored[1] == FORMAT, stored[5] and true or false
local born, last, count, wants, active, latest, sweep, escrow, flags = server, server, 0, 0, 0, 0, 0, 0, 0
if exists then
  for i = 2, 9 do -- an earlier version wrote no g
    stored[i] = tonumber((i > 4 and not lends or i == 8 and not stored[i]) and 0 or stored[i])
    if not whole(stored[i]) then return redis.error_reply('RLCORRUPT field') end
  end
  born, last, count, wants, active, latest, sweep, escrow = unpack(stored, 2, 9)
elseif stored[1] or call('EXISTS', key) == 1 then
  return redis.error_reply('RLFOREIGN key')
else
  flags = CREATED
end
if epoch > 0 and epoch ~= born then flags = flags + OTHER_EPOCH end

-- Clock: a small step back is waited out. A larger one is believed. Windows keep their alignment, so the count then
-- becomes that of the clock's own window. It also becomes that of the next window while leases that it counted may
-- still be out. The remaining life of these leases stays the same: otherwise nobody would be admitted before the
-- clock is where it was.
local now, stepped = server, false
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
local edge = phase + (k + 1) * period
local record = stored[10]
local fresh = exists and k > window(last) and latest <= now
if fresh then count, wants, active, latest, sweep, escrow, lends, record = 0, 0, 0, 0, 0, 0, false, false end

-- The network repeats and reorders: an executed call gets its reply again, an older one is ignored.
local r_seq, r_grant, r_out, r_want, r_end, r_debt
local function clear() return count > 0 and max(0, edge - server) or 0 end
-- retry_after tells a refused caller when tokens may be there: at the edge, or sooner if others hold some. A holder that
-- lives calls a quarter of its lease's life before the lease ends at the latest, and gives back what it does not use. One
-- that is dead does not: that time passes, then the end, and then nothing is out in live leases.
local function retry_after()
  local after = max(1, edge - server)
  if escrow <= hold or latest <= now then return after end
  local all = call('HGETALL', key)
  for i = 1, #all, 2 do
    if #all[i] > 1 and all[i] ~= own then
      local _, _, held, _, stop, charge = parse(all[i + 1])
      if not charge then return nil end
      if held > 0 and stop > now then
        local left, quarter = stop - server, floor(ttl / 4)
        after = min(after, max(left - quarter, min(left, quarter)))
      end
    end
  end
  return max(1, after)
end
if leased and record then
  r_seq, r_grant, r_out, r_want, r_end, r_debt = parse(record)
  if not r_debt or r_grant > r_out or r_out > escrow or r_want > wants then return redis.error_reply('RLCORRUPT lease') end
  if not dry and seq <= r_seq then
    local left = min(r_end, edge, now + ttl) - now
    if seq < r_seq or left <= 0 then
      return {STALE, 0, cap - count, 0, active, 0, server, born, flags, 0, 1, clear(), now}
    end
    local after = r_grant == 0 and want > 0 and retry_after() or 0
    if not after then return redis.error_reply('RLCORRUPT lease') end
    local once = deadline > 0 and deadline <= r_end -- it was executed a ttl before, or later and to the edge
    if reset > 0 and not once or refund > 0 and not (once and epoch == born and window(at) <= window(r_end - 1)) then
      flags = flags + UNAPPLIED
    end
    return {REPLAY, r_grant, cap - count, after, active, left, server, born, flags, 0, 1, clear(), now}
  end
end

-- While a step back is waited out, the time of a reset may lie in the window before. It means the window that waits.
local once = deadline > 0 and deadline <= server + ttl
local resets = reset > 0 and once and window(now > server and now or min(reset, now)) == k

-- Sweep. A reset does so too.
local swept, ended, lent = sweep > 0 and now >= sweep or resets and lends, {}, 0 -- lent to others
if swept then
  wants, sweep = 0, 0
  local all = call('HGETALL', key)
  for i = 1, #all, 2 do
    if #all[i] > 1 then
      local s, g, out, wanted, stop, charge = parse(all[i + 1])
      if not charge then return redis.error_reply('RLCORRUPT lease') end
      if stop > now then
        wants, sweep = wants + wanted, now + ceil(ttl / 2)
        if all[i] ~= own then lent = lent + out end
      elseif wanted > 0 or resets and out > 0 then
        if resets and all[i] ~= own then escrow, g, out = escrow - out, 0, 0 end
        ended[#ended + 1] = all[i]
        ended[#ended + 1] = format('%d|%d|%d|0|%d|%d', s, g, out, stop, charge)
        if out == 0 then active = active - 1 end
        if all[i] == own then r_want = 0 end
      end
    end
  end
end

-- Settle. All that was granted counts until its holder says that it never came or comes back.
local charged = 0
if r_seq then
  wants, escrow = wants - r_want, escrow - r_out
  if r_out + r_want > 0 then active = active - 1 end
  if ack < r_seq then count, r_out, charged = count - r_grant, r_out - r_grant, r_debt end
  ret = min(ret, r_out)
  count, r_out = count - ret, r_out - ret
else
  r_out = 0
end
escrow = escrow + hold
if hold > r_out then count, flags = count + hold - r_out, flags + ADOPTED end
if ack > (r_seq or 0) then flags = flags + UNRECORDED end

-- A debt counts in its own window, as far as that is not full. A refund does too, once: the deadline ends every
-- copy of this call before the record that knows its seq is over, and an ended window takes none.
if debt > 0 and window(since) == k then
  local charge = min(max(0, debt - charged), max(0, cap - count))
  count, charged = count + charge, charged + charge
end
if refund > 0 and once and exists and epoch == born and window(at) == k then count = count - refund end
local mine = once and exists and epoch == born and window(at) <= k
if reset > 0 and not once or refund > 0 and not mine then flags = flags + UNAPPLIED end
if resets then count = min(count, hold + lent) end
count = max(count, hold)

-- Grant all that the caller wants, or one and a half times its part of what all leases want, if there is so much.
-- With its part alone more tokens would stay here, and overflow, for processes that do not ask now.
local code, grant, after = GRANTED, 0, 0
local avail, wanted = cap - count, wants + want
if want > 0 and avail >= least then
  grant = min(max(floor(1.5 * avail * want / wanted), least), want, avail)
  if not dry then count = count + grant end
elseif want > 0 then
  code = DENIED
end
if want > 0 and grant == 0 or leased and to == 0 and grant < want and count >= cap then
  after = retry_after()
  if not after then return redis.error_reply('RLCORRUPT lease') end
end

-- Write: deletions, then one HSET, then PEXPIRE.
local left = 0
if not dry and (leased or not peek and (grant > 0 or swept or stepped)) then
  local lending = {}
  if leased then
    left = min(ttl, edge - now)
    local lent, wish = 0, 0
    if to == 0 then lent, wish = grant, want end
    latest, wants = max(latest, now + left), wants + wish
    if hold + lent + wish > 0 then active = active + 1 end
    if sweep == 0 then sweep = now + left end
    lending = {'o', escrow + lent, 'w', wants, 'a', active, 'e', latest, 'g', sweep, own,
      format('%d|%d|%d|%d|%d|%d', seq, lent, hold + lent, wish, now + left, charged)}
  elseif swept or stepped and lends then
    lending = {'w', wants, 'a', active, 'e', latest, 'g', sweep}
  end
  if fresh then
    call('HSET', key, 'v', FORMAT) -- without memory nothing is executed: see token_bucket.lua
    call('UNLINK', key)
  end
  for i = 1, #ended, CHUNK do call('HSET', key, unpack(ended, i, min(i + CHUNK - 1, #ended))) end
  call('HSET', key, 'v', FORMAT, 'c', born, 't', now, 'n', count, unpack(lending))
  -- Until the window is over, or the last lease: after a step back that may be later. Redis counts on its own clock.
  call('PEXPIRE', key, text(min(ceil((max(edge, latest) - server) / 1000) + 1000, LONGEST_TTL_MS)))
elseif not exists then
  born = 0 -- nothing was written, so there is no count of this epoch
end
return {code, grant, cap - count, after, active, left, server, born, flags, 0, 1, clear(), now}
