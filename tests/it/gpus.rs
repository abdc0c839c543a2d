//! GPUs as a driver reports them: several, different, divided, lost or busy ones, and a driver that hangs.

use std::time::{Duration, Instant};

use crate::fake_nvml::{Machine, h100};
use crate::support::{Ended, all_pass, study_with, wait_until};

/// Returns standard output without line breaks.
fn flat(ended: &Ended) -> String {
    ended.stdout.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns a study of the simulated engine, which the program takes for a real one. `follows` in the machine's file
/// puts the engine's processes on a device. `before` is shell code that runs before the engine.
pub(crate) fn study(before: &str, engine: &str, budget: &str) -> String {
    let program = env!("CARGO_BIN_EXE_setpoint");
    let command = format!(
        r#"command = ["sh", "-c", '''echo $$ >> pids; {before}; exec {program} sim serve "$@" --sim-time-scale 200 --sim-startup-s 0.02 --sim-noise 0''', "engine"]
version = "0.33.0"
preflight = false
{engine}"#
    );
    let text = study_with(&command, budget).replace("kind = \"sim\"", "kind = \"vllm\"");
    let args = r#"args = ["--sim-time-scale", "200", "--sim-startup-s", "0.02", "--sim-noise", "0"]"#;
    assert!(text.contains(args));
    text.replace(args, "")
}

pub(crate) const FOLLOWS: &str = "follows {dir}/pids 70000";

#[test]
fn doctor_names_each_device_and_an_error_of_one_stays_with_it() {
    let machine = Machine::new(
        &study("true", "", "trials = 1"),
        &[
            h100(0, &["used 200"]),
            h100(1, &["error all 15"]),
            h100(2, &["error memory_v2 4"]),
            h100(3, &["error memory_v2 3", "used 20000"]),
            h100(4, &["error memory_v2 3", "error memory 3"]),
        ]
        .concat(),
    );
    let told = machine.run(&["doctor"]);
    for line in [
        "ok    device       GPU 0: NVIDIA H100 80GB HBM3, 78.9 GiB of 79.1 GiB free, driver 570.86.15",
        "warn  device       GPU 1: unknown, cannot be read: device fell off the bus or has otherwise become inacessible",
        "warn  device       GPU 2: NVIDIA H100 80GB HBM3, cannot be read: the current user does not have permission",
        "warn  device       GPU 3: NVIDIA H100 80GB HBM3, 59.5 GiB of 79.6 GiB free, driver 570.86.15; held by a process",
        "ok    device       GPU 4: NVIDIA H100 80GB HBM3, memory is not reported",
    ] {
        assert!(told.stdout.contains(line), "{line}\n{}", told.stdout);
    }
    assert!(told.stdout.contains("ok    persistence  "), "{}", told.stdout);
}

#[test]
fn check_looks_at_the_devices_that_the_engine_uses() {
    let lost = [h100(0, &[]), h100(1, &["error all 15"]), h100(2, &[])].concat();
    let machine = Machine::new(&study("true", "", "trials = 1"), &lost);
    let check = |variables: &[(&str, &str)]| flat(&machine.run_with(variables, &["check", "study.toml"]));
    let told = check(&[]);
    assert!(told.contains("on 3 GPUs of 79 GiB, compute capability 9.0"), "{told}");
    assert!(told.contains("GPU 1 cannot be read: device fell off the bus"), "{told}");
    let told = check(&[("CUDA_VISIBLE_DEVICES", "0,2")]);
    assert!(told.contains("on 2 GPUs of 79 GiB") && !told.contains("cannot be read"), "{told}");
    let told = check(&[("CUDA_VISIBLE_DEVICES", "GPU-2a")]);
    assert!(told.contains("on 1 GPU of 79 GiB"), "{told}");
    let told = check(&[("CUDA_VISIBLE_DEVICES", "1")]);
    assert!(told.contains("the driver has no readable device: GPU 1 cannot be read"), "{told}");

    // A launch on one device does not use the display card.
    let card = "device\nname NVIDIA T400\nuuid GPU-card\ntotal 4096\nreserved 200\ncapability 7.5\n";
    machine.set(&[h100(0, &[]), card.to_owned()].concat());
    let told = check(&[]);
    assert!(told.contains("on 2 GPUs of 79 GiB"), "{told}");
    assert!(told.contains("the GPUs differ (0 NVIDIA H100 80GB HBM3, 1 NVIDIA T400)"), "{told}");
    let json = machine.run(&["check", "study.toml", "--format", "json"]).stdout;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert!(json["space"]["remaining_share"].as_f64().unwrap() > 0.5, "{json}");
}

#[test]
fn a_divided_device_is_the_instance_that_cuda_uses() {
    let slice = |place: u32, memory: u32| {
        format!(
            "instance {gi} 0\nname NVIDIA H100 80GB HBM3 MIG {place}g\nuuid MIG-{place}bbb-22\ntotal {memory}\nreserved 10\n",
            gi = place + 6
        )
    };
    // To root, the driver reports the whole memory on the device itself.
    let devices = [h100(0, &["mig 1"]), slice(1, 9984), slice(2, 20096), h100(1, &[])].concat();
    let machine = Machine::new(&study("true", "", "trials = 1"), &devices);
    let on = |visible: Option<&str>| {
        let variables: Vec<_> = visible.map(|visible| ("CUDA_VISIBLE_DEVICES", visible)).into_iter().collect();
        flat(&machine.run_with(&variables, &["check", "study.toml"]))
    };
    for first in [None, Some("0"), Some("MIG-1bbb-22"), Some("MIG-1b"), Some("MIG-GPU-0aaaaaaa-1111/7/0"), Some("0,1")]
    {
        assert!(on(first).contains("on 1 GPU of 9 GiB"), "{first:?}: {}", on(first));
    }
    assert!(on(Some("MIG-GPU-0aaaaaaa-1111/8/0")).contains("on 1 GPU of 19 GiB"));
    assert!(on(Some("1")).contains("on 1 GPU of 79 GiB"));
    machine.set(&devices.replace("instance", "error mig_handle 4\ninstance"));
    let told = flat(&machine.run(&["check", "study.toml"]));
    assert!(told.contains("on 1 GPU of 79 GiB"), "only the whole device is left: {told}");
    let doctor = machine.run(&["doctor"]);
    assert!(doctor.stdout.contains("GPU 1: NVIDIA H100 80GB HBM3, 79.1 GiB of 79.1 GiB free"), "{}", doctor.stdout);
}

fn a_driver_that_hangs_holds_nothing_up_for_long() {
    let machine = Machine::new(&study("true", "", "trials = 1"), "");
    machine.workplace.write("hang", "");
    machine.set(&["hang count {dir}/hang\n".to_owned(), h100(0, &[])].concat());
    let [doctor, check, tune] = std::thread::scope(|scope| {
        let runs = ["doctor", "check", "tune"].map(|command| {
            let machine = &machine;
            let database = format!("{command}.db");
            scope.spawn(move || machine.run(&[command, "study.toml", "--db", &database]))
        });
        runs.map(|run| run.join().unwrap())
    });
    let line = "fail device the driver hangs: reading the devices has taken 10.0s so far";
    assert!(flat(&doctor).contains(line), "{}", doctor.stdout);
    assert!(
        flat(&check).contains("(the driver hangs: reading the devices has taken"),
        "{}{}",
        check.stdout,
        check.stderr
    );
    assert_eq!(tune.code, Some(0), "{}", tune.stderr);
    assert!(tune.stderr.contains("rules about them are skipped: the driver hangs"), "{}", tune.stderr);
    let shown = machine.run(&["show", "0", "--db", "tune.db"]).stdout;
    assert!(shown.contains("the GPUs cannot be read: the driver hangs"), "{shown}");
}

#[test]
fn a_driver_that_begins_to_hang_blocks_neither_a_launch_nor_a_signal() {
    let machine = Machine::new(&study("true", "", "trials = 50"), &h100(0, &["hang memory_v2 {dir}/hang", FOLLOWS]));
    let mut child = machine.start(&["tune", "study.toml", "--log-format", "json"]);
    shows(&machine, "\"trial\":0");
    machine.workplace.write("hang", "");
    shows(&machine, "memory is not watched: the driver hangs");
    let begin = Instant::now();
    crate::support::signal(&child, nix::sys::signal::Signal::SIGINT);
    let code = child.wait().unwrap().code();
    assert_eq!(code, Some(130));
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    assert_eq!(machine.workplace.processes_left(), [] as [i32; 0]);
}

#[test]
fn every_launch_counts_devices_as_the_driver_does() {
    let seen = |variables: &[(&str, &str)]| {
        let text = study(r#"echo "$CUDA_DEVICE_ORDER" >> order"#, "", "trials = 1\nconfirm = 0");
        let machine = Machine::new(&text, &h100(0, &[FOLLOWS]));
        let tune = machine.run_with(variables, &["tune", "study.toml"]);
        assert_eq!(tune.code, Some(0), "{}", tune.stderr);
        let stored = machine.workplace.trials()[0]["env"]["CUDA_DEVICE_ORDER"].as_str().unwrap().to_owned();
        (stored, std::fs::read_to_string(machine.workplace.path("order")).unwrap())
    };
    assert_eq!(seen(&[]), ("PCI_BUS_ID".to_owned(), "PCI_BUS_ID\n".to_owned()));
    let own = [("CUDA_DEVICE_ORDER", "FASTEST_FIRST")];
    assert_eq!(seen(&own), ("FASTEST_FIRST".to_owned(), "FASTEST_FIRST\n".to_owned()));
}

/// Like [`study`], but at the device's own speed: the load takes some seconds.
fn slow_study(budget: &str) -> String {
    let text = study("true", "", budget).replace("--sim-time-scale 200", "--sim-time-scale 1");
    text.replace("output_len = 8", "output_len = 256")
}

fn events(machine: &Machine) -> String {
    std::fs::read_to_string(machine.workplace.path("stderr.txt")).unwrap_or_default()
}

fn shows(machine: &Machine, text: &str) {
    wait_until(Duration::from_mins(1), text, || events(machine).contains(text));
}

/// Runs these courses in parallel. One driver hangs for ten seconds, and the others take two loads of five seconds.
#[test]
fn a_driver_that_hangs_and_disturbances_of_a_load() {
    let courses: [(&str, fn()); 5] = [
        ("hang", a_driver_that_hangs_holds_nothing_up_for_long),
        ("foreign process", a_foreign_process_has_the_load_driven_again_and_the_mark_stays_if_it_does),
        ("work and heat", a_process_that_is_at_work_and_a_device_that_is_hot_disturb_and_a_cap_on_power_does_not),
        ("container", in_a_container_a_process_that_appears_is_known_to_be_another),
        ("energy", energy_is_that_of_the_engines_devices_or_absent_with_a_reason),
    ];
    all_pass(courses.len(), courses.into_iter());
}

fn a_foreign_process_has_the_load_driven_again_and_the_mark_stays_if_it_does() {
    let devices = [h100(0, &[FOLLOWS, "visitor {dir}/visitor 4100001", "foreign 4100002 300", "graphics 4100003 300"])];
    let tune = |goes: bool| {
        let machine = Machine::new(&slow_study("trials = 1\nconfirm = 0"), &devices.concat());
        let mut child = machine.start(&["tune", "study.toml", "--log-format", "json"]);
        shows(&machine, "measuring");
        machine.workplace.write("visitor", "");
        if goes {
            shows(&machine, "\"disturbed\"");
            std::fs::remove_file(machine.workplace.path("visitor")).unwrap();
        }
        assert_eq!(child.wait().unwrap().code(), Some(0), "{}", events(&machine));
        machine
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let machine = tune(false);
            let told: Vec<_> =
                events(&machine).lines().filter(|line| line.contains("\"disturbed\"")).map(str::to_owned).collect();
            assert!(
                told.len() == 2 && told[0].contains("\"repeated\":true") && told[1].contains("\"repeated\":false"),
                "{told:?}"
            );
            let trial = &machine.workplace.trials()[0];
            let reason = "process 4100001, 512 MiB computes on GPU 0";
            assert!(
                trial["metrics"]["disturbed"][0].as_str().unwrap().starts_with("process 4100001, 512 MiB"),
                "{trial}"
            );
            let shown = machine.run(&["show", "0"]).stdout;
            assert!(
                shown.lines().any(|line| line.starts_with("disturbed") && line.contains("process 4100001")),
                "{reason} {shown}"
            );
            assert!(machine.run(&["trials"]).stdout.contains("disturbed: "));
            assert!(machine.run(&["best"]).stdout.contains("1x, 1 disturbed"), "{}", machine.run(&["best"]).stdout);
            let best = machine.workplace.json(&["best", "--format", "json"]);
            assert_eq!(best["disturbed"], serde_json::json!([0]), "{best}");
        });
        scope.spawn(|| {
            let machine = tune(true);
            let trial = &machine.workplace.trials()[0];
            assert!(trial["metrics"].get("disturbed").is_none(), "{trial}");
            assert!(events(&machine).contains("\"repeated\":true") && !events(&machine).contains("\"repeated\":false"));
            assert!(!machine.run(&["trials"]).stdout.contains("disturbed"));
        });
    });
}

fn a_process_that_is_at_work_and_a_device_that_is_hot_disturb_and_a_cap_on_power_does_not() {
    let marks = |lines: &[&str]| {
        let machine = Machine::new(&slow_study("trials = 1\nconfirm = 0"), &h100(0, lines));
        let tune = machine.run(&["tune", "study.toml"]);
        assert_eq!(tune.code, Some(0), "{}", tune.stderr);
        machine.workplace.trials()[0]["metrics"]["disturbed"].clone()
    };
    std::thread::scope(|scope| {
        let active = scope.spawn(|| marks(&[FOLLOWS, "foreign 4100002 300", "active 4100002 30"]));
        let idle = scope.spawn(|| marks(&[FOLLOWS, "foreign 4100002 300", "active 4100002 1", "reasons 0x04"]));
        let hot = scope.spawn(|| marks(&[FOLLOWS, "reasons 0x24"]));
        assert_eq!(active.join().unwrap()[0], "process 4100002, 300 MiB, computes on GPU 0");
        assert_eq!(idle.join().unwrap(), serde_json::Value::Null);
        let hot = hot.join().unwrap();
        let reason =
            "device 0 of the engine was slowed down because of its temperature, by the driver, in 100 % of the samples";
        assert_eq!(hot[0], reason);
    });
}

fn energy_is_that_of_the_engines_devices_or_absent_with_a_reason() {
    let objective =
        |text: String| text.replace("maximize = \"output_throughput\"", "minimize = \"energy_per_output_token_j\"");
    let energy = |devices: String, variables: &[(&str, &str)]| {
        let machine = Machine::new(&objective(slow_study("trials = 1\nconfirm = 0")), &devices);
        let tune = machine.run_with(variables, &["tune", "study.toml"]);
        (tune, machine)
    };
    // In a container, process ids differ from those that the driver reports.
    let hidden = || [h100(0, &["hide 1", FOLLOWS]), h100(1, &["power 500"])].concat();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let two = [h100(0, &["power 500"]), h100(1, &[FOLLOWS, "power 200"])].concat();
            let (tune, machine) = energy(two, &[]);
            assert_eq!(tune.code, Some(0), "{}", tune.stderr);
            let watts = machine.workplace.trials()[0]["metrics"]["server"]["gpu_power_w_mean"].as_f64().unwrap();
            assert!((watts - 200.0).abs() < 1e-6, "the device of its processes: {watts}");
        });
        scope.spawn(|| {
            let (tune, machine) = energy(hidden(), &[("CUDA_VISIBLE_DEVICES", "1")]);
            assert_eq!(tune.code, Some(0), "{}", tune.stderr);
            let server = machine.workplace.trials()[0]["metrics"]["server"].clone();
            assert!((server["gpu_power_w_mean"].as_f64().unwrap() - 500.0).abs() < 1e-6, "{server}");
        });
        scope.spawn(|| {
            let text =
                study("true", "", "trials = 1\nconfirm = 0").replace("--sim-time-scale 200", "--sim-time-scale 1");
            let text = text.replace("output_len = 8", "output_len = 64");
            let text = text.replace("requests = 16", "requests = 96\nwindow = \"steady\"");
            let machine = Machine::new(&text, &h100(0, &["power 500"]));
            let tune = machine.run(&["tune", "study.toml"]);
            assert_eq!(tune.code, Some(0), "{}", tune.stderr);
            let metrics = machine.workplace.trials()[0]["metrics"].clone();
            assert_eq!(metrics["window"]["steady"], true, "{metrics}");
            // Only the window counts, without warm-up and drain.
            let joules = metrics["server"]["energy_j"].as_f64().unwrap();
            let expected = 500.0 * metrics["duration"].as_f64().unwrap();
            assert!((joules / expected - 1.0).abs() < 0.01, "{joules} J, {expected} J are expected");
        });
        scope.spawn(|| {
            let (tune, machine) = energy(hidden(), &[]);
            let reason =
                "energy and utilization of the GPUs are absent: the driver lists none of the server's processes";
            assert!(
                tune.stderr.contains("energy_per_output_token_j, the objective or a constraint, cannot be measured"),
                "{}",
                tune.stderr
            );
            assert!(tune.stderr.contains(reason), "{}", tune.stderr);
            assert_eq!(tune.code, Some(4), "{}", tune.stderr);
            let shown = machine.run(&["show", "0"]).stdout;
            assert!(shown.contains(reason), "{shown}");
            let trial = &machine.workplace.trials()[0];
            for name in ["energy_j", "gpu_utilization_mean", "gpu_power_w_mean"] {
                assert!(trial["metrics"]["server"].get(name).is_none(), "{name}: {trial}");
            }
        });
    });
}

#[test]
fn what_others_hold_when_a_run_begins_limits_the_share_of_memory() {
    let space = "[space.parameters.gpu-memory-utilization]\nkind = \"categorical\"\nchoices = [0.5, 0.8, 0.95]\n\n[space.parameters.max-num-seqs]";
    let text = study("true", "", "trials = 1").replace("[space.parameters.max-num-seqs]", space);
    let me = std::process::id();
    // The engine does not use the device of this neighbour.
    let machine = Machine::new(&text, &[h100(0, &[]), h100(1, &[&format!("process {me} 60000")])].concat());
    let told = flat(&machine.run(&["check", "study.toml"]));
    assert!(!told.contains("R5e"), "{told}");
    machine.set(&h100(0, &[&format!("process {me} 9000")]));
    let told = flat(&machine.run(&["check", "study.toml"]));
    assert!(told.contains("R5e") && told.contains("other processes hold 8.79 GiB"), "{told}");
    assert!(told.contains("parameter gpu-memory-utilization: 0.5, 0.8 "), "{told}");
}

#[test]
fn a_launch_waits_for_memory_that_somebody_else_has_taken_and_names_him() {
    // Memory that is taken during a launch would count as not released after it. It is therefore taken while the tuner
    // waits to launch the trial again.
    let fails_once =
        r#"[ -e failed ] || { touch failed; echo "OSError: [Errno 28] No space left on device: /x" >&2; exit 1; }"#;
    let study =
        study(fails_once, "", "trials = 1\nconfirm = 0").replace("retry_after = \"50ms\"", "retry_after = \"5s\"");
    assert!(study.contains("\"5s\""), "{study}");
    let own = std::process::id();
    let machine = Machine::new(&study, &[h100(0, &[FOLLOWS]), h100(1, &[])].concat());
    let mut child = machine.start(&["tune", "study.toml", "--log-format", "json"]);
    shows(&machine, "\"event\":\"retry\"");
    // Memory that is taken on the other device does not matter.
    machine.set(&[h100(0, &[FOLLOWS, &format!("process {own} 50000")]), h100(1, &["foreign 1 70000"])].concat());
    shows(&machine, "the launch waits for up to 5 minutes");
    let held = events(&machine);
    let line = held.lines().find(|line| line.contains("\"held\"") && line.contains("the launch waits")).unwrap();
    assert!(
        line.contains("GPU 0, NVIDIA H100 80GB HBM3 has 30959 MiB free, but the launch needs")
            && line.contains(&format!("process {own} (")),
        "{line}"
    );
    assert!(line.contains("50000 MiB") && !line.contains("GPU 1"), "{line}");
    machine.set(&[h100(0, &[FOLLOWS]), h100(1, &["foreign 1 70000"])].concat());
    assert_eq!(child.wait().unwrap().code(), Some(0), "{}", events(&machine));
    assert_eq!(machine.workplace.trials().iter().filter(|trial| trial["state"] != "rejected").count(), 1);
}

pub(crate) fn slice(place: u32, lines: &[&str]) -> String {
    let gi = place + 6;
    let name = "NVIDIA H100 80GB HBM3 MIG 3g.40gb";
    format!("instance {gi} 0\nname {name}\nuuid MIG-{place}bbb-22\ntotal 40320\nreserved 10\n{}\n", lines.join("\n"))
}

#[test]
fn a_study_on_a_part_of_a_machine_goes_on_whatever_the_other_devices_do() {
    let lost = h100(2, &["error all 15"]);
    // The engine's processes are on its visible device.
    let machine = |visible: &str| {
        let on = |name: &str| if visible.starts_with(name) { FOLLOWS } else { "" };
        let parent = h100(3, &["mig 1", "error memory_v2 4", "error memory 4"]);
        let whole = h100(1, &[on("1")]);
        [h100(0, &["used 79000"]), whole, lost.clone(), parent, slice(1, &[on("MIG")]), slice(2, &[])].concat()
    };
    let run = |visible: &str, study: &str| {
        let machine = Machine::new(study, &machine(visible));
        let tune = machine.run_with(&[("CUDA_VISIBLE_DEVICES", visible)], &["tune", "study.toml"]);
        assert_eq!(tune.code, Some(0), "{visible}: {}", tune.stderr);
        (tune.stderr, machine)
    };
    let fast = |trials: u32| study("true", "", &format!("trials = {trials}\nconfirm = 0"));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (told, machine) = run("1", &slow_study("trials = 1\nconfirm = 0"));
            assert!(!told.contains("GPU 2") && !told.contains("are held by"), "{told}");
            let shown = machine.run(&["show", "0"]).stdout;
            assert!(shown.contains("memory at most 68.36 GiB") && shown.contains("persistence: "), "{shown}");
        });
        scope.spawn(|| {
            let (told, machine) = run("1,2", &fast(1));
            assert!(told.contains("GPU 2 cannot be read: device fell off the bus"), "{told}");
            assert_eq!(machine.workplace.trials()[0]["state"], "measured");
        });
        scope.spawn(|| {
            let (told, machine) = run("MIG-1b", &fast(2));
            assert!(!told.contains("cannot be read"), "{told}");
            let shown = machine.run(&["show", "0"]).stdout;
            let reason = "energy is absent: MIG-1bbb-22 of GPU 3 report neither energy nor power of their own";
            assert!(shown.contains(reason) && shown.contains("3g.40gb"), "{shown}");
            assert!(!shown.contains("in all "), "{shown}");
        });
        scope.spawn(|| {
            // Slots may be instances. The unreadable device is not a slot.
            let text = format!(
                "{}\n[slots]\ndevices = [\"MIG-1bbb-22\", \"MIG-2bbb-22\"]\nmax_interference = 1.0\n",
                study("echo $CUDA_VISIBLE_DEVICES >> seen", "", "trials = 4\nconfirm = 0")
            );
            let here = Machine::new(&text, &machine("MIG"));
            let tune = here.run(&["tune", "study.toml"]);
            assert_eq!(tune.code, Some(0), "{}", tune.stderr);
            let seen = std::fs::read_to_string(here.workplace.path("seen")).unwrap();
            assert!(seen.contains("MIG-1bbb-22\n") && seen.contains("MIG-2bbb-22\n"), "{seen}");
            let told = Machine::new(&study("true", "", "trials = 1"), &machine("MIG"));
            let told = told.run(&["tune", "study.toml", "--parallel", "2", "--dry-run"]);
            assert_eq!(told.code, Some(0), "{}", told.stderr);
        });
    });
}

fn in_a_container_a_process_that_appears_is_known_to_be_another() {
    let lines = [FOLLOWS, "offset 1000000", "visitor {dir}/visitor 100001", "foreign 100002 300", "active 100002 90"];
    let machine = Machine::new(&slow_study("trials = 1\nconfirm = 0"), &h100(0, &lines));
    let mut child = machine.start(&["tune", "study.toml", "--log-format", "json"]);
    shows(&machine, "measuring");
    machine.workplace.write("visitor", "");
    assert_eq!(child.wait().unwrap().code(), Some(0), "{}", events(&machine));
    let trial = &machine.workplace.trials()[0];
    let disturbed = trial["metrics"]["disturbed"].as_array().unwrap();
    assert!(disturbed.len() == 1 && disturbed[0] == "process 1100001, 512 MiB, appeared on GPU 0", "{disturbed:?}");
}

#[test]
fn memory_that_an_engine_leaves_for_a_while_is_waited_for_on_its_own_device() {
    // The driver keeps the engine's memory until the file is gone.
    let run = |devices: String, lag: Duration| {
        let machine = Machine::new(&study("touch lag", "", "trials = 1\nconfirm = 0"), &devices);
        let mut child = machine.start(&["tune", "study.toml", "--log-format", "json"]);
        shows(&machine, "stopping");
        let begin = Instant::now();
        wait_until(Duration::from_mins(1), "the lag", || begin.elapsed() >= lag);
        std::fs::remove_file(machine.workplace.path("lag")).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0), "{}", events(&machine));
        assert!(!events(&machine).contains("\"held\""), "{}", events(&machine));
        begin.elapsed()
    };
    let own = h100(0, &["extra {dir}/lag 50000"]);
    assert!(run(own, Duration::from_secs(2)) >= Duration::from_secs(2));
    let other = [h100(0, &[FOLLOWS]), h100(1, &["extra {dir}/lag 50000"])].concat();
    let machine = Machine::new(&study("touch lag", "", "trials = 2\nconfirm = 0"), &other);
    let begin = Instant::now();
    assert_eq!(machine.run(&["tune", "study.toml"]).code, Some(0));
    assert!(begin.elapsed() < Duration::from_secs(15), "another device does not count: {:?}", begin.elapsed());
}

#[test]
fn a_step_of_an_idle_processor_is_no_hang_while_the_engines_device_computes() {
    // The twin has no preset for this device, so the limit is three times an assumed 1.6 s.
    let run = |step: &str, lines: &[&str]| {
        let text = study("true", "stall_timeout = \"1s\"", "trials = 1\nconfirm = 0");
        let text = text.replace("--sim-noise 0", &format!("--sim-noise 0 --sim-fault {step}"));
        let text = text.replace("concurrency = 8", "concurrency = 4").replace("\"10s\"", "\"10m\"");
        let device = format!("{}{}\n", h100(0, &[FOLLOWS]).replace("H100 80GB HBM3", "X1"), lines.join("\n"));
        // The second device is always busy, but the engine does not use it.
        let machine = Machine::new(&text, &[device, h100(1, &["utilization 100"])].concat());
        machine.workplace.write("hang", "");
        let tune = machine.run(&["tune", "study.toml"]);
        let trials = machine.workplace.trials();
        assert_eq!(trials.len(), 1, "{}", tune.stderr);
        let text = trials[0]["reason"].as_str().or(trials[0]["state"].as_str()).unwrap();
        text.to_owned()
    };
    let long = "long-step:seconds=2.5,busy=no,request=3";
    std::thread::scope(|scope| {
        let busy = scope.spawn(|| run(long, &["utilization 60"]));
        let ever = scope.spawn(|| run("long-step:seconds=600,busy=no,request=3", &["utilization 60"]));
        let idle = scope.spawn(|| run(long, &["utilization 5"]));
        let hung = scope.spawn(|| run(long, &["hang utilization {dir}/hang"]));
        let [busy, ever, idle, hung] = [busy, ever, idle, hung].map(|run| run.join().unwrap());
        assert_eq!(busy, "measured");
        let limit = "its devices are busy, and the limit is 4.8s, the larger of stall_timeout (1.0s) and 3 times the longest \
                     step (1.6s, assumed 100 tokens/s)";
        assert!(ever.contains(limit), "{ever}");
        assert!(idle.contains("; its processes and devices have been idle for "), "{idle}");
        assert!(hung.contains("; its processes have been idle for "), "{hung}");
    });
}

#[test]
fn a_start_in_which_only_the_engines_device_computes_is_no_hang() {
    let run = |utilization: &str| {
        let text = study("sleep 4", "stall_timeout = \"1s\"", "trials = 1\nconfirm = 0");
        let devices = [h100(0, &[FOLLOWS, utilization]), h100(1, &["utilization 100"])];
        let machine = Machine::new(&text, &devices.concat());
        let tune = machine.run(&["tune", "study.toml"]);
        let trials = machine.workplace.trials();
        assert_eq!(trials.len(), 1, "{}", tune.stderr);
        trials[0]["reason"].as_str().or(trials[0]["state"].as_str()).unwrap().to_owned()
    };
    std::thread::scope(|scope| {
        let [busy, idle] = ["utilization 60", "utilization 5"].map(|utilization| scope.spawn(move || run(utilization)));
        let idle = idle.join().unwrap();
        assert!(idle.contains("the start shows no sign of work for ") && idle.contains("no busy device"), "{idle}");
        assert_eq!(busy.join().unwrap(), "measured");
    });
}
