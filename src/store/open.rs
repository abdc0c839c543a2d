//! Opening the database, the same way everywhere.

use std::path::{Path, PathBuf};
use std::time::Duration;

use sqlx::migrate::{MigrateError, Migrator};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection};

use super::{Store, StoreError};

static MIGRATOR: Migrator = sqlx::migrate!();

/// How long a writer waits for another one.
const BUSY: Duration = Duration::from_secs(10);

/// A path, or a `sqlite:` URL, as a path.
#[must_use]
pub fn database_path(name: &str) -> PathBuf {
    let path = name.strip_prefix("sqlite:").map_or(name, |rest| rest.strip_prefix("//").unwrap_or(rest));
    PathBuf::from(path.split('?').next().unwrap_or(path))
}

impl Store {
    /// Opens the database and brings its tables up to date, creating it first if `create`.
    ///
    /// # Errors
    /// When it is absent, not ours, newer than this program, or cannot be written.
    pub async fn open(name: &str, create: bool) -> Result<Self, StoreError> {
        let path = database_path(name);
        if !create && !path.exists() {
            return Err(StoreError::Missing(path));
        }
        if path.is_file() {
            refuse_foreign(&path, create).await.map_err(|error| database_error(&path, error))??;
        }
        let options = SqliteConnectOptions::new()
            .filename(&path)
            .create_if_missing(create)
            // Readers and the tuner do not wait for each other.
            .journal_mode(SqliteJournalMode::Wal)
            // A trial costs minutes, a commit that survives a loss of power milliseconds.
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(true)
            .busy_timeout(BUSY);
        let pool = SqlitePoolOptions::new().max_connections(1).connect_with(options).await;
        let pool = pool.map_err(|error| database_error(&path, error))?;
        match MIGRATOR.run(&pool).await {
            Ok(()) => Ok(Self { pool, path }),
            Err(MigrateError::VersionMissing(version) | MigrateError::VersionTooNew(version, _)) => {
                Err(StoreError::Newer { path, version })
            }
            Err(MigrateError::Execute(error)) => Err(database_error(&path, error)),
            Err(error) => Err(StoreError::NotADatabase { path, reason: error.to_string() }),
        }
    }

    /// Where the database lies.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes what is buffered and closes the file.
    pub async fn close(self) {
        self.pool.close().await;
    }

    pub(super) fn error(&self, error: sqlx::Error) -> StoreError {
        database_error(&self.path, error)
    }
}

/// Another program's database gets neither our tables nor our journal mode, and an empty file no tables where nothing is
/// to be created. The outer error is the database's.
async fn refuse_foreign(path: &Path, create: bool) -> Result<Result<(), StoreError>, sqlx::Error> {
    let options = SqliteConnectOptions::new().filename(path).read_only(true).busy_timeout(BUSY);
    let mut connection = options.connect().await?;
    let query = "SELECT count(*), coalesce(sum(name = '_sqlx_migrations'), 0) FROM sqlite_master WHERE type = 'table'";
    let (tables, ours): (i64, i64) = sqlx::query_as(query).fetch_one(&mut connection).await?;
    connection.close().await?;
    let reason = match (tables, ours) {
        (0, _) if !create => "it holds nothing",
        (1.., 0) => "it holds the tables of another program",
        _ => return Ok(Ok(())),
    };
    Ok(Err(StoreError::NotADatabase { path: path.to_owned(), reason: reason.to_owned() }))
}

/// <https://www.sqlite.org/rescode.html>, the primary codes.
const SQLITE_FULL: i64 = 13;
const SQLITE_CANTOPEN: i64 = 14;
const SQLITE_NOTADB: i64 = 26;

fn database_error(path: &Path, error: sqlx::Error) -> StoreError {
    let path = path.to_owned();
    let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
    match code.and_then(|code| code.parse::<i64>().ok()).map(|code| code & 0xff) {
        Some(SQLITE_FULL) => StoreError::Full(path),
        Some(SQLITE_CANTOPEN) => StoreError::CannotOpen(path),
        Some(SQLITE_NOTADB) => StoreError::NotADatabase { path, reason: "it is another kind of file".to_owned() },
        _ => StoreError::Database { path, source: error },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_and_paths_name_the_same_file() {
        for name in ["runs/a.db", "sqlite:runs/a.db", "sqlite://runs/a.db", "sqlite://runs/a.db?mode=rwc"] {
            assert_eq!(database_path(name), Path::new("runs/a.db"), "{name}");
        }
        assert_eq!(database_path("sqlite:///var/a.db"), Path::new("/var/a.db"));
    }
}
