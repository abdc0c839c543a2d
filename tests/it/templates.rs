//! Every template of a wrapper, checked and run with stand-ins for the programs that it names.

use std::os::unix::fs::PermissionsExt;

use crate::support::{Workplace, root};

/// The engine itself: the simulated one, on a fast clock.
const VLLM: &str = r#"
[ "$1" = serve ] || exit 9
shift
exec '{program}' sim serve "$@" --sim-vllm-version 0.32.0 --sim-time-scale 400 --sim-startup-s 0.02
"#;

/// Runs the image's entry point, and ends it by the container's name.
const DOCKER: &str = r#"
case $1 in
run)
    shift
    while :; do
        case $1 in
        --rm) shift ;;
        --name) name=$2; shift 2 ;;
        --entrypoint) entrypoint=$2; shift 2 ;;
        -e) case $2 in *[!A-Za-z0-9_]*) exit 9 ;; esac; shift 2 ;;
        -p | -v | --gpus | --ipc) shift 2 ;;
        *) break ;;
        esac
    done
    shift
    echo $$ >"$state.$name"
    exec "$entrypoint" "$@"
    ;;
stop)
    [ "$2" = --time ] || exit 9
    kill "$(cat "$state.$4")"
    ;;
*) exit 9 ;;
esac
"#;

const SSH: &str = r#"
while :; do
    case $1 in
    -tt) shift ;;
    -L | -o) shift 2 ;;
    gpu-host) shift; break ;;
    *) exit 9 ;;
    esac
done
case $1 in
pkill*) exec sh -c "$*" ;;
*) exec "$@" ;;
esac
"#;

const SRUN: &str = r#"
while :; do
    case $1 in
    --*) shift ;;
    *) break ;;
    esac
done
exec "$@"
"#;

const CONDA: &str = r#"
[ "$1 $2 $4" = "run -n --no-capture-output" ] || exit 9
shift 4
"$@"
"#;

const NUMACTL: &str = r#"
[ "$1" = --cpunodebind=0 ] && [ "$2" = --membind=0 ] || exit 9
shift 2
exec "$@"
"#;

const STAND_INS: [(&str, &str); 6] =
    [("vllm", VLLM), ("docker", DOCKER), ("ssh", SSH), ("srun", SRUN), ("conda", CONDA), ("numactl", NUMACTL)];

/// Returns a workplace with the stand-ins, and a `PATH` that begins with them.
fn workplace() -> (Workplace, String) {
    let workplace = Workplace::new();
    for (name, text) in STAND_INS {
        let text = text.replace("{program}", env!("CARGO_BIN_EXE_setpoint"));
        let state = workplace.path("container");
        workplace.write(name, &format!("#!/bin/sh\nstate='{}'\n{text}", state.display()));
        std::fs::set_permissions(workplace.path(name), PermissionsExt::from_mode(0o755)).unwrap();
    }
    let path = format!("{}:{}", workplace.path("").display(), std::env::var("PATH").unwrap());
    (workplace, path)
}

#[test]
fn every_template_passes_its_check_and_is_measured_as_it_stands() {
    let folder = root().join("examples/wrappers");
    let templates: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(templates.len() >= 5, "{templates:?}");
    let run = |template: std::path::PathBuf| {
        let (workplace, path) = workplace();
        let template = template.to_str().unwrap();
        for arguments in [&["check", template][..], &["tune", template, "--trials", "2"]] {
            let ended = workplace.run_with(&[("PATH", &path)], "", arguments);
            assert_eq!(ended.code, Some(0), "{arguments:?}\n{}\n{}", ended.stdout, ended.stderr);
        }
        let trials = workplace.trials();
        let states: Vec<_> = trials.iter().filter(|trial| trial["state"] != "rejected").collect();
        assert!(states.len() == 2 && states.iter().all(|trial| trial["state"] == "measured"), "{template}: {states:?}");
        assert_eq!(workplace.processes_left(), [] as [i32; 0], "{template}");
    };
    std::thread::scope(|scope| {
        let started: Vec<_> = templates.into_iter().map(|template| scope.spawn(|| run(template))).collect();
        for one in started {
            one.join().unwrap();
        }
    });
}
