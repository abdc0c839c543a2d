//! Renders the context of a trial as text and JSON.

use std::fmt::Write;

use serde_json::{Value as Json, json};

use crate::facts::TrialContext;
use crate::store::StoredContext;

/// Adds `context` and `earlier_context` to the JSON of a trial. Unknown values are null.
pub(crate) fn add_context(trial: &mut Json, stored: Option<&StoredContext>) {
    let context = stored.and_then(|stored| stored.context.as_ref());
    trial["context"] = context.map_or(Json::Null, |context| {
        let TrialContext { release, device, host } = context;
        json!({
            "release": release,
            "device": {
                "name": device.name,
                "memory_bytes": device.memory,
                "count": device.count,
                "mig_profile": device.mig_profile,
                "compute_capability": device.compute_capability,
                "power_limit_w": device.power_limit_w,
                "driver": device.driver,
            },
            "host": {
                "name": host.name,
                "processor": host.cpu,
                "processors": host.cpus,
                "memory_bytes": host.memory,
            },
        })
    });
    trial["earlier_context"] = stored.is_some_and(|stored| stored.is_earlier).into();
}

/// Returns the context as lines of a trial's text. An earlier context has a mark, even if its facts are not stored.
#[must_use]
pub(crate) fn context_text(stored: &StoredContext) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name:<24}{value}");
    };
    if stored.is_earlier {
        line("context", "earlier: this trial is not compared with those of the present context".to_owned());
    }
    let Some(TrialContext { device, host, .. }) = &stored.context else { return text };
    let mebibytes = |bytes: u64| format!("{} MiB", bytes >> 20);
    let join = |parts: Vec<Option<String>>| {
        let known: Vec<_> = parts.into_iter().flatten().collect();
        if known.is_empty() { "unknown".to_owned() } else { known.join(", ") }
    };
    line(
        "device",
        join(vec![
            device.name.clone(),
            device.count.map(|count| format!("{count} devices")),
            device.memory.map(mebibytes),
            device.mig_profile.clone().filter(|profile| profile != "none").map(|profile| format!("MIG {profile}")),
            device.compute_capability.clone().map(|capability| format!("compute capability {capability}")),
            device.power_limit_w.map(|limit| format!("power limit {limit:.0} W")),
            device.driver.clone().map(|driver| format!("driver {driver}")),
        ]),
    );
    line(
        "machine",
        join(vec![
            host.name.clone(),
            host.cpu.clone(),
            host.cpus.map(|cpus| format!("{cpus} processors")),
            host.memory.map(mebibytes),
        ]),
    );
    text
}
