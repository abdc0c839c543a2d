//! Keys, parsed from the bytes that a terminal sends.
//!
//! `crossterm` has a parser as well, but its reader never returns after the terminal was lost: it repeats the failing read
//! (release 0.29, `event/source/unix/mio.rs`).

/// A key that the view may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ViewKey {
    Char(char),
    /// A letter with Ctrl.
    Control(char),
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    Tab,
    BackTab,
    Enter,
    Escape,
}

const ESCAPE: u8 = 0x1b;

/// Removes whole keys from the front of `bytes` and returns them. Unknown sequences are dropped. If `is_complete`, no
/// further byte is expected, so that a lone escape character is the key Escape.
pub(super) fn take_keys(bytes: &mut Vec<u8>, is_complete: bool) -> Vec<ViewKey> {
    let mut keys = Vec::new();
    let mut rest = bytes.as_slice();
    while let Some((&first, after)) = rest.split_first() {
        if first != ESCAPE {
            keys.extend(plain_key(first));
            rest = after;
            continue;
        }
        let Some(length) = sequence_length(rest) else {
            if is_complete {
                keys.extend((rest.len() == 1).then_some(ViewKey::Escape));
                rest = &[];
            }
            break;
        };
        keys.extend(sequence_key(&rest[..length]));
        rest = &rest[length..];
    }
    *bytes = rest.to_vec();
    keys
}

fn plain_key(byte: u8) -> Option<ViewKey> {
    match byte {
        b'\t' => Some(ViewKey::Tab),
        b'\r' | b'\n' => Some(ViewKey::Enter),
        0x01..=0x1a => Some(ViewKey::Control(char::from(byte - 1 + b'a'))),
        0x20..=0x7e => Some(ViewKey::Char(char::from(byte))),
        _ => None,
    }
}

/// Returns the length of the sequence at the front. `None` if its end is missing.
fn sequence_length(bytes: &[u8]) -> Option<usize> {
    match bytes.get(1)? {
        b'[' => bytes.iter().skip(2).position(|byte| (0x40..=0x7e).contains(byte)).map(|end| end + 3),
        b'O' => bytes.get(2).map(|_| 3),
        // Alt and a key, or Escape and a further sequence.
        &ESCAPE => Some(1),
        _ => Some(2),
    }
}

/// Reads a sequence of a terminal like xterm. Modifiers, such as in `ESC [ 1 ; 5 A`, are left out.
fn sequence_key(bytes: &[u8]) -> Option<ViewKey> {
    if bytes == [ESCAPE] {
        return Some(ViewKey::Escape);
    }
    let (&last, front) = bytes.split_last()?;
    let number = front.get(2..).and_then(|text| text.split(|byte| *byte == b';').next());
    match (last, number) {
        (b'A', _) => Some(ViewKey::Up),
        (b'B', _) => Some(ViewKey::Down),
        (b'H', _) | (b'~', Some(b"1" | b"7")) => Some(ViewKey::Home),
        (b'F', _) | (b'~', Some(b"4" | b"8")) => Some(ViewKey::End),
        (b'Z', _) => Some(ViewKey::BackTab),
        (b'~', Some(b"5")) => Some(ViewKey::PageUp),
        (b'~', Some(b"6")) => Some(ViewKey::PageDown),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn keys(text: &str) -> Vec<ViewKey> {
        take_keys(&mut text.as_bytes().to_vec(), true)
    }

    #[test]
    fn keys_of_usual_terminals_are_known() {
        use ViewKey::{BackTab, Char, Control, Down, End, Enter, Escape, Home, PageDown, PageUp, Tab, Up};
        assert_eq!(keys("q?\t\r\u{3}\u{1a}"), [Char('q'), Char('?'), Tab, Enter, Control('c'), Control('z')]);
        assert_eq!(keys("\u{1b}[A\u{1b}OB\u{1b}[1;5A"), [Up, Down, Up]);
        assert_eq!(
            keys("\u{1b}[5~\u{1b}[6~\u{1b}[H\u{1b}OF\u{1b}[1~\u{1b}[4~"),
            [PageUp, PageDown, Home, End, Home, End]
        );
        assert_eq!(keys("\u{1b}[Z\u{1b}"), [BackTab, Escape]);
        assert_eq!(keys("\u{1b}\u{1b}[A"), [Escape, Up]);
        assert_eq!(keys("ü\u{1b}[200~\u{1b}x"), []);
    }

    #[test]
    fn a_sequence_in_two_parts_is_one_key() {
        let mut bytes = b"\x1b".to_vec();
        assert_eq!(take_keys(&mut bytes, false), []);
        bytes.extend(b"[");
        assert_eq!(take_keys(&mut bytes, false), []);
        bytes.extend(b"Bj");
        assert_eq!(take_keys(&mut bytes, false), [ViewKey::Down, ViewKey::Char('j')]);
        assert!(bytes.is_empty());
    }

    proptest! {
        #[test]
        fn any_bytes_are_consumed(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let mut rest = bytes.clone();
            take_keys(&mut rest, true);
            prop_assert!(rest.is_empty());
        }
    }
}
