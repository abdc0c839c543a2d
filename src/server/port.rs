//! Free ports for launches, and the listening sockets of a port.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Mutex, PoisonError};

use procfs::net::{TcpNetEntry, TcpState};
use rand::RngExt;
use socket2::{Domain, Socket, Type};

use super::HOST;
use super::sock_diag::{ListeningSocket, listening_sockets};

/// The ports of launches. They are below the range that Linux uses for outgoing connections, so that no connection
/// takes a port between the check here and the engine's own bind.
pub const PORT_RANGE: std::ops::Range<u16> = 20_000..32_000;

const ATTEMPTS: usize = 200;

/// [`HOST`] as an address.
const HOST_ADDRESS: Ipv4Addr = Ipv4Addr::LOCALHOST;

/// Returns a port that nothing listens on now. The engine binds it later. A process that binds it first is noticed,
/// because a server counts as ready only if the listener is one of its own processes.
///
/// # Errors
/// If no port of the range could be bound.
pub fn free_port() -> std::io::Result<u16> {
    Ports::take(1).map(|ports| ports.serving())
}

/// Consecutive ports of one launch, for its server and for communication between its processes. No other launch of this
/// process gets any of them until this is dropped.
#[derive(Debug, PartialEq, Eq)]
pub struct Ports {
    first: u16,
    count: u16,
}

/// The ports in use by launches of this process: first port and number of ports.
static TAKEN: Mutex<BTreeMap<u16, u16>> = Mutex::new(BTreeMap::new());

impl Ports {
    /// Takes `count` consecutive ports that nothing listens on now.
    ///
    /// # Errors
    /// If no such ports were found.
    pub fn take(count: u16) -> std::io::Result<Self> {
        let mut rng = rand::rng();
        let mut last = None;
        for _ in 0..ATTEMPTS {
            let first = rng.random_range(PORT_RANGE.start..PORT_RANGE.end - count);
            let ports = first..first + count;
            let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
            if taken.iter().any(|(other, length)| *other < ports.end && ports.start < other + length) {
                continue;
            }
            match ports.clone().try_for_each(check_free) {
                Ok(()) => {
                    taken.insert(first, count);
                    return Ok(Self { first, count });
                }
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| std::io::ErrorKind::AddrNotAvailable.into()))
    }

    /// Returns the server's port.
    #[must_use]
    pub fn serving(&self) -> u16 {
        self.first
    }

    /// Returns the first port for communication between the launch's processes; `None` if the launch has only one port.
    #[must_use]
    pub fn internal(&self) -> Option<u16> {
        (self.count > 1).then(|| self.first + 1)
    }

    /// Returns the first and the last port.
    #[must_use]
    pub fn ends(&self) -> (u16, u16) {
        (self.first, self.first + self.count - 1)
    }
}

impl Drop for Ports {
    fn drop(&mut self) {
        TAKEN.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.first);
    }
}

/// Checks that no socket is bound to a port, not even one that does not listen yet. vLLM binds its port at first, with
/// `SO_REUSEADDR`, and listens once the model is loaded. `TcpListener` sets this option as well, and then both sockets
/// can be bound.
fn check_free(port: u16) -> std::io::Result<()> {
    let address = SocketAddr::from((HOST_ADDRESS, port));
    Socket::new(Domain::for_address(address), Type::STREAM, None)?.bind(&address.into())
}

/// Returns the inodes of the sockets that accept connections to this port of [`HOST`].
pub(super) fn listening_inodes(port: u16) -> Vec<u64> {
    let sockets = listening_sockets(port).unwrap_or_else(|_| listening_entries(port));
    let reached = |socket: &ListeningSocket| {
        let address = socket.address.to_canonical();
        address.is_unspecified() || address.to_string() == HOST
    };
    sockets.into_iter().filter(reached).map(|socket| socket.inode).collect()
}

/// Like [`listening_sockets`], but reads the tables in `/proc`, for a kernel or sandbox without netlink.
fn listening_entries(port: u16) -> Vec<ListeningSocket> {
    let tables = [procfs::net::tcp(), procfs::net::tcp6()].map(Result::unwrap_or_default);
    let listens = |entry: &&TcpNetEntry| entry.state == TcpState::Listen && entry.local_address.port() == port;
    let socket = |entry: &TcpNetEntry| ListeningSocket { address: entry.local_address.ip(), inode: entry.inode };
    tables.iter().flatten().filter(listens).map(socket).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind;
    use std::net::TcpListener;

    use crate::server::process::holds_socket;
    use procfs::process::Process;

    #[test]
    fn a_listener_is_found_and_known_to_be_this_process() -> Result<(), Box<dyn std::error::Error>> {
        let listener = TcpListener::bind((HOST, 0))?;
        let inodes = listening_inodes(listener.local_addr()?.port());
        assert_eq!(inodes.len(), 1);
        let table = listening_entries(listener.local_addr()?.port());
        assert_eq!(listening_sockets(listener.local_addr()?.port()), Ok(table));
        assert!(holds_socket(&[Process::myself()?], inodes[0]));
        assert!(!holds_socket(&[], inodes[0]));
        Ok(())
    }

    #[test]
    fn a_port_is_reused_only_after_its_launch_returns_it() -> std::io::Result<()> {
        let taken: Vec<_> = (0..100).map(|_| Ports::take(32)).collect::<std::io::Result<_>>()?;
        let mut ends: Vec<_> = taken.iter().map(Ports::ends).collect();
        ends.sort_unstable();
        assert!(ends.windows(2).all(|pair| pair[0].1 < pair[1].0), "{ends:?}");
        assert!(
            ends.iter()
                .all(|(first, last)| PORT_RANGE.contains(first) && PORT_RANGE.contains(last) && last - first == 31)
        );
        assert_eq!(taken[0].internal(), Some(taken[0].serving() + 1));
        let listener = TcpListener::bind((HOST, taken[0].ends().1))?;
        let first = taken[0].serving();
        drop(taken);
        assert!(!TAKEN.lock().unwrap().contains_key(&first));
        drop(listener);
        assert_eq!(Ports::take(1)?.internal(), None);
        Ok(())
    }

    #[test]
    fn a_port_that_a_starting_server_has_bound_is_not_free() -> std::io::Result<()> {
        let starting = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        starting.set_reuse_address(true)?;
        starting.bind(&SocketAddr::from((HOST_ADDRESS, 0)).into())?;
        let port = starting.local_addr()?.as_socket().map_or(0, |address| address.port());
        assert_eq!(check_free(port).map_err(|error| error.kind()), Err(ErrorKind::AddrInUse));
        drop(starting);
        check_free(port)
    }

    #[test]
    fn a_free_port_can_be_bound() -> std::io::Result<()> {
        TcpListener::bind((HOST, free_port()?)).map(drop)
    }
}
