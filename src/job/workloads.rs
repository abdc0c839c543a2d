//! `[[workload]]`: several workloads, each with a weight and, if it differs from `[load]`, a load of its own.

use std::collections::BTreeMap;

use super::paths::StudyPaths;
use super::{EngineJob, Job, LoadJob, ModelJob, WorkloadJob, repetition_warning, start_after};
use crate::document::{DocumentError, Section};
use crate::load::LoadPlan;
use crate::stats::Fnv1a;
use crate::workload::WorkloadError;

/// One of several workloads.
#[derive(Clone, Debug)]
pub struct NamedWorkload {
    pub name: String,
    pub weight: f64,
    pub workload: WorkloadJob,
    pub load: LoadJob,
    /// Equal for entries with the same requests, or with prompts of the same files. Counts from 0.
    pub group: u64,
}

/// A workload with its load, as one part of a launch.
#[derive(Clone, Copy, Debug)]
pub struct WorkloadPart<'a> {
    /// `None` for the only workload of a study.
    pub name: Option<&'a str>,
    pub workload: &'a WorkloadJob,
    pub load: &'a LoadJob,
    /// See [`NamedWorkload::group`].
    pub group: u64,
}

/// Reads the entries.
pub(super) fn read(
    root: &Section<'_>,
    paths: &StudyPaths,
    seed: u64,
    model: &ModelJob,
    engine: &EngineJob,
) -> Result<Vec<NamedWorkload>, DocumentError> {
    let mut names: Vec<String> = Vec::new();
    let mut entries = root.sections("workload", |section| {
        let name: String = section.required("name")?;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if name.is_empty() || !name.chars().all(is_plain) {
            let problem = format!("{name:?} is not a name of letters, digits, hyphens, underscores and dots");
            return Err(section.error("name", problem, None));
        }
        if names.contains(&name) {
            return Err(section.error("name", format!("{name:?} is the name of an earlier workload"), None));
        }
        names.push(name.clone());
        let weight = section.optional_or("weight", 1.0)?;
        if !(weight > 0.0 && f64::is_finite(weight)) {
            return Err(section.error("weight", format!("{weight} is not a number above 0"), None));
        }
        let own =
            section.optional_section("load", |own| root.section("load", |load| LoadJob::read_part(load, Some(own))));
        let mut load = match own? {
            Some(load) => load,
            None => root.section("load", |load| LoadJob::read_part(load, None))?,
        };
        // A data file is shared by the entries that read it, so that no entry alone determines its number of prompts.
        let workload = WorkloadJob::read(section, paths, seed, model, engine, &mut load, None)?;
        Ok(NamedWorkload { name, weight, workload, load, group: 0 })
    })?;
    if entries.len() < 2 {
        let hint = "write a single workload as [workload]".to_owned();
        return Err(root.error("workload", "[[workload]] needs at least two entries", Some(hint)));
    }
    set_groups(&mut entries);
    // Those of the first group were built with this seed.
    for entry in entries.iter_mut().filter(|entry| entry.group > 0) {
        entry.reseed(seed).map_err(|error| root.error("workload", error.to_string(), None))?;
    }
    Ok(entries)
}

/// Numbers the entries by the source of their requests.
fn set_groups(entries: &mut [NamedWorkload]) {
    let mut known = Vec::new();
    for entry in entries {
        let source = entry.workload.prompt_source();
        let index = known.iter().position(|other| *other == source).unwrap_or_else(|| {
            known.push(source);
            known.len() - 1
        });
        entry.group = index as u64;
    }
}

impl NamedWorkload {
    fn part(&self) -> WorkloadPart<'_> {
        WorkloadPart { name: Some(&self.name), workload: &self.workload, load: &self.load, group: self.group }
    }

    /// Sets the seed of its requests. Entries with the same requests have equal seeds, and all others different ones:
    /// prompts of equal seeds may share their beginnings, and a prefix cache would hold them.
    pub(super) fn reseed(&mut self, seed: u64) -> Result<(), WorkloadError> {
        self.workload.reseed(seed.wrapping_add(self.group))
    }
}

impl Job {
    /// Returns the workloads of a launch in the order of the study file: at least one.
    #[must_use]
    pub fn parts(&self) -> Vec<WorkloadPart<'_>> {
        if self.workloads.is_empty() {
            return vec![WorkloadPart { name: None, workload: &self.workload, load: &self.load, group: 0 }];
        }
        self.workloads.iter().map(NamedWorkload::part).collect()
    }

    /// Returns the workloads in the order of a launch. The seed determines it. It is the same in every launch, so that
    /// trials can be compared in pairs.
    #[must_use]
    pub fn parts_in_turn(&self) -> Vec<WorkloadPart<'_>> {
        let mut parts = self.parts();
        let place = |name: &str| Fnv1a::new().with(&self.seed.to_le_bytes()).with(name.as_bytes()).value();
        parts.sort_by_cached_key(|part| part.name.map(place));
        parts
    }

    /// Returns the plans of a launch's loads in turn. Each begins behind the sessions of the earlier ones with the same
    /// requests, which are in the prefix cache.
    #[must_use]
    pub fn plans_in_turn(&self) -> Vec<(WorkloadPart<'_>, LoadPlan)> {
        let (mut asked, mut plans) = (BTreeMap::new(), Vec::new());
        for part in self.parts_in_turn() {
            let mut plan = part.load.plan(self.seed);
            let earlier = asked.entry(part.group).or_insert(0);
            *earlier = start_after(&mut plan, &*part.workload.source, *earlier);
            plans.push((part, plan));
        }
        plans
    }

    /// Returns warnings for users about workloads that repeat prompts.
    #[must_use]
    pub fn repetition_warnings(&self) -> Vec<String> {
        let warning = |(part, plan): (WorkloadPart<'_>, LoadPlan)| {
            let warning = repetition_warning(&plan, &*part.workload.source)?;
            Some(part.name.map_or_else(|| warning.clone(), |name| format!("{name}: {warning}")))
        };
        self.plans_in_turn().into_iter().filter_map(warning).collect()
    }

    /// Returns the study with one of its workloads only; `None` if it has none of this name.
    #[must_use]
    pub fn with_workload(mut self, name: &str) -> Option<Self> {
        let entry = self.workloads.iter().find(|entry| entry.name == name)?.clone();
        (self.workload, self.load) = (entry.workload, entry.load);
        self.workloads.clear();
        self.objective.joint = None;
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::document::Document;
    use crate::facts::{Device, HostLimits};
    use crate::job::objective;
    use crate::objective::WorkloadAggregate;

    const CHATS: &str = "name = 'chats'\nkind = 'random'\ninput_len = 64\noutput_len = 8\n";
    const DOCUMENTS: &str = "name = 'documents'\nkind = 'random'\ninput_len = 512\noutput_len = 4\n";

    /// Reads a study with these entries, and further lines of `[load]` and `[objective]`.
    fn study(entries: &[String], load: &str, objective: &str) -> Result<Job, DocumentError> {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/models/qwen3-8b");
        let entries = entries.iter().map(|entry| format!("[[workload]]\n{entry}")).collect::<Vec<_>>().concat();
        let text = format!(
            "[study]\nname = 'a'\n[engine]\nkind = 'sim'\n[model]\npath = '{}'\n[space]\n\
             file = 'search_spaces/sim/core.toml'\n{entries}[load]\nconcurrency = 4\nrequests = 8\n{load}\n\
             [objective]\nmaximize = 'output_throughput'\n{objective}\n[budget]\ntrials = 9\n",
            model.display()
        );
        let file = Path::new("study.toml");
        Document::from_text(file, text).parse(|root| Job::resolve(root, file))
    }

    fn entries(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn each_workload_has_its_own_load_over_the_common_one() {
        let own = format!("{DOCUMENTS}weight = 3\nload = {{ concurrency = 2, duration = '1m' }}\n");
        let job = study(&entries(&[CHATS, &own]), "warmup = 1", "").unwrap();
        let parts = job.parts();
        let names: Vec<_> = parts.iter().map(|part| part.name.unwrap()).collect();
        assert_eq!(names, ["chats", "documents"]);
        assert_eq!((parts[0].load.concurrency, parts[1].load.concurrency), (Some(4), Some(2)));
        assert_eq!((parts[1].load.requests, parts[1].load.warmup), (Some(8), 1));
        assert!(parts[1].load.duration.is_some() && parts[0].load.duration.is_none() && !parts[1].load.race);
        let joint = job.objective.joint.as_ref().unwrap();
        assert_eq!((joint.over, joint.workloads[1].weight), (WorkloadAggregate::Mean, 3.0));
        assert_eq!(job.definition()["workloads"][1]["load"]["concurrency"], 2);
        let release = job.engine.engine.newest_release();
        assert_eq!(job.facts(release, Device::Cpu, HostLimits::default()).longest_request, Some(516));
    }

    #[test]
    fn equal_requests_continue_behind_each_other_and_others_have_another_seed() {
        let high = CHATS.replace("chats", "high") + "load = { concurrency = 16, requests = 32 }\n";
        let job = study(&entries(&[CHATS, &high, DOCUMENTS]), "", "").unwrap();
        let plans = job.plans_in_turn();
        let first = |name: &str| plans.iter().find(|(part, _)| part.name == Some(name)).unwrap().1.first;
        // The later one begins behind requests and warm-up of the earlier one.
        assert!((first("chats"), first("high")) == (0, 12) || (first("chats"), first("high")) == (48, 0));
        assert_eq!(first("documents"), 0);
        let seeds: Vec<_> = job.parts().iter().map(|part| part.workload.surroundings.seed).collect();
        assert_eq!(seeds, [job.seed, job.seed, job.seed + 1]);
        let mut again = study(&entries(&[CHATS, &high, DOCUMENTS]), "", "").unwrap();
        again.reseed(9).unwrap();
        assert_eq!(again.parts()[2].workload.surroundings.seed, 10);
    }

    #[test]
    fn entries_of_one_file_take_different_prompts_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("prompts.jsonl");
        let lines: Vec<_> = (0..40).map(|line| format!("{{\"prompt\": [{line}, 7]}}")).collect();
        std::fs::write(&file, lines.join("\n")).unwrap();
        let entry = |name: &str, output_len: u32| {
            format!("name = '{name}'\nkind = 'jsonl'\npath = '{}'\noutput_len = {output_len}\n", file.display())
        };
        let job = study(&[entry("short", 2), entry("long", 8)], "", "").unwrap();
        let mut first: Vec<_> = job.plans_in_turn().iter().map(|(_, plan)| plan.first).collect();
        first.sort_unstable();
        assert_eq!((first, job.repetition_warnings()), (vec![0, 8], Vec::new()));
    }

    #[test]
    fn the_order_of_a_launch_follows_from_the_seed() {
        let order = |seed: u64| {
            let mut job = study(&entries(&[CHATS, DOCUMENTS]), "", "").unwrap();
            job.reseed(seed).unwrap();
            job.parts_in_turn().iter().map(|part| part.name.unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(order(3), order(3));
        assert!((0..20).any(|seed| order(seed) != order(seed + 1)), "every seed has the same order");
    }

    #[test]
    fn one_of_several_workloads_is_a_study_of_its_own() {
        let job = study(&entries(&[CHATS, DOCUMENTS]), "", "over = 'worst'").unwrap();
        let one = job.with_workload("documents").unwrap();
        assert_eq!((one.parts().len(), one.parts()[0].name, &one.objective.joint), (1, None, &None));
        assert_eq!(one.workload.source.longest(), 516);
        assert!(one.with_workload("chats").is_none());
    }

    #[test]
    fn invalid_workloads_are_reported_with_their_line() {
        let both = [CHATS, DOCUMENTS];
        for (texts, load, objective, problem) in [
            (vec![CHATS], "", "", ": workload: [[workload]] needs at least two entries"),
            (vec![CHATS, CHATS], "", "", "study.toml:15: workload[1].name: \"chats\" is the name of an earlier"),
            (vec![CHATS, "kind = 'random'\n"], "", "", "study.toml:14: workload[1].name: is missing"),
            (vec![CHATS, "name = 'a b'\n"], "", "", "study.toml:15: workload[1].name: \"a b\" is not a name"),
            (vec!["name = 'a'\nweight = 0\n"], "", "", "study.toml:11: workload[0].weight: 0 is not a number above 0"),
            (vec!["name = 'a'\nload = { users = 4 }\n"], "", "", "study.toml:11: workload[0].load.users: unknown key"),
            (
                vec!["name = 'a'\nload = { requests = 0 }\n"],
                "",
                "",
                "study.toml:11: workload[0].load.requests: must be",
            ),
            (both.to_vec(), "race = true", "", "load.race: is not available with several workloads"),
            (both.to_vec(), "", "over = 'best'", "objective.over: \"best\" is not a rule for several workloads"),
        ] {
            let error = study(&entries(&texts), load, objective).unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
        }
        let document = Document::from_text("study.toml", "[objective]\nmaximize = 'output_throughput'\nover = 'mean'");
        let load = LoadJob::closed(4, 8);
        let read = document.parse(|root| root.section("objective", |section| objective::read(section, &load, &[])));
        assert!(read.unwrap_err().to_string().contains("objective.over: needs several workloads"));
    }
}
