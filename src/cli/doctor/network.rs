//! Checks the ports for engines.

use super::CheckResult;
use crate::server::{PORTS, free_port};

pub(super) fn check() -> Vec<CheckResult> {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok();
    let outgoing = range.and_then(|text| text.split_whitespace().next()?.parse::<u16>().ok());
    vec![port_result(free_port(), outgoing)]
}

/// Judges the ports. `outgoing` is the lowest port that the kernel uses for outgoing connections.
fn port_result(free: std::io::Result<u16>, outgoing: Option<u16>) -> CheckResult {
    let (first, last) = (PORTS.start, PORTS.end - 1);
    let hint =
        "other programs use them, or the network namespace has no loopback interface: see `ss -lnt` and `ip link`";
    match (free, outgoing) {
        (Err(error), _) => CheckResult::fail("ports", format!("no port from {first} to {last} is free: {error}"), hint),
        (Ok(_), Some(outgoing)) if outgoing < PORTS.end => CheckResult::warn(
            "ports",
            format!("outgoing connections use ports from {outgoing} on, and engines use {first} to {last}"),
            "a trial whose port is taken is launched again; net.ipv4.ip_local_port_range sets the outgoing ports",
        ),
        (Ok(_), _) => CheckResult::ok("ports", format!("a port from {first} to {last} is free")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::doctor::CheckState;

    #[test]
    fn ports_of_outgoing_connections_are_a_warning() {
        let none = || Err(std::io::ErrorKind::AddrInUse.into());
        assert_eq!(port_result(none(), None).state, CheckState::Fail);
        assert_eq!(port_result(Ok(20_001), Some(32_768)).state, CheckState::Ok);
        assert_eq!(port_result(Ok(20_001), Some(1024)).state, CheckState::Warn);
    }
}
