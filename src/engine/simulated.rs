//! What the arguments of the simulated engine say of what it simulates.

use crate::facts::EngineVersion;
use crate::twin::DevicePreset;

/// How the simulated engine runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Simulated {
    pub device: &'static DevicePreset,
    /// How many times faster than the device its clock goes.
    pub time_scale: f64,
    /// How many devices there are.
    pub devices: u32,
    /// Share of drafts, 0 to 1, that the model agrees with.
    pub acceptance: f64,
    /// Whether it simulates vLLM's front end too.
    pub front_end: bool,
    /// Seconds until it is ready, if the arguments state them.
    pub startup_s: Option<f64>,
    /// The release, where the arguments state one.
    pub version: Option<EngineVersion>,
}

impl Simulated {
    /// Reads what its arguments say; the last of each counts. `None` if the simulated engine would refuse one of the values.
    pub(super) fn read(args: &[String]) -> Option<Self> {
        let device = DevicePreset::find(DevicePreset::DEFAULT)?;
        let mut simulated = Self {
            device,
            time_scale: 1.0,
            devices: 1,
            acceptance: 0.7,
            front_end: true,
            startup_s: None,
            version: None,
        };
        let mut args = args.iter().map(String::as_str);
        while let Some(argument) = args.next() {
            let (flag, value) = argument.split_once('=').map_or((argument, None), |(flag, value)| (flag, Some(value)));
            let mut value = || value.or_else(|| args.next());
            match flag.replace('_', "-").as_str() {
                "--sim-device" => simulated.device = DevicePreset::find(value()?)?,
                "--sim-time-scale" => {
                    simulated.time_scale = value()?.parse().ok().filter(|scale| (1e-3..=1e6).contains(scale))?;
                }
                "--sim-startup-s" => {
                    let seconds = value()?.parse().ok().filter(|seconds| (0.0..=3600.0).contains(seconds))?;
                    simulated.startup_s = Some(seconds);
                }
                "--sim-devices" => simulated.devices = value()?.parse().ok().filter(|devices| *devices > 0)?,
                "--sim-acceptance-rate" => {
                    simulated.acceptance = value()?.parse().ok().filter(|share| (0.0..=1.0).contains(share))?;
                }
                "--sim-frontend" => {
                    simulated.front_end = match value()? {
                        "vllm" => true,
                        "none" => false,
                        _ => return None,
                    };
                }
                "--sim-vllm-version" => simulated.version = Some(value()?.parse().ok()?),
                _ => {}
            }
        }
        Some(simulated)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_read_as_the_simulated_engine_reads_them() {
        let read = |line: &str| Simulated::read(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        let default = read("--max-num-seqs 4").unwrap();
        assert_eq!((default.device.name, default.time_scale, default.version), ("h100", 1.0, None));
        let all = read("--sim-device l4 --sim-devices 4 --sim-acceptance-rate=0.5 --sim_time_scale=20 --sim-vllm-version 0.8.5 --sim-device=cpu").unwrap();
        let version = EngineVersion::new(0, 8, 5);
        assert_eq!((all.device.name, all.time_scale, all.version), ("cpu", 20.0, Some(version)));
        assert_eq!((default.devices, all.devices), (1, 4));
        assert!((default.acceptance - 0.7).abs() + (all.acceptance - 0.5).abs() < 1e-12);
        assert!(all.front_end && !read("--sim-frontend none").unwrap().front_end);
        for wrong in
            ["--sim-device tpu", "--sim-device", "--sim-time-scale 0", "--sim-time-scale fast", "--sim-frontend own"]
        {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
