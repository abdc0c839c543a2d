//! A query for the listening sockets of a port over netlink (`sock_diag(7)`). Reading the whole table of
//! `/proc/net/tcp` takes milliseconds on a host with many connections.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;

/// A socket that listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ListeningSocket {
    pub(super) address: IpAddr,
    pub(super) inode: u64,
}

// `linux/netlink.h`, `linux/sock_diag.h` and `linux/inet_diag.h`.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const REQUEST_AND_DUMP: u16 = 0x1 | 0x300;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const PROTOCOL_TCP: u8 = 6;
const STATE_LISTEN: u32 = 1 << 10;
const HEADER_BYTES: usize = 16;
/// `struct inet_diag_sockid`.
const SOCKET_ID_BYTES: usize = 48;
/// Bytes of `struct inet_diag_msg` before its `id`.
const ID_OFFSET: usize = 4;
/// From the end of the `id` to the inode: expires, rqueue, wqueue, uid.
const INODE_OFFSET: usize = 16;

/// The time limit of an answer. The kernel normally answers at once.
const ANSWER_LIMIT: TimeVal = TimeVal::new(1, 0);

/// Returns the sockets that listen on a port of any address.
///
/// # Errors
/// If the kernel lacks this interface or a sandbox denies it.
pub(super) fn listening_sockets(port: u16) -> Result<Vec<ListeningSocket>, Errno> {
    let mut found = ask(AddressFamily::Inet, port)?;
    found.extend(ask(AddressFamily::Inet6, port)?);
    Ok(found)
}

fn ask(family: AddressFamily, port: u16) -> Result<Vec<ListeningSocket>, Errno> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkSockDiag)?;
    setsockopt(&socket, sockopt::ReceiveTimeout, &ANSWER_LIMIT)?;
    sendto(socket.as_raw_fd(), &request(family, port), &NetlinkAddr::new(0, 0), MsgFlags::empty())?;
    let (mut found, mut buffer) = (Vec::new(), vec![0; 32 << 10]);
    loop {
        let length = recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
        if length == 0 || read(&buffer[..length], port, &mut found)? {
            return Ok(found);
        }
    }
}

/// Encodes a `struct nlmsghdr` and a `struct inet_diag_req_v2`.
fn request(family: AddressFamily, port: u16) -> Vec<u8> {
    let length = HEADER_BYTES + 8 + SOCKET_ID_BYTES;
    let mut request = Vec::with_capacity(length);
    request.extend(u32::try_from(length).unwrap_or_default().to_ne_bytes());
    request.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    request.extend(REQUEST_AND_DUMP.to_ne_bytes());
    request.extend([0; 8]);
    request.extend([u8::try_from(family as i32).unwrap_or_default(), PROTOCOL_TCP, 0, 0]);
    request.extend(STATE_LISTEN.to_ne_bytes());
    request.extend(port.to_be_bytes());
    request.resize(length, 0);
    request
}

/// Adds the sockets of a datagram. Returns whether it is the last one.
fn read(mut datagram: &[u8], port: u16, found: &mut Vec<ListeningSocket>) -> Result<bool, Errno> {
    while let (Some(length), Some(kind)) = (number(datagram, 0), datagram.get(4..6)) {
        let length = length as usize;
        if length < HEADER_BYTES || length > datagram.len() {
            return Err(Errno::EBADMSG);
        }
        match u16::from_ne_bytes([kind[0], kind[1]]) {
            NLMSG_DONE => return Ok(true),
            NLMSG_ERROR => {
                let code = number(datagram, HEADER_BYTES).map_or(0, u32::cast_signed);
                return Err(Errno::from_raw(code.saturating_neg()));
            }
            SOCK_DIAG_BY_FAMILY => found.extend(socket_of(&datagram[HEADER_BYTES..length], port)),
            _ => {}
        }
        datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

/// Decodes the socket of a `struct inet_diag_msg`. Returns `None` if it listens on another port.
fn socket_of(message: &[u8], port: u16) -> Option<ListeningSocket> {
    let id = message.get(ID_OFFSET..ID_OFFSET + SOCKET_ID_BYTES)?;
    let inode = number(message, ID_OFFSET + SOCKET_ID_BYTES + INODE_OFFSET)?;
    if id[..2] != port.to_be_bytes() {
        return None;
    }
    let source: [u8; 16] = id[4..20].try_into().ok()?;
    let address = if i32::from(message[0]) == AddressFamily::Inet as i32 {
        IpAddr::from(Ipv4Addr::new(source[0], source[1], source[2], source[3]))
    } else {
        IpAddr::from(Ipv6Addr::from(source))
    };
    Some(ListeningSocket { address, inode: inode.into() })
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn sockets_of_both_families_are_found_by_their_port_and_others_are_not() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        // Connections of the same port do not listen.
        let _connected = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
        let found = listening_sockets(port).unwrap();
        assert_eq!(found.iter().map(|socket| socket.address).collect::<Vec<_>>(), [Ipv4Addr::LOCALHOST]);
        assert!(found[0].inode > 0);
        if let Ok(six) = TcpListener::bind(("::", 0)) {
            let found = listening_sockets(six.local_addr().unwrap().port()).unwrap();
            assert_eq!(found.iter().map(|socket| socket.address).collect::<Vec<_>>(), [Ipv6Addr::UNSPECIFIED]);
        }
        drop(listener);
        assert_eq!(listening_sockets(port), Ok(Vec::new()));
    }

    #[test]
    fn an_invalid_answer_is_an_error() {
        let read = |bytes: &[u8]| read(bytes, 1, &mut Vec::new());
        assert_eq!(read(&[]), Ok(false));
        assert_eq!(read(&[1; 64]), Err(Errno::EBADMSG));
        let mut error = vec![0; 20];
        error[..4].copy_from_slice(&20_u32.to_ne_bytes());
        error[4..6].copy_from_slice(&NLMSG_ERROR.to_ne_bytes());
        error[16..20].copy_from_slice(&(-13_i32).to_ne_bytes());
        assert_eq!(read(&error), Err(Errno::EACCES));
    }
}
