//! The default number of threads on this machine.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Physical cores that this process may use: the default number of threads.
///
/// On Linux these are the cores in the affinity mask, counted once per core, at most as many as the control group's quota allows.
/// Efficiency cores of a hybrid processor do not count if the mask also holds faster cores.
pub fn physical_cores() -> usize {
    // The smaller of the affinity mask and the quota, on systems that have them.
    let allowed = std::thread::available_parallelism().map_or(1, |n| n.get());
    let cores = Topology::read(Path::new("/")).map_or(allowed, |topology| topology.fast_cores());
    cores.clamp(1, allowed)
}

/// The processors in the affinity mask, as Linux describes them.
struct Topology {
    /// For each processor: the first hardware thread of its core, and its speed.
    processors: Vec<(usize, u64)>,
}

impl Topology {
    /// Reads the files under `root`; `None` on systems without them.
    fn read(root: &Path) -> Option<Topology> {
        let status = std::fs::read_to_string(root.join("proc/self/status")).ok()?;
        let mask = (status.lines()).find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
        let folder = root.join("sys/devices/system/cpu");
        // Intel hybrid processors, whose two kinds of cores may report similar clocks.
        let performance = read_list(root.join("sys/devices/cpu_core/cpus"));
        let processors = parse_list(mask)?.into_iter().map(|cpu| {
            let own = folder.join(format!("cpu{cpu}"));
            let siblings = read_list(own.join("topology/thread_siblings_list"));
            let core = siblings.and_then(|list| list.first().copied());
            let speed = match &performance {
                Some(list) => Some(u64::from(list.contains(&cpu))),
                None => (read_number(own.join("cpu_capacity")))
                    .or_else(|| read_number(own.join("cpufreq/cpuinfo_max_freq"))),
            };
            (core.unwrap_or(cpu), speed.unwrap_or(1))
        });
        Some(Topology {
            processors: processors.collect(),
        })
    }

    /// Number of cores at least half as fast as the fastest. Hardware threads of one core count once: they share its vector units and its
    /// memory bandwidth.
    fn fast_cores(&self) -> usize {
        let speeds = self.processors.iter().map(|&(_, speed)| speed);
        let least = speeds.max().unwrap_or(0).div_ceil(2);
        let fast = self.processors.iter().filter(|&&(_, speed)| speed >= least);
        fast.map(|&(core, _)| core).collect::<BTreeSet<_>>().len()
    }
}

fn read_number(path: PathBuf) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn read_list(path: PathBuf) -> Option<BTreeSet<usize>> {
    parse_list(&std::fs::read_to_string(path).ok()?)
}

/// Parses a list of numbers such as "0-3,8".
fn parse_list(list: &str) -> Option<BTreeSet<usize>> {
    let mut numbers = BTreeSet::new();
    for part in list.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        // No kernel supports more processors.
        if last > 1 << 16 {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine whose processors have these siblings, and this file with this number.
    fn machine(mask: &str, processors: &[(&str, &str, u64)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let write = |path: String, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write(
            "proc/self/status".into(),
            &format!("Name:\tx\nCpus_allowed_list:\t{mask}\n"),
        );
        for (cpu, (siblings, file, number)) in processors.iter().enumerate() {
            let folder = format!("sys/devices/system/cpu/cpu{cpu}");
            write(format!("{folder}/topology/thread_siblings_list"), siblings);
            write(format!("{folder}/{file}"), &format!("{number}\n"));
        }
        root
    }

    fn cores(root: &tempfile::TempDir) -> usize {
        Topology::read(root.path())
            .expect("a topology")
            .fast_cores()
    }

    #[test]
    fn hardware_threads_of_a_core_count_once_and_only_inside_the_mask() {
        let processors = [
            ("0,2", "x", 1),
            ("1,3", "x", 1),
            ("0,2", "x", 1),
            ("1,3", "x", 1),
        ];
        assert_eq!(cores(&machine("0-3", &processors)), 2);
        assert_eq!(cores(&machine("0,2", &processors)), 1);
        assert_eq!(cores(&machine("0-1", &processors)), 2);
        assert_eq!(cores(&machine("3", &processors)), 1);
    }

    #[test]
    fn slow_cores_count_only_among_themselves() {
        let capacity = "cpu_capacity";
        let processors = [
            ("0", capacity, 400),
            ("1", capacity, 400),
            ("2", capacity, 900),
            ("3", capacity, 1024),
        ];
        assert_eq!(cores(&machine("0-3", &processors)), 2);
        assert_eq!(cores(&machine("0-1", &processors)), 2);
        let clocks = "cpufreq/cpuinfo_max_freq";
        let processors = [("0", clocks, 5_500_000), ("1", clocks, 4_300_000)];
        let root = machine("0-1", &processors);
        assert_eq!(cores(&root), 2);
        let kinds = root.path().join("sys/devices/cpu_core");
        std::fs::create_dir_all(&kinds).unwrap();
        std::fs::write(kinds.join("cpus"), "0\n").unwrap();
        assert_eq!(cores(&root), 1);
    }

    #[test]
    fn this_machine_has_a_core() {
        assert!(physical_cores() >= 1);
    }
}
