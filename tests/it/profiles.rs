//! The built-in profiles on the simulated engine, and their limits against measured runs.

use setpoint::job::BenchProfile;

use crate::support::{Workplace, root, wait_until};
use std::time::Duration;

/// The slowest first token of the published sweeps, in seconds: 64 prompts of 10,000 tokens at once on a small GPU.
const SLOWEST_FIRST_TOKEN_S: f64 = 776.5;

#[test]
fn requests_of_the_sweeps_may_take_twice_as_long_as_the_slowest_one_that_was_measured() {
    for (name, _) in BenchProfile::BUILT_IN {
        let least = if name.starts_with("sweep") || name == "high" { 2.0 * SLOWEST_FIRST_TOKEN_S } else { 120.0 };
        for run in BenchProfile::read(name).unwrap().runs {
            assert!(run.load.request_timeout.as_secs_f64() >= least, "{name} {}", run.name);
        }
    }
}

#[test]
fn every_profile_without_a_file_is_completed_on_the_simulated_engine() {
    let workplace = Workplace::new();
    let port = setpoint::server::free_port().unwrap().to_string();
    let model = root().join("examples/models/qwen3-8b");
    let options = "--sim-device h200 --sim-time-scale 2000 --sim-startup-s 0.02 --hf-overrides {\"max_position_embeddings\":131072}";
    let mut arguments = vec!["sim", "serve", model.to_str().unwrap(), "--port", &port];
    arguments.extend(options.split(' '));
    let mut server = workplace.start(&arguments);
    let url = format!("http://127.0.0.1:{port}");
    wait_until(Duration::from_secs(20), "the server", || std::net::TcpStream::connect(&url[7..]).is_ok());
    for name in ["low", "medium", "sweep-80", "sweep-10000", "sweep-128000"] {
        let ended = workplace.run(&["bench", "--url", &url, "--profile", name, "--output", "result.json"]);
        assert!(matches!(ended.code, Some(0 | 6)), "{name}: {}", ended.stderr);
        let result: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(workplace.path("result.json")).unwrap()).unwrap();
        let text = result.to_string();
        assert!(!text.contains("timeout"), "{name}: {text:.2000}");
    }
    server.kill().unwrap();
    server.wait().unwrap();
}
