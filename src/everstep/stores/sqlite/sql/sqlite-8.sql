-- Schema 8: what threads are found by. Both follow from other rows, so they need no checksums of their own.

CREATE INDEX lines_by_activity ON lines (active);

CREATE TABLE facts (                            -- entries that checkpoints of a line have or had: see facts.py
    label  INTEGER NOT NULL,                    -- of the entry; 0: everything
    line   INTEGER NOT NULL,
    key    INTEGER NOT NULL,                    -- of the key of the entry
    PRIMARY KEY (label, line)
) WITHOUT ROWID;
CREATE INDEX facts_by_line ON facts (line);
CREATE TRIGGER lines_forgotten AFTER DELETE ON lines
    BEGIN DELETE FROM facts WHERE line = OLD.id; END;

-- What older checkpoints have is not known here: all of their lines are looked at.
INSERT INTO facts (label, line, key) SELECT 0, id, 0 FROM lines;
