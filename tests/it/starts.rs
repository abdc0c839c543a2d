//! Observed starts: every launch is remembered with what its log tells of the memory.

use setpoint::memory::Observed;

use super::support::{Workplace, fast_study};

#[test]
fn every_launch_that_tells_of_its_memory_is_remembered() {
    let workplace = Workplace::with_study(&fast_study());
    let ended = workplace.run(&["tune", "study.toml", "--quiet"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let launched = workplace.trials().iter().filter(|trial| trial["state"] != "rejected").count();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let starts: Vec<(String, String, String)> = runtime.block_on(async {
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(workplace.path("setpoint.db"));
        let pool = sqlx::SqlitePool::connect_with(options).await.unwrap();
        sqlx::query_as("SELECT device, config, observed FROM starts ORDER BY number").fetch_all(&pool).await.unwrap()
    });
    assert_eq!(starts.len(), launched);
    for (device, config, observed) in starts {
        let observed: Observed = serde_json::from_str(&observed).unwrap();
        assert!(device.starts_with("cuda "), "{device}");
        assert!(config.contains("max-model-len"), "the fixed flags are stored as well: {config}");
        assert!(observed.weights_gib.is_some() && observed.cache_gib.is_some() && observed.tokens.is_some());
    }
}
