-- Schema 5: every row says by a checksum that it is as it was written, whoever wrote the page that it is on.
--
-- `seal` is a function of the store (see `sqlite_verify`), over the columns that no other checksum covers. What can be
-- derived from other rows is left out: `lines.total`, the numbers of `sqlite_sequence`, and all of `commons`. Rows are
-- sealed by triggers, so that no statement can forget it; only new rows of `checkpoints` and `writes` are sealed by who
-- inserts them, since there are many. A program that does not know `seal` can read the file, and cannot change the rows.

ALTER TABLE families ADD COLUMN seal INTEGER;
UPDATE families SET seal = seal(id, format, sweeps, live);
CREATE TRIGGER families_made AFTER INSERT ON families
    BEGIN UPDATE families SET seal = seal(NEW.id, NEW.format, NEW.sweeps, NEW.live) WHERE id = NEW.id; END;
CREATE TRIGGER families_changed AFTER UPDATE OF id, format, sweeps, live ON families
    BEGIN UPDATE families SET seal = seal(NEW.id, NEW.format, NEW.sweeps, NEW.live) WHERE id = NEW.id; END;

ALTER TABLE threads ADD COLUMN seal INTEGER;
UPDATE threads SET seal = seal(id, name, family, began, origin, note);
CREATE TRIGGER threads_made AFTER INSERT ON threads
    BEGIN UPDATE threads SET seal =
          seal(NEW.id, NEW.name, NEW.family, NEW.began, NEW.origin, NEW.note) WHERE id = NEW.id; END;
CREATE TRIGGER threads_changed AFTER UPDATE OF id, name, family, began, origin, note ON threads
    BEGIN UPDATE threads SET seal =
          seal(NEW.id, NEW.name, NEW.family, NEW.began, NEW.origin, NEW.note) WHERE id = NEW.id; END;

ALTER TABLE lines ADD COLUMN seal INTEGER;
UPDATE lines SET seal = seal(id, thread, namespace, head, turned, generation, active, doomed);
CREATE TRIGGER lines_made AFTER INSERT ON lines
    BEGIN UPDATE lines SET seal =
          seal(NEW.id, NEW.thread, NEW.namespace, NEW.head, NEW.turned, NEW.generation, NEW.active, NEW.doomed)
          WHERE id = NEW.id; END;
CREATE TRIGGER lines_changed AFTER UPDATE OF id, thread, namespace, head, turned, generation, active, doomed ON lines
    BEGIN UPDATE lines SET seal =
          seal(NEW.id, NEW.thread, NEW.namespace, NEW.head, NEW.turned, NEW.generation, NEW.active, NEW.doomed)
          WHERE id = NEW.id; END;

ALTER TABLE runs ADD COLUMN seal INTEGER;
UPDATE runs SET seal = seal(family, run, line);
CREATE TRIGGER runs_made AFTER INSERT ON runs
    BEGIN UPDATE runs SET seal =
          seal(NEW.family, NEW.run, NEW.line) WHERE family = NEW.family AND run = NEW.run; END;
CREATE TRIGGER runs_changed AFTER UPDATE OF family, run, line ON runs
    BEGIN UPDATE runs SET seal =
          seal(NEW.family, NEW.run, NEW.line) WHERE family = NEW.family AND run = NEW.run; END;

ALTER TABLE checkpoints ADD COLUMN seal INTEGER;
UPDATE checkpoints SET seal = seal(seq, line, run, pinned, branches, added);
CREATE TRIGGER checkpoints_changed AFTER UPDATE OF seq, line, run, pinned, branches, added ON checkpoints
    BEGIN UPDATE checkpoints SET seal =
          seal(NEW.seq, NEW.line, NEW.run, NEW.pinned, NEW.branches, NEW.added) WHERE seq = NEW.seq; END;

ALTER TABLE writes ADD COLUMN seal INTEGER;
UPDATE writes SET seal = seal(line, checkpoint, task, idx, seq);
DROP TRIGGER writes_added;
DROP TRIGGER writes_replaced;
CREATE TRIGGER writes_made AFTER INSERT ON writes BEGIN
    UPDATE counters SET value = NEW.seq, seal = seal('writes', NEW.seq) WHERE name = 'writes' AND value < NEW.seq;
END;
CREATE TRIGGER writes_changed AFTER UPDATE OF line, checkpoint, task, idx, seq ON writes BEGIN
    UPDATE counters SET value = NEW.seq, seal = seal('writes', NEW.seq) WHERE name = 'writes' AND value < NEW.seq;
    UPDATE writes SET seal = seal(NEW.line, NEW.checkpoint, NEW.task, NEW.idx, NEW.seq)
    WHERE line = NEW.line AND checkpoint = NEW.checkpoint AND task = NEW.task AND idx = NEW.idx;
END;

ALTER TABLE operations ADD COLUMN seal INTEGER;
UPDATE operations SET seal = seal(seq, thread, undone);
CREATE TRIGGER operations_made AFTER INSERT ON operations
    BEGIN UPDATE operations SET seal = seal(NEW.seq, NEW.thread, NEW.undone) WHERE seq = NEW.seq; END;
CREATE TRIGGER operations_changed AFTER UPDATE OF seq, thread, undone ON operations
    BEGIN UPDATE operations SET seal = seal(NEW.seq, NEW.thread, NEW.undone) WHERE seq = NEW.seq; END;

ALTER TABLE hidden ADD COLUMN seal INTEGER;
UPDATE hidden SET seal = seal(line, operation, after, upto, run, writes_of);
CREATE TRIGGER hidden_made AFTER INSERT ON hidden
    BEGIN UPDATE hidden SET seal =
          seal(NEW.line, NEW.operation, NEW.after, NEW.upto, NEW.run, NEW.writes_of) WHERE rowid = NEW.rowid; END;
CREATE TRIGGER hidden_changed AFTER UPDATE OF line, operation, after, upto, run, writes_of ON hidden
    BEGIN UPDATE hidden SET seal =
          seal(NEW.line, NEW.operation, NEW.after, NEW.upto, NEW.run, NEW.writes_of) WHERE rowid = NEW.rowid; END;

ALTER TABLE counters ADD COLUMN seal INTEGER;
UPDATE counters SET seal = seal(name, value);
CREATE TRIGGER counters_made AFTER INSERT ON counters
    BEGIN UPDATE counters SET seal = seal(NEW.name, NEW.value) WHERE name = NEW.name; END;
CREATE TRIGGER counters_changed AFTER UPDATE OF name, value ON counters WHEN NEW.seal IS OLD.seal
    BEGIN UPDATE counters SET seal = seal(NEW.name, NEW.value) WHERE name = NEW.name; END;

-- The highest number that a family ever had is here or in `families`, and `sqlite_sequence` says the same.
INSERT INTO counters (name, value)
    SELECT 'families', coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'families'), 0);
CREATE TRIGGER families_removed AFTER DELETE ON families
    BEGIN UPDATE counters SET value = max(value, OLD.id) WHERE name = 'families'; END;
