//! Opening of the database, with the same settings everywhere.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sqlx::migrate::{MigrateError, Migrator};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection, SqlitePool};

use super::{Store, StoreError};
use crate::private_files::{private_options, restrict};

static MIGRATOR: Migrator = sqlx::migrate!();

/// The time that a writer waits for another one.
pub(super) const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// The longest wait for another process that creates the same tables, and the pause between two looks.
const MIGRATION_LIMIT: Duration = Duration::from_secs(10);
const MIGRATION_PAUSE: Duration = Duration::from_millis(20);

/// Converts a path or a `sqlite:` URL to a path.
#[must_use]
pub fn database_path(name: &str) -> PathBuf {
    let path = name.strip_prefix("sqlite:").map_or(name, |rest| rest.strip_prefix("//").unwrap_or(rest));
    PathBuf::from(path.split('?').next().unwrap_or(path))
}

impl Store {
    /// Opens the database and migrates its tables, creating it first if `create`.
    ///
    /// # Errors
    /// If it is absent, not ours, newer than this program, or cannot be written.
    pub async fn open(name: &str, create: bool) -> Result<Self, StoreError> {
        let path = database_path(name);
        if !create && !path.exists() {
            return Err(StoreError::Missing(path));
        }
        if path.is_file() {
            refuse_foreign(&path, create).await.map_err(|error| database_error(&path, error))??;
        }
        make_private(&path, create).map_err(|error| database_error(&path, sqlx::Error::Io(error)))?;
        let options = SqliteConnectOptions::new()
            .filename(&path)
            .create_if_missing(create)
            // Readers and the tuner do not wait for each other.
            .journal_mode(SqliteJournalMode::Wal)
            // A commit survives a loss of power. That costs milliseconds, whereas a lost trial costs minutes.
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(true)
            .busy_timeout(BUSY_TIMEOUT);
        Self::connect(options, path).await
    }

    /// Opens an empty database in memory, for simulated studies. It is lost when this value is dropped.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub async fn in_memory() -> Result<Self, StoreError> {
        let options = SqliteConnectOptions::new().in_memory(true).foreign_keys(true);
        Self::connect(options, PathBuf::from(":memory:")).await
    }

    async fn connect(options: SqliteConnectOptions, path: PathBuf) -> Result<Self, StoreError> {
        // The only connection never times out, because a database in memory is lost when its connection closes.
        let pool = SqlitePoolOptions::new().max_connections(1).idle_timeout(None).max_lifetime(None);
        let pool = pool.connect_with(options).await;
        let pool = pool.map_err(|error| database_error(&path, error))?;
        match migrate(&pool).await {
            Ok(()) => Ok(Self { pool, path }),
            Err(MigrateError::VersionMissing(version) | MigrateError::VersionTooNew(version, _)) => {
                Err(StoreError::Newer { path, version })
            }
            Err(MigrateError::Execute(error)) => Err(database_error(&path, error)),
            Err(error) => Err(StoreError::NotADatabase { path, reason: error.to_string() }),
        }
    }

    /// Returns the path of the database.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes buffered data and closes the file.
    pub async fn close(self) {
        self.pool.close().await;
    }

    pub(super) fn error(&self, error: sqlx::Error) -> StoreError {
        database_error(&self.path, error)
    }
}

/// Creates the tables, or brings them up to date. Several processes may do so at the same time: a migration that another
/// one has applied meanwhile fails here, and then the next run finds it applied.
async fn migrate(pool: &SqlitePool) -> Result<(), MigrateError> {
    let begin = Instant::now();
    loop {
        match MIGRATOR.run(pool).await {
            Err(error) if begin.elapsed() < MIGRATION_LIMIT && is_by_another_process(&error) => {
                tokio::time::sleep(MIGRATION_PAUSE).await;
            }
            result => return result,
        }
    }
}

fn is_by_another_process(error: &MigrateError) -> bool {
    let text = error.to_string();
    ["already exists", "duplicate column name", "UNIQUE constraint failed: _sqlx_migrations", "database is locked"]
        .iter()
        .any(|sign| text.contains(sign))
}

/// Refuses another program's database, so that it gets neither our tables nor our journal mode. Also refuses an empty
/// file unless `create`. The inner result is the refusal; the outer one is an error of `SQLite`.
pub(super) async fn refuse_foreign(path: &Path, create: bool) -> Result<Result<(), StoreError>, sqlx::Error> {
    let (tables, ours) = match count_tables(path, true).await {
        // Its writer was killed within a transaction. The next writer rolls it back, and only then can the file be
        // read.
        Err(error) if code_of(&error) == Some(SQLITE_READONLY_ROLLBACK) => count_tables(path, false).await?,
        counted => counted?,
    };
    let reason = match (tables, ours) {
        (0, _) if !create => "it is empty",
        (1.., 0) => "it holds the tables of another program",
        _ => return Ok(Ok(())),
    };
    Ok(Err(StoreError::NotADatabase { path: path.to_owned(), reason: reason.to_owned() }))
}

/// Returns the number of tables, and the number among them that list our migrations.
async fn count_tables(path: &Path, read_only: bool) -> Result<(i64, i64), sqlx::Error> {
    let options = SqliteConnectOptions::new().filename(path).read_only(read_only).busy_timeout(BUSY_TIMEOUT);
    let mut connection = options.connect().await?;
    let query = "SELECT count(*), coalesce(sum(name = '_sqlx_migrations'), 0) FROM sqlite_master WHERE type = 'table'";
    let counted = sqlx::query_as(query).fetch_one(&mut connection).await;
    connection.close().await?;
    counted
}

/// Creates a new database readable by its owner only, before it has content, and removes the rights of others on an
/// existing one. `SQLite` gives the files beside it the same rights.
fn make_private(path: &Path, create: bool) -> std::io::Result<()> {
    if create {
        // If it cannot be created, opening it fails with the reason.
        let _ = private_options().write(true).create_new(true).open(path);
    }
    // `SQLite` follows links as well.
    let path = &path.canonicalize().unwrap_or_else(|_| path.to_owned());
    for ending in ["", "-wal", "-shm", "-journal"] {
        let mut name = path.as_os_str().to_owned();
        name.push(ending);
        restrict(Path::new(&name))?;
    }
    Ok(())
}

fn code_of(error: &sqlx::Error) -> Option<i64> {
    error.as_database_error().and_then(sqlx::error::DatabaseError::code)?.parse().ok()
}

/// An extended code, see <https://www.sqlite.org/rescode.html>.
const SQLITE_READONLY_ROLLBACK: i64 = 776;
/// Primary codes.
const SQLITE_FULL: i64 = 13;
const SQLITE_CANTOPEN: i64 = 14;
const SQLITE_NOTADB: i64 = 26;

pub(super) fn database_error(path: &Path, error: sqlx::Error) -> StoreError {
    let path = path.to_owned();
    match code_of(&error).map(|code| code & 0xff) {
        Some(SQLITE_FULL) => StoreError::Full(path),
        Some(SQLITE_CANTOPEN) => StoreError::CannotOpen(path),
        Some(SQLITE_NOTADB) => StoreError::NotADatabase { path, reason: "it is not an SQLite file".to_owned() },
        _ => StoreError::Database { path, source: error },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reproduces the database of a tuner that was killed while it created its tables: pages, and a journal that rolls
    /// them back.
    #[tokio::test]
    async fn a_database_whose_writer_was_killed_in_a_transaction_is_opened() {
        let directory = tempfile::tempdir().unwrap();
        let (path, copy) = (directory.path().join("a.db"), directory.path().join("b.db"));
        let store = Store::open(path.to_str().unwrap(), true).await.unwrap();
        store.close().await;
        let options = SqliteConnectOptions::new().filename(&path).journal_mode(SqliteJournalMode::Delete);
        let mut writer = options.connect().await.unwrap();
        // With a cache of one page, changes are written before they are committed.
        for statement in ["PRAGMA cache_size = 1", "CREATE TABLE t (x)", "BEGIN"] {
            sqlx::query(statement).execute(&mut writer).await.unwrap();
        }
        let many = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000) \
                    INSERT INTO t SELECT hex(randomblob(50)) FROM n";
        sqlx::query(many).execute(&mut writer).await.unwrap();
        std::fs::copy(&path, &copy).unwrap();
        std::fs::copy(directory.path().join("a.db-journal"), directory.path().join("b.db-journal")).unwrap();
        let reopened = Store::open(copy.to_str().unwrap(), true).await.unwrap();
        let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM t").fetch_one(&reopened.pool).await.unwrap();
        assert_eq!(rows, 0, "what was not committed is undone");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn several_processes_may_create_a_database_at_the_same_time() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.db");
        let open = || {
            let path = path.to_string_lossy().into_owned();
            tokio::spawn(async move { Store::open(&path, true).await.map(drop).map_err(|error| error.to_string()) })
        };
        let opened: Vec<_> = (0..6).map(|_| open()).collect();
        for opened in opened {
            assert_eq!(opened.await.unwrap(), Ok(()));
        }
    }

    #[tokio::test]
    async fn a_database_and_the_files_beside_it_are_their_owners_alone() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.db");
        let mode = |ending: &str| {
            let path = format!("{}{ending}", path.display());
            std::fs::metadata(path).unwrap().permissions().mode() & 0o777
        };
        let store = Store::open(path.to_str().unwrap(), true).await.unwrap();
        assert_eq!(["", "-wal", "-shm"].map(mode), [0o600; 3]);
        store.close().await;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o664)).unwrap();
        let store = Store::open(path.to_str().unwrap(), false).await.unwrap();
        assert_eq!(["", "-wal", "-shm"].map(mode), [0o600; 3], "an older database");
        store.close().await;
    }

    #[test]
    fn urls_and_paths_name_the_same_file() {
        for name in ["runs/a.db", "sqlite:runs/a.db", "sqlite://runs/a.db", "sqlite://runs/a.db?mode=rwc"] {
            assert_eq!(database_path(name), Path::new("runs/a.db"), "{name}");
        }
        assert_eq!(database_path("sqlite:///var/a.db"), Path::new("/var/a.db"));
    }
}
