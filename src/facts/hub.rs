//! The local cache of `huggingface_hub`, the place of downloaded models.

use std::path::{Path, PathBuf};

/// Returns the cache's directory for a process with these variables, like `huggingface_hub/constants.py`. It is
/// `HF_HUB_CACHE`, then its older name, then `hub` in `HF_HOME`, whose default is `huggingface` in the user's cache
/// directory. An empty variable counts as unset.
#[must_use]
pub fn hub_cache(variable: impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty());
    let home = set("HOME").map(PathBuf::from);
    let expanded = |value: String| expand(&value, home.as_deref(), set);
    let cache = || set("XDG_CACHE_HOME").map(PathBuf::from).or_else(|| Some(home.as_ref()?.join(".cache")));
    let hugging_face = || set("HF_HOME").map(expanded).or_else(|| Some(cache()?.join("huggingface")));
    set("HF_HUB_CACHE")
        .or_else(|| set("HUGGINGFACE_HUB_CACHE"))
        .map(expanded)
        .or_else(|| Some(hugging_face()?.join("hub")))
}

/// Expands a leading `~`, and `$NAME` and `${NAME}` of variables that are set, like `os.path.expanduser` and
/// `expandvars`.
fn expand(value: &str, home: Option<&Path>, variable: impl Fn(&str) -> Option<String>) -> PathBuf {
    let value = match (value.strip_prefix('~'), home) {
        (Some(rest), Some(home)) if rest.is_empty() || rest.starts_with('/') => format!("{}{rest}", home.display()),
        _ => value.to_owned(),
    };
    let mut expanded = String::new();
    let mut rest = value.as_str();
    while let Some((before, behind)) = rest.split_once('$') {
        expanded.push_str(before);
        let braced = behind.strip_prefix('{').and_then(|behind| behind.split_once('}'));
        let (name, next) = braced.unwrap_or_else(|| {
            let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
            behind.split_at(behind.find(|c| !is_word(c)).unwrap_or(behind.len()))
        });
        match variable(name).filter(|_| !name.is_empty()) {
            Some(value) => expanded.push_str(&value),
            None => expanded.push_str(&rest[before.len()..rest.len() - next.len()]),
        }
        rest = next;
    }
    expanded.push_str(rest);
    PathBuf::from(expanded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_directory_is_that_of_huggingface_hub() {
        let all = [
            ("HF_HUB_CACHE", "/hub"),
            ("HUGGINGFACE_HUB_CACHE", "/old"),
            ("HF_HOME", "/home"),
            ("XDG_CACHE_HOME", "/xdg"),
            ("HOME", "/me"),
        ];
        let expected = ["/hub", "/old", "/home/hub", "/xdg/huggingface/hub", "/me/.cache/huggingface/hub"];
        for (first, expected) in expected.into_iter().enumerate() {
            let set = &all[first..];
            let found =
                hub_cache(|name| set.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_owned()));
            assert_eq!(found, Some(PathBuf::from(expected)));
        }
        assert_eq!(hub_cache(|_| None), None);
    }

    #[test]
    fn home_and_variables_in_a_path_are_expanded() {
        let found = |cache: &str| {
            hub_cache(|name| match name {
                "HF_HUB_CACHE" => Some(cache.to_owned()),
                "HOME" => Some("/me".to_owned()),
                "DISK" => Some("/d".to_owned()),
                _ => None,
            })
            .unwrap()
        };
        for (written, expected) in [
            ("~/hub", "/me/hub"),
            ("~other/hub", "~other/hub"),
            ("$DISK/hub", "/d/hub"),
            ("/x/${DISK}s/${GONE}/$GONE$", "/x//ds/${GONE}/$GONE$"),
        ] {
            assert_eq!(found(written), PathBuf::from(expected), "{written}");
        }
    }
}
