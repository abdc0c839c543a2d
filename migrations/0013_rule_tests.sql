-- Launches that test rules which only a start can refute: a configuration that one rule rejects and no other does. A rule is
-- tested once for each release and device class, in whichever study comes first.

CREATE TABLE rule_tests (
    study_id INTEGER NOT NULL REFERENCES studies (id) ON DELETE CASCADE,
    -- The trial's number.
    number INTEGER NOT NULL CHECK (number >= 0),
    rule TEXT NOT NULL,
    -- `vllm` or `sim`, its release, and the device class, as in `starts`.
    engine TEXT NOT NULL,
    engine_version TEXT NOT NULL,
    device TEXT NOT NULL,
    -- The rule's reason to reject the configuration.
    message TEXT NOT NULL,
    -- NULL until the trial has an outcome. `refuted`: the engine served. `confirmed`: the start failed as the rule predicts.
    -- `inconclusive`: it failed in another way.
    verdict TEXT CHECK (verdict IN ('refuted', 'confirmed', 'inconclusive')),
    -- The failure, if there was one.
    failure TEXT,
    at TEXT NOT NULL,
    PRIMARY KEY (study_id, number)
) STRICT, WITHOUT ROWID;

CREATE INDEX rule_tests_by_device ON rule_tests (engine, engine_version, device);
