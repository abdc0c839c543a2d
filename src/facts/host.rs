//! The host that the trials run on.

use procfs::Current;
use serde::{Deserialize, Serialize};
use sysinfo::{CpuRefreshKind, MemoryRefreshKind, RefreshKind, System};

use super::processors::Core;

/// A description of the host, stored with a study to keep results of different machines apart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    pub name: String,
    pub os: String,
    pub kernel: String,
    pub cpu: String,
    /// Logical processors.
    pub cpus: usize,
    /// Bytes.
    pub memory: u64,
}

impl Host {
    /// Reads the operating system's description of this machine. Missing texts are `unknown`.
    #[must_use]
    pub fn detect() -> Self {
        let what = RefreshKind::nothing()
            .with_cpu(CpuRefreshKind::nothing())
            .with_memory(MemoryRefreshKind::nothing().with_ram());
        let unknown = || "unknown".to_owned();
        let system = System::new_with_specifics(what).ok();
        let cpus = system.as_ref().map_or(&[][..], System::cpus);
        Self {
            name: System::host_name().unwrap_or_else(|_| unknown()),
            os: System::long_os_version().unwrap_or_else(|_| unknown()),
            kernel: System::kernel_version().unwrap_or_else(|_| unknown()),
            cpu: cpus.first().map_or_else(unknown, |cpu| cpu.brand().trim().to_owned()),
            cpus: cpus.len(),
            memory: system.as_ref().map_or(0, System::total_memory),
        }
    }
}

/// Properties of the host that limit an engine on it; `None` if unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostLimits {
    /// Bytes: those of the control group if they are fewer than the host's.
    pub memory: Option<u64>,
    /// The number of NUMA nodes that a process may use.
    pub numa_nodes: Option<u32>,
    /// Whether the processors multiply matrices in tiles (AMX), which decides between kernels.
    pub amx: Option<bool>,
    /// The number of physical cores that a process may use.
    pub cores: Option<u32>,
}

impl HostLimits {
    /// Reads the limits of this machine and this process.
    #[must_use]
    pub fn detect() -> Self {
        let memory =
            System::new_with_specifics(RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram()));
        let memory = memory.ok().map(|system| {
            system
                .cgroup_limits()
                .map_or(system.total_memory(), |limits| limits.total_memory.min(system.total_memory()))
        });
        let status = procfs::process::Process::myself().and_then(|process| process.status()).ok();
        // Both ends of a range belong to it.
        let nodes = status.and_then(|status| status.mems_allowed_list);
        let nodes = nodes.map(|ranges| ranges.iter().map(|(first, last)| last.saturating_sub(*first) + 1).sum());
        // Architectures whose `/proc/cpuinfo` has no `flags` have no AMX.
        let amx = procfs::CpuInfo::current().ok().map(|info| {
            let flags = info.flags(0);
            flags.is_some_and(|flags| flags.contains(&"amx_tile"))
        });
        let cores = u32::try_from(Core::all().len()).ok().filter(|cores| *cores > 0);
        Self { memory: memory.filter(|bytes| *bytes > 0), numa_nodes: nodes.filter(|nodes| *nodes > 0), amx, cores }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_processor_and_memory() {
        let host = Host::detect();
        assert!(host.cpus >= 1);
        assert!(host.memory > 64 << 20, "{host:?}");
        let limits = HostLimits::detect();
        assert!(limits.memory.is_some_and(|memory| memory <= host.memory), "{limits:?}");
        assert!(limits.numa_nodes.is_some_and(|nodes| nodes >= 1), "{limits:?}");
        assert!(limits.amx.is_some() && limits.cores.is_some(), "{limits:?}");
    }
}
