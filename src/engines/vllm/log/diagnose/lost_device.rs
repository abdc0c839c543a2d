//! Messages about a device, driver, fabric manager, library or file system that is gone or unusable. No configuration
//! causes them.
//!
//! Sources for NVIDIA: `cudaGetErrorString` and `cuGetErrorName` of CUDA 13, `nvmlErrorString` and the classes of
//! `pynvml`, NVIDIA's catalogue of Xid errors. For AMD and Intel: `hipGetErrorString`, `ur_result_t`. For torch:
//! `c10/cuda/CUDAFunctions.cpp`, `torch/cuda/__init__.py`. For vLLM: `vllm/config/device.py`,
//! `vllm/platforms/__init__.py`. For the system: `strerror` and `ld.so` of glibc.

use std::sync::LazyLock;

use regex::{Regex, RegexSet};

use super::line::LogLine;

/// Texts in lower case that are sufficient evidence alone.
const SUFFICIENT_TEXTS: &[&str] = &[
    // CUDA. "all CUDA-capable devices are busy or unavailable" is left out: it means that another process holds the
    // devices.
    "no cuda-capable device is detected",
    "cuda driver version is insufficient",
    "cuda driver is a stub library",
    "system not yet initialized",
    "unsupported display driver / cuda driver combination",
    "forward compatibility was attempted on non supported hw",
    "mps client failed to connect",
    "mps server is not ready",
    "mps client has been terminated",
    "mps server rpc failure",
    "uncorrectable ecc error",
    "uncorrectable nvlink error",
    "valid grid license",
    "invalid access of peer gpu memory over nvlink or a hardware error",
    "exception in external device",
    "cudaerrorunknown",
    "cudaerrornodevice",
    "cudaerrorinsufficientdriver",
    "cudaerrorsystemnotready",
    "cudaerrorsystemdrivermismatch",
    "cudaerrorcompatnotsupportedondevice",
    "cudaerroreccuncorrectable",
    "cudaerrornvlinkuncorrectable",
    "cudaerrorinitializationerror",
    "cuda_error_unknown",
    "cuda_error_no_device",
    "cuda_error_not_initialized",
    "cuda_error_stub_library",
    "cuda_error_system_not_ready",
    "cuda_error_system_driver_mismatch",
    "cuda_error_compat_not_supported_on_device",
    "cuda_error_ecc_uncorrectable",
    "cuda_error_nvlink_uncorrectable",
    "cuda_error_mps_",
    // torch
    "no cuda gpus are available",
    "no hip gpus are available",
    "no xpu devices are available",
    "cuda driver initialization failed",
    "cuda unknown error",
    "found no nvidia driver",
    "nvidia driver on your system is too old",
    "torch not compiled with cuda enabled",
    "torch.cuda.is_available() is false",
    "cuda is not available",
    // Triton did not find a working driver.
    "0 active drivers",
    // vLLM
    "failed to infer device type",
    "device string must not be empty",
    "current node has no gpu available",
    // NVML and its tools
    "nvml shared library not found",
    "driver/library version mismatch",
    "gpu is lost",
    "driver not loaded",
    "failed to initialize nvml",
    "unable to determine the device handle",
    "nvidia-smi has failed",
    "couldn't communicate with the nvidia driver",
    "gpu requires reset",
    "no devices were found",
    "nvidia-container-cli: ",
    "could not select device driver",
    // The kernel
    "fallen off the bus",
    "rminitadapter failed",
    "rm_init_adapter failed",
    "nvrm: api mismatch",
    // AMD and Intel
    "no rocm-capable device is detected",
    "hiperrornodevice",
    "hw exception by gpu",
    "unable to open /dev/kfd",
    "rock module is not loaded",
    "amdsmi_status_driver_not_loaded",
    "gpu reset begin",
    "_result_error_device_lost",
    "_result_error_uninitialized",
    "sycl_devices is empty",
    // Libraries
    "cannot open shared object file",
    "error while loading shared libraries",
    "cannot connect to the docker daemon",
    // File systems
    "stale file handle",
    "stale nfs file handle",
    "input/output error",
    "remote i/o error",
    "structure needs cleaning",
    "cannot send after transport endpoint shutdown",
    "key has expired",
];

/// Texts that are ambiguous alone, with the surroundings that they need.
static CONTEXT_PATTERNS: LazyLock<RegexSet> = LazyLock::new(|| {
    let patterns = [
        // For instance `CUDA error: unknown error`, `Cuda failure 999 'unknown error'`, `Error 999: ...`,
        // `Triton Error [CUDA]: ...`.
        r"(?:(?:cuda|hip|nvml)\b[^:']{0,40}(?:error|failure)?[^:']{0,20}(?:: |')|\berror \d+: |error \[(?:cuda|hip)\]: )(?:unknown error|initialization error|device not ready|driver shutting down|os call failed|shared object initialization failed|integrity checks failed|the operation cannot be performed in the present state)",
        r"unexpected error from (?:cuda|hip)getdevicecount.*error (?:3|4|34|35|46|100|101|2|304|80[0-9]|999)\b",
        r"undefined symbol: _?(?:cu[a-z]|cuda|nvml|hip|hsa|__nv)",
        // With the path of a file. A socket with a closed peer has the same error without a path.
        r"transport endpoint is not connected: ?['\x22b/]",
        r"(?:host is down|connection timed out|no such device|no such device or address|required key not available): ?b?['\x22]/",
        r"os error (?:5|107|108|112|116|117|121)\)",
        r"\bnvlink\b.*\b(?:fatal|uncorrectable|down|failed)\b",
        r"fabric ?manager.*(?:not|fail|error)",
        r"sxid.*\bfatal\b",
    ];
    RegexSet::new(patterns).unwrap_or_else(|error| panic!("bug: {error}"))
});

/// Errors of NVML that depend on the call, and so on the configuration, but not on the device's health.
const CALLS: [&str; 5] = [
    "nvmlerror_notsupported",
    "nvmlerror_invalidargument",
    "nvmlerror_notfound",
    "nvmlerror_insufficientsize",
    "nvmlerror_argumentversionmismatch",
];

/// Xid errors of hardware, driver and links. The others, among them 13, 31, 43 and 45, are caused by programs.
const XIDS: &[u32] = &[
    46, 48, 54, 56, 57, 58, 62, 64, 74, 79, 94, 95, 110, 119, 120, 136, 140, 142, 143, 144, 145, 146, 147, 149, 150,
    154,
];

/// Returns whether a complaint is about a lost device, driver, library or file system. `under_load` is whether the
/// engine was ready.
pub(super) fn names_lost_device(told: &str, under_load: bool) -> bool {
    let told = told.to_lowercase();
    if told.contains("nvmlerror") {
        return !CALLS.iter().any(|call| told.contains(call));
    }
    SUFFICIENT_TEXTS.iter().any(|text| told.contains(text))
        || CONTEXT_PATTERNS.is_match(&told)
        || is_xid(&told)
        // Under load, a client that disconnects is no failure of the engine.
        || !under_load && told.contains("transport endpoint is not connected")
}

/// Returns whether it is a line such as `NVRM: Xid (PCI:0000:3b:00): 79, pid=..., GPU has fallen off the bus.`
fn is_xid(told: &str) -> bool {
    static XID: LazyLock<Regex> = LazyLock::new(|| {
        let pattern = r"\bxid\b(?: \([^)]*\))?[^0-9(]{0,12}(\d+)";
        Regex::new(pattern).unwrap_or_else(|error| panic!("bug: {error}"))
    });
    let number = XID.captures(told).and_then(|captures| captures[1].parse().ok());
    number.is_some_and(|number: u32| XIDS.contains(&number))
}

/// Returns whether it is `CUDA error: invalid device ordinal`: a worker's device does not exist. Either the device is
/// lost, or the configuration needs more devices than there are. Recent releases log the second case before they start
/// workers.
pub(super) fn is_invalid_ordinal(told: &str) -> bool {
    told.contains("invalid device ordinal") || told.contains("CUDA_ERROR_INVALID_DEVICE")
}

/// Returns whether the log shows that the configuration needs more devices than there are.
pub(super) fn shows_too_few_devices(lines: &[LogLine<'_>]) -> bool {
    let texts = [
        "larger than the number of available GPUs",
        "exceeds the total number of available GPUs",
        "exceeds the number of available",
        "is out of bounds",
        "exceeds available GPUs",
        "not enough GPUs",
    ];
    lines.iter().any(|line| texts.iter().any(|text| line.message().contains(text)))
}

/// Returns the warning of torch that CUDA cannot be used at all. Failures of any name may follow it. It counts only if
/// nothing else names the cause. `None` for an engine on a CPU.
pub(super) fn warning<'a>(lines: &[LogLine<'a>]) -> Option<&'a str> {
    let is_cpu = |line: &LogLine<'_>| line.message().contains("detected platform cpu");
    let warns = |text: &&str| text.contains("CUDA initialization: ") && names_lost_device(text, false);
    if lines.iter().any(is_cpu) {
        return None;
    }
    let text = lines.iter().map(LogLine::message).find(warns)?;
    text.find("CUDA initialization: ").map(|begin| &text[begin..])
}
