-- Schema 5: what hidden stretches cover together, so that many of them cost no more than one.

CREATE TABLE {covers} (                         -- the union of hidden stretches: they neither overlap nor touch
    family  bigint NOT NULL,
    line    bigint NOT NULL,
    run     bigint NOT NULL,                    -- 0: of every run
    upto    bigint NOT NULL,
    after   bigint NOT NULL,
    PRIMARY KEY (family, line, run, upto)
);

-- The union of the stretches of a line that no cover has.
CREATE FUNCTION {cover_rest}(_family bigint, _line bigint, _run bigint) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
    INSERT INTO {covers} (family, line, run, upto, after)
        SELECT _family, _line, _run, max(i.upto), min(i.after) FROM
            (SELECT s.*, sum(s.starts) OVER (ORDER BY s.after, s.upto) AS island FROM
                (SELECT h.after, h.upto,
                        (coalesce(h.after > max(h.upto) OVER (ORDER BY h.after, h.upto
                                  ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), true))::int AS starts
                 FROM {hidden} h WHERE h.family = _family AND h.line = _line AND h.writes_of IS NULL
                 AND coalesce(h.run, 0) = _run
                 AND NOT EXISTS (SELECT 1 FROM {covers} v WHERE v.family = _family AND v.line = _line AND v.run = _run
                                 AND v.upto >= h.upto AND v.after <= h.after)) s) i
        GROUP BY i.island;
END $$;

-- A new stretch takes in all that it overlaps or touches.
CREATE FUNCTION {cover}() RETURNS trigger LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    _run bigint := coalesce(NEW.run, 0);
    _after bigint;
    _upto bigint;
BEGIN
    WITH gone AS (
        DELETE FROM {covers} v WHERE v.family = NEW.family AND v.line = NEW.line AND v.run = _run
        AND v.upto >= NEW.after AND v.after <= NEW.upto RETURNING v.after, v.upto
    ) SELECT min(g.after), max(g.upto) INTO _after, _upto FROM gone g;
    INSERT INTO {covers} (family, line, run, upto, after)
        VALUES (NEW.family, NEW.line, _run, greatest(NEW.upto, _upto), least(NEW.after, _after));
    RETURN NULL;
END $$;

-- If a stretch goes that has something to hide, what it was part of is made anew from the others that are left. (Where
-- nothing is stored nothing can be shown by mistake: numbers are never used twice.)
CREATE FUNCTION {uncover}() RETURNS trigger LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    _run bigint := coalesce(OLD.run, 0);
BEGIN
    PERFORM 1 FROM {checkpoints} WHERE family = OLD.family AND line = OLD.line AND seq > OLD.after AND seq <= OLD.upto
        LIMIT 1;
    IF NOT FOUND THEN RETURN NULL; END IF;
    DELETE FROM {covers} WHERE family = OLD.family AND line = OLD.line AND run = _run
        AND upto >= OLD.upto AND after <= OLD.after;
    IF FOUND THEN PERFORM {cover_rest}(OLD.family, OLD.line, _run); END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION {uncover_all}() RETURNS trigger LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
    DELETE FROM {covers} WHERE family = OLD.family AND line = OLD.id;
    RETURN NULL;
END $$;

SELECT {cover_rest}(h.family, h.line, coalesce(h.run, 0)) FROM
    (SELECT DISTINCT family, line, run FROM {hidden} WHERE writes_of IS NULL) h;
CREATE TRIGGER everstep_cover AFTER INSERT ON {hidden} FOR EACH ROW WHEN (NEW.writes_of IS NULL)
    EXECUTE FUNCTION {cover}();
CREATE TRIGGER everstep_uncover AFTER DELETE ON {hidden} FOR EACH ROW WHEN (OLD.writes_of IS NULL)
    EXECUTE FUNCTION {uncover}();
CREATE TRIGGER everstep_uncover_all AFTER DELETE ON {lines} FOR EACH ROW EXECUTE FUNCTION {uncover_all}();
