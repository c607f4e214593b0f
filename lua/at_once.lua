--[[ at_once: counts the places that processes have of keys, and grants more while some are free.

A key has so many places, and each request that runs has some of them. A process states how many it
has: those of its running requests and those that it keeps spare. A statement is whole and has a
number, so it counts once whatever happens to messages. What a process states counts, even if there
are not so many places, because its requests run. Only grants are refused.

KEYS[k]  a hash that only this script writes; all keys of a call are in one slot. They do not change
         each other
  v  format mark 'ao1'
  l  places, as the last call said that could be granted some
  g  server time of the last grant
  p<process id>  seq|held|stop|life|wait|from: the last call, the places that the process may use,
                 the server time at which the record ends, how long it lasts, until when the process
                 waits for a place, and since when there is a record without a gap

ARGV  whole numbers 0 .. 2^53-1; times in microseconds
  1 process id, not empty
  2 now   0 reads TIME; anything else is for tests
  and for each key  8(k-1) +
  3 places  1 .. 2^20
  4 seq   higher with every call of a process; 0 only looks, and writes nothing
  5 hold  places that it has until it accepts the reply; it uses no others
  6 want  places that it asks for
  7 need  <= want: fewer are of no use and are not granted
  8 life  1 .. 2^50: a silent process counts for so long
  9 since  server time in the last accepted reply, 0 unknown
 10 wait  how long it waits from now on, if it gets none
Reply  for each key {code, grant, held, share, flags, now}
  code   0 done   3 stale: a call of this process with this seq or a higher one was executed
         4 not a hash of ours   5 ours, but damaged; 3, 4 and 5 write nothing, and the other numbers
         but now are 0
  grant  further places, once the reply is accepted; 0, or need .. want
  held   places of all processes after this call
  share  what the caller should have at most; places if nobody waits
  flags  added up: 1 the caller's record had a gap after since, and places went to others then. Or
         they may have, because the key has expired   2 others have another number of places
Errors   RLARG argument n: nothing is written. Other errors are Redis' own; some keys may have been
         written

The work is O(processes) per key. A key expires one life after its last record.
]]

local max, min, floor, call = math.max, math.min, math.floor, redis.call
local FORMAT, MOST, WHOLE, LONGEST = 'ao1', 2 ^ 20, 2 ^ 53, 2 ^ 50
local DONE, STALE, FOREIGN, DAMAGED, LOST, DIFFERENT, EACH = 0, 3, 4, 5, 1, 2, 8
local id = ARGV[1]

-- 1. Arguments of all keys.
if not id or id == '' then return redis.error_reply('RLARG argument 1') end
local function whole(x) return x and x >= 0 and x < WHOLE and x % 1 == 0 end
local numbers = {}
for i = 2, 2 + EACH * #KEYS do
  numbers[i] = tonumber(ARGV[i])
  if not whole(numbers[i]) then return redis.error_reply('RLARG argument ' .. i) end
end
for k = 1, #KEYS do
  local a = 2 + EACH * (k - 1)
  local places, seq, want, life = numbers[a + 1], numbers[a + 2], numbers[a + 4], numbers[a + 6]
  local broken = (places < 1 or places > MOST) and 1 or numbers[a + 3] > LONGEST and 3
    or (want > MOST or seq == 0 and want > 0) and 4 or (numbers[a + 5] > want or want > 0 and numbers[a + 5] < 1) and 5
    or (life < 1 or life > LONGEST) and 6 or numbers[a + 8] > LONGEST and 8
  if broken then return redis.error_reply('RLARG argument ' .. (a + broken)) end
end
local now = numbers[2]
if now == 0 then
  local t = call('TIME')
  now = t[1] * 1000000 + t[2]
end
local function text(n) return string.format('%.0f', n) end

-- one executes what a call says of one key, and returns code, grant, held, share and flags.
local function one(key, places, seq, hold, want, need, life, since, wait)
  -- 2. Read all before anything is written.
  local stored = redis.pcall('HGETALL', key)
  if stored.err then
    if string.find(stored.err, 'WRONGTYPE', 1, true) then return FOREIGN, 0, 0, 0, 0 end
    error(stored.err)
  end
  local fields, records, gone, early = {}, {}, {}, {}
  for i = 1, #stored, 2 do
    local name, value = stored[i], stored[i + 1]
    if string.sub(name, 1, 1) ~= 'p' then
      fields[name] = value
    else
      local s, h, e, l, w, f = string.match(value, '^(%d+)|(%d+)|(%d+)|(%d+)|(%d+)|(%d+)$')
      local r = {seq = tonumber(s), held = tonumber(h), stop = tonumber(e), life = tonumber(l), wait = tonumber(w)}
      r.from = tonumber(f)
      for _, x in ipairs({'seq', 'held', 'stop', 'life', 'wait', 'from'}) do
        if not whole(r[x]) then return DAMAGED, 0, 0, 0, 0 end
      end
      records[name] = r
    end
  end
  if #stored > 0 and fields.v ~= FORMAT then return FOREIGN, 0, 0, 0, 0 end
  local given, other = tonumber(fields.g or '0'), tonumber(fields.l or '0')
  if not (whole(given) and whole(other)) then return DAMAGED, 0, 0, 0, 0 end

  -- A key that has expired knows of nobody: places may have gone to others since.
  if #stored == 0 and since > 0 and now - since > life then given = now end

  -- 3. A process that was silent for a life has lost its places. A record that would last longer
  -- than its life was written before the clock was set back. It lasts for a life from the first
  -- call that sees that.
  local mine, own, others, parties, last = 'p' .. id, nil, 0, 1, now
  for name, r in pairs(records) do
    if max(r.stop, r.wait) > now + r.life then
      r.stop, r.wait = min(r.stop, now + r.life), min(r.wait, now + r.life)
      early[name] = r
    end
    if r.stop <= now then
      gone[#gone + 1] = name
      records[name] = nil
    elseif name == mine then
      own = r
    else
      others = others + r.held
      last = max(last, r.stop)
      if r.held > 0 or r.wait > now then parties = parties + 1 end
    end
  end
  -- An older call must not undo what a newer one said. So the record of a process stays even if it
  -- has given all back.
  if seq > 0 and own and own.seq >= seq then return STALE, 0, 0, 0, 0 end

  -- 4. While a process waits with less than an even part, no other gets more than an even part, or
  -- than one request.
  local share = places
  for name, r in pairs(records) do
    if name ~= mine and r.wait > now and r.held < places / parties then share = floor(places / parties) end
  end
  local flags = 0
  if other > 0 and other ~= places then flags = DIFFERENT end
  if seq == 0 then return DONE, 0, others + (own and own.held or 0), share, flags end
  local from = own and own.from or now -- the answer that told of a gap first may not have arrived
  if hold > 0 and since > 0 and from > since and given > since then flags = flags + LOST end

  -- 5. Grant what is free. An even part may be too small for a request. So a process with less may
  -- have one whole request, but not in the call that gives places back: it would always be first.
  local room = share - hold
  if hold < max(share, 1) and not (own and own.held > hold) then room = max(room, need) end
  local grant = max(0, min(want, places - others - hold, room))
  if grant < need then grant = 0 end

  -- 6. Write. A full Redis refuses the first write.
  local stop = now + life
  local waits = want > 0 and grant == 0 and now + wait or 0
  local function record(r)
    return table.concat({text(r.seq), text(r.held), text(r.stop), text(r.life), text(r.wait), text(r.from)}, '|')
  end
  if want > 0 then other = places end
  early[mine] = {seq = seq, held = hold + grant, stop = stop, life = life, wait = waits, from = from}
  call('HSET', key, 'v', FORMAT, 'l', text(other), 'g', text(grant > 0 and now or given))
  for name, r in pairs(early) do call('HSET', key, name, record(r)) end
  for _, name in ipairs(gone) do
    if name ~= mine then call('HDEL', key, name) end
  end
  call('PEXPIRE', key, text(math.ceil((max(last, stop) - now + life) / 1000)))
  return DONE, grant, others + hold + grant, share, flags
end

local reply = {}
for k = 1, #KEYS do
  local r = {one(KEYS[k], unpack(numbers, 3 + EACH * (k - 1), 2 + EACH * k))}
  for i = 1, 5 do reply[#reply + 1] = r[i] end
  reply[#reply + 1] = now
end
return reply
