-- When each request of a trial's measured window was asked and answered, so that later predictions can learn from it. A table
-- of its own, so that reading trials does not read it.

CREATE TABLE replies (
    study_id INTEGER NOT NULL REFERENCES studies (id) ON DELETE CASCADE,
    -- The trial's number.
    number INTEGER NOT NULL CHECK (number >= 0),
    -- Columns with one value for each request, as JSON: at most 1,000 requests, some 30 bytes each.
    replies TEXT NOT NULL,
    PRIMARY KEY (study_id, number)
) STRICT, WITHOUT ROWID;
