//! Causes of an end, with the texts and exit codes of vLLM and of the software below it.
//!
//! Sources: `vllm/v1/engine/{core,utils,async_llm}.py`, `vllm/v1/worker/{gpu_worker,gpu_model_runner}.py`,
//! `vllm/v1/core/kv_cache_utils.py`, `vllm/platforms/cuda.py`,
//! `vllm/distributed/device_communicators/pynccl_wrapper.py`. The other texts are from `torch`, `transformers`,
//! `huggingface_hub` and Python itself.

use super::FaultPhase;
use crate::engines::sim::process::log::ServedLog;
use crate::engines::sim::process::refusal::Refusal;
use crate::facts::EngineVersion;

/// The cause of an end according to the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultCause {
    InvalidArgument,
    InvalidValue,
    PortInUse,
    Unsupported,
    ModelMissing,
    ModelGated,
    OomWeights,
    OomProfile,
    OomKv,
    OomSampler,
    OomGraphs,
    OomLoad,
    NoKv,
    KvTooSmall,
    DeviceBusy,
    Nccl,
    Network,
    DiskFull,
    TooManyFiles,
    WorkerKilled,
    StepTimeout,
    IllegalAccess,
    /// The device no longer responds.
    DeviceLost,
    /// The driver has no device.
    NoDevice,
    /// The driver's library was replaced, but not its kernel module.
    DriverMismatch,
    /// A link between devices has failed.
    LinkLost,
    /// The file system of the model was remounted.
    StaleFile,
    ReadTimeout,
    /// NCCL found no device memory for its buffers.
    NcclOom,
    /// An exception that no pattern of the diagnosis knows.
    Exception,
    /// No message at all.
    Silent,
}

/// The process that reports the cause first.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReportingProcess {
    Parser,
    /// The process that serves HTTP. Its traceback ends in this file of vLLM.
    Front(&'static str),
    /// The engine's process, with these frames above the error.
    Core(&'static [(&'static str, &'static str)]),
    NoProcess,
}

const START: (&str, &str) = ("v1/engine/core.py", "_initialize_kv_caches");
const WARM_UP: (&str, &str) = ("v1/worker/gpu_worker.py", "compile_or_warm_up_model");

impl FaultCause {
    pub(super) const ALL: [Self; 31] = [
        Self::InvalidArgument,
        Self::InvalidValue,
        Self::PortInUse,
        Self::Unsupported,
        Self::ModelMissing,
        Self::ModelGated,
        Self::OomWeights,
        Self::OomProfile,
        Self::OomKv,
        Self::OomSampler,
        Self::OomGraphs,
        Self::OomLoad,
        Self::NoKv,
        Self::KvTooSmall,
        Self::DeviceBusy,
        Self::Nccl,
        Self::Network,
        Self::DiskFull,
        Self::TooManyFiles,
        Self::WorkerKilled,
        Self::StepTimeout,
        Self::IllegalAccess,
        Self::DeviceLost,
        Self::NoDevice,
        Self::DriverMismatch,
        Self::LinkLost,
        Self::StaleFile,
        Self::ReadTimeout,
        Self::NcclOom,
        Self::Exception,
        Self::Silent,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::InvalidArgument => "invalid-argument",
            Self::InvalidValue => "invalid-value",
            Self::PortInUse => "port-in-use",
            Self::Unsupported => "unsupported",
            Self::ModelMissing => "model-missing",
            Self::ModelGated => "model-gated",
            Self::OomWeights => "oom-weights",
            Self::OomProfile => "oom-profile",
            Self::OomKv => "oom-kv",
            Self::OomSampler => "oom-sampler",
            Self::OomGraphs => "oom-graphs",
            Self::OomLoad => "oom-load",
            Self::NoKv => "no-kv",
            Self::KvTooSmall => "kv-too-small",
            Self::DeviceBusy => "device-busy",
            Self::Nccl => "nccl",
            Self::Network => "network",
            Self::DiskFull => "disk-full",
            Self::TooManyFiles => "too-many-files",
            Self::WorkerKilled => "worker-killed",
            Self::StepTimeout => "step-timeout",
            Self::IllegalAccess => "illegal-access",
            Self::DeviceLost => "device-lost",
            Self::NoDevice => "no-device",
            Self::DriverMismatch => "driver-mismatch",
            Self::LinkLost => "link-lost",
            Self::StaleFile => "stale-file",
            Self::ReadTimeout => "read-timeout",
            Self::NcclOom => "nccl-oom",
            Self::Exception => "exception",
            Self::Silent => "silent",
        }
    }

    pub(super) fn find(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|cause| cause.name() == name)
    }

    fn reporting_process(self) -> ReportingProcess {
        match self {
            Self::InvalidArgument => ReportingProcess::Parser,
            Self::InvalidValue => ReportingProcess::Front("config/scheduler.py"),
            Self::PortInUse => ReportingProcess::Front("entrypoints/openai/api_server.py"),
            Self::ModelMissing | Self::ModelGated => ReportingProcess::Front("transformers_utils/config.py"),
            Self::Network | Self::ReadTimeout => ReportingProcess::Front("transformers_utils/repo_utils.py"),
            Self::NoDevice => ReportingProcess::Front("config/device.py"),
            Self::DriverMismatch => ReportingProcess::Front("platforms/cuda.py"),
            Self::TooManyFiles => ReportingProcess::Front("v1/engine/core_client.py"),
            Self::Unsupported | Self::DeviceBusy => {
                ReportingProcess::Core(&[("v1/worker/gpu_worker.py", "init_device")])
            }
            Self::DeviceLost | Self::LinkLost => {
                ReportingProcess::Core(&[("v1/worker/gpu_model_runner.py", "execute_model")])
            }
            Self::Nccl | Self::NcclOom => ReportingProcess::Core(&[
                ("v1/worker/gpu_worker.py", "init_device"),
                ("distributed/device_communicators/pynccl_wrapper.py", "NCCL_CHECK"),
            ]),
            Self::OomWeights | Self::StaleFile | Self::Exception => ReportingProcess::Core(&[
                ("v1/worker/gpu_worker.py", "load_model"),
                ("v1/worker/gpu_model_runner.py", "load_model"),
                ("model_executor/model_loader/base_loader.py", "load_model"),
            ]),
            Self::OomProfile => ReportingProcess::Core(&[
                START,
                ("v1/worker/gpu_worker.py", "determine_available_memory"),
                ("v1/worker/gpu_model_runner.py", "profile_run"),
            ]),
            Self::NoKv | Self::KvTooSmall => {
                ReportingProcess::Core(&[START, ("v1/core/kv_cache_utils.py", "check_enough_kv_cache_memory")])
            }
            Self::OomKv => ReportingProcess::Core(&[
                START,
                ("v1/worker/gpu_worker.py", "initialize_from_config"),
                ("v1/worker/gpu_model_runner.py", "_allocate_kv_cache_tensors"),
            ]),
            Self::OomSampler => {
                ReportingProcess::Core(&[START, WARM_UP, ("v1/worker/gpu_model_runner.py", "_dummy_sampler_run")])
            }
            Self::OomGraphs => {
                ReportingProcess::Core(&[START, WARM_UP, ("v1/worker/gpu_model_runner.py", "capture_model")])
            }
            Self::DiskFull => ReportingProcess::Core(&[
                ("v1/worker/gpu_model_runner.py", "_dummy_run"),
                ("compilation/compiler_interface.py", "compile"),
            ]),
            Self::OomLoad | Self::IllegalAccess => ReportingProcess::Core(&[
                ("v1/engine/core.py", "step"),
                ("v1/worker/gpu_model_runner.py", "execute_model"),
            ]),
            Self::WorkerKilled | Self::StepTimeout => ReportingProcess::Core(&[
                ("v1/engine/core.py", "step"),
                ("v1/executor/multiproc_executor.py", "collective_rpc"),
            ]),
            Self::Silent => ReportingProcess::NoProcess,
        }
    }

    /// Returns the root error.
    fn error(self, version: EngineVersion) -> String {
        match self {
            Self::InvalidArgument => "unrecognized arguments: --no-such-flag".to_owned(),
            Self::InvalidValue => "max_num_batched_tokens (100) must be greater than or equal to max_num_seqs (200)."
                .to_owned(),
            Self::PortInUse => "OSError: [Errno 98] Address already in use".to_owned(),
            Self::Unsupported => "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. \
                                  Your Tesla T4 GPU has compute capability 7.5. You can use float16 instead by explicitly \
                                  setting the `dtype` flag in CLI, for example: --dtype=half."
                .to_owned(),
            Self::ModelMissing => "OSError: org/no-such-model is not a local folder and is not a valid model identifier \
                                   listed on 'https://huggingface.co/models'"
                .to_owned(),
            Self::ModelGated => "OSError: You are trying to access a gated repo.\nMake sure to have access to it at \
                                 https://huggingface.co/org/gated-model.\n401 Client Error. (Request ID: Root=1-68)\n\nCannot \
                                 access gated repo for url https://huggingface.co/org/gated-model/resolve/main/config.json.\n\
                                 Access to model org/gated-model is restricted. You must have access to it and be \
                                 authenticated to access it. Please log in."
                .to_owned(),
            Self::OomWeights => out_of_memory(version, "1.16 GiB"),
            Self::OomProfile => out_of_memory(version, "9.27 GiB"),
            Self::OomKv => out_of_memory(version, "3.51 GiB"),
            Self::OomSampler => {
                let cause = out_of_memory(version, "594.00 MiB");
                format!(
                    "{cause}\n\nThe above exception was the direct cause of the following exception:\n\nTraceback (most \
                     recent call last):\n{}RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy \
                     requests. Please try lowering `max_num_seqs` or `gpu_memory_utilization` when initializing the engine.",
                    frame(WARM_UP)
                )
            }
            Self::OomGraphs => out_of_memory(version, "64.00 MiB"),
            Self::OomLoad => out_of_memory(version, "748.00 MiB"),
            Self::NoKv => "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` \
                           when initializing the engine."
                .to_owned(),
            Self::KvTooSmall => "ValueError: To serve at least one request with the model's max seq len (131072), (16.00 GiB \
                                 KV cache is needed, which is larger than the available KV cache memory (9.21 GiB). Based on \
                                 the available memory, the estimated maximum model length is 75424. Try increasing \
                                 `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine."
                .to_owned(),
            Self::DeviceBusy => "ValueError: Free memory on device cuda:0 (5.11/79.11 GiB) on startup is less than desired GPU \
                                 memory utilization (0.9, 71.2 GiB). Decrease GPU memory utilization or reduce GPU memory used \
                                 by other processes."
                .to_owned(),
            Self::Nccl => "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)".to_owned(),
            Self::Network => "socket.gaierror: [Errno -3] Temporary failure in name resolution".to_owned(),
            Self::DiskFull => "OSError: [Errno 28] No space left on device: '/home/ada/.cache/vllm/torch_compile_cache/0f3c/rank_0_0'"
                .to_owned(),
            Self::TooManyFiles => "OSError: [Errno 24] Too many open files".to_owned(),
            Self::WorkerKilled => "RuntimeError: Executor failed.".to_owned(),
            Self::StepTimeout => "TimeoutError: RPC call to execute_model timed out.".to_owned(),
            Self::DeviceLost => format!("{}: CUDA error: unknown error", accelerator_error(version)),
            Self::LinkLost => format!(
                "{}: CUDA error: uncorrectable NVLink error detected during the execution",
                accelerator_error(version)
            ),
            Self::NoDevice => "RuntimeError: Failed to infer device type, please set the environment variable \
                               `VLLM_LOGGING_LEVEL=DEBUG` to turn on verbose logging to help debug the issue."
                .to_owned(),
            Self::DriverMismatch => "vllm.third_party.pynvml.NVMLError_LibRmVersionMismatch: RM has detected an NVML/RM \
                                     version mismatch."
                .to_owned(),
            Self::StaleFile => "OSError: [Errno 116] Stale file handle: '/models/served/model-00001-of-00002.safetensors'"
                .to_owned(),
            Self::ReadTimeout => "httpx.ReadTimeout: The read operation timed out".to_owned(),
            Self::NcclOom => "torch.distributed.DistBackendError: NCCL error in: \
                              /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3690, unhandled cuda error (run with \
                              NCCL_DEBUG=INFO for details), NCCL version 2.27.5\nncclUnhandledCudaError: Call to CUDA \
                              function failed.\nLast error:\nCuda failure 2 'out of memory'"
                .to_owned(),
            Self::IllegalAccess => format!(
                "{}: CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be asynchronously \
                 reported at some other API call, so the stacktrace below might be incorrect.",
                accelerator_error(version)
            ),
            Self::Exception => "KeyError: 'layers.0.mlp.gate_up_proj.weight'".to_owned(),
            Self::Silent => String::new(),
        }
    }

    /// Writes vLLM's output before the end of the started process. Returns that process's last output and exit code.
    /// `at` is `None` under load.
    pub(super) fn report(self, at: Option<FaultPhase>, version: EngineVersion, log: &ServedLog) -> Refusal {
        let error = self.error(version);
        match self.reporting_process() {
            ReportingProcess::Parser => Refusal::usage(error),
            ReportingProcess::Front(_) if self == Self::InvalidValue => {
                Refusal::value(version, "SchedulerConfig", &error)
            }
            ReportingProcess::Front(file) => Refusal::traceback(file, &error),
            ReportingProcess::NoProcess => Refusal { exit_code: 1, text: String::new() },
            ReportingProcess::Core(_) if version.is_v0() => Refusal::traceback("worker/worker.py", &error),
            ReportingProcess::Core(frames) => {
                self.write_preceding_lines(version, log);
                let frames: String = frames.iter().copied().map(frame).collect();
                let traceback = format!("Traceback (most recent call last):\n{frames}{error}");
                match at {
                    Some(_) => report_failed_start(&traceback, log),
                    None => report_engine_death(&traceback, log),
                }
            }
        }
    }

    /// Writes the lines above the error, which come from other processes or from the phase itself.
    fn write_preceding_lines(self, version: EngineVersion, log: &ServedLog) {
        match self {
            Self::OomWeights => {
                // The message of the exception without its class.
                let error = self.error(version);
                let error = error.split_once(": ").map_or("", |(_, message)| message);
                let advice = "Failed to load model - not enough GPU memory. Try lowering --gpu-memory-utilization to free \
                              memory for weights, increasing --tensor-parallel-size, or using --quantization.";
                log.core_error("gpu_model_runner.py", &format!("{advice} (original error: {error})"));
            }
            Self::OomKv => log.core_info("gpu_worker.py", "Available KV cache memory: 62.40 GiB"),
            Self::NoKv => log.core_info("gpu_worker.py", "Available KV cache memory: -1.34 GiB"),
            Self::KvTooSmall => log.core_info("gpu_worker.py", "Available KV cache memory: 9.21 GiB"),
            Self::OomGraphs => {
                log.raw(
                    "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):   0%|          | 0/67 [00:00<?, ?it/s]\n",
                );
            }
            Self::WorkerKilled => log.core_error(
                "multiproc_executor.py",
                "Worker proc VllmWorker-0 died unexpectedly (exit code: -9), shutting down executor.",
            ),
            _ => {}
        }
    }
}

fn frame((file, function): (&str, &str)) -> String {
    format!("  File \"/usr/local/lib/python3.12/dist-packages/vllm/{file}\", line 1, in {function}\n")
}

/// Returns the class that `torch` raises for errors of the device.
fn accelerator_error(version: EngineVersion) -> &'static str {
    if version >= EngineVersion::new(0, 12, 0) { "torch.AcceleratorError" } else { "RuntimeError" }
}

fn out_of_memory(version: EngineVersion, wanted: &str) -> String {
    let class = if version.is_v0() { "torch.cuda.OutOfMemoryError" } else { "torch.OutOfMemoryError" };
    format!(
        "{class}: CUDA out of memory. Tried to allocate {wanted}. GPU 0 has a total capacity of 79.11 GiB of which 52.25 MiB \
         is free. Including non-PyTorch memory, this process has 79.05 GiB memory in use. Of the allocated memory 77.72 GiB \
         is allocated by PyTorch, and 112.48 MiB is reserved by PyTorch but unallocated."
    )
}

/// Writes the reports of `run_engine_core` and `wait_for_engine_startup`.
fn report_failed_start(traceback: &str, log: &ServedLog) -> Refusal {
    log.core_error("core.py", "EngineCore failed to start.");
    log.core_error("core.py", traceback);
    log.raw(&log.of_core(&format!("Process EngineCore:\n{traceback}")));
    let error = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): \
                 {'EngineCore': 1}";
    let Refusal { exit_code, text } = Refusal::traceback("v1/engine/utils.py", error);
    Refusal { exit_code, text: log.of_api(&text).trim_end().to_owned() }
}

/// Writes the reports of `run_busy_loop` and the output handler. The server then ends in order, with exit code 0.
fn report_engine_death(traceback: &str, log: &ServedLog) -> Refusal {
    log.core_error("core.py", "EngineCore encountered a fatal error.");
    log.core_error("core.py", traceback);
    report_dead_engine(log);
    Refusal { exit_code: 0, text: String::new() }
}

/// Writes the report of the process that serves HTTP about the end of the engine's process.
pub(super) fn report_dead_engine(log: &ServedLog) {
    let frames = frame(("v1/engine/async_llm.py", "output_handler"));
    log.api_error(
        "async_llm.py",
        &format!(
            "AsyncLLM output_handler failed.\nTraceback (most recent call last):\n{frames}\
             vllm.v1.engine.exceptions.EngineDeadError: {ENGINE_DEAD}"
        ),
    );
}

/// The error of requests to a dead engine.
pub(in crate::engines::sim) const ENGINE_DEAD: &str =
    "EngineCore encountered an issue. See stack trace (above) for the root cause.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cause_has_a_name_of_its_own() {
        for cause in FaultCause::ALL {
            assert_eq!(FaultCause::find(cause.name()), Some(cause));
        }
    }
}
