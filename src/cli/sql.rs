//! `sql`: one query of the user's own, which cannot change the database.

use std::io::Read;
use std::time::Duration;

use clap::Args;

use super::failure::{CommandFailure, UNEXPECTED, USAGE};
use super::output::{print, print_json};
use super::{GlobalOptions, ListFormat, parse_duration};
use crate::report;
use crate::store::{SqlError, SqlLimits, database_path, read_only_query};

#[derive(Debug, Args)]
pub(super) struct SqlCommand {
    /// One statement that reads: SELECT, WITH or EXPLAIN. `-` reads it from standard input.
    #[arg(value_name = "SELECT")]
    statement: String,
    /// Output format.
    #[arg(long, value_enum, default_value_t = ListFormat::Table)]
    format: ListFormat,
    /// Largest number of rows. A result with more is an error, so that no output is a part of it.
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    max_rows: usize,
    /// Longest time of the query.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = parse_duration)]
    timeout: Duration,
}

impl SqlCommand {
    pub(super) async fn run(self, global: &GlobalOptions) -> Result<(), CommandFailure> {
        let mut statement = self.statement;
        if statement == "-" {
            statement.clear();
            std::io::stdin().read_to_string(&mut statement).map_err(|error| {
                CommandFailure::new(UNEXPECTED, format!("cannot read the statement from standard input: {error}"))
            })?;
        }
        let limits = SqlLimits { rows: self.max_rows, time: self.timeout };
        let result = read_only_query(&database_path(&global.db), &statement, limits).await?;
        match self.format {
            ListFormat::Table => print(&report::sql_table(&result)),
            ListFormat::Json => print_json(&report::sql_json(&result)),
            ListFormat::Csv => print(&report::sql_csv(&result)?),
        }
    }
}

impl From<SqlError> for CommandFailure {
    fn from(error: SqlError) -> Self {
        let hint = error.hint();
        let failure = match error {
            SqlError::Store(error) => return error.into(),
            SqlError::Database { .. } => Self::unexpected(error.to_string()),
            SqlError::Refused(_)
            | SqlError::Several
            | SqlError::Empty
            | SqlError::TooManyRows(_)
            | SqlError::TooLarge
            | SqlError::TooSlow(_)
            | SqlError::Statement(_) => Self::new(USAGE, error.to_string()),
        };
        match hint {
            Some(hint) => failure.with_hint(hint),
            None => failure,
        }
    }
}
