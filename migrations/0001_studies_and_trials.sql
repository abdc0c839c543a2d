-- The first tables: what was to be found out, and everything that was tried.
-- JSON columns hold what has no fixed shape: definitions, configurations, commands, metrics.

CREATE TABLE studies (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    -- What decides the meaning of a measurement; a study is only taken up again with the same one.
    definition TEXT NOT NULL,
    setpoint_version TEXT NOT NULL,
    host TEXT NOT NULL,
    created_at TEXT NOT NULL
) STRICT;

CREATE TABLE trials (
    id INTEGER PRIMARY KEY,
    study_id INTEGER NOT NULL REFERENCES studies (id) ON DELETE CASCADE,
    -- Without gaps, from 0, the engine's defaults.
    number INTEGER NOT NULL CHECK (number >= 0),
    proposed_by TEXT NOT NULL,
    config TEXT NOT NULL,
    command TEXT NOT NULL,
    env TEXT NOT NULL,
    -- A trial that is still `running` when no tuner runs was interrupted; it is tried again under the same number.
    state TEXT NOT NULL CHECK (state IN ('running', 'rejected', 'failed', 'measured')),
    -- The rule that rejected it or the kind of failure, and the message.
    reason_code TEXT,
    reason TEXT,
    started_at TEXT NOT NULL,
    startup_s REAL,
    elapsed_s REAL,
    engine_version TEXT,
    log TEXT,
    metrics TEXT,
    -- The objective's value, and by how much the constraints are violated (0 where they are kept).
    value REAL,
    violation REAL,
    UNIQUE (study_id, number)
) STRICT;

CREATE INDEX trials_by_score ON trials (study_id, violation, value) WHERE state = 'measured';
