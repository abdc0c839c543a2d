-- What every start has told of the device's memory, so that later ones are predicted better, in other studies as well.

CREATE TABLE starts (
    id INTEGER PRIMARY KEY,
    study_id INTEGER NOT NULL REFERENCES studies (id) ON DELETE CASCADE,
    -- The trial's number.
    number INTEGER NOT NULL CHECK (number >= 0),
    -- `vllm` or `sim`.
    engine TEXT NOT NULL,
    engine_version TEXT NOT NULL,
    device TEXT NOT NULL,
    -- As the engine was told it, and what of its shape decides the memory.
    model TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    -- With the study's own arguments.
    config TEXT NOT NULL,
    -- Variables that decide the memory.
    env TEXT NOT NULL,
    observed TEXT NOT NULL,
    UNIQUE (study_id, number)
) STRICT;

CREATE INDEX starts_by_model ON starts (fingerprint, device, engine, engine_version);
