//! Paths to documents: files of any known format, and folders with several files of one measurement.

use std::path::{Path, PathBuf};

use serde_json::Value as Json;

use super::{
    GpuMemoryUse, ImportError, ImportedDocument, ImportedLaunch, LineProblem, MAX_BYTES, UnreadLine, launch, object,
    optuna, text,
};
use crate::deployment::recipe_model;

/// Files of a folder of runs.
pub(crate) const PARAMETERS_FILE: &str = "engine_params.txt";
pub(crate) const MEMORY_FILE: &str = "mem_usage.txt";

/// Depth of the folders that `vllm bench sweep` creates.
const MAX_DEPTH: usize = 4;

/// Reads a file or a folder. Its results are either all returned, or none.
///
/// # Errors
/// If it cannot be read, has no known format, or is cut off.
pub(crate) async fn read_path(path: &Path) -> Result<ImportedDocument, ImportError> {
    let document = match optuna::storage(path) {
        Some((storage, study)) => optuna::read(&storage, study.as_deref()).await?,
        None if path.is_dir() => read_folder(path)?,
        None => read_file(path)?,
    };
    if document.results.is_empty() {
        let problem = match document.unread.len() {
            0 => "it contains no result".to_owned(),
            unread => format!("it contains no result; none of its {unread} lines can be read"),
        };
        let hint = "readable are outputs and results of vllm bench serve and sweep, GuideLLM, AIPerf, and setpoint";
        return Err(ImportError { file: path.to_owned(), line: None, problem, hint: Some(hint.to_owned()) });
    }
    Ok(document)
}

fn read_file(path: &Path) -> Result<ImportedDocument, ImportError> {
    let text = read_text(path)?;
    let mut document = read_content(path, &text).map_err(|problem| problem.of_file(path))?;
    place(&mut document, path);
    Ok(document)
}

/// Reads the text of a file.
fn read_text(path: &Path) -> Result<String, ImportError> {
    let error = |problem: String, hint: Option<&str>| ImportError {
        file: path.to_owned(),
        line: None,
        problem,
        hint: hint.map(str::to_owned),
    };
    let size = std::fs::metadata(path).map_err(|cause| error(format!("cannot be read: {cause}"), None))?.len();
    if size > MAX_BYTES {
        let problem = format!("has {size} bytes; at most {MAX_BYTES} are read");
        return Err(error(problem, Some("split it, or leave out the records of single requests")));
    }
    let bytes = std::fs::read(path).map_err(|cause| error(format!("cannot be read: {cause}"), None))?;
    String::from_utf8(bytes).map_err(|cause| {
        let at = cause.utf8_error().valid_up_to();
        error(format!("is not text: byte {at} is no UTF-8"), Some("documents with results are text"))
    })
}

fn read_content(path: &Path, content: &str) -> Result<ImportedDocument, LineProblem> {
    if path.extension().is_some_and(|end| end == "csv") {
        let results = super::rows::read(content)?;
        return Ok(ImportedDocument { results, ..ImportedDocument::default() });
    }
    if path.extension().is_some_and(|end| end == "yaml" || end == "yml")
        && let Some(model) = recipe_model(content)
    {
        let words = ["setpoint", "tune", "--model", &model, "--start", &path.to_string_lossy()];
        let command = shlex::try_join(words).unwrap_or_else(|_| words.join(" "));
        let hint = format!("use it as a first point: {command}");
        return Err(LineProblem { hint: Some(hint), ..LineProblem::new(0, "a recipe holds no measurements") });
    }
    // A file that is one JSON value must have a known shape. JSON among other text may be anything.
    if let Ok(json) = serde_json::from_str::<Json>(content) {
        return Ok(ImportedDocument { results: object::read(1, &json)?, ..ImportedDocument::default() });
    }
    text::read(content)
}

/// Sets the file of results and unread lines. Without a date, a result is as old as its file.
fn place(document: &mut ImportedDocument, path: &Path) {
    let modified = std::fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
    let modified = modified.and_then(|time| jiff::Timestamp::try_from(time).ok()).map(|time| format!("{time:.3}"));
    for unread in &mut document.unread {
        path.clone_into(&mut unread.file);
    }
    for result in &mut document.results {
        path.clone_into(&mut result.file);
        result.measured_at = result.measured_at.take().or_else(|| modified.clone());
    }
}

/// Reads a folder: one JSON file for each load, beside the engine's parameters and its memory; or the folders of
/// `vllm bench sweep`.
fn read_folder(path: &Path) -> Result<ImportedDocument, ImportError> {
    let mut files = Vec::new();
    collect(path, MAX_DEPTH, &mut files).map_err(|error| ImportError {
        file: path.to_owned(),
        line: None,
        problem: format!("cannot be read: {error}"),
        hint: None,
    })?;
    files.sort();
    let (summaries, runs): (Vec<_>, Vec<_>) = files
        .into_iter()
        .filter(|file| file.extension().is_some_and(|end| end == "json"))
        .partition(|file| file.file_name().is_some_and(|name| name == "summary.json"));
    // A sweep's summary has the runs of its folder.
    let has_summary = |file: &PathBuf| summaries.iter().any(|summary| summary.parent() == file.parent());
    let runs: Vec<_> = runs.into_iter().filter(|file| !has_summary(file)).collect();
    let (launch, mut document) = parameters(path)?;
    let memory = memory(path, &mut document.unread)?;
    for file in summaries.iter().chain(&runs) {
        let mut read = read_file(file)?;
        for result in &mut read.results {
            result.launch = result.launch.take().or_else(|| launch.clone());
            result.memory = result.memory.or(memory);
            let model = launch.as_ref().and_then(|launch| launch.model.clone());
            result.load.model = result.load.model.take().or(model);
        }
        document.results.extend(read.results);
        document.unread.extend(read.unread);
    }
    Ok(document)
}

fn collect(path: &Path, depth: usize, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(path)? {
        let entry = entry?.path();
        if !entry.is_dir() {
            files.push(entry);
        } else if depth > 1 {
            collect(&entry, depth - 1, files)?;
        }
    }
    Ok(())
}

/// Reads the engine's parameters: a launch line, or one flag a line.
fn parameters(folder: &Path) -> Result<(Option<ImportedLaunch>, ImportedDocument), ImportError> {
    let mut document = ImportedDocument::default();
    let path = folder.join(PARAMETERS_FILE);
    if !path.exists() {
        return Ok((None, document));
    }
    let content = read_text(&path)?;
    let (mut found, mut words) = (None, Vec::new());
    // A line that ends with a backslash goes on.
    for (index, line) in content.replace("\\\n", " ").lines().map(str::trim).enumerate() {
        match launch::parse_command(line) {
            Some(Ok(launch)) => found = Some(launch),
            None if line.starts_with('-') => words.extend(shlex::split(line).unwrap_or_default()),
            None if line.is_empty() || line.starts_with('#') => {}
            Some(Err(_)) | None => {
                let reason = "neither a launch line nor a flag";
                let text = crate::trial::redact(line).into_owned();
                document.unread.push(UnreadLine { file: path.clone(), line: index + 1, text, reason });
            }
        }
    }
    let launch = found.or_else(|| {
        let (config, model) = launch::read_flags(&words);
        (!words.is_empty()).then(|| ImportedLaunch { config, model, ..ImportedLaunch::default() })
    });
    Ok((launch, document))
}

/// Reads the largest memory that was in use.
fn memory(folder: &Path, unread: &mut Vec<UnreadLine>) -> Result<Option<GpuMemoryUse>, ImportError> {
    let path = folder.join(MEMORY_FILE);
    if !path.exists() {
        return Ok(None);
    }
    let mut largest: Option<GpuMemoryUse> = None;
    for (index, line) in read_text(&path)?.lines().map(str::trim).enumerate().filter(|(_, line)| !line.is_empty()) {
        match GpuMemoryUse::parse(line) {
            Some(memory) if largest.is_none_or(|largest| memory.used_mib > largest.used_mib) => largest = Some(memory),
            Some(_) => {}
            None => unread.push(UnreadLine {
                file: path.clone(),
                line: index + 1,
                text: line.to_owned(),
                reason: "not a line such as 19344MiB / 46068MiB",
            }),
        }
    }
    Ok(largest)
}
