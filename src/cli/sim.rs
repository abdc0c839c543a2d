//! `sim serve`: the simulated engine.

use std::io::Write;

use clap::Subcommand;

use super::failure::CommandFailure;
use super::output::print;
use crate::engines::sim::process::{ServeError, SimOptions, engine_core, serve};

#[derive(Debug, Subcommand)]
pub(super) enum SimCommand {
    /// Serve a simulated model: `sim serve MODEL [flags of vllm serve] [--sim-* options]`.
    #[command(disable_help_flag = true, after_help = [OPTIONS_HELP, FAULTS_HELP].concat())]
    Serve {
        /// The model's directory, flags of `vllm serve`, and the options of the simulation below.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "MODEL AND FLAGS")]
        arguments: Vec<String>,
    },
    /// The engine's process of a simulated engine that has one of its own.
    #[command(hide = true)]
    EngineCore,
}

/// Help on the behaviour of the simulation, except for its faults.
const OPTIONS_HELP: &str = "\
Simulation:
  --sim-vllm-version V        the simulated release of vLLM (the newest known)
  --sim-device NAME           the simulated device: a100, h100, h200, b200,
                              l40s, l4, a10, rtx4090, rtxpro6000, cpu
  --sim-devices N             number of these devices, for tensor, pipeline
                              and data parallelism (1)
  --sim-acceptance-rate P     share of accepted draft tokens, 0 to 1 (0.7);
                              applies with --speculative-config
  --sim-startup-s S           seconds from the start until requests are served
                              (0.5)
  --sim-time-scale X          speed of the steps, as a multiple of the
                              device's (1)
  --sim-seed N                seed of the noise, the accepted drafts and the
                              lengths of replies (0)
  --sim-noise S               spread of step times: standard deviation of
                              their logarithm (0.02)
  --sim-launch-noise S        spread of the speed from launch to launch:
                              standard deviation of the logarithm of one
                              factor on all times of a launch (0)
  --sim-drift S               slow change of the speed over a study: standard
                              deviation of its logarithm (0)
  --sim-drift-hours H         time after which the drift's autocorrelation is
                              1/e, in simulated hours (2)
  --sim-physics TERM=X,...    factors on the terms of the step time: weights,
                              compute, attention, launch, host, frontend;
                              predictions do not know them (1)
  --sim-greedy-noise P        share of the replies to the guard's prompts that
                              diverge by chance, as by other batches (0)
  --sim-lossy FLAG=VALUE:SHARE
                              share of these replies that change if the
                              configuration has this value, repeatable
  --sim-frontend none|vllm    delay of vLLM's API server for each request and
                              token, one after the other (vllm)
  --sim-schedule FILE         write one JSON line per step, with the due and
                              the write times of its tokens
  --sim-priority normal|realtime
                              priority of the engine's thread; realtime needs
                              CAP_SYS_NICE (normal)
A study draws its own drift from its seed, and another launch noise for each
launch: the tuner passes both in the variable
SETPOINT_SIM_LAUNCH=SEED:TRIAL:RETRY:AGE, with the study's age in seconds.
Without it, --sim-seed decides, and launches repeat.

";

/// Help on the simulated faults. `src/engines/sim/process/fault/mod.rs` has them as a table.
const FAULTS_HELP: &str = "\
Faults: --sim-fault NAME[@PHASE][:KEY=VALUE,...], repeatable; defaults in
parentheses
  exit@PHASE         end with vLLM's messages: cause=CAUSE (exception), code=N
                     or signal=N
  hang@PHASE         wait forever, without a log line
  slow@PHASE         take longer, with progress lines in the log: seconds=S
                     (1)
  close-log@PHASE    close standard output and standard error
  flood@PHASE        write megabytes of log lines: mb=N (1000)
  ignore-term, ignore-int
                     ignore this signal
  escape             start a child outside of the session: bare=yes without
                     environment, orphan=yes without parent
  engine-core        start a process VLLM::EngineCore that dies: dies-after=S
                     after readiness, phase=PHASE, request=N
  other-model        serve a model of another name: name=NAME (another-model)
  late-bind          open the port at the end of the start
  late-listen        report a complete start, and listen later: seconds=S (1)
  mute               accept requests and never answer them
  unhealthy          answer /health with 503: after=S after readiness (0)
  die                end at a request: request=N (1); cause, code or signal as
                     for exit
  errors             answer with status 500: from=N, a request counted from 1
                     (1)
  stall              stop sending a stream: after=TOKENS (0), from=N (1)
  end-early          end streams without [DONE]: after=TOKENS (all), from=N
                     (1)
  error-event        send an error in the stream: after=TOKENS (0), from=N (1)
  leak               allocate more and more memory: mb-per-s=N (50), cap-mb=N
                     (512)
  long-step          take this long for the first step of a request: seconds=S
                     (60), busy=no leaves the processor idle, request=N (1)
  spin               never end the first step of a request, and use a whole
                     processor: request=N (1)
Phases: parse, config, bind, weights, profile, kv, graphs, ready
Causes: invalid-argument, invalid-value, port-in-use, unsupported,
  model-missing, model-gated, oom-weights, oom-profile, oom-kv, oom-sampler,
  oom-graphs, oom-load, no-kv, kv-too-small, device-busy, nccl, network,
  disk-full, too-many-files, worker-killed, step-timeout, illegal-access,
  device-lost, no-device, driver-mismatch, link-lost, stale-file,
  read-timeout, nccl-oom, exception, silent
--sim-fault-if FLAG=VALUE   only if the configuration has this value; FLAG=
                            only if it does not set the flag
--sim-fault-once FILE       only in the first launch, which finds no such file
                            and creates it";

/// Renders the help of `sim serve`. Clap does not parse the engine's own flags, so `--help` among them is answered
/// here.
fn help() -> String {
    let mut command = super::command();
    command.build();
    let serve = command.find_subcommand_mut("sim").and_then(|sim| sim.find_subcommand_mut("serve"));
    serve.map(|serve| serve.render_long_help().to_string()).unwrap_or_default()
}

impl SimCommand {
    /// Runs the command. Refusals keep the wording and the exit codes of the real engine.
    pub(super) async fn run(self) -> Result<(), CommandFailure> {
        let arguments = match self {
            Self::Serve { arguments } => arguments,
            Self::EngineCore => return engine_core().await.map_err(CommandFailure::from),
        };
        if arguments.iter().any(|argument| argument == "--help" || argument == "-h") {
            return print(&help());
        }
        let result = match SimOptions::parse(&arguments) {
            Ok(options) => serve(options).await,
            Err(refusal) => Err(ServeError::Refused(refusal)),
        };
        result.map_err(|error| {
            let text = error.to_string();
            if !text.is_empty() {
                let _ = writeln!(anstream::stderr(), "{}", crate::trial::for_terminal(&text));
            }
            CommandFailure::new(error.exit_code(), "")
        })
    }
}
