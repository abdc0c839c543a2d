-- Where a rule and the installed engine differ on a configuration, the rule has a defect: kept so that it can be mended.
-- The engine is asked about what is to be launched, and about an example of what each rule removes from a space, which
-- belongs to no trial.

CREATE TABLE disagreements (
    id INTEGER PRIMARY KEY,
    study_id INTEGER NOT NULL REFERENCES studies (id) ON DELETE CASCADE,
    -- The number of the trial, whose row has the configuration; NULL for an example.
    trial INTEGER CHECK (trial >= 0),
    -- The configuration of an example, as JSON.
    config TEXT,
    engine_version TEXT NOT NULL,
    -- What the engine said; the rules said the opposite.
    engine TEXT NOT NULL CHECK (engine IN ('accept', 'reject')),
    -- The rule that rejected what the engine accepts; NULL where the engine rejects.
    rule TEXT,
    -- The words of whoever rejected.
    message TEXT NOT NULL,
    UNIQUE (study_id, trial),
    CHECK ((trial IS NULL) = (config IS NOT NULL))
) STRICT;

-- One example for each rule: the latest.
CREATE UNIQUE INDEX disagreements_by_rule ON disagreements (study_id, rule) WHERE trial IS NULL;
