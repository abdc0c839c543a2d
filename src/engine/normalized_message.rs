//! The normal form of a failure's message. Two launches with the same failure have equal normal forms.

use std::sync::LazyLock;

use regex::Regex;

/// The replacement for text that differs between two launches, and the normal form of an empty message.
const VARIABLE_TEXT: &str = "#";

/// The maximum length of a normal form in characters. It leaves out the tail of long messages. They were cut at a
/// fixed length before, so the remaining tail depends on the number of digits in the text.
const MAX_CHARS: usize = 200;

/// Patterns and replacements, applied in this order. The longer forms must be replaced before the digits within them.
static REPLACEMENTS: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
    let replacements = [
        // Colours, other sequences for terminals, and titles of windows.
        (r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])", ""),
        (r"[\s\p{Cc}\u{200b}-\u{200f}\u{202a}-\u{202e}\u{2066}-\u{2069}]+", " "),
        // The exit. The same error ends differently if several processes fail at once.
        (r"^ ?(?:exit code -?\d+|signal \d+|unknown exit status|it still runs); (.)", "$1"),
        // Directories for temporary files. NCCL, torch and Python choose random names in them.
        (r"(/tmp|/var/tmp|/dev/shm|/run/user/\d+)/[^\s'\x22`(),;:\]}>]+", "$1/#"),
        // Names by `tempfile` and `mktemp` in other directories.
        (r"\btmp(?:[a-z0-9_]{8}|\.[A-Za-z0-9]{6,})\b", "#"),
        (r"\b[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}\b", "#"),
        (r"\b0[xX][0-9A-Fa-f]+\b", "#"),
        // IPv6 addresses; then `0000:3B:00.0`, `PCI:0000:3b:00`, MAC addresses.
        (r"\[[0-9A-Fa-f]*:[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*(?:%\w+)?\]", "#"),
        (r"\b[0-9A-Fa-f]{1,8}:(?:[0-9A-Fa-f]{0,8}:)+[0-9A-Fa-f]{0,4}(?:\.\d)?\b", "#"),
        // Hashes, keys of caches, identifiers of requests, serial numbers.
        (r"\b[0-9A-Fa-f]*\d[0-9A-Fa-f]*(?:[a-f][0-9A-Fa-f]*\d|\d[0-9A-Fa-f]*[a-f])[0-9A-Fa-f]*\b", "#"),
        (r"\b[0-9A-Fa-f]{6,}[0-9][0-9A-Fa-f]*\b", "#"),
        (r"\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)?,? ?(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) +\d", "0"),
        (r"\d+(?:[.,_]\d+)*(?:[eE][-+]?\d+)?", "#"),
        (r"(^|[\s(\[{=,:<>'])[-+]#", "$1#"),
        // `#:#:#`, `#-#-#T#:#:#Z`, `#.#rc#`, `#/#`, and lists of numbers.
        (r"#(?:(?:[-+.:,/xT]| ?rc|, )?#)+(?:Z\b)?", "#"),
        (
            r"# ?(?:[kKMGTP]i?)?(?:B|bytes?|iB)\b(?:/s)?|# ?(?:ns|us|µs|ms|s|secs?|seconds?|min|minutes?|h|hours?|%)(?:\b|$)",
            "#",
        ),
        // Bars of progress.
        (r"#[#█▉▊▋▌▍▎▏| ]*#", "#"),
        (r" +", " "),
    ];
    let compiled = replacements.into_iter().map(|(pattern, with)| {
        (Regex::new(pattern).unwrap_or_else(|error| panic!("bug: the pattern {pattern:?}: {error}")), with)
    });
    compiled.collect()
});

/// Returns the normal form of a failure's message. It has no numbers, sizes, versions, addresses, times, process
/// identifiers, ports, colours and random names.
#[must_use]
pub fn normalized_message(message: &str) -> String {
    let mut line = message.to_owned();
    for (pattern, with) in REPLACEMENTS.iter() {
        line = pattern.replace_all(&line, *with).into_owned();
    }
    let line = line.trim().trim_end_matches("...").trim_end();
    let cut = line.char_indices().nth(MAX_CHARS).map_or(line.len(), |(end, _)| end);
    let cut = line[..cut].trim_end();
    if cut.is_empty() { VARIABLE_TEXT.to_owned() } else { cut.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Pairs of messages of the same failure in two launches.
    const ALIKE: [(&str, &str); 24] = [
        ("exit code 1; KeyError: 'layers.0.weight'", "exit code 134; KeyError: 'layers.17.weight'"),
        ("signal 9; RuntimeError: odd", "it still runs; RuntimeError: odd"),
        ("Tried to allocate 748.00 MiB. GPU 0 has 79.11 GiB", "Tried to allocate 2 GiB. GPU 3 has 9.1 GiB"),
        ("object at 0x7fa18aabd160", "object at 0x55e0"),
        (
            "Unable to determine the device handle for GPU 0000:3B:00.0: GPU is lost",
            "Unable to determine the device handle for GPU 0000:DA:00.1: GPU is lost",
        ),
        (
            "Unable to determine the device handle for GPU0: 0000:3B:00.0",
            "Unable to determine the device handle for GPU1: 0000:86:00.0",
        ),
        ("connect to 10.0.0.17:29500 failed", "connect to 192.168.1.2:41001 failed"),
        ("connect to [fe80::1ff:fe23:4567:890a]:29500 failed", "connect to [::1]:5 failed"),
        ("in /tmp/tmpq8z_x1ab/model.py", "in /tmp/tmphyd7ka9_/model.py"),
        (
            "segment /dev/shm/nccl-dHBgLK (size 9637888), error: x",
            "segment /dev/shm/nccl-Ymvqaz (size 33030528), error: x",
        ),
        ("ipc:///run/user/1000/8c0ff5e2-6f7e-4f55-a4a1-0b3c9a1d2e3f", "ipc:///run/user/7/a"),
        ("GPU-8c0ff5e2-6f7e-4f55-a4a1-0b3c9a1d2e3f is lost", "GPU-deadbeef-dead-beef-dead-beefdeadbeef is lost"),
        ("cache 842d7db6ee is broken", "cache 0f3c9a1d2e is broken"),
        ("[Worker pid=7] died", "[Worker pid=74511] died"),
        ("at 2026-11-24T09:11:41.123Z it ended", "at 2025-01-02T03:04:05.678Z it ended"),
        ("at 2026-11-24 09:11:41 it ended", "at 11-24 09:11:41,5 it ended"),
        ("Tue Nov 24 09:11:41 2026: odd", "Fri Jan 2 03:04:05 2026: odd"),
        ("torch 2.9.0+cu128 and vllm 0.11.0rc2", "torch 2.10.1+cu130 and vllm 0.12.1"),
        ("sizes [1, 2, 4, 8] are odd", "sizes [1] are odd"),
        ("\u{1b}[1;31mred\u{1b}[0m", "red"),
        (
            "not ready within 600s; the last line of its log: INFO 11-24 09:11:41 [x.py:12] loading",
            "not ready within 1.5s; the last line of its log: INFO 11-25 00:00:00 [x.py:13] loading",
        ),
        ("rank 0 of 2", "rank 1 of 2"),
        ("ratio 1e-5 and -3.5", "ratio 2.5E+7 and 4"),
        ("loading:  25% |##   | 1/4 [00:01<00:03,  1.2s/it]", "loading: 100% |#####| 4/4 [10:01<00:00,  3.20s/it]"),
    ];

    #[test]
    fn two_launches_that_fail_alike_have_equal_lines() {
        for (one, other) in ALIKE {
            assert_eq!(normalized_message(one), normalized_message(other), "{one:?} and {other:?}");
        }
    }

    #[test]
    fn failures_that_differ_keep_different_lines() {
        let lines = [
            "exit code 1; KeyError: 'layers.0.weight'",
            "exit code 1; KeyError: 'layers.0.bias'",
            "RuntimeError: CUDA error: unknown error",
            "RuntimeError: CUDA error: device not ready",
            "OSError: [Errno 116] Stale file handle: '/models/a'",
            "OSError: [Errno 5] Input/output error: '/models/a'",
            "OSError: [Errno 5] Input/output error: '/models/b'",
            "exit code 1; its log is empty",
            "signal 9, which the tuner did not send",
        ];
        let roots: std::collections::BTreeSet<String> = lines.into_iter().map(normalized_message).collect();
        assert_eq!(roots.len(), lines.len(), "{roots:?}");
    }

    #[test]
    fn words_stay_readable() {
        assert_eq!(
            normalized_message("exit code 1; ValueError: face feed dead (beef) in added cafe"),
            "ValueError: face feed dead (beef) in added cafe"
        );
        assert_eq!(
            normalized_message("RuntimeError: CUDA error: unknown error"),
            "RuntimeError: CUDA error: unknown error"
        );
        assert_eq!(normalized_message("a  b\t c\r\n"), "a b c");
        assert_eq!(normalized_message(""), "#");
    }

    #[test]
    fn numbers_of_other_widths_do_not_move_the_cut() {
        let long = |number: u64| format!("a {number} {}", "b ".repeat(300));
        let cut = |number: u64| long(number).chars().take(400).collect::<String>() + "...";
        assert_eq!(normalized_message(&cut(7)), normalized_message(&cut(1_234_567_890)));
    }

    proptest! {
        #[test]
        fn any_message_has_a_short_line_without_digits(message in "(?s).{0,300}|[0-9a-f:. #/T-]{0,60}") {
            let line = normalized_message(&message);
            prop_assert!(!line.is_empty() && line.chars().count() <= MAX_CHARS);
            prop_assert!(!line.chars().any(|c| c.is_control() || c.is_ascii_digit()), "{:?}", line);
        }

        #[test]
        fn numbers_never_tell_two_failures_apart(a in any::<u32>(), b in any::<f32>(), c in any::<u64>()) {
            let line = |a: u32, b: f32, c: u64| normalized_message(&format!("step {a} took {b:?} s at {c:#x} (pid={a}, port {c})"));
            prop_assert_eq!(line(a, b, c), line(0, 0.5, 0));
        }
    }
}
