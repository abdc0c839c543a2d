//! One connection: its writes, its reads and the state of its exchange.

use std::io;

use nix::sys::epoll::EpollFlags;

use super::RequestError;
use super::clock::{ArrivalClock, Nanos};
use super::endpoint::ServerEndpoint;
use super::exchange::HttpExchange;
use super::http::ResponseReader;
use super::lag::LoopLag;
use super::socket::{LoadSocket, ReceiveBuffer};
use super::tls::TlsSession;

/// A connection to the server with at most one exchange at a time.
#[derive(Debug)]
pub(super) struct LoadConnection {
    pub(super) socket: LoadSocket,
    tls: Option<TlsSession>,
    connected: bool,
    /// Whether a write failed. The request is lost, but a response with the reason may still arrive.
    write_failed: bool,
    pub(super) response: ResponseReader,
    pub(super) exchange: Option<HttpExchange>,
    /// When the connection became idle.
    pub(super) idle_since: Nanos,
    /// Whether it has carried a whole exchange. The server may then close it at any time.
    pub(super) has_carried_exchange: bool,
    /// Events registered with `epoll`.
    pub(super) watched: EpollFlags,
    /// Identifier registered with `epoll`.
    pub(super) mark: u64,
}

/// State of the loop that a ready connection borrows.
#[derive(Debug)]
pub(super) struct LoopState {
    pub(super) clock: ArrivalClock,
    /// When `epoll` last returned.
    pub(super) woken: Nanos,
    buffer: ReceiveBuffer,
    pub(super) lag: LoopLag,
    /// Content chunks of the current phase.
    pub(super) chunks: u64,
}

impl LoopState {
    pub(super) fn new(clock: ArrivalClock) -> Self {
        Self { clock, woken: 0, buffer: ReceiveBuffer::new(), lag: LoopLag::default(), chunks: 0 }
    }

    /// Resets the counters at the start of the measurement window.
    pub(super) fn begin(&mut self) {
        (self.lag, self.chunks) = (LoopLag::default(), 0);
    }
}

/// State of an exchange after its connection was served.
#[derive(Debug)]
pub(super) enum ExchangeStep {
    Pending,
    /// The response is whole.
    Complete,
    /// The connection is unusable.
    Broken(RequestError),
}

impl LoadConnection {
    /// # Errors
    /// [`RequestError::Connect`] if the socket or its TLS session cannot be created.
    pub(super) fn open(endpoint: &ServerEndpoint) -> Result<Self, RequestError> {
        let failed = |error: io::Error| RequestError::Connect(error.to_string());
        let tls = endpoint.tls.as_ref().map(super::tls::TlsSettings::session).transpose().map_err(failed)?;
        Ok(Self {
            socket: LoadSocket::connect(endpoint.address).map_err(failed)?,
            tls,
            connected: false,
            write_failed: false,
            response: ResponseReader::default(),
            exchange: None,
            idle_since: 0,
            has_carried_exchange: false,
            watched: EpollFlags::empty(),
            mark: 0,
        })
    }

    pub(super) fn is_connected(&self) -> bool {
        self.connected
    }

    /// Returns whether a request can be sent at once.
    pub(super) fn is_ready(&self) -> bool {
        self.connected && self.tls.as_ref().is_none_or(TlsSession::is_ready)
    }

    /// Begins an exchange. The connection must not have one.
    pub(super) fn begin(&mut self, exchange: HttpExchange) -> ExchangeStep {
        self.response = ResponseReader::default();
        self.write_failed = false;
        if let Some(tls) = &mut self.tls
            && let Err(error) = tls.seal(&exchange.request)
        {
            let step = ExchangeStep::Broken(RequestError::Connect(error.to_string()));
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
        if !self.connected || unsent && !self.write_failed {
            EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT
        } else {
            EpollFlags::EPOLLIN
        }
    }

    /// Writes as much as the socket takes. Does nothing before the connection is established.
    pub(super) fn write(&mut self) -> ExchangeStep {
        if !self.connected {
            return ExchangeStep::Pending;
        }
        if self.write_failed {
            return ExchangeStep::Pending;
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
        self.write_failed = written.is_err();
        ExchangeStep::Pending
    }

    /// Handles the end of the connect.
    pub(super) fn finish_connect(&mut self) -> ExchangeStep {
        match self.socket.connected() {
            Ok(()) => {
                self.connected = true;
                self.write()
            }
            Err(error) => ExchangeStep::Broken(RequestError::Connect(error.to_string())),
        }
    }

    /// Reads once from the socket, and handles the bytes.
    pub(super) fn read(&mut self, desk: &mut LoopState) -> ExchangeStep {
        let read = match self.socket.read(&mut desk.buffer) {
            Ok(read) => read,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                return ExchangeStep::Pending;
            }
            Err(error) if self.connected => return ExchangeStep::Broken(RequestError::Reset(error.to_string())),
            Err(error) => return ExchangeStep::Broken(RequestError::Connect(error.to_string())),
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
                Err(error) if self.response.started => {
                    return ExchangeStep::Broken(RequestError::Reset(error.to_string()));
                }
                Err(error) => return ExchangeStep::Broken(RequestError::Connect(error.to_string())),
            },
        };
        let Some(exchange) = &mut self.exchange else {
            // Between two exchanges only messages of TLS may arrive.
            return if over {
                self.end_of_stream()
            } else if bytes.is_empty() {
                self.write()
            } else {
                ExchangeStep::Broken(RequestError::Protocol("bytes without a request".to_owned()))
            };
        };
        exchange.last = arrival;
        let mut chunks = 0;
        if let Err(error) = self.response.feed(bytes, |status, body| chunks += exchange.feed(status, body)) {
            return ExchangeStep::Broken(RequestError::Protocol(error.to_string()));
        }
        desk.chunks += chunks as u64;
        if self.response.is_done() {
            return ExchangeStep::Complete;
        }
        if over {
            return self.end_of_stream();
        }
        if self.tls.is_some() { self.write() } else { ExchangeStep::Pending }
    }

    fn end_of_stream(&self) -> ExchangeStep {
        if self.exchange.is_some() && self.response.ends_with_connection() {
            return ExchangeStep::Complete;
        }
        ExchangeStep::Broken(RequestError::Reset("the server closed the connection".to_owned()))
    }

    /// Returns whether the connection may carry another exchange.
    pub(super) fn is_reusable(&self) -> bool {
        let sent = self.exchange.as_ref().is_none_or(|exchange| exchange.written == exchange.request.len());
        let over = self.tls.as_ref().is_some_and(TlsSession::is_over);
        self.response.is_reusable() && sent && !self.write_failed && !over
    }
}

/// Writes as much of the request as the socket takes.
fn send(socket: &LoadSocket, exchange: &mut HttpExchange) -> io::Result<()> {
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
