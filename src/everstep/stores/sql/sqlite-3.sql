-- Schema 3: what a copy from another store needs to go on later.

ALTER TABLE threads ADD COLUMN note BLOB;
