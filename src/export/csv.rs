//! Exports a trial as CSV: a header, and one row with its flags and metrics.

use super::{ExportError, ExportedTrial, Exporter};
use crate::report::trials_csv;
use crate::trial::for_terminal;

pub(super) struct CsvExporter;

impl Exporter for CsvExporter {
    fn name(&self) -> &'static str {
        "csv"
    }

    fn summary(&self) -> &'static str {
        "flags and metrics of this one trial as CSV: a header and one row, with the columns of `trials --format csv`"
    }

    fn needs_command(&self) -> bool {
        false
    }

    fn export(&self, winner: &ExportedTrial<'_>) -> Result<String, ExportError> {
        let text = trials_csv(std::slice::from_ref(winner.scored), |_| winner.is_earlier)?;
        Ok(for_terminal(&text).into_owned())
    }
}
