-- Greedy replies to the bundled prompts, so that flags that change the output are found. The replies of the baseline's launches
-- are the reference of all others.

CREATE TABLE answers (
    study_id INTEGER NOT NULL REFERENCES studies (id) ON DELETE CASCADE,
    -- The trial's number.
    number INTEGER NOT NULL CHECK (number >= 0),
    -- Whether the launch has the baseline's values of all flags that may change the output.
    is_reference INTEGER NOT NULL CHECK (is_reference IN (0, 1)),
    -- The verdict, the agreement with the baseline, and that of the baseline with itself. NULL without a comparison.
    verdict TEXT,
    agreement REAL,
    own_agreement REAL,
    -- The replies of each pass and the whole comparison, as JSON: some 15 kB.
    answers TEXT NOT NULL,
    PRIMARY KEY (study_id, number)
) STRICT, WITHOUT ROWID;
