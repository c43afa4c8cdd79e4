-- Format 1 of the Redis store: every change and every look at a thread is one call of this script, so it is atomic.
-- KEYS[1] is the bucket, such as "everstep:{17}:"; every key below it is in the same slot. The
-- arguments are values, which are never part of a key unescaped. No write happens before all checks have passed.
-- Each thing to do becomes a script of its own, with just the functions it needs (see redis_script.py): keep one
-- definition per block, beginning at the left margin.
--
-- thread:<t>:heads           hash     family, name, made, version, origin, began, note; "@<namespace>": the line;
--                                     "#<namespace>": how many checkpoints its index has; "!<namespace>": how many
--                                     are pinned, if some are; sizes: see `sizes_of`
-- thread:<t>:log             hash     seq of an operation -> undone ("u" or "-"), data
-- thread:<t>:hidden          hash     operation:n -> a stretch
-- thread:<t>:covers          hash     what the stretches cover together, see `covers_of`
-- thread:<t>:<n>:index       zset     checkpoint id -> seq
-- thread:<t>:<n>:item:<id>   string   the checkpoint as JSON; it begins with what is needed here, see `parse`
-- thread:<t>:<n>:pins        set      ids of pinned checkpoints
-- thread:<t>:<n>:began       hash     checkpoint id -> how many living branches began there
-- thread:<t>:<n>:written     set      ids of checkpoints that have pending writes
-- thread:<t>:<n>:writes:<id> hash     "idx task" -> seq, children, info
-- family:<f>                 hash     seq, format, sweeps, swept, removals, live, unreferenced, generation, last, until,
--                                     turn: until when (microseconds) whose turn it is to change the family,
--                                     sizes: see `family_sizes_of`
-- family:<f>:objects         hash     hash -> epoch, children, body
-- family:<f>:threads         set      names
-- family:<f>:segments            hash     segment -> line (none if it was deleted), its checksum, data
-- family:<f>:shared_states         hash     pair of threads and seq -> children, data
-- family:<f>:line            zset     who waits for a turn: "until lasting token" -> when it came. It ends by itself
-- family:<f>:turn:<token>    stream   not empty: a writer that waits has been given its turn. It ends by itself
-- active                     zset     name of a thread -> microseconds of its last move
-- names                      zset     the same names, all with 0: by name
-- facts                      hash     name of a thread -> the numbers it is found by, "key.number": see facts.py
-- fact:<number>              set      names of the threads that have the number
-- counts                     hash     number -> how many threads have it, so that the loss of a set is noticed
-- ids                        hash     checkpoint id -> the lines that have it
-- alias:<t>                  string   the bucket where a branch is kept, and a word that tells this alias from others
-- aliases                    set      names of the threads that have an alias
-- gone                       zset     marks of the last threads that were deleted -> a number greater than all of theirs
-- life                       string   the shortest time to live (ms) that any family of this bucket was ever given
--
-- A line is "generation head_was_moved digest id"; head_was_moved is "t" or "-", and "-" stands for no digest too.

local base = KEYS[1]
local call = redis.call
local position = 0

local function take()
  position = position + 1
  return ARGV[position]
end

local function take_list()
  local list = {}
  for n = 1, tonumber(take()) do list[n] = take() end
  return list
end

local function escaped(name)
  return (string.gsub(name, "[%%:{}%c]", function(c) return string.format("%%%02X", string.byte(c)) end))
end

local function line_name(name, namespace) return escaped(name) .. ":" .. escaped(namespace) end
local function whole(number) return string.format("%.0f", number) end
local function thread_key(name) return base .. "thread:" .. escaped(name) end
local function line_key(name, namespace) return thread_key(name) .. ":" .. escaped(namespace) end
local function family_key(family) return base .. "family:" .. family end

local function now()
  local time = call("TIME")
  return time[1] * 1000000 + time[2]
end

-- Numbers grow with time, so that none is given twice even if the server lost the last ones.
local function numbers(family, count)
  local first = math.max(tonumber(call("HGET", family, "seq") or 0) + 1, now())
  call("HSET", family, "seq", whole(first + count - 1))
  return first
end

local function corrupted(what) error({ err = "CORRUPTED " .. what }) end

local function parse(item)
  local digest, added, segment, step, children =
    string.match(item, '^{"digest":"(%x+)","added":(%d+),"segment":(%d+),"step":(%-?%d+),"children":"(%x*)"')
  return digest, tonumber(added), segment, step, children
end

local function parse_line(line)
  local generation, head_was_moved, digest, id = string.match(line, "^(%d+) ([-t]) (%S+) (.*)$")
  if not generation then corrupted("the head of a line cannot be read: " .. line) end
  return tonumber(generation), head_was_moved, digest, id
end

local function parse_hidden(stretch)
  local after, to, segment, kind, size, rest = string.match(stretch, "^%x+ (%d+) (%d+) (%d+) %d+ (%a) (%d+) (.*)$")
  if not after then corrupted("a hidden stretch cannot be read") end
  size = tonumber(size)
  return tonumber(after), tonumber(to), segment, kind, string.sub(rest, 1, size), string.sub(rest, size + 1)
end

-- The part of an item that listing shows: all but the root.
local function without_root(item) return string.match(item, '^(.*),"root":"') or item end

-- The digest of a checkpoint that is there.
local function digest_of(line, id)
  local item = call("ZSCORE", line .. ":index", id) and call("GET", line .. ":item:" .. id)
  return item and (parse(item) or "?")
end

local function is_protected(line, id)
  return call("SISMEMBER", line .. ":pins", id) == 1 or call("HEXISTS", line .. ":began", id) == 1
end

local function pairs_of(key)
  local flat, list = call("HGETALL", key), {}
  for n = 1, #flat, 2 do list[#list + 1] = { flat[n], flat[n + 1] } end
  return list
end

-- How many fields a thread's own keys have. It is noted in one of them with every change that may add or remove some, so
-- that the loss of a key or a field is noticed.
local function sizes_of(thread)
  return call("HLEN", thread .. ":heads") .. " " .. call("HLEN", thread .. ":log") .. " " .. call("HLEN", thread .. ":hidden")
    .. " " .. call("HLEN", thread .. ":covers")
end

local function note_sizes(thread)
  if call("EXISTS", thread .. ":heads") == 0 then return end
  call("HSET", thread .. ":heads", "sizes", "")
  call("HSET", thread .. ":heads", "sizes", sizes_of(thread))
end

-- Covers are the union of hidden stretches, so that many of these cost no more than one. They are kept for each namespace,
-- and for each checkpoint that has pending writes which are hidden.
local function cover_field(kind, namespace, writes_of)
  return kind == "c" and "c" .. namespace or "w" .. escaped(namespace) .. ":" .. writes_of
end

local function cover_seal(field, covers) return string.sub(redis.sha1hex(field .. "\n" .. covers), 1, 16) end

-- A cover is a text of 48 digits: segment ("0": all of them), its end, and what it begins after. They stand in order, and those
-- of one segment neither overlap nor touch, so that one is found without a look at the others.
local function covers_of(thread, field)
  local value = call("HGET", thread .. ":covers", field)
  if not value then return "" end
  local covers = string.sub(value, 17)
  if string.sub(value, 1, 16) ~= cover_seal(field, covers) then corrupted("what is hidden does not match its checksum") end
  return covers
end

local function digits(number) return string.format("%016.0f", number) end
local function cover_text(segment, after, upto) return digits(segment) .. digits(upto) .. digits(after) end

local function cover_at(covers, n)
  local text = string.sub(covers, 48 * n - 47, 48 * n)
  return string.sub(text, 1, 16), tonumber(string.sub(text, 33)), tonumber(string.sub(text, 17, 32))
end

-- The place of the first cover of a segment that ends at a number or later, or of what comes after the covers of that segment.
local function cover_place(covers, segment, seq)
  local wanted, low, high = digits(segment) .. digits(seq), 1, #covers / 48 + 1
  while low < high do
    local middle = math.floor((low + high) / 2)
    if string.sub(covers, 48 * middle - 47, 48 * middle - 16) < wanted then low = middle + 1 else high = middle end
  end
  return low
end

-- The first cover of a segment that ends at a number or later: it has that number, or none has.
local function cover_from(covers, segment, seq)
  local found, after, upto = cover_at(covers, cover_place(covers, segment, seq))
  if found ~= digits(segment) then return nil, nil end
  return after, upto
end

-- Where the last cover of all segments ends that ends before a number.
local function end_before(covers, seq)
  local place = cover_place(covers, 0, seq)
  if place == 1 then return nil end
  local _, _, upto = cover_at(covers, place - 1)
  return upto
end

local function is_covered(covers, segment, seq)
  local after = cover_from(covers, segment, seq)
  return after ~= nil and after < seq
end

-- Whether there are covers of single segments.
local function has_segments(covers) return #covers > 0 and cover_at(covers, #covers / 48) ~= digits(0) end

-- Covers end when the stretches do.
local function put_covers(thread, field, covers)
  call("HSET", thread .. ":covers", field, cover_seal(field, covers) .. covers)
  local left = call("PTTL", thread .. ":hidden")
  if left > 0 then call("PEXPIRE", thread .. ":covers", left) end
end

-- Take in a stretch, joined with what it overlaps or touches.
local function cover(thread, stretch)
  local after, upto, segment, kind, namespace, writes_of = parse_hidden(stretch)
  local field = cover_field(kind, namespace, writes_of)
  local covers = covers_of(thread, field)
  local first = cover_place(covers, segment, after)
  local last = first
  while true do
    local found, from, to = cover_at(covers, last)
    if found ~= digits(segment) or from > upto then break end
    after, upto, last = math.min(after, from), math.max(upto, to), last + 1
  end
  local before, behind = string.sub(covers, 1, 48 * (first - 1)), string.sub(covers, 48 * (last - 1) + 1)
  put_covers(thread, field, before .. cover_text(segment, after, upto) .. behind)
end

-- The union of stretches, each of them segment, after and up to.
local function union(stretches)
  table.sort(stretches, function(one, two)
    if one[1] ~= two[1] then return one[1] < two[1] end
    return one[2] < two[2]
  end)
  local joined = {}
  for _, stretch in ipairs(stretches) do
    local last = joined[#joined]
    if last and last[1] == stretch[1] and stretch[2] <= last[3] then
      last[3] = math.max(last[3], stretch[3])
    else
      joined[#joined + 1] = stretch
    end
  end
  for n, stretch in ipairs(joined) do joined[n] = cover_text(unpack(stretch)) end
  return table.concat(joined)
end

-- Make the covers of a thread anew, after stretches have gone.
local function cover_again(thread)
  local fields = {}
  for _, stretch in ipairs(call("HVALS", thread .. ":hidden")) do
    local after, upto, segment, kind, namespace, writes_of = parse_hidden(stretch)
    local field = cover_field(kind, namespace, writes_of)
    fields[field] = fields[field] or {}
    table.insert(fields[field], { tonumber(segment), after, upto })
  end
  call("UNLINK", thread .. ":covers")
  for field, stretches in pairs(fields) do put_covers(thread, field, union(stretches)) end
end

-- What is wrong with the keys of a thread that is there, if they are not as they were noted.
local function damage_of(thread)
  local noted, found = call("HGET", thread .. ":heads", "sizes"), sizes_of(thread)
  if not noted or noted == found then return nil end
  return "keys or fields of the thread are lost: " .. noted .. " are not " .. found
end

-- The same for the index of a line, and for what is pinned there.
local function line_damage_of(thread, namespace)
  local noted = call("HMGET", thread .. ":heads", "#" .. namespace, "!" .. namespace)
  local line = thread .. ":" .. escaped(namespace)
  local found = call("ZCARD", line .. ":index")
  if noted[1] and tonumber(noted[1]) ~= found then return "its index has " .. found .. " of " .. noted[1] .. " checkpoints" end
  if noted[2] and tonumber(noted[2]) ~= call("SCARD", line .. ":pins") then return "pins are lost: there were " .. noted[2] end
  return nil
end

local function check_line_whole(name, namespace)
  local damage = line_damage_of(thread_key(name), namespace)
  if damage then corrupted(damage) end
end

local function note_line(thread, namespace)
  local heads, line = thread .. ":heads", thread .. ":" .. escaped(namespace)
  local is_there = call("HEXISTS", heads, "@" .. namespace) == 1
  local pins = is_there and call("SCARD", line .. ":pins") or 0
  if is_there then call("HSET", heads, "#" .. namespace, call("ZCARD", line .. ":index")) else call("HDEL", heads, "#" .. namespace) end
  if pins > 0 then call("HSET", heads, "!" .. namespace, pins) else call("HDEL", heads, "!" .. namespace) end
end

-- The same after checkpoints that are not pinned have gone, for what was noted before: a new field would be counted too.
local function note_index(thread, namespace)
  local noted = "#" .. namespace
  if call("HEXISTS", thread .. ":heads", noted) == 0 then return end
  call("HSET", thread .. ":heads", noted, call("ZCARD", thread .. ":" .. escaped(namespace) .. ":index"))
end

-- How many threads, segments and common states a family has.
local function family_sizes_of(family)
  return call("SCARD", family .. ":threads") .. " " .. call("HLEN", family .. ":segments") .. " " .. call("HLEN", family .. ":shared_states")
end

local function note_family_sizes(family)
  if call("EXISTS", family) == 1 then call("HSET", family, "sizes", family_sizes_of(family)) end
end

local function family_damage_of(family)
  local noted = call("HGET", family, "sizes")
  if noted and noted ~= family_sizes_of(family) then return "keys or fields of the family are lost" end
  return nil
end

local function check_family_whole(family)
  local damage = family_damage_of(family)
  if damage then corrupted(damage) end
end

-- The family of a thread, if it is there: a family whose time is over takes its threads with it.
local function alive(name)
  local heads = thread_key(name) .. ":heads"
  local family = call("HGET", heads, "family")
  if not family then return nil end
  if call("EXISTS", family_key(family)) == 1 then
    local damage = damage_of(thread_key(name))
    if damage then corrupted(damage) end
    return family
  end
  if call("PTTL", heads) == -1 then corrupted("family " .. family .. " is missing, but not its threads") end
  return nil
end

local function alias_of(name) return call("GET", base .. "alias:" .. escaped(name)) or "" end

-- What is left of a thread that is not there, though it did not end. (Where some end, nobody can tell.)
local function remains_of(name)
  if call("EXISTS", base .. "life") == 1 then return nil end
  if call("ZSCORE", base .. "active", name) then return "the head of the thread is missing" end
  if alias_of(name) == "" and call("SISMEMBER", base .. "aliases", name) == 1 then return "the alias of the thread is missing" end
  return nil
end

local function absent(name)
  local remains = remains_of(name)
  if remains then corrupted(remains) end
  return { "absent", alias_of(name) }
end

local function namespaces(name)
  local list = {}
  for _, field in ipairs(call("HKEYS", thread_key(name) .. ":heads")) do
    if string.sub(field, 1, 1) == "@" then list[#list + 1] = string.sub(field, 2) end
  end
  return list
end

-- Every key of a thread: those that carry the time to live, and those that live longer.
local function keys_of(name)
  local thread, first, later = thread_key(name), {}, {}
  first[1] = thread .. ":heads"
  later[1] = thread .. ":log"
  later[2] = thread .. ":hidden"
  later[3] = thread .. ":covers"
  for _, namespace in ipairs(namespaces(name)) do
    local line = line_key(name, namespace)
    first[#first + 1] = line .. ":index"
    for _, part in ipairs({ ":pins", ":began", ":written" }) do later[#later + 1] = line .. part end
    for _, id in ipairs(call("ZRANGE", line .. ":index", 0, -1)) do later[#later + 1] = line .. ":item:" .. id end
    for _, id in ipairs(call("SMEMBERS", line .. ":written")) do later[#later + 1] = line .. ":writes:" .. id end
  end
  return first, later
end

local function remove_keys(keys)
  for n = 1, #keys, 1000 do call("UNLINK", unpack(keys, n, math.min(n + 999, #keys))) end
end

local function set_life(keys, life)
  for _, key in ipairs(keys) do
    if life == 0 then call("PERSIST", key) else call("PEXPIRE", key, life) end
  end
end

-- The numbers that a thread is found by, whatever they were; nil: it is not found any more.
local function set_facts(name, facts)
  local held, new = call("HGET", base .. "facts", name) or "", {}
  for label in string.gmatch(facts or "", "%.(%d+)") do new[label] = true end
  for label in string.gmatch(held, "%.(%d+)") do
    if new[label] then
      new[label] = nil
    elseif call("SREM", base .. "fact:" .. label, name) == 1 and call("HINCRBY", base .. "counts", label, -1) <= 0 then
      call("HDEL", base .. "counts", label)
    end
  end
  for label in pairs(new) do
    if call("SADD", base .. "fact:" .. label, name) == 1 then call("HINCRBY", base .. "counts", label, 1) end
  end
  if facts then
    call("HSET", base .. "facts", name, facts)
    call("ZADD", base .. "names", 0, name)
  else
    call("HDEL", base .. "facts", name)
    call("ZREM", base .. "names", name)
  end
end

-- A thread is not listed any more.
local function delist(name)
  call("ZREM", base .. "active", name)
  set_facts(name, nil)
end

-- What families whose time is over left in the indexes of the bucket goes a little at a time.
local function purge()
  for _, name in ipairs(call("ZRANDMEMBER", base .. "active", 2)) do
    local family = redis.pcall("HGET", thread_key(name) .. ":heads", "family")
    if not family or type(family) == "string" and call("EXISTS", family_key(family)) == 0 then delist(name) end
  end
  for _, id in ipairs(call("HRANDFIELD", base .. "ids", 2)) do
    local left = {}
    for line in string.gmatch(call("HGET", base .. "ids", id), "[^\n]+") do
      if call("EXISTS", base .. "thread:" .. line .. ":item:" .. id) == 1 then left[#left + 1] = line end
    end
    if #left == 0 then call("HDEL", base .. "ids", id) else call("HSET", base .. "ids", id, table.concat(left, "\n")) end
  end
end

-- Note that families of this bucket end some time: a thread that is missing may have ended.
local function note_life(life)
  local held = tonumber(call("GET", base .. "life") or life + 1)
  if life > 0 and life < held then call("SET", base .. "life", whole(life)) end
end

-- Give everything of a family twice its time to live.
local function renew(family, life, time)
  note_life(life)
  set_life({ family .. ":objects", family .. ":threads", family .. ":segments", family .. ":shared_states" }, life * 2)
  for _, name in ipairs(call("SMEMBERS", family .. ":threads")) do
    for _, keys in ipairs({ keys_of(name) }) do set_life(keys, life * 2) end
  end
  if life == 0 then call("HDEL", family, "until") else call("HSET", family, "until", whole(time + life * 2000)) end
end

-- Slide the family's time to live. Its own key carries it exactly and decides; head and index of the line that moves
-- carry it too. Everything else lives longer: not shorter than `until`, which is renewed when it comes near. Another
-- process may give the family another time. Returns whether all was renewed.
local function touch(family_name, name, namespace, life)
  local family, line = family_key(family_name), line_name(name, namespace)
  local held = call("HMGET", family, "until", "last")
  if life == 0 and not held[1] then return false end
  local time, ends = now(), tonumber(held[1])
  local is_due = life == 0 or not ends or ends < time + life * 1500
  if is_due then
    renew(family, life, time)
  else
    if ends > time + life * 2000 then call("HSET", family, "until", whole(time + life * 2000)) end
    set_life({ family .. ":objects" }, life * 2)
    if held[2] and held[2] ~= line then
      local last = base .. "thread:" .. held[2]
      set_life({ string.match(last, "^(.*):[^:]*$") .. ":heads", last .. ":index" }, life * 2)
    end
  end
  set_life({ family, thread_key(name) .. ":heads", base .. "thread:" .. line .. ":index" }, life)
  if held[2] ~= line then call("HSET", family, "last", line) end
  if life > 0 then purge() end
  return is_due
end

local function add_id(id, name, namespace)
  local line = line_name(name, namespace)
  local held = call("HGET", base .. "ids", id)
  if not held then
    call("HSET", base .. "ids", id, line)
  elseif not string.find("\n" .. held .. "\n", "\n" .. line .. "\n", 1, true) then
    call("HSET", base .. "ids", id, held .. "\n" .. line)
  end
end

local function remove_id(id, name, namespace)
  local line, left = line_name(name, namespace), {}
  for other in string.gmatch(call("HGET", base .. "ids", id) or "", "[^\n]+") do
    if other ~= line then left[#left + 1] = other end
  end
  if #left == 0 then call("HDEL", base .. "ids", id) else call("HSET", base .. "ids", id, table.concat(left, "\n")) end
end

local function put_item(key, item, life)
  if life == 0 then call("SET", key, item) else call("SET", key, item, "PX", life * 2) end
end

-- Objects come as hash, value; the epoch before the value tells those that came after a sweep began.
local function put_objects(family, epoch, list, first)
  epoch = struct.pack(">I4", tonumber(epoch or 0))
  for from = first, #list, 1000 do
    local part = {}
    for n = from, math.min(from + 998, #list - 1), 2 do
      part[#part + 1] = list[n]
      part[#part + 1] = epoch .. list[n + 1]
    end
    call("HSET", family .. ":objects", unpack(part))
  end
end

local function add_objects(family, list, first) put_objects(family, call("HGET", family, "sweeps"), list, first) end

local function children_of(value)
  if #value < 8 then corrupted("an object is cut short") end
  local size = struct.unpack(">I4", value, 5)
  return string.sub(value, 9, 8 + size)
end

local function each_hash(joined, visit)
  for n = 1, #joined, 16 do visit(string.sub(joined, n, n + 15)) end
end

-- Everything below these hashes, or just them, as hash, value.
local function fetch(family, pending, below)
  local found, seen = {}, {}
  for _, hash in ipairs(pending) do seen[hash] = true end
  while #pending > 0 do
    local deeper = {}
    for first = 1, #pending, 1000 do
      local last = math.min(first + 999, #pending)
      local values = call("HMGET", family .. ":objects", unpack(pending, first, last))
      for n = 1, last - first + 1 do
        local value = values[n]
        if value then
          found[#found + 1] = pending[first + n - 1]
          found[#found + 1] = value
          if below then
            each_hash(children_of(value), function(hash)
              if not seen[hash] then
                seen[hash] = true
                deeper[#deeper + 1] = hash
              end
            end)
          end
        end
      end
    end
    pending = deeper
  end
  return found
end

local function from_hex(text)
  return (string.gsub(text, "%x%x", function(pair) return string.char(tonumber(pair, 16)) end))
end

local function hashes_of(item)
  local _, _, _, _, children = parse(item)
  if not children then corrupted("a checkpoint's item cannot be read") end
  local list = {}
  each_hash(from_hex(children), function(hash) list[#list + 1] = hash end)
  return list
end

-- Delete checkpoints of a line with their writes; returns how many there were.
local function remove(name, namespace, family, ids, spare)
  local line, count, freed = line_key(name, namespace), 0, 0
  local head = select(4, parse_line(call("HGET", thread_key(name) .. ":heads", "@" .. namespace) or "0 - - "))
  for _, id in ipairs(ids) do
    if not (spare and (id == head or is_protected(line, id))) then
      local item = call("GET", line .. ":item:" .. id)
      if call("ZREM", line .. ":index", id) == 1 then
        count = count + 1
        freed = freed + (item and select(2, parse(item)) or 0)
        call("UNLINK", line .. ":item:" .. id)
        call("SREM", line .. ":pins", id)
        call("HDEL", line .. ":began", id)
        remove_id(id, name, namespace)
      end
      if call("SREM", line .. ":written", id) == 1 then call("UNLINK", line .. ":writes:" .. id) end
    end
  end
  if freed > 0 then call("HINCRBY", family_key(family), "unreferenced", freed) end
  call("HDEL", family_key(family), "swept")
  return count
end

local function prune(name, namespace, family, seqs)
  local ids = {}
  for _, seq in ipairs(seqs) do
    for _, id in ipairs(call("ZRANGEBYSCORE", line_key(name, namespace) .. ":index", seq, seq)) do ids[#ids + 1] = id end
  end
  return remove(name, namespace, family, ids, true)
end

-- Visit the hidden stretches of a thread.
local function each_hidden(name, visit)
  for _, field in ipairs(pairs_of(thread_key(name) .. ":hidden")) do visit(field[1], parse_hidden(field[2])) end
end

local function segment_of(line, id)
  local _, _, segment = parse(call("GET", line .. ":item:" .. id) or "")
  if segment == "0" then segment = whole(tonumber(call("ZSCORE", line .. ":index", id))) end
  return segment
end

-- Return what tells whether a checkpoint of a line is hidden.
local function hidden_in(name, namespace)
  local line, covers = line_key(name, namespace), covers_of(thread_key(name), cover_field("c", namespace))
  if covers == "" then return function() return false end end
  local in_segments = has_segments(covers)
  return function(id, seq)
    if is_covered(covers, 0, seq) then return true end
    local segment = in_segments and segment_of(line, id)
    return segment and is_covered(covers, segment, seq) or false
  end
end

local function hides_any(line, after, to, segment, kind, writes_of)
  if kind == "w" then return call("SISMEMBER", line .. ":written", writes_of) == 1 end
  local index, low, high = line .. ":index", "(" .. whole(after), whole(to)
  if segment == "0" then return call("ZCOUNT", index, low, high) > 0 end
  for _, id in ipairs(call("ZRANGEBYSCORE", index, low, high)) do
    if segment == segment_of(line, id) then return true end
  end
  return false
end

-- After deletion: move a head that is gone to the newest left, and drop what nothing is left of.
local function settle(name, namespace, family)
  local heads, line = thread_key(name) .. ":heads", line_key(name, namespace)
  local generation, _, digest, head = parse_line(call("HGET", heads, "@" .. namespace))
  if digest ~= "-" and not call("ZSCORE", line .. ":index", head) then
    digest, head = "-", ""
    local left, is_hidden = call("ZREVRANGE", line .. ":index", 0, -1, "WITHSCORES"), hidden_in(name, namespace)
    for n = 1, #left, 2 do
      if not is_hidden(left[n], tonumber(left[n + 1])) then
        head = left[n]
        digest = parse(call("GET", line .. ":item:" .. head) or "") or "?"
        break
      end
    end
    generation = generation + 1
    call("HSET", heads, "@" .. namespace, whole(generation) .. " t " .. digest .. " " .. head)
  end
  local is_less_hidden = false
  each_hidden(name, function(field, after, to, segment, kind, where, writes_of)
    if where == namespace and not hides_any(line, after, to, segment, kind, writes_of) then
      call("HDEL", thread_key(name) .. ":hidden", field)
      is_less_hidden = true
    end
  end)
  if is_less_hidden then cover_again(thread_key(name)) end
  if call("ZCARD", line .. ":index") > 0 or call("SCARD", line .. ":written") > 0 then return end
  local own = line_name(name, namespace) .. "\n"
  for _, segment in ipairs(pairs_of(family_key(family) .. ":segments")) do
    if string.sub(segment[2], 1, #own) == own then
      call("HSET", family_key(family) .. ":segments", segment[1], string.sub(segment[2], #own))
    end
  end
  -- A line of this name that comes later goes on counting, so that it never seems to go backwards.
  local highest = tonumber(call("HGET", family_key(family), "generation") or 0)
  call("HSET", family_key(family), "generation", whole(math.max(highest, generation)))
  call("HDEL", heads, "@" .. namespace, "#" .. namespace, "!" .. namespace)
  remove_keys({ line .. ":index", line .. ":pins", line .. ":began", line .. ":written" })
end

-- Where a branch began: line, checkpoint id and its seq.
local function origin_of(name)
  local began = call("HGET", thread_key(name) .. ":heads", "began")
  local seq, line, id = string.match(began or "", "^(%d+) ([^\n]*)\n(.*)$")
  if began and not seq then corrupted("where a branch began cannot be read") end
  return line and base .. "thread:" .. line, id, seq
end

-- A branch lives no more, or not from there: its beginning is protected for it no longer. Not one of the same name that
-- came later.
local function release_origin(name)
  local line, id, seq = origin_of(name)
  if not line then return end
  if call("ZSCORE", line .. ":index", id) == seq and call("HINCRBY", line .. ":began", id, -1) <= 0 then
    call("HDEL", line .. ":began", id)
  end
end

local marks_max = 128

-- How a thread that was deleted is named: not by its name, which is deleted too.
local function mark_of(name) return string.sub(redis.sha1hex(name), 1, 20) end

-- Leave a mark of a thread that is deleted, by which those who saw it tell that from a loss. The last ones are kept.
local function mark_deleted(name, family)
  local number = math.max(now(), tonumber(call("HGET", family, "seq") or 0))
  call("ZADD", base .. "gone", whole(number), mark_of(name))
  local surplus = call("ZCARD", base .. "gone") - marks_max
  if surplus > 0 then call("ZREM", base .. "gone", unpack(call("ZRANGE", base .. "gone", 0, surplus - 1))) end
end

local function leave_family(name, family)
  local damage = family_damage_of(family)
  mark_deleted(name, family)
  for _, field in ipairs(call("HKEYS", family .. ":shared_states")) do
    local size, rest = string.match(field, "^%d+ (%d+) (.*)$")
    local one, two = string.sub(rest, 1, tonumber(size)), string.sub(rest, tonumber(size) + 1)
    if one == name or two == name then call("HDEL", family .. ":shared_states", field) end
  end
  call("SREM", family .. ":threads", name)
  if damage then return end -- the family may have more threads than its set of them says
  if call("SCARD", family .. ":threads") == 0 then
    remove_keys({ family, family .. ":objects", family .. ":segments", family .. ":shared_states", family .. ":threads" })
  end
  note_family_sizes(family)
end

local function drop_thread(name, family)
  release_origin(name)
  leave_family(name, family)
  local thread = thread_key(name)
  remove_keys({ thread .. ":heads", thread .. ":log", thread .. ":hidden", thread .. ":covers" })
  delist(name)
end

-- What a family whose time is over left behind under this name would mix with what comes now. Items may stay: without
-- an index they count for nothing, and their own time ends too.
local function clear_thread(name)
  local thread = thread_key(name)
  remove_keys({ thread .. ":heads", thread .. ":log", thread .. ":hidden", thread .. ":covers" })
end

local function clear_line(name, namespace)
  local line = line_key(name, namespace)
  for _, id in ipairs(call("SMEMBERS", line .. ":written")) do call("UNLINK", line .. ":writes:" .. id) end
  remove_keys({ line .. ":index", line .. ":pins", line .. ":began", line .. ":written" })
end

local function head_of(name, namespace)
  local family = alive(name)
  local raw = family and call("HGET", thread_key(name) .. ":heads", "@" .. namespace)
  if not raw then return { family or "", "", "", "" } end
  local _, _, digest, id = parse_line(raw)
  if digest == "-" then return { family, raw, "", "" } end
  local line = line_key(name, namespace)
  return { family, raw, call("ZSCORE", line .. ":index", id) or "", call("GET", line .. ":item:" .. id) or "" }
end

local kinds = { H = "hash", Z = "zset", S = "set" }

-- A key of another type in the way must be met before anything is written.
local function check_type(key, kind)
  local found = call("TYPE", key).ok
  if found ~= "none" and found ~= kind then error({ err = "WRONGTYPE " .. key .. " is a " .. found }) end
end

local function check_bucket()
  check_type(base .. "active", "zset")
  check_type(base .. "names", "zset")
  check_type(base .. "facts", "hash")
  check_type(base .. "counts", "hash")
  check_type(base .. "ids", "hash")
  check_type(base .. "gone", "zset")
  check_type(base .. "life", "string")
  check_type(base .. "aliases", "set")
end

local function check_line(line)
  check_type(line .. ":index", "zset")
  check_type(line .. ":pins", "set")
  check_type(line .. ":began", "hash")
  check_type(line .. ":written", "set")
end

local function check_origin(name)
  local line = origin_of(name)
  if line then check_line(line) end
end

local function check_family(family)
  for _, part in ipairs({ "", ":objects", ":segments", ":shared_states" }) do check_type(family .. part, "hash") end
  check_type(family .. ":threads", "set")
end

-- How long to wait, in milliseconds, if a writer other than the one with this token has its turn in a family; else nil.
local function others_turn(held, token)
  local ends, owner = string.match(held or "", "^(%d+) (.*)$")
  if not ends or owner == token then return nil end
  local left = tonumber(ends) - now()
  return left > 0 and { "wait", math.ceil(left / 1000) } or nil
end

local function has_turn(held, token) return string.match(held or "", "^%d+ (.*)$") == token end

local function set_turn(family, token, milliseconds)
  call("HSET", family, "turn", whole(now() + milliseconds * 1000) .. " " .. token)
end

-- Who has waited longest for a turn in a family and still does: entry, token, for how long. Those whose time is over go.
local function first_in_line(family)
  while true do
    local entry = call("ZRANGE", family .. ":line", 0, 0)[1]
    if not entry then return nil end
    local ends, milliseconds, token = string.match(entry, "^(%d+) (%d+) (.*)$")
    if ends and tonumber(ends) > now() then return entry, token, tonumber(milliseconds) end
    call("ZREM", family .. ":line", entry)
  end
end

local function entry_of(family, token)
  for _, entry in ipairs(call("ZRANGE", family .. ":line", 0, -1)) do
    if string.match(entry, "^%d+ %d+ (.*)$") == token then return entry end
  end
  return nil
end

-- Who is far, or was passed by others too often, says so by its token.
local function must_wait(token) return string.sub(token, 1, 1) == "!" end

-- Whether one of those waits, or has its turn.
local function is_waited_for(family)
  if must_wait(string.match(call("HGET", family, "turn") or "", "^%d+ (.*)$") or "") then return true end
  for _, entry in ipairs(call("ZRANGE", family .. ":line", 0, -1)) do
    if must_wait(string.match(entry, "^%d+ %d+ (.*)$") or "") then return true end
  end
  return false
end

-- Get in line, for so many milliseconds, unless that was done before.
local function line_up(family, token, milliseconds, patience)
  local line = family .. ":line"
  if entry_of(family, token) then return end
  local left = call("PTTL", line)
  call("ZADD", line, whole(now()), whole(now() + patience * 1000) .. " " .. milliseconds .. " " .. token)
  call("PEXPIRE", line, math.max(left, patience))
end

-- A turn is over: the next one is that of whoever has waited longest, who is told. So nobody comes in between, and nobody
-- has to look often. (By a stream, since to wait for one changes nothing: with a log on disk every change takes its time.)
local function hand_over(family)
  if call("EXISTS", family) == 0 then return end
  local entry, token, milliseconds = first_in_line(family)
  if not entry then
    call("HDEL", family, "turn")
    return
  end
  call("ZREM", family .. ":line", entry)
  set_turn(family, token, milliseconds)
  redis.pcall("XADD", family .. ":turn:" .. token, "*", "for", token)  -- if that is not allowed it is found by looking
  call("PEXPIRE", family .. ":turn:" .. token, milliseconds)
end

local verbs = {}

-- End a turn that was not used, or leave the line.
function verbs.end_turn()
  local family, token = family_key(take()), take()
  local entry = entry_of(family, token)
  if entry then call("ZREM", family .. ":line", entry) end
  if has_turn(call("HGET", family, "turn"), token) then hand_over(family) end
  return { "done" }
end

-- The usual commit: a checkpoint that follows the head its writer saw. Answers "stale" and the head there is if that is
-- another one, was moved or replaced, if the id is there already, if the family ends some time and its writer does not
-- know, or if a fence is not the head of its namespace of the thread any more. The head moves last: if a key of another type is in the way, nothing is to be seen of the change. It uses few
-- of the functions above, since making them takes time with each call.
local function put(first, life, is_plain, token)
  local line_name, field, family_name, expected, raw, id, item, name, fenced, fence = unpack(ARGV, first, first + 9)
  local line, family = base .. "thread:" .. line_name, base .. "family:" .. family_name
  local heads, index = string.match(line, "^(.*):") .. ":heads", line .. ":index"
  local counted = "#" .. string.sub(field, 2)
  local held = call("HMGET", heads, "family", field, counted, fenced)
  local own = call("HMGET", family, "seq", "sweeps", "until", "turn")
  if held[1] ~= family_name or not held[2] or not own[1] then return { "stale", "", "", "", "" } end
  if fenced ~= "" and string.match(held[4] or "", "^%d+ %S (%S+ .*)$") ~= fence then
    return { "stale", "", "", "", "" }
  end
  if held[2] ~= expected or (is_plain and own[3]) or call("ZSCORE", index, id) then
    local head = string.match(held[2], "^%d+ %S %S+ (.*)$") or ""
    return { "stale", family_name, held[2], call("ZSCORE", index, head) or "", call("GET", line .. ":item:" .. head) or "" }
  end
  local waiting = own[4] and others_turn(own[4], token)
  if waiting then return waiting end
  local count = call("ZCARD", index)
  if held[3] and tonumber(held[3]) ~= count then corrupted("its index has " .. count .. " of " .. held[3] .. " checkpoints") end
  local time = now()
  local seq = whole(math.max(tonumber(own[1]) + 1, time))
  call("HSET", family, "seq", seq)
  put_objects(family, own[2], ARGV, first + 10)
  put_item(line .. ":item:" .. id, item, life)
  if call("HSETNX", base .. "ids", id, line_name) == 0 then
    local lines = call("HGET", base .. "ids", id)
    if not string.find("\n" .. lines .. "\n", "\n" .. line_name .. "\n", 1, true) then
      call("HSET", base .. "ids", id, lines .. "\n" .. line_name)
    end
  end
  call("ZADD", base .. "active", whole(time), name)
  call("ZADD", index, seq, id)
  call("HSET", heads, field, raw, unpack(held[3] and { counted, count + 1 } or {}))
  if own[4] and not token then call("HDEL", family, "turn") end  -- it was over
  return { "done", seq, "0" }
end

function verbs.put()
  return put(1, 0, true)
end

-- The same for families that end some time, and with checkpoints to let go.
local function put_and_prune(token)
  local life, name, namespace, family, pruned = tonumber(take()), take(), take(), take(), take_list()
  check_bucket()
  check_line(line_key(name, namespace))
  check_family(family_key(family))
  local reply = put(position + 1, life, false, token)
  if reply[1] == "done" then
    prune(name, namespace, family, pruned)
    note_index(thread_key(name), namespace)
    if touch(family, name, namespace, life) then reply[3] = "1" end
    if token then hand_over(family_key(family)) end  -- it is used now
  end
  return reply
end

function verbs.put_and_prune()
  return put_and_prune(nil)
end

function verbs.put_in_turn()
  return put_and_prune(take())
end

-- Attach writes to a checkpoint of a line that exists.
function verbs.writes()
  local name, namespace, id, life = take(), take(), take(), tonumber(take())
  local other, other_namespace, other_id, digest = take(), take(), take(), take()
  local objects, writes = take_list(), take_list()
  local family_name = alive(name)
  if not family_name then return absent(name) end
  if call("HEXISTS", thread_key(name) .. ":heads", "@" .. namespace) == 0 then return { "missing" } end
  if digest ~= "" then
    local there = alive(other) == family_name and digest_of(line_key(other, other_namespace), other_id)
    if there ~= digest then return { "base" } end
  end
  local family, line = family_key(family_name), line_key(name, namespace)
  check_bucket()
  check_line(line)
  check_family(family)
  check_type(line .. ":writes:" .. id, "hash")
  add_objects(family, objects, 1)
  call("HDEL", family, "swept")
  local seq = numbers(family, #writes / 3)
  for n = 1, #writes, 3 do
    local value = whole(seq + (n - 1) / 3) .. " " .. writes[n + 2]
    call(writes[n] == "last" and "HSET" or "HSETNX", line .. ":writes:" .. id, writes[n + 1], value)
  end
  call("SADD", line .. ":written", id)
  if life > 0 then set_life({ line .. ":written", line .. ":writes:" .. id }, life * 2) end
  return { "done", touch(family_name, name, namespace, life) and "1" or "0", family_name }
end

local function is_stale(check)
  local kind, key, field, expected = unpack(check)
  local held
  if kind == "field" then
    held = call("HGET", key, field)
  elseif kind == "text" then
    held = call("GET", key)
  elseif kind == "item" then
    held = call("ZSCORE", key .. ":index", field)
    held = held and held .. " " .. (digest_of(key, field) or "")
  else
    held = tostring(call("EXISTS", key))
  end
  return (held or "") ~= expected
end

local actions = {
  id = add_id,
  release = release_origin,
  clear = clear_thread,
  clear_line = clear_line,
  -- A stretch was hidden; some are shown again:
  cover = function(name, stretch) cover(thread_key(name), stretch) end,
  cover_again = function(name) cover_again(thread_key(name)) end,
  active = function(name, time) call("ZADD", base .. "active", time or whole(now()), name) end,
  facts = set_facts,
  -- The rest is for threads that come from another store. Checkpoints go:
  remove = function(name, namespace, family, ...) remove(name, namespace, family, { ... }, false) end,
  -- A namespace goes with everything:
  drop = function(name, namespace, family)
    remove(name, namespace, family, call("ZRANGE", line_key(name, namespace) .. ":index", 0, -1), false)
    clear_line(name, namespace)
    call("HDEL", thread_key(name) .. ":heads", "@" .. namespace)
  end,
  -- Pending writes go:
  unwrite = function(name, namespace)
    local line = line_key(name, namespace)
    for _, id in ipairs(call("SMEMBERS", line .. ":written")) do call("UNLINK", line .. ":writes:" .. id) end
    call("UNLINK", line .. ":written")
  end,
  -- These, by seq, and no others are pinned:
  pin = function(name, namespace, ...)
    local line = line_key(name, namespace)
    call("UNLINK", line .. ":pins")
    for _, seq in ipairs({ ... }) do
      for _, id in ipairs(call("ZRANGEBYSCORE", line .. ":index", seq, seq)) do call("SADD", line .. ":pins", id) end
    end
  end,
}

local function check_command(command)
  if command[1] == "release" then check_origin(command[2]) end
  if command[1] == "cover" or command[1] == "cover_again" then check_type(thread_key(command[2]) .. ":covers", "hash") end
  local kind = kinds[string.sub(command[1], 1, 1)]
  if kind and command[1] ~= "SET" then check_type(base .. command[2], kind) end
end

local function unescaped(name)
  return (string.gsub(name, "%%(%x%x)", function(code) return string.char(tonumber(code, 16)) end))
end

local about_lines = { id = 2, clear_line = 1, remove = 1, drop = 1 }

-- The threads and lines whose keys commands change.
local function touched_by(commands)
  local threads, lines = {}, {}
  for _, command in ipairs(commands) do
    local at = about_lines[command[1]]
    local thread, namespace
    if at then
      thread, namespace = thread_key(command[at + 1]), command[at + 2]
    elseif not actions[command[1]] and command[1] ~= "objects" then
      local name, part = string.match(command[2], "^thread:([^:]*):([^:]*):")
      thread = string.match(command[2], "^(thread:[^:]*):")
      thread = thread and base .. thread
      namespace = name and unescaped(part)
    end
    if thread then threads[thread] = true end
    if namespace then lines[thread .. "\n" .. namespace] = { thread, namespace } end
    if command[1] == "HSET" and thread and string.sub(command[3], 1, 1) == "@" then
      lines[thread .. "\n" .. string.sub(command[3], 2)] = { thread, string.sub(command[3], 2) }
    end
  end
  return threads, lines
end

-- What is damaged is not changed: counting anew would hide it. (Of what has ended, parts may be left.)
local function check_touched(threads, lines, family)
  local function is_alive(thread)
    local own = call("HGET", thread .. ":heads", "family")
    return own and call("EXISTS", family_key(own)) == 1
  end
  for thread in pairs(threads) do
    local damage = is_alive(thread) and damage_of(thread)
    if damage then corrupted(damage) end
  end
  for _, line in pairs(lines) do
    local damage = is_alive(line[1]) and line_damage_of(unpack(line))
    if damage then corrupted(damage) end
  end
  check_family_whole(family)
end

-- A change that was planned on what its writer saw: checks, then commands; all or nothing.
local function commit(token)
  local checks, commands = {}, {}
  for n = 1, tonumber(take()) do checks[n] = { take(), base .. take(), take(), take() } end
  for n = 1, tonumber(take()) do commands[n] = take_list() end
  local family, name, namespace, life, pruned = take(), take(), take(), tonumber(take()), take_list()
  for _, check in ipairs(checks) do
    if is_stale(check) then return { "stale" } end
  end
  check_bucket()
  check_line(line_key(name, namespace))
  check_family(family_key(family))
  local held = call("HGET", family_key(family), "turn")
  local waiting = others_turn(held, token)
  if waiting then return waiting end
  for _, command in ipairs(commands) do check_command(command) end
  local threads, lines = touched_by(commands)
  if #pruned > 0 then
    threads[thread_key(name)] = true
    lines[thread_key(name) .. "\n" .. namespace] = { thread_key(name), namespace }
  end
  check_touched(threads, lines, family_key(family))
  for _, command in ipairs(commands) do
    if actions[command[1]] then
      actions[command[1]](unpack(command, 2))
    elseif command[1] == "objects" then
      add_objects(base .. command[2], command, 3)
    else
      call(command[1], base .. command[2], unpack(command, 3))
      if life > 0 then call("PEXPIRE", base .. command[2], life * 2) end
    end
  end
  if #pruned > 0 then prune(name, namespace, family, pruned) end
  if held then hand_over(family_key(family)) end
  if family ~= "" then call("HDEL", family_key(family), "swept") end
  for _, line in pairs(lines) do note_line(unpack(line)) end
  for thread in pairs(threads) do note_sizes(thread) end
  note_family_sizes(family_key(family))
  return { "done", touch(family, name, namespace, life) and "1" or "0" }
end

function verbs.commit()
  return commit(nil)
end

function verbs.commit_in_turn()
  return commit(take())
end

-- What a planned change starts from: the thread's own fields, its hidden stretches, and the head of one line.
function verbs.look()
  local name, namespace = take(), take()
  local family = alive(name)
  if not family then
    local remains = call("HGET", thread_key(name) .. ":heads", "family") or ""
    return { "absent", absent(name)[2], remains }
  end
  check_line_whole(name, namespace)
  local head = head_of(name, namespace)
  local generation = call("HGET", family_key(family), "generation") or ""
  local facts = call("HGET", base .. "facts", name) or "?"
  return { "found", call("HGETALL", thread_key(name) .. ":heads"), generation, head[3], head[4], facts }
end

-- The time, and the generation from which new lines of a family count on.
function verbs.begin()
  return { whole(now()), call("HGET", family_key(take()), "generation") or "" }
end

function verbs.numbers()
  local family = family_key(take())
  if call("EXISTS", family) == 0 then return "" end
  return whole(numbers(family, tonumber(take())))
end

-- One field, key or set of a thread or family, as it is.
function verbs.get()
  local command, key = take(), base .. take()
  return call(command, key, unpack(ARGV, position + 1))
end

function verbs.checkpoint()
  local name, namespace, id = take(), take(), take()
  local family, line = alive(name), line_key(name, namespace)
  if not family then return absent(name) end
  local item = call("GET", line .. ":item:" .. id)
  local seq = call("ZSCORE", line .. ":index", id)
  if not seq then return { "none" } end
  return { "found", family, seq, item or "", tostring(call("SISMEMBER", line .. ":pins", id)) }
end

-- Which numbers of a checkpoint's pending writes are hidden: after, up to, and so on.
local function hidden_writes(name, namespace, id)
  local covers, spans = covers_of(thread_key(name), cover_field("w", namespace, id)), {}
  for n = 1, #covers / 48 do
    local _, after, upto = cover_at(covers, n)
    spans[#spans + 1] = whole(after)
    spans[#spans + 1] = whole(upto)
  end
  return spans
end

-- A checkpoint that is there, whole, and what of it is hidden.
local function loaded(name, namespace, id, writes)
  local line = line_key(name, namespace)
  local seq = call("ZSCORE", line .. ":index", id)
  if not seq then return nil end
  local item, pinned = call("GET", line .. ":item:" .. id) or "", tostring(call("SISMEMBER", line .. ":pins", id))
  local attached = writes == "1" and call("HGETALL", line .. ":writes:" .. id) or {}
  if writes == "1" and #attached == 0 and call("SISMEMBER", line .. ":written", id) == 1 then
    corrupted("the pending writes of a checkpoint are missing")
  end
  local hidden = hidden_in(name, namespace)(id, tonumber(seq)) and "1" or "0"
  return { id, seq, item, pinned, attached, hidden, #attached > 0 and hidden_writes(name, namespace, id) or {} }
end

-- Within a segment order of arrival is ancestry: unless the head was moved, nothing of its segment comes after it.
local function check_newest(name, namespace, raw)
  local _, head_was_moved, _, head = parse_line(raw)
  local line = line_key(name, namespace)
  local newest = call("ZREVRANGE", line .. ":index", 0, 0)[1]
  if head_was_moved == "t" or not newest or newest == head or call("HEXISTS", thread_key(name) .. ":heads", "incoming") == 1 then return end
  if segment_of(line, newest) == segment_of(line, head) then corrupted("its head is older than the newest checkpoint that follows it") end
end

-- A checkpoint (without an id: the head) with what was asked for.
local function read_checkpoint(name, namespace, which, id, objects, writes)
  local family = alive(name)
  if not family then return absent(name) end
  local raw = call("HGET", thread_key(name) .. ":heads", "@" .. namespace)
  if not raw then return { "none" } end
  if which == "head" then
    local _, _, digest, head = parse_line(raw)
    id = head
    if digest == "-" then return { "none", family, raw, {} } end
  end
  check_line_whole(name, namespace)
  if which == "head" then check_newest(name, namespace, raw) end
  local row = loaded(name, namespace, id, writes)
  if not row then
    if which == "head" then corrupted("the head is not in the index") end
    return { "none", family, raw, {} }
  end
  local found = objects == "1" and row[3] ~= "" and fetch(family_key(family), hashes_of(row[3]), true) or {}
  return { "found", family, raw, { row }, found }
end

function verbs.load()
  local name, namespace, which, id, objects, writes = take(), take(), take(), take(), take(), take()
  return read_checkpoint(name, namespace, which, id, objects, writes)
end

-- Give a writer its turn: until it is over, or was used by a change, no other writer changes the family. Who has died
-- in the middle of it is waited for no longer than that. A turn is for fairness only: what is changed names what it
-- rests on, as always. The head of the thread's own namespace comes along, since most go on from there. If another one has
-- its turn, this one is told how many changes there have been, and whether it is in line now; there it is told by the key
-- family:<f>:turn:<token> when it is its turn. Those get in line who must, and all others while one of those waits or has its
-- turn: to look for a turn that cannot be had would be of no use.
function verbs.turn()
  local name, token, milliseconds, patience = take(), take(), tonumber(take()), tonumber(take())
  local family_name = alive(name)
  if not family_name then return absent(name) end
  local family = family_key(family_name)
  local held = call("HGET", family, "turn")
  local is_given = has_turn(held, token)
  if not is_given then
    local waiting = others_turn(held, token)
    local _, first = first_in_line(family)
    if not waiting and first and first ~= token then
      hand_over(family)  -- the one before did not end its turn, so nobody was told
      waiting = others_turn(call("HGET", family, "turn"), token)
    end
    if waiting then
      if must_wait(token) or is_waited_for(family) then line_up(family, token, milliseconds, patience) end
      local head = call("HGET", thread_key(name) .. ":heads", "@")
      local changes = string.match(head or "", "^%d+") or "0"
      return { "wait", waiting[2], family_name, changes, entry_of(family, token) and "1" or "0" }
    end
  end
  local head = read_checkpoint(name, "", "head", "", "0", "0")
  if not is_given then
    local entry = entry_of(family, token)
    if entry then call("ZREM", family .. ":line", entry) end
    set_turn(family, token, milliseconds)
  end
  return { "done", family_name, head }
end

-- Checkpoints of a line, without their objects.
function verbs.load_many()
  local name, namespace, writes, ids, rows = take(), take(), take(), take_list(), {}
  local family = alive(name)
  if not family then return absent(name) end
  local raw = call("HGET", thread_key(name) .. ":heads", "@" .. namespace)
  if not raw then return { "none" } end
  check_line_whole(name, namespace)
  for _, id in ipairs(ids) do rows[#rows + 1] = loaded(name, namespace, id, writes) end
  return { "found", family, raw, rows }
end

function verbs.fetch()
  local family, below = family_key(take()), take()
  return fetch(family, take_list(), below == "1")
end

-- Checkpoints as a list shows them: id, seq, item, marks. These are 1: pinned, 2: a branch began there, 4: hidden.
local function rows_of(name, namespace, ids)
  local line, rows, is_hidden = line_key(name, namespace), {}, hidden_in(name, namespace)
  for _, id in ipairs(ids) do
    local item = call("GET", line .. ":item:" .. id) or ""
    local seq = call("ZSCORE", line .. ":index", id)
    if seq then
      local marks = call("SISMEMBER", line .. ":pins", id) + 2 * call("HEXISTS", line .. ":began", id)
      if is_hidden(id, tonumber(seq)) then marks = marks + 4 end
      rows[#rows + 1] = id
      rows[#rows + 1] = seq
      rows[#rows + 1] = without_root(item)
      rows[#rows + 1] = marks
    end
  end
  return rows
end

local function least(low) return low == "-inf" and -1 or tonumber(string.sub(low, 2)) end

-- The next stretch of a line, newest first, that is not covered in all segments: its bounds, and where to go on.
local function gap_below(covers, index, low, high)
  while true do
    local seq = tonumber(call("ZREVRANGEBYSCORE", index, high, low, "WITHSCORES", "LIMIT", 0, 1)[2])
    if not seq then return nil end
    local after = cover_from(covers, 0, seq)
    if not after or after >= seq then
      local upto = end_before(covers, seq)
      if not upto or upto <= least(low) then return low, whole(seq), nil end
      return "(" .. whole(upto), whole(seq), whole(upto)
    end
    high = whole(after)
  end
end

-- The same, oldest first.
local function gap_above(covers, index, low, high)
  while true do
    local seq = tonumber(call("ZRANGEBYSCORE", index, low, high, "WITHSCORES", "LIMIT", 0, 1)[2])
    if not seq then return nil end
    local after, upto = cover_from(covers, 0, seq)
    if not after or (high ~= "+inf" and after >= least(high)) then return whole(seq), high, nil end
    if after >= seq then return whole(seq), whole(after), "(" .. whole(upto) end
    low = "(" .. whole(upto)
  end
end

-- Visit the stretches of a line that are not covered in all segments, without a look at what is, until told to stop.
local function each_gap(name, namespace, order, low, high, visit)
  local covers, index = covers_of(thread_key(name), cover_field("c", namespace)), line_key(name, namespace) .. ":index"
  local gap = order == "oldest" and gap_above or gap_below
  while true do
    local from, to, on = gap(covers, index, low, high)
    if not from or visit(index, from, to) or not on then return end
    if order == "oldest" then low = on else high = on end
  end
end

-- The ids of the next checkpoints of a line in its own order; without those that are covered in all segments, if told so.
local function ids_of(name, namespace, order, low, high, count, visible)
  local found = {}
  local function add(index, from, to)
    local left = count - #found
    local ids
    if order == "oldest" then
      ids = call("ZRANGEBYSCORE", index, from, to, "LIMIT", 0, left)
    else
      ids = call("ZREVRANGEBYSCORE", index, to, from, "LIMIT", 0, left)
    end
    for _, id in ipairs(ids) do found[#found + 1] = id end
    return #found >= count
  end
  if visible then
    each_gap(name, namespace, order, low, high, add)
  else
    add(line_key(name, namespace) .. ":index", low, high)
  end
  return found
end

-- The next checkpoints of a line in its own order.
function verbs.page()
  local name, namespace, order, low, high, count, visible = take(), take(), take(), take(), take(), tonumber(take()), take()
  local family = alive(name)
  if not family then return absent(name) end
  check_line_whole(name, namespace)
  local ids = ids_of(name, namespace, order, low, high, count, visible == "1")
  return { "found", family, rows_of(name, namespace, ids) }
end

function verbs.items()
  local name, namespace = take(), take()
  local family = alive(name)
  if not family then return absent(name) end
  check_line_whole(name, namespace)
  return { "found", family, rows_of(name, namespace, take_list()) }
end

-- Every id of a thread: namespace, then ids and seqs.
function verbs.index()
  local name = take()
  if not alive(name) then return absent(name) end
  local lines = {}
  for _, namespace in ipairs(namespaces(name)) do
    check_line_whole(name, namespace)
    lines[#lines + 1] = namespace
    lines[#lines + 1] = call("ZRANGE", line_key(name, namespace) .. ":index", 0, -1, "WITHSCORES")
  end
  return { "found", lines }
end

function verbs.clock()
  local time = call("TIME")
  return { "found", string.format("%d.%06d", tonumber(time[1]), tonumber(time[2])) }
end

function verbs.count()
  local name, namespace, low, high, visible, total = take(), take(), take(), take(), take() == "1", 0
  if not alive(name) then return absent(name) end
  if visible and has_segments(covers_of(thread_key(name), cover_field("c", namespace))) then return { "hidden" } end
  check_line_whole(name, namespace)
  local function add(index, from, to) total = total + call("ZCOUNT", index, from, to) end
  if visible then
    each_gap(name, namespace, "oldest", low, high, add)
  else
    add(line_key(name, namespace) .. ":index", low, high)
  end
  return { "found", total }
end

function verbs.find()
  local id, found = take(), {}
  for line in string.gmatch(call("HGET", base .. "ids", id) or "", "[^\n]+") do
    local key = base .. "thread:" .. line
    local family = call("HGET", string.match(key, "^(.*):[^:]*$") .. ":heads", "family")
    if family and call("EXISTS", family_key(family)) == 1 and call("ZSCORE", key .. ":index", id) then
      found[#found + 1] = line
      found[#found + 1] = without_root(call("GET", key .. ":item:" .. id) or "")
    end
  end
  return found
end

-- What is wrong with a thread of the list, if something is: it must not take the others away.
local function listed_damage_of(name)
  local heads = thread_key(name) .. ":heads"
  local family = call("HGET", heads, "family")
  if not family then return remains_of(name) end
  if call("EXISTS", family_key(family)) == 0 then
    return call("PTTL", heads) == -1 and "family " .. family .. " is missing, but not its threads" or nil
  end
  return damage_of(thread_key(name))
end

function verbs.names()
  local names = {}
  for _, name in ipairs(call("ZRANGE", base .. "active", 0, -1)) do
    if listed_damage_of(name) or alive(name) then names[#names + 1] = name end
  end
  return names
end

-- A thread as it is listed: time, name, namespace, and what `page` answers; nil if there is nothing to show.
local function shown_thread(name, time, headless)
  local damage = listed_damage_of(name)
  if damage then return { time, name, "", { "damaged", damage } } end
  local family, shown = alive(name), nil
  if not family then return nil end
  local lines = namespaces(name)
  table.sort(lines)
  for _, namespace in ipairs(lines) do
    local _, _, digest, id = parse_line(call("HGET", thread_key(name) .. ":heads", "@" .. namespace))
    if digest ~= "-" then
      shown = { namespace, id }
      break
    end
  end
  for _, namespace in ipairs(not shown and headless and lines or {}) do
    local newest = call("ZREVRANGE", line_key(name, namespace) .. ":index", 0, 0)
    if newest[1] and not shown then shown = { namespace, newest[1] } end
  end
  if not shown then return nil end
  local rows = rows_of(name, shown[1], { shown[2] })
  damage = line_damage_of(thread_key(name), shown[1]) or (#rows == 0 and "the head is not in the index")
  return { time, name, shown[1], damage and { "damaged", damage } or { "found", family, rows } }
end

-- The most recently active threads of the bucket.
function verbs.threads()
  local count, headless, found = tonumber(take()), take() == "1", {}
  local listed = call("ZREVRANGE", base .. "active", 0, -1, "WITHSCORES")
  for n = 1, #listed, 2 do
    if #found >= count then break end
    found[#found + 1] = shown_thread(listed[n], listed[n + 1], headless)
  end
  return found
end

-- These threads, as they are listed.
function verbs.shown()
  local found = {}
  for _, name in ipairs(take_list()) do
    local time = call("ZSCORE", base .. "active", name)
    if time then found[#found + 1] = shown_thread(name, time, false) end
  end
  return found
end

-- Put back what the indexes of the bucket have lost, as far as it is known: a thread whose numbers are lost is found by
-- everything. They are made anew if something does not add up, and the sets that are asked for if their counts do not.
-- Returns how many threads there are.
local function mend(labels, counts)
  local size = call("ZCARD", base .. "active")
  local is_whole = call("ZCARD", base .. "names") == size and call("HLEN", base .. "facts") == size
  local noted = #labels > 0 and call("HMGET", base .. "counts", unpack(labels)) or {}
  for n, label in ipairs(labels) do
    counts[label] = call("SCARD", base .. "fact:" .. label)
    is_whole = is_whole and tonumber(noted[n] or 0) == counts[label]
  end
  if is_whole then return size end
  for _, name in ipairs(call("ZRANGE", base .. "names", 0, -1)) do
    if not call("ZSCORE", base .. "active", name) then call("ZREM", base .. "names", name) end
  end
  for _, name in ipairs(call("HKEYS", base .. "facts")) do
    if not call("ZSCORE", base .. "active", name) then set_facts(name, nil) end
  end
  for _, label in ipairs(call("HKEYS", base .. "counts")) do call("UNLINK", base .. "fact:" .. label) end
  call("UNLINK", base .. "counts")
  for _, name in ipairs(call("ZRANGE", base .. "active", 0, -1)) do
    call("ZADD", base .. "names", 0, name)
    local facts = call("HGET", base .. "facts", name) or "0.0"
    for label in string.gmatch(facts, "%.(%d+)") do
      if call("SADD", base .. "fact:" .. label, name) == 1 then call("HINCRBY", base .. "counts", label, 1) end
    end
    call("HSET", base .. "facts", name, facts)
  end
  for _, label in ipairs(labels) do counts[label] = call("SCARD", base .. "fact:" .. label) end
  return size
end

-- What gives the names that the shortest of some lists has, and how many these are: what begins with a prefix, or has one
-- of the numbers of a group.
local function fewest(prefix, upper, groups, counts)
  local names, size = nil, nil
  if prefix ~= "" then
    local range = { "[" .. prefix, upper == "" and "+" or "(" .. upper }
    size = call("ZLEXCOUNT", base .. "names", unpack(range))
    names = function() return call("ZRANGEBYLEX", base .. "names", unpack(range)) end
  end
  for _, group in ipairs(groups) do
    local keys, count = {}, 0
    for n, label in ipairs(group) do
      keys[n] = base .. "fact:" .. label
      count = count + counts[label]
    end
    if not size or count < size then
      size = count
      names = function() return call("SUNION", unpack(keys)) end
    end
  end
  return names, size
end

-- What a search asks for. It is the same for all buckets that one call looks into.
local search = nil
local function read_search()
  if search then return search end
  search = { prefix = take(), upper = take(), since = tonumber(take()), after = tonumber(take()), after_name = take() }
  search.count, search.groups, search.labels = tonumber(take()), {}, {}
  for n = 1, tonumber(take()) do
    search.groups[n] = { take(), take(), take() }
    for _, label in ipairs(search.groups[n]) do search.labels[#search.labels + 1] = label end
  end
  search.names = { "[" .. search.prefix, search.upper == "" and "+" or "(" .. search.upper }
  return search
end

-- Whether no thread of the bucket has what a search asks for, by two indexes that would both tell of one: most buckets have
-- nothing that few threads have, and then nothing else is looked at there.
local function has_none(asked)
  for _, group in ipairs(asked.groups) do
    local fact = base .. "fact:"
    if call("EXISTS", fact .. group[1], fact .. group[2], fact .. group[3]) == 0 then
      local noted = call("HMGET", base .. "counts", group[1], group[2], group[3])
      if not (noted[1] or noted[2] or noted[3]) then return true end
    end
  end
  if asked.prefix == "" or call("ZLEXCOUNT", base .. "names", unpack(asked.names)) > 0 then return false end
  return call("ZCARD", base .. "names") == call("ZCARD", base .. "active")
end

-- When the thread of the bucket was active that was so last, of those that a search may be about or others; "" if there is
-- none that it may be about.
local function last_active()
  local asked = read_search()
  if has_none(asked) then return "" end
  local bounds = { whole(asked.after), whole(asked.since) }
  return call("ZREVRANGEBYSCORE", base .. "active", bounds[1], bounds[2], "WITHSCORES", "LIMIT", 0, 1)[2] or ""
end

function verbs.last() return last_active() end

-- The same for many buckets, which must be on one server.
function verbs.last_in_each()
  local all = {}
  for n, key in ipairs(KEYS) do
    base = key
    all[n] = last_active()
  end
  return all
end

-- Where the threads of the bucket stand that may be searched for, most recently active first: time, name, ...
local function find()
  local asked, found, flat = read_search(), {}, {}
  local prefix, upper, since, after, after_name = asked.prefix, asked.upper, asked.since, asked.after, asked.after_name
  local count, groups, labels = asked.count, asked.groups, asked.labels
  local counts = {}
  local total = mend(labels, counts)
  local names, size = fewest(prefix, upper, groups, counts)
  if size == 0 then return flat end
  local function is_meant(name)
    if string.sub(name, 1, #prefix) ~= prefix then return false end
    for _, group in ipairs(groups) do
      local has = false
      for _, label in ipairs(group) do has = has or call("SISMEMBER", base .. "fact:" .. label, name) == 1 end
      if not has then return false end
    end
    return true
  end
  local function look(name, time)
    local number = tonumber(time)
    if number < since or number > after or (number == after and name >= after_name) then return end
    if is_meant(name) then found[#found + 1] = { number, name, time } end
  end
  -- Those that were active last, until there are enough, or so many were looked at. Whether that is all.
  local function walk(most)
    local from = 0
    repeat
      local part = call("ZREVRANGEBYSCORE", base .. "active", whole(after), whole(since), "WITHSCORES", "LIMIT", from, count + 3)
      for n = 1, #part, 2 do
        if #found < count then look(part[n], part[n + 1]) end
      end
      from = from + #part / 2
      if #part == 0 or #found >= count then return true end
    until from >= most
    return false
  end
  local is_done = false
  if not names then
    is_done = walk(math.huge)
  elseif size > count and total * count < size * size then
    -- A list that many threads are on: some of those that were active last are likely to be on it.
    is_done = walk(size)
  end
  if not is_done then
    found = {}
    for _, name in ipairs(names()) do
      local time = call("ZSCORE", base .. "active", name)
      if time then look(name, time) end
    end
  end
  table.sort(found, function(one, two)
    if one[1] ~= two[1] then return one[1] > two[1] end
    return one[2] > two[2]
  end)
  for n = 1, math.min(count, #found) do
    flat[2 * n - 1] = found[n][3]
    flat[2 * n] = found[n][2]
  end
  return flat
end

function verbs.found() return find() end

-- The same for many buckets, which must be on one server.
function verbs.found_in_each()
  local all = {}
  for n, key in ipairs(KEYS) do
    base = key
    all[n] = find()
  end
  return all
end

function verbs.thread()
  local name, wants_branches, is_brief = take(), take(), take() == "1"
  local family_name = alive(name)
  if not family_name then return absent(name) end
  local family, newest, protected, branches = family_key(family_name), {}, {}, {}
  check_family_whole(family)
  for _, namespace in ipairs(namespaces(name)) do
    local line = line_key(name, namespace)
    check_line_whole(name, namespace)
    local _, _, digest, id = parse_line(call("HGET", thread_key(name) .. ":heads", "@" .. namespace))
    if digest ~= "-" and digest_of(line, id) ~= digest then corrupted("the head is not the one that its line names") end
    local last = call("ZREVRANGE", line .. ":index", 0, 0, "WITHSCORES")
    if last[2] then
      newest[#newest + 1] = namespace
      newest[#newest + 1] = last[2]
    end
    for _, list in ipairs(is_brief and {} or { call("SMEMBERS", line .. ":pins"), call("HKEYS", line .. ":began") }) do
      for _, id in ipairs(list) do protected[#protected + 1] = call("ZSCORE", line .. ":index", id) or "0" end
    end
  end
  for _, other in ipairs(wants_branches == "1" and call("SMEMBERS", family .. ":threads") or {}) do
    local damage = listed_damage_of(other)
    if damage then corrupted("thread " .. other .. " of the same family: " .. damage) end
    local held = call("HMGET", thread_key(other) .. ":heads", "made", "origin")
    if held[2] then branches[#branches + 1] = { held[1], other, held[2] } end
  end
  local garbage = call("HMGET", family, "live", "unreferenced")
  return {
    "found", call("HGETALL", thread_key(name) .. ":heads"), newest,
    is_brief and {} or call("HVALS", thread_key(name) .. ":hidden"),
    is_brief and {} or call("HGETALL", family .. ":segments"), call("HGETALL", family .. ":shared_states"), protected, branches,
    garbage[1] or "0", garbage[2] or "0",
  }
end

-- Whether a line that was seen, and is not there any more, was deleted or has ended, as far as can be told: a line that
-- is deleted from a family that lives on leaves its generation there, and a thread leaves a mark. If so many were deleted
-- since that the mark may have made room, that is taken for a deletion.
function verbs.vanished()
  local name, family, generation, seq = take(), family_key(take()), tonumber(take()), tonumber(take())
  if tonumber(call("HGET", family, "generation") or -1) >= generation then return "deleted" end
  if tonumber(call("ZSCORE", base .. "gone", mark_of(name)) or -1) >= seq then return "deleted" end
  if call("EXISTS", base .. "life") == 1 then return "ended" end
  local oldest = call("ZRANGE", base .. "gone", 0, 0, "WITHSCORES")
  if call("ZCARD", base .. "gone") >= marks_max and tonumber(oldest[2]) >= seq then return "forgotten" end
  return "lost"
end

-- The segments of a line that began after a number, but for those that are hidden.
function verbs.line_segments()
  local name, namespace, after, segments = take(), take(), tonumber(take()), {}
  local family = alive(name)
  if not family then return absent(name) end
  local covers, own = covers_of(thread_key(name), cover_field("c", namespace)), line_name(name, namespace) .. "\n"
  for _, found in ipairs(pairs_of(family_key(family) .. ":segments")) do
    local segment, seq = found[1], tonumber(found[1])
    if seq > after and string.sub(found[2], 1, #own) == own then
      if not (is_covered(covers, 0, seq) or is_covered(covers, seq, seq)) then segments[#segments + 1] = segment end
    end
  end
  return { "found", segments }
end

-- What segments of a family follow: segment, value. All there are, if they are not many more than might be asked for next.
function verbs.segments()
  local family, older, segments = family_key(take()), tonumber(take()), take_list()
  if call("HLEN", family .. ":segments") <= 4 * older then return call("HGETALL", family .. ":segments") end
  local found = {}
  for n = 1, #segments, 1000 do
    local values = call("HMGET", family .. ":segments", unpack(segments, n, math.min(n + 999, #segments)))
    for m = 1, math.min(1000, #segments - n + 1) do
      if values[m] then
        found[#found + 1] = segments[n + m - 1]
        found[#found + 1] = values[m]
      end
    end
  end
  return found
end

-- A thread, or every thread of its family: name, origin, whether something is hidden, and of each line the namespace,
-- the line itself, the highest seq and how many checkpoints it has.
function verbs.family_lines()
  local name, wants_all = take(), take()
  local family_name = alive(name)
  if not family_name then return absent(name) end
  local found = {}
  check_family_whole(family_key(family_name))
  for _, other in ipairs(wants_all == "1" and call("SMEMBERS", family_key(family_name) .. ":threads") or { name }) do
    local heads, lines = thread_key(other) .. ":heads", {}
    for _, namespace in ipairs(namespaces(other)) do
      check_line_whole(other, namespace)
      local index = line_key(other, namespace) .. ":index"
      local last = call("ZREVRANGE", index, 0, 0, "WITHSCORES")[2] or ""
      lines[#lines + 1] = { namespace, call("HGET", heads, "@" .. namespace), last, call("ZCARD", index) }
    end
    local hides = call("EXISTS", thread_key(other) .. ":hidden")
    found[#found + 1] = { other, call("HGET", heads, "origin") or "", hides, lines }
  end
  return { "found", found }
end

-- The threads of the bucket that have checkpoints: name, family, how many the longest line has, whether there is a log,
-- and how the family stands with sweeps: "2": it was swept, and nothing has gone since.
function verbs.outlines()
  local found = {}
  for _, name in ipairs(call("ZRANGE", base .. "active", 0, -1)) do
    local family = alive(name)
    local most = 0
    for _, namespace in ipairs(family and namespaces(name) or {}) do
      most = math.max(most, call("ZCARD", line_key(name, namespace) .. ":index"))
    end
    if most > 0 then
      local swept = call("HGET", family_key(family), "swept") or ""
      found[#found + 1] = { name, family, most, call("EXISTS", thread_key(name) .. ":log"), swept }
    end
  end
  return found
end

-- The newest entries of a thread's log: seq, value.
function verbs.log()
  local name, limit, found = take(), tonumber(take()), {}
  if not alive(name) then return absent(name) end
  local seqs = call("HKEYS", thread_key(name) .. ":log")
  table.sort(seqs, function(one, two) return tonumber(one) > tonumber(two) end)
  for n = 1, math.min(limit, #seqs) do
    found[#found + 1] = seqs[n]
    found[#found + 1] = call("HGET", thread_key(name) .. ":log", seqs[n])
  end
  return { "found", found }
end

-- The hidden stretches of one operation: field, stretch.
function verbs.stretches()
  local name, start, found = take(), take() .. ":", {}
  for _, held in ipairs(pairs_of(thread_key(name) .. ":hidden")) do
    if string.sub(held[1], 1, #start) == start then
      found[#found + 1] = held[1]
      found[#found + 1] = held[2]
    end
  end
  return found
end

-- Removing must work when the server's memory is full, too: it looks at that before a script's first write only, and
-- not if that takes no memory.
local function allow_writing() call("UNLINK", base .. "nothing") end

-- Everything that deleting meets must be readable before the first write.
local function check_deletable(name, family)
  check_bucket()
  check_family(family)
  check_origin(name)
  check_type(thread_key(name) .. ":log", "hash")
  check_type(thread_key(name) .. ":covers", "hash")
  each_hidden(name, function() end)
  for _, namespace in ipairs(namespaces(name)) do
    check_line(line_key(name, namespace))
    parse_line(call("HGET", thread_key(name) .. ":heads", "@" .. namespace))
  end
end

-- Delete checkpoints (or, with "all", whole lines) and entries of the log; drop what nothing is left of.
function verbs.delete()
  local name, spare, operations, count = take(), take() == "1", take_list(), 0
  local family_name = alive(name)
  if family_name then
    for _, namespace in ipairs(namespaces(name)) do check_line_whole(name, namespace) end
    check_family_whole(family_key(family_name))
  end
  if not family_name then return absent(name) end
  local family = family_key(family_name)
  check_deletable(name, family)
  allow_writing()
  for _, seq in ipairs(operations) do call("HDEL", thread_key(name) .. ":log", seq) end
  for _ = 1, tonumber(take()) do
    local namespace, all, ids = take(), take(), take_list()
    if call("HEXISTS", thread_key(name) .. ":heads", "@" .. namespace) == 1 then
      local line = line_key(name, namespace)
      if all == "1" then
        ids = call("ZRANGE", line .. ":index", 0, -1)
        for _, id in ipairs(call("SMEMBERS", line .. ":written")) do
          if not call("ZSCORE", line .. ":index", id) then ids[#ids + 1] = id end
        end
      end
      count = count + remove(name, namespace, family_name, ids, spare)
      settle(name, namespace, family_name)
    end
  end
  call("HINCRBY", thread_key(name) .. ":heads", "version", 1)
  if #namespaces(name) > 0 then
    for _, namespace in ipairs(namespaces(name)) do note_line(thread_key(name), namespace) end
    note_sizes(thread_key(name))
    return { "found", count, family_name, "thread" }
  end
  drop_thread(name, family)
  return { "found", count, family_name, call("EXISTS", family) == 1 and "family" or "nothing" }
end

-- Begin a sweep: every hash that a checkpoint, a write or a common state refers to.
function verbs.roots()
  local family_name, pretend, without = take(), take(), {}
  local family = family_key(family_name)
  for _, key in ipairs(take_list()) do without[key] = true end
  if call("EXISTS", family) == 0 then return {} end
  check_family_whole(family)
  local seen, roots = {}, {}
  local function note(hash)
    if not seen[hash] then
      seen[hash] = true
      roots[#roots + 1] = hash
    end
  end
  for _, name in ipairs(call("SMEMBERS", family .. ":threads")) do
    local damage = listed_damage_of(name)
    if damage then corrupted("thread " .. name .. ": " .. damage) end -- what it refers to must not be removed
    for _, namespace in ipairs(namespaces(name)) do
      local line = line_key(name, namespace)
      check_line_whole(name, namespace)
      for _, id in ipairs(call("ZRANGE", line .. ":index", 0, -1)) do
        local item = not without[line .. ":item:" .. id] and (call("GET", line .. ":item:" .. id) or "")
        if item then
          for _, hash in ipairs(hashes_of(item)) do note(hash) end
        end
      end
      for _, id in ipairs(call("SMEMBERS", line .. ":written")) do
        for _, write in ipairs(call("HVALS", line .. ":writes:" .. id)) do
          local size, rest = string.match(write, "^%d+ (%d+) (.*)$")
          each_hash(string.sub(rest, 1, tonumber(size)), note)
        end
      end
    end
  end
  for _, common in ipairs(call("HVALS", family .. ":shared_states")) do
    local size, rest = string.match(common, "^(%d+) (.*)$")
    each_hash(string.sub(rest, 1, tonumber(size)), note)
  end
  if pretend == "0" then
    allow_writing()
    call("HINCRBY", family, "sweeps", 1)
  end
  local held = call("HMGET", family, "sweeps", "removals", "unreferenced")
  return { held[1] or "0", held[2] or "0", held[3] or "0", roots }
end

-- For each of these objects that is there: hash, children, size.
function verbs.links()
  local family, wanted, found = family_key(take()), take_list(), {}
  for n = 1, #wanted, 1000 do
    local values = call("HMGET", family .. ":objects", unpack(wanted, n, math.min(n + 999, #wanted)))
    for m = 1, math.min(1000, #wanted - n + 1) do
      if values[m] then
        found[#found + 1] = wanted[n + m - 1]
        found[#found + 1] = children_of(values[m])
        found[#found + 1] = #values[m] - 8
      end
    end
  end
  return found
end

-- Go through the family's objects: hash, epoch, size.
function verbs.scan()
  local family, cursor, count = family_key(take()), take(), take()
  local reply = call("HSCAN", family .. ":objects", cursor, "COUNT", count)
  local found = {}
  for n = 1, #reply[2], 2 do
    local value = reply[2][n + 1]
    found[#found + 1] = reply[2][n]
    found[#found + 1] = #value < 8 and 0 or struct.unpack(">I4", value)
    found[#found + 1] = #value - 8
  end
  return { reply[1], found }
end

-- Remove objects of the ages given: one that was sent again is younger. Answers nothing if another sweep removed some
-- meanwhile: this one may have missed what was below them.
function verbs.discard()
  local family, expected, unreferenced = family_key(take()), take(), take_list()
  if (call("HGET", family, "removals") or "0") ~= expected then return "" end
  allow_writing()
  for n = 1, #unreferenced, 2 do
    local value = call("HGET", family .. ":objects", unreferenced[n])
    if value and struct.unpack(">I4", value) == tonumber(unreferenced[n + 1]) then
      call("HDEL", family .. ":objects", unreferenced[n])
    end
  end
  return whole(call("HINCRBY", family, "removals", 1))
end

-- A sweep begins, with a number that no other one has.
function verbs.sweep()
  local family, ticket = family_key(take()), take()
  if call("EXISTS", family) == 0 then return { "done" } end
  allow_writing()
  call("HSET", family, "swept", ticket)
  return { "done" }
end

function verbs.swept()
  local family, live, unreferenced, ticket = family_key(take()), take(), tonumber(take()), take()
  if call("EXISTS", family) == 0 then return { "done" } end
  allow_writing()
  call("HSET", family, "live", live)
  if call("HGET", family, "swept") == ticket then call("HSET", family, "swept", "2") end
  local held = tonumber(call("HGET", family, "unreferenced") or 0)
  call("HSET", family, "unreferenced", whole(math.max(0, held - unreferenced)))
  return { "done" }
end

local function set_alias(name, value, life)
  local key = base .. "alias:" .. escaped(name)
  call("SADD", base .. "aliases", name)
  if life > 0 then call("SET", key, value, "PX", life * 4) else call("SET", key, value) end
  return { "done" }
end

-- Note where a thread will be kept, if that is not here; not if it lives in this very bucket, or if that has changed.
function verbs.alias()
  local name, value, expected, life = take(), take(), take(), tonumber(take())
  local held = alias_of(name)
  if alive(name) then return { "here" } end
  if held ~= expected then return { "stale" } end
  return set_alias(name, value, life)
end

-- Take back a thread that was made just now, if nobody has used it: its alias has gone to somebody else.
function verbs.retract()
  local name, namespace, raw = take(), take(), take()
  local family = alive(name)
  local lines = family and namespaces(name) or {}
  if #lines ~= 1 or call("HGET", thread_key(name) .. ":heads", "@" .. namespace) ~= raw then return { "used" } end
  check_deletable(name, family_key(family))
  remove(name, namespace, family, call("ZRANGE", line_key(name, namespace) .. ":index", 0, -1), false)
  settle(name, namespace, family)
  drop_thread(name, family_key(family))
  return { "done" }
end

-- Give the alias of a thread that lives as long as its family.
function verbs.renew_alias()
  local name, value, life = take(), take(), tonumber(take())
  if alive(name) then return { "here" } end
  local held = alias_of(name)
  return set_alias(name, held ~= "" and held or value, life)
end

-- Whether anything of a thread is in this bucket.
function verbs.has()
  local name = take()
  return call("EXISTS", thread_key(name) .. ":heads") == 1 or call("ZSCORE", base .. "active", name) and 1 or 0
end

-- Delete a damaged thread: all of the keys that were found of it, and its name wherever it stands.
function verbs.wipe()
  local name, families, keys = take(), take_list(), take_list()
  local start = thread_key(name) .. ":"
  check_bucket()
  allow_writing()
  for _, key in ipairs(keys) do
    local part, id = string.match(string.sub(key, #start + 1), "^([^:]*):item:(.*)$")
    if part then remove_id(id, name, unescaped(part)) end
  end
  release_origin(name)
  remove_keys(keys)
  delist(name)
  call("UNLINK", base .. "alias:" .. escaped(name))
  call("SREM", base .. "aliases", name)
  for _, family_name in ipairs(families) do
    leave_family(name, family_key(family_name))
  end
  return { "done" }
end

-- The lines of this bucket that have a checkpoint of this id in their index, whatever the index of ids says.
function verbs.search()
  local id, found = take(), {}
  for _, name in ipairs(call("ZRANGE", base .. "active", 0, -1)) do
    local family = call("HGET", thread_key(name) .. ":heads", "family")
    if family and call("EXISTS", family_key(family)) == 1 then
      for _, namespace in ipairs(namespaces(name)) do
        if call("ZSCORE", line_key(name, namespace) .. ":index", id) then found[#found + 1] = name end
      end
    end
  end
  return found
end

-- Everything that is kept of a thread besides its checkpoints and their objects.
function verbs.raw()
  local name, wants_kin = take(), take()
  local family_name = alive(name)
  if not family_name then return absent(name) end
  local family, heads, newest, pins, writes = family_key(family_name), thread_key(name) .. ":heads", {}, {}, {}
  check_family_whole(family)
  for _, namespace in ipairs(namespaces(name)) do
    local line = line_key(name, namespace)
    check_line_whole(name, namespace)
    newest[#newest + 1] = namespace
    newest[#newest + 1] = call("ZREVRANGE", line .. ":index", 0, 0, "WITHSCORES")[2] or "0"
    for _, id in ipairs(call("SMEMBERS", line .. ":pins")) do pins[#pins + 1] = call("ZSCORE", line .. ":index", id) or "0" end
    for _, id in ipairs(call("SMEMBERS", line .. ":written")) do
      writes[#writes + 1] = { namespace, id, call("HGETALL", line .. ":writes:" .. id) }
    end
  end
  local line, id, seq = origin_of(name)
  local is_there = line and call("ZSCORE", line .. ":index", id) == seq
  return {
    "found", call("HGETALL", heads), newest, call("HVALS", thread_key(name) .. ":hidden"),
    call("HGETALL", thread_key(name) .. ":log"), writes, call("HGETALL", family .. ":segments"),
    call("HGETALL", family .. ":shared_states"), pins, is_there and seq or "0", call("ZSCORE", base .. "active", name) or "0",
    wants_kin == "1" and call("SMEMBERS", family .. ":threads") or {},
  }
end

-- A write that follows all others, so that its confirmation by replicas confirms them too.
function verbs.confirm()
  local family = family_key(take())
  if call("EXISTS", family) == 1 then call("HINCRBY", family, "confirmed", 1) end
  return { "done" }
end

-- The commands that this user may not use, of those that the scripts write with.
function verbs.denied()
  local denied, key = {}, base .. "x"
  for _, command in ipairs({
    { "HDEL", key, "x" }, { "HINCRBY", key, "x", "1" }, { "HSET", key, "x", "x" }, { "HSETNX", key, "x", "x" },
    { "PERSIST", key }, { "PEXPIRE", key, "1" }, { "SADD", key, "x" }, { "SET", key, "x" }, { "SREM", key, "x" },
    { "UNLINK", key }, { "ZADD", key, "1", "x" }, { "ZREM", key, "x" },
  }) do
    if not redis.acl_check_cmd(unpack(command)) then denied[#denied + 1] = command[1] end
  end
  return denied
end

-- Drop the alias of a thread that is gone, if it is still this one.
function verbs.unalias()
  local name, expected = take(), take()
  if alias_of(name) == expected then
    call("UNLINK", base .. "alias:" .. escaped(name))
    call("SREM", base .. "aliases", name)
  end
  return { "done" }
end

-- Note anew what a thread has, after it was put right.
function verbs.mend()
  local name = take()
  local thread = thread_key(name)
  local family = call("HGET", thread .. ":heads", "family")
  if not family then return { "absent" } end
  cover_again(thread)
  for _, namespace in ipairs(namespaces(name)) do note_line(thread, namespace) end
  note_sizes(thread)
  note_family_sizes(family_key(family))
  return { "done" }
end
