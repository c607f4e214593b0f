--[[ sliding_log: at most cap tokens in any interval of length period, to the microsecond. Direct
takes only.

KEYS[1]  a sorted set that only this script writes
  one member per take: its score is its stamp (strictly increasing, so two takes in one microsecond
  are two members), and the member is the stamp, or stamp:cost if the cost is not 1
  one member per debt: score the instant of its admissions, member d<lease id>@<instant>:<cost>
  and with score -1-x the members
  #lg1 epoch   #n tokens in all members together   #t newest stamp   #z how far the server's clock
  was set back (absent when 0): the key's time is the server's plus z

ARGV  see call.lua. One limit: cap, period, 0. 6-9 must be 0: nothing is leased. A lease id names
the process of a debt; a call with one always writes. at and to (<= the present cost) settle the
entry of that stamp, if epoch is still the key's. Otherwise flag 32 is set.

Settling, a debt (by its id and since) and a reset state a result, not a change: repeating them does
no harm. But while the key's time waits, because the server's clock was set back, a reset forgets
everything.

Bounded work: every member holds at least one token, and together they hold at most cap. So to make
room for n tokens it is enough to forget n old members, if old ones can make it. A call forgets at
most want + debt + 32 old ones. If cap was lowered, it forgets as many more as it was lowered by. No
call is refused because of old members. If there may be more of them, the call reads 1000 members
more, to tell the level without the old ones. Of a log with more than 1000 old and more than 1000
other members it tells a lower level. A refused take writes nothing, and a peek writes nothing.
]]

--@ rules
local cap, period = arg[22], arg[23]
for _, i in ipairs({6, 7, 8, 9, 24}) do
  if arg[i] > 0 then return refuse(i) end
end
if limits > 1 then return refuse(25) end

--@ nothing
0, 0, 0

--@ load
local FORMAT = '#lg1'
local SPARE = 32 -- old members that a call forgets beyond those that it needs, so that they do not pile up
local CHUNK = 1000 -- members per ZREM: unpack has a limit
local LOOK = 1000  -- members that a call reads to tell the level
local function cost(member) return tonumber(string.match(member, ':(%d+)$') or 1) end
local function entry(stamp, n) return n == 1 and text(stamp) or format('%.0f:%.0f', stamp, n) end

-- Load, or start empty.
local stored = call('ZMSCORE', key, FORMAT, '#n', '#t', '#z')
for i = 1, 4 do
  local x = stored[i] and -1 - stored[i]
  if stored[i] and not whole(x) then return redis.error_reply('RLCORRUPT field') end
  stored[i] = x
end
local born, total, last, behind = stored[1], stored[2], stored[3], stored[4] or 0
local exists, flags = born and true or false, 0
if exists then
  if not (total and last) then return redis.error_reply('RLCORRUPT field') end
elseif call('EXISTS', key) == 1 then
  return redis.error_reply('RLFOREIGN key')
else
  born, total, last, flags = server, 0, 0, CREATED
end
if epoch > 0 and epoch ~= born then flags = flags + OTHER_EPOCH end

-- Clock: a small step back is waited out, a large one is believed and z makes up for it.
local stepped = last - server - behind > maxback
if stepped then behind, flags = last - server, flags + STEPPED_BACK end
local now = max(server + behind, last + 1)

-- Forget what has left the window: all at once if nothing is left, otherwise no more than can be
-- needed.
local cut = now - period
if reset > 0 then
  -- While the key's time waits, because the clock was set back, it cannot tell what was counted by
  -- then and what came since.
  cut = max(cut, now > server + behind and now or min(reset + behind, now))
end
local empty, gone, spare = exists and last <= cut, {}, 0 -- spare: tokens of old members that this call leaves
if empty then
  total = 0
elseif total > 0 then
  local most = want + debt + SPARE + max(0, total - cap)
  if reset > 0 then most = total end
  gone = call('ZRANGEBYSCORE', key, 0, text(cut), 'LIMIT', 0, text(most))
  for i = 1, #gone do total = total - cost(gone[i]) end
  if #gone == most then
    local live = call('ZRANGEBYSCORE', key, '(' .. text(cut), '+inf', 'LIMIT', 0, text(LOOK + 1))
    if #live <= LOOK then
      spare = total
      for i = 1, #live do spare = spare - cost(live[i]) end
    else
      local old = call('ZRANGEBYSCORE', key, 0, text(cut), 'LIMIT', text(most), text(LOOK))
      for i = 1, #old do spare = spare + cost(old[i]) end
    end
  end
end

-- Settle one entry: it gets its new cost, never a higher one.
local add, settled = {}, false
local function put(score, member)
  add[#add + 1] = score
  add[#add + 1] = member
end
if at > 0 and not (exists and epoch == born) then flags = flags + UNAPPLIED end
if at > cut and not empty and exists and epoch == born then
  local member = call('ZRANGEBYSCORE', key, text(at), text(at), 'LIMIT', 0, 1)[1] -- sorts before debts
  local had = member and string.find(member, '^%d') and cost(member) or 0
  if to < had then
    gone[#gone + 1], total, settled = member, total - had + to, true
    if to > 0 then put(text(at), entry(at, to)) end
  end
end

-- Charge a debt at the time of its admissions. The log can become full, but hold no more than cap.
local due = min(since + behind, now)
if debt > 0 and due > cut then
  local mine, had, old = 'd' .. id .. '@' .. text(due) .. ':', 0, nil
  if not empty then
    for _, member in ipairs(call('ZRANGEBYSCORE', key, text(due), text(due))) do
      if string.sub(member, 1, #mine) == mine then old, had = member, cost(member) end
    end
  end
  local charged = min(debt, had + max(0, cap - total))
  if charged > had then
    if old then gone[#gone + 1] = old end
    put(text(due), mine .. text(charged))
    total = total + charged - had
  end
end

-- Grant.
local code, grant, retry = GRANTED, 0, 0
local avail = cap - total
if want > 0 and avail >= least then
  grant = min(want, avail)
  if not dry then
    total = total + grant
    put(text(now), entry(now, grant))
  end
elseif want > 0 then
  code = DENIED
  -- So many members must leave that the missing tokens are free. These are the stored members,
  -- without those that this call removes (at most two of them count), and with those that it adds.
  local over, out, live = least - avail, {}, {}
  for i = 1, #gone do out[gone[i]] = true end
  local all = empty and {} or call('ZRANGEBYSCORE', key, '(' .. text(cut), '+inf', 'WITHSCORES', 'LIMIT', 0, text(over + 2))
  for i = 1, #all, 2 do
    if not out[all[i]] then live[#live + 1] = {tonumber(all[i + 1]), cost(all[i])} end
  end
  if #add > 0 then
    for i = 1, #add, 2 do live[#live + 1] = {tonumber(add[i]), cost(add[i + 1])} end
    table.sort(live, function(x, y) return x[1] < y[1] end)
  end
  for i = 1, #live do
    over, retry = over - live[i][2], live[i][1] + period - server - behind
    if over <= 0 then break end
  end
  retry = max(1, retry)
end

-- Write: deletions, then one ZADD, then PEXPIRE.
if not dry and (grant > 0 or settled or leased or stepped and not peek) then
  -- Without memory nothing is executed: see lease.lua.
  if empty or #gone > 0 then call('ZADD', key, text(-1 - born), FORMAT) end
  if empty then call('UNLINK', key) end
  for i = 1, #gone, CHUNK do call('ZREM', key, unpack(gone, i, min(i + CHUNK - 1, #gone))) end
  last = now
  put(text(-1 - total), '#n')
  put(text(-1 - last), '#t')
  if empty or not exists then put(text(-1 - born), FORMAT) end
  if behind > 0 then put(text(-1 - behind), '#z') end
  call('ZADD', key, unpack(add))
  call('PEXPIRE', key, text(min(ceil((now + period - server - behind) / 1000) + 1000, LONGEST_TTL_MS)))
elseif not exists then
  born = 0 -- nothing was written, so there is no log of this epoch
end
if dry and (settled or debt > 0) then last = now end -- as the call would
local clear = total > 0 and max(0, last + period - server - behind) or 0
return {code, grant, cap - total + spare, retry, 0, 0, server, born, flags, 0, 1, clear, now}
