//! Configurations as vLLM's command lines.

use super::FLAGS;
use crate::config::Config;
use crate::facts::EngineVersion;
use crate::flag::FlagError;

fn render(version: EngineVersion, config: &Config) -> Result<String, FlagError> {
    FLAGS.for_version(version).render(config).map(|arguments| arguments.join(" "))
}

#[test]
fn booleans_are_spelt_as_the_release_wants_them() -> Result<(), FlagError> {
    let off = Config::new().with("enable-chunked-prefill", false).with("enable-prefix-caching", false);
    assert_eq!(render(EngineVersion::new(0, 32, 0), &off)?, "--no-enable-chunked-prefill --no-enable-prefix-caching");
    // 0.6.3 has no argument that switches prefix caching off: it is off by default.
    assert_eq!(render(EngineVersion::new(0, 6, 3), &off)?, "--enable-chunked-prefill=False");
    Ok(())
}

#[test]
fn a_rendered_config_parses_back_to_itself() -> Result<(), FlagError> {
    let config = Config::new()
        .with("max-num-seqs", 64_i64)
        .with("gpu-memory-utilization", 0.85)
        .with("kv-cache-dtype", "fp8")
        .with("enable-prefix-caching", true);
    let table = FLAGS.for_version(EngineVersion::new(0, 32, 0));
    assert_eq!(table.parse(&table.render(&config)?)?, config);
    Ok(())
}

#[test]
fn a_flag_of_another_release_and_a_value_of_another_type_are_refused() {
    let version = EngineVersion::new(0, 32, 0);
    for config in [
        Config::new().with("scheduler-delay-factor", 0.5),
        Config::new().with("max-num-seqs", 1.5),
        Config::new().with("enable-prefix-caching", "yes"),
    ] {
        assert!(render(version, &config).is_err(), "{config}");
    }
}
