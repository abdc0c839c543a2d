//! One client's connection: HTTP/1.1 with one request at a time, and a buffer for bytes that the client has not read.

use std::io::{ErrorKind, IoSliceMut, Read as _, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};

use crate::clock;

pub(crate) struct Connection {
    stream: TcpStream,
    /// A number that distinguishes it from earlier connections with the same descriptor.
    pub number: u32,
    head: Vec<u8>,
    /// The request and the outstanding bytes of its body, once its head is complete.
    body: Option<(Request, usize)>,
    /// Bytes that could not be written yet.
    out: Vec<u8>,
    pub reply: Option<Reply>,
    /// Whether the connection closes after the current reply.
    pub close: bool,
}

/// A request whose last byte has been read.
pub(crate) struct Request {
    /// Method and path, as in `GET /health`.
    pub line: String,
    pub arrived: u64,
    pub read: u64,
    /// Whether the kernel reported the time of arrival.
    pub stamped: bool,
    close: bool,
}

/// A stream of tokens in progress.
pub(crate) struct Reply {
    pub arrived: u64,
    pub read: u64,
    pub first: Option<u64>,
    /// With a gap: the number of tokens. Without (fire hose): the bytes of the tokens before the last.
    pub sent: usize,
}

impl Connection {
    pub(crate) fn new(stream: TcpStream, number: u32) -> Self {
        Self { stream, number, head: Vec::new(), body: None, out: Vec::new(), reply: None, close: false }
    }

    /// Reads the available bytes. Bodies are counted and not stored.
    ///
    /// # Errors
    /// If the connection is closed or the request is malformed.
    pub(crate) fn read(&mut self, buffer: &mut [u8], control: &mut [u8]) -> std::io::Result<Option<Request>> {
        let mut whole = None;
        loop {
            let (count, stamp) = {
                let mut parts = [IoSliceMut::new(buffer)];
                let flags = MsgFlags::MSG_DONTWAIT;
                match recvmsg::<()>(self.stream.as_raw_fd(), &mut parts, Some(control), flags) {
                    Ok(message) => {
                        let stamp = message.cmsgs()?.find_map(|part| match part {
                            ControlMessageOwned::ScmTimestampns(stamp) => Some(stamp),
                            _ => None,
                        });
                        (message.bytes, stamp)
                    }
                    Err(Errno::EAGAIN) => return Ok(whole),
                    Err(Errno::EINTR) => continue,
                    Err(error) => return Err(error.into()),
                }
            };
            if count == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            if whole.is_some() || self.reply.is_some() {
                return Err(std::io::Error::new(ErrorKind::InvalidData, "a request before the reply to the last one"));
            }
            if let Some(mut request) = self.take(&buffer[..count])? {
                request.read = clock::now();
                request.stamped = stamp.is_some();
                request.arrived = stamp.map_or(request.read, clock::from_realtime);
                self.close = request.close;
                whole = Some(request);
            }
        }
    }

    fn take(&mut self, mut bytes: &[u8]) -> std::io::Result<Option<Request>> {
        if self.body.is_none() {
            let known = self.head.len();
            self.head.extend_from_slice(bytes);
            let from = known.saturating_sub(3);
            let Some(end) = self.head[from..].windows(4).position(|four| four == b"\r\n\r\n") else {
                return Ok(None);
            };
            let end = from + end + 4;
            bytes = &bytes[end - known..];
            self.body = Some(parse(&self.head[..end])?);
            self.head.clear();
        }
        let Some((_, left)) = &mut self.body else { return Ok(None) };
        let invalid = || std::io::Error::new(ErrorKind::InvalidData, "more bytes than content-length says");
        *left = left.checked_sub(bytes.len()).ok_or_else(invalid)?;
        let done = *left == 0;
        Ok(if done { self.body.take().map(|(request, _)| request) } else { None })
    }

    /// Writes these bytes, or buffers those that the client does not accept. Returns whether all are written.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> std::io::Result<bool> {
        let written = if self.out.is_empty() { self.write(bytes)? } else { 0 };
        self.out.extend_from_slice(&bytes[written..]);
        Ok(self.out.is_empty())
    }

    /// Writes the buffered bytes. Returns whether none is left.
    pub(crate) fn flush(&mut self) -> std::io::Result<bool> {
        if !self.out.is_empty() {
            let out = std::mem::take(&mut self.out);
            let written = self.write(&out)?;
            self.out = out;
            self.out.drain(..written);
        }
        Ok(self.out.is_empty())
    }

    /// Writes the bytes that the client accepts, and buffers none.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let mut written = 0;
        while written < bytes.len() {
            match self.stream.write(&bytes[written..]) {
                Ok(count) => written += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(written)
    }
}

/// Parses method, path, and the length of the body.
fn parse(head: &[u8]) -> std::io::Result<(Request, usize)> {
    let invalid = |what: &str| std::io::Error::new(ErrorKind::InvalidData, what.to_owned());
    let text = std::str::from_utf8(head).map_err(|_| invalid("a head that is not text"))?;
    let mut lines = text.split("\r\n");
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (mut length, mut close) = (0, false);
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.trim().parse().map_err(|_| invalid("a wrong content-length"))?,
            "transfer-encoding" => return Err(invalid("a body without content-length")),
            "connection" => close = value.trim().eq_ignore_ascii_case("close"),
            _ => {}
        }
    }
    let line = format!("{method} {}", path.split('?').next().unwrap_or_default());
    Ok((Request { line, arrived: 0, read: 0, stamped: false, close }, length))
}

/// Requests a path from a server on this machine and returns the body.
pub(crate) fn get(port: u16, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n").as_bytes())?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let body = text.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
    body.ok_or_else(|| std::io::Error::new(ErrorKind::InvalidData, format!("no reply to {path}: {text:?}")))
}
