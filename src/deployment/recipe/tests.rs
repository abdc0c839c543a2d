//! Tests of recipes: their first points, and errors in their files.

use std::path::Path;

use super::*;
use crate::config::Config;
use crate::engines::vllm::FLAGS;
use crate::facts::{Device, Gpu};

const MINIMAX: &str = "MiniMaxAI/MiniMax-M2.5";
const LLAMA: &str = "meta-llama/Llama-3.1-8B-Instruct";
const H100: &str = "NVIDIA H100 80GB HBM3";

/// Returns the target of a study on GPUs with the newest release.
pub(super) fn target<'a>(model: &'a str, gpu: &'a str, count: u32, gib: u64, study: &'a Config) -> RecipeTarget<'a> {
    let device = Device::Cuda(Gpu { memory: Some(gib << 30), count: Some(count), ..Gpu::default() });
    RecipeTarget { model, version: EngineVersion::LATEST, device, gpu_name: Some(gpu), study }
}

fn path_of(model: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/recipes/models/{model}.yaml"));
    path.to_str().unwrap().to_owned()
}

/// Returns the points of a recipe of the fixtures, for another model of it.
fn points_for(recipe: &str, model: &str, gpu: &str, count: u32, gib: u64) -> RecipePoints {
    let recipe = read_recipe(&path_of(recipe)).unwrap();
    let study = Config::new();
    recipe.first_points(&target(model, gpu, count, gib, &study), FLAGS.for_version(EngineVersion::LATEST)).unwrap()
}

fn points(model: &str, gpu: &str, count: u32, gib: u64) -> RecipePoints {
    points_for(model, model, gpu, count, gib)
}

fn keys(points: &RecipePoints) -> Vec<String> {
    points.points.iter().map(|point| point.flags.key()).collect()
}

fn read_text(text: &str) -> Result<Recipe, RecipeError> {
    Recipe::from_text("recipe.yaml", text)
}

/// Returns a recipe with these base arguments, and this text at the end.
fn small(base_args: &str, end: &str) -> Recipe {
    let text = format!(
        "model:\n  model_id: a/m\n  base_args: {base_args}\nvariants:\n  default: {{precision: bf16}}\n\
         compatible_strategies: [single_node_tp]\n{end}\nguide: text\n"
    );
    read_text(&text).unwrap()
}

#[test]
fn each_strategy_on_one_host_is_a_point_with_the_flags_of_the_hardware() {
    let found = points(MINIMAX, H100, 8, 79);
    let hopper = Config::new()
        .with("attention-backend", "FLASHINFER")
        .with("compilation-config", r#"{"cudagraph_mode":"PIECEWISE"}"#)
        .with("enable-flashinfer-autotune", true)
        .with("kv-cache-dtype", "fp8")
        .with("max-num-batched-tokens", 32768_i64)
        .with("max-num-seqs", 512_i64)
        .with("moe-backend", "triton");
    let expected = [
        hopper.clone().with("tensor-parallel-size", 4_i64),
        hopper.clone().with("tensor-parallel-size", 8_i64).with("enable-expert-parallel", true),
        hopper.with("data-parallel-size", 8_i64).with("enable-expert-parallel", true),
    ];
    assert_eq!(found.points.iter().map(|point| point.flags.clone()).collect::<Vec<_>>(), expected);
    let source = format!("recipe {MINIMAX} ({}), single_node_tp, hardware h100", path_of(MINIMAX));
    assert_eq!(found.points[0].source, source);
    let notes = [
        "the recipe sets flags that all launches of a study share; if you need them, add to engine.args: \
         [\"--enable-auto-tool-choice\", \"--reasoning-parser\", \"minimax_m2\", \"--tool-call-parser\", \"minimax_m2\", \
         \"--trust-remote-code\"]",
        "the recipe sets PYTHONNOUSERSITE=1, VLLM_BLOCKSCALE_FP8_GEMM_FLASHINFER=0, VLLM_FLOAT32_MATMUL_PRECISION=high, \
         VLLM_USE_DEEP_GEMM=0: add it to [engine.env]",
    ];
    assert_eq!(found.notes, notes);
}

#[test]
fn hardware_that_the_recipe_does_not_list_gets_the_flags_for_all_hardware() {
    let found = points("deepseek-ai/DeepSeek-V4-Flash", "NVIDIA A100-SXM4-80GB", 8, 79);
    assert_eq!(found.points.len(), 3);
    assert!(found.points[0].source.ends_with("single_node_tep, variant fp8, hardware a100"), "{found:?}");
    let preferred =
        r#"{"block-size":256,"enable-expert-parallel":true,"kv-cache-dtype":"fp8","tensor-parallel-size":8}"#;
    assert_eq!(keys(&found)[0], preferred);
    let note = "the recipe does not list NVIDIA A100-SXM4-80GB: the flags for all hardware are used";
    assert!(found.notes.contains(&note.to_owned()), "{:?}", found.notes);
    assert!(found.notes.contains(&"features that the recipe leaves off are not used: spec_decoding".to_owned()));
}

#[test]
fn flags_that_equal_the_defaults_are_no_point() {
    let found = points(LLAMA, "NVIDIA GeForce RTX 4090", 1, 23);
    assert_eq!(found.points, []);
    let note = "single_node_tp gives no first point: its flags are the engine's defaults, which are measured anyway";
    assert!(found.notes.contains(&note.to_owned()), "{:?}", found.notes);
}

#[test]
fn a_processor_gets_the_flags_of_processors() {
    let recipe = read_recipe(&path_of("Qwen/Qwen3-8B")).unwrap();
    let study = Config::new();
    let on = RecipeTarget { device: Device::Cpu, gpu_name: None, ..target("qwen3-8b", "", 1, 1, &study) };
    let found = recipe.first_points(&on, FLAGS.for_version(EngineVersion::LATEST)).unwrap();
    assert_eq!(keys(&found), [r#"{"gpu-memory-utilization":0.8,"max-num-batched-tokens":16384}"#]);
    assert!(found.points[0].source.ends_with("hardware cpu"));
}

#[test]
fn a_variant_of_the_recipe_is_the_studys_model_on_hardware_that_computes_with_it() {
    let variant = "nvidia/MiniMax-M2.5-NVFP4";
    let found = points_for(MINIMAX, variant, "NVIDIA B200", 8, 178);
    assert!(found.points[0].source.ends_with("single_node_tp, variant nvfp4, hardware b200"), "{found:?}");
    let expected = r#"{"compilation-config":"{\"cudagraph_mode\":\"PIECEWISE\"}","kv-cache-dtype":"fp8","tensor-parallel-size":4}"#;
    assert_eq!(keys(&found)[0], expected);
}

#[test]
fn a_variant_that_the_hardware_cannot_compute_or_hold_gives_no_point() {
    for (model, gpu, count, gib, note) in [
        ("nvidia/MiniMax-M2.5-NVFP4", H100, 8, 79, "the recipe's variant nvfp4 is not for the hardware h100"),
        (MINIMAX, H100, 2, 79, "the recipe asks for 276 GB of device memory, and 169 GB are here"),
    ] {
        let found = points_for(MINIMAX, model, gpu, count, gib);
        assert_eq!((found.points, found.notes), (vec![], vec![format!("{note}: it gives no first point")]));
    }
    let found = points("stabilityai/stable-audio-open-1.0", H100, 1, 79);
    assert_eq!(found.points, []);
    assert!(found.notes[0].contains("`omni`"), "{:?}", found.notes);
}

#[test]
fn a_strategy_for_more_devices_than_there_are_is_left_out_and_named() {
    let found = points(MINIMAX, "NVIDIA GB300", 2, 260);
    let strategies: Vec<_> = found.points.iter().map(|point| point.source.split(", ").nth(1).unwrap()).collect();
    assert_eq!(strategies, ["single_node_tep", "single_node_dep"]);
    assert_eq!(found.notes[0], "single_node_tp is left out: it computes on 4 devices, and 2 are here");
    let floor = small("[--block-size=32]", "strategy_min_gpus: {h100: 4}");
    let study = Config::new();
    for (count, expected) in [(2, 0), (4, 1)] {
        let table = FLAGS.for_version(EngineVersion::LATEST);
        let found = floor.first_points(&target("m", H100, count, 79, &study), table).unwrap();
        assert_eq!(found.points.len(), expected, "{found:?}");
    }
}

#[test]
fn flags_that_the_release_lacks_are_left_out_and_named() {
    let recipe = read_recipe(&path_of(MINIMAX)).unwrap();
    let study = Config::new();
    let version = EngineVersion::new(0, 10, 2);
    let on = RecipeTarget { version, ..target(MINIMAX, H100, 8, 79, &study) };
    let found = recipe.first_points(&on, FLAGS.for_version(version)).unwrap();
    assert_eq!(found.points[0].flags.get_i64("max-num-seqs"), Some(512));
    assert_eq!(found.points[0].flags.get("moe-backend"), None);
    let lacks = "`moe-backend` is left out: release 0.10.2 does not have it (first seen in vLLM 0.20.2)";
    assert!(found.notes.contains(&lacks.to_owned()), "{:?}", found.notes);
    let old = "the recipe is for release 0.20.2 or later, and the study's release is 0.10.2";
    assert!(found.notes.contains(&old.to_owned()), "{:?}", found.notes);
}

#[test]
fn flags_of_setpoint_and_of_the_study_are_left_out_and_secrets_are_not_shown() {
    let args = "['--port', '9000', --served-model-name, x, --api-key, sk-123, '--max-model-len 4096', '--block-size=32', \
                --max-num-seqs, many]";
    let recipe = small(args, "hardware_overrides:\n  hopper:\n    extra_env: {MY_TOKEN: hunter2-hunter2, A: b}");
    let study = Config::new().with("max-model-len", 2048_i64);
    let found =
        recipe.first_points(&target("a/m", H100, 1, 79, &study), FLAGS.for_version(EngineVersion::LATEST)).unwrap();
    assert_eq!(keys(&found), [r#"{"block-size":32}"#]);
    let expected = [
        "a flag is left out: argument --max-num-seqs: invalid int value: 'many'",
        "`api-key` is left out: its value may be a secret",
        "`max-model-len` is left out: it is 4096 in the recipe, and 2048 in the study",
        "`port` is left out: setpoint chooses it for every launch",
        "`served-model-name` is left out: setpoint connects to all launches in the same way",
        "the recipe sets A=b, MY_TOKEN (a secret): add it to [engine.env]",
    ];
    assert_eq!(found.notes, expected);
}

#[test]
fn a_recipe_of_another_model_is_an_error_with_the_models_that_it_serves() {
    let recipe = read_recipe(&path_of(LLAMA)).unwrap();
    let study = Config::new();
    let on = target("Qwen/Qwen3-8B", H100, 1, 79, &study);
    let error = recipe.first_points(&on, FLAGS.for_version(EngineVersion::LATEST)).unwrap_err();
    let expected = format!("model.model_id: the recipe is for {LLAMA}, and the study's model is Qwen/Qwen3-8B");
    assert_eq!(error.to_string(), format!("{}: {expected}", path_of(LLAMA)));
    assert!(error.hint.contains("nvidia/Llama-3.1-8B-Instruct-FP8"), "{}", error.hint);
}

#[test]
fn a_file_that_is_no_recipe_or_is_cut_off_is_an_error_with_line_key_and_hint() {
    let head = "model:\n  model_id: a/m\n";
    for (text, line, key, problem) in [
        ("services:\n  a: 1\n".to_owned(), Some(1), "", "is not a recipe: it has no key `model`"),
        ("- a\n".to_owned(), None, "", "is not a recipe: it is not one YAML mapping"),
        (String::new(), None, "", "is not a recipe: it is not one YAML mapping"),
        ("model:\n".to_owned(), Some(1), "model", "has no value"),
        (head.to_owned(), Some(1), "variants", "is missing"),
        (format!("{head}variants:\n  default:\n"), Some(4), "variants.default", "has no value"),
        (
            format!("{head}variants: {{}}\ncompatible_strategies: a\n"),
            Some(4),
            "compatible_strategies",
            "is not a list",
        ),
        (
            format!("{head}variants:\n  fp8:\n    vram_minimum_gb: much\n"),
            Some(5),
            "variants.fp8.vram_minimum_gb",
            "is not a whole number",
        ),
        (format!("{head}  base_args:\n    - [a]\nvariants: {{}}\n"), Some(4), "model.base_args[0]", "is not a text"),
        (
            format!("{head}  min_vllm_version: soon\nvariants: {{}}\n"),
            Some(3),
            "model.min_vllm_version",
            "\"soon\" is not an engine version such as 0.32.0, or a build such as b11434",
        ),
    ] {
        let error = read_text(&text).unwrap_err();
        assert_eq!((error.line, &*error.key, &*error.problem), (line, key, problem), "{text}");
        assert!(!error.hint.is_empty());
    }
    let error = read_text(&format!("{head}  base_args:\n    - \"--block")).unwrap_err();
    assert!(error.problem.starts_with("not valid YAML") && error.line.is_some(), "{error}");
    assert_eq!(error.hint, "the file may be cut off: download the recipe again");
    assert!(read_recipe("/nowhere/recipe.yaml").unwrap_err().problem.starts_with("cannot be read"));
}

#[test]
fn every_beginning_of_a_recipe_is_an_error_or_has_a_remark() {
    let text = std::fs::read_to_string(path_of("Qwen/Qwen3-8B")).unwrap();
    let complete = text.find("\nguide").unwrap();
    for end in (0..complete).filter(|end| text.is_char_boundary(*end)) {
        if let Ok(recipe) = read_text(&text[..end]) {
            assert!(recipe.notes.iter().any(|note| note.contains("cut off")), "{end}: {:?}", recipe.notes);
        }
    }
    assert!(read_text(&text).unwrap().notes.is_empty());
}

#[test]
fn a_key_that_is_not_known_is_named() {
    let recipe = small("[]", "hardware_override: {}");
    assert_eq!(recipe.notes, ["the recipe's key `hardware_override` is not known and not used"]);
}

#[test]
fn a_recipe_is_recognised_by_its_model() {
    let text = std::fs::read_to_string(path_of(LLAMA)).unwrap();
    assert_eq!(recipe_model(&text).as_deref(), Some(LLAMA));
    assert_eq!(recipe_model("model: Qwen/Qwen3-8B\nport: 8000\n"), None, "a file of vLLM's own flags");
    assert_eq!(recipe_model("{"), None);
}
