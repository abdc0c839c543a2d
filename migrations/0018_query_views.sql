-- Views for other programs: a column for each metric, the flags of each trial, and the contexts.

-- Measured trials with a column for each common metric. `config` holds the flags as a JSON object. The context is that of the trial.
CREATE VIEW v_metrics AS
SELECT studies.name AS study, trials.number AS trial, trials.proposed_by, trials.config, trials.value, trials.violation,
       trials.violation = 0 AS feasible, trials.accepted_changes <> studies.accepted_changes AS earlier_context,
       coalesce(json_array_length(metrics, '$.disturbed'), 0) > 0 AS disturbed,
       json_extract(metrics, '$.completed') AS completed, json_extract(metrics, '$.failed') AS failed,
       json_extract(metrics, '$.duration') AS duration_s,
       json_extract(metrics, '$.total_input_tokens') AS total_input_tokens,
       json_extract(metrics, '$.total_output_tokens') AS total_output_tokens,
       json_extract(metrics, '$.request_throughput') AS request_throughput,
       json_extract(metrics, '$.output_throughput') AS output_throughput,
       json_extract(metrics, '$.total_token_throughput') AS total_token_throughput,
       json_extract(metrics, '$.request_goodput') AS request_goodput,
       json_extract(metrics, '$.mean_ttft_ms') AS mean_ttft_ms, json_extract(metrics, '$.median_ttft_ms') AS median_ttft_ms,
       json_extract(metrics, '$.p90_ttft_ms') AS p90_ttft_ms, json_extract(metrics, '$.p95_ttft_ms') AS p95_ttft_ms,
       json_extract(metrics, '$.p99_ttft_ms') AS p99_ttft_ms,
       json_extract(metrics, '$.mean_tpot_ms') AS mean_tpot_ms, json_extract(metrics, '$.median_tpot_ms') AS median_tpot_ms,
       json_extract(metrics, '$.p90_tpot_ms') AS p90_tpot_ms, json_extract(metrics, '$.p95_tpot_ms') AS p95_tpot_ms,
       json_extract(metrics, '$.p99_tpot_ms') AS p99_tpot_ms,
       json_extract(metrics, '$.mean_itl_ms') AS mean_itl_ms, json_extract(metrics, '$.median_itl_ms') AS median_itl_ms,
       json_extract(metrics, '$.p90_itl_ms') AS p90_itl_ms, json_extract(metrics, '$.p95_itl_ms') AS p95_itl_ms,
       json_extract(metrics, '$.p99_itl_ms') AS p99_itl_ms,
       json_extract(metrics, '$.mean_e2el_ms') AS mean_e2el_ms, json_extract(metrics, '$.median_e2el_ms') AS median_e2el_ms,
       json_extract(metrics, '$.p90_e2el_ms') AS p90_e2el_ms, json_extract(metrics, '$.p95_e2el_ms') AS p95_e2el_ms,
       json_extract(metrics, '$.p99_e2el_ms') AS p99_e2el_ms,
       json_extract(metrics, '$.mean_output_speed') AS mean_output_speed,
       json_extract(metrics, '$.p10_output_speed') AS p10_output_speed,
       json_extract(metrics, '$.server.kv_cache_usage_max') AS kv_cache_usage_max,
       json_extract(metrics, '$.server.preemptions') AS preemptions,
       json_extract(metrics, '$.server.prefix_cache_hit_rate') AS prefix_cache_hit_rate,
       json_extract(metrics, '$.server.gpu_memory_gib_max') AS gpu_memory_gib_max,
       json_extract(metrics, '$.server.gpu_power_w_mean') AS gpu_power_w_mean,
       json_extract(metrics, '$.server.energy_per_output_token_j') AS energy_per_output_token_j,
       trials.started_at, trials.startup_s, trials.elapsed_s, trials.engine_version,
       json_extract(contexts.context, '$.device.name') AS device, json_extract(contexts.context, '$.device.count') AS devices,
       json_extract(contexts.context, '$.host.name') AS host
FROM trials
JOIN studies ON studies.id = trials.study_id
JOIN measurements
    ON measurements.study_id = trials.study_id AND measurements.number = trials.number AND measurements.kind = 'trial'
LEFT JOIN contexts ON contexts.id = trials.context
WHERE trials.state = 'measured';

-- A row for each flag that a trial sets, for pivot tables. Booleans are 0 and 1. A flag that is absent has the engine's default.
CREATE VIEW v_flags AS
SELECT studies.name AS study, trials.number AS trial, trials.state, flags.key AS flag, flags.value AS value
FROM trials
JOIN studies ON studies.id = trials.study_id, json_each(trials.config) AS flags;

-- A row for each context of a study. `trials` counts those that were launched in it. The study goes on in the present one.
CREATE VIEW v_contexts AS
SELECT studies.name AS study, contexts.id = studies.context AS present,
       (SELECT count(*) FROM trials WHERE trials.context = contexts.id) AS trials,
       json_extract(contexts.context, '$.release') AS engine_version,
       json_extract(contexts.context, '$.device.name') AS device, json_extract(contexts.context, '$.device.count') AS devices,
       json_extract(contexts.context, '$.device.memory') AS device_memory_bytes,
       json_extract(contexts.context, '$.device.driver') AS driver,
       json_extract(contexts.context, '$.host.name') AS host, json_extract(contexts.context, '$.host.cpu') AS processor,
       json_extract(contexts.context, '$.host.cpus') AS processors,
       json_extract(contexts.context, '$.host.memory') AS host_memory_bytes
FROM contexts
JOIN studies ON studies.id = contexts.study_id;
