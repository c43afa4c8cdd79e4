-- Schema 10 of the SQLite store, the first that is released. Bytes are opaque; text columns hold names only.
--
-- Ids that are UUIDs are BLOBs of 16 bytes (`pack_id`), all others are TEXT.
--
-- `seal`: every row says by a checksum that it is as it was written, whoever wrote the page that it is on. It is a
-- function of the store (see `verify.py`), over the columns that no other checksum covers. What can be derived from other
-- rows is left out: `lines.total`, `families.swept`, the numbers of `sqlite_sequence`, and all of `shared_states` and `facts`.
-- Rows are sealed by triggers, so that no statement can forget it; only new rows of `checkpoints` and `writes` are sealed
-- by who inserts them, since there are many. A program that does not know `seal` can read the file, and cannot change
-- the rows.

CREATE TABLE families (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    format  INTEGER NOT NULL,                   -- the address function of its objects
    sweeps  INTEGER NOT NULL,                   -- counts deletions of objects: a sweep that was overtaken starts again
    live    INTEGER NOT NULL,                   -- bytes that the last sweep found in use
    seal    INTEGER,
    swept   INTEGER NOT NULL DEFAULT 0          -- 2: swept, and nothing has gone since; more: by whom
);
CREATE TRIGGER families_made AFTER INSERT ON families
    BEGIN UPDATE families SET seal = seal(NEW.id, NEW.format, NEW.sweeps, NEW.live) WHERE id = NEW.id; END;
CREATE TRIGGER families_changed AFTER UPDATE OF id, format, sweeps, live ON families
    BEGIN UPDATE families SET seal = seal(NEW.id, NEW.format, NEW.sweeps, NEW.live) WHERE id = NEW.id; END;
-- The highest number that a family ever had is in `counters` or here, and `sqlite_sequence` says the same.
CREATE TRIGGER families_removed AFTER DELETE ON families
    BEGIN UPDATE counters SET value = max(value, OLD.id) WHERE name = 'families'; END;

CREATE TABLE threads (
    id      INTEGER PRIMARY KEY,
    name    TEXT NOT NULL UNIQUE,
    family  INTEGER NOT NULL,
    began   INTEGER,                            -- checkpoints.seq where a branch began
    origin  BLOB,                               -- its full name
    note    BLOB,                               -- of a copy: what it takes to go on with it
    seal    INTEGER
);
CREATE INDEX threads_by_family ON threads (family);
CREATE TRIGGER threads_made AFTER INSERT ON threads
    BEGIN UPDATE threads SET seal =
          seal(NEW.id, NEW.name, NEW.family, NEW.began, NEW.origin, NEW.note) WHERE id = NEW.id; END;
CREATE TRIGGER threads_changed AFTER UPDATE OF id, name, family, began, origin, note ON threads
    BEGIN UPDATE threads SET seal =
          seal(NEW.id, NEW.name, NEW.family, NEW.began, NEW.origin, NEW.note) WHERE id = NEW.id; END;

CREATE TABLE shared_states (                    -- the last states that two threads had in common
    low       INTEGER NOT NULL,                 -- threads.id, the smaller one first
    high      INTEGER NOT NULL,
    seq       INTEGER NOT NULL,                 -- the number of that checkpoint
    data      BLOB NOT NULL,
    children  BLOB NOT NULL,
    PRIMARY KEY (low, high, seq)
) WITHOUT ROWID;

CREATE TABLE lines (                            -- a namespace of a thread
    id              INTEGER PRIMARY KEY,
    thread          INTEGER NOT NULL,
    namespace       TEXT NOT NULL,
    head            INTEGER,                    -- checkpoints.seq
    head_was_moved  INTEGER NOT NULL,           -- the head was moved: the next checkpoint starts a new segment
    generation      INTEGER NOT NULL,           -- counts the moves of the head
    active          INTEGER NOT NULL,           -- microseconds; orders threads by activity, nothing else
    total           INTEGER NOT NULL,           -- how many checkpoints it has
    unreferenced    INTEGER NOT NULL,           -- bytes that deleted checkpoints had added, since the last sweep
    seal            INTEGER,
    UNIQUE (thread, namespace)
);
CREATE INDEX lines_by_activity ON lines (active);
CREATE TRIGGER lines_made AFTER INSERT ON lines
    BEGIN UPDATE lines SET seal =
          seal(NEW.id, NEW.thread, NEW.namespace, NEW.head, NEW.head_was_moved, NEW.generation, NEW.active, NEW.unreferenced)
          WHERE id = NEW.id; END;
CREATE TRIGGER lines_changed AFTER UPDATE OF id, thread, namespace, head, head_was_moved, generation, active, unreferenced ON lines
    WHEN NEW.seal IS OLD.seal
    BEGIN UPDATE lines SET seal =
          seal(NEW.id, NEW.thread, NEW.namespace, NEW.head, NEW.head_was_moved, NEW.generation, NEW.active, NEW.unreferenced)
          WHERE id = NEW.id; END;

CREATE TABLE facts (                            -- entries that checkpoints of a line have or had: see facts.py
    label  INTEGER NOT NULL,                    -- of the entry; 0: everything
    line   INTEGER NOT NULL,
    key    INTEGER NOT NULL,                    -- of the key of the entry
    PRIMARY KEY (label, line)
) WITHOUT ROWID;
CREATE INDEX facts_by_line ON facts (line);

CREATE TABLE segments (                         -- what a segment follows, where it follows something
    family   INTEGER NOT NULL,
    segment  INTEGER NOT NULL,                  -- the seq of its first checkpoint
    line     INTEGER,                           -- NULL: deleted; others may still come from it
    data     BLOB NOT NULL,
    seal     INTEGER,
    PRIMARY KEY (family, segment)
) WITHOUT ROWID;
CREATE INDEX segments_by_line ON segments (line, segment);
CREATE TRIGGER segments_made AFTER INSERT ON segments
    BEGIN UPDATE segments SET seal =
          seal(NEW.family, NEW.segment, NEW.line) WHERE family = NEW.family AND segment = NEW.segment; END;
CREATE TRIGGER segments_changed AFTER UPDATE OF family, segment, line ON segments
    BEGIN UPDATE segments SET seal =
          seal(NEW.family, NEW.segment, NEW.line) WHERE family = NEW.family AND segment = NEW.segment; END;

CREATE TABLE checkpoints (
    seq       INTEGER PRIMARY KEY,              -- the store's order; never used twice, see counters
    line      INTEGER NOT NULL,
    id        TEXT NOT NULL,
    step      INTEGER NOT NULL,
    segment   INTEGER NOT NULL,
    pinned    INTEGER NOT NULL,
    branches  INTEGER NOT NULL,                 -- how many living branches began here
    added     INTEGER NOT NULL,                 -- bytes that came with it
    info      BLOB NOT NULL,                    -- what listing shows, behind a checksum
    children  BLOB NOT NULL,                    -- hashes the root refers to
    root      BLOB NOT NULL,                    -- the root's own bytes, behind a checksum
    seal      INTEGER
);
CREATE UNIQUE INDEX checkpoints_by_id ON checkpoints (id, line);
CREATE INDEX checkpoints_by_line ON checkpoints (line);
CREATE INDEX checkpoints_protected ON checkpoints (line) WHERE pinned OR branches;
CREATE TRIGGER checkpoints_changed AFTER UPDATE OF seq, line, segment, pinned, branches, added ON checkpoints
    BEGIN UPDATE checkpoints SET seal =
          seal(NEW.seq, NEW.line, NEW.segment, NEW.pinned, NEW.branches, NEW.added) WHERE seq = NEW.seq; END;
CREATE TRIGGER checkpoints_removed AFTER DELETE ON checkpoints
    BEGIN UPDATE lines SET total = total - 1 WHERE id = OLD.line; END;

CREATE TABLE objects (
    id        INTEGER PRIMARY KEY,              -- never used twice; an object that is sent again gets a new one
    family    INTEGER NOT NULL,
    hash      BLOB NOT NULL,
    children  BLOB NOT NULL,
    body      BLOB NOT NULL
);
CREATE UNIQUE INDEX objects_by_hash ON objects (family, hash);

CREATE TABLE writes (                           -- rows are small: what is long is in objects
    line        INTEGER NOT NULL,
    checkpoint  TEXT NOT NULL,                  -- need not be stored yet
    task        TEXT NOT NULL,
    idx         INTEGER NOT NULL,
    seq         INTEGER NOT NULL,               -- never used twice: counters has it, or a higher one
    info        BLOB NOT NULL,
    children    BLOB NOT NULL,
    seal        INTEGER,
    PRIMARY KEY (line, checkpoint, task, idx)
) WITHOUT ROWID;
CREATE TRIGGER writes_changed AFTER UPDATE OF line, checkpoint, task, idx, seq ON writes BEGIN
    UPDATE writes SET seal = seal(NEW.line, NEW.checkpoint, NEW.task, NEW.idx, NEW.seq)
    WHERE line = NEW.line AND checkpoint = NEW.checkpoint AND task = NEW.task AND idx = NEW.idx;
END;

CREATE TABLE operations (
    seq     INTEGER PRIMARY KEY,
    thread  INTEGER NOT NULL,
    undone  INTEGER NOT NULL,
    data    BLOB NOT NULL,
    seal    INTEGER
);
CREATE INDEX operations_by_thread ON operations (thread);
CREATE TRIGGER operations_made AFTER INSERT ON operations
    BEGIN UPDATE operations SET seal = seal(NEW.seq, NEW.thread, NEW.undone) WHERE seq = NEW.seq; END;
CREATE TRIGGER operations_changed AFTER UPDATE OF seq, thread, undone ON operations
    BEGIN UPDATE operations SET seal = seal(NEW.seq, NEW.thread, NEW.undone) WHERE seq = NEW.seq; END;

CREATE TABLE hidden (                           -- stretches of a line that are not listed
    line       INTEGER NOT NULL,
    operation  INTEGER NOT NULL,
    after      INTEGER NOT NULL,
    upto       INTEGER NOT NULL,
    segment    INTEGER,                         -- NULL: of every segment
    writes_of  TEXT,
    seal       INTEGER
);
CREATE INDEX hidden_by_line ON hidden (line);
CREATE TRIGGER hidden_made AFTER INSERT ON hidden
    BEGIN UPDATE hidden SET seal =
          seal(NEW.line, NEW.operation, NEW.after, NEW.upto, NEW.segment, NEW.writes_of) WHERE rowid = NEW.rowid; END;
CREATE TRIGGER hidden_changed AFTER UPDATE OF line, operation, after, upto, segment, writes_of ON hidden
    BEGIN UPDATE hidden SET seal =
          seal(NEW.line, NEW.operation, NEW.after, NEW.upto, NEW.segment, NEW.writes_of) WHERE rowid = NEW.rowid; END;

CREATE TABLE covers (                           -- the union of hidden stretches: they neither overlap nor touch
    line     INTEGER NOT NULL,
    segment  INTEGER NOT NULL,                  -- 0: of every segment
    upto     INTEGER NOT NULL,
    after    INTEGER NOT NULL,
    seal     INTEGER,
    PRIMARY KEY (line, segment, upto)
) WITHOUT ROWID;
CREATE TRIGGER covers_made AFTER INSERT ON covers
    BEGIN UPDATE covers SET seal = seal(NEW.line, NEW.segment, NEW.upto, NEW.after)
          WHERE line = NEW.line AND segment = NEW.segment AND upto = NEW.upto; END;
CREATE TRIGGER covers_changed AFTER UPDATE OF line, segment, upto, after ON covers
    BEGIN UPDATE covers SET seal = seal(NEW.line, NEW.segment, NEW.upto, NEW.after)
          WHERE line = NEW.line AND segment = NEW.segment AND upto = NEW.upto; END;

-- A new stretch takes in all that it overlaps or touches.
CREATE TRIGGER hidden_added AFTER INSERT ON hidden WHEN NEW.writes_of IS NULL
    BEGIN
        INSERT INTO covers (line, segment, upto, after)
            SELECT NEW.line, coalesce(NEW.segment, 0), max(NEW.upto, coalesce(max(upto), 0)),
                   min(NEW.after, coalesce(min(after), NEW.after))
            FROM covers WHERE line = NEW.line AND segment = coalesce(NEW.segment, 0) AND upto >= NEW.after AND after <= NEW.upto
            ON CONFLICT DO UPDATE SET after = min(after, excluded.after);
        DELETE FROM covers WHERE line = NEW.line AND segment = coalesce(NEW.segment, 0)
            AND upto >= NEW.after AND after <= NEW.upto AND upto <
            (SELECT max(upto) FROM covers WHERE line = NEW.line AND segment = coalesce(NEW.segment, 0) AND after <= NEW.upto);
    END;

-- If a stretch goes that has something to hide, what it was part of is made anew from the others that are left. (Where
-- nothing is stored nothing can be shown by mistake: numbers are never used twice.)
CREATE TRIGGER hidden_removed AFTER DELETE ON hidden WHEN OLD.writes_of IS NULL
        AND EXISTS (SELECT 1 FROM checkpoints WHERE line = OLD.line AND seq > OLD.after AND seq <= OLD.upto)
    BEGIN
        DELETE FROM covers WHERE line = OLD.line AND segment = coalesce(OLD.segment, 0)
            AND upto >= OLD.upto AND after <= OLD.after;
        INSERT INTO covers (line, segment, upto, after)
            SELECT line, segment, max(upto), min(after) FROM
                (SELECT *, sum(starts) OVER (ORDER BY after, upto) AS island FROM
                    (SELECT h.line, coalesce(h.segment, 0) AS segment, h.after, h.upto,
                            coalesce(h.after > max(h.upto) OVER (ORDER BY h.after, h.upto
                                     ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 1) AS starts
                     FROM hidden h WHERE h.line = OLD.line AND h.writes_of IS NULL
                     AND coalesce(h.segment, 0) = coalesce(OLD.segment, 0)
                     AND NOT EXISTS (SELECT 1 FROM covers v WHERE v.line = h.line AND v.segment = coalesce(h.segment, 0)
                                     AND v.upto >= h.upto AND v.after <= h.after)))
            GROUP BY line, segment, island;
    END;

CREATE TRIGGER lines_removed AFTER DELETE ON lines
    BEGIN DELETE FROM covers WHERE line = OLD.id; END;
CREATE TRIGGER lines_forgotten AFTER DELETE ON lines
    BEGIN DELETE FROM facts WHERE line = OLD.id; END;

-- Whatever may leave an object without anybody who needs it is noted here, so that only such families are swept.
CREATE TRIGGER checkpoints_dropped AFTER DELETE ON checkpoints
    BEGIN UPDATE families SET swept = 0 WHERE swept AND id =
          (SELECT t.family FROM lines l JOIN threads t ON t.id = l.thread WHERE l.id = OLD.line); END;
CREATE TRIGGER checkpoints_replaced AFTER UPDATE OF children ON checkpoints
    BEGIN UPDATE families SET swept = 0 WHERE swept AND id =
          (SELECT t.family FROM lines l JOIN threads t ON t.id = l.thread WHERE l.id = OLD.line); END;
CREATE TRIGGER writes_dropped AFTER DELETE ON writes WHEN length(OLD.children) > 0
    BEGIN UPDATE families SET swept = 0 WHERE swept AND id =
          (SELECT t.family FROM lines l JOIN threads t ON t.id = l.thread WHERE l.id = OLD.line); END;
CREATE TRIGGER writes_replaced AFTER UPDATE OF idx, children ON writes
    BEGIN UPDATE families SET swept = 0 WHERE swept AND id =
          (SELECT t.family FROM lines l JOIN threads t ON t.id = l.thread WHERE l.id = OLD.line); END;
CREATE TRIGGER shared_states_added AFTER INSERT ON shared_states  -- it may take the place of another
    BEGIN UPDATE families SET swept = 0 WHERE swept AND id = (SELECT family FROM threads WHERE id = NEW.low); END;
CREATE TRIGGER shared_states_dropped AFTER DELETE ON shared_states
    BEGIN UPDATE families SET swept = 0 WHERE swept AND id IN
          (SELECT family FROM threads WHERE id IN (OLD.low, OLD.high)); END;

CREATE TABLE counters (                         -- the highest numbers that deleted rows had
    name   TEXT PRIMARY KEY,
    value  INTEGER NOT NULL,
    seal   INTEGER
);
CREATE TRIGGER counters_made AFTER INSERT ON counters
    BEGIN UPDATE counters SET seal = seal(NEW.name, NEW.value) WHERE name = NEW.name; END;
CREATE TRIGGER counters_changed AFTER UPDATE OF name, value ON counters WHEN NEW.seal IS OLD.seal
    BEGIN UPDATE counters SET seal = seal(NEW.name, NEW.value) WHERE name = NEW.name; END;
INSERT INTO counters (name, value)
    VALUES ('checkpoints', 0), ('writes', 0), ('operations', 0), ('objects', 0), ('families', 0);
INSERT INTO counters (name, value) VALUES ('identity', random());  -- the name of this store among all others
