//! The terminal that the view takes and gives back: raw mode, the alternate screen and the cursor.

use std::io::{self, BufWriter, IsTerminal, Stderr, Stdout, Write};
use std::os::fd::AsFd;
use std::sync::Once;
use std::sync::atomic::{AtomicU8, Ordering};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::layout::Rect;
use ratatui::{Frame, Terminal, TerminalOptions, Viewport};

/// The stream that the view is drawn on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ViewOutput {
    Stdout,
    /// Standard output is for results.
    Stderr,
}

/// The stream of the view that owns the terminal: 0 if none does. The panic hook reads it.
static OWNER: AtomicU8 = AtomicU8::new(0);

/// Columns and rows of a terminal that does not report them.
const USUAL_SIZE: (u16, u16) = (80, 24);

impl ViewOutput {
    fn term(self) -> console::Term {
        match self {
            Self::Stdout => console::Term::stdout(),
            Self::Stderr => console::Term::stderr(),
        }
    }

    fn code(self) -> u8 {
        match self {
            Self::Stdout => 1,
            Self::Stderr => 2,
        }
    }

    /// Returns the size of the terminal. It is asked on the stream itself: `crossterm` starts programs if `/dev/tty` is
    /// gone.
    pub(super) fn size(self) -> Rect {
        let (rows, columns) = self.term().size_checked().unwrap_or_default();
        let (columns, rows) = if columns == 0 || rows == 0 { USUAL_SIZE } else { (columns, rows) };
        Rect::new(0, 0, columns, rows)
    }
}

/// Returns whether keys can be read from standard input, and the view drawn on this stream.
pub(crate) fn has_terminal(output: ViewOutput) -> bool {
    let is_able = std::env::var("TERM").is_ok_and(|term| !term.is_empty() && term != "dumb");
    is_able && io::stdin().is_terminal() && output.term().is_term()
}

enum OutputStream {
    Stdout(Stdout),
    Stderr(Stderr),
}

impl Write for OutputStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Stdout(stream) => stream.write(bytes),
            Self::Stderr(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Stdout(stream) => stream.flush(),
            Self::Stderr(stream) => stream.flush(),
        }
    }
}

fn stream_of(output: ViewOutput) -> OutputStream {
    match output {
        ViewOutput::Stdout => OutputStream::Stdout(io::stdout()),
        ViewOutput::Stderr => OutputStream::Stderr(io::stderr()),
    }
}

/// A terminal in raw mode with the alternate screen. Dropping it gives the terminal back.
pub(super) struct Screen {
    terminal: Terminal<CrosstermBackend<BufWriter<OutputStream>>>,
}

impl Screen {
    /// Takes the terminal.
    ///
    /// # Errors
    /// If the terminal cannot be written, or its mode cannot be changed.
    pub(super) fn take(output: ViewOutput, size: Rect) -> io::Result<Self> {
        give_back_on_panic();
        let backend = CrosstermBackend::new(BufWriter::with_capacity(1 << 16, stream_of(output)));
        // A fixed viewport never asks the terminal for its size or for the position of its cursor.
        let terminal = Terminal::with_options(backend, TerminalOptions { viewport: Viewport::Fixed(size) })?;
        OWNER.store(output.code(), Ordering::SeqCst);
        // From here on, dropping the value gives the terminal back.
        let screen = Self { terminal };
        enable_raw_mode()?;
        execute!(stream_of(output), EnterAlternateScreen, Clear(ClearType::All), Hide)?;
        Ok(screen)
    }

    /// Returns whether a panic has given the terminal back already.
    pub(super) fn is_lost_to_panic() -> bool {
        OWNER.load(Ordering::SeqCst) == 0
    }

    pub(super) fn resize(&mut self, size: Rect) -> io::Result<()> {
        self.terminal.resize(size)
    }

    pub(super) fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        self.terminal.draw(draw)?;
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

/// Gives the terminal back if a view owns it. Each step is tried even if another one fails.
fn give_back() {
    let output = match OWNER.swap(0, Ordering::SeqCst) {
        1 => ViewOutput::Stdout,
        2 => ViewOutput::Stderr,
        _ => return,
    };
    // A terminal that is gone cannot be restored, so errors are ignored.
    let _ = execute!(stream_of(output), LeaveAlternateScreen, Show);
    let _ = disable_raw_mode();
}

/// Installs a hook, once, that gives the terminal back before the message of a panic is written.
fn give_back_on_panic() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            give_back();
            previous(panic);
        }));
    });
}

/// The largest number of bytes of one read.
const READ_BYTES: usize = 1024;

/// Waits for keys, at most `limit` milliseconds, and adds their bytes.
///
/// # Errors
/// If the terminal is gone.
pub(super) fn read_input(limit: u16, bytes: &mut Vec<u8>) -> io::Result<()> {
    let stdin = io::stdin();
    let mut polled = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
    match poll(&mut polled, PollTimeout::from(limit)) {
        Ok(0) | Err(Errno::EINTR) => return Ok(()),
        Ok(_) => {}
        Err(error) => return Err(error.into()),
    }
    let events = polled[0].revents().unwrap_or(PollFlags::POLLERR);
    if events.intersects(PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL) {
        return Err(io::ErrorKind::BrokenPipe.into());
    }
    let mut buffer = [0; READ_BYTES];
    match nix::unistd::read(stdin.as_fd(), &mut buffer) {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(count) => {
            bytes.extend_from_slice(&buffer[..count]);
            Ok(())
        }
        Err(Errno::EINTR | Errno::EAGAIN) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
