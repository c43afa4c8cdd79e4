-- Schema 1 of the SQLite store. Bytes are opaque; text columns hold names only.

CREATE TABLE families (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    format  INTEGER NOT NULL,                   -- the address function of its objects
    sweeps  INTEGER NOT NULL                    -- counts deletions of objects: a sweep that was overtaken starts again
);

CREATE TABLE threads (
    id               INTEGER PRIMARY KEY,
    name             TEXT NOT NULL UNIQUE,
    family           INTEGER NOT NULL,
    origin           BLOB,                      -- where a branch began; the root it has in common with its origin
    origin_children  BLOB
);
CREATE INDEX threads_by_family ON threads (family);

CREATE TABLE lines (                            -- a namespace of a thread
    id          INTEGER PRIMARY KEY,
    thread      INTEGER NOT NULL,
    namespace   TEXT NOT NULL,
    head        INTEGER,                        -- checkpoints.seq
    generation  INTEGER NOT NULL,               -- counts the moves of the head
    active      INTEGER NOT NULL,               -- microseconds; orders threads by activity, nothing else
    UNIQUE (thread, namespace)
);

CREATE TABLE checkpoints (
    seq       INTEGER PRIMARY KEY,              -- the store's order; never used twice, see counters
    line      INTEGER NOT NULL,
    id        TEXT NOT NULL,
    step      INTEGER NOT NULL,
    pinned    INTEGER NOT NULL,
    info      BLOB NOT NULL,                    -- what listing shows, behind a checksum
    children  BLOB NOT NULL,                    -- hashes the root refers to
    root      BLOB NOT NULL                     -- the root's own bytes, behind a checksum
);
CREATE UNIQUE INDEX checkpoints_by_id ON checkpoints (id, line);
CREATE INDEX checkpoints_by_line ON checkpoints (line);

CREATE TABLE objects (
    id        INTEGER PRIMARY KEY,              -- an object that is sent again gets a new one: no sweep takes it
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
    writes_of  TEXT
);
CREATE INDEX hidden_by_line ON hidden (line);

CREATE TABLE counters (                         -- the highest numbers that deleted rows had
    name   TEXT PRIMARY KEY,
    value  INTEGER NOT NULL
);
INSERT INTO counters VALUES ('checkpoints', 0), ('writes', 0), ('operations', 0);
