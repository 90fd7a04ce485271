//! The processors' own counters (RAPL). Linux only, and often readable by the administrator alone.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};

use super::Counter;

const COUNTERS: &str = "/sys/class/powercap";

/// The counters of all processor packages.
pub struct Packages {
    packages: Vec<Package>,
}

struct Package {
    counter: PathBuf,
    /// Microjoules after which the counter begins anew.
    range: u64,
    last: u64,
}

impl Packages {
    /// The counters from now on; none if they cannot be read.
    pub fn new() -> Option<Self> {
        Self::in_folder(Path::new(COUNTERS))
    }

    fn in_folder(folder: &Path) -> Option<Self> {
        let entries = std::fs::read_dir(folder).ok()?;
        let package = |entry: std::io::Result<std::fs::DirEntry>| {
            let folder = entry.ok()?.path();
            let name = read_to_string(folder.join("name")).ok()?;
            let counter = folder.join("energy_uj");
            name.starts_with("package").then_some(Package {
                last: number(&counter)?,
                range: number(&folder.join("max_energy_range_uj"))?,
                counter,
            })
        };
        let packages: Vec<Package> = entries.filter_map(package).collect();
        (!packages.is_empty()).then_some(Packages { packages })
    }
}

impl Counter for Packages {
    fn joules(&mut self) -> f64 {
        let joules = self.packages.iter_mut().map(|package| {
            let now = number(&package.counter).unwrap_or(package.last);
            let used = match now.checked_sub(package.last) {
                Some(used) => used,
                None => now + package.range.saturating_sub(package.last),
            };
            package.last = now;
            1e-6 * used as f64
        });
        joules.sum()
    }
}

fn number(path: &Path) -> Option<u64> {
    read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_added_up_and_counters_begin_anew() {
        let folder = tempfile::tempdir().unwrap();
        let write = |domain: &str, file: &str, text: &str| {
            let domain = folder.path().join(domain);
            std::fs::create_dir_all(&domain).unwrap();
            std::fs::write(domain.join(file), text).unwrap();
        };
        for (domain, name) in [("a", "package-0\n"), ("b", "core\n"), ("c", "package-1\n")] {
            write(domain, "name", name);
            write(domain, "energy_uj", "9000000\n");
            write(domain, "max_energy_range_uj", "10000000\n");
        }
        let mut energy = Packages::in_folder(folder.path()).unwrap();
        write("a", "energy_uj", "9500000");
        write("c", "energy_uj", "1000000");
        assert_eq!(energy.joules(), 2.5);
        assert_eq!(energy.joules(), 0.0);
        assert!(Packages::in_folder(&folder.path().join("b")).is_none());
    }
}
