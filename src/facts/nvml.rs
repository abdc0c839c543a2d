//! The driver's management library (NVML): loaded once, and called on its own thread because a driver may hang for
//! ever.

use std::ffi::OsString;
use std::sync::LazyLock;
use std::time::Duration;

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use super::deadline::{DeadlineError, DeadlineThread};

/// The variable that names the library's file, for drivers in unusual places.
pub const NVML_LIBRARY: &str = "SETPOINT_NVML";

/// The time limit of a reading. Without persistence mode the reading loads the driver, which takes some seconds for
/// each device.
pub const NVML_TIMEOUT: Duration = Duration::from_secs(10);

/// The reason for which the GPUs cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GpuError {
    #[error("the driver's management library cannot be loaded: {0}")]
    NoLibrary(String),
    #[error("the driver does not answer: {0}")]
    Unreadable(String),
    #[error("the driver hangs: {call} has taken {since:.1?} so far")]
    Hangs { call: &'static str, since: Duration },
    #[error("the driver reports no device")]
    NoDevice,
    #[error("the driver has no readable device: {0}")]
    Device(String),
    #[error("CUDA_VISIBLE_DEVICES={0:?} leaves none of the {1} devices visible")]
    NoneVisible(String, usize),
}

impl From<NvmlError> for GpuError {
    fn from(error: NvmlError) -> Self {
        match error {
            NvmlError::LibloadingError(_) | NvmlError::LibraryNotFound | NvmlError::DriverNotLoaded => {
                Self::NoLibrary(error.to_string())
            }
            other => Self::Unreadable(other.to_string()),
        }
    }
}

impl From<DeadlineError> for GpuError {
    fn from(unanswered: DeadlineError) -> Self {
        match unanswered {
            DeadlineError::Hangs { call, since } => Self::Hangs { call, since },
            DeadlineError::Gone => Self::Unreadable("the thread that calls it has ended".to_owned()),
        }
    }
}

static DRIVER: LazyLock<DeadlineThread<Option<Nvml>>> = LazyLock::new(|| DeadlineThread::new("nvml", || None));

/// Calls the driver, and waits for `limit` at most. `call` names the call in errors. While a call hangs, every other
/// call fails at once.
///
/// # Errors
/// If the library cannot be loaded, if the driver hangs, or if `work` fails.
pub fn call_nvml<T: Send + 'static>(
    limit: Duration,
    call: &'static str,
    work: impl FnOnce(&Nvml) -> Result<T, GpuError> + Send + 'static,
) -> Result<T, GpuError> {
    DRIVER.ask(limit, call, |library| with_library(library, work))?
}

/// Like [`call_nvml`], without blocking. Safe to cancel.
///
/// # Errors
/// The errors of [`call_nvml`].
pub async fn call_nvml_async<T: Send + 'static>(
    limit: Duration,
    call: &'static str,
    work: impl FnOnce(&Nvml) -> Result<T, GpuError> + Send + 'static,
) -> Result<T, GpuError> {
    DRIVER.ask_async(limit, call, |library| with_library(library, work)).await?
}

fn with_library<T>(library: &mut Option<Nvml>, work: impl FnOnce(&Nvml) -> Result<T, GpuError>) -> Result<T, GpuError> {
    let nvml = match library.take() {
        Some(nvml) => nvml,
        None => load()?,
    };
    let answer = work(&nvml);
    // After the driver was replaced or reset, only a new session works.
    if answer.is_ok() {
        *library = Some(nvml);
    }
    answer
}

fn load() -> Result<Nvml, GpuError> {
    let named: Option<OsString> = std::env::var_os(NVML_LIBRARY).filter(|path| !path.is_empty());
    let mut builder = Nvml::builder();
    match &named {
        Some(path) => builder.lib_path(path).init().map_err(|error| match error.into() {
            GpuError::NoLibrary(text) => GpuError::NoLibrary(format!("{text} (set by {NVML_LIBRARY})")),
            other => other,
        }),
        None => Ok(builder.init()?),
    }
}

/// Bytes of a device or an instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MemoryReading {
    /// The whole memory, the driver's reserve included.
    pub(super) total: u64,
    /// Memory as CUDA reports it: without the driver's reserve, if the driver reports that.
    pub(super) usable: u64,
    pub(super) used: u64,
    pub(super) free: u64,
}

/// Reads a device's memory. If a driver lacks the second version of the call (GB10 and Jetson among them), the first
/// version is used. It counts the driver's reserve as used.
///
/// # Errors
/// If the device supports neither, or cannot be read.
pub(super) fn memory(nvml: &Nvml, device: &Device<'_>) -> Result<MemoryReading, NvmlError> {
    let unsupported = |error: &NvmlError| {
        matches!(error, NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_) | NvmlError::FunctionNotFound)
    };
    match device.memory_info() {
        Ok(memory) => {
            let usable = memory.total.saturating_sub(memory.reserved);
            Ok(MemoryReading { total: memory.total, usable, used: memory.used, free: memory.free })
        }
        Err(error) if unsupported(&error) => first_memory_info(nvml, device).ok_or(error),
        Err(error) => Err(error),
    }
}

/// Reads memory by the first version of the call, which the wrapper lacks.
#[expect(unsafe_code, reason = "one call of the driver with a buffer of the type that its bindings state")]
fn first_memory_info(nvml: &Nvml, device: &Device<'_>) -> Option<MemoryReading> {
    let call = nvml.lib().nvmlDeviceGetMemoryInfo.as_ref().ok()?;
    let mut memory = std::mem::MaybeUninit::zeroed();
    // SAFETY: the handle belongs to this session, and zeroes are a valid value of three integers.
    let memory = unsafe {
        if call(device.handle(), memory.as_mut_ptr()) != 0 {
            return None;
        }
        memory.assume_init()
    };
    Some(MemoryReading { total: memory.total, usable: memory.total, used: memory.used, free: memory.free })
}

/// Returns the identifiers of an instance: GPU instance and compute instance.
#[expect(
    unsafe_code,
    reason = "two calls of the driver that the wrapper does not have, each with a buffer of one number"
)]
pub(super) fn instance_ids(nvml: &Nvml, device: &Device<'_>) -> Option<(u32, u32)> {
    let lib = nvml.lib();
    let (gpu, compute) =
        (lib.nvmlDeviceGetGpuInstanceId.as_ref().ok()?, lib.nvmlDeviceGetComputeInstanceId.as_ref().ok()?);
    let mut ids = (0, 0);
    // SAFETY: the handle belongs to this session.
    let is_known =
        unsafe { gpu(device.handle(), &raw mut ids.0) == 0 && compute(device.handle(), &raw mut ids.1) == 0 };
    is_known.then_some(ids)
}
