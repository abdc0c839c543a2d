//! Tests of the book of vLLM's flags and of the parser.

mod parse;
mod read;
mod render;

use super::FLAGS;
use crate::config::Value;
use crate::flag::FlagTable;

fn table(version: &str) -> Result<FlagTable, crate::facts::VersionError> {
    version.parse().map(|version| FLAGS.for_version(version))
}

#[test]
fn a_flag_exists_only_in_its_releases() -> Result<(), crate::facts::VersionError> {
    assert!(table("0.6.3.post1")?.find("scheduler-delay-factor").is_some());
    assert!(table("0.11.0")?.find("scheduler_delay_factor").is_some(), "read as 0.10.2");
    assert!(table("0.32.0")?.find("scheduler-delay-factor").is_none());
    let error = table("0.32.0")?.unknown("scheduler-delay-factor").to_string();
    let hint = "last seen in vLLM 0.10.2; only the V0 engine delayed prompts";
    assert_eq!(error, format!("unrecognized arguments: --scheduler-delay-factor ({hint})"));
    Ok(())
}

#[test]
fn a_misspelt_flag_gets_the_nearest_name() -> Result<(), crate::facts::VersionError> {
    let error = table("0.32.0")?.unknown("max-num-seq").to_string();
    assert_eq!(error, "unrecognized arguments: --max-num-seq (did you mean --max-num-seqs?)");
    Ok(())
}

#[test]
fn block_sizes_are_a_choice_until_012_and_a_bound_later() -> Result<(), crate::facts::VersionError> {
    let old = table("0.6.3")?.find("block-size").and_then(|flag| flag.choices());
    assert_eq!(old, Some(&[Value::Int(8), Value::Int(16), Value::Int(32)][..]));
    let new = table("0.32.0")?.find("block-size");
    assert_eq!(new.and_then(|flag| flag.choices()), None);
    assert_eq!(new.and_then(|flag| flag.bounds()).and_then(|bounds| bounds.gt), Some(0.0));
    Ok(())
}

#[test]
fn the_book_is_well_formed() {
    assert_eq!(FLAGS.problems(), Vec::<String>::new());
}
