-- Expectations before a launch, so that reports compare predicted with measured values; and the stored importance of the
-- parameters, which follows from the trials, but only with the study file and the engine at hand.

-- The objective's value that the sampler's model expected, and the 5th and 95th percentile of one measurement. NULL from
-- samplers without a model.
ALTER TABLE trials ADD COLUMN expected_mean REAL;
ALTER TABLE trials ADD COLUMN expected_low REAL;
ALTER TABLE trials ADD COLUMN expected_high REAL;

CREATE TABLE explanations (
    study_id INTEGER PRIMARY KEY REFERENCES studies (id) ON DELETE CASCADE,
    -- The number of trials with an outcome that it uses. Later trials are not in it.
    outcomes INTEGER NOT NULL CHECK (outcomes >= 0),
    -- As JSON.
    explanation TEXT NOT NULL
) STRICT;
