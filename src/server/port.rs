//! Ports: finding a free one, and finding out whose listener answers on it.

use std::net::TcpListener;

use procfs::net::TcpState;
use rand::RngExt;

use super::HOST;

/// Below the range from which Linux takes ports for outgoing connections, so that none is taken by chance between
/// the check here and the engine's own bind.
const RANGE: std::ops::Range<u16> = 20_000..32_000;

const ATTEMPTS: usize = 200;

/// A port that nothing listens on now. The engine binds it later; whoever gets in between is noticed, because a
/// server counts as ready only when the listener is one of its own processes.
///
/// # Errors
/// When no port of the range could be bound.
pub fn free_port() -> std::io::Result<u16> {
    let mut rng = rand::rng();
    let mut last = None;
    for _ in 0..ATTEMPTS {
        let port = rng.random_range(RANGE);
        match TcpListener::bind((HOST, port)) {
            Ok(_) => return Ok(port),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| std::io::ErrorKind::AddrNotAvailable.into()))
}

/// Inodes of the sockets that get connections to this port of [`HOST`].
pub(super) fn listeners(port: u16) -> Vec<u64> {
    let four = procfs::net::tcp().unwrap_or_default();
    let six = procfs::net::tcp6().unwrap_or_default();
    let listens = |entry: &procfs::net::TcpNetEntry| {
        let address = entry.local_address.ip().to_canonical();
        let reached = address.is_unspecified() || address.to_string() == HOST;
        entry.state == TcpState::Listen && entry.local_address.port() == port && reached
    };
    four.iter().chain(&six).filter(|entry| listens(entry)).map(|entry| entry.inode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::process::holds_socket;
    use procfs::process::Process;

    #[test]
    fn a_listener_is_found_and_known_to_be_this_process() -> Result<(), Box<dyn std::error::Error>> {
        let listener = TcpListener::bind((HOST, 0))?;
        let inodes = listeners(listener.local_addr()?.port());
        assert_eq!(inodes.len(), 1);
        assert!(holds_socket(&[Process::myself()?], inodes[0]));
        assert!(!holds_socket(&[], inodes[0]));
        Ok(())
    }

    #[test]
    fn a_free_port_can_be_bound() -> std::io::Result<()> {
        TcpListener::bind((HOST, free_port()?)).map(drop)
    }
}
