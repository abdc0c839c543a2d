//! Tests of the connection that only reads.

use super::*;
use crate::facts::Host;
use crate::store::Store;

const LIMITS: SqlLimits = SqlLimits { rows: 1000, time: Duration::from_secs(5) };

/// A table without an end.
const ENDLESS: &str = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)";

/// Creates a database with one study, and returns its path.
async fn database(directory: &Path) -> PathBuf {
    let path = directory.join("a.db");
    let store = Store::open(&path.to_string_lossy(), true).await.unwrap();
    store.create_study("s", &serde_json::json!({}), &Host::detect()).await.unwrap();
    store.close().await;
    path
}

#[tokio::test]
async fn every_kind_of_value_is_read_with_its_type_and_name() {
    let directory = tempfile::tempdir().unwrap();
    let path = database(directory.path()).await;
    let query = "SELECT name, id AS number, 1.5 AS half, NULL AS none, x'00ff' AS bytes FROM studies -- the end";
    let result = read_only_query(&path, query, LIMITS).await.unwrap();
    assert_eq!(result.columns, ["name", "number", "half", "none", "bytes"]);
    let text = SqlValue::Text("s".to_owned());
    let row = [text, SqlValue::Integer(1), SqlValue::Real(1.5), SqlValue::Null, SqlValue::Blob(vec![0, 255])];
    assert_eq!(result.rows, [row]);
    let recursive = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 9) SELECT sum(i) FROM n";
    let result = read_only_query(&path, recursive, LIMITS).await.unwrap();
    assert_eq!(result.rows, [[SqlValue::Integer(45)]]);
    let result = read_only_query(&path, "EXPLAIN QUERY PLAN SELECT * FROM v_best", LIMITS).await.unwrap();
    assert!(!result.rows.is_empty());
}

#[tokio::test]
async fn everything_but_reading_is_refused_and_leaves_no_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = database(directory.path()).await;
    let before = std::fs::read(&path).unwrap();
    let other = directory.path().join("other.db");
    for (statement, refused) in [
        ("DELETE FROM studies", "a change of"),
        ("UPDATE studies SET name = 'x'", "a change of"),
        ("INSERT INTO studies (name) VALUES ('x')", "a change of"),
        ("WITH gone AS (SELECT 1) DELETE FROM trials", "a change of"),
        ("DROP TABLE studies", "is refused"),
        ("CREATE TABLE t (a)", "is refused"),
        ("CREATE TEMP TABLE t AS SELECT * FROM studies", "is refused"),
        ("CREATE TEMP VIEW v AS SELECT 1", "is refused"),
        ("ATTACH 'OTHER' AS other", "ATTACH"),
        ("DETACH main", "DETACH"),
        ("VACUUM INTO 'OTHER'", "is refused"),
        ("VACUUM", "is refused"),
        ("PRAGMA journal_mode = DELETE", "PRAGMA journal_mode"),
        ("PRAGMA table_info(trials)", "PRAGMA table_info"),
        ("SELECT * FROM pragma_table_info('trials')", "is refused"),
        ("/* SELECT */ pRaGmA user_version", "PRAGMA user_version"),
        ("SELECT load_extension('x')", "is refused"),
        ("BEGIN", "a transaction"),
        ("SAVEPOINT a", "a transaction"),
        ("REINDEX", "is refused"),
        ("ANALYZE", "is refused"),
    ] {
        let statement = statement.replace("OTHER", &other.to_string_lossy());
        let error = read_only_query(&path, &statement, LIMITS).await.unwrap_err();
        assert!(matches!(error, SqlError::Refused(_)), "{statement}: {error:?}");
        assert!(error.to_string().contains(refused) && error.hint().is_some(), "{statement}: {error}");
    }
    assert!(!other.exists());
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

#[tokio::test]
async fn a_second_statement_an_empty_one_and_a_wrong_name_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = database(directory.path()).await;
    let error = async |statement: &str| read_only_query(&path, statement, LIMITS).await.unwrap_err();
    assert!(matches!(error("SELECT 1; DROP TABLE studies").await, SqlError::Refused(_)));
    assert!(matches!(error("SELECT 1; SELECT 2").await, SqlError::Several));
    assert!(matches!(error(" -- nothing").await, SqlError::Empty));
    let absent = error("SELECT * FROM trial").await;
    assert_eq!(absent.to_string(), "no such table: trial");
    assert!(absent.hint().unwrap().contains("v_trials"));
    assert!(error("SELECT nmae FROM studies").await.hint().unwrap().contains("columns"));
    assert!(error("SELEC 1").await.to_string().contains("syntax error"));
}

#[tokio::test]
async fn endless_queries_end_at_the_limit_of_rows_or_time() {
    let directory = tempfile::tempdir().unwrap();
    let path = database(directory.path()).await;
    let time = Duration::from_millis(50);
    let error = async |select: &str| {
        read_only_query(&path, &format!("{ENDLESS} {select}"), SqlLimits { rows: 1000, time }).await.unwrap_err()
    };
    assert!(matches!(error("SELECT i FROM n").await, SqlError::TooManyRows(1000)));
    assert!(matches!(error("SELECT sum(i) FROM n").await, SqlError::TooSlow(_)));
    let large = read_only_query(&path, "SELECT zeroblob(1000000000)", LIMITS).await.unwrap_err();
    assert!(large.to_string().contains("too big"), "{large}");
}

#[tokio::test]
async fn a_database_of_another_program_and_an_absent_one_are_not_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.db");
    let error = read_only_query(&path, "SELECT 1", LIMITS).await.unwrap_err();
    assert!(matches!(error, SqlError::Store(StoreError::Missing(_))) && !path.exists());
    Connection::open(&path).unwrap().execute_batch("CREATE TABLE t (a)").unwrap();
    let error = read_only_query(&path, "SELECT * FROM t", LIMITS).await.unwrap_err();
    assert!(matches!(error, SqlError::Store(StoreError::NotADatabase { .. })), "{error}");
}
