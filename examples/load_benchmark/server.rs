//! The reference clock: a server whose tokens are due at known instants.
//!
//! It has one thread, one `epoll` and one queue of due instants. Due tokens are written in batches, at most one every
//! [`TICK_NS`], so that the number of wake-ups does not grow with the number of streams. A token costs one write.
//!
//! **The server's own TTFT.** A request counts from the instant at which the kernel had its last byte
//! (`SO_TIMESTAMPNS`). The instant at which this program read it does not count. When 1,000 requests arrive at once,
//! the last of them waits until the others are read, and that wait is the server's. The first token is due `first`
//! after the arrival, so a wait shorter than `first` delays nothing. Both instants are reported. A token's instant is
//! taken just before its write, so that later delays are the kernel's and the client's.
//!
//! **Lateness.** Token `n` is due at `arrival + first + n * gap`, independent of the writes of earlier tokens, so that
//! lateness does not accumulate. The lateness of each token is recorded. A run with a late server is no evidence about
//! a client.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io::{ErrorKind, Write as _};
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage, setrlimit};
use nix::sys::socket::{Backlog, listen, setsockopt, sockopt};
use nix::sys::time::{TimeSpec, TimeValLike as _};

use crate::clock;
use crate::connection::{Connection, Reply, Request};
use crate::own::{Own, Seen, quantile};
use crate::wire::{self, Wire};

use setpoint::stats::to_f64;

/// The shortest time between two batches. On average a token is written late by half of it.
const TICK_NS: u64 = 200_000;
const READ_BYTES: usize = 256 * 1024;

#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Timing {
    /// From a request's last byte to its first token.
    #[arg(long, default_value_t = 50)]
    pub first_ms: u64,
    /// From a token to the next. 0: everything at once, as fast as the client takes it.
    #[arg(long, default_value_t = 20)]
    pub gap_ms: u64,
    /// Tokens of each reply, whatever is asked for.
    #[arg(long, default_value_t = 200)]
    pub tokens: u32,
    /// What the usage event says of the prompt's length.
    #[arg(long, default_value_t = 32)]
    pub prompt_tokens: u32,
}

struct Server {
    epoll: Epoll,
    timing: Timing,
    wire: Wire,
    /// Indexed by file descriptor.
    connections: Vec<Option<Connection>>,
    opened: u32,
    /// Instant, descriptor, number of the connection.
    due: BinaryHeap<Reverse<(u64, usize, u32)>>,
    /// Fire hoses whose client accepts more bytes.
    hoses: VecDeque<(usize, u32)>,
    own: Own,
    late_us: Vec<u32>,
}

/// Serves until the process is killed. The first line on standard output is the port.
pub(crate) fn serve(timing: Timing) -> Result<(), Box<dyn std::error::Error>> {
    // The server ends with the benchmark, even if that is killed.
    nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL)?;
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    // Thousands of clients connect at once. Accepted connections inherit both options.
    listen(&listener, Backlog::MAXALLOWABLE)?;
    setsockopt(&listener, sockopt::TcpNoDelay, &true)?;
    setsockopt(&listener, sockopt::ReceiveTimestampns, &true)?;
    listener.set_nonblocking(true)?;
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    let key = descriptor(&listener);
    epoll.add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, key as u64))?;
    writeln!(std::io::stdout(), "{}", listener.local_addr()?.port())?;

    let wire = Wire::new(timing.tokens, timing.prompt_tokens);
    let mut server = Server {
        epoll,
        timing,
        wire,
        connections: Vec::new(),
        opened: 0,
        due: BinaryHeap::new(),
        hoses: VecDeque::new(),
        own: Own { kernel_stamps: true, ..Own::default() },
        late_us: Vec::new(),
    };
    let mut buffer = vec![0; READ_BYTES];
    let mut control = nix::cmsg_space!(TimeSpec);
    let mut events = [EpollEvent::empty(); 256];
    loop {
        let tick = clock::now();
        server.write_due(tick);
        server.write_hoses();
        server.wait(tick)?;
        let count = server.epoll.wait(&mut events, EpollTimeout::ZERO)?;
        for event in &events[..count] {
            let fd = usize::try_from(event.data())?;
            if fd == key {
                server.accept(&listener)?;
            } else {
                server.on_ready(fd, event.events(), &mut buffer, &mut control);
            }
        }
    }
}

impl Server {
    /// Sleeps until a token is due, but at least until the next tick, or until a client reads or writes.
    fn wait(&self, tick: u64) -> nix::Result<()> {
        let until = if self.hoses.is_empty() { self.due.peek().map(|Reverse((at, ..))| *at) } else { Some(0) };
        let timeout = match until {
            Some(0) => TimeSpec::nanoseconds(0),
            Some(at) => {
                let left = at.max(tick + TICK_NS).saturating_sub(clock::now());
                TimeSpec::from_duration(Duration::from_nanos(left))
            }
            None => TimeSpec::seconds(3600),
        };
        let mut polled = [PollFd::new(self.epoll.0.as_fd(), PollFlags::POLLIN)];
        match ppoll(&mut polled, Some(timeout), None) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn accept(&mut self, listener: &TcpListener) -> std::io::Result<()> {
        loop {
            match listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(true)?;
                    let fd = descriptor(&stream);
                    let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLET;
                    self.epoll.add(&stream, EpollEvent::new(flags, fd as u64))?;
                    if self.connections.len() <= fd {
                        self.connections.resize_with(fd + 1, || None);
                    }
                    self.opened += 1;
                    self.connections[fd] = Some(Connection::new(stream, self.opened));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn on_ready(&mut self, fd: usize, ready: EpollFlags, buffer: &mut [u8], control: &mut [u8]) {
        let Some(connection) = self.connections.get_mut(fd).and_then(Option::as_mut) else { return };
        if ready.contains(EpollFlags::EPOLLOUT) {
            let flushed = connection.flush();
            let hose = connection.reply.as_ref().is_some_and(|reply| reply.first.is_some()) && self.timing.gap_ms == 0;
            match flushed {
                Err(_) => return self.close(fd),
                Ok(true) if connection.close && connection.reply.is_none() => return self.close(fd),
                Ok(true) if hose => self.hoses.push_back((fd, connection.number)),
                Ok(_) => {}
            }
        }
        if !ready.intersects(EpollFlags::EPOLLIN | EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR) {
            return;
        }
        match connection.read(buffer, control) {
            Ok(None) => {}
            Ok(Some(request)) => self.answer(fd, &request),
            Err(_) => self.close(fd),
        }
    }

    fn answer(&mut self, fd: usize, request: &Request) {
        let models = r#"{"object":"list","data":[{"id":"m","object":"model","created":1700000000,"owned_by":"benchmark","max_model_len":1000000}]}"#;
        let json = "application/json";
        let reply = match request.line.as_str() {
            "POST /v1/completions" => None,
            "GET /health" => Some(wire::reply("200 OK", "text/plain", "")),
            "GET /v1/models" => Some(wire::reply("200 OK", json, models)),
            "GET /own" => Some(match serde_json::to_string(&self.take_own()) {
                Ok(own) => wire::reply("200 OK", json, &own),
                Err(error) => wire::reply("500 Internal Server Error", "text/plain", &error.to_string()),
            }),
            _ => Some(wire::reply("404 Not Found", json, r#"{"detail":"Not Found"}"#)),
        };
        let Some(connection) = &mut self.connections[fd] else { return };
        if let Some(reply) = reply {
            let done = connection.send(&reply);
            if !matches!(done, Ok(all) if !(all && connection.close)) {
                self.connections[fd] = None;
            }
            return;
        }
        self.own.kernel_stamps &= request.stamped;
        let first = request.arrived + self.timing.first_ms * 1_000_000;
        self.due.push(Reverse((first, fd, connection.number)));
        connection.reply = Some(Reply { arrived: request.arrived, read: request.read, first: None, sent: 0 });
        // Like vLLM, it sends the status as soon as it has parsed the request.
        if connection.send(wire::HEAD).is_err() {
            self.close(fd);
        }
    }

    /// Writes a token for every due instant.
    fn write_due(&mut self, now: u64) {
        while let Some(&Reverse((at, fd, number))) = self.due.peek() {
            if at > now {
                break;
            }
            self.due.pop();
            let Some(connection) = self.connections[fd].as_mut().filter(|connection| connection.number == number)
            else {
                continue;
            };
            let Some(mut reply) = connection.reply.take() else { continue };
            let written = clock::now();
            self.late_us.push(u32::try_from((written - at) / 1000).unwrap_or(u32::MAX));
            let first = *reply.first.get_or_insert(written);
            if self.timing.gap_ms == 0 {
                connection.reply = Some(reply);
                self.hoses.push_back((fd, number));
                continue;
            }
            reply.sent += 1;
            let last = reply.sent == self.timing.tokens as usize;
            let sent = connection.send(if last { &self.wire.tail } else { &self.wire.token });
            if last {
                let Reply { arrived, read, .. } = reply;
                let tokens = self.timing.tokens;
                let seen = Seen { arrived_ns: arrived, read_ns: read, first_ns: first, last_ns: written, tokens };
                self.own.requests.push(seen);
            } else {
                let gap = self.timing.gap_ms * 1_000_000;
                let next = reply.arrived + self.timing.first_ms * 1_000_000 + gap * reply.sent as u64;
                connection.reply = Some(reply);
                self.due.push(Reverse((next, fd, number)));
            }
            match sent {
                Ok(all) => self.own.blocked += u64::from(!all),
                Err(_) => self.close(fd),
            }
        }
    }

    /// Makes one write for each fire hose whose client still accepts bytes.
    fn write_hoses(&mut self) {
        for _ in 0..self.hoses.len() {
            let Some((fd, number)) = self.hoses.pop_front() else { break };
            let Some(connection) = self.connections[fd].as_mut().filter(|connection| connection.number == number)
            else {
                continue;
            };
            let Some(mut reply) = connection.reply.take() else { continue };
            let token = self.wire.token.len();
            let left = token * (self.timing.tokens as usize - 1) - reply.sent;
            if left == 0 {
                let (first, last) = (reply.first.unwrap_or(reply.read), clock::now());
                let Reply { arrived, read, .. } = reply;
                let tokens = self.timing.tokens;
                let seen = Seen { arrived_ns: arrived, read_ns: read, first_ns: first, last_ns: last, tokens };
                self.own.requests.push(seen);
                if connection.send(&self.wire.tail).is_err() {
                    self.close(fd);
                }
                continue;
            }
            let from = reply.sent % token;
            let bytes = &self.wire.block[from..(from + left).min(self.wire.block.len())];
            // The head may still be buffered.
            let written = connection.flush().and_then(|all| if all { connection.write(bytes) } else { Ok(0) });
            reply.sent += *written.as_ref().unwrap_or(&0);
            connection.reply = Some(reply);
            match written {
                // The write continues after the client has read.
                Ok(count) if count < bytes.len() => {}
                Ok(_) => self.hoses.push_back((fd, number)),
                Err(_) => self.close(fd),
            }
        }
    }

    fn close(&mut self, fd: usize) {
        let closed = self.connections[fd].take();
        self.own.aborted += u64::from(closed.is_some_and(|connection| connection.reply.is_some()));
    }

    fn take_own(&mut self) -> Own {
        let mut late = std::mem::take(&mut self.late_us);
        late.sort_unstable();
        let mut own = std::mem::replace(&mut self.own, Own { kernel_stamps: true, ..Own::default() });
        (own.late_p50_us, own.late_p99_us) = (quantile(&late, 0.5), quantile(&late, 0.99));
        own.late_max_us = late.last().copied().unwrap_or(0);
        (own.cpu_s, own.max_rss_mb) = usage(UsageWho::RUSAGE_SELF);
        own
    }
}

fn descriptor(of: &impl AsRawFd) -> usize {
    usize::try_from(of.as_raw_fd()).unwrap_or(usize::MAX)
}

/// Returns the CPU seconds, user and system, and the largest resident set of a process in MB of a million bytes.
pub(crate) fn usage(who: UsageWho) -> (f64, f64) {
    let Ok(usage) = getrusage(who) else { return (f64::NAN, f64::NAN) };
    let cpu = usage.user_time() + usage.system_time();
    let rss_kib = u32::try_from(usage.max_rss()).unwrap_or(u32::MAX);
    let cpu_s = to_f64(cpu.num_microseconds()) / 1e6;
    (cpu_s, f64::from(rss_kib) * 1024.0 / 1e6)
}
