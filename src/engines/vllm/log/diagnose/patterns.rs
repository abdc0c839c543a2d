//! Error texts of vLLM, `PyTorch` and their libraries, with their meanings. Sources: the code of these programs, with
//! the vLLM releases of `flags/flags.json`.

use crate::trial::FailureKind;

/// The cause that a text of the log indicates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RootCause {
    /// The device ran out of memory. Other lines determine the stage of the engine.
    DeviceMemory,
    /// A start found less free memory on the device than its configured share.
    TooLittleFreeMemory,
    Kind(FailureKind),
    /// The engine ended by itself. The text does not indicate whether the configuration is the cause.
    EngineEnded,
}

impl RootCause {
    /// Returns whether this cause is possible for an engine that is ready. Under load, messages of argument checks
    /// concern requests.
    pub(super) fn is_possible_under_load(self) -> bool {
        match self {
            Self::DeviceMemory | Self::EngineEnded => true,
            Self::TooLittleFreeMemory => false,
            Self::Kind(kind) => {
                matches!(kind, FailureKind::HostMemory | FailureKind::Disk | FailureKind::Hang | FailureKind::Network)
            }
        }
    }
}

use FailureKind as K;
use RootCause::{DeviceMemory, EngineEnded, Kind, TooLittleFreeMemory};

/// Texts that name a cause wherever they occur. If a line contains several, the first in this list counts.
pub(super) const ROOT_CAUSES: &[(&str, RootCause)] = &[
    // Ray ends workers for lack of memory before the kernel would do so.
    ("ray.exceptions.OutOfMemoryError", Kind(K::HostMemory)),
    ("DefaultCPUAllocator: can't allocate memory", Kind(K::HostMemory)),
    ("Cannot allocate memory", Kind(K::HostMemory)),
    ("Unable to allocate", Kind(K::HostMemory)),
    ("std::bad_alloc", Kind(K::HostMemory)),
    ("is less than desired CPU memory utilization", Kind(K::HostMemory)),
    ("OutOfMemoryError", DeviceMemory),
    // Python's own `MemoryError`. `OutOfMemoryError`, which contains this text, must come first.
    ("MemoryError", Kind(K::HostMemory)),
    ("CUDA out of memory", DeviceMemory),
    ("HIP out of memory", DeviceMemory),
    ("XPU out of memory", DeviceMemory),
    ("CUDA error: out of memory", DeviceMemory),
    ("CUDA driver error: out of memory", DeviceMemory),
    ("CUDA_ERROR_OUT_OF_MEMORY", DeviceMemory),
    ("Triton Error [CUDA]: out of memory", DeviceMemory),
    ("HIP error: out of memory", DeviceMemory),
    ("hipErrorOutOfMemory", DeviceMemory),
    ("_RESULT_ERROR_OUT_OF_DEVICE_MEMORY", DeviceMemory),
    ("cudaErrorMemoryAllocation", DeviceMemory),
    ("CUBLAS_STATUS_ALLOC_FAILED", DeviceMemory),
    ("Failed to load model - not enough GPU memory", DeviceMemory),
    ("No available memory for the cache blocks", Kind(K::NoKvMemory)),
    ("To serve at least one request with the model", Kind(K::NoKvMemory)),
    ("is larger than the maximum number of tokens that can be stored in KV cache", Kind(K::NoKvMemory)),
    ("Cannot auto-fit max_model_len", Kind(K::NoKvMemory)),
    ("is less than requested memory for kv", Kind(K::NoKvMemory)),
    ("is less than desired GPU memory utilization", TooLittleFreeMemory),
    ("Error in memory profiling", Kind(K::DeviceBusy)),
    ("CUDA-capable device(s) is/are busy", Kind(K::DeviceBusy)),
    ("all CUDA-capable devices are busy", Kind(K::DeviceBusy)),
    ("cudaErrorDevicesUnavailable", Kind(K::DeviceBusy)),
    ("CUDA_ERROR_DEVICE_UNAVAILABLE", Kind(K::DeviceBusy)),
    ("Address already in use", Kind(K::PortInUse)),
    ("address already in use", Kind(K::PortInUse)),
    ("No space left on device", Kind(K::Disk)),
    ("Disk quota exceeded", Kind(K::Disk)),
    ("Read-only file system", Kind(K::Disk)),
    ("Too many open files", Kind(K::Disk)),
    ("HFValidationError", Kind(K::ModelUnavailable)),
    ("LocalEntryNotFoundError", Kind(K::ModelUnavailable)),
    ("RepositoryNotFoundError", Kind(K::ModelUnavailable)),
    ("RevisionNotFoundError", Kind(K::ModelUnavailable)),
    ("GatedRepoError", Kind(K::ModelUnavailable)),
    ("OfflineModeIsEnabled", Kind(K::ModelUnavailable)),
    ("You are trying to access a gated repo", Kind(K::ModelUnavailable)),
    ("is not a local folder and is not a valid model identifier", Kind(K::ModelUnavailable)),
    // The text of vLLM's `LoRAAdapterNotFoundError`.
    ("No adapter found for", Kind(K::ModelUnavailable)),
    ("Invalid repository ID or local directory specified", Kind(K::ModelUnavailable)),
    ("Can't load the configuration", Kind(K::ModelUnavailable)),
    ("We couldn't connect to 'https://huggingface.co'", Kind(K::ModelUnavailable)),
    ("Error while deserializing header", Kind(K::ModelUnavailable)),
    ("No common block size for", Kind(K::Unsupported)),
    ("Block size must be a multiple of", Kind(K::Unsupported)),
    ("No valid attention backend found", Kind(K::Unsupported)),
    ("is not valid for this configuration", Kind(K::Unsupported)),
    ("not supported for attention backend", Kind(K::Unsupported)),
    ("is only supported on GPUs with compute capability", Kind(K::Unsupported)),
    ("does not support float16", Kind(K::Unsupported)),
    ("is not supported for the current GPU", Kind(K::Unsupported)),
    ("Cannot find the config file for", Kind(K::Unsupported)),
    ("Failed to find a kernel", Kind(K::Unsupported)),
    ("no kernel image is available for execution", Kind(K::Unsupported)),
    ("out of resource: shared memory", Kind(K::Unsupported)),
    ("are not supported for now", Kind(K::Unsupported)),
    ("does not recognize this architecture", Kind(K::Unsupported)),
    // Both depend on the load format, so they are not about a missing model.
    ("Cannot find any model weights", Kind(K::Unsupported)),
    ("Could not find checkpoint files", Kind(K::Unsupported)),
    // `--disable-custom-all-reduce` avoids both.
    ("CUDA error: peer access", Kind(K::Unsupported)),
    ("custom_all_reduce.cuh", Kind(K::Unsupported)),
    ("error: unrecognized arguments", Kind(K::InvalidArgument)),
    ("error: argument ", Kind(K::InvalidArgument)),
    ("error: ambiguous option", Kind(K::InvalidArgument)),
    ("validation error for ", Kind(K::InvalidArgument)),
    ("validation errors for ", Kind(K::InvalidArgument)),
    ("must be divisible by tensor parallel size", Kind(K::InvalidArgument)),
    ("is greater than the derived max_model_len", Kind(K::InvalidArgument)),
    ("is smaller than max_model_len", Kind(K::InvalidArgument)),
    ("must be greater than or equal to max_num_seqs", Kind(K::InvalidArgument)),
    ("larger than the number of available GPUs", Kind(K::InvalidArgument)),
    ("exceeds the total number of available GPUs", Kind(K::InvalidArgument)),
    ("Not enough allowed NUMA nodes", Kind(K::InvalidArgument)),
    ("RPC call to ", Kind(K::Hang)),
    ("Engine iteration timed out", Kind(K::Hang)),
    ("AsyncEngineRPCError", Kind(K::Hang)),
    ("an illegal memory access was encountered", EngineEnded),
    ("device-side assert", EngineEnded),
    ("Memory access fault by GPU", EngineEnded),
    ("unspecified launch failure", EngineEnded),
    ("!!!!!!! Segfault", EngineEnded),
    ("Fatal Python error", EngineEnded),
    ("Segmentation fault", EngineEnded),
];

/// Texts that only report an earlier failure.
pub(super) const WRAPPERS: [&str; 15] = [
    // A group of exceptions; its members follow.
    "ExceptionGroup: ",
    "Engine core initialization failed",
    "EngineCore failed to start",
    "EngineCore encountered",
    "EngineCore hit an exception",
    "EngineDeadError",
    "Engine process failed to start",
    "Engine process (pid ",
    "Worker failed with error",
    "WorkerProc initialization failed",
    "WorkerProc failed to start",
    "Executor failed",
    "died unexpectedly",
    "exited unexpectedly",
    "is already dead",
];

/// Wrappers around a process that ended without a message. That indicates a signal, because an exception would be in
/// the log. If the text contains an exit code, the code decides. In 0.32, a process that is killed during the start
/// leaves empty braces.
pub(super) const SILENT: [&str; 8] = [
    "Failed core proc(s): {}",
    "WorkerProc initialization failed",
    "EngineDeadError",
    "Engine process failed to start",
    "Engine process (pid ",
    "died unexpectedly",
    "exited unexpectedly",
    "is already dead",
];

/// Exceptions of collectives, name lookups and downloads. The other members of a group raise them when one member has
/// died, so they count only if nothing else came first. Errors of NCCL itself are in `collective`.
pub(super) const NETWORK: [&str; 20] = [
    "DistBackendError",
    "DistNetworkError",
    "DistStoreError",
    "Watchdog caught collective operation timeout",
    "Timed out initializing process group",
    "Gloo connect",
    "gloo/transport",
    "ConnectionError",
    "ConnectionRefusedError",
    "ConnectionResetError",
    "ConnectTimeout",
    "ReadTimeout",
    "PoolTimeout",
    "Read timed out",
    "MaxRetryError",
    "SSLError",
    "HfHubHTTPError",
    "Temporary failure in name resolution",
    "Name or service not known",
    "Network is unreachable",
];

/// Waits during a start with a limit of the engine's own.
pub(super) const TIMEOUTS: [&str; 3] = [
    "Timed out waiting for engine",
    "Did not receive response from front-end process",
    "Timed out waiting for all engine",
];

/// Texts about unsupported features, by many authors.
pub(super) const UNSUPPORTED: [&str; 14] = [
    "not supported",
    "not support",
    "nsupported",
    "only supported",
    "only support",
    "not yet implemented",
    "NotImplementedError",
    "not implemented",
    "No module named",
    "Please install",
    "is required",
    "requires the ",
    "Unknown quantization method",
    "No tokenizer registered",
];
