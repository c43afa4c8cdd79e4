-- Schema 4: rows that others count on are counted, so that the loss of one is noticed; and a thread whose row of names is
-- lost is found, so that nobody begins it anew.

CREATE INDEX ON {threads} (name);
CREATE INDEX ON {runs} (family, line) WHERE line IS NOT NULL;

ALTER TABLE {threads}
    ADD lines bigint NOT NULL DEFAULT 0,        -- how many lines it has
    ADD operations bigint NOT NULL DEFAULT 0;   -- how many entries its log has
ALTER TABLE {lines}
    ADD stored bigint NOT NULL DEFAULT 0,       -- how many checkpoints it has
    ADD stretches bigint NOT NULL DEFAULT 0,    -- how many rows of `hidden` it has
    ADD runs bigint NOT NULL DEFAULT 0,         -- how many rows of `runs` it has
    ADD incoming boolean NOT NULL DEFAULT false;  -- a copy brings checkpoints, and has not set the head yet

UPDATE {threads} t SET
    lines = (SELECT count(*) FROM {lines} l WHERE l.family = t.family AND l.thread = t.id),
    operations = (SELECT count(*) FROM {operations} o WHERE o.family = t.family AND o.thread = t.id);
UPDATE {lines} l SET stored = s.count
    FROM (SELECT family, line, count(*) FROM {checkpoints} GROUP BY family, line) s
    WHERE s.family = l.family AND s.line = l.id;
UPDATE {lines} l SET stretches = s.count
    FROM (SELECT family, line, count(*) FROM {hidden} GROUP BY family, line) s
    WHERE s.family = l.family AND s.line = l.id;
UPDATE {lines} l SET runs = s.count
    FROM (SELECT family, line, count(*) FROM {runs} WHERE line IS NOT NULL GROUP BY family, line) s
    WHERE s.family = l.family AND s.line = l.id;

-- Whether a checkpoint of the same run comes after this one. (Functions keep their plans: a subquery would be planned with
-- every read.)
CREATE FUNCTION {is_followed}(_family bigint, _line bigint, _seq bigint, _run bigint) RETURNS boolean
LANGUAGE plpgsql STABLE SET enable_seqscan = off AS $$
BEGIN
    RETURN EXISTS (SELECT 1 FROM {checkpoints} c
                   WHERE c.family = _family AND c.line = _line AND c.seq > _seq AND c.run = _run);
END $$;

-- How many stretches of a line are hidden.
CREATE FUNCTION {stretches}(_family bigint, _line bigint) RETURNS bigint
LANGUAGE plpgsql STABLE SET enable_seqscan = off AS $$
BEGIN
    RETURN (SELECT count(*) FROM {hidden} h WHERE h.family = _family AND h.line = _line);
END $$;

-- The usual commit, in one round trip: a checkpoint that follows the head its writer saw. Returns its seq; or NULL if
-- the head is another one, was moved, or was replaced, or if the id is there already: then it is done the long way.
CREATE OR REPLACE FUNCTION {put}(
    _family bigint, _line bigint, _generation bigint, _head bigint, _digest bytea, _run bigint, _added bigint,
    _step bigint, _id bytea, _labels bigint[], _info bytea, _children bytea, _root bytea,
    _hashes bytea[], _belows bytea[], _bodies bytea[], _prune bigint[]
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
        VALUES (_family, _line, _seq, _run, _added, _step, 0, false, _id,
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
    UPDATE {lines} SET head = _seq, generation = generation + 1, active = clock_timestamp(), doomed = doomed + _freed,
                       stored = stored + 1 - _pruned
        WHERE family = _family AND id = _line;
    RETURN _seq;
END $$;
