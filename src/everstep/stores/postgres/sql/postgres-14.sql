-- Schema 14 of the PostgreSQL store: a branch may begin at a checkpoint that was read before.

DROP FUNCTION IF EXISTS {branch}(
    bytea, bytea, bytea, bytea, bytea, bytea, bigint, bytea, bigint, bigint, bytea, bigint[], bytea, bytea, bytea, bytea,
    bytea, bytea, bytea
);

-- The usual beginning of a branch, in one round trip: a thread with one checkpoint, which needs what its origin needs, and
-- an entry in the log of the thread it comes from. Returns its family, line, seq and generation, and the number of that
-- entry, eight bytes each; or NULL if the origin is not as named, or the name is in use, or rows are missing: then it is done
-- the long way. With `_top` the origin was remembered: it must be the only checkpoint of its id, and that the newest entry.
CREATE FUNCTION {branch}(
    _name bytea, _namespace bytea, _origin_name bytea, _origin_namespace bytea, _origin_id bytea, _origin_digest bytea,
    _origin_seq bigint, _origin bytea, _added bigint, _step bigint, _id bytea, _labels bigint[], _info bytea,
    _children bytea, _root bytea, _follows bytea, _common bytea, _common_children bytea, _operation bytea, _top bigint
) RETURNS bytea LANGUAGE plpgsql SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    _family bigint;
    _source bigint;
    _thread bigint := nextval('{numbers}');
    _line bigint := nextval('{numbers}');
    _seq bigint;
    _entry bigint;
    _newest record;
    _shift bigint;
    _generation bigint;
BEGIN
    SELECT n.family INTO _family FROM {names} n WHERE n.name = _origin_name;
    IF NOT FOUND THEN RETURN NULL; END IF;
    PERFORM pg_advisory_xact_lock_shared(1163285332, (_family % 2147483647)::int);  -- {guard}, one call less
    SELECT n.thread INTO _source FROM {names} n WHERE n.name = _origin_name AND n.family = _family FOR KEY SHARE;
    IF NOT FOUND OR _source > _thread THEN RETURN NULL; END IF;
    SELECT f.shift, f.generation + 1 INTO _shift, _generation FROM {families} f WHERE f.id = _family;
    IF NOT FOUND THEN RETURN NULL; END IF;
    PERFORM 1 FROM {names} n WHERE n.name = _name;
    IF FOUND THEN RETURN NULL; END IF;
    PERFORM 1 FROM {threads} t WHERE t.name = _name;
    IF FOUND THEN RETURN NULL; END IF;
    IF _top IS NOT NULL THEN
        IF (SELECT count(*) FROM {checkpoints} c WHERE c.id = _origin_id) <> 1 THEN RETURN NULL; END IF;
        SELECT o.seq, o.undone INTO _newest FROM {operations} o WHERE o.family = _family AND o.thread = _source
            ORDER BY o.seq DESC LIMIT 1;
        IF coalesce(_newest.seq, 0) <> _top OR _newest.undone THEN RETURN NULL; END IF;
    END IF;
    -- The last check: from here on it is written.
    UPDATE {checkpoints} c SET branches = c.branches + 1 FROM {lines} l
        WHERE c.id = _origin_id AND c.family = _family AND c.seq = _origin_seq
        AND substr(c.info, 1, 8) || substr(c.root, 1, 8) = _origin_digest
        AND l.family = c.family AND l.id = c.line AND l.thread = _source AND l.namespace = _origin_namespace;
    IF NOT FOUND THEN RETURN NULL; END IF;
    _seq := nextval('{numbers}') + _shift;
    _entry := nextval('{numbers}') + _shift;
    INSERT INTO {names} (name, family, thread) VALUES (_name, _family, _thread);
    INSERT INTO {threads} (family, id, name, began, origin, lines)
        VALUES (_family, _thread, _name, _origin_seq, _origin, 1);
    INSERT INTO {lines} (family, id, thread, namespace, head, head_was_moved, generation, active, unreferenced, stored,
                         segments)
        VALUES (_family, _line, _thread, _namespace, _seq, false, _generation, clock_timestamp(), 0, 1, 1);
    INSERT INTO {checkpoints} (family, line, seq, segment, added, step, branches, pinned, id, labels, info, children, root)
        VALUES (_family, _line, _seq, _seq, _added, _step, 0, false, _id, _labels || NULL::bigint[], _info, _children, _root);
    INSERT INTO {segments} (family, line, segment, data) VALUES (_family, _line, _seq, {sealed}(_follows, _seq));
    INSERT INTO {shared_states} (family, low, high, seq, data, children)
        VALUES (_family, _source, _thread, _origin_seq, _common, _common_children);
    INSERT INTO {operations} (family, thread, seq, undone, data)
        VALUES (_family, _source, _entry, false, {sealed}(_operation, _entry));
    UPDATE {threads} SET operations = operations + 1 WHERE family = _family AND id = _source;
    RETURN int8send(_family) || int8send(_line) || int8send(_seq) || int8send(_generation)
        || int8send(_entry);
END $$;
