-- How each trial was measured: by a plain launch, by a launch with the engine's helper for live looks, or by a live look on the
-- server of another trial.

-- The number of the trial whose server measured a live look; NULL for a launch.
ALTER TABLE trials ADD COLUMN server_of INTEGER;
-- 1 if the launch had the helper.
ALTER TABLE trials ADD COLUMN prepared INTEGER NOT NULL DEFAULT 0;

DROP VIEW v_trials;
CREATE VIEW v_trials AS
SELECT studies.name AS study, trials.number AS trial, trials.proposed_by, trials.state, trials.reason_code, trials.reason,
       trials.config, trials.value, trials.violation, trials.violation = 0 AS feasible,
       json_extract(metrics, '$.request_throughput') AS request_throughput,
       json_extract(metrics, '$.output_throughput') AS output_throughput,
       json_extract(metrics, '$.median_ttft_ms') AS median_ttft_ms,
       json_extract(metrics, '$.p99_ttft_ms') AS p99_ttft_ms,
       json_extract(metrics, '$.median_tpot_ms') AS median_tpot_ms,
       json_extract(metrics, '$.p99_tpot_ms') AS p99_tpot_ms,
       json_extract(metrics, '$.completed') AS completed, json_extract(metrics, '$.failed') AS failed,
       trials.started_at, trials.startup_s, trials.elapsed_s, trials.engine_version,
       trials.accepted_changes <> studies.accepted_changes AS earlier_context, metrics,
       CASE WHEN trials.server_of IS NOT NULL THEN 'live_look' WHEN trials.prepared THEN 'prepared_launch'
            ELSE 'plain_launch' END AS measured_by,
       trials.server_of
FROM trials
JOIN studies ON studies.id = trials.study_id
LEFT JOIN measurements
    ON measurements.study_id = trials.study_id AND measurements.number = trials.number AND measurements.kind = 'trial';

-- Live looks rank no configuration: only launches do.
DROP VIEW v_best;
CREATE VIEW v_best AS
SELECT studies.name AS study, min(CASE WHEN state = 'measured' THEN trials.number END) AS trial, config,
       avg(value) AS mean_value, count(value) AS measurements, min(value) AS lowest_value, max(value) AS highest_value
FROM trials
JOIN studies ON studies.id = trials.study_id
WHERE state IN ('measured', 'failed') AND proposed_by NOT IN ('interference', 'live_look')
  AND trials.accepted_changes = studies.accepted_changes
GROUP BY trials.study_id, config
HAVING max(violation) = 0
   AND total(state = 'failed' AND proposed_by NOT IN ('rule_test', 'probe')
             AND (probe IS NOT NULL
                  OR reason_code NOT IN ('spawn', 'wrong_server', 'client_bound', 'model_unavailable', 'device_busy',
                                         'device_lost', 'port_in_use', 'network', 'disk', 'killed'))) = 0;
