//! The model's own tokenizer, for servers that take text only and for the lengths of recorded prompts.

use std::path::Path;

use super::WorkloadError;

/// A `tokenizer.json` of the `tokenizers` library.
pub(super) struct Tokenizer {
    inner: tokenizers::Tokenizer,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tokenizer({} tokens)", self.inner.get_vocab_size(true))
    }
}

/// The largest number of distinct words in texts. It is more than enough for texts that never repeat.
const MAX_WORDS: usize = 4096;
/// Least number of words that can make a text.
const FEWEST_WORDS: usize = 2;

impl Tokenizer {
    /// Reads a tokenizer. `path` is a `tokenizer.json` or a directory that holds one.
    pub(super) fn read(path: &Path) -> Result<Self, WorkloadError> {
        let path = if path.is_dir() { path.join("tokenizer.json") } else { path.to_owned() };
        match tokenizers::Tokenizer::from_file(&path) {
            Ok(mut inner) => {
                // Truncation and padding change lengths, and servers turn both off.
                let _ = inner.with_truncation(None);
                inner.with_padding(None);
                Ok(Self { inner })
            }
            Err(error) => Err(WorkloadError::Tokenizer { path, problem: error.to_string() }),
        }
    }

    /// Returns the number of tokens of a text. If `special`, it includes the tokens that the tokenizer adds at the
    /// begin and end, as the server does for `/v1/completions`.
    pub(super) fn count(&self, text: &str, special: bool) -> u64 {
        // Encoding fails only if the file itself is inconsistent. No length is exact then, and `words` finds no word.
        self.inner.encode_fast(text, special).map_or(0, |encoding| encoding.len() as u64)
    }

    /// Returns words with a space before each, ascending by token id. Each word is one token between any other words,
    /// so that the lengths of texts made of them can be counted.
    pub(super) fn words(&self) -> Vec<String> {
        let mut vocabulary: Vec<_> = self.inner.get_vocab(false).into_iter().collect();
        vocabulary.sort_unstable_by_key(|(_, id)| *id);
        let mut words = Vec::new();
        let mut seen = std::collections::HashSet::new();
        for (token, _) in vocabulary {
            // A leading space, in the byte-level alphabet and in SentencePiece.
            let word = token.strip_prefix(['\u{120}', '\u{2581}']).unwrap_or(&token);
            if word.len() < 2 || !word.bytes().all(|byte| byte.is_ascii_alphabetic()) || !seen.insert(word.to_owned()) {
                continue;
            }
            let word = format!(" {word}");
            let few = self.count(&word.repeat(2), false);
            if few > 0 && self.count(&word.repeat(5), false) == few + 3 {
                words.push(word);
                if words.len() == MAX_WORDS {
                    break;
                }
            }
        }
        if words.len() < FEWEST_WORDS { Vec::new() } else { words }
    }
}
