//! Reads `$NAME`, `${NAME...}`, `$(...)` and `$((...))`.

use super::lexer::ShellLexer;
use super::word::{Modifier, ModifierText, ShellWord, WordPiece};

/// Reads the text behind a dollar sign into `word`.
pub(super) fn read_parameter(lexer: &mut ShellLexer, word: &mut ShellWord, quoted: bool) {
    let (start, line) = (lexer.position(), lexer.line());
    lexer.bump();
    match lexer.peek(0) {
        Some('(') => {
            lexer.bump();
            if !lexer.skip_parenthesis() {
                return lexer.recover(word, start, line, "the parenthesis");
            }
            word.pieces.push(WordPiece::Executed { source: lexer.text_since(start) });
        }
        Some('{') => {
            lexer.bump();
            if !skip_brace(lexer) {
                return lexer.recover(word, start, line, "the brace");
            }
            word.pieces.push(braced(lexer.text_since(start), quoted));
        }
        Some(first) if first.is_ascii_alphabetic() || first == '_' => {
            while lexer.peek(0).is_some_and(|c| c.is_ascii_alphanumeric() || c == '_') {
                lexer.bump();
            }
            let source = lexer.text_since(start);
            let name = source[1..].to_owned();
            word.pieces.push(WordPiece::Parameter { name, modifier: Modifier::None, quoted, source });
        }
        Some('@' | '*' | '0'..='9') => {
            lexer.bump();
            let source = lexer.text_since(start);
            let name = source[1..].to_owned();
            word.pieces.push(WordPiece::Parameter { name, modifier: Modifier::None, quoted, source });
        }
        Some('#' | '?' | '$' | '!') => {
            lexer.bump();
            word.pieces.push(WordPiece::Executed { source: lexer.text_since(start) });
        }
        // A dollar sign alone is a character.
        _ => word.pieces.push(WordPiece::Text { text: "$".to_owned(), quoted }),
    }
}

/// Skips to the brace that closes the current one. Returns whether there is one.
fn skip_brace(lexer: &mut ShellLexer) -> bool {
    let mut depth = 1_usize;
    while let Some(next) = lexer.bump() {
        match next {
            '\\' => {
                lexer.bump();
            }
            '{' => depth += 1,
            '}' if depth == 1 => return true,
            '}' => depth -= 1,
            _ => {}
        }
    }
    false
}

/// Reads the parts of `${...}`. Forms that cut or replace text count as executed.
fn braced(source: String, quoted: bool) -> WordPiece {
    let inner = &source[2..source.len() - 1];
    let end = inner.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(inner.len());
    let end = if inner.starts_with(['@', '*']) { 1 } else { end };
    let (name, rest) = inner.split_at(end);
    let behind = rest.strip_prefix(':').unwrap_or(rest);
    let modifier = match behind.chars().next() {
        _ if name.is_empty() => None,
        None if rest.is_empty() => Some(Modifier::None),
        _ if matches!(rest, "[@]" | "[*]") => Some(Modifier::Elements),
        Some('-' | '=') => Some(Modifier::Fallback(unquoted(&behind[1..]))),
        Some('+') => Some(Modifier::Alternative(unquoted(&behind[1..]))),
        // The text behind `?` is the error message for an unset variable.
        Some('?') => Some(Modifier::None),
        _ => None,
    };
    match modifier {
        Some(modifier) => WordPiece::Parameter { name: name.to_owned(), modifier, quoted, source },
        None => WordPiece::Executed { source },
    }
}

/// Removes one pair of quotes around a fallback, as in `${A:-"b"}`.
fn unquoted(text: &str) -> ModifierText {
    let within = |quote: char| text.strip_prefix(quote)?.strip_suffix(quote);
    let inner = within('"').or_else(|| within('\''));
    ModifierText { text: inner.unwrap_or(text).to_owned(), quoted: inner.is_some() }
}
