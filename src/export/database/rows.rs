//! Rows of another program's tables, and their insertion.

use sqlx::{QueryBuilder, Sqlite, SqliteConnection};

/// The largest number of values in one statement. More would not be faster.
const MAX_VALUES: usize = 1000;

/// A value of a column.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum SqlCell {
    Null,
    Int(i64),
    Real(f64),
    Text(String),
}

impl From<i64> for SqlCell {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}

impl From<f64> for SqlCell {
    fn from(value: f64) -> Self {
        Self::Real(value)
    }
}

impl From<&str> for SqlCell {
    fn from(value: &str) -> Self {
        Self::Text(value.to_owned())
    }
}

impl From<String> for SqlCell {
    fn from(value: String) -> Self {
        Self::Text(value)
    }
}

impl<T: Into<Self>> From<Option<T>> for SqlCell {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

/// Rows of one table. Absent columns keep their default.
#[derive(Clone, Debug)]
pub(crate) struct TableRows {
    table: &'static str,
    columns: &'static [&'static str],
    /// The values of all rows, row by row.
    cells: Vec<SqlCell>,
}

impl TableRows {
    #[must_use]
    pub(crate) fn new(table: &'static str, columns: &'static [&'static str]) -> Self {
        Self { table, columns, cells: Vec::new() }
    }

    /// Adds a row with a value for each column.
    pub(crate) fn push<const N: usize>(&mut self, row: [SqlCell; N]) {
        debug_assert_eq!(N, self.columns.len(), "the columns of {}", self.table);
        self.cells.extend(row);
    }

    /// Inserts all rows, many with each statement.
    pub(super) async fn insert(self, connection: &mut SqliteConnection) -> sqlx::Result<()> {
        let width = self.columns.len();
        let columns: Vec<_> = self.columns.iter().map(|column| format!("\"{column}\"")).collect();
        let begin = format!("INSERT INTO {} ({}) ", self.table, columns.join(", "));
        for cells in self.cells.chunks(MAX_VALUES / width * width) {
            let mut query = QueryBuilder::<Sqlite>::new(begin.as_str());
            query.push_values(cells.chunks(width), |mut row, cells| {
                for cell in cells {
                    match cell {
                        SqlCell::Null => row.push_bind(None::<i64>),
                        SqlCell::Int(value) => row.push_bind(*value),
                        SqlCell::Real(value) => row.push_bind(*value),
                        SqlCell::Text(value) => row.push_bind(value.clone()),
                    };
                }
            });
            query.build().execute(&mut *connection).await?;
        }
        Ok(())
    }
}
