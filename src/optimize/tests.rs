//! Tests of sessions, line by line.

use std::sync::Mutex;

use serde_json::{Value as Json, json};

use super::*;
use crate::sampler::{KnownOutcome, PastTrial, Suggestion};

/// A sampler that proposes the values of `x` in order and keeps its last input.
struct InOrder;

/// The last input of the sampler, by seed. Tests run in parallel, and each has a seed of its own.
static SEEN: Mutex<Vec<(u64, Seen)>> = Mutex::new(Vec::new());

#[derive(Clone, Debug)]
struct Seen {
    history: Vec<PastTrial>,
    defaults: Config,
    left: Option<u32>,
}

impl Sampler for InOrder {
    fn name(&self) -> &'static str {
        "in-order"
    }

    fn summary(&self) -> &'static str {
        "for tests"
    }

    fn ask(&self, ask: &SamplerAsk<'_>) -> Option<Suggestion> {
        let seen = Seen { history: ask.history.to_vec(), defaults: ask.defaults.clone(), left: ask.trials_left };
        SEEN.lock().unwrap().push((ask.seed, seen));
        let configs = ask.space.enumerate(1000).unwrap();
        let new = |config: &Config| !ask.history.iter().any(|past| past.config == *config);
        let config = configs.into_iter().find(|config| new(config) && (ask.allowed)(config))?;
        Some(Suggestion::new(config, "the next one"))
    }

    fn judge(&self, ask: &SamplerAsk<'_>) -> Option<Judgement> {
        let place = ask.history.iter().position(|past| past.measured().is_some());
        let pick = place.map(|place| Pick { history_index: place, values: vec![Some((90.5, 0.02))], feasible: 0.75 });
        let note = "a note".to_owned();
        let remaining = pick.as_ref().map(|_| [0.0, 0.125, f64::NAN]);
        Some(Judgement {
            pick,
            remaining_gain: remaining,
            next_gain: Some(0.5),
            notes: vec![note],
            ..Judgement::default()
        })
    }
}

fn space(seed: u64) -> Json {
    json!({
        "type": "space", "protocol": 1, "params": [{"name": "x", "type": "int", "low": 1, "high": 4}],
        "objectives": [{"name": "speed", "direction": "maximize"}], "constraints": [{"name": "late"}],
        "known_constraints": [{"expr": "x != 2"}], "budget": 9, "seed": seed, "context": {"defaults": {"y": 5}},
    })
}

/// Starts a session with its space. Each test that reads the sampler's input has a seed of its own.
fn session(seed: u64) -> OptimizeSession {
    let mut session = OptimizeSession::new(&InOrder, None);
    assert!(matches!(send(&mut session, &space(seed)), Ok(Some(ready)) if ready["type"] == "ready"));
    session
}

fn send(session: &mut OptimizeSession, message: &Json) -> Result<Option<Json>, String> {
    match session.process_line(message.to_string().as_bytes()) {
        Ok(SessionReply::Line(line)) => Ok(Some(serde_json::from_str(&line).unwrap())),
        Ok(SessionReply::NoReply) => Ok(None),
        Ok(SessionReply::End) => Ok(Some(json!("end"))),
        Err(error) => Err(error.to_string()),
    }
}

fn tell(session: &mut OptimizeSession, id: &Json, x: i64, more: &Json) -> Result<Option<Json>, String> {
    let mut message = json!({
        "type": "tell", "id": id, "config": {"x": x}, "status": "ok", "values": {"speed": 1.5}, "constraints": {"late": -1},
    });
    message.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    send(session, &message)
}

fn ask(session: &mut OptimizeSession, id: &Json) -> Json {
    send(session, &json!({"type": "ask", "id": id})).unwrap().unwrap()
}

/// Returns the sampler's last input: configuration, proposer, outcome and cost of each trial.
fn seen(seed: u64) -> (Vec<String>, Seen) {
    let all = SEEN.lock().unwrap();
    let seen = all.iter().rev().find(|(of, _)| *of == seed).unwrap().1.clone();
    let text = |past: &PastTrial| match &past.outcome {
        KnownOutcome::Measured(measured) => {
            let numbers: Vec<_> =
                measured.values.iter().chain(&measured.excesses).map(|r| r.value.to_string()).collect();
            format!("{} {}: {}", past.config, past.origin, numbers.join(" "))
        }
        known => format!("{} {}: {known:?}", past.config, past.origin),
    };
    let text = |past: &PastTrial| text(past) + &past.cost.map_or_else(String::new, |cost| format!(" for {cost}"));
    (seen.history.iter().map(text).collect(), seen)
}

#[test]
fn a_run_of_asks_and_tells_passes_everything_to_the_sampler() {
    let mut session = session(1);
    let first = json!({"type": "config", "id": 1, "config": {"x": 1}, "why": "the next one"});
    assert_eq!(ask(&mut session, &json!(1)), first);
    assert_eq!(ask(&mut session, &json!(2))["config"], json!({"x": 3}), "2 is not allowed");
    let outcome = json!({"values": {"speed": 100}, "constraints": {"late": 0.25}, "status": "infeasible"});
    assert_eq!(tell(&mut session, &json!(1), 1, &outcome), Ok(None));
    let failed =
        json!({"status": "failed", "values": null, "constraints": null, "error": "out of memory", "cost": 12.5});
    assert_eq!(tell(&mut session, &json!(2), 3, &failed), Ok(None));
    ask(&mut session, &json!(3));
    let (history, seen) = seen(1);
    assert_eq!(history, ["x=1 in-order: 100 0.25", "x=3 in-order: Failed for 12.5"]);
    assert_eq!((seen.left, seen.defaults.key()), (Some(7), r#"{"y":5}"#.to_owned()), "two of nine were asked for");
    assert_eq!(send(&mut session, &json!({"type": "end"})), Ok(Some(json!("end"))));
}

#[test]
fn pending_trials_are_part_of_the_history() {
    let mut session = session(2);
    let configs: Vec<_> = (0..3).map(|id| ask(&mut session, &json!(id))["config"]["x"].clone()).collect();
    assert_eq!(configs, [1, 3, 4]);
    assert_eq!(seen(2).0, ["x=1 in-order: Pending", "x=3 in-order: Pending"]);
}

#[test]
fn an_ask_without_a_configuration_left_gets_an_error_and_the_run_continues() {
    let mut session = session(3);
    for id in 0..3 {
        ask(&mut session, &json!(id));
    }
    let answer = ask(&mut session, &json!(3));
    assert_eq!((&answer["type"], &answer["id"]), (&json!("error"), &json!(3)));
    assert!(
        answer["message"].as_str().unwrap().contains("all 3 allowed ones of the 4 in the space were proposed"),
        "{answer}"
    );
    assert_eq!(tell(&mut session, &json!(0), 1, &json!({})), Ok(None));
}

#[test]
fn identifiers_come_back_as_they_came() {
    let mut session = session(4);
    for id in [json!({"b": [1, null], "a": 1.0}), json!("ü\n"), json!(null)] {
        assert_eq!(ask(&mut session, &id)["id"], id);
        assert_eq!(tell(&mut session, &id, 1, &json!({})), Ok(None));
    }
}

#[test]
fn a_pending_id_is_refused_and_an_answered_one_may_be_used_again() {
    let mut session = session(5);
    ask(&mut session, &json!("a"));
    let again = send(&mut session, &json!({"type": "ask", "id": "a"}));
    assert_eq!(again, Err("id is \"a\": a configuration with this id is still pending".to_owned()));
    assert_eq!(tell(&mut session, &json!("a"), 1, &json!({})), Ok(None));
    ask(&mut session, &json!("a"));
    assert_eq!(tell(&mut session, &json!("a"), 3, &json!({"status": "failed"})), Ok(None));
    ask(&mut session, &json!("b"));
    assert_eq!(seen(5).0, ["x=1 in-order: 1.5 -1", "x=3 in-order: Failed"]);
}

#[test]
fn a_second_tell_is_a_repeated_measurement_and_one_with_a_new_id_is_data() {
    let mut session = session(6);
    ask(&mut session, &json!(1));
    for speed in [10, 11] {
        assert_eq!(tell(&mut session, &json!(1), 1, &json!({"values": {"speed": speed}})), Ok(None));
    }
    assert_eq!(tell(&mut session, &json!("elsewhere"), 2, &json!({})), Ok(None));
    // Without a configuration the message has that of the identifier.
    for id in ["elsewhere", "nowhere"] {
        let told = send(&mut session, &json!({"type": "tell", "id": id, "status": "failed"}));
        assert_eq!(told, if id == "elsewhere" { Ok(None) } else { Err("config is missing".to_owned()) });
    }
    ask(&mut session, &json!(2));
    let expected = ["x=1 in-order: 10 -1", "x=1 caller: 11 -1", "x=2 caller: 1.5 -1", "x=2 caller: Failed"];
    assert_eq!(seen(6).0, expected);
}

#[test]
fn a_tell_may_replace_the_proposed_configuration() {
    let mut session = session(7);
    ask(&mut session, &json!(1));
    assert_eq!(tell(&mut session, &json!(1), 4, &json!({})), Ok(None));
    assert_eq!(ask(&mut session, &json!(2))["config"], json!({"x": 1}));
    assert_eq!(seen(7).0, ["x=4 in-order: 1.5 -1"]);
}

#[test]
fn numbers_that_are_missing_null_or_not_finite_were_not_measured() {
    let mut session = session(8);
    for more in [
        json!({"values": null, "constraints": null}),
        json!({"values": {}, "constraints": {}}),
        json!({"values": {"speed": null}, "constraints": {"late": null}}),
        json!({"values": {"speed": 2, "other": "x"}, "constraints": {"late": "NaN"}}),
    ] {
        assert_eq!(tell(&mut session, &json!(0), 1, &more), Ok(None));
    }
    let python = br#"{"type":"tell","id":0,"config":{"x":1},"status":"ok","values":{"speed":NaN},"constraints":{"late":-Infinity}}"#;
    assert_eq!(session.process_line(python), Ok(SessionReply::NoReply));
    ask(&mut session, &json!(1));
    let numbers: Vec<_> = seen(8).0.iter().map(|text| text.split(": ").nth(1).unwrap().to_owned()).collect();
    assert_eq!(numbers, ["NaN NaN", "NaN NaN", "NaN NaN", "2 NaN", "NaN NaN"]);
}

#[test]
fn a_wrong_line_is_refused_with_its_error_and_does_not_change_the_session() {
    let mut session = session(9);
    let told = |more: Json| {
        let mut message = json!({"type": "tell", "id": 0, "config": {"x": 1}, "status": "ok", "values": {"speed": 1}});
        message.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        message.to_string()
    };
    for (line, expected) in [
        ("{".to_owned(), "the line is not JSON (EOF while parsing an object at line 1 column 1): {"),
        ("[1]".to_owned(), "the line is [1], expected an object"),
        ("{}".to_owned(), "type is missing"),
        (r#"{"type":"tel"}"#.to_owned(), "type is \"tel\", expected one of space, ask, tell, judge, explain, end"),
        (space(9).to_string(), "the space message came for the second time"),
        (told(json!({"status": null})), "status is missing"),
        (told(json!({"status": "done"})), "status is \"done\", expected one of ok, infeasible, failed"),
        (told(json!({"config": {"x": 5}})), "config.x is 5, expected 1 to 4"),
        (told(json!({"values": [1]})), "values is [1], expected an object"),
        (told(json!({"values": {"speed": "fast"}})), "values.speed is \"fast\", expected a number"),
        (told(json!({"values": {"sped": 1}})), "values.sped is 1: unknown name, and \"speed\" is missing"),
        (told(json!({"constraints": {"l": 1}})), "constraints.l is 1: unknown name, and \"late\" is missing"),
        (told(json!({"cost": -1})), "cost is -1, expected a number of at least 0"),
    ] {
        assert_eq!(session.process_line(line.as_bytes()).map_err(|error| error.to_string()), Err(expected.to_owned()));
    }
    assert_eq!(session.process_line(b" \r\n"), Ok(SessionReply::NoReply));
    for kind in ["ask", "tell", "judge", "explain"] {
        let error = OptimizeSession::new(&InOrder, None)
            .process_line(json!({"type": kind}).to_string().as_bytes())
            .unwrap_err();
        assert_eq!(error.to_string(), format!("the {kind} message came before the space message"));
    }
}

#[test]
fn a_seed_of_the_command_line_goes_before_the_callers() {
    let mut session = OptimizeSession::new(&InOrder, Some(1010));
    send(&mut session, &space(10)).unwrap();
    ask(&mut session, &json!(1));
    assert_eq!(seen(1010).0, [] as [&str; 0]);
    assert!(!SEEN.lock().unwrap().iter().any(|(seed, _)| *seed == 10));
}

#[test]
fn a_judgement_has_the_pick_by_name() {
    let mut session = session(11);
    let judge = |session: &mut OptimizeSession| send(session, &json!({"type": "judge", "id": "j"})).unwrap().unwrap();
    let nothing = json!({
        "type": "judgement", "id": "j", "pick": null, "remaining": null, "next_gain": 0.5, "notes": ["a note"],
    });
    assert_eq!(judge(&mut session), nothing);
    ask(&mut session, &json!(1));
    tell(&mut session, &json!(2), 4, &json!({})).unwrap();
    let pick = json!({"config": {"x": 4}, "values": {"speed": 90.5}, "deviations": {"speed": 0.02}, "feasible": 0.75});
    let judgement = judge(&mut session);
    assert_eq!((&judgement["pick"], &judgement["remaining"]), (&pick, &json!([0.0, 0.125, null])));
    // A sampler without a model has no judgement.
    let mut session = OptimizeSession::new(sampler::find("random").unwrap(), None);
    send(&mut session, &space(11)).unwrap();
    let none = json!({"type": "judgement", "id": "j", "pick": null, "remaining": null, "next_gain": null, "notes": []});
    assert_eq!(judge(&mut session), none);
}

#[test]
fn an_explanation_names_the_parameter_that_matters_whatever_the_sampler() {
    let mut session = OptimizeSession::new(sampler::find("random").unwrap(), None);
    let message = json!({
        "type": "space", "seed": 13,
        "params": [{"name": "x", "type": "int", "low": 1, "high": 8}, {"name": "y", "type": "bool"}],
        "objectives": [{"name": "speed", "direction": "minimize"}], "constraints": [{"name": "late"}],
    });
    send(&mut session, &message).unwrap();
    let explain = |session: &mut OptimizeSession| send(session, &json!({"type": "explain", "id": 7})).unwrap().unwrap();
    assert_eq!(explain(&mut session), json!({"type": "explanation", "id": 7, "about": []}));
    for id in 0..12_i64 {
        let (x, y) = (1 + (5 * id) % 8, id % 3 == 0);
        let tell = json!({
            "type": "tell", "id": id, "config": {"x": x, "y": y}, "status": "ok",
            "values": {"speed": 100 + 10 * x}, "constraints": {"late": if y { 0.2 } else { -0.2 }},
        });
        send(&mut session, &tell).unwrap();
    }
    let answer = explain(&mut session);
    let leading = |about: usize| &answer["about"][about]["parameters"][0];
    assert_eq!((&answer["about"][0]["of"], &answer["about"][1]["name"]), (&json!("objective"), &json!("late")));
    assert_eq!((&leading(0)["parameter"], &leading(1)["parameter"]), (&json!("x"), &json!("y")));
    assert!(leading(0)["alone"]["share"].as_f64().unwrap() > 0.9, "{answer:#}");
    let last = &leading(0)["dependence"][7];
    assert!(last["value"] == 8 && (last["mean"].as_f64().unwrap() - 180.0).abs() < 5.0, "{last}");
    assert!(last["low"].as_f64() < last["mean"].as_f64() && last["mean"].as_f64() < last["high"].as_f64(), "{last}");
    assert_eq!(answer["about"][0]["doubts"], json!([]));
}

#[test]
fn ten_thousand_tells_are_taken_before_an_ask() {
    let mut session = session(12);
    for id in 0..10_000 {
        tell(&mut session, &json!(id), 1 + id % 4, &json!({})).unwrap();
    }
    let answer = ask(&mut session, &json!("last"));
    assert_eq!((seen(12).0.len(), &answer["type"]), (10_000, &json!("error")));
}

#[test]
fn constraints_that_refuse_nearly_all_of_a_space_are_reported() {
    let mut session = OptimizeSession::new(sampler::find("random").unwrap(), Some(1));
    let space = json!({
        "type": "space", "objectives": [{"name": "speed", "direction": "maximize"}],
        "params": [{"name": "x", "type": "int", "low": 1, "high": 1_000_000}, {"name": "y", "type": "float", "low": 0, "high": 1}],
        "known_constraints": [{"expr": "x >= 10"}, {"expr": "x + 1 <= y"}],
    });
    send(&mut session, &space).unwrap();
    let answer = ask(&mut session, &json!(1));
    let message = answer["message"].as_str().unwrap();
    let start =
        "no new configuration was found: 0 of 10000 configurations drawn from the space keep the known constraints";
    assert!(message.starts_with(start), "{message}");
    assert!(message.contains("the strictest is \"x + 1 <= y\", which 0 of them keep"), "{message}");
}

#[test]
fn the_strictest_constraint_of_an_empty_small_space_is_named() {
    let mut session = OptimizeSession::new(&InOrder, None);
    let mut space = space(23);
    space["known_constraints"] = json!([{"expr": "x >= 1"}, {"expr": "x >= 5"}]);
    send(&mut session, &space).unwrap();
    assert_eq!(
        ask(&mut session, &json!(1))["message"],
        "no new configuration was found: 0 of 4 configurations of the space keep the known constraints, and 0 of these \
         were not proposed yet; the strictest is \"x >= 5\", which 0 of them keep; widen the ranges, or choose \
         parameters with more configurations that keep it"
    );
}

#[test]
fn a_space_whose_draws_were_all_proposed_before_is_reported() {
    let mut session = OptimizeSession::new(sampler::find("random").unwrap(), Some(1));
    // Two numbers, and no constraint that could be the reason.
    let float = json!({"name": "x", "type": "float", "low": 1, "high": 1.000_000_000_000_000_2});
    let space = json!({"type": "space", "objectives": [{"name": "speed", "direction": "maximize"}], "params": [float]});
    send(&mut session, &space).unwrap();
    let answers: Vec<_> = (0..3).map(|id| ask(&mut session, &json!(id))).collect();
    assert_eq!(
        answers[2]["message"],
        "no new configuration was found: all 10000 allowed ones of 10000 drawn from the space were proposed before; \
         widen the ranges",
        "{answers:?}"
    );
}

#[test]
fn an_infeasible_trial_has_a_constraint_above_0() {
    let mut session = session(21);
    ask(&mut session, &json!(1));
    for constraints in
        [json!(null), json!({}), json!({"late": -0.1}), json!({"late": null}), json!({"late": "Infinity"})]
    {
        let refused = tell(&mut session, &json!(1), 1, &json!({"status": "infeasible", "constraints": constraints}));
        let message = refused.unwrap_err();
        assert!(message.starts_with("status is \"infeasible\": no constraint has a finite value above 0"), "{message}");
    }
    assert_eq!(
        tell(&mut session, &json!(1), 1, &json!({"status": "infeasible", "constraints": {"late": 0.1}})),
        Ok(None)
    );
}

#[test]
fn a_tell_may_contain_deviations() {
    let mut session = session(22);
    ask(&mut session, &json!(1));
    let told = json!({"deviations": {"values": {"speed": 0.02}, "constraints": {"late": 0.5}}});
    assert_eq!(tell(&mut session, &json!(1), 1, &told), Ok(None));
    ask(&mut session, &json!(2));
    let history = seen(22).1.history;
    let measured = history[0].measured().unwrap();
    assert_eq!((measured.values[0].deviation, measured.excesses[0].deviation), (Some(0.02), Some(0.5)));
    for (deviations, error) in [
        (json!({"values": {"speed": -1}}), "deviations.values.speed is -1, expected a number of at least 0"),
        (json!({"values": {"late": 1}}), "deviations.values.late is 1: unknown name"),
        (json!({"speed": 0.1}), "deviations.speed is 0.1: unknown name; known are values and constraints"),
        (json!(3), "deviations is 3, expected an object"),
    ] {
        let refused = tell(&mut session, &json!(2), 3, &json!({"deviations": deviations}));
        assert_eq!(refused, Err(error.to_owned()));
    }
}

#[test]
fn with_several_objectives_a_judgement_has_the_front_by_name() {
    let mut session = OptimizeSession::new(sampler::find("auto").unwrap(), Some(1));
    let space = json!({
        "type": "space", "params": [{"name": "x", "type": "int", "low": 1, "high": 8}],
        "objectives": [{"name": "speed", "direction": "maximize"}, {"name": "delay", "direction": "minimize"}],
    });
    send(&mut session, &space).unwrap();
    // Above 4 the delay still grows, and the speed falls.
    for x in 1..=8 {
        let values = json!({"speed": 100 * x.min(4) - 40 * (x - 4).max(0), "delay": 10 + 5 * x});
        let message = json!({"type": "tell", "id": x, "config": {"x": x}, "status": "ok", "values": values});
        assert_eq!(send(&mut session, &message), Ok(None));
    }
    let answer = send(&mut session, &json!({"type": "judge", "id": 9})).unwrap().unwrap();
    let mut front: Vec<_> = answer["front"].as_array().unwrap().iter().map(|one| one["config"]["x"].as_i64()).collect();
    front.sort_unstable();
    assert_eq!(front, [1, 2, 3, 4].map(Some), "{answer}");
    let delay = answer["front"][0]["values"]["delay"].as_f64().unwrap();
    assert!((14.0..31.0).contains(&delay), "{answer}");
    assert_eq!((&answer["remaining"], &answer["next_gain"]), (&Json::Null, &Json::Null));
}

/// Pins the suggestions, so that they are equal on every machine. A change of the sampler requires new ones here.
#[test]
fn the_suggestions_of_a_run_match_the_recorded_ones() {
    let mut session = OptimizeSession::new(sampler::find("auto").unwrap(), Some(1));
    let space = json!({
        "type": "space", "objectives": [{"name": "throughput", "direction": "maximize"}], "constraints": [{"name": "ttft_p99"}],
        "params": [
            {"name": "seqs", "type": "int", "low": 8, "high": 1024, "log": true}, {"name": "chunked", "type": "bool"},
            {"name": "share", "type": "float", "low": 0.5, "high": 0.98},
        ],
    });
    send(&mut session, &space).unwrap();
    let mut written = Vec::new();
    for id in 0..14 {
        let answer = ask(&mut session, &json!(id));
        let config = &answer["config"];
        written.push(format!("{} {} {}", config["seqs"], config["chunked"], config["share"]));
        let (seqs, share) = (config["seqs"].as_f64().unwrap(), config["share"].as_f64().unwrap());
        let outcome = if share > 0.93 {
            json!({"status": "failed"})
        } else {
            let late = (seqs / 300.0) - share - 0.5;
            let speed = 1000.0 * seqs / (seqs + 100.0) * share;
            let status = if late > 0.0 { "infeasible" } else { "ok" };
            json!({"status": status, "values": {"throughput": speed}, "constraints": {"ttft_p99": late}})
        };
        let mut message = json!({"type": "tell", "id": id});
        message.as_object_mut().unwrap().extend(outcome.as_object().unwrap().clone());
        send(&mut session, &message).unwrap();
    }
    let known = [
        "68 true 0.5559",
        "580 false 0.7519",
        "25 false 0.8702",
        "215 true 0.6892",
        "258 true 0.9242",
        "1024 true 0.98",
        "460 true 0.98",
        "406 true 0.8433",
        "258 false 0.9242",
        "380 false 0.9608",
        "393 false 0.8523",
        "588 true 0.7826",
        "393 true 0.9158",
        "413 false 0.9306",
    ];
    assert_eq!(written, known);
}

/// Compares the run in the book with the replies.
#[test]
fn the_run_in_the_book_matches_the_replies() {
    let chapter = include_str!("../../docs/src/optimize.md");
    let (_, section) = chapter.split_once("# The optimizer alone").unwrap();
    let mut session = OptimizeSession::new(sampler::find("auto").unwrap(), None);
    let mut replies = Vec::new();
    let mut shown = Vec::new();
    for line in section.lines().take_while(|line| !line.starts_with("- ")) {
        if let Some(sent) = line.strip_prefix("> ") {
            if let SessionReply::Line(reply) = session.process_line(sent.as_bytes()).unwrap() {
                replies.push(reply);
            }
        } else if let Some(reply) = line.strip_prefix("< ") {
            shown.push(reply.to_owned());
        }
    }
    assert_eq!(shown.len(), 3);
    assert_eq!(shown, replies);
}
