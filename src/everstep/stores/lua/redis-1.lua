-- Format 1 of the Redis store: every change and every look at a thread is one call of this script, so it is atomic.
-- KEYS[1] is the bucket, such as "everstep:{17}:"; every key below it is in the same slot. The
-- arguments are values, which are never part of a key unescaped. No write happens before all checks have passed.
-- Each thing to do becomes a script of its own, with just the functions it needs (see redis_script.py): keep one
-- definition per block, beginning at the left margin.
--
-- thread:<t>:heads           hash     family, name, made, version, origin, began; "@<namespace>": the line
-- thread:<t>:log             hash     seq of an operation -> undone (0 or 1), data
-- thread:<t>:hidden          hash     operation:n -> a stretch
-- thread:<t>:<n>:index       zset     checkpoint id -> seq
-- thread:<t>:<n>:item:<id>   string   the checkpoint as JSON; it begins with what is needed here, see `parse`
-- thread:<t>:<n>:pins        set      ids of pinned checkpoints
-- thread:<t>:<n>:began       hash     checkpoint id -> how many living branches began there
-- thread:<t>:<n>:written     set      ids of checkpoints that have pending writes
-- thread:<t>:<n>:writes:<id> hash     "idx task" -> seq, children, info
-- family:<f>                 hash     seq, format, sweeps, live, doomed, generation, last, renewed
-- family:<f>:objects         hash     hash -> epoch, children, body
-- family:<f>:threads         set      names
-- family:<f>:runs            hash     run -> line, data
-- family:<f>:commons         hash     pair of threads and seq -> children, data
-- active                     zset     name of a thread -> microseconds of its last move
-- ids                        hash     checkpoint id -> the lines that have it
-- alias:<t>                  string   the bucket where a branch is kept
--
-- A line is "generation turned digest id"; "-" stands for no digest.

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

local function parse(item)
  local digest, added, run, step, children =
    string.match(item, '^{"digest":"(%x+)","added":(%d+),"run":(%d+),"step":(%-?%d+),"children":"(%x*)"')
  return digest, tonumber(added), run, step, children
end

local function parse_line(line)
  local generation, turned, digest, id = string.match(line, "^(%d+) (%d) (%S+) (.*)$")
  return tonumber(generation), turned, digest, id
end

local function parse_hidden(stretch)
  local after, to, run, operation, kind, size, rest = string.match(stretch, "^(%d+) (%d+) (%d+) (%d+) (%a) (%d+) (.*)$")
  size = tonumber(size)
  return tonumber(after), tonumber(to), run, kind, string.sub(rest, 1, size), string.sub(rest, size + 1)
end

-- The part of an item that listing shows: all but the root.
local function without_root(item) return string.match(item, '^(.*),"root":"') or item end

local function is_spared(line, id)
  return call("SISMEMBER", line .. ":pins", id) == 1 or call("HEXISTS", line .. ":began", id) == 1
end

local function pairs_of(key)
  local flat, list = call("HGETALL", key), {}
  for n = 1, #flat, 2 do list[#list + 1] = { flat[n], flat[n + 1] } end
  return list
end

-- The family of a thread, if it is there: a family whose time is over takes its threads with it.
local function alive(name)
  local family = call("HGET", thread_key(name) .. ":heads", "family")
  if family and call("EXISTS", family_key(family)) == 1 then return family end
  return nil
end

local function absent(name) return { "absent", call("GET", base .. "alias:" .. escaped(name)) or "" } end

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

-- Slide the family's time to live. Its own key carries it exactly and decides; heads and indexes of the thread that
-- moves carry it too; everything else has twice as long, and is renewed all at once after half the time.
local function touch(family_name, name, namespace, life, all)
  local family = family_key(family_name)
  local held = call("HMGET", family, "renewed", "last")
  if life == 0 and not held[1] then return end
  local time, last, renewed = now(), held[2], false
  if all or life == 0 or not held[1] or time > tonumber(held[1]) + life * 500 then
    set_life({ family .. ":objects", family .. ":threads", family .. ":runs", family .. ":commons" }, life * 2)
    for _, other in ipairs(call("SMEMBERS", family .. ":threads")) do
      local first, later = keys_of(other)
      set_life(first, life * 2)
      set_life(later, life * 2)
    end
    if life == 0 then call("HDEL", family, "renewed") else call("HSET", family, "renewed", whole(time)) end
    renewed = true
  elseif last and last ~= name then
    local first = keys_of(last)
    set_life(first, life * 2)
  end
  set_life({ family, thread_key(name) .. ":heads", line_key(name, namespace) .. ":index" }, life)
  if last ~= name then call("HSET", family, "last", name) end
  if life == 0 then return renewed end
  -- What families whose time is over left in the indexes of the bucket goes a little at a time.
  for _, idle in ipairs(call("ZRANGE", base .. "active", 0, 0)) do
    if not alive(idle) then call("ZREM", base .. "active", idle) end
  end
  for _, id in ipairs(call("HRANDFIELD", base .. "ids", 2)) do
    local left = {}
    for line in string.gmatch(call("HGET", base .. "ids", id), "[^\n]+") do
      if call("EXISTS", base .. "thread:" .. line .. ":item:" .. id) == 1 then left[#left + 1] = line end
    end
    if #left == 0 then call("HDEL", base .. "ids", id) else call("HSET", base .. "ids", id, table.concat(left, "\n")) end
  end
  return renewed
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
  local list = {}
  each_hash(from_hex(children), function(hash) list[#list + 1] = hash end)
  return list
end

-- Delete checkpoints of a line with their writes; returns how many there were.
local function remove(name, namespace, family, ids, spare)
  local line, count, freed = line_key(name, namespace), 0, 0
  local head = select(4, parse_line(call("HGET", thread_key(name) .. ":heads", "@" .. namespace) or "0 0 - "))
  for _, id in ipairs(ids) do
    if not (spare and (id == head or is_spared(line, id))) then
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
  if freed > 0 then call("HINCRBY", family_key(family), "doomed", freed) end
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

local function run_of(line, id)
  local _, _, run = parse(call("GET", line .. ":item:" .. id) or "")
  if run == "0" then run = whole(tonumber(call("ZSCORE", line .. ":index", id))) end
  return run
end

local function is_hidden(name, namespace, id, seq)
  local found = false
  each_hidden(name, function(_, after, to, run, kind, where)
    if kind == "c" and where == namespace and seq > after and seq <= to then
      found = found or run == "0" or run == run_of(line_key(name, namespace), id)
    end
  end)
  return found
end

local function covers(line, after, to, run, kind, writes_of)
  if kind == "w" then return call("SISMEMBER", line .. ":written", writes_of) == 1 end
  local index, low, high = line .. ":index", "(" .. whole(after), whole(to)
  if run == "0" then return call("ZCOUNT", index, low, high) > 0 end
  for _, id in ipairs(call("ZRANGEBYSCORE", index, low, high)) do
    if run == run_of(line, id) then return true end
  end
  return false
end

-- After deletion: move a head that is gone to the newest left, and drop what nothing is left of.
local function settle(name, namespace, family)
  local heads, line = thread_key(name) .. ":heads", line_key(name, namespace)
  local generation, _, digest, head = parse_line(call("HGET", heads, "@" .. namespace))
  if digest ~= "-" and not call("ZSCORE", line .. ":index", head) then
    digest, head = "-", ""
    local left = call("ZREVRANGE", line .. ":index", 0, -1, "WITHSCORES")
    for n = 1, #left, 2 do
      if not is_hidden(name, namespace, left[n], tonumber(left[n + 1])) then
        head = left[n]
        digest = parse(call("GET", line .. ":item:" .. head) or "") or "?"
        break
      end
    end
    generation = generation + 1
    call("HSET", heads, "@" .. namespace, whole(generation) .. " 1 " .. digest .. " " .. head)
  end
  each_hidden(name, function(field, after, to, run, kind, where, writes_of)
    if where == namespace and not covers(line, after, to, run, kind, writes_of) then
      call("HDEL", thread_key(name) .. ":hidden", field)
    end
  end)
  if call("ZCARD", line .. ":index") > 0 or call("SCARD", line .. ":written") > 0 then return end
  local own = line_name(name, namespace) .. "\n"
  for _, run in ipairs(pairs_of(family_key(family) .. ":runs")) do
    if string.sub(run[2], 1, #own) == own then
      call("HSET", family_key(family) .. ":runs", run[1], string.sub(run[2], #own))
    end
  end
  -- A line of this name that comes later goes on counting, so that it never seems to go backwards.
  local highest = tonumber(call("HGET", family_key(family), "generation") or 0)
  call("HSET", family_key(family), "generation", whole(math.max(highest, generation)))
  call("HDEL", heads, "@" .. namespace)
  remove_keys({ line .. ":index", line .. ":pins", line .. ":began", line .. ":written" })
end

-- A branch lives no more, or not from there: its beginning is spared for it no longer.
local function release_origin(name)
  local began = call("HGET", thread_key(name) .. ":heads", "began")
  if not began then return end
  local line, id = string.match(began, "^([^\n]*)\n(.*)$")
  local key = base .. "thread:" .. line .. ":began"
  if call("HEXISTS", key, id) == 1 and call("HINCRBY", key, id, -1) <= 0 then call("HDEL", key, id) end
end

local function drop_thread(name, family)
  release_origin(name)
  for _, field in ipairs(call("HKEYS", family .. ":commons")) do
    local size, rest = string.match(field, "^%d+ (%d+) (.*)$")
    local one, two = string.sub(rest, 1, tonumber(size)), string.sub(rest, tonumber(size) + 1)
    if one == name or two == name then call("HDEL", family .. ":commons", field) end
  end
  local thread = thread_key(name)
  remove_keys({ thread .. ":heads", thread .. ":log", thread .. ":hidden" })
  call("SREM", family .. ":threads", name)
  call("ZREM", base .. "active", name)
  if call("SCARD", family .. ":threads") == 0 then
    remove_keys({ family, family .. ":objects", family .. ":runs", family .. ":commons", family .. ":threads" })
  end
end

-- What a family whose time is over left behind under this name would mix with what comes now.
local function clear_remains(name)
  local first, later = keys_of(name)
  remove_keys(first)
  remove_keys(later)
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

local verbs = {}

-- The usual commit: a checkpoint that follows the head its writer saw. Answers "stale" and the head there is if that is
-- another one, was moved or replaced, or if the id is there already.
local function put(name, namespace, family_name)
  local expected, id, item, digest, life, unchecked = take(), take(), take(), take(), tonumber(take()), take()
  local objects = take_list()
  local heads, line, family = thread_key(name) .. ":heads", line_key(name, namespace), family_key(family_name)
  local held, own = call("HMGET", heads, "family", "@" .. namespace), call("HMGET", family, "seq", "sweeps")
  if held[1] ~= family_name or held[2] ~= expected or not own[1] or call("EXISTS", line .. ":item:" .. id) == 1 then
    return { "stale", unpack(head_of(name, namespace)) }
  end
  if unchecked == "1" then
    check_type(line .. ":index", "zset")
    check_type(family .. ":objects", "hash")
    check_type(base .. "active", "zset")
    check_type(base .. "ids", "hash")
  end
  local time = now()
  local seq = whole(math.max(tonumber(own[1]) + 1, time))
  local raw = whole(parse_line(expected) + 1) .. " 0 " .. digest .. " " .. id
  call("HSET", family, "seq", seq)
  put_objects(family, own[2], objects, 1)
  put_item(line .. ":item:" .. id, item, life)
  call("ZADD", line .. ":index", seq, id)
  call("HSET", heads, "@" .. namespace, raw)
  call("ZADD", base .. "active", whole(time), name)
  if call("HSETNX", base .. "ids", id, line_name(name, namespace)) == 0 then add_id(id, name, namespace) end
  return { "done", seq, raw, "0" }
end

function verbs.put()
  return put(take(), take(), take())
end

-- The same for families that end some time, and with checkpoints to let go.
function verbs.put_and_prune()
  local pruned, life, name, namespace, family = take_list(), tonumber(take()), take(), take(), take()
  local reply = put(name, namespace, family)
  if reply[1] == "done" then
    prune(name, namespace, family, pruned)
    if touch(family, name, namespace, life, false) then reply[4] = "1" end
  end
  return reply
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
    local item = alive(other) == family_name and call("GET", line_key(other, other_namespace) .. ":item:" .. other_id)
    if not item or parse(item) ~= digest then return { "base" } end
  end
  local family, line = family_key(family_name), line_key(name, namespace)
  check_type(line .. ":written", "set")
  check_type(line .. ":writes:" .. id, "hash")
  check_type(family .. ":objects", "hash")
  add_objects(family, objects, 1)
  local seq = numbers(family, #writes / 3)
  for n = 1, #writes, 3 do
    local value = whole(seq + (n - 1) / 3) .. " " .. writes[n + 2]
    call(writes[n] == "last" and "HSET" or "HSETNX", line .. ":writes:" .. id, writes[n + 1], value)
  end
  call("SADD", line .. ":written", id)
  if life > 0 then set_life({ line .. ":written", line .. ":writes:" .. id }, life * 2) end
  touch(family_name, name, namespace, life, false)
  return { "done" }
end

local adopting = {
  -- Checkpoints go: name, namespace, family, ids.
  remove = function(command) remove(command[2], command[3], command[4], { unpack(command, 5) }, false) end,
  -- A namespace goes with everything: name, namespace, family.
  drop = function(command)
    local line = line_key(command[2], command[3])
    local ids = call("ZRANGE", line .. ":index", 0, -1)
    for _, id in ipairs(call("SMEMBERS", line .. ":written")) do ids[#ids + 1] = id end
    remove(command[2], command[3], command[4], ids, false)
    remove_keys({ line .. ":index", line .. ":pins", line .. ":began", line .. ":written" })
    call("HDEL", thread_key(command[2]) .. ":heads", "@" .. command[3])
  end,
  -- Pending writes go: name, namespace.
  unwrite = function(command)
    local line = line_key(command[2], command[3])
    for _, id in ipairs(call("SMEMBERS", line .. ":written")) do call("UNLINK", line .. ":writes:" .. id) end
    call("UNLINK", line .. ":written")
  end,
  -- These and no others are pinned: name, namespace, seqs.
  pin = function(command)
    local line = line_key(command[2], command[3])
    call("UNLINK", line .. ":pins")
    for n = 4, #command do
      for _, id in ipairs(call("ZRANGEBYSCORE", line .. ":index", command[n], command[n])) do
        call("SADD", line .. ":pins", id)
      end
    end
  end,
}

-- A change that was planned on what its writer saw: checks, then commands; all or nothing.
function verbs.commit()
  local checks, commands = {}, {}
  for n = 1, tonumber(take()) do checks[n] = { take(), base .. take(), take(), take() } end
  for n = 1, tonumber(take()) do commands[n] = take_list() end
  local family, name, namespace, life, pruned = take(), take(), take(), tonumber(take()), take_list()
  for _, check in ipairs(checks) do
    local kind, key, field, expected = unpack(check)
    local held
    if kind == "field" then
      held = call("HGET", key, field) or ""
    elseif kind == "item" then
      local item = call("GET", key)
      held = item and (parse(item) or "?") or ""
    else
      held = tostring(call("EXISTS", key))
    end
    if held ~= expected then return { "stale" } end
  end
  for _, command in ipairs(commands) do
    local kind = kinds[string.sub(command[1], 1, 1)]
    if kind and command[1] ~= "SET" then check_type(base .. command[2], kind) end
  end
  for _, command in ipairs(commands) do
    if command[1] == "id" then
      add_id(command[2], command[3], command[4])
    elseif command[1] == "objects" then
      add_objects(base .. command[2], command, 3)
    elseif command[1] == "release" then
      release_origin(command[2])
    elseif command[1] == "clear" then
      clear_remains(command[2])
    elseif command[1] == "active" then
      call("ZADD", base .. "active", whole(now()), command[2])
    elseif adopting[command[1]] then
      adopting[command[1]](command)
    else
      call(command[1], base .. command[2], unpack(command, 3))
    end
  end
  if #pruned > 0 then prune(name, namespace, family, pruned) end
  local renewed = touch(family, name, namespace, life, true)
  return { "done", renewed and "1" or "0" }
end

-- What a planned change starts from: the thread's own fields, its hidden stretches, and the head of one line.
function verbs.look()
  local name, namespace = take(), take()
  local family = alive(name)
  if not family then
    local remains = call("HGET", thread_key(name) .. ":heads", "family") or ""
    return { "absent", call("GET", base .. "alias:" .. escaped(name)) or "", remains }
  end
  local head = head_of(name, namespace)
  local generation = call("HGET", family_key(family), "generation") or "0"
  return { "found", call("HGETALL", thread_key(name) .. ":heads"), generation, head[3], head[4] }
end

-- The time, and the generation from which new lines of a family count on.
function verbs.begin()
  return { whole(now()), call("HGET", family_key(take()), "generation") or "0" }
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

-- A checkpoint (without an id: the head) with what was asked for.
function verbs.load()
  local name, namespace, which, id, objects, writes = take(), take(), take(), take(), take(), take()
  local family = alive(name)
  if not family then return absent(name) end
  local line = line_key(name, namespace)
  local raw = call("HGET", thread_key(name) .. ":heads", "@" .. namespace)
  if not raw then return { "none" } end
  if which == "head" then
    local _, _, digest, head = parse_line(raw)
    id = head
    if digest == "-" then return { "none", family, raw } end
  end
  local seq = call("ZSCORE", line .. ":index", id)
  if not seq then return { "none", family, raw } end
  local item = call("GET", line .. ":item:" .. id) or ""
  local found = objects == "1" and item ~= "" and fetch(family_key(family), hashes_of(item), true) or {}
  local attached = writes == "1" and call("HGETALL", line .. ":writes:" .. id) or {}
  return {
    "found", family, raw, id, seq, item, tostring(call("SISMEMBER", line .. ":pins", id)),
    call("HVALS", thread_key(name) .. ":hidden"), found, attached,
  }
end

function verbs.fetch()
  local family, below = family_key(take()), take()
  return fetch(family, take_list(), below == "1")
end

local function rows_of(line, ids, is_whole)
  local rows = {}
  for _, id in ipairs(ids) do
    local item = call("GET", line .. ":item:" .. id) or ""
    local seq = call("ZSCORE", line .. ":index", id)
    if seq then
      local marks = call("SISMEMBER", line .. ":pins", id) + 2 * call("HEXISTS", line .. ":began", id)
      rows[#rows + 1] = id
      rows[#rows + 1] = seq
      rows[#rows + 1] = is_whole == "1" and item or without_root(item)
      rows[#rows + 1] = marks
    end
  end
  return rows
end

-- The next checkpoints of a line in its own order.
function verbs.page()
  local name, namespace, order, low, high, count = take(), take(), take(), take(), take(), take()
  local family = alive(name)
  if not family then return absent(name) end
  local line, ids = line_key(name, namespace), nil
  if order == "oldest" then
    ids = call("ZRANGEBYSCORE", line .. ":index", low, high, "LIMIT", 0, count)
  else
    ids = call("ZREVRANGEBYSCORE", line .. ":index", high, low, "LIMIT", 0, count)
  end
  return { "found", family, call("HVALS", thread_key(name) .. ":hidden"), rows_of(line, ids, "0") }
end

function verbs.items()
  local name, namespace = take(), take()
  local family = alive(name)
  if not family then return absent(name) end
  local rows = rows_of(line_key(name, namespace), take_list(), "0")
  return { "found", family, call("HVALS", thread_key(name) .. ":hidden"), rows }
end

-- Every id of a thread: namespace, then ids and seqs.
function verbs.index()
  local name = take()
  if not alive(name) then return absent(name) end
  local lines = {}
  for _, namespace in ipairs(namespaces(name)) do
    lines[#lines + 1] = namespace
    lines[#lines + 1] = call("ZRANGE", line_key(name, namespace) .. ":index", 0, -1, "WITHSCORES")
  end
  return { "found", lines }
end

function verbs.count()
  local name, namespace, low, high = take(), take(), take(), take()
  if not alive(name) then return absent(name) end
  if call("EXISTS", thread_key(name) .. ":hidden") == 1 then return { "hidden" } end
  return { "found", call("ZCOUNT", line_key(name, namespace) .. ":index", low, high) }
end

function verbs.find()
  local id, found = take(), {}
  for line in string.gmatch(call("HGET", base .. "ids", id) or "", "[^\n]+") do
    local item = call("GET", base .. "thread:" .. line .. ":item:" .. id)
    if item then found[#found + 1] = without_root(item) end
  end
  return found
end

function verbs.names()
  local names = {}
  for _, name in ipairs(call("ZRANGE", base .. "active", 0, -1)) do
    if alive(name) then names[#names + 1] = name end
  end
  return names
end

-- The most recently active threads of the bucket: time, then what `rows_of` gives.
function verbs.threads()
  local count, headless, found = tonumber(take()), take(), {}
  local listed = call("ZREVRANGE", base .. "active", 0, -1, "WITHSCORES")
  for n = 1, #listed, 2 do
    if #found >= count then break end
    local name = listed[n]
    local family = alive(name)
    local shown = nil
    if family then
      local lines = namespaces(name)
      table.sort(lines)
      for _, namespace in ipairs(lines) do
        local _, _, digest, id = parse_line(call("HGET", thread_key(name) .. ":heads", "@" .. namespace))
        if digest ~= "-" then
          shown = { namespace, id }
          break
        end
      end
      for _, namespace in ipairs(not shown and headless == "1" and lines or {}) do
        local newest = call("ZREVRANGE", line_key(name, namespace) .. ":index", 0, 0)
        if newest[1] and not shown then shown = { namespace, newest[1] } end
      end
    end
    if shown then
      local line = line_key(name, shown[1])
      local hidden = call("HVALS", thread_key(name) .. ":hidden")
      found[#found + 1] = { listed[n + 1], family, hidden, rows_of(line, { shown[2] }, "0") }
    end
  end
  return found
end

function verbs.thread()
  local name, wants_branches = take(), take()
  local family_name = alive(name)
  if not family_name then return absent(name) end
  local family, newest, spared, branches = family_key(family_name), {}, {}, {}
  for _, namespace in ipairs(namespaces(name)) do
    local line = line_key(name, namespace)
    local last = call("ZREVRANGE", line .. ":index", 0, 0, "WITHSCORES")
    if last[2] then
      newest[#newest + 1] = namespace
      newest[#newest + 1] = last[2]
    end
    for _, list in ipairs({ call("SMEMBERS", line .. ":pins"), call("HKEYS", line .. ":began") }) do
      for _, id in ipairs(list) do spared[#spared + 1] = call("ZSCORE", line .. ":index", id) or "0" end
    end
  end
  for _, other in ipairs(wants_branches == "1" and call("SMEMBERS", family .. ":threads") or {}) do
    local held = call("HMGET", thread_key(other) .. ":heads", "made", "origin")
    if held[2] then branches[#branches + 1] = { held[1], other, held[2] } end
  end
  local garbage = call("HMGET", family, "live", "doomed")
  return {
    "found", call("HGETALL", thread_key(name) .. ":heads"), newest, call("HVALS", thread_key(name) .. ":hidden"),
    call("HGETALL", family .. ":runs"), call("HGETALL", family .. ":commons"), spared, branches,
    garbage[1] or "0", garbage[2] or "0",
  }
end

function verbs.log()
  local name = take()
  if not alive(name) then return absent(name) end
  return { "found", call("HGETALL", thread_key(name) .. ":log") }
end

-- Delete checkpoints (or, with "all", whole lines) and entries of the log; drop what nothing is left of.
function verbs.delete()
  local name, spare, operations, count = take(), take() == "1", take_list(), 0
  local family_name = alive(name)
  if not family_name then return absent(name) end
  local family = family_key(family_name)
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
  if #namespaces(name) > 0 then return { "found", count, family_name, "thread" } end
  drop_thread(name, family)
  return { "found", count, family_name, call("EXISTS", family) == 1 and "family" or "nothing" }
end

-- Begin a sweep: every hash that a checkpoint, a write or a common state refers to.
function verbs.roots()
  local family_name, pretend, without = take(), take(), {}
  local family = family_key(family_name)
  for _, key in ipairs(take_list()) do without[key] = true end
  if call("EXISTS", family) == 0 then return {} end
  local seen, roots = {}, {}
  local function note(hash)
    if not seen[hash] then
      seen[hash] = true
      roots[#roots + 1] = hash
    end
  end
  for _, name in ipairs(call("SMEMBERS", family .. ":threads")) do
    for _, namespace in ipairs(namespaces(name)) do
      local line = line_key(name, namespace)
      for _, id in ipairs(call("ZRANGE", line .. ":index", 0, -1)) do
        local item = not without[line .. ":item:" .. id] and call("GET", line .. ":item:" .. id)
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
  for _, common in ipairs(call("HVALS", family .. ":commons")) do
    local size, rest = string.match(common, "^(%d+) (.*)$")
    each_hash(string.sub(rest, 1, tonumber(size)), note)
  end
  local epoch = pretend == "1" and (call("HGET", family, "sweeps") or "0") or call("HINCRBY", family, "sweeps", 1)
  return { epoch, call("HGET", family, "doomed") or "0", roots }
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
    found[#found + 1] = struct.unpack(">I4", value)
    found[#found + 1] = #value - 8
  end
  return { reply[1], found }
end

-- Remove objects, but for those that were sent again since the sweep of that epoch began.
function verbs.discard()
  local family, epoch = family_key(take()), tonumber(take())
  for _, hash in ipairs(take_list()) do
    local value = call("HGET", family .. ":objects", hash)
    if value and struct.unpack(">I4", value) < epoch then call("HDEL", family .. ":objects", hash) end
  end
  return { "done" }
end

function verbs.swept()
  local family, live, doomed = family_key(take()), take(), tonumber(take())
  if call("EXISTS", family) == 0 then return { "done" } end
  call("HSET", family, "live", live)
  local held = tonumber(call("HGET", family, "doomed") or 0)
  call("HSET", family, "doomed", whole(math.max(0, held - doomed)))
  return { "done" }
end

-- Note where a thread is kept that does not begin a family here; not if it lives in this very bucket, nor if it is noted
-- to be elsewhere, unless that is `old`.
function verbs.alias()
  local name, bucket, life, old = take(), take(), tonumber(take()), take()
  local key = base .. "alias:" .. escaped(name)
  local held = call("GET", key)
  if alive(name) then return { "here" } end
  if held and held ~= bucket and held ~= old then return { "elsewhere", held } end
  if life > 0 then call("SET", key, bucket, "PX", life * 4) else call("SET", key, bucket) end
  return { "done" }
end

-- Everything that is kept of a thread besides its checkpoints and their objects.
function verbs.raw()
  local name, wants_kin = take(), take()
  local family_name = alive(name)
  if not family_name then return absent(name) end
  local family, heads, newest, pins, writes = family_key(family_name), thread_key(name) .. ":heads", {}, {}, {}
  for _, namespace in ipairs(namespaces(name)) do
    local line = line_key(name, namespace)
    newest[#newest + 1] = namespace
    newest[#newest + 1] = call("ZREVRANGE", line .. ":index", 0, 0, "WITHSCORES")[2] or "0"
    for _, id in ipairs(call("SMEMBERS", line .. ":pins")) do pins[#pins + 1] = call("ZSCORE", line .. ":index", id) or "0" end
    for _, id in ipairs(call("SMEMBERS", line .. ":written")) do
      writes[#writes + 1] = { namespace, id, call("HGETALL", line .. ":writes:" .. id) }
    end
  end
  local line, id = string.match(call("HGET", heads, "began") or "", "^([^\n]*)\n(.*)$")
  local began = "0"
  if line and call("HEXISTS", base .. "thread:" .. line .. ":began", id) == 1 then
    began = call("ZSCORE", base .. "thread:" .. line .. ":index", id) or "0"
  end
  return {
    "found", call("HGETALL", heads), newest, call("HVALS", thread_key(name) .. ":hidden"),
    call("HGETALL", thread_key(name) .. ":log"), writes, call("HGETALL", family .. ":runs"),
    call("HGETALL", family .. ":commons"), pins, began, call("ZSCORE", base .. "active", name) or "0",
    wants_kin == "1" and call("SMEMBERS", family .. ":threads") or {},
  }
end

-- A write that follows all others, so that its confirmation by replicas confirms them too.
function verbs.confirm()
  local family = family_key(take())
  if call("EXISTS", family) == 1 then call("HINCRBY", family, "confirmed", 1) end
  return { "done" }
end

function verbs.unalias()
  call("DEL", base .. "alias:" .. escaped(take()))
  return { "done" }
end

