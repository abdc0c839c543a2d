//! Writing of a database file: complete or not at all.

use std::io::Read;
use std::path::{Path, PathBuf};

use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection};

use super::{DatabaseExporter, StudyContent, TableRows};
use crate::private_files::private_options;

/// The reason for which a database was not written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DatabaseFileError {
    #[error("{} exists and was not written by `export --format {format}`", path.display())]
    Foreign { path: PathBuf, format: &'static str },
    #[error("{} cannot be replaced: {} shows that another program uses it", path.display(), beside.display())]
    InUse { path: PathBuf, beside: PathBuf },
    #[error("cannot write {}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    #[error("cannot write {}: {source}", path.display())]
    Database { path: PathBuf, source: sqlx::Error },
}

impl DatabaseFileError {
    /// Returns a hint for users.
    #[must_use]
    pub(crate) fn hint(&self) -> &'static str {
        match self {
            Self::Foreign { .. } => "name another file with -o, or remove this one",
            Self::InUse { .. } => "end that program, or name another file with -o",
            Self::Io { .. } | Self::Database { .. } => "name another file with -o",
        }
    }
}

/// Writes the study into a temporary file beside `path` and renames it. An earlier export of the same format is
/// replaced, any other file is not.
///
/// # Errors
/// If the file must not be replaced, or cannot be written. Then nothing is changed.
pub(crate) async fn write_database(
    path: &Path,
    exporter: &dyn DatabaseExporter,
    study: &StudyContent<'_>,
) -> Result<(), DatabaseFileError> {
    let io = |source| DatabaseFileError::Io { path: path.to_owned(), source };
    check_replaceable(path, exporter)?;
    let part = with_ending(path, &format!(".{}.part", std::process::id()));
    // Fails if the file exists, which then stays as it is. Like the study's own database, it is its owner's alone.
    private_options().write(true).create_new(true).open(&part).map_err(io)?;
    let filled = fill(&part, exporter, exporter.rows(study)).await;
    let filled = filled.map_err(|source| DatabaseFileError::Database { path: path.to_owned(), source });
    let written = filled.and_then(|()| {
        std::fs::File::open(&part).and_then(|file| file.sync_all()).map_err(io)?;
        std::fs::rename(&part, path).map_err(io)
    });
    if written.is_err() {
        // The first error is the one to report.
        let _ = std::fs::remove_file(&part);
    }
    written
}

/// Creates the tables and inserts the rows in one transaction.
async fn fill(part: &Path, exporter: &dyn DatabaseExporter, rows: Vec<TableRows>) -> sqlx::Result<()> {
    // Nobody reads the file before it is complete, so that it needs no journal.
    let options = SqliteConnectOptions::new()
        .filename(part)
        .journal_mode(SqliteJournalMode::Off)
        .synchronous(SqliteSynchronous::Off)
        .foreign_keys(false);
    let mut connection = options.connect().await?;
    let id = format!("PRAGMA application_id = {}", exporter.application_id());
    sqlx::raw_sql(AssertSqlSafe(id)).execute(&mut connection).await?;
    let mut transaction = connection.begin().await?;
    sqlx::raw_sql(exporter.schema()).execute(&mut *transaction).await?;
    for table in rows {
        table.insert(&mut transaction).await?;
    }
    transaction.commit().await?;
    connection.close().await
}

/// Refuses a file that is not an earlier export of this format, and one that a program has open: its journal would be
/// applied to the new file.
fn check_replaceable(path: &Path, exporter: &dyn DatabaseExporter) -> Result<(), DatabaseFileError> {
    if path.symlink_metadata().is_ok() && application_id(path) != Some(exporter.application_id()) {
        return Err(DatabaseFileError::Foreign { path: path.to_owned(), format: exporter.name() });
    }
    let beside = ["-wal", "-journal"].map(|ending| with_ending(path, ending));
    match beside.into_iter().find(|beside| beside.exists()) {
        Some(beside) => Err(DatabaseFileError::InUse { path: path.to_owned(), beside }),
        None => Ok(()),
    }
}

/// Returns the field `application_id` of a database's header, see <https://www.sqlite.org/fileformat.html>.
fn application_id(path: &Path) -> Option<u32> {
    let mut header = [0; 72];
    std::fs::File::open(path).ok()?.read_exact(&mut header).ok()?;
    let id = header[68..].try_into().map(u32::from_be_bytes).ok()?;
    header.starts_with(b"SQLite format 3\0").then_some(id)
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(ending);
    path.with_file_name(name)
}
