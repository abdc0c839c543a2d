//! Where a launch ran.

use serde::Serialize;

/// What a launch had of the host, in a study that runs several trials at a time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Placement {
    /// Counted from 0.
    pub slots: Vec<u32>,
    /// As `CUDA_VISIBLE_DEVICES` has them; `None` where slots have none of their own.
    pub devices: Option<String>,
    /// As the kernel writes them, `0-3,8`; `None` where slots have none of their own.
    pub processors: Option<String>,
    /// First and last. The first is the server's, the others are for what its processes tell each other.
    pub ports: (u16, u16),
    /// Whether no other trial ran meanwhile.
    pub alone: bool,
}
