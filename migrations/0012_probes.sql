-- Probes: launches of a configuration that is known to work. They show whether failures belong to configurations or to the
-- environment of all launches.

-- Number of the probe that started although this launch had failed: the failure is the configuration's own, whatever its kind.
ALTER TABLE trials ADD COLUMN probe INTEGER;

-- 1 if the study paused or gave up slots because of this incident: its trial gets one more launch, and no further pause.
ALTER TABLE incidents ADD COLUMN paused INTEGER NOT NULL DEFAULT 0;
