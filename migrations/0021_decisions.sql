-- The decisions of confirmations. A study that goes on may be confirmed several times.

CREATE TABLE decisions (
    study_id INTEGER NOT NULL REFERENCES studies (id) ON DELETE CASCADE,
    -- The accepted changes of the study's context (`trials.accepted_changes`): decisions of earlier contexts do not count.
    accepted_changes INTEGER NOT NULL,
    -- The number of the confirmation's first trial.
    began_at INTEGER NOT NULL CHECK (began_at >= 0),
    -- The plan of the confirmation and, once one of its launches was measured, the decision with verdict and noise. JSON.
    decision TEXT NOT NULL,
    PRIMARY KEY (study_id, accepted_changes, began_at)
) STRICT;
