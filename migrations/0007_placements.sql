-- Where each launch ran, in studies that run several trials at a time.

CREATE TABLE placements (
    study_id INTEGER NOT NULL REFERENCES studies (id) ON DELETE CASCADE,
    -- The trial's number.
    number INTEGER NOT NULL CHECK (number >= 0),
    -- A JSON array, counted from 0.
    slots TEXT NOT NULL,
    -- As CUDA_VISIBLE_DEVICES has them; NULL where slots have none of their own.
    devices TEXT,
    -- As the kernel writes them, `0-3,8`; NULL where slots have none of their own.
    processors TEXT,
    -- The first is the server's, the others are for what its processes tell each other.
    first_port INTEGER NOT NULL,
    last_port INTEGER NOT NULL,
    -- 1 where no other trial ran meanwhile.
    alone INTEGER NOT NULL CHECK (alone IN (0, 1)),
    PRIMARY KEY (study_id, number)
) STRICT, WITHOUT ROWID;
