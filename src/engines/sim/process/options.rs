//! The command line of the simulated engine: flags of `vllm serve`, and `--sim-*` for the simulation.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::fault::{FaultPlan, FaultSpec};
use super::greedy::LossyValue;
use super::refusal::Refusal;
use super::study_launch::StudyLaunch;
use crate::config::Config;
use crate::engine::{ADAPTERS_FLAG, Engine, SimulatedLaunch, adapter_names};
use crate::engines::vllm::API_KEY_VARIABLE;
use crate::engines::vllm::{FLAGS, VllmEngine};
use crate::facts::{Device, EngineVersion, Gpu};
use crate::twin::{DevicePreset, Factors, SpeedVariation};

/// All settings of the simulated engine.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SimOptions {
    /// A directory with a `config.json`, as given.
    pub model: String,
    /// The flags of `vllm serve` that were given.
    pub config: Config,
    /// The environment variables that vLLM reads. Empty after parsing; `serve` fills them in.
    pub env: BTreeMap<String, String>,
    /// The simulated release, which decides flags, defaults, refusals, scheduler, log lines and metric names.
    pub version: EngineVersion,
    pub device: &'static DevicePreset,
    /// The number of devices.
    pub devices: u32,
    /// Share of draft tokens, 0 to 1, that the model accepts in speculative decoding.
    pub acceptance: f64,
    /// Real time from the start until requests are served.
    pub startup: Duration,
    /// Simulated seconds per real second.
    pub time_scale: f64,
    pub seed: u64,
    /// Standard deviation of the logarithm of a step's time; 0 for no noise.
    pub noise: f64,
    /// The variation of the speed between launches and over the time of a study.
    pub variation: SpeedVariation,
    /// Factors on the terms of the step time.
    pub physics: Factors,
    /// The folder of the files through which live knobs are set.
    pub live_folder: Option<PathBuf>,
    /// The excess of all times while a live knob differs from its launched value, as a share.
    pub live_bias: f64,
    /// The launch of a study that this process is. `None` after parsing; `serve` fills it in.
    pub study_launch: Option<StudyLaunch>,
    /// The file for a record of each step, with due and actual times of its tokens.
    pub schedule: Option<PathBuf>,
    /// Whether the engine's thread asks for a real-time priority, so that a busy machine does not delay it.
    pub realtime: bool,
    /// Whether the delays of vLLM's front end are simulated, including the sequential output of tokens.
    pub frontend: bool,
    /// The faults to simulate.
    pub faults: FaultPlan,
    /// Share of the greedy replies, 0 to 1, that diverge by chance, as by another batch.
    pub greedy_noise: f64,
    /// Values of flags that change greedy replies.
    pub lossy: Vec<LossyValue>,
}

/// The arguments that set the properties of a [`SimulatedLaunch`], without `--sim-`.
const PROPERTIES: [&str; 13] = [
    "acceptance-rate",
    "device",
    "devices",
    "drift",
    "drift-hours",
    "frontend",
    "launch-noise",
    "live-bias",
    "live-looks",
    "physics",
    "startup-s",
    "time-scale",
    "vllm-version",
];

impl SimOptions {
    /// Parses the arguments after `sim serve`: the model, flags of the simulated release, and `--sim-vllm-version`,
    /// `--sim-device`, `--sim-devices`, `--sim-acceptance-rate`, `--sim-startup-s`, `--sim-time-scale`, `--sim-seed`,
    /// `--sim-noise`, `--sim-launch-noise`, `--sim-drift`, `--sim-drift-hours`, `--sim-physics`, `--sim-live-looks`,
    /// `--sim-live-bias`, `--sim-live-folder`, `--sim-schedule`,
    /// `--sim-priority`, `--sim-frontend`, `--sim-fault`, `--sim-fault-if`,
    /// `--sim-fault-once`, `--sim-greedy-noise`, `--sim-lossy`.
    ///
    /// # Errors
    /// If argparse would refuse an argument, with its exit code 2. If a `--config` file cannot be read.
    pub(crate) fn parse(arguments: &[String]) -> Result<Self, Refusal> {
        let Some((model, rest)) = arguments.split_first().filter(|(model, _)| !model.starts_with('-')) else {
            return Err(Refusal::usage("the following arguments are required: model_tag"));
        };
        let (options, flags) = Self::split(&with_config_file(rest)?, |_| true)?;
        let table = FLAGS.for_version(options.version);
        let config = table.parse(&flags).map_err(Refusal::usage)?;
        // A misspelt condition would suppress the fault, and the test would pass without it.
        if let Some((flag, _)) = options.faults.conditions.iter().find(|(flag, _)| table.find(flag).is_none()) {
            return Err(Refusal::usage(format!("argument --sim-fault-if: {}", table.unknown(flag))));
        }
        Ok(Self { model: model.clone(), config, ..options })
    }

    /// Parses the arguments `--sim-*`, and returns all others unparsed. Model and flags stay empty.
    ///
    /// # Errors
    /// If an argument has no value or an invalid one, and `matters` returns `true` for its name. Other mistakes are
    /// skipped.
    fn split(arguments: &[String], matters: impl Fn(&str) -> bool) -> Result<(Self, Vec<String>), Refusal> {
        let mut options = Self {
            model: String::new(),
            config: Config::new(),
            env: BTreeMap::new(),
            version: FLAGS.newest_release(),
            device: preset(DevicePreset::DEFAULT)?,
            devices: 1,
            acceptance: 0.7,
            startup: Duration::from_millis(500),
            time_scale: 1.0,
            seed: 0,
            noise: 0.02,
            variation: SpeedVariation::NONE,
            physics: Factors::ONE,
            live_folder: None,
            live_bias: 0.0,
            study_launch: None,
            schedule: None,
            realtime: false,
            frontend: true,
            faults: FaultPlan::default(),
            greedy_noise: 0.0,
            lossy: Vec::new(),
        };
        let mut flags = Vec::new();
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            let Some(name) = argument.strip_prefix("--sim-").or_else(|| argument.strip_prefix("--sim_")) else {
                flags.push(argument.clone());
                continue;
            };
            let (name, value) = match name.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (name, rest.next().map(String::as_str)),
            };
            let name = name.replace('_', "-");
            let value = value.ok_or_else(|| Refusal::usage(format!("argument --sim-{name}: expected one argument")));
            match value.and_then(|value| options.set(&name, value)) {
                Err(refusal) if matters(&name) => return Err(refusal),
                _ => {}
            }
        }
        Ok((options, flags))
    }

    /// Parses the simulated properties from the arguments of a study's engine. Returns `None` if the process would
    /// refuse an argument that sets one of them. The process itself reports all other mistakes.
    #[must_use]
    pub(crate) fn simulated(arguments: &[String]) -> Option<SimulatedLaunch> {
        let (options, _) = Self::split(arguments, |name| PROPERTIES.contains(&name)).ok()?;
        Some(SimulatedLaunch {
            device: options.device,
            time_scale: options.time_scale,
            devices: options.devices,
            acceptance: options.acceptance,
            front_end: options.frontend,
            startup_s: options.startup.as_secs_f64(),
            version: options.version,
            variation: options.variation,
            physics: options.physics,
            live_bias: options.live_bias,
        })
    }

    /// Returns the arguments without those of the simulation. They stay unchanged if the last one lacks its value.
    pub(crate) fn without_simulation(arguments: &[String]) -> Vec<String> {
        Self::split(arguments, |_| false).map_or_else(|_| arguments.to_vec(), |(_, flags)| flags)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), Refusal> {
        match name {
            "vllm-version" => self.version = value.parse().map_err(Refusal::usage)?,
            "device" => self.device = preset(value)?,
            "devices" => self.devices = whole(name, value, 1, 1024)?,
            "acceptance-rate" => self.acceptance = number(name, value, 0.0, 1.0)?,
            "startup-s" => self.startup = Duration::from_secs_f64(number(name, value, 0.0, 3600.0)?),
            "time-scale" => self.time_scale = number(name, value, 1e-3, 1e6)?,
            "noise" => self.noise = number(name, value, 0.0, 2.0)?,
            "launch-noise" => self.variation.launch = number(name, value, 0.0, 2.0)?,
            "drift" => self.variation.drift = number(name, value, 0.0, 2.0)?,
            "drift-hours" => {
                self.variation.correlation_time = Duration::from_secs_f64(number(name, value, 0.01, 1000.0)? * 3600.0);
            }
            "physics" => {
                self.physics =
                    value.parse().map_err(|problem| Refusal::usage(format!("argument --sim-physics: {problem}")))?;
            }
            // A property of studies: whether the tuner uses live looks.
            "live-looks" => drop(choice(name, value, ["no", "yes"])?),
            "live-bias" => self.live_bias = number(name, value, -0.9, 10.0)?,
            "live-folder" => self.live_folder = Some(value.into()),
            "seed" => {
                self.seed = value
                    .parse()
                    .map_err(|_| Refusal::usage(format!("argument --sim-seed: invalid int value: '{value}'")))?;
            }
            "schedule" => self.schedule = Some(value.into()),
            "priority" => self.realtime = choice(name, value, ["normal", "realtime"])?,
            "frontend" => self.frontend = choice(name, value, ["none", "vllm"])?,
            "fault" => {
                let fault: FaultSpec =
                    value.parse().map_err(|error| Refusal::usage(format!("argument --sim-fault: {error}")))?;
                self.faults.faults.push(fault);
            }
            "fault-if" => {
                let (flag, value) = value.split_once('=').ok_or_else(|| {
                    Refusal::usage(format!("argument --sim-fault-if: '{value}' is not of the form FLAG=VALUE"))
                })?;
                self.faults.conditions.push((flag.to_owned(), value.to_owned()));
            }
            "greedy-noise" => self.greedy_noise = number(name, value, 0.0, 1.0)?,
            "lossy" => self.lossy.push(
                value.parse().map_err(|problem: String| Refusal::usage(format!("argument --sim-lossy: {problem}")))?,
            ),
            "fault-once" => self.faults.once = Some(value.into()),
            _ => return Err(Refusal::usage(format!("unrecognized arguments: --sim-{name}"))),
        }
        Ok(())
    }

    /// Returns the devices for rules and defaults, including their number.
    #[must_use]
    pub(crate) fn facts_device(&self) -> Device {
        match self.device.device() {
            Device::Cuda(gpu) => Device::Cuda(Gpu { count: Some(self.devices), ..gpu }),
            Device::Cpu => Device::Cpu,
        }
    }

    /// Returns the names that requests may use, with those of adapters. Replies carry the first one.
    #[must_use]
    pub(crate) fn served_names(&self) -> Vec<String> {
        let mut names: Vec<_> = match self.config.get_str("served-model-name") {
            Some(names) => names.split_whitespace().map(str::to_owned).collect(),
            None => vec![self.model.clone()],
        };
        if self.config.get_bool("enable-lora") == Some(true) {
            names.extend(self.config.get_str(ADAPTERS_FLAG).map(adapter_names).unwrap_or_default());
        }
        names
    }

    /// Returns the API keys. A request under `/v1` has to carry one of them; if there are none, every request is
    /// accepted. As in vLLM's `api_server.py`, the argument takes precedence over the variable.
    #[must_use]
    pub(crate) fn api_keys(&self) -> Vec<String> {
        let keys = self.config.get_str("api-key").or(self.env.get(API_KEY_VARIABLE).map(String::as_str));
        keys.unwrap_or_default().split_whitespace().map(str::to_owned).collect()
    }

    /// Returns whether endpoints that change the engine exist, as in vLLM with `VLLM_SERVER_DEV_MODE=1` only
    /// (`envs.py`).
    #[must_use]
    pub(crate) fn is_dev_mode(&self) -> bool {
        let value = self.env.get("VLLM_SERVER_DEV_MODE");
        value.and_then(|value| value.trim().parse::<i64>().ok()).is_some_and(|value| value != 0)
    }
}

fn preset(name: &str) -> Result<&'static DevicePreset, Refusal> {
    DevicePreset::find(name).ok_or_else(|| {
        let names = DevicePreset::names().collect::<Vec<_>>().join(", ");
        Refusal::usage(format!("argument --sim-device: invalid choice: '{name}' (choose from {names})"))
    })
}

fn whole(name: &str, value: &str, least: u32, most: u32) -> Result<u32, Refusal> {
    let number = value
        .parse::<u32>()
        .map_err(|_| Refusal::usage(format!("argument --sim-{name}: invalid int value: '{value}'")))?;
    if (least..=most).contains(&number) {
        Ok(number)
    } else {
        Err(Refusal::usage(format!("argument --sim-{name}: {value} is not between {least} and {most}")))
    }
}

/// Returns whether the value is the second of two choices.
fn choice(name: &str, value: &str, [first, second]: [&str; 2]) -> Result<bool, Refusal> {
    if value != first && value != second {
        let choices = format!("(choose from {first}, {second})");
        return Err(Refusal::usage(format!("argument --sim-{name}: invalid choice: '{value}' {choices}")));
    }
    Ok(value == second)
}

fn number(name: &str, value: &str, least: f64, most: f64) -> Result<f64, Refusal> {
    let number = value
        .parse::<f64>()
        .map_err(|_| Refusal::usage(format!("argument --sim-{name}: invalid float value: '{value}'")))?;
    if (least..=most).contains(&number) {
        Ok(number)
    } else {
        Err(Refusal::usage(format!("argument --sim-{name}: {value} is not between {least} and {most}")))
    }
}

/// Replaces `--config FILE` by the flags of the file, which may be options of the simulation.
fn with_config_file(arguments: &[String]) -> Result<Vec<String>, Refusal> {
    let version = SimOptions::split(arguments, |_| false)?.0.version;
    let find = |file: &str| Some(PathBuf::from(file)).filter(|path| path.is_file());
    let read = VllmEngine.inline_config_file(arguments.to_vec(), version, &find);
    read.map_err(|problem| Refusal::traceback("utils/argparse_utils.py", &format!("ValueError: {problem}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<SimOptions, Refusal> {
        SimOptions::parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn flags_of_the_engine_and_of_the_simulation_may_be_mixed() {
        let options = parse("m --sim-device=l4 --max_num_seqs 8 --sim_startup_s 0.25 --sim-vllm-version 0.6.3 --sim-seed 7 --served-model-name x")
            .unwrap();
        assert_eq!((options.device.name, options.seed, options.startup), ("l4", 7, Duration::from_millis(250)));
        assert_eq!(options.config.get_i64("max-num-seqs"), Some(8));
        assert!(options.version.is_v0());
        assert_eq!((options.model.as_str(), options.served_names()), ("m", vec!["x".to_owned()]));
    }

    #[test]
    fn a_config_file_has_flags_of_the_engine_and_of_the_simulation() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("a.yaml");
        std::fs::write(&file, "max-num-seqs: 8\nsim-device: l4\nseed: 1\n").unwrap();
        let options = parse(&format!("m --config {} --seed 2", file.display())).unwrap();
        let number = |flag| options.config.get_i64(flag);
        assert_eq!((options.device.name, number("max-num-seqs"), number("seed")), ("l4", Some(8), Some(2)));
        let refusal = parse("m --config absent.yaml").unwrap_err();
        assert!(refusal.exit_code == 1 && refusal.text.ends_with("the file does not exist"), "{refusal}");
    }

    #[test]
    fn faults_add_up_and_are_limited_to_some_launches() {
        let options = parse(
            "m --sim-fault hang@kv --sim-fault=mute --sim-fault-if max-num-seqs= --sim-fault-if block-size=16 \
             --sim-fault-once once",
        )
        .unwrap();
        let FaultPlan { faults, conditions, once } = options.faults;
        assert_eq!(faults.iter().map(ToString::to_string).collect::<Vec<_>>(), ["hang@kv", "mute"]);
        let pair = |flag: &str, value: &str| (flag.to_owned(), value.to_owned());
        assert_eq!(conditions, [pair("max-num-seqs", ""), pair("block-size", "16")]);
        assert_eq!(once, Some("once".into()));
    }

    #[test]
    fn a_parse_error_ends_with_exit_code_2_and_the_wording_of_argparse() {
        for (line, text) in [
            ("", "the following arguments are required: model_tag"),
            ("--port 1", "the following arguments are required: model_tag"),
            ("m --no-such-flag 1", "error: unrecognized arguments: --no-such-flag"),
            ("m --swap-space 4", "error: unrecognized arguments: --swap-space"),
            ("m --kv-cache-dtype foo", "invalid choice: 'foo'"),
            (
                "m --sim-device tpu",
                "argument --sim-device: invalid choice: 'tpu' (choose from a100, h100, h200, b200, l40s, l4, a10, rtx4090, rtxpro6000, cpu)",
            ),
            ("m --sim-time-scale 0", "--sim-time-scale: 0 is not between 0.001 and 1000000"),
            ("m --sim-noise", "argument --sim-noise: expected one argument"),
            ("m --sim-launch-noise -1", "argument --sim-launch-noise: -1 is not between 0 and 2"),
            ("m --sim-drift much", "argument --sim-drift: invalid float value: 'much'"),
            ("m --sim-drift-hours 0", "argument --sim-drift-hours: 0 is not between 0.01 and 1000"),
            ("m --sim-what 1", "unrecognized arguments: --sim-what"),
            (
                "m --sim-fault hang",
                "argument --sim-fault: 'hang' needs a phase, as in hang@weights (choose from parse,",
            ),
            ("m --sim-fault-if max-num-seqs", "argument --sim-fault-if: 'max-num-seqs' is not of the form FLAG=VALUE"),
            ("m --sim-fault-if max-num-sequences=1", "argument --sim-fault-if: "),
        ] {
            let refusal = parse(line).unwrap_err();
            assert_eq!(refusal.exit_code, 2);
            assert!(refusal.text.contains(text), "{line}: {refusal}");
            assert!(refusal.text.starts_with("usage: "));
        }
    }

    #[test]
    fn arguments_are_read_as_the_simulated_engine_reads_them() {
        let read = |line: &str| SimOptions::simulated(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        let default = read("--max-num-seqs 4").unwrap();
        assert_eq!((default.device.name, default.time_scale, default.version), ("h100", 1.0, FLAGS.newest_release()));
        let all = read("--sim-device l4 --sim-devices 4 --sim-acceptance-rate=0.5 --sim_time_scale=20 --sim-vllm-version 0.8.5 --sim-device=cpu").unwrap();
        let version = EngineVersion::new(0, 8, 5);
        assert_eq!((all.device.name, all.time_scale, all.version), ("cpu", 20.0, version));
        assert_eq!((default.devices, all.devices), (1, 4));
        assert!((default.acceptance - 0.7).abs() + (all.acceptance - 0.5).abs() < 1e-12);
        assert_eq!(default.variation, SpeedVariation::NONE);
        let varied = read("--sim-launch-noise 0.03 --sim-drift=0.01 --sim-drift-hours 0.5").unwrap().variation;
        let correlation_time = Duration::from_mins(30);
        assert_eq!(varied, SpeedVariation { launch: 0.03, drift: 0.01, correlation_time });
        assert!(all.front_end && !read("--sim-frontend none").unwrap().front_end);
        for wrong in [
            "--sim-device tpu",
            "--sim-device",
            "--sim-time-scale 0",
            "--sim-time-scale fast",
            "--sim-frontend own",
            "--sim-launch-noise 3",
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
        let other = read("--sim-device l4 --sim-fault nonsense --sim-seed x --sim-what 1").unwrap();
        assert_eq!(other.device.name, "l4", "the process refuses these, and they change no property");
    }
}
