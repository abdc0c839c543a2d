-- A view for people: the measured loads of trials that search for the highest load within limits.

-- A row for each measured load. `highest`, `low` and `high` are those of the whole trial. `load` is in users, in sessions per second, or
-- relative to a trace's recording (`of`). `metrics` has all metrics of the load.
CREATE VIEW v_load_curves AS
SELECT studies.name AS study, trials.number AS trial, trials.proposed_by, trials.config,
       trials.violation = 0 AS feasible, trials.accepted_changes <> studies.accepted_changes AS earlier_context,
       json_extract(measurements.metrics, '$.load_curve.of') AS of,
       json_extract(measurements.metrics, '$.load_curve.value') AS highest,
       json_extract(measurements.metrics, '$.load_curve.low') AS low,
       json_extract(measurements.metrics, '$.load_curve.high') AS high,
       json_extract(probe.value, '$.load') AS load, json_extract(probe.value, '$.kept') AS kept,
       json_extract(probe.value, '$.seconds') AS seconds,
       json_extract(probe.value, '$.request_throughput') AS request_throughput,
       json_extract(probe.value, '$.output_throughput') AS output_throughput,
       json_extract(probe.value, '$.mean_ttft_ms') AS mean_ttft_ms, json_extract(probe.value, '$.p95_ttft_ms') AS p95_ttft_ms,
       json_extract(probe.value, '$.mean_tpot_ms') AS mean_tpot_ms, json_extract(probe.value, '$.p95_tpot_ms') AS p95_tpot_ms,
       json_extract(probe.value, '$.completed') AS completed, json_extract(probe.value, '$.failed') AS failed,
       probe.value AS metrics
FROM trials
JOIN studies ON studies.id = trials.study_id
JOIN measurements
    ON measurements.study_id = trials.study_id AND measurements.number = trials.number AND measurements.kind = 'trial',
    json_each(measurements.metrics, '$.load_curve.probes') AS probe
WHERE trials.state = 'measured';
