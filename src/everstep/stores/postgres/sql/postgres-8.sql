-- Schema 8: the usual read as a function, whose statements the server plans once per session and not for each call.

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
    IF NOT FOUND THEN RETURN; END IF;
    IF _id IS NULL THEN
        SELECT * INTO _c FROM {checkpoints} c WHERE c.family = _l.family AND c.line = _l.id AND c.seq = _l.head;
    ELSE
        SELECT * INTO _c FROM {checkpoints} c WHERE c.family = _l.family AND c.line = _l.id AND c.id = _id;
    END IF;
    IF NOT FOUND THEN RETURN; END IF;
    IF _id IS NULL THEN  -- see `_STALE` and `_TORN`
        _is_torn := NOT _l.turned AND NOT _l.incoming AND {is_followed}(_l.family, _l.id, _l.head, _c.run);
    ELSE
        _is_torn := _l.stretches <> {stretches}(_l.family, _l.id) OR _l.stretches > 0
            AND NOT EXISTS (SELECT 1 FROM {covers} v WHERE v.family = _l.family AND v.line = _l.id)
            AND EXISTS (SELECT 1 FROM {hidden} h JOIN {checkpoints} x ON x.family = h.family AND x.line = h.line
                        AND x.seq > h.after AND x.seq <= h.upto
                        WHERE h.family = _l.family AND h.line = _l.id AND h.writes_of IS NULL);
    END IF;
    _is_hidden := coalesce((SELECT v.after < _c.seq FROM {covers} v WHERE v.family = _c.family AND v.line = _c.line
                            AND v.run = 0 AND v.upto >= _c.seq ORDER BY v.upto LIMIT 1), false)
               OR coalesce((SELECT v.after < _c.seq FROM {covers} v WHERE v.family = _c.family AND v.line = _c.line
                            AND v.run = _c.run AND v.upto >= _c.seq ORDER BY v.upto LIMIT 1), false);
    RETURN QUERY SELECT 0, 0::bigint, _l.generation, _c.seq, _c.step, _c.run, _c.added, _c.family, _c.line,
        _c.pinned::int + 2 * _is_hidden::int + 4 * _l.turned::int + 8 * _is_torn::int,
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
