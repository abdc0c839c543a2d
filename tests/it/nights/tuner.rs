//! Nights of the tuner itself: it is killed during a probe, and one trial pauses it only once.

use super::{engine, measured};
use crate::support::{Workplace, study_with};

#[test]
fn a_tuner_that_is_killed_during_a_probe_goes_on_with_the_probe() {
    let trouble = "[ $n -le 2 ] || { [ $n -le 5 ] || sleep 60; say \"frobnicator $n gave up\"; }";
    let workplace = Workplace::with_study(&study_with(&engine(trouble), "trials = 6\nconfirm = 1"));
    let mut tuner = workplace.start(&["tune", "study.toml"]);
    workplace.wait_for("3 launches in a row failed alike");
    crate::support::signal(&tuner, nix::sys::signal::Signal::SIGKILL);
    tuner.wait().unwrap();
    workplace.write("mended", "");
    let mended = workplace.run(&["tune", "study.toml"]);
    assert_eq!(mended.code, Some(0), "{}", mended.stderr);
    let trials = workplace.trials();
    let of = |by: &str| trials.iter().filter(|trial| trial["proposed_by"] == by).collect::<Vec<_>>();
    assert_eq!((of("probe").len(), &of("probe")[0]["state"]), (1, &"measured".into()), "{trials:?}");
    assert_eq!(workplace.processes_left(), [] as [i32; 0]);
}

#[test]
fn a_trial_causes_no_second_pause() {
    // The defaults fail in every run, and nothing was measured before them.
    let trouble = "case \"$*\" in *max-num-seqs*) ;; *) fault exit@weights:cause=disk-full;; esac";
    let workplace = Workplace::with_study(&study_with(&engine(trouble), "trials = 6\nconfirm = 1"));
    assert_eq!(workplace.run(&["tune", "study.toml"]).code, Some(5));
    let again = workplace.run(&["tune", "study.toml"]);
    assert_eq!(again.code, Some(0), "{}", again.stderr);
    let trials = workplace.trials();
    assert_eq!((&trials[0]["state"], &trials[0]["reason_code"]), (&"failed".into(), &"disk".into()));
    assert!(measured(&trials) >= 3, "{trials:?}");
}
