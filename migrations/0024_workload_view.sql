-- A view for people: trials of several workloads, whose measurement has one measurement for each workload.

-- A row for each workload of a measured trial. `value` is that of the whole trial: the workloads joined. `metrics` has all other
-- metrics of the workload.
CREATE VIEW v_workloads AS
SELECT studies.name AS study, trials.number AS trial, trials.proposed_by, trials.config, trials.value,
       trials.violation = 0 AS feasible, trials.accepted_changes <> studies.accepted_changes AS earlier_context,
       json_extract(part.value, '$.workload') AS workload,
       json_extract(part.value, '$.request_throughput') AS request_throughput,
       json_extract(part.value, '$.output_throughput') AS output_throughput,
       json_extract(part.value, '$.total_token_throughput') AS total_token_throughput,
       json_extract(part.value, '$.request_goodput') AS request_goodput,
       json_extract(part.value, '$.mean_ttft_ms') AS mean_ttft_ms, json_extract(part.value, '$.p99_ttft_ms') AS p99_ttft_ms,
       json_extract(part.value, '$.mean_tpot_ms') AS mean_tpot_ms, json_extract(part.value, '$.p99_tpot_ms') AS p99_tpot_ms,
       json_extract(part.value, '$.mean_e2el_ms') AS mean_e2el_ms, json_extract(part.value, '$.p99_e2el_ms') AS p99_e2el_ms,
       json_extract(part.value, '$.completed') AS completed, json_extract(part.value, '$.failed') AS failed,
       part.value AS metrics
FROM trials
JOIN studies ON studies.id = trials.study_id
JOIN measurements
    ON measurements.study_id = trials.study_id AND measurements.number = trials.number AND measurements.kind = 'trial',
    json_each(measurements.metrics, '$.workloads') AS part
WHERE trials.state = 'measured';
