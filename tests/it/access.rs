//! Servers with an API key, several names, a root path, or flags that make the server unreachable.

use crate::support::{Workplace, study_with};

const KEY: &str = "hush-hush-4711";

/// Returns the study with further arguments of the engine and further lines of `[engine]`.
fn with_arguments(arguments: &[&str], engine: &str) -> String {
    let words = arguments.iter().fold(String::new(), |words, word| words + &format!(", {word:?}"));
    study_with(engine, "trials = 2\nconfirm = 0")
        .replace(r#""--sim-noise", "0""#, &format!(r#""--sim-noise", "0"{words}"#))
}

fn is_measured(workplace: &Workplace) {
    let tuned = workplace.run(&["tune", "study.toml"]);
    assert_eq!(tuned.code, Some(0), "{}", tuned.stderr);
    assert!(workplace.trials().iter().all(|trial| trial["state"] == "measured"), "{}", tuned.stderr);
}

/// Returns whether any file of the workplace except the study contains a text.
fn is_stored(workplace: &Workplace, text: &str) -> bool {
    let mut left = vec![workplace.path(".")];
    while let Some(path) = left.pop() {
        if path.is_dir() {
            left.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if !path.ends_with("study.toml") {
            let bytes = std::fs::read(&path).unwrap();
            if bytes.windows(text.len()).any(|window| window == text.as_bytes()) {
                return true;
            }
        }
    }
    false
}

#[test]
fn a_server_that_asks_for_a_key_is_measured_and_the_key_is_nowhere() {
    for text in [
        with_arguments(&["--api-key", KEY], ""),
        with_arguments(&[&format!("--api-key={KEY}")], ""),
        with_arguments(&[], &format!("env = {{ VLLM_API_KEY = {KEY:?} }}")),
    ] {
        let workplace = Workplace::with_study(&text);
        is_measured(&workplace);
        assert!(!is_stored(&workplace, KEY));
        let script = workplace.run(&["export", "--format", "sh"]).stdout;
        assert!(!script.contains(KEY) && script.contains("${VLLM_API_KEY:?"), "{script}");
        let dry = workplace.run(&["tune", "study.toml", "--dry-run"]);
        assert!(!dry.stdout.contains(KEY), "{}", dry.stdout);
    }
    // The key may also come from the user's own environment.
    let workplace = Workplace::with_study(&with_arguments(&[], ""));
    let tuned = workplace.run_with(&[("VLLM_API_KEY", KEY)], "", &["tune", "study.toml"]);
    assert_eq!(tuned.code, Some(0), "{}", tuned.stderr);
    assert!(!is_stored(&workplace, KEY));
}

#[test]
fn a_key_that_the_server_does_not_take_is_named_at_once() {
    let program = env!("CARGO_BIN_EXE_setpoint");
    let engine = format!(
        r#"command = ["sh", "-c", 'k=VLLM_API; export "$k"_KEY=another; exec {program} sim serve "$@"', "sh"]
env = {{ VLLM_API_KEY = {KEY:?} }}"#
    );
    let workplace = Workplace::with_study(&study_with(&engine, "trials = 1"));
    let refused = workplace.run(&["tune", "study.toml"]);
    let told = "answers with status 401 Unauthorized: the server requires another API key; set VLLM_API_KEY";
    assert!(refused.code != Some(0) && refused.stderr.contains(told), "{}", refused.stderr);
}

#[test]
fn any_of_several_names_proves_the_server() {
    let workplace = Workplace::with_study(&with_arguments(&["--served-model-name", "one", "two"], ""));
    is_measured(&workplace);
}

#[test]
fn flags_of_a_file_are_read_like_those_of_the_study() {
    let workplace = Workplace::with_study(&with_arguments(&["--config", "serve.yaml"], ""));
    let file = |text: &str| workplace.write("serve.yaml", text);
    let told = |command: &[&str], text: &str| {
        let ended = workplace.run(command);
        assert!(ended.code == Some(3) && ended.stderr.contains(text), "{}", ended.stderr);
    };
    told(&["check", "study.toml"], "engine.args: --config serve.yaml: the file does not exist");
    file("enable-prefix-caching: false\nmax-num-seqs: [8\n");
    told(&["check", "study.toml"], "serve.yaml:3: ");
    file("max_num_seqs: 8\n");
    told(&["check", "study.toml"], "max-num-seqs");
    file("uds: /tmp/x.sock\n");
    told(&["check", "study.toml"], "--uds makes the server listen on a socket file");

    // The server takes its name and its key from the file.
    file(&format!("model: another\nserved-model-name: [one, two]\napi-key: {KEY}\nenable-prefix-caching: off\n"));
    is_measured(&workplace);
    std::fs::remove_file(workplace.path("serve.yaml")).unwrap();
    assert!(!is_stored(&workplace, KEY));
    let changed = "served-model-name: [one, two]\nenable-prefix-caching: on\n";
    file(changed);
    told(&["tune", "study.toml"], "engine.args");
    let dry = workplace.run(&["tune", "study.toml", "--dry-run"]).stdout;
    assert!(dry.contains("--served-model-name one two --enable-prefix-caching") && !dry.contains("--config"), "{dry}");

    let command = "command = [\"vllm\", \"serve\", \"--config\", \"serve.yaml\"]";
    workplace.write("study.toml", &study_with(command, "trials = 2\nconfirm = 0"));
    told(&["check", "study.toml"], "engine.command: the engine's --config is supported in engine.args only");
}

#[test]
fn a_hub_model_is_found_where_the_engine_will_find_it() {
    let workplace = Workplace::new();
    let model = crate::support::root().join("examples/models/qwen3-8b");
    let snapshot = workplace.path("hub/models--org--name/snapshots/main");
    std::fs::create_dir_all(&snapshot).unwrap();
    std::fs::copy(model.join("config.json"), snapshot.join("config.json")).unwrap();
    let (here, nowhere) = (workplace.path("hub"), workplace.path("nowhere"));
    let study = |env: &str| {
        study_with(env, "trials = 1").replace(&format!("path = \"{}\"", model.display()), "path = \"org/name\"")
    };
    let check = |env: &str, variables: &[(&str, &std::path::Path)]| {
        workplace.write("study.toml", &study(env));
        let none = [("HF_HUB_CACHE", ""), ("HUGGINGFACE_HUB_CACHE", ""), ("HF_HOME", ""), ("XDG_CACHE_HOME", "")];
        let set = variables.iter().map(|(name, path)| (*name, path.to_str().unwrap()));
        workplace.run_with(&none.into_iter().chain(set).collect::<Vec<_>>(), "", &["check", "study.toml"])
    };
    let env = |name: &str, path: &std::path::Path| format!("env = {{ {name} = {:?} }}", path.display().to_string());
    let root = workplace.path("");
    for (env, variables) in [
        (env("HF_HUB_CACHE", &here), vec![("HF_HUB_CACHE", &*nowhere)]),
        (env("HF_HOME", &root), vec![("HF_HOME", &*nowhere)]),
        (String::new(), vec![("HF_HUB_CACHE", &*here), ("HF_HOME", &*nowhere)]),
        (String::new(), vec![("HF_HOME", &*root), ("XDG_CACHE_HOME", &*nowhere)]),
    ] {
        let found = check(&env, &variables);
        assert_eq!(found.code, Some(0), "{env}: {}", found.stderr);
    }
    let missing = check(&env("HF_HUB_CACHE", &nowhere), &[("HF_HUB_CACHE", &here)]);
    assert_eq!(missing.code, Some(3));
    let cache = format!("model in the local hub cache {}", nowhere.display());
    assert!(missing.stderr.replace('\n', " ").contains(&cache), "{}", missing.stderr);
}

#[test]
fn a_server_with_tls_is_measured_whatever_its_certificate_is_called() {
    let workplace = Workplace::new();
    let own = rcgen::generate_simple_self_signed(vec!["llm.example.org".to_owned()]).unwrap();
    workplace.write("cert.pem", &own.cert.pem());
    workplace.write("key.pem", &own.signing_key.serialize_pem());
    let path = |name: &str| workplace.path(name).display().to_string();
    let (certificate, key) = (path("cert.pem"), path("key.pem"));
    let arguments = ["--ssl-certfile", &certificate, "--ssl-keyfile", &key, "--api-key", KEY];
    workplace.write("study.toml", &with_arguments(&arguments, ""));
    is_measured(&workplace);

    workplace.write("study.toml", &with_arguments(&[&arguments[..], &["--ssl-cert-reqs", "2"]].concat(), ""));
    let refused = workplace.run(&["check", "study.toml"]);
    assert_eq!(refused.code, Some(3), "{}", refused.stderr);
    assert!(refused.stderr.contains("--ssl-cert-reqs requires a certificate of every client"), "{}", refused.stderr);
}

#[test]
fn a_root_path_moves_no_route() {
    is_measured(&Workplace::with_study(&with_arguments(&["--root-path", "/llm"], "")));
}

#[test]
fn flags_that_hide_the_server_are_refused_with_a_way_out() {
    for (arguments, told) in [
        (&["--uds", "/tmp/x.sock"][..], "--uds makes the server listen on a socket file"),
        (&["--headless"][..], "--headless starts no API server"),
    ] {
        let workplace = Workplace::with_study(&with_arguments(arguments, ""));
        for command in ["check", "tune"] {
            let refused = workplace.run(&[command, "study.toml"]);
            assert_eq!(refused.code, Some(3), "{}", refused.stderr);
            assert!(refused.stderr.contains(told) && refused.stderr.contains("hint: remove it"), "{}", refused.stderr);
        }
    }
}
