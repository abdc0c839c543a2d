//! Splits a shell text into words and operators. Redirections are left out, and nothing is executed.
//!
//! The lexer accepts any text. A quote without its end makes the word broken, and the next line is read as usual.

use super::parameter::read_parameter;
use super::word::{ShellToken, ShellWord, WordPiece};

/// The largest number of quotes without an end. A text with more is no script, and its rest is not read.
const MAX_OPEN_QUOTES: usize = 32;

/// The reading position in a text.
pub(super) struct ShellLexer {
    chars: Vec<char>,
    at: usize,
    line: usize,
    open_quotes: usize,
    /// Whether the position is within an array, which contains no other array.
    in_elements: bool,
    /// The marks of here-documents that begin on the next line.
    pending_documents: Vec<(String, bool)>,
}

/// Returns the tokens of a text with the numbers of their lines. The first line has the number `first_line`.
pub(super) fn tokens(text: &str, first_line: usize) -> Vec<(usize, ShellToken)> {
    let mut lexer = ShellLexer::new(text, first_line);
    let mut tokens = Vec::new();
    while let Some(token) = lexer.next_token() {
        tokens.push(token);
    }
    tokens
}

/// Returns the pieces of a text as if it were in double quotes.
pub(super) fn quoted_pieces(text: &str) -> Vec<WordPiece> {
    let mut lexer = ShellLexer::new(text, 1);
    let mut word = ShellWord::default();
    while lexer.peek(0).is_some() {
        lexer.read_double_quoted_char(&mut word);
    }
    word.pieces
}

impl ShellLexer {
    fn new(text: &str, line: usize) -> Self {
        Self {
            chars: text.replace("\r\n", "\n").chars().collect(),
            at: 0,
            line,
            open_quotes: 0,
            in_elements: false,
            pending_documents: Vec::new(),
        }
    }

    pub(super) fn peek(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    pub(super) fn bump(&mut self) -> Option<char> {
        let next = self.peek(0)?;
        self.at += 1;
        self.line += usize::from(next == '\n');
        Some(next)
    }

    pub(super) fn position(&self) -> usize {
        self.at
    }

    /// Returns the number of the line at the reading position.
    pub(super) fn line(&self) -> usize {
        self.line
    }

    pub(super) fn text_since(&self, start: usize) -> String {
        self.chars[start..self.at].iter().collect()
    }

    fn starts_with(&self, text: &str) -> bool {
        text.chars().enumerate().all(|(ahead, c)| self.peek(ahead) == Some(c))
    }

    fn skip(&mut self, count: usize) {
        for _ in 0..count {
            self.bump();
        }
    }

    fn next_token(&mut self) -> Option<(usize, ShellToken)> {
        loop {
            self.skip_blanks();
            let line = self.line;
            if self.starts_with("\n") && !self.pending_documents.is_empty() {
                self.bump();
                return Some((line, self.read_document()));
            }
            if let Some(operator) = OPERATORS.iter().find(|operator| self.starts_with(operator)) {
                let is_redirection = operator.contains(['<', '>']);
                self.skip(operator.chars().count());
                if !is_redirection {
                    return Some((line, ShellToken::Operator(operator)));
                }
                self.skip_target(operator);
                continue;
            }
            self.peek(0)?;
            let word = self.read_word();
            // In `2>&1` the digit belongs to the redirection.
            let is_descriptor = word.literal().is_some_and(|text| text.chars().all(|c| c.is_ascii_digit()));
            if !(is_descriptor && matches!(self.peek(0), Some('<' | '>'))) {
                return Some((line, ShellToken::Word(word)));
            }
        }
    }

    /// Skips blanks, comments and continuations of lines.
    fn skip_blanks(&mut self) {
        loop {
            match self.peek(0) {
                Some(' ' | '\t' | '\r') => self.skip(1),
                Some('\\') if self.peek(1) == Some('\n') => self.skip(2),
                Some('#') => {
                    while self.peek(0).is_some_and(|c| c != '\n') {
                        self.bump();
                    }
                }
                _ => return,
            }
        }
    }

    /// Skips the target of a redirection. A here-document is read when its first line begins.
    fn skip_target(&mut self, operator: &str) {
        if operator.ends_with('(') {
            self.skip_parenthesis();
            return;
        }
        self.skip_blanks();
        if self.starts_with(">(") || self.starts_with("<(") {
            self.skip(2);
            self.skip_parenthesis();
            return;
        }
        let target = self.read_word();
        if matches!(operator, "<<" | "<<-") {
            let mark = target.pieces.into_iter().map(|piece| match piece {
                WordPiece::Text { text, .. } => text,
                WordPiece::Parameter { source, .. } | WordPiece::Executed { source } => source,
            });
            self.pending_documents.push((mark.collect(), operator == "<<-"));
        }
    }

    fn read_document(&mut self) -> ShellToken {
        let (mark, is_indented) = self.pending_documents.remove(0);
        let mut body = String::new();
        while self.peek(0).is_some() {
            let start = self.at;
            while self.peek(0).is_some_and(|c| c != '\n') {
                self.bump();
            }
            let line = self.text_since(start);
            self.bump();
            let content = if is_indented { line.trim_start_matches('\t') } else { &line };
            if content == mark {
                break;
            }
            body.push_str(content);
            body.push('\n');
        }
        ShellToken::HereDocument(body)
    }

    pub(super) fn read_word(&mut self) -> ShellWord {
        let mut word = ShellWord::default();
        while let Some(next) = self.peek(0) {
            match next {
                '(' if !self.in_elements && is_assignment_begin(&word) => {
                    self.bump();
                    self.in_elements = true;
                    word.elements = Some(self.read_elements());
                    self.in_elements = false;
                    return word;
                }
                ' ' | '\t' | '\r' | '\n' | ';' | '&' | '|' | '<' | '>' | '(' | ')' => break,
                '\\' if self.peek(1) == Some('\n') => self.skip(2),
                '\\' => {
                    self.bump();
                    let escaped = self.bump().map_or('\\', |c| c);
                    word.push(escaped, true);
                }
                '\'' => self.read_quoted(&mut word, '\''),
                '"' => self.read_quoted(&mut word, '"'),
                '$' if matches!(self.peek(1), Some('\'' | '"')) => self.skip(1),
                '$' => read_parameter(self, &mut word, false),
                '`' => self.read_backticks(&mut word),
                _ => {
                    self.bump();
                    word.push(next, false);
                }
            }
            if word.broken.is_some() {
                break;
            }
        }
        word
    }

    /// Reads the elements of an array up to its closing parenthesis.
    fn read_elements(&mut self) -> Vec<ShellWord> {
        let mut elements = Vec::new();
        loop {
            self.skip_blanks();
            match self.peek(0) {
                None => return elements,
                Some(')') => {
                    self.bump();
                    return elements;
                }
                Some('\n' | ';' | '&' | '|' | '<' | '>' | '(') => self.skip(1),
                Some(_) => elements.push(self.read_word()),
            }
        }
    }

    fn read_quoted(&mut self, word: &mut ShellWord, quote: char) {
        let (start, line) = (self.at, self.line);
        self.bump();
        word.begin_quoted();
        loop {
            match self.peek(0) {
                None => return self.recover(word, start, line, &format!("the quote {quote}")),
                Some(next) if next == quote => {
                    self.bump();
                    return;
                }
                Some(next) if quote == '\'' => {
                    self.bump();
                    word.push(next, true);
                }
                Some(_) => self.read_double_quoted_char(word),
            }
            if word.broken.is_some() {
                return;
            }
        }
    }

    fn read_double_quoted_char(&mut self, word: &mut ShellWord) {
        match (self.peek(0), self.peek(1)) {
            (Some('\\'), Some('\n')) => self.skip(2),
            (Some('\\'), Some(escaped @ ('$' | '`' | '"' | '\\'))) => {
                self.skip(2);
                word.push(escaped, true);
            }
            (Some('$'), _) => read_parameter(self, word, true),
            (Some('`'), _) => self.read_backticks(word),
            (Some(next), _) => {
                self.bump();
                word.push(next, true);
            }
            (None, _) => {}
        }
    }

    fn read_backticks(&mut self, word: &mut ShellWord) {
        let (start, line) = (self.at, self.line);
        self.bump();
        loop {
            match self.bump() {
                None => return self.recover(word, start, line, "the backtick"),
                Some('\\') => self.skip(1),
                Some('`') => break,
                Some(_) => {}
            }
        }
        word.pieces.push(WordPiece::Executed { source: self.text_since(start) });
    }

    /// Skips to the parenthesis that closes the current one. Returns whether there is one.
    pub(super) fn skip_parenthesis(&mut self) -> bool {
        let mut depth = 1_usize;
        let mut quote = None;
        while let Some(next) = self.bump() {
            match (quote, next) {
                (Some('\''), '\'') | (Some('"'), '"') => quote = None,
                (_, '\\') if quote != Some('\'') => self.skip(1),
                (None, '\'' | '"') => quote = Some(next),
                (None, '(') => depth += 1,
                (None, ')') if depth == 1 => return true,
                (None, ')') => depth -= 1,
                _ => {}
            }
        }
        false
    }

    /// Marks a word as broken. The text behind the line of the opening quote is read again.
    pub(super) fn recover(&mut self, word: &mut ShellWord, start: usize, line: usize, opened: &str) {
        word.broken = Some(format!("{opened} that opens on line {line} is never closed"));
        self.open_quotes += 1;
        if self.open_quotes > MAX_OPEN_QUOTES {
            return;
        }
        (self.at, self.line) = (start, line);
        while self.peek(0).is_some_and(|c| c != '\n') {
            self.bump();
        }
    }
}

/// Operators, the longer ones before their beginnings.
const OPERATORS: [&str; 26] = [
    "<<<", "<<-", "&>>", ";;&", "&&", "||", ";;", ";&", "|&", "<<", ">>", "<&", ">&", "&>", ">|", "<>", "<(", ">(",
    "<", ">", "|", ";", "&", "\n", "(", ")",
];

fn is_assignment_begin(word: &ShellWord) -> bool {
    let name = word.literal().and_then(|text| text.strip_suffix('='));
    name.is_some_and(|name| crate::engine::is_variable(name.strip_suffix('+').unwrap_or(name)))
}

impl ShellWord {
    fn push(&mut self, next: char, is_quoted: bool) {
        match self.pieces.last_mut() {
            Some(WordPiece::Text { text, quoted }) if *quoted == is_quoted => text.push(next),
            _ => self.pieces.push(WordPiece::Text { text: next.to_string(), quoted: is_quoted }),
        }
    }

    /// Begins a quoted piece, so that `""` is a word.
    fn begin_quoted(&mut self) {
        if !matches!(self.pieces.last(), Some(WordPiece::Text { quoted: true, .. })) {
            self.pieces.push(WordPiece::Text { text: String::new(), quoted: true });
        }
    }
}
