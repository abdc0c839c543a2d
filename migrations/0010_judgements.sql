-- What the sampler's model says of all measurements together: which configuration is the best, and what is left to gain. It
-- follows from the trials, but only with the study file and the engine at hand, which those who ask later need not have.

CREATE TABLE judgements (
    study_id INTEGER PRIMARY KEY REFERENCES studies (id) ON DELETE CASCADE,
    -- The trials with an outcome that it rests on; with more of them it is out of date.
    outcomes INTEGER NOT NULL CHECK (outcomes >= 0),
    -- As JSON.
    judgement TEXT NOT NULL
) STRICT;
