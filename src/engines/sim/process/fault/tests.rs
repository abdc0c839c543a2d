//! Tests of the texts of faults and of their conditions.

use proptest::prelude::*;

use super::cause::FaultCause;
use super::spec::{FORMS, FaultError};
use super::*;

fn fault(text: &str) -> Result<FaultSpec, FaultError> {
    text.parse()
}

#[test]
fn names_phases_and_keys_are_read() {
    let end = ProcessEnd::Code(137);
    assert_eq!(
        fault("exit@kv:cause=no-kv,code=137"),
        Ok(FaultSpec::Exit { at: FaultPhase::Kv, cause: FaultCause::NoKv, end: Some(end) })
    );
    let end = ProcessEnd::Signal(nix::sys::signal::Signal::SIGKILL);
    assert_eq!(
        fault("die:request=7,signal=9"),
        Ok(FaultSpec::Die { request: 7, cause: FaultCause::Exception, end: Some(end) })
    );
    assert_eq!(fault("long-step"), Ok(FaultSpec::LongStep { lasts: Duration::from_mins(1), busy: true, request: 1 }));
    assert_eq!(fault("leak"), Ok(FaultSpec::Leak { megabytes_per_s: 50, cap: 512 }));
    assert_eq!(
        fault("slow@graphs:seconds=0.25"),
        Ok(FaultSpec::Slow { at: FaultPhase::Graphs, lasts: Duration::from_millis(250) })
    );
}

#[test]
fn an_invalid_fault_is_refused_with_the_valid_choices() {
    for (text, told) in [
        ("explode", "invalid choice: 'explode' (choose from exit, hang, "),
        ("hang", "'hang' needs a phase, as in hang@weights (choose from parse, config, "),
        ("mute@kv", "'mute' takes no phase"),
        ("hang@lunch", "unknown phase: 'lunch' (choose from parse, "),
        ("hang@kv:seconds=1", "'hang' has no key 'seconds' (choose from nothing)"),
        ("exit@kv:cause=fate", "'exit': cause is 'fate', must be one of invalid-argument, "),
        ("exit@kv:code=256", "'exit': code is '256', must be an exit code from 0 to 255"),
        ("exit@kv:signal=99", "'exit': signal is '99', must be the number of a signal"),
        ("exit@kv:code=1,signal=9", "'exit' cannot end with both a code and a signal"),
        ("engine-core:phase=parse", "'engine-core': phase is 'parse', must be one of weights, "),
        ("errors:from=0", "'errors': from is '0', must be a whole number from 1 to "),
        ("late-listen:seconds=-1", "'late-listen': seconds is '-1', must be a number of seconds up to 86400"),
        ("spin:seconds=1", "'spin' has no key 'seconds' (choose from request)"),
        ("long-step:busy=1", "'long-step': busy is '1', must be yes or no"),
        ("escape:bare=1", "'escape': bare is '1', must be yes or no"),
    ] {
        let error = fault(text).unwrap_err().to_string();
        assert!(error.starts_with(told), "{text}: {error}");
    }
}

#[test]
fn every_name_stands_in_the_documentation() {
    let table = include_str!("mod.rs");
    for (name, takes_phase, keys) in FORMS {
        let spelt = if takes_phase { format!("`{name}@PHASE`") } else { format!("`{name}`") };
        let row = table.lines().find(|line| line.starts_with("//! |") && line.contains(&spelt));
        let row = row.unwrap_or_else(|| panic!("{spelt} is not in the table"));
        assert!(keys.iter().all(|key| row.contains(&format!("`{key}`"))), "{row}");
    }
}

#[test]
fn every_name_stands_in_the_help() {
    let help = include_str!("../../../../cli/sim.rs");
    let names = FORMS.iter().flat_map(|(name, _, keys)| std::iter::once(name).chain(*keys));
    for name in names.copied().chain(FaultCause::ALL.map(FaultCause::name)) {
        assert!(help.contains(name), "{name}");
    }
}

#[test]
fn conditions_are_on_what_the_configuration_sets() {
    let plan = |conditions: &[(&str, &str)]| FaultPlan {
        faults: vec![FaultSpec::Mute],
        conditions: conditions.iter().map(|(flag, value)| ((*flag).to_owned(), (*value).to_owned())).collect(),
        once: None,
    };
    let config = Config::new().with("max-num-seqs", 8_i64).with("enforce-eager", true);
    let applies = |conditions: &[(&str, &str)]| !plan(conditions).faults_for(&config).is_empty();
    assert!(applies(&[]) && applies(&[("max-num-seqs", "8")]) && applies(&[("block-size", "")]));
    assert!(applies(&[("max-num-seqs", "8"), ("enforce-eager", "true")]));
    assert!(!applies(&[("max-num-seqs", "")]) && !applies(&[("block-size", "16")]));
    assert!(!applies(&[("max-num-seqs", "8"), ("enforce-eager", "false")]));
}

#[test]
fn a_fault_once_happens_only_in_the_first_launch_that_meets_its_conditions() {
    let directory = tempfile::tempdir().unwrap();
    let once = Some(directory.path().join("happened"));
    let plan =
        FaultPlan { faults: vec![FaultSpec::Mute], conditions: vec![("block-size".to_owned(), "16".to_owned())], once };
    let config = Config::new().with("block-size", 16_i64);
    assert_eq!(plan.faults_for(&Config::new()), []);
    assert_eq!(plan.faults_for(&config), [FaultSpec::Mute]);
    assert_eq!(plan.faults_for(&config), []);
}

fn any_phase() -> impl Strategy<Value = FaultPhase> {
    proptest::sample::select(vec![
        FaultPhase::Parse,
        FaultPhase::Config,
        FaultPhase::Bind,
        FaultPhase::Weights,
        FaultPhase::Profile,
        FaultPhase::Kv,
        FaultPhase::Graphs,
        FaultPhase::Ready,
    ])
}

fn late_phase() -> impl Strategy<Value = FaultPhase> {
    proptest::sample::select(vec![
        FaultPhase::Weights,
        FaultPhase::Profile,
        FaultPhase::Kv,
        FaultPhase::Graphs,
        FaultPhase::Ready,
    ])
}

fn any_end() -> impl Strategy<Value = Option<ProcessEnd>> {
    let signal = (1..=31_i32).prop_map(|number| ProcessEnd::Signal(number.try_into().unwrap()));
    proptest::option::of(prop_oneof![any::<u8>().prop_map(ProcessEnd::Code), signal])
}

fn any_fault() -> impl Strategy<Value = FaultSpec> {
    let cause = || proptest::sample::select(FaultCause::ALL.to_vec());
    let time = || (0_u64..86_400_000).prop_map(Duration::from_millis);
    prop_oneof![
        (any_phase(), cause(), any_end()).prop_map(|(at, cause, end)| FaultSpec::Exit { at, cause, end }),
        any_phase().prop_map(|at| FaultSpec::Hang { at }),
        (any_phase(), time()).prop_map(|(at, lasts)| FaultSpec::Slow { at, lasts }),
        any_phase().prop_map(|at| FaultSpec::CloseLog { at }),
        (any_phase(), 1..=100_000_u64).prop_map(|(at, megabytes)| FaultSpec::Flood { at, megabytes }),
        proptest::sample::select(vec![
            FaultSpec::IgnoreTerm,
            FaultSpec::IgnoreInt,
            FaultSpec::LateBind,
            FaultSpec::Mute
        ]),
        any::<(bool, bool)>().prop_map(|(bare, orphan)| FaultSpec::Escape { bare, orphan }),
        (proptest::option::of(time()), proptest::option::of(late_phase()), proptest::option::of(1..u64::MAX))
            .prop_map(|(after, at, request)| FaultSpec::EngineCore { after, at, request }),
        "[a-z0-9/=@:-]{1,20}".prop_map(|name| FaultSpec::OtherModel { name }),
        time().prop_map(|by| FaultSpec::LateListen { by }),
        time().prop_map(|after| FaultSpec::Unhealthy { after }),
        (1..u64::MAX, cause(), any_end()).prop_map(|(request, cause, end)| FaultSpec::Die { request, cause, end }),
        (1..u64::MAX).prop_map(|from| FaultSpec::Errors { from }),
        (any::<u64>(), 1..u64::MAX).prop_map(|(after, from)| FaultSpec::Stall { after, from }),
        (any::<Option<u64>>(), 1..u64::MAX).prop_map(|(after, from)| FaultSpec::EndEarly { after, from }),
        (any::<u64>(), 1..u64::MAX).prop_map(|(after, from)| FaultSpec::ErrorEvent { after, from }),
        (1..=100_000_u64, 1..=100_000_u64).prop_map(|(megabytes_per_s, cap)| FaultSpec::Leak { megabytes_per_s, cap }),
        (time(), any::<bool>(), 1..u64::MAX).prop_map(|(lasts, busy, request)| FaultSpec::LongStep {
            lasts,
            busy,
            request
        }),
        (1..u64::MAX).prop_map(|request| FaultSpec::Spin { request }),
    ]
}

proptest! {
    #[test]
    fn a_fault_is_read_as_it_is_written(known in any_fault()) {
        prop_assert_eq!(fault(&known.to_string()), Ok(known));
    }

    #[test]
    fn any_text_is_a_fault_or_an_error(text in "[a-z@:=,0-9-]{0,40}") {
        let _ = fault(&text);
    }
}
