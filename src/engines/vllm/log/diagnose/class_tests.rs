//! Lost devices, exceptions of any name, errors of the collectives, missing models and too little free memory.

use super::*;
use FailureKind as K;

fn starting(log: &str) -> EngineEvidence<'_> {
    EngineEvidence {
        log,
        exit: Some(ProcessExit::Code(1)),
        under_load: false,
        oom_kills: 0,
        ended_by_tuner: false,
        own_models: &[],
    }
}

fn failed(log: &str) -> (K, String) {
    let failure = diagnose(&starting(log));
    (failure.kind, failure.message)
}

fn traceback(error: &str) -> String {
    format!(
        "Traceback (most recent call last):\n  File \"/vllm/v1/worker/gpu_worker.py\", line 1, in init_device\n    go()\n{error}"
    )
}

/// Exceptions with the texts of their sources.
const LOST: &[&str] = &[
    "RuntimeError: Failed to infer device type, please set the environment variable `VLLM_LOGGING_LEVEL=DEBUG` to turn on verbose logging to help debug the issue.",
    "RuntimeError: Device string must not be empty",
    "RuntimeError: No CUDA GPUs are available",
    "RuntimeError: No HIP GPUs are available",
    "RuntimeError: CUDA error: no CUDA-capable device is detected",
    "RuntimeError: HIP error: no ROCm-capable device is detected",
    "RuntimeError: CUDA driver initialization failed, you might not have a CUDA gpu.",
    "torch.AcceleratorError: CUDA error: unknown error",
    "RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment, e.g. changing env variable CUDA_VISIBLE_DEVICES after program start. Setting the available devices to be zero.",
    "RuntimeError: CUDA driver error: unknown error",
    "RuntimeError: Triton Error [CUDA]: unknown error",
    "torch.AcceleratorError: CUDA error: device not ready",
    "RuntimeError: CUDA error: initialization error",
    "RuntimeError: CUDA error: driver shutting down",
    "RuntimeError: CUDA error: system not yet initialized",
    "RuntimeError: CUDA error: uncorrectable ECC error encountered",
    "RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution",
    "RuntimeError: CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error",
    "RuntimeError: CUDA error: invalid device ordinal",
    "RuntimeError: CUDA error: MPS client failed to connect to the MPS control daemon or the MPS server",
    "RuntimeError: CUDA driver version is insufficient for CUDA runtime version",
    "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() that might have already set an error? Error 802: system not yet initialized",
    "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() that might have already set an error? Error 804: forward compatibility was attempted on non supported HW",
    "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() that might have already set an error? Error 803: system has unsupported display driver / cuda driver combination",
    "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed a driver from http://www.nvidia.com/Download/index.aspx",
    "RuntimeError: The NVIDIA driver on your system is too old (found version 11040).",
    "pynvml.NVMLError_GpuIsLost: GPU is lost",
    "vllm.third_party.pynvml.NVMLError_LibraryNotFound: NVML Shared Library Not Found",
    "pynvml.NVMLError_LibRmVersionMismatch: RM has detected an NVML/RM version mismatch.",
    "vllm.third_party.pynvml.NVMLError_Unknown: Unknown Error",
    "pynvml.NVMLError_DriverNotLoaded: Driver Not Loaded",
    "NVMLError_Uninitialized: Uninitialized",
    "pynvml.NVMLError_ResetRequired: GPU requires reset",
    "RuntimeError: Failed to initialize NVML: Driver/library version mismatch",
    "RuntimeError: Unable to determine the device handle for GPU0000:3B:00.0: Unknown Error",
    "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory",
    "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory",
    "OSError: libnccl.so.2: cannot open shared object file: No such file or directory",
    "ImportError: /vllm/_C.abi3.so: undefined symbol: cuGetProcAddress_v2",
    "OSError: [Errno 116] Stale file handle: '/models/a/config.json'",
    "OSError: [Errno 5] Input/output error: '/models/a/model.safetensors'",
    "OSError: [Errno 107] Transport endpoint is not connected: '/mnt/models'",
    "OSError: [Errno 108] Cannot send after transport endpoint shutdown: '/lustre/a'",
    "TimeoutError: [Errno 110] Connection timed out: '/nfs/models/a/config.json'",
    "safetensors_rust.SafetensorError: Error while deserializing header: I/O error: Input/output error (os error 5)",
    "RuntimeError: 0 active drivers ([]). There should only be one.",
    "RuntimeError: Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False.",
    "RuntimeError: level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)",
];

#[test]
fn lost_devices_drivers_libraries_and_file_systems_are_the_environments() {
    for error in LOST {
        for log in [
            traceback(error),
            format!("(EngineCore_DP0 pid=7) ERROR 11-20 21:21:18 [core.py:1510] {error}"),
            format!("[rank0]: {error}"),
            format!("ERROR 11-20 21:21:18 engine.py:366] {error}"),
        ] {
            assert_eq!(failed(&log).0, K::DeviceLost, "{log}");
        }
        let served = format!("INFO:     Application startup complete.\n{}", traceback(error));
        let failure = diagnose(&EngineEvidence { under_load: true, ..starting(&served) });
        assert_eq!(failure.kind, K::DeviceLost, "under load: {error}");
        assert!(failure.message.contains(error.split(": ").last().unwrap()), "{failure:?}");
    }
}

#[test]
fn lines_of_the_kernel_and_of_cpp_name_a_lost_device() {
    let native = "[rank3]:[E1124 09:11:41.227531918 ProcessGroupNCCL.cpp:1896] [PG ID 0 PG GUID 0 Rank 3] Process group \
                  watchdog thread terminated with exception: CUDA error: uncorrectable ECC error encountered";
    let uncaught = "terminate called after throwing an instance of 'c10::DistBackendError'\n  what():  [PG ID 0 Rank 3] \
                    Process group watchdog thread terminated with exception: CUDA error: unknown error";
    for log in [
        "[1234.567890] NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        "Nov 24 09:11:41 host kernel: NVRM: Xid (PCI:0000:3b:00): 48, pid=7, DBE (double bit error).",
        "NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.",
        "kernel: NVRM: Xid (PCI:0000:3b:00): 119, pid=7, Timeout after 6s of waiting for RPC response from GPU0 GSP!",
        "NVRM: GPU 0000:3b:00.0: RmInitAdapter failed! (0x62:0xffff:2477)",
        native,
        "(RayWorkerVllm pid=5304) [E ProcessGroupNCCL.cpp:916] [Rank 7] NCCL watchdog thread terminated with exception: CUDA error: unknown error",
        uncaught,
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that it is installed.",
        "docker: Error response from daemon: failed to create task: nvidia-container-cli: initialization error: nvml error: driver not loaded: unknown.",
        "vllm: error while loading shared libraries: libpython3.12.so.1.0: cannot open shared object file: Stale file handle",
    ] {
        for under_load in [false, true] {
            let log = format!("INFO:     Application startup complete.\n{log}\nRuntimeError: odd");
            let failure = diagnose(&EngineEvidence { under_load, ..starting(&log) });
            if !under_load
                || !(log.contains("docker: ") || log.contains("NVIDIA-SMI") || log.contains("loading shared"))
            {
                assert_eq!(failure.kind, K::DeviceLost, "{log}: {failure:?}");
            }
        }
    }
    // Errors 13, 31, 43 and 45 are caused by programs.
    for number in [13, 31, 43, 45] {
        let log = format!("NVRM: Xid (PCI:0000:3b:00): {number}, pid=7, name=python\n{}", traceback("KeyError: 'a'"));
        assert_eq!(failed(&log).0, K::StartupExit, "{number}");
    }
}

#[test]
fn warnings_and_prompts_about_lost_devices_are_no_cause() {
    let own = traceback("ValueError: No available memory for the cache blocks. Try increasing");
    for line in [
        "WARNING 11-20 [interface.py:1] Failed to import from vllm._C with ImportError('libcuda.so.1: cannot open shared object file')",
        "INFO 11-20 [a.py:1] CUDA error: unknown error",
        "/torch/cuda/__init__.py:174: UserWarning: CUDA initialization: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized (Triggered internally at CUDAFunctions.cpp:109.)",
        "[rank0]:[W1124 09:11:41.1 CUDAFunctions.cpp:1] CUDA error: unknown error",
        "Is my GPU lost? NVML says: GPU is lost",
    ] {
        assert_eq!(failed(&format!("{line}\n{own}")).0, K::NoKvMemory, "{line}");
    }
    // The warning decides only without other evidence, and not on processors.
    let warning = "/torch/cuda/__init__.py:174: UserWarning: CUDA initialization: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() that might have already set an error? Error 802: system not yet initialized";
    let odd = traceback("AttributeError: 'UnspecifiedPlatform' object has no attribute 'get_device_name'");
    assert_eq!(failed(&format!("{warning}\n{odd}")).0, K::DeviceLost);
    let cpu = "INFO 11-20 [__init__.py:1] Automatically detected platform cpu.";
    assert_eq!(failed(&format!("{cpu}\n{warning}\n{odd}")).0, K::StartupExit);
    let prompt = "INFO:     Application startup complete.\npynvml.NVMLError_GpuIsLost: GPU is lost. Help!\n\
                  ERROR 11-20 [core.py:9] RuntimeError: something else";
    assert_eq!(diagnose(&EngineEvidence { under_load: true, ..starting(prompt) }).kind, K::Crash);
    let call = traceback("vllm.third_party.pynvml.NVMLError_NotSupported: Not Supported");
    assert_eq!(failed(&call).0, K::StartupExit);
    let capture = traceback("RuntimeError: CUDA error: operation not permitted when stream is capturing");
    assert_eq!(failed(&capture).0, K::StartupExit);
}

#[test]
fn a_device_that_is_not_there_belongs_to_a_configuration_that_asks_for_too_many() {
    let error = traceback("RuntimeError: CUDA error: invalid device ordinal");
    assert_eq!(failed(&error).0, K::DeviceLost);
    let count = "WARNING 11-20 [a.py:1] World size (4) is larger than the number of available GPUs (2) in this node.";
    assert_eq!(failed(&format!("{count}\n{error}")).0, K::InvalidArgument);
}

#[test]
fn an_exception_of_any_name_is_recognised_below_its_traceback() {
    for (error, expected) in [
        ("httpx.ReadTimeout: The read operation timed out", K::Network),
        (
            "requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='huggingface.co', port=443): Read timed out.",
            K::Network,
        ),
        ("httpx.ReadTimeout", K::Network),
        ("zmq.error.Again: Resource temporarily unavailable", K::StartupExit),
        ("StopIteration", K::StartupExit),
        ("SystemExit: 1", K::StartupExit),
        (
            "huggingface_hub.utils.GatedRepo: 401 Client Error. You are trying to access a gated repo",
            K::ModelUnavailable,
        ),
        ("__main__.load.<locals>.Käse: odd", K::StartupExit),
        ("KernelNotFound: Failed to find a kernel", K::Unsupported),
    ] {
        let plain = traceback(error);
        let with =
            |prefix: &str| plain.lines().map(|line| format!("{prefix}{line}")).collect::<Vec<_>>().join("\n") + "\n";
        let stamped: Vec<_> = plain.lines().enumerate().map(|(at, line)| format!("[09:11:4{at}] {line}")).collect();
        let group = format!(
            "  + Exception Group Traceback (most recent call last):\n  |   File \"a.py\", line 1, in <module>\n  | ExceptionGroup: \
             unhandled errors in a TaskGroup (1 sub-exception)\n  +-+---------------- 1 ----------------\n{}    \
             +------------------------------------",
            with("    | ")
        );
        for log in [
            plain.clone(),
            with("(EngineCore_DP0 pid=7) "),
            with("(EngineCore_DP0 pid=7) ERROR 11-20 21:21:18 [core.py:1510] "),
            with("\u{1b}[1;36m(Worker_TP0 pid=9)\u{1b}[0;0m ERROR 11-20 21:21:18 [core.py:1510] "),
            with("[rank0]: "),
            with("[default0]:[rank0]: "),
            with("0: "),
            with("vllm-1  | "),
            with("2026-11-24T09:11:41.123456789Z stderr F "),
            with("some prefix > "),
            stamped.join("\n"),
            group,
            format!(
                "ERROR 11-20 21:21:18 [a.py:1] Exception in worker while processing method x: y, {}",
                with("ERROR 11-20 21:21:18 [a.py:1] ").split_once("] ").unwrap().1
            ),
        ] {
            let (kind, message) = failed(&log);
            let text = error.split(": ").last().unwrap();
            assert!(kind == expected && message.contains(text), "{kind}: {message:?} of\n{log}");
        }
    }
}

#[test]
fn the_first_exception_of_a_chain_counts_and_interleaved_writers_are_separated() {
    let chain = format!(
        "{}\n\nDuring handling of the above exception, another exception occurred:\n\n{}",
        traceback("zmq.error.Again: Resource temporarily unavailable"),
        traceback("KeyError: 'late'")
    );
    assert_eq!(failed(&chain).1, "exit code 1; zmq.error.Again: Resource temporarily unavailable");
    let mixed = "(Worker_TP0 pid=1) Traceback (most recent call last):\n\
                 (Worker_TP1 pid=2) loading\n\
                 (Worker_TP0 pid=1)   File \"a.py\", line 1, in f\n\
                 (Worker_TP1 pid=2) done\n\
                 INFO 11-20 [a.py:1] up\n\
                 (Worker_TP0 pid=1) queue.Full";
    assert_eq!(failed(mixed).1, "exit code 1; queue.Full");
    // A name without a traceback above it is an ordinary word.
    assert_eq!(failed("loading\nqueue.Full\nready").0, K::StartupExit);
    assert!(!failed("loading\nqueue.Full\nready").1.contains("queue.Full"));
}

#[test]
fn an_error_of_the_collectives_is_its_last_error() {
    let torch = |class: &str, last: &str| {
        traceback(&format!(
            "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3356, \
             {class} (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.3\nnccl{class}: Call failed.\nLast error:\n{last}"
        ))
    };
    let cuda = "unhandled cuda error";
    for (log, expected) in [
        (torch(cuda, "Cuda failure 2 'out of memory'"), K::OutOfMemory),
        (torch(cuda, "Cuda failure 'out of memory'"), K::OutOfMemory),
        (torch(cuda, "Failed to CUDA calloc async 608 bytes"), K::OutOfMemory),
        (torch(cuda, "Cuda failure 1 'invalid argument'"), K::Unsupported),
        (torch(cuda, "Cuda failure 217 'peer access is not supported between these two devices'"), K::Unsupported),
        (torch(cuda, "Cuda failure 801 'operation not supported'"), K::Unsupported),
        (
            torch("invalid usage", "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 3b000"),
            K::Unsupported,
        ),
        (torch(cuda, "Cuda failure 999 'unknown error'"), K::DeviceLost),
        (torch(cuda, "Cuda failure 802 'system not yet initialized'"), K::DeviceLost),
        (torch(cuda, "Cuda failure 220 'uncorrectable NVLink error detected during the execution'"), K::DeviceLost),
        (torch(cuda, "Cuda failure 101 'invalid device ordinal'"), K::DeviceLost),
        (
            torch(
                "unhandled system error",
                "Error while creating shared memory segment /dev/shm/nccl-dHBgLK (size 9637888)",
            ),
            K::Disk,
        ),
        (
            torch(
                "unhandled system error",
                "socketStartConnect: Connect to 10.0.0.1<43210> failed : Connection refused",
            ),
            K::Network,
        ),
        (
            torch(
                "remote process exited or there was a network error",
                "socketProgress: Connection closed by remote peer",
            ),
            K::Network,
        ),
        (torch("unhandled system error", "Call to ibv_create_qp failed"), K::Network),
        (torch(cuda, "Cuda failure 700 'odd'"), K::StartupExit),
        (
            traceback("RuntimeError: NCCL error: invalid argument (run with NCCL_DEBUG=WARN for details)"),
            K::Unsupported,
        ),
        (
            traceback("RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)"),
            K::StartupExit,
        ),
        (
            format!(
                "host:213:213 [1] transport/nvls.cc:254 NCCL WARN Cuda failure 2 'out of memory'\n{}",
                traceback("RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)")
            ),
            K::OutOfMemory,
        ),
    ] {
        assert_eq!(failed(&log).0, expected, "{log}: {}", failed(&log).1);
    }
    let (_, message) = failed(&torch(cuda, "Cuda failure 2 'out of memory'"));
    assert!(message.ends_with("last error: Cuda failure 2 'out of memory'"), "{message}");
    let log = format!("INFO:     Application startup complete.\n{}", torch(cuda, "Cuda failure 2 'out of memory'"));
    assert_eq!(diagnose(&EngineEvidence { under_load: true, ..starting(&log) }).kind, K::OutOfMemoryLoad);
}

#[test]
fn a_missing_model_that_the_configuration_names_is_the_configurations() {
    let own = ["org/draft".to_owned()];
    let with = |log: &str| diagnose(&EngineEvidence { own_models: &own, ..starting(log) });
    let offline = "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find an appropriate cached snapshot folder for the \
                   specified revision on the local disk and outgoing traffic has been disabled.";
    let in_draft = format!(
        "Traceback (most recent call last):\n  File \"/vllm/config/speculative.py\", line 1, in __post_init__\n    \
         self.draft_model_config = ModelConfig(\n{offline}"
    );
    for log in [
        traceback(
            "OSError: org/draft is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'",
        ),
        traceback("ValueError: Invalid repository ID or local directory specified: 'org/draft'."),
        in_draft.clone(),
        traceback("FileNotFoundError: [Errno 2] No such file or directory: 'org/draft/adapter_config.json'"),
        traceback("ValueError: Loading lora sql failed: No adapter found for org/draft"),
    ] {
        let failure = with(&log);
        assert!(failure.kind == K::InvalidArgument && failure.message.contains("\"org/draft\""), "{log}: {failure:?}");
        assert_ne!(diagnose(&starting(&log)).kind, K::InvalidArgument, "{log}");
    }
    let served = traceback("OSError: org/served is not a local folder and is not a valid model identifier");
    assert_eq!(with(&served).kind, K::ModelUnavailable);
    assert_eq!(with(&traceback(offline)).kind, K::ModelUnavailable);
}

#[test]
fn too_little_free_memory_is_the_configurations_if_the_defaults_would_have_fitted() {
    let told = |free: f64, total: f64, asked: f64| {
        failed(&traceback(&format!(
            "ValueError: Free memory on device cuda:0 ({free}/{total} GiB) on startup is less than desired GPU memory utilization \
             ({asked}, {:.2} GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.",
            asked * total
        )))
    };
    assert_eq!(told(72.8, 79.11, 0.95).0, K::InvalidArgument, "a desktop or a small neighbour");
    assert_eq!(told(70.0, 79.11, 0.9).0, K::DeviceBusy, "the defaults do not fit either");
    assert_eq!(told(9.2, 44.5, 0.99).0, K::DeviceBusy);
    let (_, message) = told(70.0, 79.11, 0.95);
    assert!(message.ends_with("(gpu-memory-utilization up to 0.88 fits the 70 GiB that are free)"), "{message}");
}

#[test]
fn a_message_has_no_control_characters_and_no_secrets() {
    let log =
        traceback("ConnectionError: http://ada:s3cr3t@proxy \u{1b}[31mred\u{9b}2J\u{202e} hf_aB3dE5gH7jK9mN1pQ3sT5v");
    let (_, message) = failed(&log);
    assert_eq!(message, "ConnectionError: http://ada:(redacted)@proxy red (redacted)");
}
