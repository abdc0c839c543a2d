//! Values in the reading of vLLM's parser.

use super::FLAGS;
use crate::config::Value;
use crate::facts::EngineVersion;

fn read(name: &str, text: &str) -> Result<Value, String> {
    let flag = FLAGS.for_version(EngineVersion::new(0, 32, 0)).find(name).unwrap();
    flag.read(text).map_err(|error| error.to_string())
}

#[test]
fn numbers_are_read_as_python_reads_them() {
    assert_eq!(read("seed", "9223372036854775808"), Ok(Value::Int(i64::MAX)));
    assert_eq!(read("seed", "-99_999_999_999_999_999_999"), Ok(Value::Int(i64::MIN)));
    assert_eq!(read("max-num-seqs", " +1_000 "), Ok(Value::Int(1000)));
    assert!(read("max-num-seqs", "1__0").is_err() && read("max-num-seqs", "1e3").is_err());
    assert_eq!(read("gpu-memory-utilization", "5e-1"), Ok(Value::Float(0.5)));
    assert_eq!(read("kv-cache-memory-bytes", "25.5g"), Ok(Value::Int(25_500_000_000)));
    assert!(read("kv-cache-memory-bytes", "25.5G").is_err() && read("max-model-len", "k").is_err());
}

#[test]
fn optional_flags_may_be_unset_by_name_and_others_not() {
    assert_eq!(read("max-num-active-seqs", "None"), Ok(Value::Text("None".to_owned())));
    assert!(read("max-num-seqs", "None").is_err());
}

#[test]
fn json_flags_are_checked_field_by_field() {
    assert!(read("compilation-config", r#"{"mode": 3, "cudagraph_mode": "full"}"#).is_ok());
    assert!(read("kv-transfer-config", r#"{"kv_connector": "X", "kv_port": 14k}"#).is_ok());
    let error = read("compilation-config", r#"{"nope": 1}"#);
    assert_eq!(error, Err("argument --compilation-config: nope: Unexpected keyword argument".to_owned()));
    assert!(read("limit-mm-per-prompt", "image=1").is_err());
    assert!(read("hf-overrides", "module.function").is_ok() && read("hf-overrides", "{x}").is_err());
}

#[test]
fn some_choices_are_folded_first() {
    assert_eq!(read("moe-backend", "Flashinfer-Cutlass"), Ok(Value::Text("flashinfer_cutlass".to_owned())));
}
