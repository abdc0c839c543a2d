-- Today's deployment, which reports compare with the winner. Its trials alone do not identify it: the study file may name another
-- one later, and one that equals the engine's defaults has no trial of its own.

-- The source, the configuration, and whether it equals the engine's defaults, as JSON. Null without a deployment.
ALTER TABLE studies ADD COLUMN deployment TEXT;
