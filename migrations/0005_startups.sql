-- How each launch started: the phases of its start, and the configuration that the engine reports of itself.

CREATE TABLE startups (
    study_id INTEGER NOT NULL REFERENCES studies (id) ON DELETE CASCADE,
    -- The trial's number.
    number INTEGER NOT NULL CHECK (number >= 0),
    -- `phases` with their seconds, `resolved` by name of flag, `differences` from what was asked, as JSON: about 1 kB.
    startup TEXT NOT NULL,
    PRIMARY KEY (study_id, number)
) STRICT, WITHOUT ROWID;
