-- Contexts: the release, the device and the host under which trials were measured. Numbers of different contexts are not
-- comparable, so that a study goes on only in the same one, or in another one that its user has accepted.

CREATE TABLE contexts (
    id INTEGER PRIMARY KEY,
    study_id INTEGER NOT NULL REFERENCES studies (id) ON DELETE CASCADE,
    -- Release, device and host; fields that could not be read are null.
    context TEXT NOT NULL,
    UNIQUE (study_id, context)
) STRICT;

-- The context in which the study goes on. NULL in studies of older versions until they are taken up again.
ALTER TABLE studies ADD COLUMN context INTEGER REFERENCES contexts (id);

-- The number of changes of the context that the user has accepted.
ALTER TABLE studies ADD COLUMN accepted_changes INTEGER NOT NULL DEFAULT 0;

-- The context of a trial, with the release that its own server has reported.
ALTER TABLE trials ADD COLUMN context INTEGER REFERENCES contexts (id);

-- The study's accepted changes when the trial began. The ranking and the sampler use only trials with the study's present value.
ALTER TABLE trials ADD COLUMN accepted_changes INTEGER NOT NULL DEFAULT 0;
