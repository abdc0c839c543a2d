//! Tests of the wording of comments, documents and type names. Each limit equals the present count and only goes down.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use regex::Regex;

/// An idiom that is hard to understand, as a regular expression.
struct Idiom {
    name: &'static str,
    pattern: &'static str,
    /// The form to write instead.
    better: &'static str,
    /// Number of uses in comments of `src`.
    in_comments: usize,
    /// Number of uses in Markdown files.
    in_documents: usize,
}

const IDIOMS: [Idiom; 6] = [
    Idiom {
        name: "a sentence that begins with \"What\"",
        pattern: r"(?:^|[.!?:;]\s+)What\b",
        better: "begin with the thing in the program",
        in_comments: 0,
        in_documents: 0,
    },
    Idiom {
        name: "\"what is\", \"what the\" as a noun",
        pattern: r"\bwhat (?:is|was|are|were|it|the|they|its|a|an|others?|has|had|would|each|one|can|cannot)\b",
        better: "name the thing: the settings, the result, the value",
        in_comments: 0,
        in_documents: 0,
    },
    Idiom {
        name: "\"where\" for \"if\"",
        pattern: r"\b[Ww]here (?:it|there|none|they|nobody|nothing|a|an|one|no|this|that|both|all|any|some|somebody|two|those|these|he|she|its)\b",
        better: "if or when; where is for places",
        in_comments: 0,
        in_documents: 0,
    },
    Idiom {
        name: "say, says, said",
        pattern: r"\b[Ss](?:ay|ays|aid)\b",
        better: "state, report, contain, record, describe",
        in_comments: 0,
        in_documents: 0,
    },
    Idiom {
        name: "tell, tells, told",
        pattern: r"\b[Tt](?:ell|ells|old)\b",
        better: "report, show, distinguish, configure",
        in_comments: 2,
        in_documents: 0,
    },
    Idiom {
        name: "whoever, whatever, so many, of which, by which",
        pattern: r"\b(?:[Ww]hoever|[Ww]hatever|[Ww]hichever|[Ss]o (?:many|much|few)|(?:of|by|with|in|from) (?:which|whom))\b",
        better: "any, the number of, `n`; rebuild the sentence",
        in_comments: 0,
        in_documents: 0,
    },
];

/// Number of files whose first line begins with a question word.
const QUESTION_HEADERS: usize = 0;

/// Share of public types with a one-word name, in percent, rounded up.
const ONE_WORD_TYPES: usize = 15;

/// Number of type names that occur in several modules of `src/lib.rs`.
const SHARED_NAMES: usize = 0;

/// Largest numbers of lines and words of the README.
const README: (usize, usize) = (250, 2000);

/// Consecutive comment lines, or one line of a document, with the number of the first line.
struct Block {
    file: String,
    line: usize,
    text: String,
}

static CODE: LazyLock<Regex> = LazyLock::new(|| Regex::new("`[^`]*`").expect("a pattern"));

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the files with this extension below a directory, sorted, with their texts.
fn texts(below: &str, extension: &str) -> Vec<(String, String)> {
    fn collect(path: PathBuf, extension: &str, found: &mut Vec<PathBuf>) {
        if path.is_dir() {
            for entry in path.read_dir().expect("a readable directory") {
                collect(entry.expect("a readable entry").path(), extension, found);
            }
        } else if path.extension().is_some_and(|end| end == extension) {
            found.push(path);
        }
    }
    let mut found = Vec::new();
    collect(root().join(below), extension, &mut found);
    found.sort();
    let text = |path: PathBuf| {
        let name = path.strip_prefix(root()).expect("a file of the project").to_string_lossy().into_owned();
        (name, std::fs::read_to_string(path).expect("a text"))
    };
    found.into_iter().map(text).collect()
}

/// Returns the comments of a Rust file. Text in backticks is replaced by `X`. Comments behind code are skipped.
fn comments(file: &str, text: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut open = false;
    for (index, line) in text.lines().enumerate() {
        let Some(comment) = line.trim_start().strip_prefix("//") else {
            open = false;
            continue;
        };
        let comment = comment.trim_start_matches(['/', '!']);
        match blocks.last_mut().filter(|_| open) {
            Some(block) => block.text.push_str(comment),
            None => {
                blocks.push(Block { file: file.to_owned(), line: index + 1, text: comment.trim_start().to_owned() });
            }
        }
        open = true;
    }
    for block in &mut blocks {
        block.text = CODE.replace_all(&block.text, "X").into_owned();
    }
    blocks
}

/// Returns the lines of the project's Markdown files. Text in backticks is replaced by `X`.
fn documents() -> Vec<Block> {
    let names = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"];
    let read = |name: &&str| ((*name).to_owned(), std::fs::read_to_string(root().join(name)).expect("a text"));
    let all = names.iter().map(read).chain(texts("docs/src", "md"));
    let blocks = all.flat_map(|(file, text)| {
        // Lines of code blocks are replaced by empty ones, so that the line numbers stay correct.
        let mut fenced = false;
        let lines = text.lines().enumerate().map(|(index, line)| {
            let is_fence = line.trim_start().starts_with("```");
            fenced ^= is_fence;
            let text = if fenced || is_fence { String::new() } else { CODE.replace_all(line, "X").into_owned() };
            Block { file: file.clone(), line: index + 1, text }
        });
        lines.collect::<Vec<_>>()
    });
    blocks.collect()
}

/// Compares the number of uses with its limit, and adds a problem if they differ. `uses` are texts with file and line.
fn compare(name: &str, better: &str, uses: &[String], limit: usize, problems: &mut Vec<String>) {
    if uses.len() > limit {
        let shown: Vec<_> = uses.iter().take(20).map(String::as_str).collect();
        let shown = shown.join("\n    ");
        problems.push(format!("{name}: {} uses, {limit} are allowed; {better}\n    {shown}", uses.len()));
    } else if uses.len() < limit {
        problems.push(format!("{name}: {} uses are left; lower the limit of {limit} in tests/prose.rs", uses.len()));
    }
}

#[test]
fn no_idiom_is_used_more_often_than_its_limit() {
    let sources = texts("src", "rs");
    let comments: Vec<_> = sources.iter().flat_map(|(file, text)| comments(file, text)).collect();
    let documents = documents();
    let mut problems = Vec::new();
    for idiom in &IDIOMS {
        let pattern = Regex::new(idiom.pattern).unwrap();
        let uses = |blocks: &[Block]| -> Vec<String> {
            let of = |block: &Block| {
                let found = pattern.find_iter(&block.text).map(|found| found.as_str().trim().to_owned());
                found.map(|found| format!("{}:{}: {found}", block.file, block.line)).collect::<Vec<_>>()
            };
            blocks.iter().flat_map(of).collect()
        };
        compare(&format!("comments, {}", idiom.name), idiom.better, &uses(&comments), idiom.in_comments, &mut problems);
        compare(
            &format!("documents, {}", idiom.name),
            idiom.better,
            &uses(&documents),
            idiom.in_documents,
            &mut problems,
        );
    }
    let question = Regex::new(r"^//!\s*(What|How|Which|Whether|Where|Why|When|Whom?|Whoever)\b").unwrap();
    let headers = sources.iter().filter(|(_, text)| question.is_match(text)).map(|(file, _)| format!("{file}:1"));
    let better = "begin with a noun phrase or a plain statement";
    compare(
        "headers that begin with a question word",
        better,
        &headers.collect::<Vec<_>>(),
        QUESTION_HEADERS,
        &mut problems,
    );
    assert!(problems.is_empty(), "\n{}", problems.join("\n"));
}

#[test]
fn types_explain_themselves_and_stand_in_one_module() {
    let declared = Regex::new(r"(?m)^\s*pub(?:\([^)]*\))? (?:struct|enum|trait|type) (\w+)").unwrap();
    let word = Regex::new("[A-Z][a-z0-9]*").unwrap();
    let mut types = BTreeMap::<String, BTreeSet<String>>::new();
    for (file, text) in texts("src", "rs") {
        let module = file.split('/').nth(1).unwrap().trim_end_matches(".rs");
        for found in declared.captures_iter(&text) {
            types.entry(found[1].to_owned()).or_default().insert(module.to_owned());
        }
    }
    let one_word = types.keys().filter(|name| word.find_iter(name).count() == 1).count();
    let share = (100 * one_word).div_ceil(types.len());
    let shared = types.iter().filter(|(_, modules)| modules.len() > 1);
    let shared: Vec<_> = shared
        .map(|(name, modules)| format!("{name}: {}", modules.iter().cloned().collect::<Vec<_>>().join(", ")))
        .collect();
    let mut problems = Vec::new();
    compare("names in two top modules", "one name, one type", &shared, SHARED_NAMES, &mut problems);
    if share != ONE_WORD_TYPES {
        problems.push(format!(
            "{share} % of the public types have one-word names; the limit is {ONE_WORD_TYPES} %, and only goes down"
        ));
    }
    assert!(problems.is_empty(), "\n{}", problems.join("\n"));
}

#[test]
fn the_readme_is_short() {
    let text = std::fs::read_to_string(root().join("README.md")).unwrap();
    let (lines, words) = (text.lines().count(), text.split_whitespace().count());
    assert!(
        lines <= README.0 && words <= README.1,
        "README.md: {lines} lines and {words} words, {README:?} are allowed"
    );
}

/// Every link to a file of the project, or to a heading in one, has a target that exists.
#[test]
fn links_of_documents_lead_somewhere() {
    let link = Regex::new(r"\]\(([^)\s]+)\)").unwrap();
    let mut broken = Vec::new();
    for block in documents() {
        for found in link.captures_iter(&block.text) {
            let target = &found[1];
            if target.starts_with("http") {
                continue;
            }
            let (path, heading) = target.split_once('#').unwrap_or((target, ""));
            let here = root().join(&block.file);
            let file = if path.is_empty() { here } else { here.parent().unwrap().join(path) };
            let text = std::fs::read_to_string(&file).unwrap_or_default();
            let has_heading = heading.is_empty() || text.lines().filter_map(anchor).any(|anchor| anchor == heading);
            if text.is_empty() || !has_heading {
                broken.push(format!("{}:{}: {target}", block.file, block.line));
            }
        }
    }
    assert!(broken.is_empty(), "\n{}", broken.join("\n"));
}

/// Returns the anchor of a heading, as `mdBook` and GitHub derive it. `None` for other lines.
fn anchor(line: &str) -> Option<String> {
    let title = line.strip_prefix('#')?.trim_start_matches('#').trim().to_lowercase();
    let kept = title.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    Some(kept.map(|c| if c == ' ' { '-' } else { c }).collect())
}

#[test]
fn a_use_is_found_in_comments_and_not_in_code() {
    let text = "//! What is this.\nlet what = \"What it is\"; // no comment line\n    /// See `what is` and\n    /// what the rest is.\n";
    let blocks = comments("a.rs", text);
    let found: Vec<_> = blocks.iter().map(|block| (block.line, block.text.as_str())).collect();
    assert_eq!(found, [(1, "What is this."), (3, "See X and what the rest is.")]);
    assert_eq!(anchor("## The engine's own answer").as_deref(), Some("the-engines-own-answer"));
}
