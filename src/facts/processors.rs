//! The processors of this machine, and their division among several engines without a shared core.

use std::collections::BTreeSet;
use std::path::Path;
use std::str::FromStr;

/// Logical processors, written as the kernel writes them: `0-3,8`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Processors(BTreeSet<u32>);

/// A list that the kernel's syntax does not allow.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a list of processors such as \"0-3,8\"")]
pub struct ProcessorsError(String);

/// The largest number of processors of a machine (`CPU_SETSIZE` of the C library).
const MAX_PROCESSORS: u32 = 1024;

/// A core and its logical processors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Core {
    /// The NUMA node of the core; `None` if the kernel does not report it.
    pub node: Option<u32>,
    pub processors: Processors,
}

impl Processors {
    /// Returns the processors that this process may run on.
    #[must_use]
    pub fn allowed() -> Self {
        let status = procfs::process::Process::myself().and_then(|process| process.status()).ok();
        // Both ends of a range belong to it.
        let ranges = status.and_then(|status| status.cpus_allowed_list).unwrap_or_default();
        Self(ranges.into_iter().flat_map(|(first, last)| first..=last).collect())
    }

    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.0.iter().copied()
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the processors that are in both.
    #[must_use]
    pub fn common(&self, other: &Self) -> Self {
        Self(self.0.intersection(&other.0).copied().collect())
    }

    /// Returns the processors that are in any of them.
    #[must_use]
    pub fn union<'a>(all: impl IntoIterator<Item = &'a Self>) -> Self {
        Self(all.into_iter().flat_map(Self::iter).collect())
    }
}

impl FromStr for Processors {
    type Err = ProcessorsError;

    fn from_str(text: &str) -> Result<Self, ProcessorsError> {
        let refused = || ProcessorsError(text.to_owned());
        let mut found = BTreeSet::new();
        for part in text.trim().split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |digits: &str| digits.trim().parse::<u32>().ok().filter(|number| *number < MAX_PROCESSORS);
            let (first, last) = (number(first).ok_or_else(refused)?, number(last).ok_or_else(refused)?);
            if first > last {
                return Err(refused());
            }
            found.extend(first..=last);
        }
        Ok(Self(found))
    }
}

impl std::fmt::Display for Processors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for number in self.iter() {
            match runs.last_mut() {
                Some((_, last)) if *last + 1 == number => *last = number,
                _ => runs.push((number, number)),
            }
        }
        for (index, (first, last)) in runs.iter().enumerate() {
            f.write_str(if index == 0 { "" } else { "," })?;
            if first == last { write!(f, "{first}")? } else { write!(f, "{first}-{last}")? }
        }
        Ok(())
    }
}

impl Core {
    /// Returns the cores of this machine with the processors that this process may run on, sorted by node. If the
    /// kernel does not report which processors share a core, each processor counts as a core.
    #[must_use]
    pub fn all() -> Vec<Self> {
        Self::read(Path::new("/sys/devices/system/cpu"), &Processors::allowed())
    }

    fn read(directory: &Path, allowed: &Processors) -> Vec<Self> {
        let mut cores: Vec<Self> = Vec::new();
        for number in allowed.iter() {
            if cores.iter().any(|core| core.processors.0.contains(&number)) {
                continue;
            }
            let processor = directory.join(format!("cpu{number}"));
            let siblings = std::fs::read_to_string(processor.join("topology/thread_siblings_list")).ok();
            let siblings = siblings.and_then(|text| text.parse::<Processors>().ok()).unwrap_or_default();
            let mut processors = siblings.common(allowed);
            processors.0.insert(number);
            cores.push(Self { node: node(&processor), processors });
        }
        // The sort is stable: within a node the kernel's order is kept.
        cores.sort_by_key(|core| core.node);
        cores
    }
}

/// Returns the NUMA node of a processor. Its directory contains a link with the node's name, such as `node1`.
fn node(processor: &Path) -> Option<u32> {
    let names = std::fs::read_dir(processor).ok()?.flatten().map(|entry| entry.file_name());
    names.filter_map(|name| name.to_str()?.strip_prefix("node")?.parse().ok()).min()
}

/// Returns the processors of each slot: the same number of whole cores for each, without a shared core. `nodes` has the
/// NUMA node of each slot's device. The cores are on that node if all `nodes` are known and have enough cores. Cores
/// that do not divide evenly stay unused. `None` if there are fewer cores than slots.
#[must_use]
pub fn divide(cores: &[Core], nodes: &[Option<u32>]) -> Option<Vec<Processors>> {
    let known = || nodes.iter().copied().collect::<Option<Vec<_>>>();
    known().and_then(|nodes| divide_by_node(cores, &nodes)).or_else(|| {
        let each = cores.len().checked_div(nodes.len())?;
        take_equal_parts(cores.iter(), each, nodes.len())
    })
}

/// Divides the cores of each node among its slots; `None` if a node has fewer cores than slots.
fn divide_by_node(cores: &[Core], nodes: &[u32]) -> Option<Vec<Processors>> {
    let of = |node: u32| cores.iter().filter(move |core| core.node == Some(node));
    let slots_of = |node: u32| nodes.iter().filter(|other| **other == node).count();
    // Each slot gets the same number: measurements on slots of different sizes would not be comparable.
    let each = nodes.iter().map(|node| of(*node).count() / slots_of(*node)).min()?;
    let mut divided = vec![Processors::default(); nodes.len()];
    for node in nodes.iter().copied().collect::<BTreeSet<_>>() {
        let parts = take_equal_parts(of(node), each, slots_of(node))?;
        let slots = nodes.iter().enumerate().filter(|(_, other)| **other == node).map(|(slot, _)| slot);
        slots.zip(parts).for_each(|(slot, part)| divided[slot] = part);
    }
    Some(divided)
}

fn take_equal_parts<'a>(
    mut cores: impl Iterator<Item = &'a Core>,
    each: usize,
    parts: usize,
) -> Option<Vec<Processors>> {
    (each > 0).then(|| {
        let mut part = || Processors::union(cores.by_ref().take(each).map(|core| &core.processors));
        (0..parts).map(|_| part()).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn list(text: &str) -> Processors {
        text.parse().unwrap()
    }

    fn core(node: u32, processors: &str) -> Core {
        Core { node: Some(node), processors: list(processors) }
    }

    fn texts(divided: Option<Vec<Processors>>) -> Vec<String> {
        divided.unwrap_or_default().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn lists_are_read_and_written_as_the_kernel_does() {
        for (text, written) in [("0-3,8", "0-3,8"), ("8,0,1,2-3\n", "0-3,8"), ("5", "5"), ("1-1", "1")] {
            assert_eq!(list(text).to_string(), written);
        }
        for wrong in ["", "a", "3-1", "-1", "1-", "0,,1", "1024", "0 1"] {
            assert_eq!(wrong.parse::<Processors>(), Err(ProcessorsError(wrong.to_owned())));
        }
    }

    #[test]
    fn this_process_may_run_on_each_core_at_least_once() {
        let allowed = Processors::allowed();
        let cores = Core::all();
        assert_eq!(Processors::union(cores.iter().map(|core| &core.processors)), allowed);
        assert!(!allowed.is_empty() && cores.iter().all(|core| !core.processors.is_empty()));
    }

    #[test]
    fn the_threads_of_a_core_stay_together_and_nodes_too() {
        let directory = tempfile::tempdir().unwrap();
        for (number, siblings, node) in [(0, "0,4", 0), (1, "1,5", 1), (2, "2,6", 0), (3, "3,7", 1)] {
            for number in [number, number + 4] {
                let processor = directory.path().join(format!("cpu{number}"));
                std::fs::create_dir_all(processor.join("topology")).unwrap();
                std::fs::create_dir_all(processor.join(format!("node{node}"))).unwrap();
                std::fs::write(processor.join("topology/thread_siblings_list"), format!("{siblings}\n")).unwrap();
            }
        }
        let cores = Core::read(directory.path(), &list("0-7"));
        assert_eq!(cores, [core(0, "0,4"), core(0, "2,6"), core(1, "1,5"), core(1, "3,7")]);
        let cores = Core::read(directory.path(), &list("0,1,5"));
        assert_eq!(cores, [core(0, "0"), core(1, "1,5")], "what this process may not use is nobody's");
    }

    #[test]
    fn slots_get_cores_near_their_devices_and_each_as_many() {
        let cores = [core(0, "0,4"), core(0, "2,6"), core(0, "8"), core(1, "1,5"), core(1, "3,7")];
        assert_eq!(texts(divide(&cores, &[Some(1), Some(0)])), ["1,3,5,7", "0,2,4,6"]);
        assert_eq!(texts(divide(&cores, &[Some(0), Some(1), Some(0)])), ["0,4", "1,5", "2,6"]);
        // If a slot's node is unknown, or a node has too few cores, they are assigned in order.
        assert_eq!(texts(divide(&cores, &[None, Some(1)])), ["0,2,4,6", "1,5,8"]);
        assert_eq!(texts(divide(&cores, &[Some(1); 3])), ["0,4", "2,6", "8"]);
        assert_eq!(divide(&cores, &[None; 6]), None);
        assert_eq!(divide(&[], &[None]), None);
    }

    proptest! {
        #[test]
        fn no_processor_is_given_twice(nodes in prop::collection::vec(0..3_u32, 1..24), slots in prop::collection::vec(prop::option::of(0..3_u32), 1..9)) {
            let cores: Vec<_> = (0..).zip(&nodes).map(|(i, node)| core(*node, &format!("{},{}", 2 * i, 2 * i + 1))).collect();
            match divide(&cores, &slots) {
                None => prop_assert!(cores.len() < slots.len()),
                Some(divided) => {
                    prop_assert_eq!(divided.len(), slots.len());
                    prop_assert!(divided.iter().all(|part| part.len() == divided[0].len() && !part.is_empty()));
                    let all: usize = divided.iter().map(Processors::len).sum();
                    prop_assert_eq!(Processors::union(&divided).len(), all);
                }
            }
        }
    }
}
