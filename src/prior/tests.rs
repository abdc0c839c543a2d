//! The twin's predictions for small spaces.

use super::*;
use crate::config::Value;
use crate::facts::HostLimits;
use crate::job::{Job, LoadJob};
use crate::objective::{Goal, MetricLimit};
use crate::predict::{Knowledge, PredictedDevice, predict};
use crate::sampler::{KnownOutcome, MeasuredNumbers, ObjectiveTarget};
use crate::space::{Domain, IntScale, Parameter};
use crate::twin::{Calibration, StartupModel, WarmState};

fn parameter(name: &str, domain: Domain) -> Parameter {
    Parameter { name: name.to_owned(), domain, conditions: Vec::new(), help: None }
}

/// Two parameters of the twin in a caller's spelling, and an unknown one.
fn space() -> Space {
    let parameters = vec![
        parameter("max_num_seqs", Domain::int(1, 8, IntScale::PowerOfTwo, 1)),
        parameter("gmu", Domain::Categorical(vec![Value::Float(0.1), Value::Float(0.9)])),
        parameter("colour", Domain::Bool),
    ];
    Space { parameters, fixed: Config::new() }
}

fn aim() -> SearchAim {
    let target = |name: &str, goal| ObjectiveTarget { name: name.to_owned(), goal };
    SearchAim {
        objectives: vec![target("throughput", Goal::Maximize), target("taste", Goal::Maximize)],
        constraints: vec!["ttft_p99".to_owned(), "tpot_p99".to_owned()],
    }
}

fn context() -> OptimizeContext {
    OptimizeContext {
        model: ModelContext {
            num_hidden_layers: Some(32),
            hidden_size: Some(4096),
            intermediate_size: Some(14336),
            num_key_value_heads: Some(8),
            head_dim: Some(128),
            vocab_size: Some(128_256),
            max_model_len: Some(512),
            ..ModelContext::default()
        },
        device: DeviceContext { name: Some("NVIDIA H100 80GB HBM3".to_owned()), ..DeviceContext::default() },
        load: LoadContext {
            input_tokens: Some(24.0),
            output_tokens: Some(6.0),
            concurrency: Some(8),
            arrival: Some("closed".to_owned()),
            ..LoadContext::default()
        },
        limits_s: [("ttft_p99".to_owned(), 10.0)].into_iter().collect(),
        defaults: Config::new().with("max_num_seqs", 4_i64).with("gmu", 0.9).with("colour", true),
        engine_version: None,
    }
}

fn believed(context: &OptimizeContext) -> Result<PriorBelief, String> {
    context_prior(context, &space(), &aim(), &|_| true, 7).map_err(|error| error.to_string())
}

fn measured(known: &KnownOutcome) -> &MeasuredNumbers {
    let KnownOutcome::Measured(measured) = known else { panic!("{known:?}") };
    measured
}

#[test]
fn every_configuration_of_a_small_space_is_predicted_once_under_the_names_of_the_caller() {
    let belief = believed(&context()).unwrap();
    let mut keys: Vec<String> = belief.prior.points().iter().map(|(config, _)| config.key()).collect();
    assert_eq!((belief.prior.name.as_str(), keys.len()), (TWIN_SOURCE, 16));
    assert_eq!(belief.prior.points()[0].0, context().defaults, "the defaults come first");
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 16);
    for (config, known) in belief.prior.points() {
        if config.get_f64("gmu") == Some(0.1) {
            assert_eq!(*known, KnownOutcome::Failed, "the weights do not fit: {config}");
            continue;
        }
        let measured = measured(known);
        let [throughput, taste] = measured.values[..] else { panic!("{measured:?}") };
        let [ttft, tpot] = measured.excesses[..] else { panic!("{measured:?}") };
        assert!(throughput.value > 1.0 && (0.01..1.0).contains(&throughput.deviation.unwrap()), "{throughput:?}");
        assert!(ttft.value < 0.0 && ttft.deviation.is_some(), "{ttft:?}");
        assert!(taste.value.is_nan() && tpot.value.is_nan(), "nobody knows them, and there is no limit");
    }
    let notes = belief.notes.join("\n");
    assert!(notes.contains("effect of colour") && notes.contains("model taste, tpot_p99"), "{notes}");
}

#[test]
fn more_concurrent_sequences_raise_throughput_and_inert_parameters_change_nothing() {
    let belief = believed(&context()).unwrap();
    let value = |seqs: i64, colour: bool| {
        let config = Config::new().with("max_num_seqs", seqs).with("gmu", 0.9).with("colour", colour);
        let (_, known) = belief.prior.points().iter().find(|(other, _)| *other == config).unwrap();
        measured(known).values[0].value
    };
    assert!(value(8, true) > 2.0 * value(2, true));
    assert!((value(8, true) - value(8, false)).abs() < 1e-12);
}

#[test]
fn a_time_per_token_is_less_certain_if_long_prompts_stall_replies() {
    let of = |input: f64| {
        let mut context = context();
        context.model.max_model_len = Some(8192);
        context.load.input_tokens = Some(input);
        context.limits_s.insert("tpot_p99".to_owned(), 0.1);
        believed(&context).unwrap().prior
    };
    let deviations = |prior: &SamplerPrior, limit: usize| -> Vec<f64> {
        let known = prior.points().iter().filter(|(_, known)| *known != KnownOutcome::Failed);
        known.map(|(_, known)| measured(known).excesses[limit].deviation.unwrap()).collect()
    };
    let most = |deviations: Vec<f64>| deviations.into_iter().fold(0.0, f64::max);
    let (short, long) = (of(4.0), of(2000.0));
    let (even, stalled) = (most(deviations(&short, 1)), most(deviations(&long, 1)));
    assert!(stalled > even + 0.5, "{stalled}, and {even} without");
    let first = deviations(&long, 0);
    assert!(first.iter().all(|deviation| (deviation - first[0]).abs() < 1e-12), "{first:?}");
}

#[test]
fn equal_questions_have_equal_answers_of_five_digits() {
    let (one, other) = (believed(&context()).unwrap(), believed(&context()).unwrap());
    // NaN does not equal itself.
    assert_eq!(format!("{one:?}"), format!("{other:?}"));
    for (_, known) in one.prior.points().iter().filter(|(_, known)| *known != KnownOutcome::Failed) {
        let value = measured(known).values[0].value;
        assert!((twin_predictor::round(value) - value).abs() < 1e-12 * value, "{value}");
    }
}

#[test]
fn refused_configurations_are_left_out() {
    let allowed = |config: &Config| config.get_i64("max_num_seqs") != Some(4);
    let belief = context_prior(&context(), &space(), &aim(), &allowed, 7).unwrap();
    // The defaults are not checked by `allowed`.
    let others = belief.prior.points().iter().skip(1);
    assert!(others.clone().count() == 12 && others.clone().all(|(config, _)| allowed(config)));
}

#[test]
fn a_wild_context_is_refused_with_the_field_that_is_wrong() {
    let changed = |change: &dyn Fn(&mut OptimizeContext)| {
        let mut context = context();
        change(&mut context);
        believed(&context).unwrap_err()
    };
    for (expected, change) in [
        (
            "context.device.name is missing",
            (&|context: &mut OptimizeContext| context.device = DeviceContext::default())
                as &dyn Fn(&mut OptimizeContext),
        ),
        ("context.device.name is \"abacus\", expected one of a100", &|context: &mut OptimizeContext| {
            context.device.name = Some("abacus".to_owned());
        }),
        ("context.device.count is 0, expected a number from 1 to 1024", &|context: &mut OptimizeContext| {
            context.device.count = Some(0);
        }),
        ("context.device.memory_bytes is NaN", &|context: &mut OptimizeContext| {
            context.device.memory_bytes = Some(f64::NAN);
        }),
        ("context.model.parameters is 1000000000000000, expected", &|context: &mut OptimizeContext| {
            context.model.parameters = Some(1e15);
        }),
        ("context.model.num_hidden_layers is missing", &|context: &mut OptimizeContext| {
            context.model = ModelContext::default();
        }),
        ("context.model.vocab_size is missing", &|context: &mut OptimizeContext| context.model.vocab_size = Some(0)),
        ("context.model.max_model_len is 3, expected", &|context: &mut OptimizeContext| {
            context.model.max_model_len = Some(3);
        }),
        ("context.load.concurrency is 0, expected", &|context: &mut OptimizeContext| {
            context.load.concurrency = Some(0);
        }),
        ("context.load.concurrency is missing", &|context: &mut OptimizeContext| context.load.concurrency = None),
        ("context.load needs", &|context: &mut OptimizeContext| context.load.concurrency = Some(u64::MAX)),
        ("context.load.input_tokens is inf", &|context: &mut OptimizeContext| {
            context.load.input_tokens = Some(f64::INFINITY);
        }),
        ("context.load.output_tokens is missing", &|context: &mut OptimizeContext| context.load.output_tokens = None),
        ("context.load.shared_prefix_fraction is 2", &|context: &mut OptimizeContext| {
            context.load.shared_prefix_fraction = Some(2.0);
        }),
        ("context.load.rate_per_s is -1", &|context: &mut OptimizeContext| context.load.rate_per_s = Some(-1.0)),
        ("context.engine_version is \"new\"", &|context: &mut OptimizeContext| {
            context.engine_version = Some("new".to_owned());
        }),
    ] {
        let error = changed(change);
        assert!(error.starts_with(expected), "{error}\n{expected}");
    }
    let aim = SearchAim { constraints: vec!["taste".to_owned()], ..SearchAim::default() };
    let error = context_prior(&context(), &space(), &aim, &|_| true, 7).unwrap_err().to_string();
    assert_eq!(error, "the twin models none of the objectives, and no constraint with a known limit");
}

#[test]
fn no_number_of_a_context_causes_a_panic() {
    let huge = u64::MAX;
    for model in [
        ModelContext { num_hidden_layers: Some(huge), ..context().model },
        ModelContext { hidden_size: Some(huge), vocab_size: Some(huge), ..context().model },
        ModelContext { hidden_size: Some(1), head_dim: Some(huge), ..context().model },
        ModelContext { num_attention_heads: Some(1), num_key_value_heads: Some(huge), ..context().model },
        ModelContext { num_key_value_heads: Some(0), dtype: Some("colour".to_owned()), ..context().model },
        ModelContext { max_model_len: Some(huge), ..context().model },
        ModelContext { parameters: Some(9e12), ..context().model },
    ] {
        let belief = believed(&OptimizeContext { model: model.clone(), ..context() });
        let points = belief.map_or(0, |belief| belief.prior.points().len());
        assert!(points <= 16, "{model:?}");
    }
    let devices = DeviceContext { memory_bytes: Some(1e9), count: Some(1024), ..context().device };
    let belief = believed(&OptimizeContext { device: devices, ..context() }).unwrap();
    assert!(belief.prior.points().iter().all(|(_, known)| *known == KnownOutcome::Failed), "nothing fits into 1 GB");
}

#[test]
fn replicas_fill_the_devices_and_drafts_come_together_from_two_parameters() {
    let mut context = context();
    context.device.count = Some(8);
    let scene = ContextJob::new(&context, &aim()).unwrap();
    let reader = ParameterReader::new(&context, &space(), &scene);
    let read = |config: Config| reader.read(&config);
    assert_eq!(read(Config::new()).0.get_i64("data-parallel-size"), Some(8));
    let mut context = context.clone();
    context.defaults = Config::new().with("tp", 2_i64).with("spec_method", "none").with("num_spec_tokens", 0_i64);
    let reader = ParameterReader::new(&context, &space(), &scene);
    let (flags, speculates) = reader.read(&Config::new().with("max_num_seqs", 4.0));
    let expected = Config::new()
        .with("data-parallel-size", 4_i64)
        .with("max-model-len", 512_i64)
        .with("max-num-seqs", 4_i64)
        .with("tensor-parallel-size", 2_i64);
    assert_eq!((flags, speculates), (expected, false));
    let (flags, speculates) =
        reader.read(&Config::new().with("tp", 8_i64).with("spec_method", "ngram").with("num_spec_tokens", 2_i64));
    assert_eq!(flags.get_str("speculative-config"), Some(r#"{"method":"ngram","num_speculative_tokens":2}"#));
    assert!(speculates && flags.get("data-parallel-size").is_none());
    assert_eq!(parameter_reader::acceptance(&flags), Some(0.4));
    let short = |method: &str| parameter_reader::acceptance(&Config::new().with("spec-method", method));
    assert_eq!((short("suffix"), short("eagle3"), short("None")), (Some(0.4), Some(0.7), None));
    // FlashAttention takes multiples of 16.
    let (flags, _) = reader.read(&Config::new().with("block_size", 8_i64));
    assert_eq!(flags.get_i64("block-size"), None, "it is no parameter of the space");
    let blocks = Space { parameters: vec![parameter("block_size", Domain::Bool)], fixed: Config::new() };
    let reader = ParameterReader::new(&context, &blocks, &scene);
    let read = |size: i64| reader.read(&Config::new().with("block_size", size)).0.get_i64("block-size");
    assert_eq!((read(8), read(16), read(32)), (Some(16), Some(16), Some(32)));
}

/// The example study with few enough values for all of them to be predicted.
fn study() -> (Job, Space) {
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/quickstart.toml");
    let mut job = Job::read(&file).unwrap();
    job.load = LoadJob { warmup: 0, ..LoadJob::closed(8, 16) };
    let parameters = vec![
        parameter("max-num-seqs", Domain::int(1, 4, IntScale::PowerOfTwo, 1)),
        parameter("disable-log-stats", Domain::Bool),
    ];
    let space = Space { parameters, fixed: job.search_space().fixed.clone() };
    (job, space)
}

fn asked<'a>(job: &'a Job, calibration: &'a Calibration) -> TwinQuestion<'a> {
    let simulated = job.engine.engine.simulated(&job.engine.args).unwrap();
    TwinQuestion {
        job,
        load: &job.load,
        config: Config::new(),
        version: crate::engines::vllm::FLAGS.newest_release(),
        device: PredictedDevice::preset(simulated.device),
        host: HostLimits::default(),
        knowledge: Knowledge::for_same_device(calibration),
        acceptance: None,
        startup_model: StartupModel::default(),
        warm: WarmState::default(),
    }
}

#[test]
fn the_prior_of_a_study_contains_the_predictions_of_its_configurations() {
    let ((mut job, space), calibration) = (study(), Calibration::none());
    let at_least = Constraint { metric: "request_throughput".to_owned(), limit: MetricLimit::AtLeast(1e6) };
    let unknown = Constraint { metric: "gpu_power_w_mean".to_owned(), limit: MetricLimit::AtMost(300.0) };
    let at_most = Constraint { metric: "p99_ttft_ms".to_owned(), limit: MetricLimit::AtMost(1.0) };
    job.objective.constraints = vec![at_most, at_least, unknown];
    let aim = SearchAim {
        objectives: vec![ObjectiveTarget { name: job.objective.metric.clone(), goal: job.objective.goal }],
        constraints: job.objective.constraints.iter().map(ToString::to_string).collect(),
    };
    let question = asked(&job, &calibration);
    let belief = job_prior(&question, &space, &aim, &|_| true, 3);
    assert_eq!(belief.prior.points().len(), 1 + 6, "the engine's defaults and all of the space");
    assert!(belief.notes[0].contains("disable-log-stats"), "{:?}", belief.notes);
    assert_eq!(belief.prior.points()[0].0, space.fixed);
    job.objective.constraints.clear();
    for (config, known) in belief.prior.points() {
        let question = TwinQuestion { config: config.clone(), ..asked(&job, &calibration) };
        let prediction = predict(&question).unwrap();
        let metric = |name: &str| prediction.outcome.measurement().and_then(|run| run.metric(name)).unwrap();
        let KnownOutcome::Measured(MeasuredNumbers { values, excesses }) = known else { panic!("{known:?}") };
        let near = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-4, "{a} {b}");
        near(values[0].value, metric(&job.objective.metric));
        near(excesses[0].value, metric("p99_ttft_ms").ln());
        near(excesses[1].value, (1e6 / metric("request_throughput")).ln());
        assert!(excesses[2].value.is_nan(), "the twin has no power");
    }
}

#[test]
fn a_long_load_is_shortened_for_the_prediction() {
    let (job, _) = study();
    let long = LoadJob { requests: Some(1_000_000), ..job.load.clone() };
    let short = twin_predictor::shortened(&long, &job.workload, 1);
    assert!(short.requests.is_some_and(|requests| (100..100_000).contains(&requests)), "{short:?}");
    assert_eq!(twin_predictor::shortened(&job.load, &job.workload, 1), job.load);
}
