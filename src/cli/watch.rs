//! `watch`: shows a study on the terminal while it runs, or afterwards.

use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tokio::sync::watch;

use super::failure::{CommandFailure, INVALID, UNEXPECTED, USAGE};
use super::{GlobalOptions, parse_duration, signal};
use crate::store::Store;
use crate::terminal_view::{FeedTarget, ViewEnd, ViewLink, ViewOutput, ViewPurpose, feed_view, has_terminal, run_view};

#[derive(Debug, Args)]
pub(super) struct WatchCommand {
    /// Name of the study. Without it, the newest study that runs is shown, or else the newest one. Key `s` shows another.
    #[arg(long, value_name = "NAME")]
    study: Option<String>,
    /// Time between two looks at the database and the logs.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "500ms")]
    interval: Duration,
}

/// The shortest time between two looks.
const MIN_INTERVAL: Duration = Duration::from_millis(50);

/// The longest wait for a terminal that does not take its restoration.
const LEAVE_LIMIT: Duration = Duration::from_secs(2);

impl WatchCommand {
    pub(super) async fn run(self, global: &GlobalOptions) -> Result<(), CommandFailure> {
        if !has_terminal(ViewOutput::Stdout) {
            return Err(CommandFailure::new(USAGE, "watch needs a terminal as standard input and output")
                .with_hint("`setpoint trials` and `setpoint best` print the same facts"));
        }
        let store = Store::open(&global.db, false).await?;
        let studies = store.studies().await?;
        let names = || studies.iter().map(|(study, _)| study.name.as_str()).collect::<Vec<_>>().join(", ");
        match &self.study {
            _ if studies.is_empty() => {
                return Err(CommandFailure::new(INVALID, "the database contains no study")
                    .with_hint("run one with `setpoint tune STUDY.toml`, or name another database with --db"));
            }
            Some(name) if studies.iter().all(|(study, _)| study.name != *name) => {
                return Err(CommandFailure::new(INVALID, format!("there is no study {name:?}"))
                    .with_hint(format!("the database contains: {}", names())));
            }
            _ => {}
        }
        let link = Arc::new(ViewLink::default());
        let mut stop: watch::Receiver<bool> = signal::watch_signals(false, |stop| *stop = true)?;
        let mut end = run_view(&link, ViewOutput::Stdout, ViewPurpose::Watch)?;
        let target = FeedTarget { store, study: self.study, interval: self.interval.max(MIN_INTERVAL) };
        tokio::spawn(feed_view(Arc::clone(&link), target));
        let ended = tokio::select! {
            ended = &mut end => ended,
            _ = stop.wait_for(|stop| *stop) => {
                link.end();
                tokio::time::timeout(LEAVE_LIMIT, &mut end).await.unwrap_or(Ok(ViewEnd::TerminalLost))
            }
        };
        link.end();
        match ended {
            Ok(ViewEnd::Left) => Ok(()),
            // There is no terminal that could show a message.
            Ok(ViewEnd::TerminalLost) | Err(_) => Err(CommandFailure::new(UNEXPECTED, "")),
        }
    }
}
