-- Schema 13 of the PostgreSQL store, the first that is released. Names in braces are filled in with the schema and the
-- table prefix. Everything a user names or saves is bytea: text columns cannot hold NUL. Primary keys start with the
-- family, so that each table but `meta`, `names`, `gone` and `families` can be hash-partitioned by it.
--
-- Rows that others count on are counted (`lines`, `operations`, `stored`, `stretches`, `segments`), so that the loss of
-- one is noticed. Where writes name a checkpoint or a task, a UUID is 17 bytes (`packed`); checkpoints.id is text: it is
-- an order.

CREATE TABLE {meta} (
    version   int NOT NULL,
    identity  bytea NOT NULL                    -- the name of this store among all others
);
INSERT INTO {meta} VALUES (0, uuid_send(gen_random_uuid()));

CREATE SEQUENCE {numbers};                      -- one source of numbers: order of arrival, families, rows

CREATE TABLE {families} (
    id          bigint PRIMARY KEY,
    format      int NOT NULL,                   -- the address function of its objects
    sweeps      bigint NOT NULL,                -- counts deletions of objects: a sweep that was overtaken starts again
    live        bigint NOT NULL,                -- bytes that the last sweep found in use
    generation  bigint NOT NULL,                -- the highest of the lines that are gone: new ones go on from there
    shift       bigint NOT NULL,                -- how far its numbers are ahead of the sequence's: some were reserved
    swept       int NOT NULL DEFAULT 0          -- 2: swept, and nothing has gone since; more: by whom
);

CREATE TABLE {names} (                          -- where a thread is
    name    bytea PRIMARY KEY,
    family  bigint NOT NULL,
    thread  bigint NOT NULL
);

CREATE TABLE {threads} (
    family      bigint NOT NULL,
    id          bigint NOT NULL,
    name        bytea NOT NULL,
    began       bigint,                         -- checkpoints.seq where a branch began
    origin      bytea,                          -- its full name
    note        bytea,                          -- what a copy keeps with the thread it has made
    lines       bigint NOT NULL DEFAULT 0,      -- how many lines it has
    operations  bigint NOT NULL DEFAULT 0,      -- how many entries its log has
    PRIMARY KEY (family, id)
);
-- A thread whose row of names is lost is found here, so that nobody begins it anew.
CREATE INDEX ON {threads} (name);

CREATE TABLE {shared_states} (                  -- the last states that two threads had in common
    family    bigint NOT NULL,
    low       bigint NOT NULL,                  -- threads.id, the smaller one first
    high      bigint NOT NULL,
    seq       bigint NOT NULL,                  -- the number of that checkpoint
    data      bytea NOT NULL,
    children  bytea NOT NULL,
    PRIMARY KEY (family, low, high, seq)
);

CREATE TABLE {lines} (                          -- a namespace of a thread
    family          bigint NOT NULL,
    id              bigint NOT NULL,
    thread          bigint NOT NULL,
    namespace       bytea NOT NULL,
    head            bigint,                     -- checkpoints.seq
    head_was_moved  boolean NOT NULL,           -- the head was moved: the next checkpoint starts a new segment
    generation      bigint NOT NULL,            -- counts the moves of the head
    active          timestamptz NOT NULL,       -- orders threads by activity, nothing else
    unreferenced    bigint NOT NULL,            -- bytes that deleted checkpoints had added, since the last sweep
    stored          bigint NOT NULL DEFAULT 0,  -- how many checkpoints it has
    stretches       bigint NOT NULL DEFAULT 0,  -- how many rows of `hidden` it has
    segments        bigint NOT NULL DEFAULT 0,  -- how many rows of `segments` it has
    incoming        boolean NOT NULL DEFAULT false, -- a copy brings checkpoints, and has not set the head yet
    -- Most commits leave the minute as it is, so that the row is still changed in place: an index on `active` itself would
    -- be written with every commit, and with it all the others. NULL: never active.
    minute          timestamptz GENERATED ALWAYS AS
        (CASE WHEN isfinite(active) THEN date_bin(interval '1 minute', active, 'epoch'::timestamptz) END) STORED,
    PRIMARY KEY (family, id),
    UNIQUE (family, thread, namespace)
) WITH (fillfactor = 50);                       -- updated with every commit, in place
CREATE INDEX ON {lines} (minute);

CREATE TABLE {segments} (                       -- what a segment follows, where it follows something
    family   bigint NOT NULL,
    segment  bigint NOT NULL,                   -- the seq of its first checkpoint
    line     bigint,                            -- NULL: deleted; others may still come from it
    data     bytea NOT NULL,
    PRIMARY KEY (family, segment)
);
CREATE INDEX ON {segments} (family, line) WHERE line IS NOT NULL;

CREATE TABLE {checkpoints} (
    family    bigint NOT NULL,
    line      bigint NOT NULL,
    seq       bigint NOT NULL,
    segment   bigint NOT NULL,
    added     bigint NOT NULL,                  -- bytes that came with it
    step      bigint NOT NULL,
    branches  int NOT NULL,                     -- how many living branches began here
    pinned    boolean NOT NULL,
    id        bytea NOT NULL,
    labels    bigint[],                         -- a number per entry of the metadata, for filters; NULL: none
    info      bytea NOT NULL,                   -- what listing shows, behind a checksum
    children  bytea NOT NULL,                   -- hashes the root refers to
    root      bytea NOT NULL,                   -- the root's own bytes, behind a checksum
    PRIMARY KEY (family, line, seq)
);
ALTER TABLE {checkpoints} ALTER info SET STORAGE EXTERNAL, ALTER children SET STORAGE EXTERNAL,
    ALTER root SET STORAGE EXTERNAL;
CREATE UNIQUE INDEX ON {checkpoints} (id, family, line);  -- unique, so that its use is never a guess
CREATE INDEX ON {checkpoints} USING gin (labels) WHERE labels IS NOT NULL;
CREATE INDEX ON {checkpoints} (family, line) WHERE pinned OR branches > 0;

CREATE TABLE {objects} (
    family    bigint NOT NULL,
    id        bigint NOT NULL,                  -- an object that is sent again gets a new one: no sweep takes it
    hash      bytea NOT NULL,
    children  bytea NOT NULL,
    body      bytea NOT NULL,
    PRIMARY KEY (family, hash)
);
ALTER TABLE {objects} ALTER body SET STORAGE EXTERNAL, ALTER children SET STORAGE EXTERNAL;

CREATE TABLE {writes} (
    family      bigint NOT NULL,
    line        bigint NOT NULL,
    seq         bigint NOT NULL,
    idx         bigint NOT NULL,
    checkpoint  bytea NOT NULL,                 -- need not be stored yet
    task        bytea NOT NULL,
    info        bytea NOT NULL,
    children    bytea NOT NULL,
    PRIMARY KEY (family, line, checkpoint, task, idx)
);

CREATE TABLE {operations} (
    family  bigint NOT NULL,
    thread  bigint NOT NULL,
    seq     bigint NOT NULL,
    undone  boolean NOT NULL,
    data    bytea NOT NULL,
    PRIMARY KEY (family, thread, seq)
);

CREATE TABLE {hidden} (                         -- stretches of a line that are not listed
    family     bigint NOT NULL,
    line       bigint NOT NULL,
    operation  bigint NOT NULL,
    after      bigint NOT NULL,
    upto       bigint NOT NULL,
    segment    bigint,                          -- NULL: of every segment
    writes_of  bytea
);
CREATE INDEX ON {hidden} (family, line);

-- A thread that is deleted leaves a mark.
CREATE TABLE {gone} (
    name  bytea PRIMARY KEY,                    -- the first half of the SHA-256 of the thread's name
    seq   bigint NOT NULL                       -- greater than those of its checkpoints
);
CREATE INDEX ON {gone} (seq);

CREATE TABLE {covers} (                         -- the union of hidden stretches: they neither overlap nor touch
    family   bigint NOT NULL,
    line     bigint NOT NULL,
    segment  bigint NOT NULL,                   -- 0: of every segment
    upto     bigint NOT NULL,
    after    bigint NOT NULL,
    PRIMARY KEY (family, line, segment, upto)
);

-- Who adds objects holds this until the commit: a sweep that begins waits for them, since it must see what they need.
-- (All functions are in plpgsql, which keeps the plans of what it runs. So they are told to use indexes: a plan that was
-- made while a table was small would read all of it when it has grown.)
CREATE FUNCTION {guard}(_family bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(1163285332, (_family % 2147483647)::int);
END $$;

CREATE FUNCTION {alone}(_family bigint) RETURNS void LANGUAGE sql AS $$
    SELECT pg_advisory_xact_lock(1163285332, (_family % 2147483647)::int)
$$;

-- The objects of these hashes (joined), and all below them: one query per level, whose plan does not depend on guesses
-- about how many there are.
CREATE FUNCTION {below}(_family bigint, _wanted bytea) RETURNS TABLE (hash bytea, children bytea, body bytea)
LANGUAGE plpgsql STABLE ROWS 100 SET enable_seqscan = off AS $$
DECLARE
    _level bytea[] := ARRAY(SELECT DISTINCT substr(_wanted, g.at, 16) FROM generate_series(1, length(_wanted), 16) g (at));
    _seen bytea[] := _level;
BEGIN
    WHILE cardinality(_level) > 0 LOOP
        RETURN QUERY SELECT o.hash, o.children, o.body FROM {objects} o WHERE o.family = _family AND o.hash = ANY (_level);
        _level := ARRAY(
            SELECT substr(o.children, g.at, 16) FROM {objects} o
            CROSS JOIN LATERAL generate_series(1, length(o.children), 16) g (at)
            WHERE o.family = _family AND o.hash = ANY (_level)
            EXCEPT SELECT s FROM unnest(_seen) s
        );
        _seen := _seen || _level;
    END LOOP;
END $$;

-- Keep objects. One that is there already gets a new number, so that no sweep under way takes it.
CREATE FUNCTION {keep}(_family bigint, _hashes bytea[], _belows bytea[], _bodies bytea[]) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
    INSERT INTO {objects} (family, id, hash, children, body)
        SELECT _family, nextval('{numbers}'), u.hash, u.below, u.body
        FROM unnest(_hashes, _belows, _bodies) AS u (hash, below, body)
        ON CONFLICT (family, hash) DO UPDATE SET id = excluded.id;
END $$;

-- What `packed_id` returns: the byte FF, which no UTF-8 has, and the UUID; anything but its usual text stays as it is.
CREATE FUNCTION {packed}(_id bytea) RETURNS bytea LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN length(_id) = 36
                AND encode(_id, 'escape') COLLATE "C" ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$'
                THEN decode('ff' || replace(encode(_id, 'escape'), '-', ''), 'hex') ELSE _id END
$$;

-- Whether a checkpoint of the same segment comes after this one. (Functions keep their plans: a subquery would be planned with
-- every read.)
CREATE FUNCTION {is_followed}(_family bigint, _line bigint, _seq bigint, _segment bigint) RETURNS boolean
LANGUAGE plpgsql STABLE SET enable_seqscan = off AS $$
BEGIN
    RETURN EXISTS (SELECT 1 FROM {checkpoints} c
                   WHERE c.family = _family AND c.line = _line AND c.seq > _seq AND c.segment = _segment);
END $$;

-- How many stretches of a line are hidden.
CREATE FUNCTION {stretches}(_family bigint, _line bigint) RETURNS bigint
LANGUAGE plpgsql STABLE SET enable_seqscan = off AS $$
BEGIN
    RETURN (SELECT count(*) FROM {hidden} h WHERE h.family = _family AND h.line = _line);
END $$;

-- The usual commit, in one round trip: a checkpoint that follows the head its writer saw. Returns its seq; or NULL if
-- the head is another one, was moved, or was replaced, or if the id is there already: then it is done the long way.
CREATE FUNCTION {put}(
    _family bigint, _line bigint, _generation bigint, _head bigint, _digest bytea, _segment bigint, _added bigint,
    _step bigint, _id bytea, _labels bigint[], _info bytea, _children bytea, _root bytea,
    _hashes bytea[], _belows bytea[], _bodies bytea[], _prune bigint[],
    _fence_name bytea, _fence_namespace bytea, _fence bytea, _fence_digest bytea
) RETURNS bigint LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    _seq bigint;
    _freed bigint := 0;
    _pruned bigint := 0;
    _gone bigint;
    _name bytea;
    _victim bigint;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(1163285332, (_family % 2147483647)::int);  -- {guard}, one call less
    PERFORM 1 FROM {lines} WHERE family = _family AND id = _line AND head = _head AND generation = _generation
        AND NOT head_was_moved FOR NO KEY UPDATE;
    IF NOT FOUND THEN RETURN NULL; END IF;
    PERFORM 1 FROM {checkpoints} WHERE family = _family AND line = _line AND seq = _head
        AND substr(info, 1, 8) || substr(root, 1, 8) = _digest
        AND NOT EXISTS (SELECT 1 FROM {checkpoints} c WHERE c.id = _id AND c.family = _family AND c.line = _line);
    IF NOT FOUND THEN RETURN NULL; END IF;
    IF _fence IS NOT NULL THEN
        PERFORM 1 FROM {names} n
            JOIN {lines} l ON l.family = n.family AND l.thread = n.thread
            JOIN {checkpoints} c ON c.family = l.family AND c.line = l.id
            WHERE n.name = _fence_name AND n.family = _family AND l.namespace = _fence_namespace AND c.id = _fence
            AND substr(c.info, 1, 8) || substr(c.root, 1, 8) = _fence_digest FOR KEY SHARE OF c;
        IF NOT FOUND THEN RETURN NULL; END IF;
    END IF;
    IF cardinality(_hashes) > 0 THEN
        INSERT INTO {objects} (family, id, hash, children, body)
            SELECT _family, nextval('{numbers}'), u.hash, u.below, u.body
            FROM unnest(_hashes, _belows, _bodies) AS u (hash, below, body)
            ON CONFLICT (family, hash) DO UPDATE SET id = excluded.id;
    END IF;
    SELECT nextval('{numbers}') + shift INTO _seq FROM {families} WHERE id = _family;
    INSERT INTO {checkpoints} (family, line, seq, segment, added, step, branches, pinned, id, labels, info, children, root)
        VALUES (_family, _line, _seq, _segment, _added, _step, 0, false, _id,
                _labels || NULL::bigint[],  -- a flat copy: an array as plpgsql holds it takes some ten bytes more
                _info, _children, _root);
    FOREACH _victim IN ARRAY _prune LOOP
        DELETE FROM {checkpoints} WHERE family = _family AND line = _line AND seq = _victim
            AND NOT pinned AND branches = 0 RETURNING added, id INTO _gone, _name;
        IF FOUND THEN
            DELETE FROM {writes} WHERE family = _family AND line = _line AND checkpoint = {packed}(_name);
            _freed := _freed + _gone;
            _pruned := _pruned + 1;
        END IF;
    END LOOP;
    UPDATE {lines} SET head = _seq, generation = generation + 1, active = clock_timestamp(),
                       unreferenced = unreferenced + _freed, stored = stored + 1 - _pruned
        WHERE family = _family AND id = _line;
    RETURN _seq;
END $$;

-- Bytes behind a checksum that also covers a number, as `digest` in records.py makes it.
CREATE FUNCTION {sealed}(_packed bytea, _number bigint) RETURNS bytea LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT substr(sha256(convert_to(length(_packed) || ':', 'UTF8') || _packed
                         || convert_to(length(_number::text) || ':' || _number, 'UTF8')), 1, 8) || _packed
$$;

-- The first checkpoint of a thread, or of a namespace of it, in one round trip. It may rest on a checkpoint of the same
-- thread. Returns the same as {branch}; or NULL if the line is there, its base is not as named, or rows are missing: then
-- it is done the long way.
CREATE FUNCTION {begin}(
    _name bytea, _namespace bytea, _format bigint, _added bigint, _step bigint, _id bytea, _labels bigint[], _info bytea,
    _children bytea, _root bytea, _hashes bytea[], _belows bytea[], _bodies bytea[],
    _base_namespace bytea, _base bytea, _base_digest bytea
) RETURNS bytea LANGUAGE plpgsql SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    _family bigint;
    _thread bigint;
    _line bigint;
    _seq bigint;
    _shift bigint := 0;
    _generation bigint := 1;
    _is_whole boolean;
BEGIN
    SELECT n.family, n.thread INTO _family, _thread FROM {names} n WHERE n.name = _name;
    IF FOUND THEN
        PERFORM pg_advisory_xact_lock_shared(1163285332, (_family % 2147483647)::int);  -- {guard}, one call less
        PERFORM 1 FROM {names} n WHERE n.name = _name AND n.family = _family AND n.thread = _thread FOR KEY SHARE;
        IF NOT FOUND THEN RETURN NULL; END IF;
        PERFORM 1 FROM {lines} l WHERE l.family = _family AND l.thread = _thread AND l.namespace = _namespace;
        IF FOUND THEN RETURN NULL; END IF;
        -- One that has lost a namespace must not get it back as an empty one.
        SELECT t.lines = (SELECT count(*) FROM {lines} l WHERE l.family = _family AND l.thread = _thread) INTO _is_whole
            FROM {threads} t WHERE t.family = _family AND t.id = _thread;
        IF _is_whole IS NOT TRUE THEN RETURN NULL; END IF;
        SELECT f.shift, f.generation + 1 INTO _shift, _generation FROM {families} f WHERE f.id = _family;
        IF NOT FOUND THEN RETURN NULL; END IF;
        IF _base IS NOT NULL THEN
            PERFORM 1 FROM {lines} l JOIN {checkpoints} c ON c.family = l.family AND c.line = l.id
                WHERE l.family = _family AND l.thread = _thread AND l.namespace = _base_namespace AND c.id = _base
                AND substr(c.info, 1, 8) || substr(c.root, 1, 8) = _base_digest FOR KEY SHARE OF c;
            IF NOT FOUND THEN RETURN NULL; END IF;
        END IF;
        UPDATE {threads} SET lines = lines + 1 WHERE family = _family AND id = _thread;
    ELSE
        PERFORM 1 FROM {threads} t WHERE t.name = _name;
        IF FOUND OR _base IS NOT NULL THEN RETURN NULL; END IF;
        _family := nextval('{numbers}');
        _thread := nextval('{numbers}');
        PERFORM pg_advisory_xact_lock_shared(1163285332, (_family % 2147483647)::int);
        INSERT INTO {families} (id, format, sweeps, live, generation, shift) VALUES (_family, _format, 0, 0, 0, 0);
        INSERT INTO {names} (name, family, thread) VALUES (_name, _family, _thread);
        INSERT INTO {threads} (family, id, name, lines) VALUES (_family, _thread, _name, 1);
    END IF;
    IF cardinality(_hashes) > 0 THEN
        PERFORM {keep}(_family, _hashes, _belows, _bodies);
    END IF;
    _line := nextval('{numbers}');
    _seq := nextval('{numbers}') + _shift;
    INSERT INTO {lines} (family, id, thread, namespace, head, head_was_moved, generation, active, unreferenced, stored)
        VALUES (_family, _line, _thread, _namespace, _seq, false, _generation, clock_timestamp(), 0, 1);
    INSERT INTO {checkpoints} (family, line, seq, segment, added, step, branches, pinned, id, labels, info, children, root)
        VALUES (_family, _line, _seq, _seq, _added, _step, 0, false, _id, _labels || NULL::bigint[], _info, _children, _root);
    RETURN int8send(_family) || int8send(_line) || int8send(_seq) || int8send(_generation);
END $$;

-- Attach writes, in one round trip. False if the line is not there or the base is not as named: then it is done the
-- long way. Where idx >= 0 the first write stays, else the last wins.
CREATE FUNCTION {attach}(
    _name bytea, _namespace bytea, _checkpoint bytea,
    _base_name bytea, _base_namespace bytea, _base bytea, _digest bytea,
    _hashes bytea[], _belows bytea[], _bodies bytea[],
    _tasks bytea[], _idxs bigint[], _infos bytea[], _childrens bytea[]
) RETURNS boolean LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    _family bigint;
    _line bigint;
BEGIN
    SELECT l.family, l.id INTO _family, _line FROM {names} n
        JOIN {lines} l ON l.family = n.family AND l.thread = n.thread
        WHERE n.name = _name AND l.namespace = _namespace;
    IF NOT FOUND THEN RETURN false; END IF;
    PERFORM {guard}(_family);
    PERFORM 1 FROM {lines} WHERE family = _family AND id = _line FOR KEY SHARE;
    IF NOT FOUND THEN RETURN false; END IF;
    IF _base IS NOT NULL THEN
        PERFORM 1 FROM {names} n
            JOIN {lines} l ON l.family = n.family AND l.thread = n.thread
            JOIN {checkpoints} c ON c.family = l.family AND c.line = l.id
            WHERE n.name = _base_name AND n.family = _family AND l.namespace = _base_namespace AND c.id = _base
            AND substr(c.info, 1, 8) || substr(c.root, 1, 8) = _digest FOR KEY SHARE OF c;
        IF NOT FOUND THEN RETURN false; END IF;
    END IF;
    IF cardinality(_hashes) > 0 THEN
        PERFORM {keep}(_family, _hashes, _belows, _bodies);
    END IF;
    INSERT INTO {writes} AS w (family, line, seq, idx, checkpoint, task, info, children)
        SELECT _family, _line, nextval('{numbers}') + (SELECT shift FROM {families} WHERE id = _family), u.idx, _checkpoint, u.task, u.info, u.children
        FROM unnest(_tasks, _idxs, _infos, _childrens) AS u (task, idx, info, children)
        ON CONFLICT (family, line, checkpoint, task, idx)
        DO UPDATE SET seq = excluded.seq, info = excluded.info, children = excluded.children WHERE w.idx < 0;
    RETURN true;
END $$;

-- The union of the stretches of a line that no cover has.
CREATE FUNCTION {cover_rest}(_family bigint, _line bigint, _segment bigint) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
    INSERT INTO {covers} (family, line, segment, upto, after)
        SELECT _family, _line, _segment, max(i.upto), min(i.after) FROM
            (SELECT s.*, sum(s.starts) OVER (ORDER BY s.after, s.upto) AS island FROM
                (SELECT h.after, h.upto,
                        (coalesce(h.after > max(h.upto) OVER (ORDER BY h.after, h.upto
                                  ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), true))::int AS starts
                 FROM {hidden} h WHERE h.family = _family AND h.line = _line AND h.writes_of IS NULL
                 AND coalesce(h.segment, 0) = _segment
                 AND NOT EXISTS (SELECT 1 FROM {covers} v WHERE v.family = _family AND v.line = _line AND v.segment = _segment
                                 AND v.upto >= h.upto AND v.after <= h.after)) s) i
        GROUP BY i.island;
END $$;

-- A new stretch takes in all that it overlaps or touches.
CREATE FUNCTION {cover}() RETURNS trigger LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    _segment bigint := coalesce(NEW.segment, 0);
    _after bigint;
    _upto bigint;
BEGIN
    WITH gone AS (
        DELETE FROM {covers} v WHERE v.family = NEW.family AND v.line = NEW.line AND v.segment = _segment
        AND v.upto >= NEW.after AND v.after <= NEW.upto RETURNING v.after, v.upto
    ) SELECT min(g.after), max(g.upto) INTO _after, _upto FROM gone g;
    INSERT INTO {covers} (family, line, segment, upto, after)
        VALUES (NEW.family, NEW.line, _segment, greatest(NEW.upto, _upto), least(NEW.after, _after));
    RETURN NULL;
END $$;

-- If a stretch goes that has something to hide, what it was part of is made anew from the others that are left. (Where
-- nothing is stored nothing can be shown by mistake: numbers are never used twice.)
CREATE FUNCTION {uncover}() RETURNS trigger LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    _segment bigint := coalesce(OLD.segment, 0);
BEGIN
    PERFORM 1 FROM {checkpoints} WHERE family = OLD.family AND line = OLD.line AND seq > OLD.after AND seq <= OLD.upto
        LIMIT 1;
    IF NOT FOUND THEN RETURN NULL; END IF;
    DELETE FROM {covers} WHERE family = OLD.family AND line = OLD.line AND segment = _segment
        AND upto >= OLD.upto AND after <= OLD.after;
    IF FOUND THEN PERFORM {cover_rest}(OLD.family, OLD.line, _segment); END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION {uncover_all}() RETURNS trigger LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
    DELETE FROM {covers} WHERE family = OLD.family AND line = OLD.id;
    RETURN NULL;
END $$;

CREATE TRIGGER everstep_cover AFTER INSERT ON {hidden} FOR EACH ROW WHEN (NEW.writes_of IS NULL)
    EXECUTE FUNCTION {cover}();
CREATE TRIGGER everstep_uncover AFTER DELETE ON {hidden} FOR EACH ROW WHEN (OLD.writes_of IS NULL)
    EXECUTE FUNCTION {uncover}();
CREATE TRIGGER everstep_uncover_all AFTER DELETE ON {lines} FOR EACH ROW EXECUTE FUNCTION {uncover_all}();

-- Whether a family may hold objects that nobody needs: only those are swept.
-- Whatever may leave an object without anybody who needs it is noted here.
CREATE FUNCTION {unswept}() RETURNS trigger LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
    UPDATE {families} SET swept = 0 WHERE id = OLD.family AND swept > 0;
    RETURN NULL;
END $$;

CREATE TRIGGER everstep_dropped AFTER DELETE ON {checkpoints} FOR EACH ROW EXECUTE FUNCTION {unswept}();
CREATE TRIGGER everstep_replaced AFTER UPDATE OF children ON {checkpoints} FOR EACH ROW
    WHEN (OLD.children <> NEW.children) EXECUTE FUNCTION {unswept}();
CREATE TRIGGER everstep_dropped AFTER DELETE ON {writes} FOR EACH ROW
    WHEN (length(OLD.children) > 0) EXECUTE FUNCTION {unswept}();
CREATE TRIGGER everstep_replaced AFTER UPDATE OF children ON {writes} FOR EACH ROW
    WHEN (OLD.children <> NEW.children) EXECUTE FUNCTION {unswept}();
CREATE TRIGGER everstep_dropped AFTER DELETE ON {shared_states} FOR EACH ROW EXECUTE FUNCTION {unswept}();
CREATE TRIGGER everstep_replaced AFTER UPDATE OF children ON {shared_states} FOR EACH ROW EXECUTE FUNCTION {unswept}();

-- for people: a view

-- One item of MessagePack at a place (from 1 on): its kind (i a whole number, s text, a a list, m a mapping, x any
-- other), its value (the number, or how many bytes or items follow), and the place after its head.
CREATE FUNCTION {item}(_data bytea, _at int, OUT kind "char", OUT value bigint, OUT after int)
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    _byte int := get_byte(_data, _at - 1);
    _size int := 0;  -- of the number behind the first byte
    _more int := 0;  -- bytes of a kind that are skipped with the head
BEGIN
    value := 0;
    IF _byte < 128 THEN kind := 'i'; value := _byte;
    ELSIF _byte < 144 THEN kind := 'm'; value := _byte - 128;
    ELSIF _byte < 160 THEN kind := 'a'; value := _byte - 144;
    ELSIF _byte < 192 THEN kind := 's'; value := _byte - 160;
    ELSIF _byte IN (192, 194, 195) THEN kind := 'x';
    ELSIF _byte BETWEEN 196 AND 198 THEN kind := 'x'; _size := 1 << (_byte - 196);
    ELSIF _byte BETWEEN 199 AND 201 THEN kind := 'x'; _size := 1 << (_byte - 199); _more := 1;
    ELSIF _byte IN (202, 203) THEN kind := 'x'; value := 4 << (_byte - 202);
    ELSIF _byte BETWEEN 204 AND 207 THEN kind := 'i'; _size := 1 << (_byte - 204);
    ELSIF _byte BETWEEN 208 AND 211 THEN kind := 'i'; _size := 1 << (_byte - 208);
    ELSIF _byte BETWEEN 212 AND 216 THEN kind := 'x'; value := 1 << (_byte - 212); _more := 1;
    ELSIF _byte BETWEEN 217 AND 219 THEN kind := 's'; _size := 1 << (_byte - 217);
    ELSIF _byte IN (220, 221) THEN kind := 'a'; _size := 2 << (_byte - 220);
    ELSIF _byte IN (222, 223) THEN kind := 'm'; _size := 2 << (_byte - 222);
    ELSE kind := 'i'; value := _byte - 256;
    END IF;
    FOR _n IN 1 .. _size LOOP
        value := (value << 8) + get_byte(_data, _at - 1 + _n);
    END LOOP;
    after := _at + 1 + _size + _more;
END $$;

-- Text as people read it. What PostgreSQL cannot hold as text is shown escaped.
CREATE FUNCTION {readable}(_text bytea) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN position('\x00'::bytea IN _text) > 0 THEN encode(_text, 'escape')
                ELSE convert_from(_text, 'UTF8') END
$$;

-- What a checkpoint says of itself: when it was made, its tags and its summary. Nothing if it is packed (as LangGraph's
-- are, which have neither tags nor a summary) or damaged: that is for the readers of checkpoints to say.
CREATE FUNCTION {told}(_info bytea, OUT created timestamptz, OUT tags text[], OUT summary text)
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    _item record;
    _at int := 9;  -- behind the checksum
    _left bigint;
BEGIN
    tags := '{}';
    summary := '';
    SELECT * INTO _item FROM {item}(_info, _at);
    IF _item.kind <> 'a' OR _item.value < 9 THEN RETURN; END IF;
    SELECT * INTO _item FROM {item}(_info, _item.after);
    IF _item.kind = 'i' THEN
        created := 'epoch'::timestamptz + _item.value * interval '1 microsecond';
        _at := _item.after;
    ELSE
        BEGIN
            created := {readable}(substr(_info, _item.after, _item.value::int))::timestamptz;
        EXCEPTION WHEN OTHERS THEN created := NULL;  -- any text may stand there
        END;
        _at := _item.after + _item.value::int;
    END IF;
    _left := 1;  -- parents
    WHILE _left > 0 LOOP
        SELECT * INTO _item FROM {item}(_info, _at);
        _at := _item.after;
        _left := _left - 1;
        IF _item.kind = 'a' THEN _left := _left + _item.value;
        ELSIF _item.kind = 'm' THEN _left := _left + 2 * _item.value;
        ELSIF _item.kind <> 'i' THEN _at := _at + _item.value::int;
        END IF;
    END LOOP;
    SELECT * INTO _item FROM {item}(_info, _at);
    _at := _item.after;
    FOR _n IN 1 .. _item.value LOOP
        SELECT * INTO _item FROM {item}(_info, _at);
        IF _item.kind = 's' THEN
            tags := tags || {readable}(substr(_info, _item.after, _item.value::int));
        END IF;
        _at := _item.after + _item.value::int;
    END LOOP;
    SELECT * INTO _item FROM {item}(_info, _at);
    IF _item.kind = 's' THEN summary := {readable}(substr(_info, _item.after, _item.value::int)); END IF;
EXCEPTION WHEN OTHERS THEN
    RETURN;
END $$;

-- Who is there, for people: a row for each visible checkpoint.
CREATE VIEW {overview} AS
    SELECT {readable}(t.name) AS thread, {readable}(l.namespace) AS namespace, {readable}(c.id) AS checkpoint,
           c.step, coalesce(s.created, CASE WHEN l.head = c.seq THEN l.active END) AS "time", s.summary, s.tags,
           l.head = c.seq AS is_head, c.pinned, l.active
    FROM {checkpoints} c
    JOIN {lines} l ON l.family = c.family AND l.id = c.line
    JOIN {threads} t ON t.family = l.family AND t.id = l.thread
    CROSS JOIN LATERAL {told}(c.info) s
    WHERE NOT EXISTS (SELECT 1 FROM {covers} v WHERE v.family = c.family AND v.line = c.line AND v.segment IN (0, c.segment)
                      AND c.seq > v.after AND c.seq <= v.upto);

-- The usual read is a function: the server plans its statements once per session and not for each call.
-- A checkpoint (without an id: the head of its line), with its objects and its writes if they are wanted; all of it as
-- of one moment, since a stable function sees what the statement sees that calls it. One row shape for all three: kind
-- (0, 1, 2), place among those asked for, eight numbers, four byte strings. The checkpoint comes first.
CREATE FUNCTION {load}(_name bytea, _namespace bytea, _id bytea, _objects boolean, _writes boolean)
RETURNS TABLE (
    kind int, place bigint, n1 bigint, n2 bigint, n3 bigint, n4 bigint, n5 bigint, n6 bigint, n7 bigint, n8 int,
    b1 bytea, b2 bytea, b3 bytea, b4 bytea
) LANGUAGE plpgsql STABLE ROWS 100 SET enable_seqscan = off AS $$
DECLARE
    _l record;
    _c record;
    _is_torn boolean;
    _is_hidden boolean;
BEGIN
    SELECT l.* INTO _l FROM {names} n JOIN {lines} l ON l.family = n.family AND l.thread = n.thread
        WHERE n.name = _name AND l.namespace = _namespace;
    IF NOT FOUND THEN
        -- A row of its own tells that nothing has that name, so that nobody need ask whether something was lost.
        RETURN QUERY SELECT 3, 0::bigint, 0::bigint, 0::bigint, 0::bigint, 0::bigint, 0::bigint, 0::bigint, 0::bigint, 0,
            ''::bytea, ''::bytea, ''::bytea, ''::bytea
            WHERE NOT EXISTS (SELECT 1 FROM {names} n WHERE n.name = _name)
              AND NOT EXISTS (SELECT 1 FROM {threads} t WHERE t.name = _name);
        RETURN;
    END IF;
    IF _id IS NULL THEN
        SELECT * INTO _c FROM {checkpoints} c WHERE c.family = _l.family AND c.line = _l.id AND c.seq = _l.head;
    ELSE
        SELECT * INTO _c FROM {checkpoints} c WHERE c.family = _l.family AND c.line = _l.id AND c.id = _id;
    END IF;
    IF NOT FOUND THEN RETURN; END IF;
    IF _id IS NULL THEN  -- see `_STALE` and `_TORN`
        _is_torn := NOT _l.head_was_moved AND NOT _l.incoming AND {is_followed}(_l.family, _l.id, _l.head, _c.segment);
    ELSE
        _is_torn := _l.stretches <> {stretches}(_l.family, _l.id) OR _l.stretches > 0
            AND NOT EXISTS (SELECT 1 FROM {covers} v WHERE v.family = _l.family AND v.line = _l.id)
            AND EXISTS (SELECT 1 FROM {hidden} h JOIN {checkpoints} x ON x.family = h.family AND x.line = h.line
                        AND x.seq > h.after AND x.seq <= h.upto
                        WHERE h.family = _l.family AND h.line = _l.id AND h.writes_of IS NULL);
    END IF;
    _is_hidden := coalesce((SELECT v.after < _c.seq FROM {covers} v WHERE v.family = _c.family AND v.line = _c.line
                            AND v.segment = 0 AND v.upto >= _c.seq ORDER BY v.upto LIMIT 1), false)
               OR coalesce((SELECT v.after < _c.seq FROM {covers} v WHERE v.family = _c.family AND v.line = _c.line
                            AND v.segment = _c.segment AND v.upto >= _c.seq ORDER BY v.upto LIMIT 1), false);
    RETURN QUERY SELECT 0, 0::bigint, _l.generation, _c.seq, _c.step, _c.segment, _c.added, _c.family, _c.line,
        _c.pinned::int + 2 * _is_hidden::int + 4 * _l.head_was_moved::int + 8 * _is_torn::int,
        _c.id, _c.info, _c.children, _c.root;
    IF _objects THEN
        RETURN QUERY SELECT 1, 0::bigint, 0::bigint, 0::bigint, 0::bigint, 0::bigint, 0::bigint, 0::bigint, 0::bigint, 0,
            o.hash, o.children, o.body, ''::bytea FROM {below}(_c.family, _c.children) o;
    END IF;
    IF _writes THEN
        RETURN QUERY SELECT 2, 0::bigint, w.seq, w.idx::bigint, 0::bigint, 0::bigint, 0::bigint, 0::bigint, 0::bigint, 0,
            w.task, w.info, w.children, ''::bytea FROM {writes} w
            WHERE w.family = _c.family AND w.line = _c.line AND w.checkpoint = {packed}(_c.id)
            AND NOT EXISTS (SELECT 1 FROM {hidden} h WHERE h.family = w.family AND h.line = w.line
                            AND h.writes_of = w.checkpoint AND w.seq > h.after AND w.seq <= h.upto);
    END IF;
END $$;

-- What a branch begins with: the checkpoint of that id as {load} gives it, the names of its thread and namespace (kind 4),
-- and the newest entry of its thread's log, if it has one (kind 5). Nothing if there are none or several of that id, or if
-- an entry is missing: then it is asked for one by one.
CREATE FUNCTION {origin}(_id bytea)
RETURNS TABLE (
    kind int, place bigint, n1 bigint, n2 bigint, n3 bigint, n4 bigint, n5 bigint, n6 bigint, n7 bigint, n8 int,
    b1 bytea, b2 bytea, b3 bytea, b4 bytea
) LANGUAGE plpgsql STABLE ROWS 3 SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    _t record;
BEGIN
    IF (SELECT count(*) FROM {checkpoints} c WHERE c.id = _id) <> 1 THEN RETURN; END IF;
    SELECT t.*, l.namespace INTO _t FROM {checkpoints} c JOIN {lines} l ON l.family = c.family AND l.id = c.line
        JOIN {threads} t ON t.family = l.family AND t.id = l.thread WHERE c.id = _id;
    IF NOT FOUND OR _t.operations <> (SELECT count(*) FROM {operations} o
                                      WHERE o.family = _t.family AND o.thread = _t.id) THEN RETURN; END IF;
    RETURN QUERY SELECT * FROM {load}(_t.name, _t.namespace, _id, false, false);
    RETURN QUERY SELECT 4, 0::bigint, 0::bigint, 0::bigint, 0::bigint, 0::bigint, 0::bigint, 0::bigint, 0::bigint, 0,
        _t.name, _t.namespace, ''::bytea, ''::bytea;
    RETURN QUERY SELECT 5, 0::bigint, o.seq, 0::bigint, 0::bigint, 0::bigint, 0::bigint, 0::bigint, 0::bigint, o.undone::int,
        o.data, ''::bytea, ''::bytea, ''::bytea FROM {operations} o
        WHERE o.family = _t.family AND o.thread = _t.id ORDER BY o.seq DESC LIMIT 1;
END $$;

-- What is there of a thread, and what should be, line by line (all, or those of one namespace): see `_damage_of`. Nothing
-- at all for a thread that never was. Up to `_lines` lines are counted, and checkpoints of lines that have no more than
-- `_stored` of them.
CREATE FUNCTION {whole}(_name bytea, _namespace bytea, _lines bigint, _stored bigint)
RETURNS TABLE (
    family bigint, named bigint, thread bigint, kept bigint, line bigint, head bigint, head_found bigint, is_stale boolean,
    lines bigint, lines_found bigint, operations bigint, operations_found bigint, is_torn boolean, segments bigint,
    segments_found bigint, stored bigint, stored_found bigint
) LANGUAGE plpgsql STABLE ROWS 1 SET enable_seqscan = off AS $$
#variable_conflict use_column
BEGIN
    IF NOT EXISTS (SELECT 1 FROM {names} n WHERE n.name = _name)
       AND NOT EXISTS (SELECT 1 FROM {threads} t WHERE t.name = _name) THEN RETURN; END IF;
    RETURN QUERY SELECT n.family, w.id, t.id, f.id, l.id, l.head, c.seq,
        (NOT l.head_was_moved AND NOT l.incoming AND {is_followed}(l.family, l.id, l.head, c.segment)),
        t.lines, (SELECT count(*) FROM (SELECT 1 FROM {lines} x WHERE x.family = n.family AND x.thread = n.thread
                                        LIMIT _lines) x),
        t.operations, (SELECT count(*) FROM {operations} o WHERE o.family = n.family AND o.thread = n.thread),
        (l.stretches <> {stretches}(l.family, l.id) OR l.stretches > 0
         AND NOT EXISTS (SELECT 1 FROM {covers} v WHERE v.family = l.family AND v.line = l.id)
         AND EXISTS (SELECT 1 FROM {hidden} h JOIN {checkpoints} x ON x.family = h.family AND x.line = h.line
                     AND x.seq > h.after AND x.seq <= h.upto
                     WHERE h.family = l.family AND h.line = l.id AND h.writes_of IS NULL)),
        l.segments, (SELECT count(*) FROM {segments} r WHERE r.family = l.family AND r.line = l.id),
        l.stored, (SELECT count(*) FROM {checkpoints} s WHERE s.family = l.family AND s.line = l.id
                   AND l.stored <= _stored)
        FROM (SELECT 1) AS one
        LEFT JOIN {names} n ON n.name = _name
        LEFT JOIN {threads} w ON w.name = _name
        LEFT JOIN {threads} t ON t.family = n.family AND t.id = n.thread
        LEFT JOIN {families} f ON f.id = n.family
        LEFT JOIN {lines} l ON l.family = n.family AND l.thread = n.thread
            AND (_namespace IS NULL OR l.namespace = _namespace)
        LEFT JOIN {checkpoints} c ON c.family = l.family AND c.line = l.id AND c.seq = l.head;
END $$;
