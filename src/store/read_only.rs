//! One `SELECT` of a user on a connection that can only read.
//!
//! Three means refuse everything else, and none of them looks at the text of the statement. The file is opened
//! read-only. An authorizer is asked by `SQLite` for each action of a statement, and permits only reading. `SQLite`
//! itself parses exactly one statement.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::limits::Limit;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::StoreError;
use super::open::{database_error, refuse_foreign};

/// Limit of one text or blob, in bytes.
const MAX_VALUE_BYTES: i32 = 64 << 20;

/// Limit of all texts and blobs of a result, in bytes.
const MAX_RESULT_BYTES: usize = 512 << 20;

/// The number of steps of `SQLite`'s virtual machine between two looks at the clock.
const STEPS_PER_LOOK: i32 = 10_000;

/// One value of a result.
#[derive(Clone, Debug, PartialEq)]
pub enum SqlValue {
    Null,
    Integer(i64),
    Real(f64),
    Text(String),
    Blob(Vec<u8>),
}

/// The result of a query.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SqlResult {
    pub columns: Vec<String>,
    pub rows: Vec<Vec<SqlValue>>,
}

/// The limits of a query.
#[derive(Clone, Copy, Debug)]
pub struct SqlLimits {
    pub rows: usize,
    pub time: Duration,
}

/// The reason for which a query has no result.
#[derive(Debug, thiserror::Error)]
pub enum SqlError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("`sql` only reads: {0} is refused")]
    Refused(String),
    #[error("`sql` runs one statement, and the text contains several")]
    Several,
    #[error("the text contains no statement")]
    Empty,
    #[error("the result has more than {0} rows")]
    TooManyRows(usize),
    #[error("the result has more than {} MiB of text", MAX_RESULT_BYTES >> 20)]
    TooLarge,
    #[error("the query did not end within {} s", .0.as_secs_f64())]
    TooSlow(Duration),
    /// `SQLite`'s message about a statement that it cannot run, such as `no such table: x`.
    #[error("{0}")]
    Statement(String),
    #[error("database {}: {reason}", path.display())]
    Database { path: PathBuf, reason: String },
}

impl SqlError {
    /// Returns a hint for users.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Store(error) => error.hint(),
            Self::Refused(_) => {
                Some("write a SELECT; for anything else use `sqlite3` on a copy of the database".to_owned())
            }
            Self::Several => Some("run `setpoint sql` once for each statement".to_owned()),
            Self::TooManyRows(_) | Self::TooLarge => {
                Some("add a LIMIT or a WHERE, or raise the number with --max-rows".to_owned())
            }
            Self::TooSlow(_) => Some("give it longer with --timeout, or narrow it".to_owned()),
            Self::Statement(message) if message.starts_with("no such table") => Some(
                "the views are v_trials, v_metrics, v_flags, v_best, v_starts and v_contexts; `SELECT name FROM \
                 sqlite_schema` lists all names; `setpoint studies` adds new views to an older database"
                    .to_owned(),
            ),
            Self::Statement(message) if message.starts_with("no such column") => Some(
                "`SELECT * FROM VIEW LIMIT 1` shows the columns of a view, and texts stand in 'single quotes'"
                    .to_owned(),
            ),
            Self::Empty | Self::Statement(_) | Self::Database { .. } => None,
        }
    }
}

/// Runs one statement that only reads. An older database keeps its tables: nothing is migrated.
///
/// # Errors
/// If the database is absent or foreign, or if the statement is refused, wrong, or beyond a limit.
pub async fn read_only_query(path: &Path, statement: &str, limits: SqlLimits) -> Result<SqlResult, SqlError> {
    if !path.exists() {
        return Err(StoreError::Missing(path.to_owned()).into());
    }
    if path.is_file() {
        refuse_foreign(path, false).await.map_err(|error| database_error(path, error))??;
    }
    let refused = Arc::default();
    let connection = open(path, limits.time, &refused).map_err(|error| wrong_file(path, &error))?;
    read(&connection, statement, limits).map_err(|error| explained(error, &refused, path, limits.time))
}

/// The action that the authorizer has refused first.
type Refused = Arc<Mutex<Option<String>>>;

/// An error of `SQLite`, or one of ours.
enum QueryFailure {
    Sqlite(rusqlite::Error),
    Own(SqlError),
}

impl From<rusqlite::Error> for QueryFailure {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

fn open(path: &Path, time: Duration, refused: &Refused) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(super::open::BUSY_TIMEOUT)?;
    connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)?;
    connection.set_limit(Limit::SQLITE_LIMIT_ATTACHED, 0)?;
    let deadline = Instant::now() + time;
    connection.progress_handler(STEPS_PER_LOOK, Some(move || Instant::now() >= deadline))?;
    let refused = Arc::clone(refused);
    connection.authorizer(Some(move |context: AuthContext<'_>| match refusal(&context.action) {
        None => Authorization::Allow,
        Some(action) => {
            if let Ok(mut first) = refused.lock() {
                first.get_or_insert(action);
            }
            Authorization::Deny
        }
    }))?;
    Ok(connection)
}

/// Returns the name of an action that is refused. Only reading is permitted, so that a new kind of action of a later
/// `SQLite` is refused as well.
fn refusal(action: &AuthAction<'_>) -> Option<String> {
    match action {
        AuthAction::Select | AuthAction::Read { .. } | AuthAction::Recursive => None,
        AuthAction::Function { function_name } if !function_name.eq_ignore_ascii_case("load_extension") => None,
        AuthAction::Function { function_name } => Some(format!("the function {function_name}")),
        AuthAction::Attach { .. } => Some("ATTACH (or VACUUM, which attaches a file)".to_owned()),
        AuthAction::Detach { .. } => Some("DETACH".to_owned()),
        AuthAction::Pragma { pragma_name, .. } => Some(format!("PRAGMA {pragma_name}")),
        AuthAction::Insert { table_name }
        | AuthAction::Update { table_name, .. }
        | AuthAction::Delete { table_name } => Some(format!("a change of {table_name}")),
        AuthAction::CreateTempTable { .. }
        | AuthAction::CreateTempIndex { .. }
        | AuthAction::CreateTempView { .. }
        | AuthAction::CreateTempTrigger { .. } => Some("CREATE TEMP".to_owned()),
        AuthAction::Transaction { .. } | AuthAction::Savepoint { .. } => Some("a transaction".to_owned()),
        _ => Some("a statement that is no SELECT".to_owned()),
    }
}

fn read(connection: &Connection, text: &str, limits: SqlLimits) -> Result<SqlResult, QueryFailure> {
    let mut statement = connection.prepare(text)?;
    // A second guard: `SQLite`'s own opinion on the statement that it has compiled.
    if !statement.readonly() {
        return Err(QueryFailure::Own(SqlError::Refused("a statement that is no SELECT".to_owned())));
    }
    let columns: Vec<_> = statement.column_names().into_iter().map(str::to_owned).collect();
    if columns.is_empty() {
        return Err(QueryFailure::Own(SqlError::Empty));
    }
    let (mut found, mut bytes) = (Vec::new(), 0);
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        if found.len() == limits.rows {
            return Err(QueryFailure::Own(SqlError::TooManyRows(limits.rows)));
        }
        let mut values = Vec::with_capacity(columns.len());
        for index in 0..columns.len() {
            let (value, size) = owned(row.get_ref(index)?);
            bytes += size;
            values.push(value);
        }
        if bytes > MAX_RESULT_BYTES {
            return Err(QueryFailure::Own(SqlError::TooLarge));
        }
        found.push(values);
    }
    Ok(SqlResult { columns, rows: found })
}

/// Returns a value and the bytes that it takes.
fn owned(value: ValueRef<'_>) -> (SqlValue, usize) {
    match value {
        ValueRef::Null => (SqlValue::Null, 0),
        ValueRef::Integer(integer) => (SqlValue::Integer(integer), 8),
        ValueRef::Real(real) => (SqlValue::Real(real), 8),
        ValueRef::Text(text) => (SqlValue::Text(String::from_utf8_lossy(text).into_owned()), text.len()),
        ValueRef::Blob(blob) => (SqlValue::Blob(blob.to_vec()), blob.len()),
    }
}

fn wrong_file(path: &Path, error: &rusqlite::Error) -> SqlError {
    match error.sqlite_error_code() {
        Some(ErrorCode::CannotOpen) => StoreError::CannotOpen(path.to_owned()).into(),
        _ => SqlError::Database { path: path.to_owned(), reason: error.to_string() },
    }
}

/// Converts a failure of the query to an error with its cause.
fn explained(failure: QueryFailure, refused: &Refused, path: &Path, time: Duration) -> SqlError {
    let error = match failure {
        QueryFailure::Own(error) => return error,
        QueryFailure::Sqlite(error) => error,
    };
    if let Some(action) = refused.lock().ok().and_then(|mut first| first.take()) {
        return SqlError::Refused(action);
    }
    match (&error, error.sqlite_error_code()) {
        (rusqlite::Error::MultipleStatement, _) => SqlError::Several,
        (_, Some(ErrorCode::OperationInterrupted)) => SqlError::TooSlow(time),
        (_, Some(ErrorCode::AuthorizationForStatementDenied | ErrorCode::ReadOnly)) => {
            SqlError::Refused("a statement that is no SELECT".to_owned())
        }
        (rusqlite::Error::SqliteFailure(_, Some(message)), _) => SqlError::Statement(message.clone()),
        _ => wrong_file(path, &error),
    }
}

#[cfg(test)]
mod tests;
