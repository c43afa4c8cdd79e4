-- Schema 2 of the SQLite store. Bytes are opaque; text columns hold names only.

CREATE TABLE families (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    format  INTEGER NOT NULL,                   -- the address function of its objects
    sweeps  INTEGER NOT NULL,                   -- counts deletions of objects: a sweep that was overtaken starts again
    live    INTEGER NOT NULL                    -- bytes that the last sweep found in use
);

CREATE TABLE threads (
    id      INTEGER PRIMARY KEY,
    name    TEXT NOT NULL UNIQUE,
    family  INTEGER NOT NULL,
    began   INTEGER,                            -- checkpoints.seq where a branch began
    origin  BLOB                                -- its full name
);
CREATE INDEX threads_by_family ON threads (family);

CREATE TABLE commons (                          -- the last states that two threads had in common
    low       INTEGER NOT NULL,                 -- threads.id, the smaller one first
    high      INTEGER NOT NULL,
    seq       INTEGER NOT NULL,                 -- the number of that checkpoint
    data      BLOB NOT NULL,
    children  BLOB NOT NULL,
    PRIMARY KEY (low, high, seq)
) WITHOUT ROWID;

CREATE TABLE lines (                            -- a namespace of a thread
    id          INTEGER PRIMARY KEY,
    thread      INTEGER NOT NULL,
    namespace   TEXT NOT NULL,
    head        INTEGER,                        -- checkpoints.seq
    turned      INTEGER NOT NULL,               -- the head was moved: the next checkpoint starts a new run
    generation  INTEGER NOT NULL,               -- counts the moves of the head
    active      INTEGER NOT NULL,               -- microseconds; orders threads by activity, nothing else
    total       INTEGER NOT NULL,               -- how many checkpoints it has
    doomed      INTEGER NOT NULL,               -- bytes that deleted checkpoints had added, since the last sweep
    UNIQUE (thread, namespace)
);

CREATE TABLE runs (                             -- what a run follows, where it follows something
    family  INTEGER NOT NULL,
    run     INTEGER NOT NULL,                   -- the seq of its first checkpoint
    line    INTEGER,                            -- NULL: deleted; others may still come from it
    data    BLOB NOT NULL,
    PRIMARY KEY (family, run)
) WITHOUT ROWID;

CREATE TABLE checkpoints (
    seq       INTEGER PRIMARY KEY,              -- the store's order; never used twice, see counters
    line      INTEGER NOT NULL,
    id        TEXT NOT NULL,
    step      INTEGER NOT NULL,
    run       INTEGER NOT NULL,
    pinned    INTEGER NOT NULL,
    branches  INTEGER NOT NULL,                 -- how many living branches began here
    added     INTEGER NOT NULL,                 -- bytes that came with it
    info      BLOB NOT NULL,                    -- what listing shows, behind a checksum
    children  BLOB NOT NULL,                    -- hashes the root refers to
    root      BLOB NOT NULL                     -- the root's own bytes, behind a checksum
);
CREATE UNIQUE INDEX checkpoints_by_id ON checkpoints (id, line);
CREATE INDEX checkpoints_by_line ON checkpoints (line);
CREATE INDEX checkpoints_spared ON checkpoints (line) WHERE pinned OR branches;
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

CREATE TABLE writes (
    seq         INTEGER PRIMARY KEY,
    line        INTEGER NOT NULL,
    checkpoint  TEXT NOT NULL,                  -- need not be stored yet
    task        TEXT NOT NULL,
    idx         INTEGER NOT NULL,
    info        BLOB NOT NULL,
    children    BLOB NOT NULL,
    UNIQUE (line, checkpoint, task, idx)
);

CREATE TABLE operations (
    seq     INTEGER PRIMARY KEY,
    thread  INTEGER NOT NULL,
    undone  INTEGER NOT NULL,
    data    BLOB NOT NULL
);
CREATE INDEX operations_by_thread ON operations (thread);

CREATE TABLE hidden (                           -- stretches of a line that are not listed
    line       INTEGER NOT NULL,
    operation  INTEGER NOT NULL,
    after      INTEGER NOT NULL,
    upto       INTEGER NOT NULL,
    run        INTEGER,                         -- NULL: of every run
    writes_of  TEXT
);
CREATE INDEX hidden_by_line ON hidden (line);

CREATE TABLE counters (                         -- the highest numbers that deleted rows had
    name   TEXT PRIMARY KEY,
    value  INTEGER NOT NULL
);
INSERT INTO counters VALUES ('checkpoints', 0), ('writes', 0), ('operations', 0), ('objects', 0);
