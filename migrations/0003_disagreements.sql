-- Where a rule and the installed engine differ on a configuration, the rule has a defect: kept so that it can be mended.

CREATE TABLE disagreements (
    id INTEGER PRIMARY KEY,
    study_id INTEGER NOT NULL REFERENCES studies (id) ON DELETE CASCADE,
    -- The number of the trial; the trial's row has the configuration.
    trial INTEGER NOT NULL CHECK (trial >= 0),
    engine_version TEXT NOT NULL,
    -- What the engine said; the rules said the opposite.
    engine TEXT NOT NULL CHECK (engine IN ('accept', 'reject')),
    -- The rule that rejected what the engine accepts; NULL where the engine rejects.
    rule TEXT,
    -- The words of whoever rejected.
    message TEXT NOT NULL,
    UNIQUE (study_id, trial)
) STRICT;
