-- Schema 3: what it takes to copy threads to and from other stores, and to go on with that later.

ALTER TABLE threads ADD COLUMN note BLOB;
INSERT INTO counters VALUES ('identity', random());  -- not a counter: the name of this store among all others
