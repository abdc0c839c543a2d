-- Views for people: names in place of keys, and columns in place of JSON. The program itself does not read them.

-- Trials with the metrics that people ask for first; all others are in `metrics`.
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
       trials.accepted_changes <> studies.accepted_changes AS earlier_context, metrics
FROM trials
JOIN studies ON studies.id = trials.study_id
LEFT JOIN measurements
    ON measurements.study_id = trials.study_id AND measurements.number = trials.number AND measurements.kind = 'trial';

-- Configurations that kept every limit in all their trials of the study's present context, by the mean of their values. The
-- program ranks by the same rules (`objective::rank`); a test compares the two.
CREATE VIEW v_best AS
SELECT studies.name AS study, min(CASE WHEN state = 'measured' THEN trials.number END) AS trial, config,
       avg(value) AS mean_value, count(value) AS measurements, min(value) AS lowest_value, max(value) AS highest_value
FROM trials
JOIN studies ON studies.id = trials.study_id
WHERE state IN ('measured', 'failed') AND proposed_by <> 'interference'
  AND trials.accepted_changes = studies.accepted_changes
GROUP BY trials.study_id, config
HAVING max(violation) = 0
   AND total(state = 'failed' AND proposed_by NOT IN ('rule_test', 'probe')
             AND (probe IS NOT NULL
                  OR reason_code NOT IN ('spawn', 'wrong_server', 'client_bound', 'model_unavailable', 'device_busy',
                                         'device_lost', 'port_in_use', 'network', 'disk', 'killed'))) = 0;

-- Starts of engines: the seconds of each phase, and the configuration that the engine reported.
CREATE VIEW v_starts AS
SELECT studies.name AS study, trials.number AS trial, trials.state, trials.reason_code, trials.started_at, trials.startup_s,
       (SELECT json_group_object(json_extract(phase.value, '$.phase'), json_extract(phase.value, '$.duration_s'))
        FROM json_each(startups.startup, '$.phases') AS phase) AS phases_s,
       json_extract(startups.startup, '$.resolved') AS resolved, trials.config, trials.log
FROM startups
JOIN studies ON studies.id = startups.study_id
JOIN trials ON trials.study_id = startups.study_id AND trials.number = startups.number;
