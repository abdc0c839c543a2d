//! The thread of the view: it draws, reads keys, and follows the size of the terminal and the state of the job.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, raise};

use super::draw::draw;
use super::key::take_keys;
use super::link::{ViewLink, ViewRequest};
use super::screen::{Screen, ViewOutput, read_input};
use super::state::{ViewCommand, ViewPurpose, ViewState};
use super::suspend::{follow_job_control, is_in_foreground, stop_job, stop_process};
use super::theme::ViewTheme;

/// The reason why a view has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ViewEnd {
    /// By a key, or by the program.
    Left,
    /// The terminal is gone, or a panic has taken it.
    TerminalLost,
}

/// The longest wait for a key in milliseconds, and that for the rest of a sequence.
const KEY_WAIT_MS: u16 = 100;
const SEQUENCE_WAIT_MS: u16 = 30;

/// The interval at which times on the screen go on.
const REDRAW_INTERVAL: Duration = Duration::from_millis(500);

/// Shows the view on a thread of its own, so that a slow terminal delays nothing else. The receiver gets the end of the
/// view.
///
/// # Errors
/// If the signals of job control cannot be followed, or no thread can be started.
pub(crate) fn run_view(
    link: &Arc<ViewLink>,
    output: ViewOutput,
    purpose: ViewPurpose,
) -> io::Result<tokio::sync::oneshot::Receiver<ViewEnd>> {
    follow_job_control(link)?;
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let link = Arc::clone(link);
    // Output of the tuner is held back from now on.
    link.set_shown(true);
    let run = move || {
        let shown = ShownView(&link);
        let end = ViewRun::new(&link, output, purpose).run_to_end();
        drop(shown);
        // The receiver may be gone: then nobody waits for the end.
        let _ = sender.send(end);
    };
    thread::Builder::new().name("view".to_owned()).spawn(run)?;
    Ok(receiver)
}

/// Records the end of the view when it is dropped, also after a panic.
struct ShownView<'l>(&'l ViewLink);

impl Drop for ShownView<'_> {
    fn drop(&mut self) {
        self.0.set_shown(false);
    }
}

struct ViewRun<'l> {
    link: &'l ViewLink,
    output: ViewOutput,
    state: ViewState,
    /// `None` while another job owns the terminal.
    screen: Option<Screen>,
    version: u64,
    study: Option<String>,
    bytes: Vec<u8>,
    drawn_at: Option<Instant>,
}

impl<'l> ViewRun<'l> {
    fn new(link: &'l ViewLink, output: ViewOutput, purpose: ViewPurpose) -> Self {
        Self {
            link,
            output,
            state: ViewState::new(ViewTheme::of_environment(), purpose),
            screen: None,
            version: 0,
            study: None,
            bytes: Vec::new(),
            drawn_at: None,
        }
    }

    fn run_to_end(mut self) -> ViewEnd {
        loop {
            match self.step() {
                Ok(None) => {}
                Ok(Some(end)) => return end,
                Err(_) => return ViewEnd::TerminalLost,
            }
        }
    }

    /// Draws once, and waits for keys.
    fn step(&mut self) -> io::Result<Option<ViewEnd>> {
        if self.link.is_ended() {
            return Ok(Some(ViewEnd::Left));
        }
        if self.link.take_suspend() {
            self.suspend();
        }
        if self.link.take_resumed() {
            // The shell has used the terminal meanwhile, and may have changed its mode.
            self.screen = None;
        }
        if self.screen.is_none() && !self.take_screen()? {
            thread::sleep(Duration::from_millis(u64::from(KEY_WAIT_MS)));
            return Ok(None);
        }
        if Screen::is_lost_to_panic() {
            return Ok(Some(ViewEnd::TerminalLost));
        }
        self.draw_if_due()?;
        let wait = if self.bytes.is_empty() { KEY_WAIT_MS } else { SEQUENCE_WAIT_MS };
        let before = self.bytes.len();
        read_input(wait, &mut self.bytes)?;
        let is_complete = self.bytes.len() == before;
        for key in take_keys(&mut self.bytes, is_complete) {
            self.drawn_at = None;
            let command = self.state.press(key);
            if let Some(end) = command.and_then(|command| self.follow(command)) {
                return Ok(Some(end));
            }
        }
        self.link.request(ViewRequest { study: self.study.clone(), selected: self.state.selected_number() });
        Ok(None)
    }

    fn follow(&mut self, command: ViewCommand) -> Option<ViewEnd> {
        match (command, self.state.purpose) {
            (ViewCommand::Leave, _) | (ViewCommand::Interrupt, ViewPurpose::Watch) => return Some(ViewEnd::Left),
            // It cannot fail: the signal is valid.
            (ViewCommand::Interrupt, ViewPurpose::Tune) => drop(raise(Signal::SIGINT)),
            (ViewCommand::Suspend, _) => {
                stop_job();
                self.suspend();
            }
            (ViewCommand::Redraw, _) => self.screen = None,
            (ViewCommand::ShowStudy(name), _) => self.study = Some(name),
        }
        None
    }

    /// Gives the terminal back and stops the process. The next step takes the terminal again.
    fn suspend(&mut self) {
        self.screen = None;
        stop_process();
        // The signal that stopped the job has reached this process as well.
        thread::sleep(Duration::from_millis(20));
        self.link.take_suspend();
    }

    /// Takes the terminal if this job owns it. Returns whether it did.
    fn take_screen(&mut self) -> io::Result<bool> {
        if !is_in_foreground() {
            return Ok(false);
        }
        self.state.size = self.output.size();
        self.screen = Some(Screen::take(self.output, self.state.size)?);
        self.drawn_at = None;
        Ok(true)
    }

    fn draw_if_due(&mut self) -> io::Result<()> {
        let Some(screen) = &mut self.screen else { return Ok(()) };
        if let Some((version, data)) = self.link.newer_than(self.version) {
            self.version = version;
            self.state.show(data);
            self.drawn_at = None;
        }
        let size = self.output.size();
        if size != self.state.size {
            screen.resize(size)?;
            self.state.size = size;
            self.drawn_at = None;
        }
        if self.drawn_at.is_none_or(|drawn| drawn.elapsed() >= REDRAW_INTERVAL) {
            self.state.live = self.link.live();
            let state = &self.state;
            screen.draw(|frame| draw(frame, state))?;
            self.drawn_at = Some(Instant::now());
        }
        Ok(())
    }
}
