//! Conditions of hosts whose `/sys` and `/proc` lie in a temporary directory.

use super::*;
use crate::facts::{HostSensor, ProcessUse};

/// Creates a root with these files.
fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = root.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, format!("{text}\n")).unwrap();
    }
    root
}

/// Returns the only condition of a host with these files.
fn only(files: &[(&str, &str)]) -> (ConditionKind, String, bool) {
    let root = root(files);
    let found = MeasurementCondition::from_files(root.path(), &HostUse::default());
    let [MeasurementCondition { kind, state, distorts, effect, remedy }] = found.as_slice() else {
        panic!("not one condition: {found:?}")
    };
    assert!(!effect.is_empty());
    assert_eq!(remedy.is_some(), *distorts, "{state}");
    (*kind, state.clone(), *distorts)
}

fn of(readings: &HostUse) -> Vec<(ConditionKind, String, bool)> {
    let root = root(&[]);
    let found = MeasurementCondition::from_files(root.path(), readings);
    found.into_iter().map(|condition| (condition.kind, condition.state, condition.distorts)).collect()
}

#[test]
fn a_host_without_these_files_has_no_conditions() {
    assert_eq!(of(&HostUse::default()), []);
}

#[test]
fn governors_that_follow_the_load_distort() {
    let cpu = |number, name| format!("sys/devices/system/cpu/cpu{number}/cpufreq/{name}");
    let steady = [(cpu(0, "scaling_governor"), "performance"), (cpu(11, "scaling_governor"), "performance")];
    let steady = steady.each_ref().map(|(path, text)| (path.as_str(), *text));
    assert_eq!(only(&steady), (ConditionKind::Governor, "performance on 2 processors".to_owned(), false));

    let own = |preference| {
        let files = [(cpu(0, "scaling_governor"), "powersave"), (cpu(0, "energy_performance_preference"), preference)];
        only(&files.each_ref().map(|(path, text)| (path.as_str(), *text)))
    };
    assert!(!own("performance").2);
    let (_, state, distorts) = own("balance_power");
    assert_eq!((state.as_str(), distorts), ("powersave, preference balance_power on 1 processor", true));

    let limited = [
        (cpu(0, "scaling_governor"), "performance"),
        (cpu(0, "scaling_max_freq"), "2000000"),
        (cpu(0, "cpuinfo_max_freq"), "3500000"),
        (cpu(1, "scaling_governor"), "schedutil"),
    ];
    let (_, state, distorts) = only(&limited.each_ref().map(|(path, text)| (path.as_str(), *text)));
    let expected = "performance, at most 2000000 of 3500000 kHz on 1 processor; schedutil on 1 processor";
    assert_eq!((state.as_str(), distorts), (expected, true));
}

#[test]
fn boost_is_read_from_either_driver() {
    for (file, text, state, distorts) in [
        ("sys/devices/system/cpu/cpufreq/boost", "1", "on", false),
        ("sys/devices/system/cpu/cpufreq/boost", "0", "off", true),
        ("sys/devices/system/cpu/intel_pstate/no_turbo", "0", "on", false),
        ("sys/devices/system/cpu/intel_pstate/no_turbo", "1", "off", true),
    ] {
        assert_eq!(only(&[(file, text)]), (ConditionKind::Boost, state.to_owned(), distorts), "{file} {text}");
    }
}

#[test]
fn the_deepest_idle_state_that_is_not_disabled_counts() {
    let files = |disabled| {
        only(&[
            ("sys/devices/system/cpu/cpu0/cpuidle/state0/name", "POLL"),
            ("sys/devices/system/cpu/cpu0/cpuidle/state0/latency", "0"),
            ("sys/devices/system/cpu/cpu0/cpuidle/state1/name", "C1E"),
            ("sys/devices/system/cpu/cpu0/cpuidle/state1/latency", "4"),
            ("sys/devices/system/cpu/cpu0/cpuidle/state2/name", "C6"),
            ("sys/devices/system/cpu/cpu0/cpuidle/state2/latency", "170"),
            ("sys/devices/system/cpu/cpu0/cpuidle/state2/disable", disabled),
        ])
    };
    assert_eq!(files("0"), (ConditionKind::IdleStates, "deepest state C6, 170 µs to wake up".to_owned(), true));
    assert_eq!(files("1"), (ConditionKind::IdleStates, "deepest state C1E, 4 µs to wake up".to_owned(), false));
}

#[test]
fn a_quota_of_the_control_group_distorts() {
    let quota = |path, text| only(&[("proc/self/cgroup", "0::/a/b"), (path, text)]);
    let own = quota("sys/fs/cgroup/a/b/cpu.max", "450000 100000");
    assert_eq!(own, (ConditionKind::ProcessorQuota, "limited to 4.5 processors by the control group".to_owned(), true));
    assert!(quota("sys/fs/cgroup/cpu.max", "200000 100000").2, "the top of a container");
    assert!(!quota("sys/fs/cgroup/a/b/cpu.max", "max 100000").2);
}

#[test]
fn several_nodes_and_pages_that_move_distort() {
    let node = |number| format!("sys/devices/system/node/node{number}/cpulist");
    let (first, second) = (node(0), node(1));
    assert_eq!(only(&[(&first, "0-3")]), (ConditionKind::Numa, "1 node".to_owned(), false));
    assert_eq!(only(&[(&first, "0-3"), (&second, "4-7")]), (ConditionKind::Numa, "2 nodes".to_owned(), true));
    let balancing = |text| only(&[("proc/sys/kernel/numa_balancing", text)]);
    assert_eq!(balancing("1"), (ConditionKind::NumaBalancing, "on".to_owned(), true));
    assert_eq!(balancing("0"), (ConditionKind::NumaBalancing, "off".to_owned(), false));
}

#[test]
fn huge_pages_for_all_or_none_distort() {
    for (text, state, distorts) in [
        ("[always] madvise never", "always, defrag defer", true),
        ("always [madvise] never", "madvise, defrag defer", false),
        ("always madvise [never]", "never, defrag defer", true),
    ] {
        let defrag = ("sys/kernel/mm/transparent_hugepage/defrag", "always [defer] defer+madvise madvise never");
        let found = only(&[("sys/kernel/mm/transparent_hugepage/enabled", text), defrag]);
        assert_eq!(found, (ConditionKind::HugePages, state.to_owned(), distorts));
    }
}

#[test]
fn waiting_for_memory_distorts() {
    let pressure = |share: &str| {
        let line = |name| format!("{name} avg10=0.00 avg60={share} avg300=0.00 total=1");
        only(&[("proc/pressure/memory", &format!("{}\n{}", line("some"), line("full")))])
    };
    let (kind, state, distorts) = pressure("12.50");
    assert_eq!((kind, distorts), (ConditionKind::MemoryPressure, true));
    assert_eq!(state, "processes waited for memory 12.5 % of the last minute");
    assert!(!pressure("0.25").2);
}

#[test]
fn files_that_cannot_be_understood_give_no_condition() {
    let files = [
        ("sys/devices/system/cpu/cpufreq/boost", "perhaps"),
        ("sys/kernel/mm/transparent_hugepage/enabled", "always madvise never"),
        ("proc/pressure/memory", "none"),
        ("proc/sys/kernel/numa_balancing", ""),
        ("sys/devices/system/cpu/cpu0/cpuidle/state0/name", "C1"),
    ];
    let root = root(&files);
    assert_eq!(MeasurementCondition::from_files(root.path(), &HostUse::default()), []);
}

#[test]
fn swap_load_heat_and_other_users_distort_when_they_are_large() {
    let swap = |used, total| of(&HostUse { swap: Some((used, total)), ..HostUse::default() }).remove(0);
    assert_eq!(swap(0, 0), (ConditionKind::Swap, "none".to_owned(), false));
    assert!(!swap(100 << 20, 8 * GIB).2);
    assert_eq!(swap(2 * GIB, 64 * GIB), (ConditionKind::Swap, "2.0 GiB of 64.0 GiB in use".to_owned(), true));
    assert!(swap(GIB / 2, GIB).2);

    let load = |busy| {
        let readings = HostUse { busy_percent: Some(busy), load_average: Some(1.5), ..HostUse::default() };
        of(&HostUse { clock_mhz: Some((800, 3500)), ..readings }).remove(0)
    };
    let state = "60 % of the processors busy, load average 1.5, clock 800 to 3500 MHz";
    assert_eq!(load(60.0), (ConditionKind::ProcessorLoad, state.to_owned(), true));
    assert!(!load(3.0).2);

    let heat = |now| {
        let sensor = HostSensor { label: "Package 0".to_owned(), now, critical: 100.0 };
        of(&HostUse { hottest: Some(sensor), ..HostUse::default() }).remove(0)
    };
    let state = "Package 0: 97 °C, critical at 100 °C".to_owned();
    assert_eq!(heat(97.0), (ConditionKind::Temperature, state, true));
    assert!(!heat(60.0).2);

    let others = |others| of(&HostUse { others: Some(others), ..HostUse::default() }).remove(0);
    assert!(!others(Vec::new()).2);
    let (pid, name, user) = (42, "train".to_owned(), "eve".to_owned());
    let process = ProcessUse { pid, name, user, processors: 7.25, memory: 3 * GIB };
    let state = "train 42 of eve (7.2 processors, 3.0 GiB)".to_owned();
    assert_eq!(others(vec![process]), (ConditionKind::OtherUsers, state, true));
}

#[test]
fn a_condition_is_stored_and_read_again() {
    for condition in MeasurementCondition::of_launch() {
        let text = serde_json::to_string(&condition).unwrap();
        assert_eq!(serde_json::from_str::<MeasurementCondition>(&text).unwrap(), condition);
        assert!(condition.kind.name().len() <= 11);
    }
}
