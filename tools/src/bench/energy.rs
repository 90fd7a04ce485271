//! The energy that a machine uses, where it has counters: for its processors (RAPL), the GPU that computes (NVML), or the whole
//! board of a Jetson (INA3221).

use std::fs::{File, read_to_string};
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::nvml::Gpu;

/// An energy counter.
trait Counter {
    /// Returns the joules used since the last call, or since the counter was created.
    fn joules(&mut self) -> f64;
}

/// The energy counters of all devices in use.
pub struct Energy {
    counters: Vec<Box<dyn Counter>>,
    sources: String,
}

impl Energy {
    /// Starts the counters for a run on the processor or on the GPU with this number; `None` if the machine has no
    /// counter. A Jetson's board counter includes both processor and GPU, so no other counter is added.
    pub fn new(gpu: Option<usize>) -> Option<Self> {
        let mut counters: Vec<Box<dyn Counter>> = Vec::new();
        let mut sources = Vec::new();
        if let Some((board, rails)) = Board::new() {
            counters.push(Box::new(board));
            sources.push(format!("board ({rails})"));
        } else {
            if let Some(packages) = Packages::new() {
                counters.push(Box::new(packages));
                sources.push("processor packages".into());
            }
            if let Some(gpu) = gpu.and_then(GpuCounter::new) {
                counters.push(Box::new(gpu));
                sources.push("GPU".into());
            }
        }
        (!counters.is_empty()).then(|| Energy {
            counters,
            sources: sources.join(" and "),
        })
    }

    /// Returns the joules used since the last call, or since the counters were created.
    pub fn joules(&mut self) -> f64 {
        let counters = self.counters.iter_mut();
        counters.map(|counter| counter.joules()).sum()
    }

    /// The names of the counters.
    pub fn sources(&self) -> &str {
        &self.sources
    }
}

const PACKAGES: &str = "/sys/class/powercap";

/// The counters of all processor packages (RAPL). Linux only, and often readable only by the administrator.
pub struct Packages {
    packages: Vec<Package>,
}

struct Package {
    counter: PathBuf,
    /// Microjoules at which the counter wraps around.
    range: u64,
    last: u64,
}

impl Packages {
    /// Starts the counters; `None` if they cannot be read.
    pub fn new() -> Option<Self> {
        Self::in_folder(Path::new(PACKAGES))
    }

    fn in_folder(folder: &Path) -> Option<Self> {
        let entries = std::fs::read_dir(folder).ok()?;
        let package = |entry: std::io::Result<std::fs::DirEntry>| {
            let folder = entry.ok()?.path();
            let name = read_to_string(folder.join("name")).ok()?;
            let counter = folder.join("energy_uj");
            name.starts_with("package").then_some(Package {
                last: read_number(&counter)?,
                range: read_number(&folder.join("max_energy_range_uj"))?,
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
            let now = read_number(&package.counter).unwrap_or(package.last);
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

fn read_number(path: &Path) -> Option<u64> {
    read_to_string(path).ok()?.trim().parse().ok()
}

/// A GPU's energy counter. It is updated rarely, so runs of less than a few seconds are inaccurate.
struct GpuCounter {
    gpu: Gpu,
    last: u64,
}

impl GpuCounter {
    /// Starts the counter of the GPU with this number; `None` if the GPU does not count energy.
    fn new(ordinal: usize) -> Option<Self> {
        let gpu = Gpu::new(ordinal)?;
        let last = gpu.millijoules()?;
        Some(GpuCounter { gpu, last })
    }
}

impl Counter for GpuCounter {
    fn joules(&mut self) -> f64 {
        let now = self.gpu.millijoules().unwrap_or(self.last);
        let used = now.saturating_sub(std::mem::replace(&mut self.last, now));
        1e-3 * used as f64
    }
}

const SENSORS: &str = "/sys/bus/i2c/drivers/ina3221";
/// Time between two readings; reading the sensor takes longer than 1 ms.
const PERIOD: Duration = Duration::from_millis(20);

/// The files of a supply rail, in millivolts and milliamperes. They stay open, so that reading them allocates nothing.
#[derive(Debug)]
struct Rail {
    name: String,
    voltage: File,
    current: File,
}

impl Rail {
    fn watts(&self) -> Option<f64> {
        Some(1e-6 * number(&self.voltage)? * number(&self.current)?)
    }
}

fn number(mut file: &File) -> Option<f64> {
    let mut text = [0; 32];
    file.rewind().ok()?;
    let length = file.read(&mut text).ok()?;
    std::str::from_utf8(&text[..length])
        .ok()?
        .trim()
        .parse()
        .ok()
}

fn rail(monitor: &Path, channel: u32) -> Option<Rail> {
    let open = |kind: &str| File::open(monitor.join(format!("{kind}{channel}_input"))).ok();
    let name = read_to_string(monitor.join(format!("in{channel}_label"))).ok()?;
    Some(Rail {
        name: name.trim().into(),
        voltage: open("in")?,
        current: open("curr")?,
    })
}

/// The rails to add up: only the board's input if it is measured, otherwise all rails.
fn rails(driver: &Path) -> Vec<Rail> {
    let entries = |folder: &Path| {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let mut rails = Vec::new();
    for sensor in entries(driver) {
        for monitor in entries(&sensor.join("hwmon")) {
            for channel in 1..=3 {
                rails.extend(rail(&monitor, channel).filter(|rail| rail.watts().is_some()));
            }
        }
    }
    if let Some(input) = rails.iter().position(|rail| rail.name == "VDD_IN") {
        rails.swap(0, input);
        rails.truncate(1);
    }
    rails
}

/// A Jetson's board: INA3221 sensors measure the current and voltage of its supply rails, and a thread integrates the power.
pub struct Board {
    microjoules: Arc<AtomicU64>,
    last: u64,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Board {
    /// Starts a counter of the board's energy. Also returns the names of the rails. `None` on other machines.
    pub fn new() -> Option<(Self, String)> {
        Self::on(rails(Path::new(SENSORS)))
    }

    fn on(rails: Vec<Rail>) -> Option<(Self, String)> {
        let names: Vec<&str> = rails.iter().map(|rail| rail.name.as_str()).collect();
        let names = names.join(" + ");
        if rails.is_empty() {
            return None;
        }
        let (microjoules, ended) = (
            Arc::new(AtomicU64::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let (sum, end) = (Arc::clone(&microjoules), Arc::clone(&ended));
        let thread = std::thread::Builder::new().spawn(move || {
            let mut last = Instant::now();
            while !end.load(Ordering::Relaxed) {
                std::thread::sleep(PERIOD);
                let watts: f64 = rails.iter().filter_map(Rail::watts).sum();
                let seconds = last.elapsed().as_secs_f64();
                last = Instant::now();
                sum.fetch_add((1e6 * watts * seconds) as u64, Ordering::Relaxed);
            }
        });
        let board = Board {
            microjoules,
            last: 0,
            ended,
            thread: Some(thread.ok()?),
        };
        Some((board, names))
    }
}

impl Counter for Board {
    fn joules(&mut self) -> f64 {
        let now = self.microjoules.load(Ordering::Relaxed);
        let used = now - std::mem::replace(&mut self.last, now);
        1e-6 * used as f64
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
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

    /// Without a GPU there is no counter. With a GPU the counter never decreases.
    #[test]
    fn a_counter_never_goes_back() {
        if let Some(mut gpu) = GpuCounter::new(0) {
            assert!(gpu.joules() >= 0.0 && gpu.joules() >= 0.0);
        }
    }

    #[test]
    fn rails_are_added_up_unless_the_input_is_measured() {
        let folder = tempfile::tempdir().unwrap();
        let monitor = folder.path().join("1-0040/hwmon/hwmon1");
        std::fs::create_dir_all(&monitor).unwrap();
        let write = |file: &str, text: &str| std::fs::write(monitor.join(file), text).unwrap();
        for (channel, name, current) in [(1, "VDD_GPU_SOC", "2000"), (2, "VDD_CPU_CV", "1000")] {
            write(&format!("in{channel}_label"), &format!("{name}\n"));
            write(&format!("in{channel}_input"), "5000\n");
            write(&format!("curr{channel}_input"), &format!("{current}\n"));
        }
        let watts = |rails: &[Rail]| -> f64 { rails.iter().filter_map(Rail::watts).sum() };
        let found = rails(folder.path());
        assert!((watts(&found) - 15.0).abs() < 1e-9, "{found:?}");
        let (mut board, names) = Board::on(found).unwrap();
        assert!(names == "VDD_GPU_SOC + VDD_CPU_CV" || names == "VDD_CPU_CV + VDD_GPU_SOC");
        let start = Instant::now();
        while board.microjoules.load(Ordering::Relaxed) == 0 {
            assert!(start.elapsed() < Duration::from_secs(60));
            std::thread::sleep(PERIOD);
        }
        let joules = board.joules();
        assert!(joules > 0.0 && joules <= 15.1 * start.elapsed().as_secs_f64() + 1.0);

        write("in3_label", "VDD_IN\n");
        write("in3_input", "5000");
        write("curr3_input", "4000");
        let found = rails(folder.path());
        assert!(found.len() == 1 && (watts(&found) - 20.0).abs() < 1e-9);
        assert!(rails(&folder.path().join("absent")).is_empty());
    }
}
