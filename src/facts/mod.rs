//! Facts that no configuration can change: the model's shape, the engine's version, the device, the host.

mod conditions;
mod context;
mod deadline;
mod device;
mod device_memory;
mod gpu;
mod gpu_conditions;
mod gpu_context;
mod gpu_list;
mod host;
mod hub;
mod host_use;
mod model;
mod nvml;
mod oom;
mod processors;
mod version;

pub use conditions::{ConditionKind, MeasurementCondition};
pub use context::{ContextChange, HostContext, TrialContext, TrialDevices};
pub use device::{Device, Gpu, GpuUnit};
pub use device_memory::{DeviceMemory, DeviceMemoryReader, MemoryHolder, read_memory as read_device};
pub use gpu::{GpuPlace, GpuReading, GpuReport};
pub use gpu_conditions::read as read_gpu_conditions;
pub use gpu_context::read as read_gpu_context;
pub use gpu_list::{GpuId, GpuSelection, listed_gpus, with_device};
pub use host::{Host, HostLimits};
pub use host_use::{HostSensor, HostUse, ProcessUse};
pub use hub::hub_cache;
pub use model::{ContextLengths, ExpertLayers, LatentAttention, ModelError, ModelShape, UncheckedFact, is_gguf};
pub use nvml::{GpuError, NVML_LIBRARY, NVML_TIMEOUT, call_nvml, call_nvml_async};
pub use oom::OomKills;
pub use processors::{Core, Processors, ProcessorsError, divide};
pub use version::{EngineVersion, VersionError, parse_reported_release};
