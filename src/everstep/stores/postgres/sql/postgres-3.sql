-- Schema 3: a thread that is deleted leaves a mark.

CREATE TABLE {gone} (
    name  bytea PRIMARY KEY,                    -- the first half of the SHA-256 of the thread's name
    seq   bigint NOT NULL                       -- greater than those of its checkpoints
);
CREATE INDEX ON {gone} (seq);
