-- Whether a waiting process of the engine, which had imported its modules, forked the launch.
ALTER TABLE trials ADD COLUMN fast INTEGER NOT NULL DEFAULT 0;

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
       CASE WHEN trials.server_of IS NOT NULL THEN 'live_look' WHEN trials.prepared AND trials.fast THEN 'prepared_fast_launch'
            WHEN trials.prepared THEN 'prepared_launch' WHEN trials.fast THEN 'fast_launch' ELSE 'plain_launch'
            END AS measured_by,
       trials.server_of
FROM trials
JOIN studies ON studies.id = trials.study_id
LEFT JOIN measurements
    ON measurements.study_id = trials.study_id AND measurements.number = trials.number AND measurements.kind = 'trial';
