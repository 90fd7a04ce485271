//! The machine, and the process's memory use. Linux only; on other systems these values are missing.

use std::fs::read_to_string;

use serde::{Deserialize, Serialize};
use waterline_quant::Simd;

/// Properties of the computer that matter to a measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name.
    pub cpu: Option<String>,
    /// Number of hardware threads that the program may use.
    pub logical_cores: usize,
    /// Number of physical cores of these hardware threads.
    pub physical_cores: usize,
    /// The vector instructions in use.
    pub simd: String,
    /// Size of the last-level cache.
    pub cache_bytes: Option<u64>,
    /// Size of main memory.
    pub memory_bytes: Option<u64>,
    /// `linux`, `macos`, ...
    pub os: String,
    /// `x86_64`, `aarch64`, ...
    pub arch: String,
}

impl Machine {
    /// Detects this computer.
    pub fn here() -> Self {
        let cpu = read_to_string("/proc/cpuinfo").ok();
        let memory = read_to_string("/proc/meminfo").ok();
        Machine {
            cpu: cpu.and_then(|text| field(&text, "model name").map(str::to_string)),
            logical_cores: std::thread::available_parallelism().map_or(1, |n| n.get()),
            physical_cores: waterline::physical_cores(),
            simd: format!("{:?}", Simd::detect()),
            cache_bytes: cache_bytes(),
            memory_bytes: memory.and_then(|text| kibibytes(&text, "MemTotal")),
            os: std::env::consts::OS.into(),
            arch: std::env::consts::ARCH.into(),
        }
    }
}

/// Resident memory of this process. The kernel's fast counters are off by some pages per core, so this reads the exact value.
pub fn resident_bytes() -> Option<u64> {
    let exact = read_to_string("/proc/self/smaps_rollup").ok();
    exact
        .and_then(|text| kibibytes(&text, "Rss"))
        .or_else(|| status("VmRSS"))
}

/// Peak of the process's resident memory.
pub fn peak_resident_bytes() -> Option<u64> {
    status("VmHWM")
}

/// Resets the peak of resident memory, where the system can.
pub fn reset_peak() {
    // Only Linux has this file. On other systems the peak is that of all measurements.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

fn status(key: &str) -> Option<u64> {
    kibibytes(&read_to_string("/proc/self/status").ok()?, key)
}

/// Size of the largest cache of the first core.
fn cache_bytes() -> Option<u64> {
    let caches = std::fs::read_dir("/sys/devices/system/cpu/cpu0/cache").ok()?;
    let size = |cache: std::io::Result<std::fs::DirEntry>| {
        let text = read_to_string(cache.ok()?.path().join("size")).ok()?;
        let kibibytes: u64 = text.trim().strip_suffix('K')?.parse().ok()?;
        Some(kibibytes << 10)
    };
    caches.filter_map(size).max()
}

/// Returns the value of the first line `key : value`.
fn field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    lines
        .find(|(name, _)| name.trim() == key)
        .map(|(_, value)| value.trim())
}

/// Returns the bytes of a line `key: N kB`.
fn kibibytes(text: &str, key: &str) -> Option<u64> {
    let number = field(text, key)?.strip_suffix("kB")?.trim();
    Some(number.parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel_are_read() {
        let text =
            "model name\t: Some CPU\nmodel name\t: Another\nVmRSS:\t    1760 kB\nRss:  2 kB\n";
        assert_eq!(field(text, "model name"), Some("Some CPU"));
        assert_eq!(kibibytes(text, "VmRSS"), Some(1760 << 10));
        assert_eq!(kibibytes(text, "Rss"), Some(2 << 10));
        assert_eq!(kibibytes(text, "model name"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn memory_that_is_touched_becomes_resident() {
        let before = resident_bytes().unwrap();
        let memory = std::hint::black_box(vec![1u8; 64 << 20]);
        let after = resident_bytes().unwrap();
        assert!(after >= before + (48 << 20), "{before} {after}");
        assert!(peak_resident_bytes().unwrap() > memory.len() as u64);
    }
}
