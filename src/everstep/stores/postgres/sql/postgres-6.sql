-- Schema 6: whether a family may hold objects that nobody needs, so that only those are swept.

ALTER TABLE {families} ADD swept int NOT NULL DEFAULT 0;  -- 2: swept, and nothing has gone since; more: by whom

-- Whatever may leave an object without anybody who needs it is noted here.
CREATE FUNCTION {unswept}() RETURNS trigger LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
    UPDATE {families} SET swept = 0 WHERE id = OLD.family AND swept > 0;
    RETURN NULL;
END $$;

CREATE TRIGGER everstep_dropped AFTER DELETE ON {checkpoints} FOR EACH ROW EXECUTE FUNCTION {unswept}();
CREATE TRIGGER everstep_replaced AFTER UPDATE OF children ON {checkpoints} FOR EACH ROW
    WHEN (OLD.children <> NEW.children) EXECUTE FUNCTION {unswept}();
CREATE TRIGGER everstep_dropped AFTER DELETE ON {writes} FOR EACH ROW
    WHEN (length(OLD.children) > 0) EXECUTE FUNCTION {unswept}();
CREATE TRIGGER everstep_replaced AFTER UPDATE OF children ON {writes} FOR EACH ROW
    WHEN (OLD.children <> NEW.children) EXECUTE FUNCTION {unswept}();
CREATE TRIGGER everstep_dropped AFTER DELETE ON {commons} FOR EACH ROW EXECUTE FUNCTION {unswept}();
CREATE TRIGGER everstep_replaced AFTER UPDATE OF children ON {commons} FOR EACH ROW EXECUTE FUNCTION {unswept}();
