//! The client: many streams that it reads at intervals, with the kernel's time stamp of each chunk's arrival.

use std::io::{IoSliceMut, Write as _};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use memchr::memmem;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt};
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_gettime};
use thread_priority::ThreadPriority;
use thread_priority::unix::{
    RealtimeThreadSchedulePolicy, ThreadSchedulePolicy, set_thread_priority_and_policy, thread_native_id,
};

use crate::{Arguments, PROMPT_LEN, Result};

/// The interval between reads, during which it sleeps. A chunk should be read before the next one arrives; otherwise
/// the two are merged.
const READ: Duration = Duration::from_millis(2);

pub(crate) struct Stream {
    socket: TcpStream,
    /// The number in the reply's id.
    pub id: Option<u64>,
    /// Arrival times of its chunks. `None` if several came in one read, because only the last one's time is known then.
    pub arrived: Vec<Option<u64>>,
    done: bool,
}

fn nanos(time: TimeSpec) -> u64 {
    u64::try_from(Duration::from(time).as_nanos()).unwrap_or(u64::MAX)
}

impl Stream {
    fn open(port: u16, tokens: u32) -> Result<Self> {
        let mut socket = TcpStream::connect(("127.0.0.1", port))?;
        setsockopt(&socket, sockopt::ReceiveTimestampns, &true)?;
        let prompt: Vec<u32> = (0..PROMPT_LEN).collect();
        let body =
            format!(r#"{{"model":"m","prompt":{prompt:?},"max_tokens":{tokens},"ignore_eos":true,"stream":true}}"#);
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nhost: m\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        socket.write_all((head + &body).as_bytes())?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, id: None, arrived: Vec::new(), done: false })
    }

    /// Reads the available bytes. `behind` is the realtime clock minus the monotonic one.
    fn read(&mut self, buffer: &mut [u8], control: &mut [u8], behind: u64) -> Result<()> {
        loop {
            let mut parts = [IoSliceMut::new(buffer)];
            let (count, stamp) =
                match recvmsg::<()>(self.socket.as_raw_fd(), &mut parts, Some(control), MsgFlags::empty()) {
                    Ok(message) => {
                        let stamp = message.cmsgs()?.find_map(|part| match part {
                            ControlMessageOwned::ScmTimestampns(stamp) => Some(nanos(stamp)),
                            _ => None,
                        });
                        (message.bytes, stamp)
                    }
                    Err(Errno::EAGAIN) => return Ok(()),
                    Err(error) => return Err(error.into()),
                };
            if count == 0 {
                return Err("the server closed a connection".into());
            }
            let bytes = &buffer[..count];
            if self.id.is_none()
                && let Some(at) = memmem::find(bytes, b"cmpl-")
            {
                let digits = bytes.get(at + 5..at + 37).ok_or("a short id")?;
                self.id = Some(u64::from_str_radix(std::str::from_utf8(digits)?, 16)?);
            }
            let chunks = memmem::find_iter(bytes, b"data: {").count();
            for chunk in 1..=chunks {
                self.arrived.push(stamp.map(|stamp| stamp - behind).filter(|_| chunk == 1 && chunks == 1));
            }
            self.done |= memmem::find(bytes, b"data: [DONE]").is_some();
        }
    }
}

/// Starts all streams and reads them to their end.
pub(crate) fn load(port: u16, arguments: &Arguments) -> Result<Vec<Stream>> {
    // Real-time priority, as in the load generator. Without the permission it reads late while other programs are busy,
    // and more chunks are merged.
    let policy = ThreadSchedulePolicy::Realtime(RealtimeThreadSchedulePolicy::RoundRobin);
    let _ = set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Min, policy);
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    let mut streams = Vec::new();
    for number in 0..arguments.streams {
        let stream = Stream::open(port, arguments.tokens)?;
        epoll.add(&stream.socket, EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, number.into()))?;
        streams.push(stream);
    }
    let mut events = vec![EpollEvent::empty(); streams.len()];
    let (mut buffer, mut control) = (vec![0; 64 << 10], nix::cmsg_space!(TimeSpec));
    let mut open = streams.len();
    let begin = Instant::now();
    while open > 0 {
        let count = epoll.wait(&mut events, EpollTimeout::from(1000_u16))?;
        let clocks = [ClockId::CLOCK_REALTIME, ClockId::CLOCK_MONOTONIC].map(clock_gettime);
        let behind = nanos(clocks[0]?) - nanos(clocks[1]?);
        for event in &events[..count] {
            let stream = &mut streams[usize::try_from(event.data())?];
            let before = stream.done;
            stream.read(&mut buffer, &mut control, behind)?;
            open -= usize::from(stream.done && !before);
        }
        if begin.elapsed() > Duration::from_mins(5) {
            return Err("the streams do not end".into());
        }
        std::thread::sleep(READ);
    }
    Ok(streams)
}
