//! The start of the simulated engine in vLLM's phases, with its refusals and log lines at the same points.

use std::time::Duration;

use tokio::net::TcpSocket;
use tokio::time::Instant;

use super::fault::{ActiveFaults, FaultPhase};
use super::log::ServedLog;
use super::memory::allocate;
use super::options::SimOptions;
use super::refusal::Refusal;
use crate::config::{ResolvedConfig, Value};
use crate::engines::vllm::TWIN;
use crate::engines::vllm::{VLLM_RULES, resolve_config};
use crate::facts::{EngineVersion, ModelError, ModelShape};
use crate::rule::{self, Facts, Severity};
use crate::stats::gib;
use crate::twin::{MemoryPlan, Parallel, Scheduling, Settings, Speculation, StepTime, TwinEngine};

/// Phases as shares of the start-up time, as in live runs of 0.32.0. At `CONFIGURED` the configuration is checked, and
/// at `PROFILED` the memory is divided. `LOADED` is the end of loading in the durations of the log lines only.
const CONFIGURED: f64 = 0.25;
const LOADED: f64 = 0.5;
const PROFILED: f64 = 0.7;

/// A started engine before its first request.
#[derive(Debug)]
pub(super) struct StartedEngine {
    pub(super) model: ModelShape,
    pub(super) settings: Settings,
    pub(super) plan: MemoryPlan,
    /// The engines, one for each data-parallel replica.
    pub(super) engines: Vec<TwinEngine>,
    pub(super) step_time: StepTime,
    pub(super) socket: TcpSocket,
    /// The value of `gpu_memory_utilization`.
    pub(super) utilization: f64,
}

/// Writes the line that names the engine's generation and its configuration.
fn log_generation(options: &SimOptions, log: &ServedLog, effective: &ResolvedConfig) {
    let version = options.version;
    let generation = match (version.is_v0(), effective.v0) {
        (true, _) => "an",
        (false, true) => "a V0",
        (false, false) => "a V1",
    };
    log.core_info(
        "core.py",
        format_args!(
            "Initializing {generation} LLM engine (v{version}) with config: model='{}', max_seq_len={}, \
             enable_prefix_caching={}, chunked_prefill_enabled={}",
            options.model,
            effective.max_model_len,
            python(effective.prefix_caching),
            python(effective.chunked_prefill),
        ),
    );
}

/// Runs all phases. If `socket` is `None`, the address is taken from `--host` and `--port`.
pub(super) async fn start(
    options: &SimOptions,
    log: &ServedLog,
    socket: Option<TcpSocket>,
    faults: &ActiveFaults,
) -> Result<StartedEngine, Refusal> {
    faults.apply_phase(FaultPhase::Parse).await?;
    let began = Instant::now();
    let until = async |share: f64| tokio::time::sleep_until(began + options.startup.mul_f64(share)).await;
    let version = options.version;
    let since = |minor| version >= EngineVersion::new(0, minor, 0);

    log_arguments(options, log);
    until(CONFIGURED).await;
    faults.apply_phase(FaultPhase::Config).await?;
    let model = ModelShape::read(options.model.as_ref()).map_err(|error| missing(&options.model, &error))?;
    let device = options.facts_device();
    let facts = Facts { env: &options.env, ..Facts::new(VLLM_RULES, &model, version, device) };
    let effective = resolve_config(&options.config, &facts);
    let findings = rule::check(&options.config, &facts);
    for finding in &findings {
        match finding.severity {
            Severity::Arguments | Severity::Configuration => return Err(Refusal::from_finding(version, finding)),
            Severity::Startup | Severity::Runtime => {}
            Severity::Degraded | Severity::Overridden => log.warning("config.py", &finding.message),
        }
    }
    if since(10) {
        if let Some(architecture) = &model.architecture {
            log.api_info("model.py", format_args!("Resolved architecture: {architecture}"));
        }
        log.api_info("model.py", format_args!("Using max model len {}", effective.max_model_len));
    }
    let tokens = effective.max_num_batched_tokens;
    if effective.chunked_prefill {
        log.api_info("scheduler.py", format_args!("Chunked prefill is enabled with max_num_batched_tokens={tokens}."));
    }
    faults.apply_phase(FaultPhase::Bind).await?;
    let socket = match socket {
        None if !faults.binds_late() => Some(bind(options)?),
        socket => socket,
    };
    log_generation(options, log, &effective);
    log.core_info("gpu_model_runner.py", format_args!("Starting to load model {}...", options.model));
    faults.apply_phase(FaultPhase::Weights).await?;

    until(PROFILED).await;
    if let Some(finding) = findings.iter().find(|finding| finding.severity.rejects()) {
        return Err(Refusal::from_finding(version, finding));
    }
    let (settings, plan) = allocate(&effective, &options.config, &facts, options.device, options.acceptance)?;
    let count = TWIN.replicas(&options.config, &effective);
    let memory = if since(20) { " memory" } else { "" };
    let took = options.startup.mul_f64(LOADED - CONFIGURED).as_secs_f64();
    if version.is_v0() {
        log.core_info("model_runner.py", format_args!("Loading model weights took {:.2} GB", gib(plan.weights)));
    } else {
        log.core_info(
            "gpu_model_runner.py",
            format_args!("Model loading took {:.2} GiB{memory} and {took:.6} seconds", gib(plan.weights)),
        );
    }
    faults.apply_phase(FaultPhase::Profile).await?;
    faults.apply_phase(FaultPhase::Kv).await?;
    for number in 0..count {
        let log = if count > 1 { &log.of_engine(number) } else { log };
        log_cache(log, options, &settings, &plan);
    }
    let (engines, step_time) = build(options, &model, &effective, &settings)?;
    faults.apply_phase(FaultPhase::Graphs).await?;
    until(1.0).await;
    let socket = match socket {
        Some(socket) => socket,
        None => bind(options)?,
    };
    if !version.is_v0() {
        let took = options.startup.mul_f64(1.0 - LOADED).as_secs_f64();
        let unit = if since(32) { "s" } else { "seconds" };
        log.core_info(
            "core.py",
            format_args!("init engine (profile, create kv cache, warmup model) took {took:.2} {unit}"),
        );
    }
    Ok(StartedEngine {
        model,
        settings,
        plan,
        engines,
        step_time,
        socket,
        utilization: effective.gpu_memory_utilization,
    })
}

/// Logs the arguments as the release writes them.
fn log_arguments(options: &SimOptions, log: &ServedLog) {
    let version = options.version;
    if version >= EngineVersion::new(0, 10, 0) {
        let given = arguments(options, |name, value| format!("'{name}': {value}"));
        log.api_info("utils.py", format_args!("non-default args: {{{given}}}"));
    } else {
        let given = arguments(options, |name, value| format!("{name}={value}"));
        log.api_info("api_server.py", format_args!("vLLM API server version {version}"));
        log.api_info("api_server.py", format_args!("args: Namespace({given})"));
    }
}

/// Logs the size of the KV cache as the release writes it.
fn log_cache(log: &ServedLog, options: &SimOptions, settings: &Settings, plan: &MemoryPlan) {
    let version = options.version;
    let since = |minor| version >= EngineVersion::new(0, minor, 0);
    let len = settings.max_model_len();
    let concurrency = plan.layout.concurrency(plan.blocks.into(), len.into());
    if settings.resolved.v0 {
        log.core_info("gpu_executor.py", format_args!("# GPU blocks: {}, # CPU blocks: 0", plan.blocks));
        log.core_info(
            "gpu_executor.py",
            format_args!("Maximum concurrency for {len} tokens per request: {concurrency:.2}x"),
        );
        return;
    }
    if since(10) {
        log.core_info("gpu_worker.py", format_args!("Available KV cache memory: {:.2} GiB", gib(plan.cache)));
    }
    let tokens = thousands(plan.layout.tokens(plan.blocks.into(), len.into()));
    let concurrency =
        format!("Maximum concurrency for {} tokens per request: {concurrency:.2}x", thousands(len.into()));
    if since(32) {
        let device = if options.device.cpu { "CPU" } else { "GPU" };
        log.core_info("kv_cache_utils.py", format_args!("{device} KV cache size: {tokens} tokens, {concurrency}"));
    } else {
        log.core_info("kv_cache_utils.py", format_args!("GPU KV cache size: {tokens} tokens"));
        log.core_info("kv_cache_utils.py", concurrency);
    }
}

/// Creates the schedulers and the model of their step times.
pub(super) fn build(
    options: &SimOptions,
    model: &ModelShape,
    effective: &ResolvedConfig,
    settings: &Settings,
) -> Result<(Vec<TwinEngine>, StepTime), Refusal> {
    let version = options.version;
    let seeded = |number: u64| {
        let speculation = settings.scheduling.speculation;
        let speculation = speculation.map(|of| Speculation { seed: options.seed.wrapping_add(number), ..of });
        let scheduling = Scheduling { speculation, ..settings.scheduling.clone() };
        TwinEngine::new(Settings { scheduling, ..settings.clone() })
    };
    let engines = (0..).take(TWIN.replicas(&options.config, effective)).map(seeded).collect::<Result<Vec<_>, _>>();
    let engines = engines.map_err(|error| Refusal::engine(version, &format!("AssertionError: {error}")))?;
    let step_time = StepTime::on_devices(model, options.device, settings, Parallel::of(effective))
        .map_err(|error| Refusal::engine(version, &format!("KeyError: '{error}'")))?;
    let step_time = step_time.scaled(options.physics);
    Ok((engines, step_time))
}

/// The default address of a simulated engine. vLLM listens on all addresses, which a simulation does not need.
const DEFAULT_HOST: &str = "127.0.0.1";

/// Returns the refusal for a socket that cannot be bound or cannot listen, in Python's wording.
pub(super) fn refused_socket(error: &std::io::Error) -> Refusal {
    let number = error.raw_os_error().unwrap_or(0);
    let words = match error.kind() {
        std::io::ErrorKind::AddrInUse => "Address already in use".to_owned(),
        _ => error.to_string(),
    };
    Refusal::traceback("entrypoints/openai/api_server.py", &format!("OSError: [Errno {number}] {words}"))
}

/// Reserves the address without listening: connections are refused until the engine is ready.
fn bind(options: &SimOptions) -> Result<TcpSocket, Refusal> {
    let host = options.config.get_str("host").unwrap_or(DEFAULT_HOST);
    let port = options.config.get_i64("port").unwrap_or(8000);
    let unknown = |_| {
        let error = "socket.gaierror: [Errno -2] Name or service not known";
        Refusal::traceback("entrypoints/openai/api_server.py", error)
    };
    let host = if host == "localhost" { "127.0.0.1" } else { host };
    let ip = host.parse::<std::net::IpAddr>().map_err(unknown)?;
    let port = u16::try_from(port).map_err(|_| {
        let error = "OverflowError: bind(): port must be 0-65535.";
        Refusal::traceback("entrypoints/openai/api_server.py", error)
    })?;
    let socket =
        if ip.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }.map_err(|error| refused_socket(&error))?;
    socket.set_reuseaddr(true).map_err(|error| refused_socket(&error))?;
    socket.bind((ip, port).into()).map_err(|error| refused_socket(&error))?;
    Ok(socket)
}

fn missing(model: &str, error: &ModelError) -> Refusal {
    let error = match error {
        ModelError::NoConfig(_) => format!(
            "OSError: {model} is not a local folder and is not a valid model identifier listed on \
             'https://huggingface.co/models'"
        ),
        error => format!("OSError: Can't load the configuration of '{model}': {error}"),
    };
    Refusal::traceback("transformers_utils/config.py", &error)
}

/// Lists the given flags, each formatted by `pair` from its name and value.
fn arguments(options: &SimOptions, pair: impl Fn(&str, &str) -> String) -> String {
    let flags = options.config.iter().map(|(name, value)| {
        let value = match value {
            Value::Bool(on) => python(*on).to_owned(),
            Value::Text(text) => format!("'{text}'"),
            number => number.to_string(),
        };
        pair(&name.replace('-', "_"), &value)
    });
    std::iter::once(pair("model", &format!("'{}'", options.model))).chain(flags).collect::<Vec<_>>().join(", ")
}

pub(super) fn python(on: bool) -> &'static str {
    if on { "True" } else { "False" }
}

/// Formats `1234567` as `1,234,567`.
fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The time that a graceful end may take before connections are cut.
pub(super) const GRACE: Duration = Duration::from_millis(400);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_simulated_engine_listens_on_loopback_unless_a_flag_sets_a_host() {
        let model = tempfile::tempdir().unwrap();
        crate::engines::sim::process::tests::write_model(model.path());
        let address = |flags: &[&str]| {
            let mut arguments = vec![model.path().display().to_string(), "--port".to_owned(), "0".to_owned()];
            arguments.extend(flags.iter().map(|flag| (*flag).to_owned()));
            let options = SimOptions::parse(&arguments).map_err(|refusal| refusal.text).unwrap();
            let socket = bind(&options).map_err(|refusal| refusal.text).unwrap();
            socket.local_addr().unwrap().ip().to_string()
        };
        assert_eq!(address(&[]), "127.0.0.1");
        assert_eq!(address(&["--host", "0.0.0.0"]), "0.0.0.0");
    }
}
