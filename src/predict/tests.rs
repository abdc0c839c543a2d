//! Predictions of the example study, and properties of every prediction.

use std::path::Path;

use super::*;
use crate::engines::vllm::FLAGS;
use crate::load::ArrivalPattern;
use crate::objective::MetricLimit as Bound;
use crate::trial::LoadKnob;
use crate::twin::Calibration;

fn study() -> Job {
    Job::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/quickstart.toml")).unwrap()
}

fn question<'a>(job: &'a Job, load: &'a LoadJob, calibration: &'a Calibration) -> TwinQuestion<'a> {
    let simulated = job.engine.engine.simulated(&job.engine.args).map(|simulated| simulated.device);
    let preset = simulated.or_else(|| DevicePreset::find(DevicePreset::DEFAULT)).unwrap();
    TwinQuestion {
        job,
        load,
        config: job.search_space().fixed.clone(),
        version: FLAGS.newest_release(),
        device: PredictedDevice::preset(preset),
        host: HostLimits::default(),
        knowledge: Knowledge::for_same_device(calibration),
        acceptance: None,
        startup_model: StartupModel::default(),
        warm: WarmState::default(),
    }
}

/// Returns the example without limits, so that no highest load is searched.
fn unlimited() -> Job {
    let mut job = study();
    job.objective.constraints.clear();
    job
}

fn measured(prediction: &TwinPrediction) -> &Measurement {
    prediction.outcome.measurement().unwrap_or_else(|| panic!("{:?}", prediction.outcome))
}

fn metric(prediction: &TwinPrediction, name: &str) -> f64 {
    measured(prediction).metric(name).unwrap()
}

#[test]
fn the_example_is_answered_with_intervals_a_limit_and_a_highest_load() {
    let (job, calibration) = (study(), Calibration::none());
    let prediction = predict(&question(&job, &job.load, &calibration)).unwrap();
    let served = prediction.served.as_ref().unwrap();
    assert_eq!((measured(&prediction).completed, measured(&prediction).failed), (96, 0));
    assert_eq!(measured(&prediction).total_output_tokens, 96 * 128);
    for name in ["output_throughput", "mean_ttft_ms", "p99_tpot_ms", "p95_itl_ms"] {
        let (low, high) = served.intervals[name];
        let value = metric(&prediction, name);
        assert!(low < value && value < high && high / low < 3.0, "{name}: {low} {value} {high}");
    }
    let shares = served.limits.shares;
    assert!((shares.terms.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{shares:?}");
    assert!(shares.waits.iter().sum::<f64>() <= 1.0 + 1e-9 && shares.busy <= 1.0, "{shares:?}");
    let highest = served.highest.as_ref().unwrap();
    assert_eq!(highest.knob, LoadKnob::Concurrency);
    let users = highest.value.value().unwrap();
    assert!((1.0..64.0 * 16.0).contains(&users), "{highest:?}");
}

#[test]
fn values_lie_within_their_own_ranges_and_noise_between_launches_widens_them() {
    let (job, calibration) = (study(), Calibration::certain());
    let noise = LaunchNoise::of([], false);
    let question = question(&job, &job.load, &calibration);
    let sure = question.knowledge;
    // All draws may lie to one side of the value.
    assert_eq!((containing((38.0, 40.0), 37.0), containing((38.0, 40.0), 39.0)), ((37.0, 40.0), (38.0, 40.0)));
    let ask = |knowledge| predict(&TwinQuestion { knowledge, ..question.clone() }).unwrap();
    let (narrow, wide) = (ask(sure), ask(sure.with_noise(Some(&noise))));
    for prediction in [&narrow, &wide] {
        let served = prediction.served.as_ref().unwrap();
        for (name, (low, high)) in &served.intervals {
            let value = metric(prediction, name);
            assert!(*low <= value && value <= *high, "{name}: {low} {value} {high}");
        }
        let highest = served.highest.as_ref().unwrap();
        let ((low, high), value) = (highest.interval.unwrap(), highest.value.value().unwrap());
        assert!(low <= value && value <= high, "{highest:?}");
    }
    let width = |prediction: &TwinPrediction, name: &str| {
        let (low, high) = prediction.served.as_ref().unwrap().intervals[name];
        high / low
    };
    assert!(width(&narrow, "output_throughput") < 1.01, "{}", width(&narrow, "output_throughput"));
    // A deviation of 5 % has Student's 1.886 at two degrees of freedom, to both sides.
    assert!((1.15..1.3).contains(&width(&wide, "output_throughput")), "{}", width(&wide, "output_throughput"));
    assert!((width(&wide, "completed") - 1.0).abs() < 1e-9);
}

#[test]
fn equal_questions_have_equal_answers() {
    let (job, calibration) = (study(), Calibration::none());
    let [one, two] = [(); 2].map(|()| predict(&question(&job, &job.load, &calibration)).unwrap());
    assert_eq!(one.outcome, two.outcome);
    let (one, two) = (one.served.unwrap(), two.served.unwrap());
    assert_eq!((one.intervals, one.highest, one.series), (two.intervals, two.highest, two.series));
}

#[test]
fn the_longest_step_grows_with_budget_and_context_and_is_on_the_clients_clock() {
    let (mut job, calibration) = (study(), Calibration::none());
    let step = |job: &Job, budget: i64, longest: u64, at_once: u64| {
        let question = question(job, &job.load, &calibration);
        let config = question.config.clone().with("max-model-len", 8192_i64).with("max-num-batched-tokens", budget);
        longest_step(&TwinQuestion { config, ..question.clone() }, longest, at_once).unwrap().as_secs_f64()
    };
    let (small, large, deep) = (step(&job, 2048, 2048, 8), step(&job, 8192, 2048, 8), step(&job, 2048, 8000, 8));
    assert!(large > 3.0 * small && deep > 1.1 * small, "{small} {large} {deep}");
    assert!((step(&job, 8192, 2048, 1) - small).abs() < 0.1 * small, "one request fills no larger budget");
    let rejected = question(&job, &job.load, &calibration);
    let config = rejected.config.clone().with("max-model-len", 1_000_000_i64);
    assert_eq!(longest_step(&TwinQuestion { config, ..rejected.clone() }, 100, 1), None);
    let before = step(&job, 2048, 2048, 8);
    let scale = job.engine.engine.simulated(&job.engine.args).unwrap().time_scale;
    job.engine.args.extend(["--sim-time-scale".to_owned(), (scale / 10.0).to_string()]);
    assert!((step(&job, 2048, 2048, 8) / before - 10.0).abs() < 1e-6);
}

#[test]
fn a_rejected_configuration_has_the_message_of_the_rule() {
    let (job, calibration) = (study(), Calibration::none());
    let question = question(&job, &job.load, &calibration);
    let question = TwinQuestion { config: question.config.clone().with("max-model-len", 1_000_000_i64), ..question };
    let prediction = predict(&question).unwrap();
    let Outcome::Rejected(rejection) = &prediction.outcome else { panic!("{:?}", prediction.outcome) };
    assert!(!rejection.rule.is_empty() && rejection.message.contains("1000000"), "{rejection:?}");
    assert_eq!((prediction.score, prediction.served.is_none()), (Score::Failed, true));
}

#[test]
fn a_narrow_flag_is_named_as_the_limit() {
    let (job, calibration) = (unlimited(), Calibration::none());
    let limit = |flag: &str, value: i64| {
        let question = question(&job, &job.load, &calibration);
        let config = question.config.clone().with(flag, value);
        predict(&TwinQuestion { config, ..question }).unwrap().served.unwrap().limits
    };
    let sequences = limit("max-num-seqs", 4);
    assert_eq!(sequences.main, LoadLimit::Queue(crate::twin::WaitReason::Sequences), "{sequences:?}");
    assert!(sequences.share > 0.8 && sequences.advice.contains("max-num-seqs (now 4)"), "{sequences:?}");
    let blocks = limit("num-gpu-blocks-override", 300);
    assert_eq!(blocks.main, LoadLimit::Queue(crate::twin::WaitReason::Blocks), "{blocks:?}");
    let budget = limit("max-num-batched-tokens", 128);
    assert_eq!(budget.main, LoadLimit::Queue(crate::twin::WaitReason::Budget), "{budget:?}");
}

#[test]
fn a_rate_far_below_the_capacity_is_the_limit_itself() {
    let (job, calibration) = (study(), Calibration::none());
    let arrival = ArrivalPattern::Rate { per_s: 0.5, burstiness: 1.0 };
    let load = LoadJob { arrival, concurrency: None, requests: Some(16), ..job.load.clone() };
    let prediction = predict(&question(&job, &load, &calibration)).unwrap();
    let served = prediction.served.as_ref().unwrap();
    assert_eq!(served.limits.main, LoadLimit::Idle, "{:?}", served.limits);
    // The last is due at 16 / 0.5 s.
    assert!((metric(&prediction, "duration") - 32.0).abs() < 4.0);
    assert!(metric(&prediction, "requests_waiting_max") < 1.0);
    let highest = served.highest.as_ref().unwrap();
    assert_eq!(highest.knob, LoadKnob::Rate);
    let rate = highest.value.value().unwrap();
    assert!(rate > 1.0, "{highest:?}");
    // Half as much again is too much.
    let load = LoadJob {
        arrival: ArrivalPattern::Rate { per_s: 1.5 * rate, burstiness: 1.0 },
        requests: Some(400),
        ..load.clone()
    };
    let question = question(&job, &load, &calibration);
    let (setup, script) =
        (TwinSetup::resolve(&question).unwrap(), PromptScript::new(std::sync::Arc::clone(&job.workload.source)));
    let ran = run::run(&setup, &script, &load, job.seed, &question.knowledge.expected()).unwrap();
    assert!(!job.objective.score(&ran.outcome).is_feasible(), "{highest:?}");
}

#[test]
fn every_arrival_of_a_load_is_driven() {
    let (job, calibration) = (unlimited(), Calibration::none());
    let open = |arrival| LoadJob { arrival, warmup: 3, concurrency: Some(8), requests: Some(30), ..job.load.clone() };
    let ramp = ArrivalPattern::Ramp {
        from_per_s: 1.0,
        to_per_s: 50.0,
        over: std::time::Duration::from_secs(1),
        burstiness: 1.0,
    };
    for arrival in
        [ArrivalPattern::Closed, ArrivalPattern::AtOnce, ArrivalPattern::Rate { per_s: 40.0, burstiness: 0.5 }, ramp]
    {
        let load = open(arrival);
        let prediction = predict(&question(&job, &load, &calibration)).unwrap();
        assert_eq!(measured(&prediction).completed, 30, "{:?}", load.arrival);
        assert!(measured(&prediction).max_concurrent_requests <= Some(30));
        assert!(metric(&prediction, "requests_running_max") <= 8.0, "{:?}", load.arrival);
    }
    // A replay needs a workload with time stamps.
    let trace = open(ArrivalPattern::Trace { factor: 1.0 });
    let error = predict(&question(&job, &trace, &calibration)).unwrap_err();
    assert_eq!(error.to_string(), "the workload has no time stamps");
    assert!(error.hint().is_some());
}

#[test]
fn a_time_limit_of_the_load_ends_it() {
    let (job, calibration) = (unlimited(), Calibration::none());
    let duration = Some(std::time::Duration::from_secs(2));
    let load = LoadJob { requests: None, duration, ..job.load.clone() };
    let prediction = predict(&question(&job, &load, &calibration)).unwrap();
    let longest = measured(&prediction).e2el_ms.unwrap().p99 / 1e3;
    let took = metric(&prediction, "duration");
    assert!(measured(&prediction).completed > 64 && (2.0..2.5 + 2.0 * longest).contains(&took), "{took}");
}

#[test]
fn requests_that_take_too_long_have_failed_and_with_them_the_trial() {
    let (job, calibration) = (unlimited(), Calibration::none());
    let load = LoadJob { request_timeout: std::time::Duration::from_millis(200), ..job.load.clone() };
    let prediction = predict(&question(&job, &load, &calibration)).unwrap();
    let Outcome::Failed(failure) = &prediction.outcome else { panic!("{:?}", prediction.outcome) };
    assert!(failure.message.contains("more than the allowed share of 0.05; first error: not complete after 200 ms"));
}

#[test]
fn a_limit_that_the_twin_does_not_model_is_left_out_and_named() {
    let (mut job, calibration) = (study(), Calibration::none());
    let power = Constraint { metric: "gpu_power_w_mean".to_owned(), limit: Bound::AtMost(300.0) };
    job.objective.constraints = vec![power];
    let prediction = predict(&question(&job, &job.load, &calibration)).unwrap();
    let served = prediction.served.as_ref().unwrap();
    assert_eq!((served.unknown.as_slice(), &served.highest), (["gpu_power_w_mean".to_owned()].as_slice(), &None));
    assert!(prediction.score.is_feasible());
}

#[test]
fn better_predictions_come_first_for_either_goal() {
    let (job, calibration) = (unlimited(), Calibration::none());
    let at = |seqs: i64| {
        let question = question(&job, &job.load, &calibration);
        let config = question.config.clone().with("max-num-seqs", seqs);
        predict(&TwinQuestion { config, ..question }).unwrap()
    };
    let (few, many) = (at(2), at(32));
    let mut objective = Objective { constraints: Vec::new(), ..job.objective.clone() };
    let scored = |prediction: &TwinPrediction, objective: &Objective| TwinPrediction {
        score: objective.score(&prediction.outcome),
        ..prediction.clone()
    };
    let order = |objective: &Objective| compare(objective, &scored(&few, objective), &scored(&many, objective));
    assert_eq!(order(&objective), Ordering::Greater);
    objective = Objective { metric: "mean_tpot_ms".to_owned(), goal: crate::objective::Goal::Minimize, ..objective };
    assert_eq!(order(&objective), Ordering::Less);
}

/// Returns the example with another workload and load, and without limits.
fn asked(workload: &str, load: &str) -> Job {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let text = std::fs::read_to_string(examples.join("quickstart.toml")).unwrap();
    let text = text.replace("models/", &format!("{}/models/", examples.display()));
    let (begin, _) = text.split_once("[workload]").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let rows = "arrival_s,input_tokens,output_tokens\n3,50,30\n5,60,5\n5.5,40,8\n";
    std::fs::write(folder.path().join("trace.csv"), rows).unwrap();
    let end = "[objective]\nmaximize = 'output_throughput'\n[budget]\ntrials = 1\n";
    let file = folder.path().join("study.toml");
    std::fs::write(&file, format!("{begin}[workload]\n{workload}\n[load]\n{load}\n{end}")).unwrap();
    Job::read(&file).unwrap()
}

fn answer(job: &Job) -> TwinPrediction {
    predict(&question(job, &job.load, &Calibration::none())).unwrap()
}

#[test]
fn a_trace_arrives_at_its_time_stamps() {
    let job = asked("kind = 'trace'\npath = 'trace.csv'", "trace_factor = 2");
    let prediction = answer(&job);
    let measured = measured(&prediction);
    assert_eq!((measured.completed, measured.total_input_tokens, measured.total_output_tokens), (3, 150, 43));
    // The stamps span 2.5 s, or 5 s at half speed.
    assert!((5.0..5.5).contains(&metric(&prediction, "duration")), "{}", metric(&prediction, "duration"));
}

#[test]
fn users_of_a_conversation_think_and_find_their_prefix_in_the_cache() {
    let workload = "kind = 'conversation'\nturns = 4\nsystem_len = 64\nfirst_len = 32\nuser_len = 32\noutput_len = 16\n\
                    think_time = '500ms'\nthink_distribution = 'fixed'";
    let job = asked(workload, "concurrency = 3\nrequests = 24\nwarmup = 0");
    let prediction = answer(&job);
    assert_eq!(measured(&prediction).completed, 24);
    // Each user has two sessions of four turns, and thinks three times in each.
    assert!((3.0..4.0).contains(&metric(&prediction, "duration")), "{}", metric(&prediction, "duration"));
    assert!(metric(&prediction, "prefix_cache_hit_rate") > 0.5);
    assert!(prediction.served.unwrap().limits.shares.busy < 0.9);
}

#[test]
fn all_parts_of_a_mixture_are_sent() {
    let part =
        |input, output| format!("[[workload.part]]\nkind = 'random'\ninput_len = {input}\noutput_len = {output}\n");
    let job = asked(&format!("kind = 'mixture'\n{}{}", part(16, 4), part(200, 40)), "concurrency = 4\nrequests = 40");
    let prediction = answer(&job);
    let tokens = measured(&prediction).total_output_tokens;
    assert_eq!(measured(&prediction).completed, 40);
    assert!((41 * 4..40 * 40).contains(&tokens) && tokens.is_multiple_of(4), "{tokens}");
}

#[test]
fn data_parallel_engines_and_other_devices_share_a_load() {
    let text = "kind = 'random'\ninput_len = 256\noutput_len = 32";
    let mut job = asked(text, "concurrency = 64\nrequests = 128\nwarmup = 0");
    job.engine.engine = crate::engines::default_engine();
    job.engine.args.clear();
    job.objective.price_per_hour = Some(2.0);
    let calibration = Calibration::none();
    let throughput = |flag: &str, value: i64| {
        let question = question(&job, &job.load, &calibration);
        let (config, device) =
            (question.config.clone().with(flag, value), PredictedDevice::preset(DevicePreset::find("l4").unwrap()));
        let prediction = predict(&TwinQuestion { config, device, ..question }).unwrap();
        let rate = metric(&prediction, "output_throughput");
        let price = if value == 2 { 4.0 } else { 2.0 };
        let cost = metric(&prediction, Measurement::COST_PER_MILLION_TOKENS);
        assert!(
            (cost - price / 3600.0 * 1e6 / rate).abs() < 1e-9,
            "{flag} {value}: {cost} at {rate} tokens per second"
        );
        rate
    };
    let one = throughput("data-parallel-size", 1);
    for (flag, least) in [("data-parallel-size", 1.4), ("tensor-parallel-size", 1.2), ("pipeline-parallel-size", 1.1)] {
        let two = throughput(flag, 2);
        assert!((least * one..2.2 * one).contains(&two), "{flag}: {one} {two}");
    }
}
