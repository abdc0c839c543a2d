//! Study files that compare engines: each table of `[[engines]]` is a study of its own, with the load and the objective of
//! the file.

use std::path::Path;

use super::{Job, StudyBudget};
use crate::document::{Document, DocumentError, Section};

/// The key of the tables.
pub(super) const ENGINES: &str = "engines";

/// The largest number of engines. Each gets an equal share of the first launches.
const MAX_ENTRANTS: usize = 8;

/// The content of a study file.
#[derive(Debug)]
pub enum StudyFile {
    Single(Box<Job>),
    Comparison(EngineComparison),
}

/// A comparison of engines under one load and objective.
#[derive(Debug)]
pub struct EngineComparison {
    pub name: String,
    /// The budget of all engines together.
    pub budget: StudyBudget,
    /// At least two, in the file's order.
    pub entrants: Vec<Entrant>,
}

/// An engine of a comparison, with its model.
#[derive(Debug)]
pub struct Entrant {
    /// The name within the comparison.
    pub name: String,
    /// Its study, whose name is that of the comparison, a dash, and that of the entrant.
    pub job: Job,
}

impl StudyFile {
    /// Reads and validates a study file.
    ///
    /// # Errors
    /// The error names the file, the line, the key, and the nearest valid key.
    pub fn read(file: &Path) -> Result<Self, DocumentError> {
        Document::read(file)?.parse(|root| Self::resolve(root, file))
    }

    fn resolve(root: &Section<'_>, file: &Path) -> Result<Self, DocumentError> {
        if !root.is_array(ENGINES) {
            return Ok(Self::Single(Box::new(Job::resolve(root, file)?)));
        }
        let mut entrants: Vec<Entrant> = Vec::new();
        let mut comparison = String::new();
        root.sections(ENGINES, |own| {
            let name: String = own.required("name")?;
            let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
            if name.is_empty() || !name.chars().all(allowed) {
                let hint = "use letters, digits, '.', '_' and '-'".to_owned();
                return Err(own.error("name", format!("{name:?} cannot be a part of a study's name"), Some(hint)));
            }
            if entrants.iter().any(|entrant| entrant.name == name) {
                return Err(own.error("name", format!("two engines are named {name:?}"), None));
            }
            let mut job = Job::resolve_parts(root, own, file)?;
            comparison.clone_from(&job.name);
            job.name = format!("{comparison}-{name}");
            entrants.push(Entrant { name, job });
            Ok(())
        })?;
        if !(2..=MAX_ENTRANTS).contains(&entrants.len()) {
            let problem = format!("{} engines; a comparison has 2 to {MAX_ENTRANTS}", entrants.len());
            return Err(root.error(ENGINES, problem, None));
        }
        let budget = entrants[0].job.budget;
        Ok(Self::Comparison(EngineComparison { name: comparison, budget, entrants }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARED: &str = r#"
        [study]
        name = "both"
        [workload]
        kind = "random"
        input_len = 8
        output_len = 4
        [load]
        concurrency = 2
        requests = 4
        [objective]
        maximize = "output_throughput"
    "#;

    fn entry(name: &str, low: u32) -> String {
        format!(
            r#"
            [[engines]]
            name = "{name}"
            [engines.engine]
            kind = "command"
            command = ["serve", "--port", "{{port}}", "{{flags}}"]
            [engines.model]
            path = "m"
            vocab_size = 100
            [engines.space.parameters]
            threads = {{ kind = "int", low = {low}, high = 9 }}
            "#
        )
    }

    fn read(text: &str) -> Result<StudyFile, DocumentError> {
        Document::from_text("both.toml", text).parse(|root| StudyFile::resolve(root, Path::new("both.toml")))
    }

    #[test]
    fn each_engine_has_a_study_with_the_shared_load_and_its_own_space() {
        let text = format!("{SHARED}[budget]\ntrials = 20\n{}{}", entry("a", 1), entry("b", 2));
        let StudyFile::Comparison(comparison) = read(&text).unwrap() else { panic!("a single study") };
        assert_eq!((&*comparison.name, comparison.budget.trials), ("both", Some(20)));
        let entrants: Vec<_> = comparison
            .entrants
            .iter()
            .map(|entrant| {
                (&*entrant.name, &*entrant.job.name, entrant.job.search_space().parameters[0].domain.to_string())
            })
            .collect();
        assert_eq!(entrants.iter().map(|entrant| entrant.0).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(entrants.iter().map(|entrant| entrant.1).collect::<Vec<_>>(), ["both-a", "both-b"]);
        assert_ne!(entrants[0].2, entrants[1].2);
        let error = Document::from_text("both.toml", text.as_str())
            .parse(|root| Job::resolve(root, Path::new("both.toml")))
            .unwrap_err();
        assert!(error.to_string().contains("engines: the file compares several engines"), "{error}");
    }

    #[test]
    fn a_comparison_needs_two_engines_with_names_of_their_own() {
        let problem = |text: String| read(&text).unwrap_err().to_string();
        let limited = format!("{SHARED}[budget]\ntrials = 20\n");
        assert!(problem(format!("{limited}{}", entry("a", 1))).contains("1 engines; a comparison has 2 to 8"));
        assert!(problem(format!("{limited}{}{}", entry("a", 1), entry("a", 1))).contains("two engines are named"));
        assert!(problem(format!("{limited}{}{}", entry("a/b", 1), entry("c", 1))).contains("part of a study's name"));
        let both = format!("{limited}{}{}[engine]\nkind = \"vllm\"\n", entry("a", 1), entry("b", 1));
        assert!(problem(both).contains("engine"), "a table of one engine is unknown beside several");
    }
}
