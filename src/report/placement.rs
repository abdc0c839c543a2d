//! Renders the placement of a launch.

use crate::trial::Placement;

/// Returns one line, as a part of a trial's text.
#[must_use]
pub(crate) fn placement_text(placement: &Placement) -> String {
    let Placement { slots, devices, processors, ports: (first, last), alone } = placement;
    let slots: Vec<_> = slots.iter().map(ToString::to_string).collect();
    let devices = devices.as_ref().map(|devices| format!("devices {devices}, ")).unwrap_or_default();
    let processors = processors.as_ref().map(|processors| format!("processors {processors}, ")).unwrap_or_default();
    let alone = if *alone { ", alone on the host" } else { "" };
    format!("{:<24}{} ({devices}{processors}ports {first} to {last}{alone})\n", "slots", slots.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_parts_of_a_placement_are_omitted() {
        let bare = Placement { slots: vec![3], ports: (20_000, 20_031), ..Placement::default() };
        assert_eq!(placement_text(&bare), "slots                   3 (ports 20000 to 20031)\n");
        let (devices, processors) = (Some("2,3".to_owned()), Some("0-7".to_owned()));
        let full = Placement { slots: vec![2, 3], devices, processors, alone: true, ..bare };
        let expected =
            "slots                   2, 3 (devices 2,3, processors 0-7, ports 20000 to 20031, alone on the host)\n";
        assert_eq!(placement_text(&full), expected);
    }
}
