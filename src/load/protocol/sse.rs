//! Incremental parser of server-sent events. The bytes may be split anywhere.
//!
//! A chunk is here the bytes of one call, not a content chunk of a reply.
//!
//! A load generator needs only the fields `data` and `error`. The standard has no `error`, but llama.cpp once used it.
//! Comments (keep-alives among them), `event`, `id` and `retry` are skipped. Lines end with LF, CRLF or CR, and an
//! event ends with an empty line (HTML standard). Each byte is examined once. An event that lies within one chunk and
//! has one `data` line is passed on without a copy.

use memchr::memchr2;

/// A field of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SseField {
    Data,
    /// A line `error: ...`, passed on at once: llama.cpp wrote them in the middle of a stream until September 2025
    /// (`server_sent_event(sink, "error", ...)` in its `tools/server/server.cpp`).
    Error,
}

/// The state between two chunks.
#[derive(Debug, Default)]
pub(super) struct SseParser {
    /// The start of a line whose end has not arrived.
    line: Vec<u8>,
    /// The `data` lines of the current event, joined with LF.
    data: Vec<u8>,
    has_data: bool,
    /// Whether the last byte was a CR. A following LF then belongs to the same line end.
    after_cr: bool,
    /// Whether the first line was read. Only that line may begin with a byte order mark.
    started: bool,
}

impl SseParser {
    /// Reads one chunk and calls `each` with the data of every event that it completes.
    #[inline]
    pub(super) fn feed(&mut self, mut chunk: &[u8], mut each: impl FnMut(SseField, &[u8])) {
        // The first `data` line of the current event, while it lies in this chunk.
        let mut whole: Option<&[u8]> = None;
        while !chunk.is_empty() {
            if std::mem::take(&mut self.after_cr) && chunk[0] == b'\n' {
                chunk = &chunk[1..];
                continue;
            }
            let Some(end) = memchr2(b'\n', b'\r', chunk) else {
                self.line.extend_from_slice(chunk);
                break;
            };
            self.after_cr = chunk[end] == b'\r';
            let (head, rest) = (&chunk[..end], &chunk[end + 1..]);
            chunk = rest;
            if self.line.is_empty() {
                let line = self.without_mark(head);
                if line.is_empty() {
                    self.dispatch(whole.take(), &mut each);
                } else if let Some(data) = value_of(b"data", line) {
                    if whole.is_none() && !self.has_data {
                        whole = Some(data);
                    } else {
                        self.append(whole.take(), data);
                    }
                } else {
                    report(line, &mut each);
                }
            } else {
                let mut line = std::mem::take(&mut self.line);
                line.extend_from_slice(head);
                let text = self.without_mark(&line);
                match value_of(b"data", text) {
                    Some(data) => self.append(whole.take(), data),
                    None => report(text, &mut each),
                }
                line.clear();
                self.line = line;
            }
        }
        if let Some(first) = whole {
            self.data.extend_from_slice(first);
            self.has_data = true;
        }
    }

    /// Returns the number of bytes that are held until the rest of their line or event arrives.
    pub(super) fn held(&self) -> usize {
        self.line.len() + self.data.len()
    }

    /// Returns the start of a line whose end has not arrived.
    pub(super) fn line(&self) -> &[u8] {
        &self.line
    }

    /// Returns the data of an event that has one line and whose end has not arrived.
    pub(super) fn partial_event(&self) -> Option<&[u8]> {
        match (self.has_data, value_of(b"data", &self.line)) {
            (true, None) if self.line.is_empty() => Some(&self.data),
            (false, data) => data,
            _ => None,
        }
    }

    fn without_mark<'a>(&mut self, line: &'a [u8]) -> &'a [u8] {
        let first = !std::mem::replace(&mut self.started, true);
        if first { line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line) } else { line }
    }

    fn append(&mut self, first: Option<&[u8]>, data: &[u8]) {
        for line in first.into_iter().chain([data]) {
            if self.has_data {
                self.data.push(b'\n');
            }
            self.data.extend_from_slice(line);
            self.has_data = true;
        }
    }

    fn dispatch(&mut self, whole: Option<&[u8]>, each: &mut impl FnMut(SseField, &[u8])) {
        if let Some(data) = whole {
            each(SseField::Data, data);
        } else if std::mem::take(&mut self.has_data) {
            each(SseField::Data, &self.data);
            self.data.clear();
        }
    }
}

/// Passes on the value of an `error` line. Ignores other lines.
#[cold]
fn report(line: &[u8], each: &mut impl FnMut(SseField, &[u8])) {
    if let Some(error) = value_of(b"error", line).filter(|error| !error.is_empty()) {
        each(SseField::Error, error);
    }
}

/// Returns the value of a line of this field, without the one space that may follow the colon.
fn value_of<'a>(field: &[u8], line: &'a [u8]) -> Option<&'a [u8]> {
    let value = line.strip_prefix(field)?;
    match value {
        [] => Some(value),
        [b':', b' ', value @ ..] | [b':', value @ ..] => Some(value),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn events(chunks: &[&[u8]]) -> Vec<String> {
        let mut parser = SseParser::default();
        let mut events = Vec::new();
        for chunk in chunks {
            parser.feed(chunk, |field, data| {
                let mark = if field == SseField::Error { "!" } else { "" };
                events.push(format!("{mark}{}", String::from_utf8_lossy(data)));
            });
        }
        events
    }

    #[test]
    fn several_events_in_one_packet_are_several_events() {
        assert_eq!(events(&[b"data: a\n\ndata: b\r\n\r\ndata:c\r\r"]), ["a", "b", "c"]);
    }

    #[test]
    fn an_event_split_within_its_line_end_is_one_event() {
        assert_eq!(events(&[b"data: a\r", b"\n\r", b"\ndata: [DO", b"NE]\n", b"\n"]), ["a", "[DONE]"]);
    }

    #[test]
    fn comments_other_fields_and_empty_events_are_skipped() {
        assert_eq!(events(&[b": ping\n\nevent: x\nid: 1\ndata: a\nretry: 5\n\n\n\ndatax: b\n\n"]), ["a"]);
    }

    #[test]
    fn data_of_several_lines_is_joined() {
        assert_eq!(events(&[b"data: a\ndata:  b\ndata\ndata:\n\n"]), ["a\n b\n\n"]);
        assert_eq!(events(&[b"data: a\n", b"data: b\n\n"]), ["a\nb"]);
    }

    #[test]
    fn a_byte_order_mark_begins_only_the_stream() {
        assert_eq!(events(&[b"\xef\xbb", b"\xbfdata: a\n\n\xef\xbb\xbfdata: b\n\n"]), ["a"]);
    }

    #[test]
    fn an_event_without_its_empty_line_is_not_handed_out() {
        assert_eq!(events(&[b"data: a\n\ndata: b\n"]), ["a"]);
    }

    #[test]
    fn a_line_of_the_field_error_is_an_error_at_once() {
        assert_eq!(events(&[b"data: a\n\nerror: {\"code\":5", b"00}\n\n"]), ["a", "!{\"code\":500}"]);
        assert_eq!(events(&[b"error\nerrors: x\n\nerror: y\n"]), ["!y"]);
    }

    fn piece() -> impl Strategy<Value = &'static str> {
        prop::sample::select(vec![
            "data: {\"a\": 1}",
            "data:x",
            "data",
            "data: [DONE]",
            ": ping",
            "error: e",
            "event: e",
            "d",
            "\n",
            "\r",
            "\r\n",
            "\n\n",
            "\r\n\r\n",
            "\u{feff}",
            " ",
        ])
    }

    proptest! {
        #[test]
        fn any_split_gives_the_same_events(
            pieces in prop::collection::vec(piece(), 0..40),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        ) {
            let stream = pieces.concat().into_bytes();
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
            cuts.extend([0, stream.len()]);
            cuts.sort_unstable();
            let chunks: Vec<&[u8]> = cuts.windows(2).map(|pair| &stream[pair[0]..pair[1]]).collect();
            let bytes: Vec<&[u8]> = stream.chunks(1).collect();
            prop_assert_eq!(events(&chunks), events(&[&stream]));
            prop_assert_eq!(events(&bytes), events(&[&stream]));
        }
    }
}
