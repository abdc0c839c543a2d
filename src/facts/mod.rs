//! What is true here and no configuration can change: the model's shape, the engine's version, the host.

mod host;
mod model;
mod version;

pub use host::Host;
pub use model::{ModelError, ModelShape};
pub use version::{EngineVersion, VersionError};

/// The kind of device that the engine computes on. Defaults and limits differ between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// Memory of one device in bytes; 0 where it is unknown.
    Cuda {
        memory: u64,
    },
    Cpu,
}
