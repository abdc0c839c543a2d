//! Variables in the texts of manifests: `${NAME}` of Compose and `$(NAME)` of Kubernetes.

use std::collections::BTreeMap;

use super::field::WordField;

/// Replaces the variables of a text in a Compose file. `$$` is a dollar sign.
pub(super) fn interpolate(text: &str, variables: &BTreeMap<String, String>) -> WordField {
    let mut field = WordField::default();
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once('$') {
        field.text.push_str(before);
        if let Some(behind) = behind.strip_prefix('$') {
            field.text.push('$');
            rest = behind;
        } else if let Some((inner, behind)) = behind.strip_prefix('{').and_then(|inner| inner.split_once('}')) {
            push_variable(&mut field, inner, variables);
            rest = behind;
        } else {
            let name = name_at(behind);
            if name.is_empty() {
                field.text.push('$');
            } else {
                push_variable(&mut field, name, variables);
            }
            rest = &behind[name.len()..];
        }
    }
    field.text.push_str(rest);
    field
}

/// Appends the value of `NAME`, `NAME:-DEFAULT` or `NAME:?MESSAGE`.
fn push_variable(field: &mut WordField, inner: &str, variables: &BTreeMap<String, String>) {
    let name = name_at(inner);
    let modifier = inner[name.len()..].trim_start_matches(':');
    let value = variables.get(name).filter(|value| !value.is_empty());
    match (value, modifier.strip_prefix('-'), modifier.strip_prefix('+')) {
        (Some(_), _, Some(text)) => field.text.push_str(text),
        (Some(value), ..) => field.text.push_str(value),
        (None, Some(default), _) => {
            field.text.push_str(default);
            field.note.get_or_insert_with(|| format!("`{name}` is assumed to be unset, so that its default applies"));
        }
        (None, _, Some(_)) => {}
        (None, None, None) => {
            let reason = format!("the value of the variable `{name}` is neither in the file nor in `.env` beside it");
            field.push_unknown(&format!("${{{inner}}}"), reason);
        }
    }
}

/// Replaces `$(NAME)` by the variables of a container. `$$(NAME)` is the text `$(NAME)`.
pub(super) fn substitute_references(text: &str, variables: &BTreeMap<String, WordField>) -> WordField {
    let mut field = WordField::default();
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once('$') {
        field.text.push_str(before);
        let reference = behind.strip_prefix('(').and_then(|inner| inner.split_once(')'));
        if let Some(behind) = behind.strip_prefix('$') {
            field.text.push('$');
            rest = behind;
        } else if let Some((name, behind)) = reference.filter(|(name, _)| crate::engine::is_variable(name)) {
            match variables.get(name) {
                Some(value) => field.absorb(value),
                // Kubernetes keeps the text of a reference to an unknown variable. In a script it is a command.
                None => {
                    field
                        .push_unknown(&format!("$({name})"), format!("`$({name})` is not a variable of the container"));
                }
            }
            rest = behind;
        } else {
            field.text.push('$');
            rest = behind;
        }
    }
    field.text.push_str(rest);
    field
}

fn name_at(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len());
    if text.starts_with(|c: char| c.is_ascii_digit()) { "" } else { &text[..end] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_compose_have_defaults_and_escapes() {
        let variables = BTreeMap::from([("A".to_owned(), "a".to_owned()), ("EMPTY".to_owned(), String::new())]);
        for (text, expected, is_known) in [
            ("$A-${A}-${A:-b}-${A:+c}", "a-a-a-c", true),
            ("${B:-b} ${EMPTY:-e} ${B-}", "b e ", true),
            ("$$A $$$$ $ 5$", "$A $$ $ 5$", true),
            ("$B", "${B}", false),
            ("${B:?must be set}", "${B:?must be set}", false),
            ("${", "${", true),
        ] {
            let field = interpolate(text, &variables);
            assert_eq!((field.text.as_str(), field.trouble.is_none()), (expected, is_known), "{text}");
        }
    }

    #[test]
    fn references_of_kubernetes_are_replaced_and_escaped() {
        let variables = BTreeMap::from([("A".to_owned(), WordField::new("a"))]);
        for (text, expected) in [("x$(A)y", "xay"), ("$$(A)", "$(A)"), ("$(B) $A", "$(B) $A"), ("$(", "$(")] {
            assert_eq!(substitute_references(text, &variables).text, expected, "{text}");
        }
    }
}
