//! Command lines in the reading of vLLM's parser.

use super::FLAGS;
use crate::config::Config;
use crate::facts::EngineVersion;
use crate::flag::FlagError;

const V06: EngineVersion = EngineVersion::new(0, 6, 3);
const V32: EngineVersion = EngineVersion::new(0, 32, 0);

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

fn parse(version: EngineVersion, line: &str) -> Result<Config, FlagError> {
    FLAGS.for_version(version).parse(&words(line))
}

#[test]
fn numbers_switches_and_negations_are_read() -> Result<(), FlagError> {
    let config = parse(V32, "--max_num_seqs 64 --gpu-memory-utilization=0.8 --no-enable-prefix-caching -tp 2")?;
    let expected = Config::new()
        .with("max-num-seqs", 64_i64)
        .with("gpu-memory-utilization", 0.8)
        .with("enable-prefix-caching", false)
        .with("tensor-parallel-size", 2_i64);
    assert_eq!(config, expected);
    Ok(())
}

#[test]
fn human_integers_are_decimal_in_small_letters_and_binary_in_capitals() -> Result<(), FlagError> {
    let config = parse(V32, "--max-model-len 2K --max-num-batched-tokens 1.5k")?;
    assert_eq!((config.get_i64("max-model-len"), config.get_i64("max-num-batched-tokens")), (Some(2048), Some(1500)));
    Ok(())
}

#[test]
fn abbreviations_attached_values_and_automatic_lengths_are_read() -> Result<(), FlagError> {
    let config = parse(V32, "--max-num-seq 4 -O3 --kv-cache-memory 100M --max-model-len auto -n2")?;
    assert_eq!((config.get_i64("max-num-seqs"), config.get_i64("max-model-len")), (Some(4), Some(-1)));
    assert_eq!(config.get_i64("kv-cache-memory-bytes"), Some(100 << 20));
    assert_eq!((config.get_i64("optimization-level"), config.get_i64("nnodes")), (Some(3), Some(2)));
    assert_eq!(parse(V32, "-O 0")?.get_i64("optimization-level"), Some(0));
    assert!(parse(V32, "-O {}").is_err(), "only a level");
    assert_eq!(parse(EngineVersion::new(0, 10, 2), "-O3")?.get_str("compilation-config"), Some("3"));
    assert!(parse(V32, "--max-num 4").is_err(), "several flags begin so");
    assert!(parse(V06, "--max-model-len auto").is_err());
    Ok(())
}

#[test]
fn several_values_of_a_list_are_kept() -> Result<(), FlagError> {
    let config = parse(V32, "--cudagraph-capture-sizes 1 2 4 --max-num-seqs 4")?;
    assert_eq!(config.get_str("cudagraph-capture-sizes"), Some("1 2 4"));
    assert!(parse(V32, "--cudagraph-capture-sizes=1 2").is_err(), "only the attached value belongs to it");
    assert!(parse(V32, "--cudagraph-capture-sizes 1 x").is_err());
    Ok(())
}

#[test]
fn fields_given_one_by_one_are_read_as_one_json_value() -> Result<(), FlagError> {
    let line = "--compilation-config.mode 3 --max-num-seqs 4 --compilation_config.pass_config.fuse_norm_quant=true";
    let config = parse(V32, line)?;
    let expected = r#"{"mode":3,"pass_config":{"fuse_norm_quant":true}}"#;
    assert_eq!(config.get_str("compilation-config"), Some(expected));
    assert!(parse(V32, "--compilation-config.mode 9").is_err());
    Ok(())
}

#[test]
fn arguments_that_argparse_refuses_are_refused() {
    for (line, text) in [
        ("--max-num-seqs many", "argument --max-num-seqs: invalid int value: 'many'"),
        ("--max-num-seqs", "argument --max-num-seqs: expected one argument"),
        ("--kv-cache-dtype int3", "argument --kv-cache-dtype: invalid choice: 'int3' (choose from "),
        ("--enable-chunked-prefill=False", "argument --enable-chunked-prefill: ignored explicit argument 'False'"),
        ("--use-v2-block-manager", "unrecognized arguments: --use-v2-block-manager (last seen in vLLM 0.8.5; "),
        ("--quantizatio fp8", "ambiguous option: --quantizatio could match --quantization, --quantization-config"),
        ("seven", "unexpected argument \"seven\""),
    ] {
        let error = parse(V32, line).map_err(|error| error.to_string()).err().unwrap_or_default();
        assert!(error.starts_with(text), "{line}: {error}");
    }
}

#[test]
fn unreadable_arguments_can_be_left_out() {
    let line = "--max-num-seqs many --swap-space 4 --max-model-len 2048 --compilation-config.mode 9";
    let (config, errors) = FLAGS.for_version(V32).parse_lenient(&words(line));
    assert_eq!(config, Config::new().with("max-model-len", 2048_i64));
    assert_eq!(errors.len(), 3, "{errors:?}");
}

#[test]
fn the_v0_era_spells_a_false_chunked_prefill_out() -> Result<(), FlagError> {
    let config = parse(V06, "--enable-chunked-prefill=False --enable-prefix-caching")?;
    assert_eq!(config.get_bool("enable-chunked-prefill"), Some(false));
    assert_eq!(config.get_bool("enable-prefix-caching"), Some(true));
    assert!(parse(V06, "--no-enable-prefix-caching").is_err());
    Ok(())
}
