--[[ token_bucket_short: the short way of token_bucket.lua. algorithm.go puts it before call.lua.

It is for a direct take in the short form that is granted in full by a bucket that never lent. It
takes the steps of the long way, but leaves out what is 0 then: 12 us instead of 20. It refuses
nothing: it leaves anything else to the long way (break), and has written nothing then. It calls
Redis' own functions only, and makes none, because that would cost 1 us of the 12. The numbers are
those that call.lua and token_bucket.lua name.
]]
if #ARGV == 9 or #ARGV == 10 then
  repeat
    local floor, ceil, max, min, tonumber, format = math.floor, math.ceil, math.max, math.min, tonumber, string.format
    local key, call = KEYS[1], redis.call
    local want, least, ttl = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
    local deadline, epoch, server = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
    local cap, period, refill, maxdebt = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10] or 0)
    if not (cap and refill and period and want and least and ttl and deadline and epoch and server and maxdebt) then break end
    if cap % 1 + refill % 1 + period % 1 + want % 1 + least % 1 + ttl % 1 + deadline % 1 + epoch % 1 + server % 1 + maxdebt % 1 ~= 0 then break end
    if min(refill, least, deadline, epoch, server, maxdebt) < 0 or max(refill, deadline, epoch, server) >= 2 ^ 53 then break end
    if max(cap, maxdebt) > 2 ^ 40 or period < 1 or period > 2 ^ 52 or want < 1 or want > cap or least > want or ttl < 1 or ttl > 2 ^ 50 then break end
    if server == 0 then
      local time = call('TIME')
      server = time[1] * 1000000 + time[2]
    end
    if deadline > 0 and server >= deadline then break end

    local stored = call('HMGET', key, 'v', 'l', 's', 't', 'c', 'z', 'o', 'r')
    local exists, lends = stored[1] == 'tb2', stored[7]
    local level, overflow, last, born, behind, most = cap, 2 ^ 40, server, server, 0, cap
    if exists then
      level, overflow = tonumber(stored[2]), tonumber(stored[3] or 0)
      last, born, behind = tonumber(stored[4]), tonumber(stored[5]), tonumber(stored[6] or 0)
      if lends then break end
      local terms = ARGV[7] .. '/' .. ARGV[9] .. '/' .. ARGV[8]
      if stored[8] ~= terms then
        local same, largest = string.match(stored[8] or '', '^(%d+/%d+/%d+)/(%d+)$')
        if same ~= terms then break end -- other terms
        most = max(cap, tonumber(largest) or 0)
      end
      if not (level and overflow and last and born and behind) then break end
      overflow = 2 ^ 40 + overflow / 4096
      if not (level > -(2 ^ 53) and level < 2 ^ 53 and overflow >= 2 ^ 40 and overflow < 2 ^ 53) then break end
      if last % 1 + born % 1 + behind % 1 ~= 0 or min(last, born, behind) < 0 or max(last, born, behind) >= 2 ^ 53 then break end
    elseif stored[1] or call('EXISTS', key) == 1 then break end
    local unguarded = server + behind
    if last - unguarded > 1000000 then break end
    local now = max(unguarded, last)

    local refilled = level + (now - last) * refill / period
    level = min(refilled, cap)
    local spilt = min(overflow + (refilled - level), 2 ^ 52)
    if level + 1e-9 < want then break end
    level = level - want
    if not exists then
      local instant = format('%d', now)
      local terms = format('%d/%d/%d', cap, refill, period)
      call('HSET', key, 'v', 'tb2', 'l', level, 't', instant, 'c', instant, 'r', terms)
    elseif spilt ~= overflow then
      overflow = spilt
      local parts = (overflow - 2 ^ 40) * 4096
      call('HSET', key, 'l', format('%.17g', level), 't', format('%d', now), 's', format('%.17g', parts))
    else
      call('HSET', key, 'l', format('%.17g', level), 't', format('%d', now))
    end
    local keep = 2 ^ 43
    if refill > 0 then
      keep = min(ceil((most - level) * period / refill / 1000) + ceil((now - unguarded) / 1000) + 1000, 2 ^ 43)
    end
    call('PEXPIRE', key, keep)
    local flags = (exists and 0 or 1) + (epoch > 0 and epoch ~= born and 8 or 0) -- CREATED, OTHER_EPOCH
    do return {0, want, floor(level + 1e-9), 0, 0, 0, server, born, flags, floor(overflow)} end
  until true
end

