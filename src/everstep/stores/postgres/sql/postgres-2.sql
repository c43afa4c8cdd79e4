-- Schema 2: where writes name a checkpoint or a task, a UUID is 17 bytes. (checkpoints.id stays text: it is an order.)

-- What `packed_id` returns: the byte FF, which no UTF-8 has, and the UUID; anything but its usual text stays as it is.
CREATE FUNCTION {packed}(_id bytea) RETURNS bytea LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN length(_id) = 36
                AND encode(_id, 'escape') COLLATE "C" ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$'
                THEN decode('ff' || replace(encode(_id, 'escape'), '-', ''), 'hex') ELSE _id END
$$;

UPDATE {writes} SET checkpoint = {packed}(checkpoint), task = {packed}(task)
    WHERE checkpoint <> {packed}(checkpoint) OR task <> {packed}(task);
UPDATE {hidden} SET writes_of = {packed}(writes_of) WHERE writes_of <> {packed}(writes_of);

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
        END IF;
    END LOOP;
    UPDATE {lines} SET head = _seq, generation = generation + 1, active = clock_timestamp(), doomed = doomed + _freed
        WHERE family = _family AND id = _line;
    RETURN _seq;
END $$;
