//! One connection: its writes, its reads and the state of its exchange.

use std::io;

use nix::sys::epoll::EpollFlags;

use super::Error;
use super::clock::{Clock, Nanos};
use super::endpoint::Endpoint;
use super::exchange::Exchange;
use super::http::Response;
use super::lag::Lag;
use super::socket::{Buffer, Socket};
use super::tls::Session;

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) socket: Socket,
    tls: Option<Session>,
    connected: bool,
    /// Whether a write failed. The request is lost, but a response with the reason may still arrive.
    deaf: bool,
    pub(super) response: Response,
    pub(super) exchange: Option<Exchange>,
    /// When the connection became idle.
    pub(super) idle: Nanos,
    /// Whether it has carried a whole exchange. The server may then close it at any time.
    pub(super) used: bool,
    /// Events registered with `epoll`.
    pub(super) watched: EpollFlags,
    /// Identifier registered with `epoll`.
    pub(super) mark: u64,
}

/// State of the loop that a ready connection borrows.
#[derive(Debug)]
pub(super) struct Desk {
    pub(super) clock: Clock,
    /// When `epoll` last returned.
    pub(super) woken: Nanos,
    buffer: Buffer,
    pub(super) lag: Lag,
    /// Content chunks of the current phase.
    pub(super) chunks: u64,
}

impl Desk {
    pub(super) fn new(clock: Clock) -> Self {
        Self { clock, woken: 0, buffer: Buffer::new(), lag: Lag::default(), chunks: 0 }
    }

    /// Resets the counters at the start of a phase.
    pub(super) fn begin(&mut self) {
        (self.lag, self.chunks) = (Lag::default(), 0);
    }
}

/// State of an exchange after its connection was served.
#[derive(Debug)]
pub(super) enum Step {
    Pending,
    /// The response is whole.
    Whole,
    /// The connection is unusable.
    Broken(Error),
}

impl Connection {
    /// # Errors
    /// [`Error::Connect`] if the socket or its TLS session cannot be created.
    pub(super) fn open(endpoint: &Endpoint) -> Result<Self, Error> {
        let failed = |error: io::Error| Error::Connect(error.to_string());
        let tls = endpoint.tls.as_ref().map(super::tls::Tls::session).transpose().map_err(failed)?;
        Ok(Self {
            socket: Socket::connect(endpoint.address).map_err(failed)?,
            tls,
            connected: false,
            deaf: false,
            response: Response::default(),
            exchange: None,
            idle: 0,
            used: false,
            watched: EpollFlags::empty(),
            mark: 0,
        })
    }

    pub(super) fn is_connected(&self) -> bool {
        self.connected
    }

    /// Returns whether a request can be sent at once.
    pub(super) fn is_ready(&self) -> bool {
        self.connected && self.tls.as_ref().is_none_or(Session::is_ready)
    }

    /// Begins an exchange. The connection must not have one.
    pub(super) fn begin(&mut self, exchange: Exchange) -> Step {
        self.response = Response::default();
        self.deaf = false;
        if let Some(tls) = &mut self.tls
            && let Err(error) = tls.seal(&exchange.request)
        {
            let step = Step::Broken(Error::Connect(error.to_string()));
            self.exchange = Some(exchange);
            return step;
        }
        self.exchange = Some(exchange);
        self.write()
    }

    /// Returns the events to watch.
    pub(super) fn interest(&self) -> EpollFlags {
        let unsent = match &self.tls {
            Some(tls) => tls.wants_write(),
            None => self.exchange.as_ref().is_some_and(|exchange| exchange.written < exchange.request.len()),
        };
        if !self.connected || unsent && !self.deaf {
            EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT
        } else {
            EpollFlags::EPOLLIN
        }
    }

    /// Writes as much as the socket takes. Does nothing before the connection is established.
    pub(super) fn write(&mut self) -> Step {
        if !self.connected {
            return Step::Pending;
        }
        if self.deaf {
            return Step::Pending;
        }
        let written = match (&mut self.tls, &mut self.exchange) {
            (Some(tls), exchange) => tls.flush(&self.socket).map(|out| {
                if let Some(exchange) = exchange.as_mut().filter(|_| out) {
                    exchange.written = exchange.request.len();
                }
            }),
            (None, Some(exchange)) => send(&self.socket, exchange),
            (None, None) => Ok(()),
        };
        // The server may have sent an error response before it closed. It is still to be read.
        self.deaf = written.is_err();
        Step::Pending
    }

    /// Handles the end of the connect.
    pub(super) fn finish_connect(&mut self) -> Step {
        match self.socket.connected() {
            Ok(()) => {
                self.connected = true;
                self.write()
            }
            Err(error) => Step::Broken(Error::Connect(error.to_string())),
        }
    }

    /// Reads once from the socket, and handles the bytes.
    pub(super) fn read(&mut self, desk: &mut Desk) -> Step {
        let read = match self.socket.read(&mut desk.buffer) {
            Ok(read) => read,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                return Step::Pending;
            }
            Err(error) if self.connected => return Step::Broken(Error::Reset(error.to_string())),
            Err(error) => return Step::Broken(Error::Connect(error.to_string())),
        };
        if read.length == 0 {
            return self.end_of_stream();
        }
        let now = desk.clock.now();
        let earliest = self.exchange.as_ref().map_or(now, |exchange| exchange.last);
        let arrival = read.stamp.map_or(now, |stamp| desk.clock.arrival(stamp, earliest, now));
        if self.exchange.is_some() {
            let since = if read.stamp.is_some() { arrival } else { desk.woken };
            desk.lag.read(read.stamp.is_some(), now.saturating_sub(since));
        }
        let bytes = &desk.buffer.bytes[..read.length];
        let (bytes, over) = match &mut self.tls {
            None => (bytes, false),
            Some(tls) => match tls.open(bytes) {
                Ok(opened) => opened,
                Err(error) if self.response.started => return Step::Broken(Error::Reset(error.to_string())),
                Err(error) => return Step::Broken(Error::Connect(error.to_string())),
            },
        };
        let Some(exchange) = &mut self.exchange else {
            // Between two exchanges only messages of TLS may arrive.
            return if over {
                self.end_of_stream()
            } else if bytes.is_empty() {
                self.write()
            } else {
                Step::Broken(Error::Protocol("unasked bytes".to_owned()))
            };
        };
        exchange.last = arrival;
        let mut chunks = 0;
        if let Err(error) = self.response.feed(bytes, |status, body| chunks += exchange.feed(status, body)) {
            return Step::Broken(Error::Protocol(error.to_string()));
        }
        desk.chunks += chunks as u64;
        if self.response.is_done() {
            return Step::Whole;
        }
        if over {
            return self.end_of_stream();
        }
        if self.tls.is_some() { self.write() } else { Step::Pending }
    }

    fn end_of_stream(&self) -> Step {
        if self.exchange.is_some() && self.response.ends_with_connection() {
            return Step::Whole;
        }
        Step::Broken(Error::Reset("the server closed the connection".to_owned()))
    }

    /// Returns whether the connection may carry another exchange.
    pub(super) fn keeps(&self) -> bool {
        let sent = self.exchange.as_ref().is_none_or(|exchange| exchange.written == exchange.request.len());
        let over = self.tls.as_ref().is_some_and(Session::is_over);
        self.response.keeps() && sent && !self.deaf && !over
    }
}

/// Writes as much of the request as the socket takes.
fn send(socket: &Socket, exchange: &mut Exchange) -> io::Result<()> {
    while exchange.written < exchange.request.len() {
        match socket.write(&exchange.request[exchange.written..]) {
            Ok(written) => exchange.written += written,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
