--[[ lease: the lease protocol, once for all scripts that lend. It says what a repeated call is
answered, when a lease is over, what a caller settles, how much it is granted, when others may give
back, and what is written. How a key counts is in the scripts, each of which is a list of parts.
template.go puts a part into the place that has its name ("--@ name"), here or in call.lua. A part
that a script does not have is empty. No part is a function, because making one costs Redis up to a
microsecond at each call. internal/model/lease.go has the same steps and parts in Go.

Fields of a key that lent:
  o  escrow: tokens that leases hold     w  sum of the leases' wants     a  leases that hold or want
  g  next sweep, 0 none                  e  end of the latest lease
  p<lease id>  seq|grant|out|want|end|debt charged, kept until its end. If a single token bucket
     refused a want, it counts as one token. If a record charged a debt, its holder may not have
     heard of that, and may report the debt again. So the record is kept for longer, without its
     tokens and its want, for as long as the debt may count

Parts:
  load       reads the key and brings it to now, but for what depends on the caller. It sets
               exists, born, last, behind, overflow, flags, now
               lends     a lease was granted once. Then these are stored: escrow, wants, active,
                         sweep, latest, and record, which is the caller's
               stop      when a lease granted now ends
               promise   no repeated reply promises a lease beyond it
               stepped   a large step back of the clock was believed
               changed   other limits govern than before
               expiring  what the caller goes by is new, or was about to be forgotten
               keeps     records of ended leases stay, because what they hold may come back
               forgets   the call is a reset that counts. So what ended leases of others held is
                         forgotten
               rated     the level alone tells when the next token comes
  remember   sets memory: for so many microseconds after its end the record of a lease that charged
             a debt is kept. It is not asked for if keeps is set
  look       brings the count to now, for a repeated reply
  refill     the same after the sweep, for a call that is executed
  take_back  back tokens of the caller's lease were not spent and will not be
  carry      hold stays out. The lease had out tokens left, and ended at r_end. If hold is less, the
             rest was spent. If hold is more, the difference was never lent, or its record is lost:
             it is counted now
  charge     counts the refund, the reset, and the debt beyond charged, which it raises
  refunds    clears takes if the key does not take the refund at an instant
  level      sets avail, the tokens that are there, and tightest, the limit with the fewest
  lend       counts the grant
  retry      sets after, the microseconds until least tokens may be there, or -1 for never, and
             longest, the limit that takes longest. It clears sooner if it does not matter when
             others give back
  store      puts the fields of the count, and sets keep: the key lives for so many ms
  clear      sets clear, the microseconds until nothing counts
  tail       what the reply says besides the first ten numbers
]]

local CHUNK = 1000 -- arguments per command: unpack has a limit
local RECORD = 112 -- p, the first byte of the fields that hold records
local borrows = leased and to == 0
local once = deadline > 0 and deadline <= server + ttl -- the record that knows seq outlives every copy of this call

-- What is written at the end: fields and values, and the fields to delete. Nothing is written if a
-- part found a damaged field.
local set, gone, damaged = {}, {}, false
local function put(field, value)
  set[#set + 1] = field
  set[#set + 1] = value
end
local function corrupt(what) return redis.error_reply('RLCORRUPT ' .. what) end

-- A record of a lease: seq, grant, out, want, end, debt. It is nil if it is damaged.
local function parse(record)
  local s, g, o, w, e, d = string.match(record, '^(%d+)|(%d+)|(%d+)|(%d+)|(%d+)|(%d+)$')
  return tonumber(s), tonumber(g), tonumber(o), tonumber(w), tonumber(e), tonumber(d)
end
local fields -- all of the key, once they were read

--@ load

local code, grant, after, left, which, charged = GRANTED, 0, 0, 0, nil, 0
local avail, tightest, waits, swept, news
local kept -- records of ended leases that are written anew

-- 1. The network repeats and reorders calls: one that was executed gets its reply again, and an
-- older one is ignored.
local repeats, instant = false, now
local r_seq, r_grant, r_out, r_want, r_end, r_debt = nil, 0, 0, 0, now, 0
if leased and record then
  r_seq, r_grant, r_out, r_want, r_end, r_debt = parse(record)
  if not r_debt or r_grant > r_out or r_out > escrow or r_want > wants then return corrupt('lease') end
  repeats = not dry and seq <= r_seq
end
if repeats then
  --@ look
  left, code = min(r_end, promise) - now, REPLAY
  once, instant = deadline > 0 and deadline <= r_end - behind, r_end - 1
  if seq < r_seq or left <= 0 then
    code, left = STALE, 0
  else
    grant, waits = r_grant, r_grant == 0 and want > 0
  end
else
  -- 2. Sweep: what ended leases held counts as spent, or comes back when their holder calls. All
  -- records are read before any is deleted.
  local escrow_then, last_ended, alive = escrow, 0, 0
  swept = sweep > 0 and now >= sweep or forgets and lends
  if swept then
    kept = {}
    escrow, wants, active, sweep = 0, 0, 0, 0
    local memory = 0
    --@ remember
    fields = fields or call('HGETALL', key)
    for i = 1, #fields, 2 do
      local name = fields[i]
      if string.byte(name) == RECORD then
        local s, g, out, wish, ends, debts = parse(fields[i + 1])
        if not debts then return corrupt('lease') end
        if ends > now then
          alive = max(alive, ends)
        else
          if out > 0 then last_ended = max(last_ended, ends) end
          local over = not keeps or forgets and name ~= own
          if not keeps and (debts == 0 or ends + memory <= now) then
            gone[#gone + 1] = name
            if name == own then r_seq = nil end
          elseif wish > 0 or over and out > 0 then
            kept[#kept + 1] = name
            kept[#kept + 1] = format('%d|%d|%d|0|%d|%d', s, over and 0 or g, over and 0 or out, ends, debts)
            if name == own then
              r_want = 0
              if over then r_grant, r_out = 0, 0 end
            end
          end
          wish = 0
          if over then out = 0 end
        end
        escrow, wants = escrow + out, wants + wish
        if out + wish > 0 then active = active + 1 end
      end
    end
    if alive > 0 then sweep = now + ceil(ttl / 2) end
    if not keeps then latest = alive end
  end
  --@ refill

  -- 3. Settle. A grant whose reply was not accepted is undone. What the caller no longer holds was
  -- spent. If it holds more than its record says, the key was lost or the lease is over, and the
  -- difference is counted. A debt whose reply was not accepted is reported again, and counts as
  -- charged. It is never undone. A grant keeps room free, but a debt does not: the refill since may
  -- have paid it, and others may have taken those tokens. So undoing it would create tokens. From
  -- here on escrow includes the hold.
  local out = 0
  if r_seq then
    escrow, wants, out = escrow - r_out, wants - r_want, r_out
    if r_out + r_want > 0 then active = active - 1 end
    local back = r_grant
    if ack < r_seq then
      --@ take_back
      out, charged = out - r_grant, r_debt
    end
    back = min(ret, out)
    if back > 0 then
      --@ take_back
      out = out - back
    end
  end
  news = hold < out or debt > charged
  if hold > out then flags = flags + ADOPTED end
  if ack > (r_seq or 0) then flags = flags + UNRECORDED end
  --@ carry
  escrow = escrow + hold
  --@ charge

  -- 4. Grant all that the caller wants, or one and a half times its part of what all leases want,
  -- if there is so much. If it got its part alone, tokens would stay here for processes that do not
  -- ask now, and overflow.
  --@ level
  if want > 0 and avail >= least then
    grant = min(max(floor(1.5 * avail * want / (wants + want)), least), want, avail)
    if not dry then
      --@ lend
    end
    if borrows and grant < want and not rated then
      --@ level
      if avail < 1 then least, waits = 1, true end
    end
  elseif want > 0 then
    code, waits = DENIED, true
  end
end

-- A refund and a reset count once, because the record that knows this call's seq outlives every
-- copy of the call.
if refund + reset > 0 and code ~= STALE then
  local takes = true
  --@ refunds
  if reset > 0 and not once or refund > 0 and not (once and takes) then flags = flags + UNAPPLIED end
end

-- 5. When there may be tokens, sooner if others hold some. A holder that lives calls before the
-- last quarter of its lease's life, and gives back what it does not use. A dead one does not. Then
-- that time passes, and at the end of the lease its tokens are no longer out.
if waits then
  local sooner, longest = true, nil
  --@ retry
  if sooner and escrow > hold and latest > now then
    local quarter = floor(ttl / 4)
    fields = fields or call('HGETALL', key)
    for i = 1, #fields, 2 do
      if string.byte(fields[i]) == RECORD and fields[i] ~= own then
        local _, _, out, _, ends, debts = parse(fields[i + 1])
        if not debts then return corrupt('lease') end
        if out > 0 and ends > now then
          local rest = ends - server - behind
          after = min(after, max(rest - quarter, min(rest, quarter)))
        end
      end
    end
    after = max(1, after)
  end
  if code == DENIED then which = longest end
end
if damaged then return corrupt('field') end
if dry and (changed or news) then flags = flags + NEWS end

-- 6. Write: deletions, then one HSET, then PEXPIRE. An interrupted run leaves the escrow too high,
-- never too low. Redis refuses a command that needs memory (OOM) only while a run has written
-- nothing. So an HSET that changes nothing comes before the deletions. Without it a full Redis
-- would execute the calls that sweep, and refuse all others.
if not (repeats or dry) and (leased or changed or not peek and (grant > 0 or swept or stepped or expiring)) then
  local keep
  if leased then
    local lent, wish = 0, 0
    -- A want that a single token bucket refused counts as one token. A process that still wants
    -- tokens asks again, but no call says that it wants none any more. So with the whole want
    -- tokens would stay here until the record ends, and overflow, although others want them.
    if borrows then lent, wish = grant, rated and grant == 0 and min(want, 1) or want end
    left, latest, escrow, wants = stop - now, max(latest, stop), escrow + lent, wants + wish
    if hold + lent + wish > 0 then active = active + 1 end
    if sweep == 0 then sweep = stop end
    record = format('%d|%d|%d|%d|%d|%d', seq, lent, hold + lent, wish, stop, charged)
  end
  set = {'v', FORMAT, 'c', born, 't', now}
  if leased or swept or stepped and lends then
    set = {'v', FORMAT, 'c', born, 't', now, 'o', escrow, 'w', wants, 'a', active, 'g', sweep, 'e', latest}
    if leased then put(own, record) end
  end
  --@ store
  if #gone > 0 then call('HSET', key, 'v', FORMAT) end
  for i = 1, #gone, CHUNK do call('HDEL', key, unpack(gone, i, min(i + CHUNK - 1, #gone))) end
  for i = 1, kept and #kept or 0, CHUNK do call('HSET', key, unpack(kept, i, min(i + CHUNK - 1, #kept))) end
  call('HSET', key, unpack(set))
  call('PEXPIRE', key, format('%d', min(keep, LONGEST_TTL_MS))) -- Redis counts by its own clock
elseif not exists and not repeats then
  born = 0 -- nothing was written, so there is no key of this epoch
end
--@ level
local clear = 0
--@ clear
return {
  code, grant, min(avail, tightest_cap), after, active, left, server, born, flags, floor(overflow),
  --@ tail
}
