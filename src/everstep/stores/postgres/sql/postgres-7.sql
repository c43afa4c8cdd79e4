-- Schema 7: threads are found by their tags too, and a view shows who is there.

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
    WHERE NOT EXISTS (SELECT 1 FROM {covers} v WHERE v.family = c.family AND v.line = c.line AND v.run IN (0, c.run)
                      AND c.seq > v.after AND c.seq <= v.upto);

-- A number per tag, as `labels` has them from now on.
UPDATE {checkpoints} c SET labels = coalesce(c.labels, '{}') || s.found FROM (
    SELECT o.family, o.line, o.seq,
           array_agg(('x' || encode(substr(sha256('\x74616700'::bytea || convert_to(tag, 'UTF8')), 1, 8), 'hex'))::bit(64)::bigint) AS found
    FROM {checkpoints} o CROSS JOIN LATERAL {told}(o.info) i CROSS JOIN LATERAL unnest(i.tags) tag
    GROUP BY o.family, o.line, o.seq
) s WHERE c.family = s.family AND c.line = s.line AND c.seq = s.seq;
