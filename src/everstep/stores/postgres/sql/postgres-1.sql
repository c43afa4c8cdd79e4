-- Schema 1 of the PostgreSQL store. Names in braces are filled in with the schema and the table prefix.
-- Everything a user names or saves is bytea: text columns cannot hold NUL. Primary keys start with the family, so that
-- each table but `meta`, `names` and `families` can be hash-partitioned by it.

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
    shift       bigint NOT NULL                 -- how far its numbers are ahead of the sequence's: some were reserved
);

CREATE TABLE {names} (                          -- where a thread is
    name    bytea PRIMARY KEY,
    family  bigint NOT NULL,
    thread  bigint NOT NULL
);

CREATE TABLE {threads} (
    family  bigint NOT NULL,
    id      bigint NOT NULL,
    name    bytea NOT NULL,
    began   bigint,                             -- checkpoints.seq where a branch began
    origin  bytea,                              -- its full name
    note    bytea,                              -- what a copy keeps with the thread it has made
    PRIMARY KEY (family, id)
);

CREATE TABLE {commons} (                        -- the last states that two threads had in common
    family    bigint NOT NULL,
    low       bigint NOT NULL,                  -- threads.id, the smaller one first
    high      bigint NOT NULL,
    seq       bigint NOT NULL,                  -- the number of that checkpoint
    data      bytea NOT NULL,
    children  bytea NOT NULL,
    PRIMARY KEY (family, low, high, seq)
);

CREATE TABLE {lines} (                          -- a namespace of a thread
    family      bigint NOT NULL,
    id          bigint NOT NULL,
    thread      bigint NOT NULL,
    namespace   bytea NOT NULL,
    head        bigint,                         -- checkpoints.seq
    turned      boolean NOT NULL,               -- the head was moved: the next checkpoint starts a new run
    generation  bigint NOT NULL,                -- counts the moves of the head
    active      timestamptz NOT NULL,           -- orders threads by activity, nothing else
    doomed      bigint NOT NULL,                -- bytes that deleted checkpoints had added, since the last sweep
    PRIMARY KEY (family, id),
    UNIQUE (family, thread, namespace)
) WITH (fillfactor = 50);                       -- updated with every commit, in place

CREATE TABLE {runs} (                           -- what a run follows, where it follows something
    family  bigint NOT NULL,
    run     bigint NOT NULL,                    -- the seq of its first checkpoint
    line    bigint,                             -- NULL: deleted; others may still come from it
    data    bytea NOT NULL,
    PRIMARY KEY (family, run)
);

CREATE TABLE {checkpoints} (
    family    bigint NOT NULL,
    line      bigint NOT NULL,
    seq       bigint NOT NULL,
    run       bigint NOT NULL,
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
    run        bigint,                          -- NULL: of every run
    writes_of  bytea
);
CREATE INDEX ON {hidden} (family, line);

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

-- The usual commit, in one round trip: a checkpoint that follows the head its writer saw. Returns its seq; or NULL if
-- the head is another one, was moved, or was replaced, or if the id is there already: then it is done the long way.
CREATE FUNCTION {put}(
    _family bigint, _line bigint, _generation bigint, _head bigint, _digest bytea, _run bigint, _added bigint,
    _step bigint, _id bytea, _labels bigint[], _info bytea, _children bytea, _root bytea,
    _hashes bytea[], _belows bytea[], _bodies bytea[], _prune bigint[]
) RETURNS bigint LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    _seq bigint;
    _freed bigint := 0;
    _gone bigint;
    _name bytea;
    _victim bigint;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(1163285332, (_family % 2147483647)::int);  -- {guard}, one call less
    PERFORM 1 FROM {lines} WHERE family = _family AND id = _line AND head = _head AND generation = _generation
        AND NOT turned FOR NO KEY UPDATE;
    IF NOT FOUND THEN RETURN NULL; END IF;
    PERFORM 1 FROM {checkpoints} WHERE family = _family AND line = _line AND seq = _head
        AND substr(info, 1, 8) || substr(root, 1, 8) = _digest
        AND NOT EXISTS (SELECT 1 FROM {checkpoints} c WHERE c.id = _id AND c.family = _family AND c.line = _line);
    IF NOT FOUND THEN RETURN NULL; END IF;
    IF cardinality(_hashes) > 0 THEN
        INSERT INTO {objects} (family, id, hash, children, body)
            SELECT _family, nextval('{numbers}'), u.hash, u.below, u.body
            FROM unnest(_hashes, _belows, _bodies) AS u (hash, below, body)
            ON CONFLICT (family, hash) DO UPDATE SET id = excluded.id;
    END IF;
    SELECT nextval('{numbers}') + shift INTO _seq FROM {families} WHERE id = _family;
    INSERT INTO {checkpoints} (family, line, seq, run, added, step, branches, pinned, id, labels, info, children, root)
        VALUES (_family, _line, _seq, _run, _added, _step, 0, false, _id, _labels, _info, _children, _root);
    FOREACH _victim IN ARRAY _prune LOOP
        DELETE FROM {checkpoints} WHERE family = _family AND line = _line AND seq = _victim
            AND NOT pinned AND branches = 0 RETURNING added, id INTO _gone, _name;
        IF FOUND THEN
            DELETE FROM {writes} WHERE family = _family AND line = _line AND checkpoint = _name;
            _freed := _freed + _gone;
        END IF;
    END LOOP;
    UPDATE {lines} SET head = _seq, generation = generation + 1, active = clock_timestamp(), doomed = doomed + _freed
        WHERE family = _family AND id = _line;
    RETURN _seq;
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
