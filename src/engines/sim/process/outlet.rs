//! Sockets with two writers. The web server writes heads, whole replies and the ends of streams. The engine's thread
//! writes the tokens in between, at their due instant and without a task for each stream.
//!
//! The engine's thread may write only while the web server has no unwritten data, so the pieces left to the web server
//! are counted. The engine increases the count with each update that it leaves to the server. A flush by the server
//! decreases it by the pieces that the stream has handed over by then. The web server flushes only after it has written
//! all its bytes.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};

/// The shared state of web server and engine's thread for one connection.
#[derive(Debug)]
pub(super) struct TokenOutlet {
    socket: TcpStream,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Pieces of the present reply that the web server has received or will receive, and has not written.
    queued: usize,
    /// The part of `queued` that the web server has received.
    received: usize,
    /// Bytes from the engine's thread that the socket has not accepted yet.
    backlog: Vec<u8>,
    /// Wakes the web server's task.
    waker: Option<Waker>,
}

impl TokenOutlet {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a reply. The web server has to write `pieces` pieces first, including the head.
    pub(super) fn begin(&self, pieces: usize) {
        let mut state = self.state();
        (state.queued, state.received) = (pieces, 0);
    }

    /// Records that the web server has received a piece or the head.
    pub(super) fn record_received(&self) {
        self.state().received += 1;
    }

    /// Records that the web server will have to write a piece.
    pub(super) fn queue(&self) {
        self.state().queued += 1;
    }

    /// Writes a piece at once, from any thread. Returns `false` if the web server has to write first.
    pub(super) fn write(&self, piece: &[u8]) -> bool {
        let mut state = self.state();
        if state.queued > 0 {
            return false;
        }
        let written = if state.backlog.is_empty() {
            match self.socket.try_write(piece) {
                Ok(written) => written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
                // The web server detects by itself that the client has disconnected.
                Err(_) => return true,
            }
        } else {
            0
        };
        if written < piece.len() {
            state.backlog.extend_from_slice(&piece[written..]);
            if let Some(waker) = state.waker.take() {
                waker.wake();
            }
        }
        true
    }

    /// Writes the backlog of the engine's thread.
    fn drain(&self, state: &mut State, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !state.backlog.is_empty() {
            ready!(self.socket.poll_write_ready(context))?;
            match self.socket.try_write(&state.backlog) {
                Ok(written) => drop(state.backlog.drain(..written)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_write(
        &self,
        context: &mut Context<'_>,
        mut write: impl FnMut(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        let mut state = self.state();
        ready!(self.drain(&mut state, context))?;
        loop {
            ready!(self.socket.poll_write_ready(context))?;
            match write(&self.socket) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return Poll::Ready(done),
            }
        }
    }
}

/// The web server's handle of a connection.
#[derive(Debug)]
pub(super) struct OutletConnection(Arc<TokenOutlet>);

impl AsyncRead for OutletConnection {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let outlet = &self.0;
        {
            let mut state = outlet.state();
            if !state.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
                state.waker = Some(context.waker().clone());
            }
        }
        loop {
            ready!(outlet.socket.poll_read_ready(context))?;
            match outlet.socket.try_read(buffer.initialize_unfilled()) {
                Ok(count) => {
                    buffer.advance(count);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for OutletConnection {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.0.poll_write(context, |socket| socket.try_write(bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.0.poll_write(context, |socket| socket.try_write_vectored(parts))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.0.state();
        ready!(self.0.drain(&mut state, context))?;
        state.queued = state.queued.saturating_sub(state.received);
        state.received = 0;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.as_ref().0.drain(&mut self.0.state(), context))?;
        Poll::Ready(socket2::SockRef::from(&self.0.socket).shutdown(std::net::Shutdown::Write))
    }
}

/// A listener whose connections send each token at once (`TCP_NODELAY`).
#[derive(Debug)]
pub(super) struct OutletListener(pub(super) TcpListener);

impl Listener for OutletListener {
    type Io = OutletConnection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (OutletConnection, SocketAddr) {
        let (socket, address) = Listener::accept(&mut self.0).await;
        // An error means that the connection has ended, and the first read detects that.
        let _ = socket.set_nodelay(true);
        (OutletConnection(Arc::new(TokenOutlet { socket, state: Mutex::default() })), address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

/// The connection as handlers receive it.
#[derive(Clone, Debug)]
pub(super) struct OutletHandle(pub(super) Arc<TokenOutlet>);

impl Connected<IncomingStream<'_, OutletListener>> for OutletHandle {
    fn connect_info(stream: IncomingStream<'_, OutletListener>) -> Self {
        Self(Arc::clone(&stream.io().0))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    async fn pair() -> (OutletConnection, TcpStream) {
        let mut door = OutletListener(TcpListener::bind("127.0.0.1:0").await.unwrap());
        let client = TcpStream::connect(Listener::local_addr(&door).unwrap()).await.unwrap();
        (Listener::accept(&mut door).await.0, client)
    }

    #[tokio::test]
    async fn the_engine_writes_only_while_the_web_server_has_nothing_left() {
        let (mut server, mut client) = pair().await;
        let outlet = Arc::clone(&server.0);
        outlet.begin(1);
        assert!(!outlet.write(b"early"));
        server.flush().await.unwrap();
        assert!(!outlet.write(b"early"), "a flush before the head was handed over says nothing");
        outlet.record_received();
        server.write_all(b"head ").await.unwrap();
        assert!(!outlet.write(b"early"));
        server.flush().await.unwrap();
        assert!(outlet.write(b"one "));
        outlet.queue();
        assert!(!outlet.write(b"late"), "what the server is to write comes first");
        outlet.record_received();
        server.write_all(b"two ").await.unwrap();
        server.flush().await.unwrap();
        assert!(outlet.write(b"three"));
        let mut seen = [0; 18];
        client.read_exact(&mut seen).await.unwrap();
        assert_eq!(&seen, b"head one two three");
    }

    #[tokio::test]
    async fn a_slow_client_gets_its_data_later_and_in_order() {
        let (mut server, mut client) = pair().await;
        let outlet = Arc::clone(&server.0);
        let piece = vec![7; 100_000];
        let mut pieces = 0;
        while outlet.state().backlog.is_empty() {
            assert!(outlet.write(&piece));
            pieces += 1;
            assert!(pieces < 1000, "100 MB fit into no socket");
        }
        let reader = tokio::spawn(async move {
            let mut seen = vec![0; pieces * 100_000 + 4];
            client.read_exact(&mut seen).await.unwrap();
            seen
        });
        server.write_all(b"last").await.unwrap();
        server.flush().await.unwrap();
        let seen = reader.await.unwrap();
        assert!(seen[..pieces * 100_000].iter().all(|byte| *byte == 7));
        assert_eq!(&seen[pieces * 100_000..], b"last");
    }
}
