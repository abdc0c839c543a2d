//! Divides the arguments of a server into its model, its address, secrets and all other flags.

use super::error::LineProblem;
use super::field::WordField;
use super::secrets::SecretValues;
use crate::engine::Engine;
use crate::flag::{FlagKind, FlagTable};
use crate::trial::is_secret;

/// Flags with the address of a server. Each launch has its own.
const ADDRESS: [&str; 3] = ["host", "port", "uds"];

/// Flags with the model.
const MODEL: [&str; 2] = ["model", "model-tag"];

/// The hint for an argument whose text is unknown.
const UNKNOWN_HINT: &str = "write the value into a copy of the line, or assign the variable in the text";

/// The parts of a server's arguments.
#[derive(Debug, Default)]
pub(super) struct DividedArguments {
    pub(super) model: Option<String>,
    pub(super) args: Vec<String>,
    pub(super) notes: Vec<String>,
}

/// The flags of all releases of an engine.
struct FlagForms(Vec<FlagTable>);

impl FlagForms {
    fn of(engine: &dyn Engine) -> Self {
        let releases = engine.flags().into_iter().flat_map(|book| book.releases(None, None));
        let mut tables: Vec<_> = releases.filter_map(|release| engine.flag_table(release)).collect();
        tables.reverse();
        Self(tables)
    }

    /// Returns the form of a flag in the newest release that has it.
    fn kind(&self, name: &str) -> Option<FlagKind> {
        let find = |name: &str| self.0.iter().find_map(|table| table.find(name)).map(|flag| flag.kind());
        find(name).or_else(|| find(name.strip_prefix("no-")?).filter(|kind| *kind == FlagKind::Bool))
    }

    /// Returns whether a flag has a secret as its value. Numbers and switches, such as limits of tokens, are none.
    fn is_secret(&self, name: &str) -> bool {
        let is_text = |kind| matches!(kind, FlagKind::String | FlagKind::List | FlagKind::Other | FlagKind::TextOrJson);
        is_secret(name) && self.kind(name).is_none_or(is_text)
    }

    /// Returns the number of words behind a flag that are its values.
    fn values(&self, word: &str, rest: &[WordField]) -> usize {
        let present = rest.iter().take_while(|word| !is_flag(&word.text)).count();
        let has_value = word.contains('=') || (word.starts_with("-O") && word.len() > 2);
        match self.kind(&flag_name(word)) {
            _ if has_value => 0,
            _ if word.contains('.') => present.min(1),
            Some(FlagKind::Bool) => 0,
            Some(FlagKind::List) | None => present,
            Some(_) => present.min(1),
        }
    }
}

/// Divides the arguments behind the program.
///
/// # Errors
/// If an argument is unknown, or is neither the model, nor a flag, nor a value of one.
pub(super) fn divide(
    arguments: &[WordField],
    line: Option<usize>,
    engine: &dyn Engine,
    secrets: &mut SecretValues,
) -> Result<DividedArguments, LineProblem> {
    let forms = FlagForms::of(engine);
    let mut divided = DividedArguments::default();
    let mut positional = None;
    let mut rest = arguments;
    while let Some((word, behind)) = rest.split_first() {
        rest = behind;
        if !is_flag(&word.text) {
            check(word, "the model", line)?;
            if let Some(first) = &positional {
                let problem = format!("`{}` is neither a flag nor the value of one; the model is `{first}`", word.text);
                return Err(
                    LineProblem::new(line, problem).with_hint("remove it, or write the flag that it belongs to")
                );
            }
            positional = Some(word.text.clone());
            continue;
        }
        let (values, behind) = behind.split_at(forms.values(&word.text, behind));
        rest = behind;
        divided.take_flag(word, values, line, &forms, secrets)?;
    }
    // The model behind the program has precedence over that of the flag.
    divided.model = positional.or(divided.model);
    Ok(divided)
}

impl DividedArguments {
    fn take_flag(
        &mut self,
        word: &WordField,
        values: &[WordField],
        line: Option<usize>,
        forms: &FlagForms,
        secrets: &mut SecretValues,
    ) -> Result<(), LineProblem> {
        let name = flag_name(&word.text);
        let attached = word.text.split_once('=').map(|(_, value)| value);
        let value = attached.or(values.first().map(|value| value.text.as_str()));
        if ADDRESS.contains(&&*name) {
            let shown = value.unwrap_or_default();
            self.notes.push(format!("--{name} {shown} is left out: each launch has an address of its own"));
            return Ok(());
        }
        if forms.is_secret(&name) {
            attached
                .into_iter()
                .chain(values.iter().map(|value| value.text.as_str()))
                .for_each(|value| secrets.add(value));
            self.notes.push(format!("--{name} is left out, because its value is a secret"));
            return Ok(());
        }
        for part in std::iter::once(word).chain(values) {
            check(part, &format!("--{name}"), line)?;
        }
        if MODEL.contains(&&*name) {
            self.model = value.map(str::to_owned);
            return Ok(());
        }
        self.args.extend(std::iter::once(word).chain(values).map(|part| part.text.clone()));
        Ok(())
    }
}

/// Returns an error if the text of an argument is unknown.
fn check(word: &WordField, of: &str, line: Option<usize>) -> Result<(), LineProblem> {
    match &word.trouble {
        Some(reason) => Err(LineProblem::new(line, format!("{of}: {reason}")).with_hint(UNKNOWN_HINT)),
        None => Ok(()),
    }
}

/// Returns whether a word begins a flag. A negative number does not.
pub(super) fn is_flag(word: &str) -> bool {
    word.strip_prefix('-')
        .is_some_and(|rest| !rest.is_empty() && !rest.starts_with(|c: char| c.is_ascii_digit() || c == '.'))
}

/// Returns the name of a flag with dashes, without its value.
fn flag_name(word: &str) -> String {
    word.split(['=', '.']).next().unwrap_or(word).trim_start_matches('-').replace('_', "-")
}
