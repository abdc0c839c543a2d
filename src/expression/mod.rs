//! Arithmetic expressions and comparisons in text that users write.
//!
//! ```text
//! comparison = sum relation sum
//! relation   = ">=" | "<=" | "==" | "!=" | ">" | "<"
//! sum        = product (("+" | "-") product)*
//! product    = factor (("*" | "/") factor)*
//! factor     = "-"* (number | name | function "(" sum "," sum ")" | "(" sum ")")
//! function   = "min" | "max"
//! ```
//!
//! The caller's [`NameResolver`] defines the names and the numbers. A name takes precedence over a number that begins
//! at the same place, and over a function unless "(" follows. Values are 64-bit floats.

mod parser;

pub(crate) use parser::{begins_as_number, is_word_character};

/// The names and numbers that one caller's expressions may contain.
pub(crate) trait NameResolver {
    /// A name after parsing.
    type Name;

    /// The kind of name that an error expects, with its article: "a parameter".
    const EXPECTED: &'static str;

    /// Returns the name at the beginning of `text`, or `None` if `text` begins with something else.
    ///
    /// # Errors
    /// The reason for which the name at the beginning of `text` cannot be used.
    fn name(&self, text: &str) -> Result<Option<NameMatch<Self::Name>>, String>;

    /// Returns the value of `word` if it is a number here.
    fn number(&self, word: &str) -> Option<f64>;
}

/// A name at the beginning of a text.
pub(crate) struct NameMatch<N> {
    pub name: N,
    /// The length of its spelling, in bytes.
    pub length: usize,
}

/// A parsed sum.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Expression<N> {
    Number(f64),
    Name(N),
    Sum(Vec<ExpressionTerm<N>>),
    Product(Vec<ExpressionFactor<N>>),
    Call(Box<FunctionCall<N>>),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ExpressionTerm<N> {
    value: Expression<N>,
    is_subtracted: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ExpressionFactor<N> {
    value: Expression<N>,
    is_divisor: bool,
}

/// A function of two arguments.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FunctionCall<N> {
    function: Function,
    first: Expression<N>,
    second: Expression<N>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Function {
    Min,
    Max,
}

/// Two sums and the relation between them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Comparison<N> {
    left: Expression<N>,
    relation: Relation,
    right: Expression<N>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relation {
    AtLeast,
    AtMost,
    Equal,
    Unequal,
    Above,
    Below,
}

impl<N> Expression<N> {
    /// Parses the whole of `text` as a sum.
    ///
    /// # Errors
    /// The reason, which quotes the first part of `text` that cannot be parsed.
    pub(crate) fn parse<V: NameResolver<Name = N>>(text: &str, vocabulary: &V) -> Result<Self, String> {
        parser::parse(text, vocabulary, parser::ExpressionParser::sum)
    }

    /// Computes the value from the values of the names.
    ///
    /// # Errors
    /// The first error of `value_of`.
    pub(crate) fn value<E>(&self, value_of: &impl Fn(&N) -> Result<f64, E>) -> Result<f64, E> {
        match self {
            Self::Number(number) => Ok(*number),
            Self::Name(name) => value_of(name),
            Self::Sum(terms) => terms.iter().try_fold(0.0, |sum, term| {
                let value = term.value.value(value_of)?;
                Ok(if term.is_subtracted { sum - value } else { sum + value })
            }),
            Self::Product(factors) => factors.iter().try_fold(1.0, |product, factor| {
                let value = factor.value.value(value_of)?;
                Ok(if factor.is_divisor { product / value } else { product * value })
            }),
            Self::Call(call) => {
                let (first, second) = (call.first.value(value_of)?, call.second.value(value_of)?);
                Ok(match call.function {
                    Function::Min => first.min(second),
                    Function::Max => first.max(second),
                })
            }
        }
    }
}

impl<N> Comparison<N> {
    /// Parses the whole of `text` as a comparison.
    ///
    /// # Errors
    /// The reason, which quotes the first part of `text` that cannot be parsed.
    pub(crate) fn parse<V: NameResolver<Name = N>>(text: &str, vocabulary: &V) -> Result<Self, String> {
        parser::parse(text, vocabulary, parser::ExpressionParser::comparison)
    }

    /// Computes both sides and compares them. A comparison with NaN is false, also that for inequality.
    ///
    /// # Errors
    /// The first error of `value_of`.
    pub(crate) fn holds<E>(&self, value_of: &impl Fn(&N) -> Result<f64, E>) -> Result<bool, E> {
        Ok(self.relation.holds(self.left.value(value_of)?, self.right.value(value_of)?))
    }
}

impl Relation {
    #[expect(clippy::float_cmp, reason = "the user asks for exact equality")]
    fn holds(self, left: f64, right: f64) -> bool {
        match self {
            Self::AtLeast => left >= right,
            Self::AtMost => left <= right,
            Self::Equal => left == right,
            // The operator itself is true if either side is NaN.
            Self::Unequal => left != right && !left.is_nan() && !right.is_nan(),
            Self::Above => left > right,
            Self::Below => left < right,
        }
    }
}
