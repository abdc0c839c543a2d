//! Exports a whole study as the database of another program. Every format is one folder and one line in
//! [`DATABASE_EXPORTERS`].

mod content;
mod file;
mod mlflow;
mod names;
mod optuna;
mod rows;
#[cfg(test)]
mod tests;

pub(crate) use content::StudyContent;
pub(crate) use file::write_database;
pub(crate) use rows::{SqlCell, TableRows};

/// One format of `setpoint export` that is the database of another program.
pub(crate) trait DatabaseExporter: Sync {
    /// Returns the name after `--format`.
    fn name(&self) -> &'static str;

    /// Returns one line for `--help`.
    fn summary(&self) -> &'static str;

    /// Returns the number that marks files of this exporter, in SQLite's header field `application_id`. Only a file
    /// with this number is replaced.
    fn application_id(&self) -> u32;

    /// Returns the statements that create the empty tables.
    fn schema(&self) -> &'static str;

    /// Returns the rows of a study, parents before their children.
    fn rows(&self, study: &StudyContent<'_>) -> Vec<TableRows>;
}

/// Every format.
pub(crate) const DATABASE_EXPORTERS: [&dyn DatabaseExporter; 2] = [&optuna::OptunaExporter, &mlflow::MlflowExporter];

/// Returns the format with this name.
#[must_use]
pub(crate) fn find_database(name: &str) -> Option<&'static dyn DatabaseExporter> {
    DATABASE_EXPORTERS.into_iter().find(|exporter| exporter.name() == name)
}
