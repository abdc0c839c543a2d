//! A non-blocking TCP connection whose reads report the kernel's arrival time.

use std::io::{self, IoSliceMut, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::errno::Errno;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt::ReceiveTimestampns};
use nix::sys::time::TimeSpec;
use socket2::{Domain, Protocol, Type};

#[derive(Debug)]
pub(super) struct LoadSocket(socket2::Socket);

/// Read buffer. All connections of a load share one, because every read is handled at once.
#[derive(Debug)]
pub(super) struct ReceiveBuffer {
    pub(super) bytes: Vec<u8>,
    control: Vec<u8>,
}

impl ReceiveBuffer {
    /// Room for many events of a server that sends faster than it is read.
    const BYTES: usize = 256 << 10;

    pub(super) fn new() -> Self {
        Self { bytes: vec![0; Self::BYTES], control: nix::cmsg_space!(TimeSpec) }
    }
}

/// Result of one read.
#[derive(Clone, Copy, Debug)]
pub(super) struct SocketRead {
    /// Zero at the end of the stream.
    pub(super) length: usize,
    /// Arrival of the last of these bytes, in wall-clock time. `None` if the kernel does not report it.
    pub(super) stamp: Option<TimeSpec>,
}

impl LoadSocket {
    /// Begins to connect. The connection is established, or has failed, once the socket is writable.
    ///
    /// # Errors
    /// If no socket can be created, or the connection is refused at once.
    pub(super) fn connect(address: SocketAddr) -> io::Result<Self> {
        let socket = socket2::Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        // On kernels without this option, the load's own clock is used.
        let _ = setsockopt(&socket, ReceiveTimestampns, &true);
        match socket.connect(&address.into()) {
            Err(error) if error.raw_os_error() != Some(Errno::EINPROGRESS as i32) => Err(error),
            _ => Ok(Self(socket)),
        }
    }

    /// Returns the outcome of the connect, once the socket is writable.
    ///
    /// # Errors
    /// The reason that the connection failed.
    pub(super) fn connected(&self) -> io::Result<()> {
        self.0.take_error()?.map_or(Ok(()), Err)
    }

    /// # Errors
    /// `WouldBlock` if there is nothing to read.
    pub(super) fn read(&self, buffer: &mut ReceiveBuffer) -> io::Result<SocketRead> {
        let mut slices = [IoSliceMut::new(&mut buffer.bytes)];
        let control = Some(buffer.control.as_mut_slice());
        let message = recvmsg::<()>(self.0.as_raw_fd(), &mut slices, control, MsgFlags::empty())?;
        let stamp = message.cmsgs()?.find_map(|control| match control {
            ControlMessageOwned::ScmTimestampns(stamp) => Some(stamp),
            _ => None,
        });
        Ok(SocketRead { length: message.bytes, stamp })
    }

    /// # Errors
    /// `WouldBlock` if the kernel takes nothing now.
    pub(super) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        (&self.0).write(bytes)
    }
}

impl AsFd for LoadSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
