//! Notes of optuna-dashboard, which its page of a trial shows first: the reason of a failure, or the broken limits.

use serde_json::{Value as Json, json};

use super::{StudyContent, shortened, trial_id};

/// The largest study with notes. The dashboard looks through all notes for each trial.
const MAX_TRIALS: usize = 500;

/// The length of a text in a note. Longer notes would have several parts of 2045 characters, and escapes double a text.
const MAX_TEXT: usize = 1000;

/// Returns the system attributes of the study with the notes of its trials: a version and one part for each.
pub(super) fn attributes(study: &StudyContent<'_>) -> Vec<(String, Json)> {
    if study.trials.len() > MAX_TRIALS {
        return Vec::new();
    }
    let noted = study.trials.iter().filter_map(|trial| Some((trial_id(trial), trial.shortcoming()?)));
    let of_trial = |(id, text): (i64, &str)| {
        let text = markdown(&shortened(text, MAX_TEXT));
        [(format!("dashboard:{id}:note_ver"), json!(1)), (format!("dashboard:{id}:note_str:0"), json!(text))]
    };
    noted.flat_map(of_trial).collect()
}

/// Escapes a text for Markdown, so that nothing in it is a link, an image or HTML.
fn markdown(text: &str) -> String {
    let mut escaped = String::with_capacity(2 * text.len());
    for c in text.chars() {
        if c.is_ascii_punctuation() {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_text_is_markup() {
        assert_eq!(markdown("a![b](c) <d>"), r"a\!\[b\]\(c\) \<d\>");
    }
}
