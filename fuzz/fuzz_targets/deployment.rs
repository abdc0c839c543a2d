//! Fuzz target: an arbitrary text as a script or manifest must not cause a panic, and must be read in a short time.

#![no_main]

use setpoint::deployment::read_deployment_text;
use setpoint::engines;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let [choice, text @ ..] = bytes else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    // A name that begins with a directory that does not exist, so that no file beside it is read.
    let name = ["/nowhere/run.sh", "/nowhere/deploy.yaml"][usize::from(*choice) % 2];
    if let Ok(deployment) = read_deployment_text(name, text) {
        let engine = engines::default_engine();
        if let Some(table) = engine.flag_table(engine.newest_release()) {
            let _ = deployment.configuration(table);
        }
    }
});
