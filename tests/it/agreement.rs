//! Agreement of the rules with the real vLLM, on argument lists that are drawn at random.
//!
//! Needs an installation, which the environment variable `SETPOINT_VLLM_CPU` names, and takes minutes.
//! `SETPOINT_AGREEMENT_SEED` and `SETPOINT_AGREEMENT_LISTS` set the seed and the number of lists.

mod sample;

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value as Json, json};
use setpoint::config::{Config, ResolvedConfig};
use setpoint::engines::vllm::FLAGS;
use setpoint::engines::vllm::resolve_config;
use setpoint::facts::{Device, EngineVersion, HostLimits, ModelShape};
use setpoint::rule::{Facts, Severity, rejection, repair};
use setpoint::stats::to_f64;

use crate::real_vllm::installation;
use crate::support::root;
use sample::{List, Pool};

const VERSION: EngineVersion = EngineVersion::new(0, 32, 0);

/// Returns the engine's verdict on each argument list, in order. Two engines share the work.
fn ask_engines(installation: &Path, lists: &[Vec<String>]) -> Vec<Json> {
    let (first, second) = lists.split_at(lists.len() / 2);
    std::thread::scope(|scope| {
        let second = scope.spawn(|| ask_engine(installation, second));
        [ask_engine(installation, first), second.join().unwrap()].concat()
    })
}

#[expect(clippy::disallowed_methods, reason = "asks the real engine, beside the program under test")]
fn ask_engine(installation: &Path, lists: &[Vec<String>]) -> Vec<Json> {
    let requests: Vec<_> =
        lists.iter().enumerate().map(|(id, list)| json!({"id": id, "args": list}).to_string()).collect();
    let directory = tempfile::tempdir().unwrap();
    let requests_file = directory.path().join("requests.jsonl");
    std::fs::File::create(&requests_file).unwrap().write_all(requests.join("\n").as_bytes()).unwrap();
    let output = Command::new(installation.join("bin/python"))
        .arg(root().join("src/engines/vllm/preflight.py"))
        .envs([("HF_HUB_OFFLINE", "1"), ("VLLM_NO_USAGE_STATS", "1"), ("DO_NOT_TRACK", "1")])
        .env("VLLM_CPU_KVCACHE_SPACE", "1")
        .current_dir(directory.path())
        .stdin(std::fs::File::open(&requests_file).unwrap())
        .stderr(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let replies: Vec<Json> = text.lines().skip(1).map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(replies.len(), lists.len(), "the engine ended early: {}", output.status);
    replies
}

/// Verdict of the rules: a refusal by the parser or the configuration classes, the resolved values, and the repair.
/// Late failures do not count.
struct Verdict {
    refused: Option<String>,
    effective: ResolvedConfig,
    repaired: Option<Config>,
}

fn judge(list: &List, model: &ModelShape, amx: Option<bool>) -> Verdict {
    let facts = Facts {
        host: HostLimits { amx, ..HostLimits::default() },
        ..Facts::new(setpoint::engines::vllm::VLLM_RULES, model, VERSION, Device::Cpu)
    };
    let (config, errors) = FLAGS.for_version(VERSION).parse_lenient(&list.arguments);
    let finding = rejection(&config, &facts).filter(|finding| finding.severity >= Severity::Configuration);
    let refused = errors.first().map(|error| format!("A1: {error}"));
    Verdict {
        refused: refused.or_else(|| finding.map(|finding| format!("{}: {}", finding.rule, finding.message))),
        effective: resolve_config(&config, &facts),
        repaired: repair(&config, &facts),
    }
}

fn same_values(effective: &ResolvedConfig, resolved: &Json) -> bool {
    let ours = json!({
        "max_model_len": effective.max_model_len,
        "max_num_batched_tokens": effective.max_num_batched_tokens,
        "max_num_seqs": effective.max_num_seqs,
        "enable_chunked_prefill": effective.chunked_prefill,
        "enable_prefix_caching": effective.prefix_caching,
        "block_size": effective.block_size,
        "tensor_parallel_size": effective.tensor_parallel_size,
        "pipeline_parallel_size": effective.pipeline_parallel_size,
    });
    ours.as_object().unwrap().iter().all(|(name, value)| resolved[name] == *value)
}

fn percent(part: usize, whole: usize) -> f64 {
    100.0 * to_f64(part) / to_f64(whole.max(1))
}

#[test]
#[expect(clippy::print_stdout, reason = "the figures and every disagreement are what the test is read for")]
#[ignore = "needs the real vLLM, which SETPOINT_VLLM_CPU names"]
fn the_rules_agree_with_the_real_engine() {
    let installation = installation();
    let variable = |name: &str, default: u64| {
        std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|error| panic!("{name}: {error}")))
    };
    let pool = Pool::read();
    let directory = tempfile::tempdir().unwrap();
    let models = pool.write_models(directory.path(), &installation.join("model"));
    let (seed, count) = (variable("SETPOINT_AGREEMENT_SEED", 20_260), variable("SETPOINT_AGREEMENT_LISTS", 3000));
    let lists = pool.draw(seed, count);
    let with_model = |model: &str, arguments: &[String]| -> Vec<String> {
        let path = directory.path().join(model).to_string_lossy().into_owned();
        std::iter::once(path).chain(arguments.iter().cloned()).collect()
    };
    let asked: Vec<_> = lists.iter().map(|list| with_model(&list.model, &list.arguments)).collect();
    // The available kernels depend on the processor.
    let amx = HostLimits::detect().amx;
    let judged = |lists: &[List]| lists.iter().map(|list| judge(list, &models[&list.model], amx)).collect::<Vec<_>>();
    let (first, second) = lists.split_at(lists.len() / 2);
    let (replies, verdicts) = std::thread::scope(|scope| {
        let rules = [first, second].map(|half| scope.spawn(move || judged(half)));
        let replies = ask_engines(&installation, &asked);
        (replies, rules.map(|half| half.join().unwrap()).into_iter().flatten().collect::<Vec<_>>())
    });

    let (mut differ, mut falsely, mut accepted, mut other_values) = (0, 0, 0, 0);
    let mut repairs = Vec::new();
    for ((list, reply), verdict) in lists.iter().zip(&replies).zip(verdicts) {
        let accepts = reply["verdict"] == "accept";
        accepted += usize::from(accepts);
        let line = || format!("{} {}", list.model, list.arguments.join(" "));
        match (&verdict.refused, accepts) {
            (Some(reason), true) => {
                falsely += 1;
                println!("falsely rejected by {reason}\n    {}", line());
            }
            (None, false) => {
                differ += 1;
                println!("not rejected: {}\n    {}", reply["message"], line());
            }
            (None, true) if !same_values(&verdict.effective, &reply["resolved"]) => {
                other_values += 1;
                println!("other values: {:?} {}\n    {}", verdict.effective, reply["resolved"], line());
            }
            (Some(_), false) => repairs.push((list, verdict.repaired)),
            (None, true) => {}
        }
    }
    let all = lists.len();
    let table = FLAGS.for_version(VERSION);
    let repaired: Vec<_> = repairs
        .iter()
        .filter_map(|(list, config)| Some(with_model(&list.model, &table.render(config.as_ref()?).unwrap())))
        .collect();
    let works = ask_engines(&installation, &repaired).iter().zip(&repaired).fold(0, |works, (reply, list)| {
        let accepts = reply["verdict"] == "accept";
        if !accepts {
            println!("repaired and not accepted: {}\n    {}", reply["message"], list.join(" "));
        }
        works + usize::from(accepts)
    });
    println!(
        "{all} lists, {accepted} of them accepted by the engine (seed {seed}): {:.2} % agree, {:.2} % are falsely \
         rejected, {:.2} % of the accepted have the engine's values, {:.2} % of {} rejections are repaired",
        percent(all - differ - falsely, all),
        percent(falsely, all),
        percent(accepted - falsely - other_values, accepted - falsely),
        percent(works, repairs.len()),
        repairs.len(),
    );
    assert!(percent(all - differ - falsely, all) >= 99.0, "agreement");
    assert!(percent(falsely, all) <= 0.3, "false rejections");
    assert!(percent(other_values, accepted) <= 1.0, "resolved values");
    assert!(percent(works, repairs.len()) >= 99.0, "repairs");
}
