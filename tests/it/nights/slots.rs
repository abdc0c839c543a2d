//! Nights with two slots: one loses its device, or both do.

use serde_json::Value as Json;

use super::{Night, blames_nobody, ends, engine, nothing_is_lost, paid, told};
use crate::support::{Workplace, study_with};

const TRIALS: usize = 7;

/// The slot of device 1 fails from its third trial on.
const ONE: &str = "[ \"$CUDA_VISIBLE_DEVICES\" != 1 ] || [ $0 -lt 3 ] || fault";

pub(super) fn nights() -> Vec<Night> {
    let lost = [
        ("a device lost on one slot", format!("{ONE} exit@weights:cause=device-lost"), "device_lost", TRIALS),
        (
            "a device lost on one slot under load",
            format!("{ONE} die:request=9,cause=device-lost"),
            "device_lost",
            TRIALS,
        ),
        // A message that no pattern matches is blamed on the slot after three failures in a row there. The speed of the
        // other slot does not matter.
        (
            "words unknown on one slot",
            ONE.replace("fault", "say \"frobnicator $n$$ gave up\""),
            "frobnicator",
            2 * TRIALS,
        ),
        (
            "a device lost on the slot of the defaults",
            "[ \"$CUDA_VISIBLE_DEVICES\" != 0 ] || fault exit@weights:cause=device-lost".to_owned(),
            "device_lost",
            TRIALS,
        ),
    ];
    let lost = lost.map(|(name, trouble, says, trials)| {
        Night::new(name, move |name| the_other_goes_on(name, &trouble, says, trials))
    });
    let all = [
        (
            "the devices of all slots lost at once",
            "[ $0 -lt 5 ] || fault exit@weights:cause=device-lost",
            "device_lost",
        ),
        (
            "the devices of all slots lost one after the other",
            "{ [ \"$CUDA_VISIBLE_DEVICES\" = 1 ] && [ $0 -ge 3 ]; } && fault exit@weights:cause=device-lost; \
             [ $0 -lt 6 ] || fault exit@weights:cause=no-device",
            "device_lost",
        ),
    ];
    let all = all.map(|(name, trouble, says)| Night::new(name, move |name| all_are_lost(name, trouble, says)));
    lost.into_iter().chain(all).collect()
}

fn place(trouble: &str, trials: usize) -> Workplace {
    let text = study_with(&engine(trouble), &format!("trials = {trials}\nconfirm = 1"));
    Workplace::with_study(&format!("{text}\n[slots]\nmax_interference = 1.0\ndevices = [\"0\", \"1\"]\n"))
}

fn is_complete(name: &str, workplace: &Workplace, before: &[Json], after: &[Json], paid_trials: usize) {
    blames_nobody(name, after);
    assert_eq!(paid(after), paid_trials, "{name}: {:?}", told(after));
    nothing_is_lost(name, workplace, before, after);
}

fn the_other_goes_on(name: &str, trouble: &str, says: &str, paid_trials: usize) {
    let workplace = place(trouble, paid_trials);
    let run = workplace.run(&["tune", "study.toml"]);
    let trials = ends(name, &workplace, &run, 0, says);
    let aside = run.stderr.matches("no further trial is launched on slot ").count();
    assert_eq!(aside, 1, "{name}: {}", run.stderr);
    is_complete(name, &workplace, &[], &trials, paid_trials);
}

fn all_are_lost(name: &str, trouble: &str, says: &str) {
    let workplace = place(trouble, TRIALS);
    let paused = workplace.run(&["tune", "study.toml"]);
    let before = ends(name, &workplace, &paused, 5, says);
    assert!(paused.stderr.contains("error: the study is paused: "), "{name}: {}", paused.stderr);
    blames_nobody(name, &before);
    workplace.write("mended", "");
    let after = ends(name, &workplace, &workplace.run(&["tune", "study.toml"]), 0, "");
    is_complete(name, &workplace, &before, &after, TRIALS);
}
