//! Databases of every earlier migration, and studies that an earlier build left unfinished. All of them can be opened,
//! queried and continued.

use std::path::Path;

use serde_json::Value as Json;
use sqlx::migrate::Migrator;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection};

use crate::support::{Workplace, root};

static MIGRATOR: Migrator = sqlx::migrate!();

/// Rows that earlier builds wrote, and the latest migration of each build.
const RECORDINGS: [(i64, &str); 2] =
    [(10, include_str!("../fixtures/databases/0010.sql")), (13, include_str!("../fixtures/databases/0013.sql"))];

/// Returns the study file of a recorded study. The engine is a script in the study's directory.
fn study(name: &str, seed: u32, budget: &str) -> String {
    let text = include_str!("../fixtures/databases/study.toml");
    text.replace("NAME", name).replace("SEED", &seed.to_string()) + budget
}

fn night() -> String {
    study("night", 3, "trials = 6\nconfirm = 0\n")
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

async fn create(path: &Path, migration: i64) -> SqliteConnection {
    let options = SqliteConnectOptions::new().filename(path).create_if_missing(true);
    let mut connection = options.connect().await.unwrap();
    MIGRATOR.run_to(migration, &mut connection).await.unwrap();
    connection
}

async fn run(connection: &mut SqliteConnection, sql: String) {
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await.unwrap();
}

async fn names(connection: &mut SqliteConnection, sql: String) -> Vec<String> {
    sqlx::query_scalar(AssertSqlSafe(sql)).fetch_all(connection).await.unwrap()
}

/// Creates the database of a build whose latest migration was `migration`. It contains the recorded rows, without the
/// tables and columns that this build lacked. For a migration after the latest recording, the rows of that recording
/// are migrated.
async fn build(path: &Path, migration: i64) {
    let (recorded, rows) = RECORDINGS.into_iter().find(|(recorded, _)| *recorded >= migration).unwrap_or(RECORDINGS[1]);
    let build = migration.min(recorded);
    let recording = path.with_extension("recording");
    let mut connection = create(&recording, recorded).await;
    run(&mut connection, rows.to_owned()).await;
    connection.close().await.unwrap();

    let mut connection = create(path, build).await;
    run(&mut connection, format!("ATTACH '{}' AS recorded", recording.display())).await;
    let tables = "SELECT name FROM recorded.sqlite_master WHERE type = 'table' AND name NOT LIKE '\\_%' ESCAPE '\\' \
                  AND name IN (SELECT name FROM main.sqlite_master) ORDER BY name = 'studies' DESC";
    for table in names(&mut connection, tables.to_owned()).await {
        let columns = format!(
            "SELECT name FROM pragma_table_info('{table}', 'main') INTERSECT \
             SELECT name FROM pragma_table_info('{table}', 'recorded')"
        );
        let columns = names(&mut connection, columns).await.join(", ");
        run(&mut connection, format!("INSERT INTO main.{table} ({columns}) SELECT {columns} FROM recorded.{table}"))
            .await;
    }
    run(&mut connection, "DETACH recorded".to_owned()).await;
    MIGRATOR.run_to(migration, &mut connection).await.unwrap();
    connection.close().await.unwrap();
}

/// Creates a directory with the database of an earlier build, its study files and an engine that works.
pub(crate) fn workplace_of(migration: i64) -> Workplace {
    let workplace = Workplace::with_study(&night());
    workplace.write("paused.toml", &study("paused", 4, "trials = 3\nconfirm = 0\n"));
    workplace.write("slots.toml", &study("slots", 3, "trials = 5\nconfirm = 0\n\n[slots]\ncount = 2\n"));
    std::fs::create_dir(workplace.path("model")).unwrap();
    let model = root().join("examples/models/qwen3-8b/config.json");
    std::fs::copy(model, workplace.path("model/config.json")).unwrap();
    workplace.write("engine.sh", &format!("#!/bin/sh\nexec {} sim serve \"$@\"\n", env!("CARGO_BIN_EXE_setpoint")));
    let executable = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o755);
    std::fs::set_permissions(workplace.path("engine.sh"), executable).unwrap();
    block_on(build(&workplace.path("setpoint.db"), migration));
    workplace
}

fn trials(workplace: &Workplace, study: &str) -> Vec<Json> {
    let trials = workplace.json(&["trials", "--study", study, "--format", "json"]);
    trials.as_array().unwrap().clone()
}

fn states(trials: &[Json]) -> Vec<&str> {
    trials.iter().map(|trial| trial["state"].as_str().unwrap()).collect()
}

/// Returns every migration, including the present one.
fn migrations() -> Vec<i64> {
    MIGRATOR.iter().map(|migration| migration.version).collect()
}

#[test]
fn a_database_of_every_earlier_migration_answers() {
    let mut first_metrics = std::collections::BTreeMap::new();
    for migration in migrations() {
        let workplace = workplace_of(migration);
        let studies = workplace.json(&["studies", "--format", "json"]);
        let counts = |index: usize| ["study", "measured", "running"].map(|name| studies[index][name].clone());
        assert_eq!(counts(0), [Json::from("night"), 5.into(), 1.into()], "{migration}");
        assert_eq!(counts(1)[..2], [Json::from("paused"), 2.into()], "{migration}");
        assert_eq!(counts(2), [Json::from("slots"), 6.into(), 0.into()], "{migration}");
        for study in ["night", "paused", "slots"] {
            for arguments in [&["trials"][..], &["show", "0"], &["best"], &["export", "--format", "json"]] {
                let ended = workplace.run(&[arguments, &["--study", study]].concat());
                assert_eq!(ended.code, Some(0), "{migration}: {arguments:?} of {study}: {}", ended.stderr);
                assert!(!ended.stdout.is_empty(), "{migration}: {arguments:?} of {study}");
            }
        }
        let best = workplace.json(&["best", "--study", "night", "--format", "json"]);
        let values: Vec<_> = trials(&workplace, "night").iter().map(|trial| trial["value"].as_f64().unwrap()).collect();
        let highest = values.iter().copied().fold(f64::MIN, f64::max);
        assert_eq!((values.len(), best["value"].as_f64()), (5, Some(highest)), "{migration}");
        let shown = workplace.json(&["show", "2", "--study", "night", "--format", "json"]);
        let incidents = shown["incidents"].as_array().unwrap();
        assert_eq!(incidents.len(), usize::from(migration >= 6), "{migration}: {incidents:?}");
        assert_eq!(shown["startup"].is_object(), migration >= 5, "{migration}");
        // The metrics have moved to another table since then. Each recording must still give the same metrics.
        let metrics: Vec<_> = trials(&workplace, "night").iter().map(|trial| trial["metrics"].clone()).collect();
        let first = first_metrics.entry(migration <= RECORDINGS[0].0).or_insert_with(|| metrics.clone());
        assert!(*first == metrics, "{migration}: other metrics");
    }
}

#[test]
fn a_study_that_was_killed_goes_on_from_a_database_of_every_earlier_migration() {
    for migration in migrations() {
        let workplace = workplace_of(migration);
        let before = trials(&workplace, "night");
        let tuned = workplace.run(&["tune", "study.toml"]);
        assert_eq!(tuned.code, Some(0), "{migration}: {}", tuned.stderr);
        let after = trials(&workplace, "night");
        assert_eq!(after[..before.len()], before[..], "{migration}: earlier trials stay as they were");
        assert_eq!((states(&after), &after[5]["trial"]), (vec!["measured"; 6], &5.into()), "{migration}");
        assert_eq!(workplace.json(&["studies", "--format", "json"])[0]["running"], 0, "{migration}");
    }
}

#[test]
fn a_paused_study_of_an_earlier_build_goes_on_and_keeps_its_incidents() {
    for (migration, _) in RECORDINGS {
        let workplace = workplace_of(migration);
        let tuned = workplace.run(&["tune", "paused.toml"]);
        assert_eq!(tuned.code, Some(0), "{migration}: {}", tuned.stderr);
        let after = trials(&workplace, "paused");
        assert!(after.len() >= 3 && states(&after).iter().all(|state| *state == "measured"), "{migration}: {after:?}");
        let shown = workplace.json(&["show", "2", "--study", "paused", "--format", "json"]);
        assert_eq!(shown["incidents"].as_array().unwrap().len(), 3, "{migration}");
    }
}

#[test]
fn a_study_with_slots_of_an_earlier_build_goes_on_with_the_same_measurements() {
    for (migration, _) in RECORDINGS {
        let workplace = workplace_of(migration);
        let before = trials(&workplace, "slots");
        let tuned = workplace.run(&["tune", "slots.toml"]);
        assert_eq!(tuned.code, Some(0), "{migration}: {}", tuned.stderr);
        let after = trials(&workplace, "slots");
        assert!(after.len() > before.len(), "{migration}: {}", tuned.stderr);
        assert_eq!(after[..before.len()], before[..], "{migration}");
        let placed = workplace.json(&["show", "3", "--study", "slots", "--format", "json"]);
        assert!(placed["placement"].is_object(), "{migration}: {placed}");
    }
}
