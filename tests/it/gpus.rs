//! GPUs as a driver reports them: several, unlike, divided, lost, busy, and a driver that hangs.

use crate::fake_nvml::{Machine, h100};
use crate::support::{Ended, root, study_with, wait_until};

/// What was printed, without line breaks.
fn flat(ended: &Ended) -> String {
    ended.stdout.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A real engine for the program, a simulated one for the machine: its processes are on the device as `follows` in the machine's
/// file says. `before` is shell that runs before it.
fn study(before: &str, engine: &str, budget: &str) -> String {
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

const FOLLOWS: &str = "follows {dir}/pids 70000";

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
    assert!(root().join("tests/fixtures/nvml/nvml.c").exists());
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
    assert!(told.contains("the driver reads no device: GPU 1 cannot be read"), "{told}");

    // A display card is none that a launch on one device uses.
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
    // Root sees the whole memory on the device itself.
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

#[test]
fn a_driver_that_hangs_holds_nothing_up_for_long() {
    let machine = Machine::new(&study("true", "", "trials = 1"), "");
    machine.workplace.write("hang", "");
    machine.set(&["hang count {dir}/hang\n".to_owned(), h100(0, &[])].concat());
    let [doctor, check, tune] = std::thread::scope(|scope| {
        let runs = ["doctor", "check", "tune"].map(|command| {
            let machine = &machine;
            scope.spawn(move || machine.run(&[command, "study.toml"]))
        });
        runs.map(|run| run.join().unwrap())
    });
    let line = "fail device the driver hangs: reading the devices has taken 10.0s so far";
    assert!(flat(&doctor).contains(line), "{}", doctor.stdout);
    assert!(flat(&check).contains("(the driver hangs: reading the devices has taken"), "{}", check.stdout);
    assert_eq!(tune.code, Some(0), "{}", tune.stderr);
    assert!(tune.stderr.contains("rules about them are left out: the driver hangs"), "{}", tune.stderr);
    let shown = machine.run(&["show", "0"]).stdout;
    assert!(shown.contains("the GPUs are not read: the driver hangs"), "{shown}");
}

#[test]
fn a_driver_that_begins_to_hang_blocks_neither_a_launch_nor_a_signal() {
    let machine = Machine::new(&study("true", "", "trials = 50"), &h100(0, &["hang memory_v2 {dir}/hang", FOLLOWS]));
    let mut child = machine.start(&["tune", "study.toml", "--log-format", "json"]);
    let shows = |text: &str| {
        wait_until(std::time::Duration::from_secs(60), text, || {
            std::fs::read_to_string(machine.workplace.path("stderr.txt")).is_ok_and(|stderr| stderr.contains(text))
        });
    };
    shows("\"trial\":0");
    machine.workplace.write("hang", "");
    shows("memory is not watched: the driver hangs");
    let begin = std::time::Instant::now();
    crate::support::signal(&child, nix::sys::signal::Signal::SIGINT);
    let code = child.wait().unwrap().code();
    assert_eq!(code, Some(130));
    assert!(begin.elapsed() < std::time::Duration::from_secs(10), "{:?}", begin.elapsed());
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
