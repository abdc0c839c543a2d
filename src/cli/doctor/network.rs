//! Checks the ports for engines.

use super::Finding;
use crate::server::{PORTS, free_port};

pub(super) fn look() -> Vec<Finding> {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok();
    let outgoing = range.and_then(|text| text.split_whitespace().next()?.parse::<u16>().ok());
    vec![judged(free_port(), outgoing)]
}

/// Judges the ports. `outgoing` is the lowest port that the kernel uses for outgoing connections.
fn judged(free: std::io::Result<u16>, outgoing: Option<u16>) -> Finding {
    let (first, last) = (PORTS.start, PORTS.end - 1);
    let hint =
        "other programs use them, or the network namespace has no loopback interface: see `ss -lnt` and `ip link`";
    match (free, outgoing) {
        (Err(error), _) => Finding::fail("ports", format!("no port from {first} to {last} is free: {error}"), hint),
        (Ok(_), Some(outgoing)) if outgoing < PORTS.end => Finding::warn(
            "ports",
            format!("outgoing connections use ports from {outgoing} on, and engines use {first} to {last}"),
            "a trial whose port is taken is launched again; net.ipv4.ip_local_port_range sets the outgoing ports",
        ),
        (Ok(_), _) => Finding::ok("ports", format!("a port from {first} to {last} is free")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::doctor::State;

    #[test]
    fn ports_of_outgoing_connections_are_a_warning() {
        let none = || Err(std::io::ErrorKind::AddrInUse.into());
        assert_eq!(judged(none(), None).state, State::Fail);
        assert_eq!(judged(Ok(20_001), Some(32_768)).state, State::Ok);
        assert_eq!(judged(Ok(20_001), Some(1024)).state, State::Warn);
    }
}
