//! Recursive-descent parser of the grammar in `mod.rs`.

use super::{
    Comparison, Expression, ExpressionFactor, ExpressionTerm, Function, FunctionCall, NameMatch, NameResolver, Relation,
};

/// Limit of nested parentheses. Like that of functions, it keeps the recursion within the stack.
const MAX_PARENTHESES: usize = 64;

/// Limit of nested functions.
const MAX_FUNCTIONS: usize = 256;

/// Longer symbols come before their prefixes.
const RELATIONS: [(&str, Relation); 6] = [
    (">=", Relation::AtLeast),
    ("<=", Relation::AtMost),
    ("==", Relation::Equal),
    ("!=", Relation::Unequal),
    (">", Relation::Above),
    ("<", Relation::Below),
];

const FUNCTIONS: [(&str, Function); 2] = [("min", Function::Min), ("max", Function::Max)];

/// Parses the whole of `text` by one rule of the grammar.
pub(super) fn parse<'t, V: NameResolver, T>(
    text: &'t str,
    vocabulary: &'t V,
    rule: impl FnOnce(&mut ExpressionParser<'t, V>) -> Result<T, String>,
) -> Result<T, String> {
    let mut parser = ExpressionParser { rest: text.trim_start(), vocabulary, parentheses: 0, functions: 0 };
    let parsed = rule(&mut parser)?;
    match parser.rest.trim_end() {
        "" => Ok(parsed),
        rest => Err(format!("cannot read {rest:?}")),
    }
}

/// The state of one parse. Every rule leaves `rest` without white space at its beginning.
pub(super) struct ExpressionParser<'t, V> {
    rest: &'t str,
    vocabulary: &'t V,
    /// The number of open parentheses.
    parentheses: usize,
    /// The number of open function calls.
    functions: usize,
}

impl<V: NameResolver> ExpressionParser<'_, V> {
    pub(super) fn comparison(&mut self) -> Result<Comparison<V::Name>, String> {
        Ok(Comparison { left: self.sum()?, relation: self.relation()?, right: self.sum()? })
    }

    fn relation(&mut self) -> Result<Relation, String> {
        let found = RELATIONS.iter().find(|(symbol, _)| self.eat(symbol));
        found.map(|(_, relation)| *relation).ok_or_else(|| {
            let symbols: Vec<_> = RELATIONS.iter().map(|(symbol, _)| *symbol).collect();
            format!("expected one of {} before {:?}", symbols.join(" "), self.rest)
        })
    }

    pub(super) fn sum(&mut self) -> Result<Expression<V::Name>, String> {
        let first = self.product()?;
        let mut terms = Vec::new();
        loop {
            let is_subtracted = self.eat("-");
            if !is_subtracted && !self.eat("+") {
                break;
            }
            terms.push(ExpressionTerm { value: self.product()?, is_subtracted });
        }
        if terms.is_empty() {
            return Ok(first);
        }
        terms.insert(0, ExpressionTerm { value: first, is_subtracted: false });
        Ok(Expression::Sum(terms))
    }

    fn product(&mut self) -> Result<Expression<V::Name>, String> {
        let first = self.factor()?;
        let mut factors = Vec::new();
        loop {
            let is_divisor = self.eat("/");
            if !is_divisor && !self.eat("*") {
                break;
            }
            factors.push(ExpressionFactor { value: self.factor()?, is_divisor });
        }
        if factors.is_empty() {
            return Ok(first);
        }
        factors.insert(0, ExpressionFactor { value: first, is_divisor: false });
        Ok(Expression::Product(factors))
    }

    fn factor(&mut self) -> Result<Expression<V::Name>, String> {
        let mut is_negative = false;
        while self.eat("-") {
            is_negative = !is_negative;
        }
        let value = self.operand()?;
        Ok(if is_negative { Expression::Sum(vec![ExpressionTerm { value, is_subtracted: true }]) } else { value })
    }

    fn operand(&mut self) -> Result<Expression<V::Name>, String> {
        if self.eat("(") {
            self.parentheses += 1;
            check_depth(self.parentheses, MAX_PARENTHESES, "parentheses")?;
            let inner = self.sum()?;
            self.parentheses -= 1;
            self.expect(")")?;
            return Ok(inner);
        }
        let name = self.vocabulary.name(self.rest)?;
        let end = name.as_ref().map_or_else(|| number_end(self.rest), |found| found.length);
        let (word, rest) = self.rest.split_at(end);
        let function = FUNCTIONS.iter().find(|(function, _)| *function == word).map(|(_, function)| *function);
        let rest = rest.trim_start();
        if let Some(function) = function.filter(|_| rest.starts_with('(')) {
            self.rest = rest;
            return self.call(function);
        }
        let operand = match name {
            Some(NameMatch { name, .. }) => Expression::Name(name),
            None => Expression::Number(self.vocabulary.number(word).ok_or_else(|| match (word, function) {
                ("", _) => format!("expected a number or {} before {:?}", V::EXPECTED, self.rest),
                (_, None) => format!("{word:?} is neither a number nor {}", V::EXPECTED),
                (_, Some(_)) => format!("expected \"(\" after the function {word:?}"),
            })?),
        };
        self.rest = rest;
        Ok(operand)
    }

    /// Parses the arguments of a function.
    fn call(&mut self, function: Function) -> Result<Expression<V::Name>, String> {
        self.expect("(")?;
        self.functions += 1;
        check_depth(self.functions, MAX_FUNCTIONS, "functions")?;
        let first = self.sum()?;
        self.expect(",")?;
        let second = self.sum()?;
        self.functions -= 1;
        self.expect(")")?;
        Ok(Expression::Call(Box::new(FunctionCall { function, first, second })))
    }

    fn expect(&mut self, symbol: &str) -> Result<(), String> {
        if self.eat(symbol) { Ok(()) } else { Err(format!("expected {symbol:?} before {:?}", self.rest)) }
    }

    fn eat(&mut self, symbol: &str) -> bool {
        let rest = self.rest.strip_prefix(symbol);
        self.rest = rest.map_or(self.rest, str::trim_start);
        rest.is_some()
    }
}

fn check_depth(depth: usize, most: usize, what: &str) -> Result<(), String> {
    if depth > most { Err(format!("more than {most} nested {what}")) } else { Ok(()) }
}

/// Returns whether a word may contain `c`.
pub(crate) fn is_word_character(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '.'
}

/// Returns whether `word` begins like a number, and not like a word such as `inf`.
pub(crate) fn begins_as_number(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_digit() || c == '.')
}

/// Returns the end of the word at the beginning of `text`. The sign of an exponent (`1e-3`) belongs to a number.
fn number_end(text: &str) -> usize {
    let mut before = ' ';
    for (at, c) in text.char_indices() {
        let is_sign = matches!(before, 'e' | 'E') && matches!(c, '+' | '-') && begins_as_number(text);
        if !is_word_character(c) && !is_sign {
            return at;
        }
        before = c;
    }
    text.len()
}
