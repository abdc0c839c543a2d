//! The server of the simulated engine. It has vLLM's flags, log lines, protocol and metrics, and the twin instead of a
//! model.
//!
//! It is meant to run as a process of its own, so that a launch, its failures and its end are real. Answers consist of
//! repeated `" token"`. Without `ignore_eos` they end at a length drawn from the seed.

mod request;
mod chat;
#[cfg(test)]
mod chat_tests;
mod clock;
mod client_link;
mod engine;
mod greedy;
mod fault;
mod http;
mod live;
mod log;
mod memory;
mod metrics;
mod options;
mod outlet;
mod refusal;
mod reply;
mod schedule;
#[cfg(test)]
mod schedule_tests;
mod startup;
mod stats;
mod study_launch;
#[cfg(test)]
mod tests;
mod tls;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::Receiver;

use tokio::net::TcpSocket;
use tokio::signal::unix::{SignalKind, signal};

use crate::facts::EngineVersion;
use crate::twin::{Frontend, QueueOrder, Settings};

pub(crate) use fault::{FaultPhase, engine_core};
pub(crate) use log::ServedLog;
pub(crate) use options::SimOptions;
pub(crate) use refusal::Refusal;
pub(crate) use study_launch::StudyLaunch;

/// The number of connections that may wait to be accepted, as in uvicorn.
const BACKLOG: u32 = 2048;

/// The reason why the server did not start, or why it ended without a request to end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServeError {
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Signal 2 or 15 came before the server was ready.
    #[error("interrupted by signal {0} while starting")]
    Interrupted(u8),
    #[error("the simulated server failed: {0}")]
    Io(#[from] std::io::Error),
}

impl ServeError {
    /// Returns the exit code of the process.
    #[must_use]
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Refused(refusal) => refusal.exit_code,
            Self::Interrupted(signal) => 128 + signal,
            Self::Io(_) => 1,
        }
    }
}

/// Starts, serves on `--host` and `--port`, and returns after SIGTERM or SIGINT.
///
/// # Errors
/// If vLLM would not have started, if a signal came before the server was ready, or if a socket failed.
pub(crate) async fn serve(options: SimOptions) -> Result<(), ServeError> {
    let name = |name: std::ffi::OsString| name.into_string().ok().filter(|name| name.starts_with("VLLM_"));
    let env = std::env::vars_os().filter_map(|(key, value)| Some((name(key)?, value.into_string().ok()?)));
    let options = SimOptions { env: env.collect(), study_launch: StudyLaunch::from_environment()?, ..options };
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let log = ServedLog::stdio(options.version);
    let faults = faults(&options, &log);
    let ignored = [15, 2].map(|signal| faults.ignores_signal(signal));
    let stop = async move {
        loop {
            let (signal, ignored) = tokio::select! {
                _ = terminate.recv() => (15, ignored[0]),
                _ = interrupt.recv() => (2, ignored[1]),
            };
            if !ignored {
                return signal;
            }
        }
    };
    run(options, None, log, faults, stop).await
}

/// Like [`serve`], but with the caller's log and on a bound socket that does not listen yet. It runs until `stop`
/// returns the number of a signal.
///
/// # Errors
/// Those of [`serve`].
#[cfg(test)]
pub(crate) async fn serve_on(
    options: SimOptions,
    socket: Option<TcpSocket>,
    log: ServedLog,
    stop: impl Future<Output = u8>,
) -> Result<(), ServeError> {
    let faults = faults(&options, &log);
    run(options, socket, log, faults, stop).await
}

/// Returns the faults of this launch. A fault limited to one launch is thereby used up.
fn faults(options: &SimOptions, log: &ServedLog) -> Arc<fault::ActiveFaults> {
    Arc::new(fault::ActiveFaults::new(&options.faults, &options.config, options.version, log.clone()))
}

async fn run(
    options: SimOptions,
    socket: Option<TcpSocket>,
    log: ServedLog,
    faults: Arc<fault::ActiveFaults>,
    stop: impl Future<Output = u8>,
) -> Result<(), ServeError> {
    tokio::pin!(stop);
    let mut started = tokio::select! {
        started = startup::start(&options, &log, socket, &faults) => started?,
        () = faults.core_death() => return Err(faults.failed_start_report().into()),
        signal = &mut stop => {
            faults.stop_core().await;
            return Err(ServeError::Interrupted(signal));
        }
    };
    let served_names = faults.served_names(options.served_names());
    let served_name = served_names.first().cloned().unwrap_or_default();
    let (commands, inbox) = std::sync::mpsc::channel();
    let front_end = http::FrontEnd {
        limits: request::ServedLimits {
            version: options.version,
            served_names,
            max_model_len: started.settings.max_model_len().into(),
            vocab_size: started.model.vocab_size.unwrap_or(u64::MAX),
            root: options.model.clone(),
            multimodal: started.model.multimodal,
            refuses_priority: started.settings.resolved.v0 && started.settings.scheduling.order == QueueOrder::Arrival,
        },
        seed: options.seed,
        greedy: greedy::GreedyModel::new(&options),
        commands: commands.clone(),
        max_tokens_per_write: max_tokens_per_write(&started.settings),
        next_id: AtomicU64::new(0),
        faults: Arc::clone(&faults),
        api_keys: options.api_keys(),
        is_dev_mode: options.is_dev_mode(),
    };
    let engine = engine(&options, &log, &served_name, &mut started, inbox)?;

    let address = started.socket.local_addr()?;
    if !options.version.is_v0() {
        log.api_info("api_server.py", format_args!("{} http://{address}", server_line(options.version)));
    }
    log.uvicorn(format_args!("Started server process [{}]", std::process::id()));
    log.uvicorn("Waiting for application startup.");
    log.uvicorn("Application startup complete.");
    // Like uvicorn, the server listens only after its start is complete.
    let late = async {
        faults.apply_phase(FaultPhase::Ready).await?;
        faults.listen_late().await;
        Ok::<(), Refusal>(())
    };
    tokio::select! {
        late = late => late?,
        () = faults.core_death() => return Err(faults.failed_start_report().into()),
        signal = &mut stop => {
            faults.stop_core().await;
            return Err(ServeError::Interrupted(signal));
        }
    }
    let listener = started.socket.listen(BACKLOG).map_err(|error| startup::refused_socket(&error))?;
    // The engine's thread writes to the sockets of the web server and cannot encrypt. With TLS, the web server
    // therefore gets a plain-text port behind a TLS forwarder.
    let (door, carrier) = if let Some(acceptor) = tls::acceptor(&options.config)? {
        let inside = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let address = inside.local_addr()?;
        (outlet::OutletListener(inside), Some(tokio::spawn(tls::forward_connections(acceptor, listener, address))))
    } else {
        (outlet::OutletListener(listener), None)
    };
    // Dropped after the web server has ended, when no connection needs forwarding any more.
    let _carrier = carrier.map(tls::TlsForwarder);
    faults.ready();
    let engine = std::thread::Builder::new().name("engine".to_owned()).spawn(move || engine.run())?;
    let (shut_down, shutting_down) = tokio::sync::oneshot::channel::<()>();
    let graceful = async {
        let _ = shutting_down.await;
    };
    let service = http::router(front_end).into_make_service_with_connect_info::<outlet::OutletHandle>();
    let server = axum::serve(door, service).with_graceful_shutdown(graceful).into_future();
    tokio::pin!(server);
    tokio::select! {
        ended = &mut server => return Ok(ended?),
        _ = &mut stop => {}
        refusal = faults.wait_for_end() => return Err(refusal.into()),
        () = faults.core_death() => {
            // Streams in flight and further requests get an error.
            let _ = commands.send(engine::EngineCommand::Die);
            tokio::select! {
                ended = &mut server => return Ok(ended?),
                () = faults.outlive_core() => {}
                _ = &mut stop => {}
            }
        }
    }
    if options.version >= EngineVersion::new(0, 20, 0) {
        log.api_info("launcher.py", "[shutdown] API server: shutdown triggered mode=abort timeout=0s");
    }
    log.uvicorn("Shutting down");
    // Requests in flight are aborted; idle connections are closed.
    let _ = commands.send(engine::EngineCommand::Stop);
    let _ = shut_down.send(());
    let _ = tokio::time::timeout(startup::GRACE, server).await;
    // The engine has received the command to end. Its record of the schedule is complete after the join.
    let _ = tokio::task::spawn_blocking(move || engine.join()).await;
    faults.stop_core().await;
    log.uvicorn("Waiting for application shutdown.");
    log.uvicorn("Application shutdown complete.");
    log.uvicorn(format_args!("Finished server process [{}]", std::process::id()));
    Ok(())
}

/// Creates the loop of the engines' thread, ready to run.
fn engine(
    options: &SimOptions,
    log: &ServedLog,
    served_name: &str,
    started: &mut startup::StartedEngine,
    commands: Receiver<engine::EngineCommand>,
) -> std::io::Result<engine::EngineLoop> {
    let (version, block_size) = (options.version, started.settings.block_size());
    let (labels, engines) = (cache_labels(options, started), std::mem::take(&mut started.engines));
    let mut metrics = metrics::ServedMetrics::new(version, block_size, served_name, &labels, engines.len());
    let log_stats = !options.config.get_bool("disable-log-stats").unwrap_or(false);
    metrics.is_disabled = !log_stats;
    let stats = stats::StatsLine::new(log.clone(), version, options.device.cpu, log_stats);
    let launch = options.study_launch.unwrap_or_else(|| StudyLaunch::alone(options.seed));
    // The variable contains the age at the spawn. Requests are served after the start.
    let age = launch.study_age + options.startup;
    let clock = clock::ServedClock::new(options.time_scale, options.seed, options.noise)
        .with_speed(options.variation.draw(launch.draw), age);
    let schedule = options.schedule.as_deref().map(schedule::ScheduleWriter::create).transpose()?;
    let step_time = started.step_time.clone();
    let frontend = if options.frontend { step_time.frontend() } else { Frontend::default() };
    let desk = client_link::ClientLink::new(metrics, schedule, frontend);
    let live = options.live_folder.clone();
    let live = live.map(|folder| live::LiveFolder::open(folder, &started.settings, options.live_bias)).transpose()?;
    Ok(engine::EngineLoop::new(engines, step_time, clock, desk, stats, options.realtime, commands).with_live(live))
}

/// Returns the largest number of tokens that the engine's thread writes at once for one request. This is the stream
/// interval plus all drafts of a step, but at most 16. The web server writes longer pieces.
fn max_tokens_per_write(settings: &Settings) -> usize {
    let scheduling = &settings.scheduling;
    let drafts = scheduling.speculation.map_or(0, |speculation| speculation.tokens);
    (scheduling.stream_interval.saturating_add(drafts) as usize).min(16)
}

/// Returns the release's log line that precedes the server's address.
fn server_line(version: EngineVersion) -> &'static str {
    match (version.major, version.minor) {
        (0, ..10) => "Starting vLLM API server on",
        (0, 10..20) => "Starting vLLM API server 0 on",
        _ => "Starting vLLM server on",
    }
}

/// Returns the labels of the metric `cache_config_info`.
fn cache_labels(options: &SimOptions, started: &startup::StartedEngine) -> Vec<(&'static str, String)> {
    let (settings, plan) = (&started.settings, &started.plan);
    let text = |name, default: &str| options.config.get_str(name).unwrap_or(default).to_owned();
    let mut labels = vec![
        ("block_size", settings.block_size().to_string()),
        ("cache_dtype", text("kv-cache-dtype", "auto")),
        ("enable_prefix_caching", startup::python(settings.resolved.prefix_caching).to_owned()),
        ("gpu_memory_utilization", started.utilization.to_string()),
        ("num_cpu_blocks", "None".to_owned()),
        ("num_gpu_blocks", plan.blocks.to_string()),
    ];
    if options.version >= EngineVersion::new(0, 32, 0) {
        let (blocks, len) = (plan.blocks.into(), settings.max_model_len().into());
        let (tokens, concurrency) = (plan.layout.tokens(blocks, len), plan.layout.concurrency(blocks, len));
        labels.push(("kv_cache_size_tokens", tokens.to_string()));
        labels.push(("kv_cache_max_concurrency", concurrency.to_string()));
    }
    labels
}
