//! A Jetson's board: INA3221 sensors measure the current and the voltage of its supply rails, so energy is a sum over time.

use std::fs::{File, read_to_string};
use std::io::{Read, Seek};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::Counter;

const DRIVER: &str = "/sys/bus/i2c/drivers/ina3221";
/// Time between two readings; a reading of the sensor takes longer than 1 ms.
const PERIOD: Duration = Duration::from_millis(20);

/// A rail's files: millivolts and milliamperes. They stay open, so that looking at them allocates nothing.
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

/// The rails to add up: the board's input alone where it is measured, or else all of them.
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

/// The board's energy, added up by a thread.
pub struct Board {
    microjoules: Arc<AtomicU64>,
    last: u64,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Board {
    /// The rails' names with a counter of their energy; none on other machines.
    pub fn new() -> Option<(Self, String)> {
        Self::on(rails(Path::new(DRIVER)))
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
