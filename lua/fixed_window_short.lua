--[[ fixed_window_short: the short way of fixed_window.lua. algorithm.go puts it before call.lua.

It is for a direct take in the short form that is granted by a window that never lent. It takes the
steps of the long way, but leaves out what is 0 then, in half of the time. It refuses nothing: it
leaves anything else to the long way (break), and has written nothing then. It calls Redis' own
functions only, and makes none, because that would cost more than it saves.
]]
if #ARGV == 9 then
  repeat
    local floor, ceil, max, min, tonumber = math.floor, math.ceil, math.max, math.min, tonumber
    local key, call = KEYS[1], redis.call
    local want, least, ttl = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
    local deadline, epoch, server = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
    local cap, period, phase = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
    if not (want and least and ttl and deadline and epoch and server and cap and period and phase) then break end
    if want % 1 + least % 1 + ttl % 1 + deadline % 1 + epoch % 1 + server % 1 + cap % 1 + period % 1 + phase % 1 ~= 0 then break end
    if min(least, deadline, epoch, server, phase) < 0 or max(deadline, epoch, server) >= 2 ^ 53 then break end
    if want < 1 or least > want or want > cap or cap > 2 ^ 40 or ttl < 1 or ttl > 2 ^ 50 then break end
    if phase >= 2 ^ 53 or period > 2 ^ 52 then break end
    if server == 0 then
      local time = call('TIME')
      server = time[1] * 1000000 + time[2]
    end
    if deadline > 0 and server >= deadline then break end

    local stored = call('HMGET', key, 'v', 'c', 't', 'n', 'w')
    local exists, born, last, count = stored[1] == 'fw2', server, server, 0
    if exists then
      if stored[5] then break end -- it lends
      born, last, count = tonumber(stored[2]), tonumber(stored[3]), tonumber(stored[4])
      if not (born and last and count) or born % 1 + last % 1 + count % 1 ~= 0 then break end
      if min(born, last, count) < 0 or max(born, last, count) >= 2 ^ 53 then break end
    elseif stored[1] or call('EXISTS', key) == 1 then break end
    if last - server > 1000000 then break end -- a large step back
    local now = max(server, last)
    local k = floor((now - phase) / period)
    if k ~= 0 and phase >= period then break end -- another window than the caller's
    if k ~= floor((last - phase) / period) then break end -- a new window, which deletes the old one
    local edge = phase + (k + 1) * period

    local grant = min(want, cap - count)
    if grant < max(least, 1) then break end
    count = count + grant
    if exists then
      call('HSET', key, 't', now, 'n', count)
    else
      call('HSET', key, 'v', 'fw2', 'c', born, 't', now, 'n', count)
    end
    call('PEXPIRE', key, min(ceil((edge - server) / 1000) + 1000, 2 ^ 43))
    local flags = (exists and 0 or 1) + (epoch > 0 and epoch ~= born and 8 or 0) -- CREATED, OTHER_EPOCH
    do return {0, grant, cap - count, 0, 0, 0, server, born, flags, 0, 1, max(0, edge - server), now} end
  until true
end

