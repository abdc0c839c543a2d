//! Flags of a launch that belong to setpoint and to no configuration.

/// Flags that each launch of a study gets from setpoint.
pub const LAUNCH_FLAGS: [&str; 3] = ["host", "port", "model"];

/// Flags of a server's connection, besides those that begin with `ssl-`.
const CONNECTION: [&str; 4] = ["uds", "headless", "enable-ssl-refresh", "served-model-name"];

/// Returns whether a flag describes the connection to a server. The tuner connects to all launches of a study in the
/// same way, so a first point cannot have it.
#[must_use]
pub fn is_connection_flag(name: &str) -> bool {
    name.starts_with("ssl-") || CONNECTION.contains(&name) || LAUNCH_FLAGS.contains(&name)
}
