//! The entries of a section in a file of `--models-preset` (`common/preset.cpp`).

use crate::config::Value;
use crate::flag::FlagTable;
use crate::trial::is_control;

/// Returns the keys and values that set the same as these arguments. The keys are the names of the flags.
///
/// # Errors
/// The argument that such a file cannot contain.
pub(super) fn entries(table: FlagTable, arguments: &[String]) -> Result<Vec<(String, String)>, String> {
    let config = table.parse(arguments).map_err(|error| error.to_string())?;
    let entry = |(flag, value): (&str, &Value)| {
        let text = value.to_string();
        // The reader ends a value at a comment, whose mark may follow any character.
        match text.chars().find(|c| [';', '#'].contains(c) || is_control(*c)) {
            Some(mark) => Err(format!("the value of {flag} contains {mark:?}, which ends a value in such a file")),
            None => Ok((flag.to_owned(), text)),
        }
    };
    config.iter().map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::llama_cpp::{KNOWN_BUILD, KNOWN_FLAGS};

    #[test]
    fn each_flag_is_a_key_and_a_comment_mark_is_refused() {
        let entries = |words: &[&str]| {
            let words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
            entries(KNOWN_FLAGS.for_version(KNOWN_BUILD), &words)
        };
        let found = entries(&["-np", "8", "--no-cont-batching", "-fa", "on", "--cache-type-k", "q8_0"]).unwrap();
        let lines: Vec<_> = found.iter().map(|(key, value)| format!("{key} = {value}")).collect();
        assert_eq!(lines, ["cache-type-k = q8_0", "cont-batching = false", "flash-attn = on", "parallel = 8"]);
        let error = entries(&["--alias", "a#b"]).unwrap_err();
        assert_eq!(error, "the value of alias contains '#', which ends a value in such a file");
        assert!(entries(&["--max-num-seqs", "8"]).is_err());
    }
}
