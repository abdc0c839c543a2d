//! The device that the engine computes on.

/// Defaults and limits of an engine differ between devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    Cpu,
    Cuda(Gpu),
}

/// GPUs of one kind, as far as they are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gpu {
    /// Bytes of one of them, as CUDA reports them.
    pub memory: Option<u64>,
    /// How many the engine can see.
    pub count: Option<u32>,
    /// Compute capability: major and minor number.
    pub capability: Option<(u8, u8)>,
    /// vLLM gives an A100 the defaults of smaller devices, by its name.
    pub a100: bool,
}

impl Gpu {
    /// GPUs that somebody describes, memory in bytes. vLLM knows an A100 by its name; without a name its capability
    /// stands for it, which only it and its kin have.
    #[must_use]
    pub fn described(memory: Option<u64>, count: Option<u32>, capability: Option<(u8, u8)>) -> Self {
        Self { memory, count, capability, a100: capability == Some((8, 0)) }
    }

    /// Reads a compute capability such as `9.0`.
    #[must_use]
    pub fn parse_capability(text: &str) -> Option<(u8, u8)> {
        let (major, minor) = text.split_once('.')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    }
}

impl Device {
    /// A GPU of which nothing is known.
    pub const UNKNOWN_GPU: Self = Self::Cuda(Gpu { memory: None, count: None, capability: None, a100: false });

    /// A GPU of this memory in bytes, of which nothing else is known.
    #[must_use]
    pub const fn gpu_of(memory: u64) -> Self {
        Self::Cuda(Gpu { memory: Some(memory), count: None, capability: None, a100: false })
    }

    #[must_use]
    pub const fn gpu(self) -> Option<Gpu> {
        match self {
            Self::Cpu => None,
            Self::Cuda(gpu) => Some(gpu),
        }
    }
}
