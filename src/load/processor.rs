//! Real-time priority and processor time of the load's thread.
//!
//! The thread sleeps until something arrives and then works for microseconds. If an engine shares its processors, a
//! fair scheduler may let it wait for tens of milliseconds. vLLM's processes call `sched_yield` in a loop while they
//! wait for each other (`SpinTimer` in `vllm/distributed/device_communicators/shm_broadcast.py`). On Linux 6.18 each
//! call moves the run queue's virtual time ahead of the threads that compute. A thread that wakes up is placed at that
//! time.

use std::io;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use nix::unistd::gettid;
use procfs::process::Process;
use thread_priority::ThreadPriority;
use thread_priority::unix::{
    RealtimeThreadSchedulePolicy, ThreadSchedulePolicy, set_thread_priority_and_policy, thread_native_id,
};

/// Processor use of the calling thread since its start.
#[derive(Clone, Copy, Debug)]
pub(super) struct ThreadUsage {
    /// Time that it ran.
    pub(super) cpu: Duration,
    /// Time that it was ready to run while another thread ran. `None` if the kernel does not count it.
    pub(super) waited: Option<Duration>,
}

/// Requests the lowest real-time priority, which is ahead of every thread without one. Returns `false` if it is not
/// permitted: it requires `CAP_SYS_NICE` or a limit of real-time priorities (`ulimit -r`) above zero. Threads that are
/// started later inherit it.
pub(crate) fn request_realtime_priority() -> bool {
    let policy = ThreadSchedulePolicy::Realtime(RealtimeThreadSchedulePolicy::RoundRobin);
    set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Min, policy).is_ok()
}

/// # Errors
/// If the kernel does not count processor time.
pub(super) fn usage() -> io::Result<ThreadUsage> {
    let waited = || Process::myself()?.task_from_tid(gettid().as_raw())?.schedstat();
    Ok(ThreadUsage {
        cpu: clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?.into(),
        waited: waited().ok().map(|schedstat| Duration::from_nanos(schedstat.run_delay)),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_thread_that_works_uses_processor_time() {
        let before = usage().unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        while usage().unwrap().cpu == before.cpu {
            assert!(Instant::now() < deadline, "no processor time was counted");
        }
        assert!(usage().unwrap().waited >= before.waited, "waiting is counted from the thread's begin");
    }
}
