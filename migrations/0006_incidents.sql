-- Launches that failed for a reason of their environment and not of their configuration. The trial is launched again, so
-- none of them is its outcome; kept so that nothing of a night is lost.

CREATE TABLE incidents (
    study_id INTEGER NOT NULL REFERENCES studies (id) ON DELETE CASCADE,
    -- The trial's number.
    number INTEGER NOT NULL CHECK (number >= 0),
    -- From 1, also when another run of the tuner takes the trial up.
    attempt INTEGER NOT NULL CHECK (attempt > 0),
    at TEXT NOT NULL,
    -- The kind of failure, as in trials.reason_code, and the message.
    kind TEXT NOT NULL,
    message TEXT NOT NULL,
    -- The log of this attempt.
    log TEXT,
    PRIMARY KEY (study_id, number, attempt)
) STRICT, WITHOUT ROWID;
