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
    let hint = "another program or a namespace without a loopback interface takes them: see `ss -lnt` and `ip link`";
    match (free, outgoing) {
        (Err(error), _) => Finding::fail("ports", format!("none of {first} to {last} is free: {error}"), hint),
        (Ok(_), Some(outgoing)) if outgoing < PORTS.end => Finding::warn(
            "ports",
            format!("outgoing connections take ports from {outgoing} on, engines get {first} to {last}"),
            "a trial may find its port taken and is then launched again; see net.ipv4.ip_local_port_range",
        ),
        (Ok(_), _) => Finding::ok("ports", format!("free ones from {first} to {last}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::doctor::State;

    #[test]
    fn ports_that_the_kernel_gives_away_are_warned_of() {
        let none = || Err(std::io::ErrorKind::AddrInUse.into());
        assert_eq!(judged(none(), None).state, State::Fail);
        assert_eq!(judged(Ok(20_001), Some(32_768)).state, State::Ok);
        assert_eq!(judged(Ok(20_001), Some(1024)).state, State::Warn);
    }
}
