//! Signals from other threads to the load's thread: a stop flag, and a descriptor that wakes it.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::eventfd::{EfdFlags, EventFd};

/// Stop flag and wake-up of one load.
#[derive(Debug)]
pub(super) struct ThreadSignal {
    raised: AtomicBool,
    event: EventFd,
}

impl ThreadSignal {
    /// # Errors
    /// If the kernel has no descriptor left.
    pub(super) fn new() -> std::io::Result<Self> {
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        Ok(Self { raised: AtomicBool::new(false), event: EventFd::from_flags(flags)? })
    }

    /// Asks the load to stop.
    pub(super) fn raise(&self) {
        self.raised.store(true, Ordering::Release);
        self.wake();
    }

    /// Returns whether the load was asked to stop.
    pub(super) fn is_raised(&self) -> bool {
        self.raised.load(Ordering::Acquire)
    }

    /// Wakes the load's loop.
    pub(super) fn wake(&self) {
        // A write fails only if the counter is full, and a full counter wakes as well.
        let _ = self.event.write(1);
    }

    /// Consumes all wakes so far.
    pub(super) fn clear(&self) {
        let _ = self.event.read();
    }
}

impl AsFd for ThreadSignal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
