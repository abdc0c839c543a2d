//! What is true here and no configuration can change: the model's shape, the engine's version, the device, the host.

mod device;
mod device_memory;
mod gpu;
mod host;
mod hub;
mod model;
mod oom;
mod processors;
mod version;

pub use device::{Device, Gpu};
pub use device_memory::{DeviceMemory, DeviceMemoryReader, Holder};
pub use gpu::{GpuError, GpuPlace, visible_devices};
pub use host::{Host, HostLimits};
pub use hub::hub_cache;
pub use model::{Experts, LatentAttention, Lengths, ModelError, ModelShape, Unchecked};
pub use oom::OomKills;
pub use processors::{Core, Processors, ProcessorsError, divide};
pub use version::{EngineVersion, VersionError};
