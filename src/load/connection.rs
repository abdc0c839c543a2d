//! One connection: what to write, what was read, and where its exchange stands.

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
    /// A write was refused: the request is lost, but the server may have said why.
    deaf: bool,
    pub(super) response: Response,
    pub(super) exchange: Option<Exchange>,
    /// Since when it has been idle.
    pub(super) idle: Nanos,
    /// It has carried a whole exchange, so that the server may close it at any time.
    pub(super) used: bool,
    /// What the poll was last told to watch.
    pub(super) watched: EpollFlags,
    /// What the poll calls it.
    pub(super) mark: u64,
}

/// What the loop lends to a connection that is ready.
#[derive(Debug)]
pub(super) struct Desk {
    pub(super) clock: Clock,
    /// When the loop was last told of events.
    pub(super) woken: Nanos,
    buffer: Buffer,
    pub(super) lag: Lag,
    /// Content chunks of the present phase.
    pub(super) chunks: u64,
}

impl Desk {
    pub(super) fn new(clock: Clock) -> Self {
        Self { clock, woken: 0, buffer: Buffer::new(), lag: Lag::default(), chunks: 0 }
    }

    /// A phase begins.
    pub(super) fn begin(&mut self) {
        (self.lag, self.chunks) = (Lag::default(), 0);
    }
}

/// Where an exchange stands after its connection was looked at.
#[derive(Debug)]
pub(super) enum Step {
    Pending,
    /// The response is whole.
    Whole,
    /// The connection is of no more use.
    Broken(Error),
}

impl Connection {
    /// # Errors
    /// [`Error::Connect`]
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

    /// Whether a request can be sent on it at once.
    pub(super) fn is_ready(&self) -> bool {
        self.connected && self.tls.as_ref().is_none_or(Session::is_ready)
    }

    /// Begins an exchange. The connection has none.
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

    /// What the poll has to watch.
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

    /// The socket can be written, or could not be connected.
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
        // The server may have answered, with an error, before it closed: that is still to be read.
        self.deaf = written.is_err();
        Step::Pending
    }

    /// The connect has ended.
    pub(super) fn finish_connect(&mut self) -> Step {
        match self.socket.connected() {
            Ok(()) => {
                self.connected = true;
                self.write()
            }
            Err(error) => Step::Broken(Error::Connect(error.to_string())),
        }
    }

    /// The socket can be read.
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
            // Only TLS has something to say between two exchanges.
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

    /// Whether it may carry another exchange.
    pub(super) fn keeps(&self) -> bool {
        let sent = self.exchange.as_ref().is_none_or(|exchange| exchange.written == exchange.request.len());
        let over = self.tls.as_ref().is_some_and(Session::is_over);
        self.response.keeps() && sent && !self.deaf && !over
    }
}

/// Hands the socket as much of the request as it takes.
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
