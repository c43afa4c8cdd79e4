-- Schema 6: what hidden stretches cover together, so that many of them cost no more than one.

CREATE TABLE covers (                           -- the union of hidden stretches: they neither overlap nor touch
    line   INTEGER NOT NULL,
    run    INTEGER NOT NULL,                    -- 0: of every run
    upto   INTEGER NOT NULL,
    after  INTEGER NOT NULL,
    seal   INTEGER,
    PRIMARY KEY (line, run, upto)
) WITHOUT ROWID;
CREATE TRIGGER covers_made AFTER INSERT ON covers
    BEGIN UPDATE covers SET seal = seal(NEW.line, NEW.run, NEW.upto, NEW.after)
          WHERE line = NEW.line AND run = NEW.run AND upto = NEW.upto; END;
CREATE TRIGGER covers_changed AFTER UPDATE OF line, run, upto, after ON covers
    BEGIN UPDATE covers SET seal = seal(NEW.line, NEW.run, NEW.upto, NEW.after)
          WHERE line = NEW.line AND run = NEW.run AND upto = NEW.upto; END;
INSERT INTO covers (line, run, upto, after)
    SELECT line, run, max(upto), min(after) FROM
        (SELECT *, sum(starts) OVER (PARTITION BY line, run ORDER BY after, upto) AS island FROM
            (SELECT line, coalesce(run, 0) AS run, after, upto,
                    coalesce(after > max(upto) OVER (PARTITION BY line, run ORDER BY after, upto
                             ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 1) AS starts
             FROM hidden WHERE writes_of IS NULL))
    GROUP BY line, run, island;

-- A new stretch takes in all that it overlaps or touches.
CREATE TRIGGER hidden_added AFTER INSERT ON hidden WHEN NEW.writes_of IS NULL
    BEGIN
        INSERT INTO covers (line, run, upto, after)
            SELECT NEW.line, coalesce(NEW.run, 0), max(NEW.upto, coalesce(max(upto), 0)),
                   min(NEW.after, coalesce(min(after), NEW.after))
            FROM covers WHERE line = NEW.line AND run = coalesce(NEW.run, 0) AND upto >= NEW.after AND after <= NEW.upto
            ON CONFLICT DO UPDATE SET after = min(after, excluded.after);
        DELETE FROM covers WHERE line = NEW.line AND run = coalesce(NEW.run, 0)
            AND upto >= NEW.after AND after <= NEW.upto AND upto <
            (SELECT max(upto) FROM covers WHERE line = NEW.line AND run = coalesce(NEW.run, 0) AND after <= NEW.upto);
    END;

-- If a stretch goes that has something to hide, what it was part of is made anew from the others that are left. (Where
-- nothing is stored nothing can be shown by mistake: numbers are never used twice.)
CREATE TRIGGER hidden_removed AFTER DELETE ON hidden WHEN OLD.writes_of IS NULL
        AND EXISTS (SELECT 1 FROM checkpoints WHERE line = OLD.line AND seq > OLD.after AND seq <= OLD.upto)
    BEGIN
        DELETE FROM covers WHERE line = OLD.line AND run = coalesce(OLD.run, 0)
            AND upto >= OLD.upto AND after <= OLD.after;
        INSERT INTO covers (line, run, upto, after)
            SELECT line, run, max(upto), min(after) FROM
                (SELECT *, sum(starts) OVER (ORDER BY after, upto) AS island FROM
                    (SELECT h.line, coalesce(h.run, 0) AS run, h.after, h.upto,
                            coalesce(h.after > max(h.upto) OVER (ORDER BY h.after, h.upto
                                     ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 1) AS starts
                     FROM hidden h WHERE h.line = OLD.line AND h.writes_of IS NULL
                     AND coalesce(h.run, 0) = coalesce(OLD.run, 0)
                     AND NOT EXISTS (SELECT 1 FROM covers v WHERE v.line = h.line AND v.run = coalesce(h.run, 0)
                                     AND v.upto >= h.upto AND v.after <= h.after)))
            GROUP BY line, run, island;
    END;

CREATE TRIGGER lines_removed AFTER DELETE ON lines
    BEGIN DELETE FROM covers WHERE line = OLD.id; END;

CREATE INDEX runs_by_line ON runs (line, run);
