//! Random prompts of exact token counts.
//!
//! A prompt consists of token ids if the server accepts them. Otherwise it is text of words that are one token each.
//! Without the model's tokenizer, a prompt may be text of frequent English words. Its length is then approximate.

use std::sync::Arc;

use rand_chacha::ChaCha8Rng;

use super::draw::{DrawPurpose, below, rng};
use super::tokenizer::Tokenizer;
use super::{Prompt, WorkloadError, WorkloadSurroundings};

/// The smallest drawn token id, for a vocabulary of at least twice this size. Ids below it are often special (padding,
/// end of sequence, control).
const FIRST_TOKEN: u32 = 256;

/// Divisor of the vocabulary's size: ids in its last 1/16 are never drawn. Many models pad the vocabulary with unused
/// rows (Qwen2 has 151,936 rows and 151,665 tokens). Some releases of vLLM refuse such an id: "Token id is out of
/// vocabulary".
const EXCLUDED_VOCABULARY_DIVISOR: u32 = 16;

/// Maximum number of attempts to write a text of exact length. Each one adds or removes words.
const TRIES: u32 = 16;

/// Number of [`USUAL_WORDS`].
const USUAL: u32 = 64;
/// Frequent English words. With the leading space, each is one token in most vocabularies.
const USUAL_WORDS: [&str; USUAL as usize] = [
    " about",
    " after",
    " again",
    " also",
    " always",
    " another",
    " around",
    " because",
    " before",
    " between",
    " book",
    " change",
    " city",
    " country",
    " day",
    " different",
    " down",
    " each",
    " earth",
    " even",
    " every",
    " family",
    " find",
    " first",
    " food",
    " give",
    " good",
    " great",
    " group",
    " hand",
    " help",
    " high",
    " home",
    " house",
    " important",
    " large",
    " life",
    " light",
    " line",
    " little",
    " long",
    " make",
    " many",
    " money",
    " move",
    " night",
    " number",
    " open",
    " paper",
    " people",
    " place",
    " point",
    " right",
    " school",
    " show",
    " small",
    " state",
    " story",
    " system",
    " time",
    " turn",
    " water",
    " work",
    " year",
];

/// Generator of one workload's prompts. Its output depends on the seed and the requested pieces only.
#[derive(Clone, Debug)]
pub(super) struct TextWriter {
    seed: u64,
    form: PromptForm,
}

#[derive(Clone, Debug)]
enum PromptForm {
    /// Token ids, drawn uniformly from `first` up to but excluding `end`.
    Ids { first: u32, end: u32 },
    /// Text of exact length, by the model's tokenizer.
    Words(Arc<ExactWords>),
    /// Text of approximate length: one of [`USUAL_WORDS`] per token, without a tokenizer.
    Usual,
}

#[derive(Debug)]
struct ExactWords {
    tokenizer: Tokenizer,
    /// Words with a leading space, one token each.
    list: Vec<String>,
    /// Whether a length includes the tokens that the tokenizer adds at the beginning and end of a text.
    special: bool,
    /// Number of tokens of any text beyond one per word, such as the begin-of-sequence token.
    added: u64,
}

/// A part of a prompt. `purpose` and `index` select a random sequence of tokens, and the piece is its first `len`
/// tokens. Of two pieces with the same purpose and index, the shorter is therefore a prefix of the longer.
#[derive(Clone, Copy, Debug)]
pub(super) struct TextPiece {
    pub(super) purpose: DrawPurpose,
    pub(super) index: u64,
    pub(super) len: u32,
}

impl TextPiece {
    pub(super) fn new(purpose: DrawPurpose, index: u64, len: u32) -> Self {
        Self { purpose, index, len }
    }
}

impl TextWriter {
    /// # Errors
    /// For token ids: if the vocabulary's size is unknown or below 2. For text of exact length: if the tokenizer is
    /// missing, or has no words of one token.
    pub(super) fn new(surroundings: &WorkloadSurroundings) -> Result<Self, WorkloadError> {
        let seed = surroundings.seed;
        if surroundings.takes_tokens && !surroundings.chat {
            let size = surroundings.vocab_size.filter(|size| *size >= 2).ok_or(WorkloadError::NoVocabulary)?;
            return Ok(Self::of_ids(seed, size));
        }
        if surroundings.approximate {
            return Ok(Self { seed, form: PromptForm::Usual });
        }
        let tokenizer = surroundings.read_tokenizer()?;
        let list = tokenizer.words();
        if list.is_empty() {
            let path = surroundings.tokenizer.clone().unwrap_or_default();
            let problem = "its vocabulary contains too few words of one token".to_owned();
            return Err(WorkloadError::Tokenizer { path, problem });
        }
        let special = !surroundings.chat;
        let added = tokenizer.count(&list[0].repeat(8), special).saturating_sub(8);
        Ok(Self { seed, form: PromptForm::Words(Arc::new(ExactWords { tokenizer, list, special, added })) })
    }

    /// Returns a writer of token ids. `vocab_size` must be at least 2.
    pub(super) fn of_ids(seed: u64, vocab_size: u32) -> Self {
        let (first, end) = (FIRST_TOKEN.min(vocab_size / 2), vocab_size - vocab_size / EXCLUDED_VOCABULARY_DIVISOR);
        Self { seed, form: PromptForm::Ids { first, end } }
    }

    pub(super) fn seed(&self) -> u64 {
        self.seed
    }

    /// Returns an empty prompt.
    pub(super) fn draft(&self) -> TextDraft<'_> {
        let (text, added) = match &self.form {
            PromptForm::Ids { .. } => (Prompt::Tokens(Vec::new()), 0),
            PromptForm::Words(words) => (Prompt::Text(String::new()), words.added),
            PromptForm::Usual => (Prompt::Text(String::new()), 0),
        };
        TextDraft { writer: self, text, len: 0, added }
    }

    /// Returns a prompt of these pieces. Its number of tokens is the sum of their lengths, unless lengths are
    /// approximate ([`PromptForm::Usual`]) or [`TextWriter::check`] refuses the length.
    pub(super) fn prompt(&self, pieces: impl IntoIterator<Item = TextPiece>) -> Prompt {
        let mut draft = self.draft();
        let mut pieces = pieces.into_iter().peekable();
        while let Some(piece) = pieces.next() {
            draft.add(piece, pieces.peek().is_none());
        }
        draft.text
    }

    /// Checks with three sample prompts that texts of exactly `len` tokens can be written.
    ///
    /// # Errors
    /// [`WorkloadError::Inexact`] with the requested length and the length that was reached instead.
    pub(super) fn check(&self, len: u32) -> Result<(), WorkloadError> {
        let PromptForm::Words(words) = &self.form else { return Ok(()) };
        // If texts of 1024 tokens are exact, longer ones are too: each further word is one more token.
        let len = len.min(1024);
        for index in 0..3 {
            if let Prompt::Text(text) = self.prompt([TextPiece::new(DrawPurpose::Prompt, index, len)]) {
                let asked = u64::from(len);
                // An empty text is not a valid prompt, even if the tokenizer adds tokens to it. The shortest valid
                // text has one word.
                let got = if text.is_empty() { words.added + 1 } else { words.count(&text) };
                if asked != got {
                    return Err(WorkloadError::Inexact { asked, got });
                }
            }
        }
        Ok(())
    }
}

impl ExactWords {
    fn count(&self, text: &str) -> u64 {
        self.tokenizer.count(text, self.special)
    }

    fn word(&self, rng: &mut ChaCha8Rng) -> &str {
        let count = u32::try_from(self.list.len()).unwrap_or(u32::MAX);
        &self.list[below(rng, count) as usize]
    }

    /// Appends words of a piece to `text`, so that the whole text has `total` tokens. The first attempt appends `few`
    /// words. The others add or remove words of this piece. The length stays inexact if all [`TRIES`] attempts fail.
    fn extend_to_length(&self, text: &mut String, few: u64, rng: &mut ChaCha8Rng, total: u64) {
        // Byte offsets at which words of this piece end. Words are removed by truncation to one of them.
        let mut ends = vec![text.len()];
        let mut missing = few.cast_signed();
        for _ in 0..TRIES {
            if missing < 0 {
                let keep = ends.len().saturating_sub(usize::try_from(-missing).unwrap_or(usize::MAX)).max(1);
                ends.truncate(keep);
                text.truncate(ends[keep - 1]);
            }
            for _ in 0..missing {
                text.push_str(self.word(rng));
                ends.push(text.len());
            }
            missing = total.cast_signed() - self.count(text).cast_signed();
            if missing == 0 || (missing < 0 && ends.len() == 1) {
                return;
            }
        }
    }
}

/// A prompt that grows, like the history of a conversation.
#[derive(Clone, Debug)]
pub(super) struct TextDraft<'w> {
    writer: &'w TextWriter,
    text: Prompt,
    len: u64,
    /// Number of added tokens ([`ExactWords::added`]) that no piece has subtracted from its words yet. The first exact
    /// piece subtracts them, and this becomes 0.
    added: u64,
}

impl TextDraft<'_> {
    /// Appends a piece. If `exact`, this piece gets more or fewer words, so that the whole text has the summed length
    /// of its pieces. A piece of text that prompts share must not be `exact`: its words would depend on the text
    /// before it. Token ids are always exact.
    pub(super) fn add(&mut self, piece: TextPiece, exact: bool) {
        self.len += u64::from(piece.len);
        let mut rng = rng(self.writer.seed, piece.purpose, piece.index);
        match (&self.writer.form, &mut self.text) {
            (PromptForm::Ids { first, end }, Prompt::Tokens(tokens)) => {
                tokens.extend((0..piece.len).map(|_| first + below(&mut rng, end - first)));
            }
            (PromptForm::Words(words), Prompt::Text(text)) if exact => {
                let few = u64::from(piece.len).saturating_sub(std::mem::take(&mut self.added));
                words.extend_to_length(text, few, &mut rng, self.len);
            }
            (PromptForm::Words(words), Prompt::Text(text)) => {
                for _ in 0..piece.len {
                    text.push_str(words.word(&mut rng));
                }
            }
            (PromptForm::Usual, Prompt::Text(text)) => {
                for _ in 0..piece.len {
                    text.push_str(USUAL_WORDS[below(&mut rng, USUAL) as usize]);
                }
            }
            _ => unreachable!("a draft has its writer's form"),
        }
    }

    pub(super) fn prompt(&self) -> Prompt {
        self.text.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::tests::tokenizer;
    use proptest::prelude::*;

    fn texts(special: bool) -> TextWriter {
        let surroundings = WorkloadSurroundings {
            seed: 5,
            tokenizer: Some(tokenizer()),
            chat: !special,
            ..WorkloadSurroundings::default()
        };
        TextWriter::new(&surroundings).unwrap()
    }

    fn text(prompt: Prompt) -> String {
        match prompt {
            Prompt::Text(text) => text,
            other => panic!("{other:?}"),
        }
    }

    proptest! {
        // Four cases only: each one reads the tokenizer, and that dominates the duration of the test.
        #![proptest_config(ProptestConfig::with_cases(4))]
        #[test]
        fn a_text_has_exactly_the_requested_number_of_tokens(
            lens in prop::collection::vec((3_u32..300, 0_u32..50, any::<u64>()), 8), special in any::<bool>(),
        ) {
            let writer = texts(special);
            let tokenizer = Tokenizer::read(&tokenizer()).unwrap();
            for (len, shared, index) in lens {
                let pieces = [TextPiece::new(DrawPurpose::Shared, 1, shared), TextPiece::new(DrawPurpose::Prompt, index, len)];
                prop_assert_eq!(tokenizer.count(&text(writer.prompt(pieces)), special), u64::from(len + shared));
            }
        }
    }

    #[test]
    fn texts_share_a_shared_piece_at_their_begin() {
        let writer = texts(true);
        let of = |index| {
            let pieces = [TextPiece::new(DrawPurpose::Shared, 1, 20), TextPiece::new(DrawPurpose::Prompt, index, 20)];
            text(writer.prompt(pieces))
        };
        let (one, two) = (of(1), of(2));
        let shared = text(
            writer.prompt([TextPiece::new(DrawPurpose::Shared, 1, 20), TextPiece::new(DrawPurpose::Prompt, 1, 1)]),
        );
        let begin: Vec<_> = shared.split(' ').take(20).collect();
        assert!(one.starts_with(&begin.join(" ")) && two.starts_with(&begin.join(" ")));
        assert_ne!(one, two);
    }

    #[test]
    fn without_a_tokenizer_a_text_has_one_usual_word_per_token() {
        let writer =
            TextWriter::new(&WorkloadSurroundings { approximate: true, ..WorkloadSurroundings::default() }).unwrap();
        let of = |index| text(writer.prompt([TextPiece::new(DrawPurpose::Prompt, index, 20)]));
        assert_eq!(of(1).split_whitespace().count(), 20);
        assert!(of(1) == of(1) && of(1) != of(2) && writer.check(1).is_ok());
    }

    #[test]
    fn a_length_below_the_tokens_added_by_the_tokenizer_is_refused() {
        // The tokenizer of the tests puts one token before every text.
        let error = texts(true).check(1).unwrap_err();
        assert_eq!(error.to_string(), "no text of exactly 1 tokens was found; the nearest has 2");
        assert_eq!(texts(true).check(2), Ok(()));
    }
}
