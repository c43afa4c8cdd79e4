-- Schema 9: threads are found by when they were active.

-- Most commits leave the minute as it is, so that the row of a line is still changed in place. An index on `active` itself
-- would be written with every commit, and with it all the others. NULL: never active.
ALTER TABLE {lines} ADD COLUMN minute timestamptz GENERATED ALWAYS AS
    (CASE WHEN isfinite(active) THEN date_bin(interval '1 minute', active, 'epoch'::timestamptz) END) STORED;

CREATE INDEX ON {lines} (minute);
