//! The place of a launch: slots, devices, processors and ports.

use serde::Serialize;

/// The share of the host that a launch had, in a study with several trials at a time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Placement {
    /// Slot numbers, from 0.
    pub slots: Vec<u32>,
    /// The value of `CUDA_VISIBLE_DEVICES`; `None` if the slots have no devices of their own.
    pub devices: Option<String>,
    /// In the kernel's notation, `0-3,8`; `None` if the slots have no processors of their own.
    pub processors: Option<String>,
    /// First and last port. The first is the server's. The others are for communication between its processes.
    pub ports: (u16, u16),
    /// Whether no other trial ran at the same time.
    pub alone: bool,
}
