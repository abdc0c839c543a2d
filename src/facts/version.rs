//! An engine's release number, as far as rules and flags depend on it.
//!
//! llama.cpp counts its builds: `b11434` is [`EngineVersion::build`].

use std::fmt;
use std::str::FromStr;

/// `major.minor.patch`; suffixes such as `.post1`, `rc1` or `+cpu` are dropped, because no flag depends on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EngineVersion {
    pub major: u32,
    pub minor: u32,
    pub patch: u32,
}

impl EngineVersion {
    /// Later than every release. It stands for a release that is not known yet.
    pub const LATEST: Self = Self::new(u32::MAX, 0, 0);

    /// The end of a range of releases that has none. It is later than [`LATEST`](Self::LATEST), so that the range
    /// contains that, too.
    pub const UNBOUNDED: Self = Self::new(u32::MAX, u32::MAX, u32::MAX);

    // Releases that changed something that rules or defaults depend on.
    pub const V0_8: Self = Self::new(0, 8, 0);
    pub const V0_10: Self = Self::new(0, 10, 0);
    pub const V0_12: Self = Self::new(0, 12, 0);
    pub const V0_20: Self = Self::new(0, 20, 0);
    pub const V0_32: Self = Self::new(0, 32, 0);

    #[must_use]
    pub const fn new(major: u32, minor: u32, patch: u32) -> Self {
        Self { major, minor, patch }
    }

    /// Returns the version of a build that has only a number.
    #[must_use]
    pub const fn build(number: u32) -> Self {
        Self::new(number, 0, 0)
    }

    /// Returns the number of a version by [`build`](Self::build). Releases have had smaller first numbers so far.
    fn build_number(self) -> Option<u32> {
        ((self.minor, self.patch) == (0, 0) && (SMALLEST_BUILD..u32::MAX).contains(&self.major)).then_some(self.major)
    }

    /// Returns whether both have the same flags and defaults: patch releases change neither.
    #[must_use]
    pub fn is_same_minor(self, other: Self) -> bool {
        (self.major, self.minor) == (other.major, other.minor)
    }

    /// Returns whether this release has only the V0 engine: its scheduler, defaults and refusals differ from V1's.
    #[must_use]
    pub fn is_v0(self) -> bool {
        self < Self::new(0, 8, 0)
    }
}

/// The first build of llama.cpp with a tag is older.
const SMALLEST_BUILD: u32 = 1000;

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is not an engine version such as 0.32.0, or a build such as b11434")]
pub struct VersionError(String);

impl FromStr for EngineVersion {
    type Err = VersionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || VersionError(text.to_owned());
        let mut numbers = [0_u32; 3];
        let trimmed = text.trim().trim_start_matches('v');
        if let Some(rest) = trimmed.strip_prefix('b') {
            // The commit may follow, as in `b11434-3f5a7c1`.
            let number: u32 = rest.split('-').next().unwrap_or(rest).parse().map_err(|_| error())?;
            return if (SMALLEST_BUILD..u32::MAX).contains(&number) { Ok(Self::build(number)) } else { Err(error()) };
        }
        for (index, part) in trimmed.split(['.', '+']).take(3).enumerate() {
            let digits: String = part.chars().take_while(char::is_ascii_digit).collect();
            match digits.parse() {
                Ok(number) => numbers[index] = number,
                Err(_) if index >= 2 => {}
                Err(_) => return Err(error()),
            }
            // A suffix such as `rc1` or `post1` ends the release number.
            if digits.len() != part.len() {
                break;
            }
        }
        if trimmed.contains('.') { Ok(Self::new(numbers[0], numbers[1], numbers[2])) } else { Err(error()) }
    }
}

/// Reads the release that an engine reports. `None` for builds from source without a release: they report `dev`, or a
/// number that the packaging tool made up.
#[must_use]
pub fn parse_reported_release(reported: &str) -> Option<EngineVersion> {
    let is_made_up = reported.trim().starts_with("0.1.dev");
    if is_made_up { None } else { reported.parse().ok() }
}

impl fmt::Display for EngineVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.build_number() {
            Some(number) => write!(f, "b{number}"),
            None => write!(f, "{}.{}.{}", self.major, self.minor, self.patch),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_are_dropped() {
        for (text, expected) in [
            ("0.6.3.post1", EngineVersion::new(0, 6, 3)),
            ("0.32.0+cpu", EngineVersion::new(0, 32, 0)),
            ("v0.10.2", EngineVersion::new(0, 10, 2)),
            ("0.11.0rc2", EngineVersion::new(0, 11, 0)),
            ("0.33", EngineVersion::new(0, 33, 0)),
        ] {
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn a_build_has_only_a_number() {
        for text in ["b11434", "b11434-3f5a7c1", " b11434-unknown\n"] {
            assert_eq!(text.parse(), Ok(EngineVersion::build(11_434)), "{text}");
        }
        assert_eq!(EngineVersion::build(11_434).to_string(), "b11434");
        assert_eq!(EngineVersion::new(1, 0, 0).to_string(), "1.0.0");
    }

    #[test]
    fn an_invalid_version_is_refused() {
        for text in ["", "latest", "7", ".1", "x.y", "b", "b12", "bx", "b4294967295"] {
            assert!(text.parse::<EngineVersion>().is_err(), "{text}");
        }
    }

    #[test]
    fn builds_without_a_release_are_not_read_as_one() {
        for text in ["dev", "", "0.1.dev7203+g1a2b3c4", "unknown"] {
            assert_eq!(parse_reported_release(text), None, "{text}");
        }
        assert_eq!(parse_reported_release("0.11.1rc2.dev33+g1a2b"), Some(EngineVersion::new(0, 11, 1)));
    }

    #[test]
    fn releases_are_ordered_by_number_and_not_by_text() {
        assert!(EngineVersion::new(0, 10, 2) > EngineVersion::new(0, 8, 5));
        assert!(EngineVersion::new(0, 6, 3).is_v0());
    }
}
