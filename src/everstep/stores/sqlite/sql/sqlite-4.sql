-- Schema 4: ids that are UUIDs are BLOBs of 16 bytes (`pack_id`), all others stay TEXT; writes without a rowid.

CREATE TABLE packed_writes (                    -- rows are small: what is long is in objects
    line        INTEGER NOT NULL,
    checkpoint  TEXT NOT NULL,                  -- need not be stored yet
    task        TEXT NOT NULL,
    idx         INTEGER NOT NULL,
    seq         INTEGER NOT NULL,               -- never used twice: the highest is always in counters
    info        BLOB NOT NULL,
    children    BLOB NOT NULL,
    PRIMARY KEY (line, checkpoint, task, idx)
) WITHOUT ROWID;
INSERT INTO packed_writes SELECT line, pack_id(checkpoint), pack_id(task), idx, seq, info, children FROM writes;
UPDATE counters SET value = max(value, coalesce((SELECT max(seq) FROM writes), 0)) WHERE name = 'writes';
DROP TABLE writes;
ALTER TABLE packed_writes RENAME TO writes;
CREATE TRIGGER writes_added AFTER INSERT ON writes
    BEGIN UPDATE counters SET value = max(value, NEW.seq) WHERE name = 'writes'; END;
CREATE TRIGGER writes_replaced AFTER UPDATE ON writes
    BEGIN UPDATE counters SET value = max(value, NEW.seq) WHERE name = 'writes'; END;

UPDATE checkpoints SET id = pack_id(id) WHERE typeof(pack_id(id)) = 'blob';
UPDATE hidden SET writes_of = pack_id(writes_of) WHERE writes_of IS NOT NULL;
