//! Recorded prompts, with the lengths of their replies.

use std::collections::HashSet;

use super::{LeftOut, MessagePart, Prompt, UserSession, Workload};

/// Sessions in the order of sending. After the last one they start over.
#[derive(Debug)]
pub(super) struct RecordedPrompts {
    /// At least one.
    sessions: Vec<UserSession>,
    longest: u64,
    left_out: Vec<LeftOut>,
    unused_beginning: Beginning,
}

/// A beginning that no recorded prompt has.
#[derive(Debug)]
struct Beginning {
    character: char,
    token: u32,
}

/// Limit in bytes of the last word that is removed from a text to make room for another beginning.
const LONGEST_WORD: usize = 32;

/// Token ids below this are special in most vocabularies: padding, begin and end of a text.
const FIRST_TOKEN: u32 = 3;

impl RecordedPrompts {
    pub(super) fn new(sessions: Vec<UserSession>, longest: u64, left_out: Vec<LeftOut>) -> Self {
        let other = Beginning::of_none(&sessions);
        Self { sessions, longest, left_out, unused_beginning: other }
    }
}

impl Beginning {
    fn of_none(sessions: &[UserSession]) -> Self {
        let prompts = || sessions.iter().flat_map(|session| &session.turns).map(|turn| &turn.request.prompt);
        let tokens = || prompts().filter_map(|prompt| if let Prompt::Tokens(ids) = prompt { Some(ids) } else { None });
        let characters: HashSet<_> = prompts().filter_map(|prompt| first_text(prompt)?.chars().next()).collect();
        let first_tokens: HashSet<_> = tokens().filter_map(|ids| ids.first().copied()).collect();
        // An id that occurs in a prompt is certainly in the vocabulary.
        let known = tokens().flatten().copied().find(|id| !first_tokens.contains(id));
        let any = || (FIRST_TOKEN..u32::MAX).find(|id| !first_tokens.contains(id)).unwrap_or(u32::MAX);
        let character = ('!'..='~').chain('\u{100}'..char::MAX).find(|character| !characters.contains(character));
        Self { character: character.unwrap_or(char::MAX), token: known.unwrap_or_else(any) }
    }

    /// Inserts this beginning in front of a prompt. A prefix cache compares whole blocks from the first token on, so
    /// that it finds none of them. As much is removed from the prompt's end: the longest prompt must still fit the
    /// model.
    fn put(&self, prompt: &mut Prompt) {
        let text = match prompt {
            Prompt::Tokens(ids) => {
                if ids.pop().is_some() {
                    ids.insert(0, self.token);
                }
                return;
            }
            Prompt::Text(text) => Some(text),
            Prompt::Messages(messages) => {
                messages.iter_mut().flat_map(|message| &mut message.content).find_map(|part| match part {
                    MessagePart::Text(text) if !text.is_empty() => Some(text),
                    _ => None,
                })
            }
        };
        if let Some(text) = text.filter(|text| !text.is_empty()) {
            text.truncate(before_last_word(text));
            text.insert(0, self.character);
        }
    }
}

/// Returns the first text of a prompt.
fn first_text(prompt: &Prompt) -> Option<&str> {
    match prompt {
        Prompt::Tokens(_) => None,
        Prompt::Text(text) => Some(text),
        Prompt::Messages(messages) => {
            messages.iter().flat_map(|message| &message.content).find_map(|part| match part {
                MessagePart::Text(text) if !text.is_empty() => Some(text.as_str()),
                _ => None,
            })
        }
    }
}

/// Returns the number of bytes before a text's last word. The tokens of that word make room for one character. If the
/// word is too long, or the script has no spaces, the text loses its last character only.
fn before_last_word(text: &str) -> usize {
    let end = text.trim_end().rfind(char::is_whitespace).filter(|end| text.len() - end <= LONGEST_WORD);
    end.unwrap_or_else(|| text.char_indices().next_back().map_or(0, |(last, _)| last))
}

impl Workload for RecordedPrompts {
    fn session(&self, index: u64) -> UserSession {
        let index = usize::try_from(index % self.sessions.len() as u64).unwrap_or(0);
        self.sessions[index].clone()
    }

    fn warmup_session(&self, index: u64) -> UserSession {
        let mut session = self.session(index);
        session.turns.iter_mut().for_each(|turn| self.unused_beginning.put(&mut turn.request.prompt));
        session
    }

    fn longest(&self) -> u64 {
        self.longest
    }

    fn len(&self) -> Option<u64> {
        Some(self.sessions.len() as u64)
    }

    fn left_out(&self) -> Vec<LeftOut> {
        self.left_out.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{ChatMessage, Role};

    fn warmed(prompts: Vec<Prompt>) -> Vec<Prompt> {
        let count = prompts.len() as u64;
        let recorded =
            RecordedPrompts::new(prompts.into_iter().map(|prompt| UserSession::single(prompt, 5)).collect(), 9, vec![]);
        (0..count).map(|index| recorded.warmup_session(index).turns.remove(0).request.prompt).collect()
    }

    fn texts(texts: &[&str]) -> Vec<Prompt> {
        texts.iter().map(|text| Prompt::Text((*text).to_owned())).collect()
    }

    #[test]
    fn warm_up_texts_have_unique_begins_and_are_not_longer() {
        assert_eq!(
            warmed(texts(&["How do you do", "! is taken", "", "one\n", "\u{4f60}\u{597d}"])),
            texts(&["\"How do you", "\"! is", "", "\"one", "\"\u{4f60}"])
        );
        let long = format!("a {}", "x".repeat(40));
        assert_eq!(warmed(texts(&[&long])), texts(&[&format!("!{}", &long[..41])]));
    }

    #[test]
    fn warm_up_tokens_have_unique_begins_and_the_same_number() {
        let tokens = |ids: &[u32]| Prompt::Tokens(ids.to_vec());
        assert_eq!(warmed(vec![tokens(&[7, 8, 9]), tokens(&[8, 7])]), [tokens(&[9, 7, 8]), tokens(&[9, 8])]);
        assert_eq!(warmed(vec![tokens(&[3, 3]), tokens(&[4])]), [tokens(&[5, 3]), tokens(&[5])]);
    }

    #[test]
    fn warm_up_messages_have_unique_begins() {
        let message = |text: &str| ChatMessage { role: Role::User, content: vec![MessagePart::Text(text.to_owned())] };
        let asked = Prompt::Messages(vec![message("be kind"), message("how")]);
        assert_eq!(warmed(vec![asked]), [Prompt::Messages(vec![message("!be"), message("how")])]);
    }
}
