-- The server's side of each trial. A table of its own, so that reading trials does not read their series.

CREATE TABLE telemetry (
    study_id INTEGER NOT NULL REFERENCES studies (id) ON DELETE CASCADE,
    -- The trial's number.
    number INTEGER NOT NULL CHECK (number >= 0),
    -- One number for each name, as JSON.
    summary TEXT NOT NULL,
    -- Columns of values over time, as JSON: at most 120 samples a source, about 6 kB for a trial of a minute and 3 kB
    -- more for each GPU.
    series TEXT NOT NULL,
    PRIMARY KEY (study_id, number)
) STRICT, WITHOUT ROWID;
