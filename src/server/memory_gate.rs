//! The gate between two launches. It opens when the memory of the devices is back at its level before the earlier
//! launch.
//!
//! A killed process releases its device memory some time after it has disappeared from `/proc`. An engine that starts
//! meanwhile finds less memory than expected, and fails for a reason that is unrelated to its configuration.

use std::fmt;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;

use super::ResourceHolder;
use crate::facts::{DeviceMemory, DeviceMemoryReader, GpuError, MemoryHolder};
use crate::stats::{f64_to_u64, to_f64};

const POLL: Duration = Duration::from_millis(100);

/// Returns the number of bytes above the baseline that still count as released: 1 % of the device, at least 256 MiB.
/// The driver keeps a part of a context's memory until it needs it. A desktop or a monitor on the device varies by
/// about as much.
fn tolerance(total: u64) -> u64 {
    (total / 100).max(256 << 20)
}

/// Reads the memory of the devices, without those that cannot be read.
type MemoryRead = Box<dyn Fn() -> BoxFuture<'static, Result<Vec<DeviceMemory>, GpuError>> + Send + Sync>;

/// The memory of the devices before a launch.
pub struct MemoryBaseline {
    read: MemoryRead,
    before: Vec<DeviceMemory>,
    poll: Duration,
}

impl fmt::Debug for MemoryBaseline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Baseline").field("before", &self.before).finish_non_exhaustive()
    }
}

/// Memory that was not released within the limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("after {waited:?}, {}", devices.iter().map(HeldMemory::to_string).collect::<Vec<_>>().join("; "))]
pub struct UnreleasedMemory {
    pub waited: Duration,
    /// At least one.
    pub devices: Vec<HeldMemory>,
}

/// A device whose memory is fuller than before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldMemory {
    /// Name and UUID of the device.
    pub device: String,
    /// Bytes that are used now.
    pub used: u64,
    /// Bytes that were used before the launch.
    pub before: u64,
    /// Processes that hold more memory there than before, with their bytes if the driver reports them.
    pub owners: Vec<(ResourceHolder, Option<u64>)>,
    /// Numbers of further holders that are not visible to this process: they are in another container, or have ended
    /// while the driver still counts them.
    pub unseen: Vec<u32>,
}

impl UnreleasedMemory {
    /// Returns whether there are visible holders and no launch of `setpoint` started any of them. Only waiting helps
    /// then.
    #[must_use]
    pub fn by_others(&self) -> bool {
        let mut owners = self.devices.iter().flat_map(|held| &held.owners).peekable();
        owners.peek().is_some() && owners.all(|(owner, _)| !owner.ours)
    }
}

impl fmt::Display for HeldMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, used, before, owners, unseen } = self;
        write!(f, "{device} has {} MiB in use, and had {} MiB before the launch; held by ", used >> 20, before >> 20)?;
        f.write_str(&listed(owners, unseen))
    }
}

impl MemoryBaseline {
    /// Reads the devices. Returns `None` if none of them can be read, because there is then no memory to wait for.
    ///
    /// # Errors
    /// If the driver does not answer.
    pub async fn take(reader: &DeviceMemoryReader) -> Result<Option<Self>, GpuError> {
        let reader = reader.clone();
        let read = move || -> BoxFuture<'static, _> {
            let reader = reader.clone();
            Box::pin(async move { reader.read().await })
        };
        Self::of(Box::new(read), POLL).await
    }

    /// Returns the baseline of an unused device.
    #[cfg(test)]
    pub(crate) fn nothing() -> Self {
        let device = DeviceMemory::default();
        let read = move || -> BoxFuture<'static, _> { Box::pin(std::future::ready(Ok(vec![device.clone()]))) };
        Self { read: Box::new(read), before: vec![DeviceMemory::default()], poll: POLL }
    }

    async fn of(read: MemoryRead, poll: Duration) -> Result<Option<Self>, GpuError> {
        let before = read().await?;
        Ok((!before.is_empty()).then_some(Self { read, before, poll }))
    }

    /// Waits until the used memory of each device has returned to its baseline, within a tolerance. A device that can
    /// no longer be read is not waited for, nor is any if the driver does not answer: the next launch reports the
    /// cause. Safe to cancel.
    ///
    /// # Errors
    /// If the memory is not back within `limit`.
    pub async fn wait_until_released(&self, limit: Duration) -> Result<(), UnreleasedMemory> {
        let begin = Instant::now();
        loop {
            let now = (self.read)().await.unwrap_or_default();
            let fuller = fuller_devices(&self.before, &now);
            if fuller.is_empty() {
                return Ok(());
            }
            let waited = begin.elapsed();
            if waited >= limit {
                let devices = fuller.iter().map(|(before, now)| held_memory(before, now, ResourceHolder::of)).collect();
                return Err(UnreleasedMemory { waited: limit, devices });
            }
            tokio::time::sleep(self.poll.min(limit.saturating_sub(waited))).await;
        }
    }
}

/// Returns the devices that exceed their baseline by more than the tolerance, as pairs of before and now.
fn fuller_devices<'a>(
    before: &'a [DeviceMemory],
    now: &'a [DeviceMemory],
) -> Vec<(&'a DeviceMemory, &'a DeviceMemory)> {
    let same = |device: &DeviceMemory| now.iter().find(|now| now.id == device.id);
    let pairs = before.iter().filter_map(|before| Some((before, same(before)?)));
    pairs.filter(|(before, now)| now.used > before.used.saturating_add(tolerance(now.total))).collect()
}

fn held_memory(before: &DeviceMemory, now: &DeviceMemory, owner: impl Fn(i32) -> Option<ResourceHolder>) -> HeldMemory {
    let is_more = |holder: &&MemoryHolder| {
        let earlier = before.holders.iter().find(|earlier| earlier.pid == holder.pid);
        // A process that had as much before is not the cause. Without numbers from the driver, only new processes are
        // listed.
        earlier.is_none_or(|earlier| holder.used.unwrap_or(0) > earlier.used.unwrap_or(u64::MAX))
    };
    let (owners, unseen) = owners(now.holders.iter().filter(is_more), owner);
    HeldMemory { device: named(now), used: now.used, before: before.used, owners, unseen }
}

/// Identifies the holders. The second list has the numbers of those that are not visible.
fn owners<'a>(
    holders: impl Iterator<Item = &'a MemoryHolder>,
    owner: impl Fn(i32) -> Option<ResourceHolder>,
) -> (Vec<(ResourceHolder, Option<u64>)>, Vec<u32>) {
    let (mut owners, mut unseen) = (Vec::new(), Vec::new());
    for holder in holders {
        match i32::try_from(holder.pid).ok().and_then(&owner) {
            Some(owner) => owners.push((owner, holder.used)),
            None => unseen.push(holder.pid),
        }
    }
    (owners, unseen)
}

fn named(device: &DeviceMemory) -> String {
    format!("{}, {}", device.id, device.name)
}

/// Lists the holders, for example `process 7 (python3) of user ada, not started by setpoint, 30720 MiB`.
fn listed(owners: &[(ResourceHolder, Option<u64>)], unseen: &[u32]) -> String {
    let mut names: Vec<String> = Vec::new();
    for (owner, bytes) in owners {
        let bytes = bytes.map(|bytes| format!(", {} MiB", bytes >> 20)).unwrap_or_default();
        names.push(format!("{owner}{bytes}"));
    }
    if !unseen.is_empty() {
        names.push(format!("processes that are not visible from here: {unseen:?}"));
    }
    if names.is_empty() { "no process that the driver lists".to_owned() } else { names.join(", ") }
}

/// A device on which a launch would not find the memory that it asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceShortage {
    /// Name and UUID of the device.
    device: String,
    /// Bytes that are free, and bytes that the launch takes.
    free: u64,
    needed: u64,
    owners: Vec<(ResourceHolder, Option<u64>)>,
    unseen: Vec<u32>,
}

impl fmt::Display for DeviceShortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, free, needed, owners, unseen } = self;
        let holders = listed(owners, unseen);
        write!(f, "{device} has {} MiB free, but the launch needs {} MiB; held by {holders}", free >> 20, needed >> 20)
    }
}

/// Returns whether other processes hold more memory of a device than the tolerance.
#[must_use]
pub fn is_held(device: &DeviceMemory) -> bool {
    device.free.saturating_add(tolerance(device.total)) < device.usable
}

/// Returns the holders of a device's memory as text.
#[must_use]
pub fn holders_text(device: &DeviceMemory) -> String {
    let (owners, unseen) = owners(device.holders.iter(), ResourceHolder::of);
    listed(&owners, &unseen)
}

/// Returns the devices whose free memory is less than `share` (0 to 1) of their usable memory. A device on which other
/// processes hold less than the tolerance is omitted: there the share alone is too large, and the rules check that.
#[must_use]
pub fn shortages(devices: &[DeviceMemory], share: f64) -> Vec<DeviceShortage> {
    let short = |device: &DeviceMemory| {
        let needed = f64_to_u64(to_f64(device.usable) * share);
        (is_held(device) && needed > device.free).then(|| {
            let (owners, unseen) = owners(device.holders.iter(), ResourceHolder::of);
            DeviceShortage { device: named(device), free: device.free, needed, owners, unseen }
        })
    };
    devices.iter().filter_map(short).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::GpuId;
    use crate::stats::GIB;
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use std::sync::Mutex;

    fn device(uuid: &str, used: u64, holders: &[(u32, Option<u64>)]) -> DeviceMemory {
        let holders = holders.iter().map(|(pid, used)| MemoryHolder { pid: *pid, used: *used }).collect();
        let id = GpuId { uuid: uuid.to_owned(), ..GpuId::default() };
        let (total, usable, free) = (80 * GIB, 80 * GIB, (80 * GIB).saturating_sub(used));
        DeviceMemory { id, name: "NVIDIA H100".to_owned(), total, usable, used, free, holders }
    }

    /// Returns the readings one after another, and repeats the last one.
    fn readings(all: Vec<Vec<DeviceMemory>>) -> MemoryRead {
        let left = Mutex::new(VecDeque::from(all));
        Box::new(move || {
            let mut left = left.lock().unwrap();
            let next = if left.len() > 1 { left.pop_front().unwrap() } else { left[0].clone() };
            Box::pin(std::future::ready(Ok(next)))
        })
    }

    #[tokio::test]
    async fn the_gate_opens_when_the_memory_is_back_on_every_device() {
        let at = |one, two| vec![device("GPU-1", one, &[]), device("GPU-2", two, &[])];
        let all = vec![at(GIB, 0), at(70 * GIB, 60 * GIB), at(GIB, 30 * GIB), at(GIB + (500 << 20), 100)];
        let baseline = MemoryBaseline::of(readings(all), Duration::from_millis(1)).await.unwrap().unwrap();
        assert_eq!(baseline.wait_until_released(Duration::from_secs(20)).await, Ok(()));
    }

    #[tokio::test]
    async fn memory_that_stays_in_use_is_reported_with_its_owner() {
        let me = std::process::id();
        let before = vec![device("GPU-1", 2 * GIB, &[(7, Some(GIB))])];
        // Number 0 belongs to no process.
        let after = vec![device("GPU-1", 32 * GIB, &[(7, Some(GIB)), (me, Some(30 * GIB)), (0, None)])];
        let baseline =
            MemoryBaseline::of(readings(vec![before, after]), Duration::from_millis(1)).await.unwrap().unwrap();
        let held = baseline.wait_until_released(Duration::from_millis(5)).await.unwrap_err();
        assert!(held.by_others());
        let text = held.to_string();
        let expected =
            "after 5ms, GPU 0, NVIDIA H100 has 32768 MiB in use, and had 2048 MiB before the launch; held by process";
        assert!(text.starts_with(&format!("{expected} {me} (")), "{text}");
        assert!(text.contains(", not started by setpoint, 30720 MiB, processes that are not visible from here: [0]"));
    }

    #[tokio::test]
    async fn a_device_that_cannot_be_read_is_not_waited_for() {
        let baseline =
            MemoryBaseline::of(readings(vec![vec![device("GPU-1", 0, &[])], vec![]]), POLL).await.unwrap().unwrap();
        assert_eq!(baseline.wait_until_released(Duration::ZERO).await, Ok(()));
        assert!(MemoryBaseline::of(readings(vec![vec![]]), POLL).await.unwrap().is_none(), "nothing to wait for");
    }

    #[test]
    fn processes_that_held_as_much_before_are_not_reported() {
        let owner =
            |pid| Some(ResourceHolder { pid, name: "python3".to_owned(), user: "ada".to_owned(), ours: pid == 9 });
        let before = device("GPU-1", GIB, &[(7, None), (8, Some(GIB))]);
        let now = device("GPU-1", 9 * GIB, &[(7, None), (8, Some(GIB)), (9, None)]);
        let held = held_memory(&before, &now, owner);
        assert_eq!(held.owners.iter().map(|(owner, _)| owner.pid).collect::<Vec<_>>(), [9]);
        let held = UnreleasedMemory { waited: POLL, devices: vec![held] };
        assert!(!held.by_others());
    }

    #[tokio::test]
    async fn a_driver_that_does_not_answer_is_not_waited_for() {
        let hangs = || GpuError::Unreadable("hangs".to_owned());
        let calls = std::sync::atomic::AtomicUsize::new(0);
        let read: MemoryRead = Box::new(move || {
            let is_first = calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0;
            let reading = if is_first { Ok(vec![device("GPU-1", 0, &[])]) } else { Err(hangs()) };
            Box::pin(std::future::ready(reading))
        });
        let baseline = MemoryBaseline::of(read, POLL).await.unwrap().unwrap();
        assert_eq!(baseline.wait_until_released(Duration::from_secs(20)).await, Ok(()));
        let never: MemoryRead = Box::new(move || Box::pin(std::future::ready(Err(hangs()))));
        assert_eq!(MemoryBaseline::of(never, POLL).await.unwrap_err(), hangs());
    }

    #[test]
    fn a_launch_without_enough_memory_reports_the_holders() {
        let me = std::process::id();
        let held = |gib: u64| device("GPU-1", gib * GIB, &[(me, Some(gib * GIB))]);
        assert_eq!(shortages(&[held(8), held(0)], 0.9), []);
        let short = shortages(&[held(0), held(9)], 0.9);
        let text = short[0].to_string();
        let expected =
            format!("GPU 0, NVIDIA H100 has 72704 MiB free, but the launch needs 73728 MiB; held by process {me} (");
        assert!(short.len() == 1 && text.starts_with(&expected) && text.ends_with("9216 MiB"), "{text}");
        assert_eq!(shortages(&[held(0)], 1.0), [], "a share that nobody could get is for the rules to reject");
    }

    proptest! {
        #[test]
        fn memory_within_the_tolerance_does_not_delay_a_launch(total in GIB..200 * GIB, before in 0..100 * GIB, now in 0..100 * GIB) {
            let at = |used| vec![DeviceMemory { total, used, ..device("GPU-1", 0, &[]) }];
            let shut = !fuller_devices(&at(before), &at(now)).is_empty();
            prop_assert_eq!(shut, now > before + tolerance(total));
            prop_assert!(tolerance(total) >= 256 << 20);
        }
    }
}
