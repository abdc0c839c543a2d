//! Incremental reader of one HTTP/1.1 response: the head by `httparse`, the body by its framing (RFC 9112, section 6).

/// Maximum bytes of a head. Heads of model servers are smaller.
const MAX_HEAD_BYTES: usize = 64 << 10;
const MAX_HEADERS: usize = 64;

/// Reader of one response. Each response needs a new reader.
#[derive(Debug, Default)]
pub(super) struct ResponseReader {
    state: ResponseState,
    /// The beginning of a head that has not arrived completely.
    head: Vec<u8>,
    /// Zero until the head is read.
    pub(super) status: u16,
    /// Whether any byte has arrived.
    pub(super) started: bool,
    /// Whether the server closes the connection after this response, or sent bytes beyond it.
    closes: bool,
}

/// The part of the response that comes next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ResponseState {
    #[default]
    Head,
    Chunked(ChunkedState),
    /// Bytes of the body that are still to come.
    Length(u64),
    /// The body ends with the connection.
    UntilClose,
    Done,
}

/// State of a chunked body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChunkedState {
    /// The size so far, and whether a digit has come.
    Size(u64, bool),
    /// The rest of the size's line. Contains the size.
    Extension(u64),
    Data(u64),
    /// The line end after the data.
    DataEnd,
    /// A line of the trailer, and whether it is empty so far.
    Trailer(bool),
}

/// The reason that a response cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum HttpError {
    #[error("the response's head is invalid: {0}")]
    Head(String),
    #[error("the response's head is larger than {MAX_HEAD_BYTES} bytes")]
    LargeHead,
    #[error("a chunk's size contains the byte {0:#04x}")]
    ChunkSize(u8),
    #[error("content-length {0:?} is not a number")]
    Length(String),
    #[error("transfer-encoding {0:?} is not supported")]
    Encoding(String),
}

impl ResponseReader {
    /// Reads bytes, and calls `body` with the status and each piece of the body, without a copy.
    ///
    /// # Errors
    /// If the bytes are no HTTP/1.1 response.
    pub(super) fn feed(&mut self, mut bytes: &[u8], mut body: impl FnMut(u16, &[u8])) -> Result<(), HttpError> {
        self.started |= !bytes.is_empty();
        while !bytes.is_empty() {
            match self.state {
                ResponseState::Head => bytes = self.read_head(bytes)?,
                ResponseState::Chunked(chunked) => bytes = self.read_chunk(chunked, bytes, &mut body)?,
                ResponseState::Length(left) => {
                    let (piece, rest) = bytes.split_at(bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX)));
                    body(self.status, piece);
                    let left = left - piece.len() as u64;
                    self.state = if left == 0 { ResponseState::Done } else { ResponseState::Length(left) };
                    bytes = rest;
                }
                ResponseState::UntilClose => {
                    body(self.status, bytes);
                    bytes = &[];
                }
                ResponseState::Done => {
                    self.closes = true;
                    bytes = &[];
                }
            }
        }
        Ok(())
    }

    /// Returns whether the whole body has arrived.
    pub(super) fn is_done(&self) -> bool {
        self.state == ResponseState::Done
    }

    /// Returns whether the body ends with the connection.
    pub(super) fn ends_with_connection(&self) -> bool {
        self.state == ResponseState::UntilClose
    }

    /// Returns whether the connection can serve another request.
    pub(super) fn is_reusable(&self) -> bool {
        self.is_done() && !self.closes
    }

    fn read_head<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], HttpError> {
        let before = self.head.len();
        // A head that arrives whole, as almost all do, is not copied.
        let parsed = if before == 0 {
            self.parse_head(bytes)?
        } else {
            self.head.extend_from_slice(bytes);
            let head = std::mem::take(&mut self.head);
            let parsed = self.parse_head(&head)?;
            self.head = head;
            parsed
        };
        let Some(length) = parsed else {
            if before == 0 {
                self.head.extend_from_slice(bytes);
            }
            return if self.head.len() > MAX_HEAD_BYTES { Err(HttpError::LargeHead) } else { Ok(&[]) };
        };
        self.head.clear();
        Ok(&bytes[length - before..])
    }

    /// Returns the length of the head if it is whole, and then sets the state of the body.
    fn parse_head(&mut self, bytes: &[u8]) -> Result<Option<usize>, HttpError> {
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut response = httparse::Response::new(&mut headers);
        let length = match response.parse(bytes).map_err(|error| HttpError::Head(error.to_string()))? {
            httparse::Status::Complete(length) => length,
            httparse::Status::Partial => return Ok(None),
        };
        self.status = response.code.unwrap_or(0);
        // An interim response (100, 103) is followed by the final one.
        if (100..200).contains(&self.status) {
            return Ok(Some(length));
        }
        self.closes = response.version == Some(0);
        let mut framing =
            if matches!(self.status, 204 | 304) { ResponseState::Done } else { ResponseState::UntilClose };
        for header in response.headers.iter() {
            let value = String::from_utf8_lossy(header.value);
            let value = value.trim();
            if header.name.eq_ignore_ascii_case("connection") {
                self.closes |= value.eq_ignore_ascii_case("close");
            } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
                if !value.eq_ignore_ascii_case("chunked") {
                    return Err(HttpError::Encoding(value.to_owned()));
                }
                framing = ResponseState::Chunked(ChunkedState::Size(0, false));
            } else if header.name.eq_ignore_ascii_case("content-length") && framing == ResponseState::UntilClose {
                let length = value.parse().map_err(|_| HttpError::Length(value.to_owned()))?;
                framing = if length == 0 { ResponseState::Done } else { ResponseState::Length(length) };
            }
        }
        self.state = framing;
        Ok(Some(length))
    }

    fn read_chunk<'a>(
        &mut self,
        chunked: ChunkedState,
        bytes: &'a [u8],
        body: &mut impl FnMut(u16, &[u8]),
    ) -> Result<&'a [u8], HttpError> {
        let (byte, rest) = (bytes[0], &bytes[1..]);
        let (next, rest) = match chunked {
            ChunkedState::Size(size, any) => match (char::from(byte).to_digit(16), byte) {
                (Some(digit), _) if size < 1 << 56 => (ChunkedState::Size(size * 16 + u64::from(digit), true), rest),
                (None, b'\n') if any => (Self::sized(size), rest),
                (None, b'\r' | b';' | b' ' | b'\t') if any => (ChunkedState::Extension(size), rest),
                _ => return Err(HttpError::ChunkSize(byte)),
            },
            ChunkedState::Extension(size) => (if byte == b'\n' { Self::sized(size) } else { chunked }, rest),
            ChunkedState::Data(left) => {
                let (piece, rest) = bytes.split_at(bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX)));
                body(self.status, piece);
                let left = left - piece.len() as u64;
                (if left == 0 { ChunkedState::DataEnd } else { ChunkedState::Data(left) }, rest)
            }
            ChunkedState::DataEnd => match byte {
                b'\r' => (chunked, rest),
                b'\n' => (ChunkedState::Size(0, false), rest),
                _ => return Err(HttpError::ChunkSize(byte)),
            },
            ChunkedState::Trailer(empty) => match byte {
                b'\r' => (chunked, rest),
                b'\n' if empty => {
                    self.state = ResponseState::Done;
                    return Ok(rest);
                }
                _ => (ChunkedState::Trailer(byte == b'\n'), rest),
            },
        };
        self.state = ResponseState::Chunked(next);
        Ok(rest)
    }

    /// Returns the state after the line of a chunk's size.
    fn sized(size: u64) -> ChunkedState {
        if size == 0 { ChunkedState::Trailer(true) } else { ChunkedState::Data(size) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(pieces: &[&[u8]]) -> Result<(ResponseReader, String), HttpError> {
        let (mut response, mut text) = (ResponseReader::default(), Vec::new());
        for piece in pieces {
            response.feed(piece, |_, body| text.extend_from_slice(body))?;
        }
        Ok((response, String::from_utf8(text).unwrap()))
    }

    #[test]
    fn every_framing_of_a_body_is_read() {
        for (text, keeps, until_close) in [
            ("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello", true, false),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\n\r\n", true, false),
            ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n05 \r\nhello\r\n0\r\na: b\r\n\r\n", true, false),
            ("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 5\r\n\r\nhello", false, false),
            ("HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\nhello", false, false),
            ("HTTP/1.1 200 OK\r\n\r\nhello", false, true),
            ("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello", true, false),
        ] {
            let (response, body) = read(&[text.as_bytes()]).unwrap();
            assert_eq!((response.status, body.as_str()), (200, "hello"), "{text}");
            assert_eq!((response.is_reusable(), response.ends_with_connection()), (keeps, until_close), "{text}");
        }
        let (response, _) = read(&[b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n"]).unwrap();
        assert!(response.is_reusable() && response.status == 503);
    }

    #[test]
    fn bytes_after_a_response_end_the_connection() {
        let (response, body) = read(&[b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\naHTTP"]).unwrap();
        assert!(response.is_done() && !response.is_reusable() && body == "a");
    }

    #[test]
    fn an_invalid_response_is_reported_with_its_error() {
        let head = "HTTP/1.1 200 OK\r\n";
        let chunked = format!("{head}transfer-encoding: chunked\r\n\r\n");
        for (text, said) in [
            ("SSH-2.0-OpenSSH\r\n\r\n".to_owned(), "head"),
            (format!("{head}content-length: x\r\n\r\n"), "\"x\" is not a number"),
            (format!("{head}transfer-encoding: gzip\r\n\r\n"), "gzip"),
            (format!("{chunked}xyz\r\n"), "0x78"),
            (format!("{chunked}\r\n"), "0x0d"),
            (format!("{chunked}1\r\nab"), "0x62"),
            (format!("{chunked}{}\r\n", "f".repeat(20)), "0x66"),
            (format!("{head}a: {}", "b".repeat(MAX_HEAD_BYTES)), "larger than 65536"),
        ] {
            let error = read(&[text.as_bytes()]).unwrap_err().to_string();
            assert!(error.contains(said), "{text:?}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_split_reads_the_same(
            sizes in prop::collection::vec(1_usize..40, 0..8),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        ) {
            let mut text = "HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\n".to_owned();
            text.push_str("transfer-encoding: chunked\r\nserver: uvicorn\r\n\r\n");
            let mut expected = String::new();
            for size in sizes {
                let piece = "abcdefghij0123456789\r\n".chars().cycle().take(size).collect::<String>();
                text.extend([&format!("{size:x}"), "\r\n", &piece, "\r\n"]);
                expected.push_str(&piece);
            }
            text.push_str("0\r\n\r\n");
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|pair| &text.as_bytes()[pair[0]..pair[1]]).collect();
            let singles: Vec<&[u8]> = text.as_bytes().chunks(1).collect();
            for pieces in [pieces, singles] {
                let (response, body) = read(&pieces).unwrap();
                prop_assert!(response.is_reusable() && response.status == 200);
                prop_assert_eq!(&body, &expected);
            }
        }
    }
}
