//! Turns SIGINT, SIGTERM and SIGHUP into updates of a watched value.

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::CommandFailure;

/// Returns a value that `on_signal` changes at every SIGINT, SIGTERM and SIGHUP. These signals then no longer end
/// the program.
pub(super) fn watch_signals<T: Send + Sync + 'static>(
    initial: T,
    on_signal: fn(&mut T),
) -> Result<watch::Receiver<T>, CommandFailure> {
    let (sender, receiver) = watch::channel(initial);
    for kind in [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()] {
        let mut signals = signal(kind).map_err(|error| {
            let number = kind.as_raw_value();
            CommandFailure::unexpected(format!("cannot install a handler for signal {number}: {error}"))
        })?;
        let sender = sender.clone();
        tokio::spawn(async move {
            while signals.recv().await.is_some() {
                sender.send_modify(on_signal);
            }
        });
    }
    Ok(receiver)
}
