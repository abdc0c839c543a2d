//! Fuzz target: arbitrary bytes as the body of a reply must not cause a panic, and their split into packets must not
//! matter.

#![no_main]

use setpoint::load::{Dialect, LoadTarget, RequestApi, read};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let [choice, cut, body @ ..] = bytes else { return };
    let choice = usize::from(*choice);
    let target = LoadTarget {
        dialect: Dialect::ALL[choice % Dialect::ALL.len()],
        api: if choice & 64 == 0 { RequestApi::Completions } else { RequestApi::Chat },
        stream: choice & 128 == 0,
        ..LoadTarget::new("http://127.0.0.1", "m")
    };
    let (first, second) = body.split_at(usize::from(*cut).min(body.len()));
    let bytewise: Vec<&[u8]> = body.chunks(1).collect();
    let whole = read(&target, 4, &[body]);
    assert_eq!(whole, read(&target, 4, &[first, second]));
    assert_eq!(whole, read(&target, 4, &bytewise));
});
