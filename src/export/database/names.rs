//! Names for another program: without forbidden characters, and still different from each other.

use std::collections::{BTreeMap, BTreeSet};

/// Returns the new name for each name. If two names become equal, the later one gets a number.
pub(super) fn unique_names<'a>(
    names: impl IntoIterator<Item = &'a str>,
    rename: impl Fn(&str) -> String,
) -> BTreeMap<&'a str, String> {
    let mut taken = BTreeSet::new();
    let names: BTreeSet<_> = names.into_iter().collect();
    let mut unique = |name: &'a str| {
        let wanted = rename(name);
        let numbered = (2..).map(|number| format!("{wanted} {number}"));
        let chosen = std::iter::once(wanted.clone()).chain(numbered).find(|name| taken.insert(name.clone()));
        (name, chosen.unwrap_or(wanted))
    };
    names.into_iter().map(&mut unique).collect()
}

/// Shortens a text to a number of characters. The end of a shortened text is its original length.
pub(super) fn shortened(text: &str, most: usize) -> String {
    let length = text.chars().count();
    if length <= most {
        return text.to_owned();
    }
    let end = format!("... ({length} characters)");
    let kept = most.saturating_sub(end.chars().count());
    text.chars().take(kept).chain(end.chars()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_become_equal_are_numbered() {
        let names = unique_names(["a$", "b", "a%", "a_ 2", "a&"], |name| name.replace(['$', '%', '&'], "_"));
        let new: BTreeSet<_> = names.values().map(String::as_str).collect();
        assert_eq!(names.len(), 5);
        assert_eq!(new, BTreeSet::from(["a_", "a_ 2", "a_ 3", "a_ 2 2", "b"]));
    }

    #[test]
    fn a_shortened_text_has_its_length() {
        assert_eq!(shortened("abc", 3), "abc");
        let text = shortened(&"ä".repeat(100), 30);
        assert_eq!(text.chars().count(), 30);
        assert!(text.ends_with("ä... (100 characters)"), "{text}");
    }
}
