-- Every measurement of a trial, one row each. A table of its own, so that ranking thousands of trials does not read their metrics.

CREATE TABLE measurements (
    study_id INTEGER NOT NULL REFERENCES studies (id) ON DELETE CASCADE,
    -- The trial's number.
    number INTEGER NOT NULL CHECK (number >= 0),
    -- From 0, in the order in which the launch made them.
    sequence INTEGER NOT NULL CHECK (sequence >= 0),
    -- How it was made. `trial`: the trial's value and violation are computed from it. `client_bound` and `disturbed`: the load
    -- generator was the bottleneck, or others used the engine's devices, so that the load was driven again.
    kind TEXT NOT NULL,
    -- The names of `vllm bench serve`, as JSON.
    metrics TEXT NOT NULL,
    PRIMARY KEY (study_id, number, sequence)
) STRICT;

-- A trial has one value, so that one measurement decides it.
CREATE UNIQUE INDEX measurements_of_trials ON measurements (study_id, number) WHERE kind = 'trial';

INSERT INTO measurements (study_id, number, sequence, kind, metrics)
SELECT study_id, number, 0, 'trial', metrics FROM trials WHERE state = 'measured' AND metrics IS NOT NULL;

DROP INDEX trials_by_score;
ALTER TABLE trials DROP COLUMN metrics;

-- Everything that the ranking reads, so that it reads nothing else; and the trials of one configuration.
CREATE INDEX trials_of_context ON trials
    (study_id, accepted_changes, state, config, number, proposed_by, value, violation, reason_code, probe);

-- The table holds what starts show of the memory, and not starts.
ALTER TABLE starts RENAME TO memory_observations;
