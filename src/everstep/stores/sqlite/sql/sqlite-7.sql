-- Schema 7: whether a family may hold objects that nobody needs, so that only those are swept.

ALTER TABLE families ADD COLUMN swept INTEGER NOT NULL DEFAULT 0;  -- 2: swept, and nothing has gone since; more: by whom

-- Whatever may leave an object without anybody who needs it is noted here.
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
CREATE TRIGGER commons_added AFTER INSERT ON commons  -- it may take the place of another
    BEGIN UPDATE families SET swept = 0 WHERE swept AND id = (SELECT family FROM threads WHERE id = NEW.low); END;
CREATE TRIGGER commons_dropped AFTER DELETE ON commons
    BEGIN UPDATE families SET swept = 0 WHERE swept AND id IN
          (SELECT family FROM threads WHERE id IN (OLD.low, OLD.high)); END;
