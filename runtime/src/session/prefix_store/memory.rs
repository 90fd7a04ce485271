//! The default memory size of a store.

use std::fs::read_to_string;

/// Upper bound of the default size.
const MOST: u64 = 8 << 30;
/// The default size if the system does not report its memory.
const UNKNOWN: u64 = 1 << 30;

/// A quarter of the memory available to this process, at most [`MOST`].
pub fn default_bytes() -> usize {
    let machine = read_to_string("/proc/meminfo").ok();
    let machine = machine.and_then(|text| total(&text));
    // The memory limit of a container.
    let limit = read_to_string("/sys/fs/cgroup/memory.max").ok();
    let limit = limit.and_then(|text| text.trim().parse().ok());
    let bytes = match (machine, limit) {
        (Some(machine), Some(limit)) => machine.min(limit) / 4,
        (Some(bytes), None) | (None, Some(bytes)) => bytes / 4,
        (None, None) => UNKNOWN,
    };
    usize::try_from(bytes.min(MOST)).unwrap_or(usize::MAX)
}

/// The total memory in bytes that `/proc/meminfo` reports.
fn total(text: &str) -> Option<u64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1 << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_is_found_and_the_default_is_bounded() {
        let text = "MemTotal:       24601528 kB\nMemFree:         1000 kB\n";
        assert_eq!(total(text), Some(24_601_528 << 10));
        assert_eq!(total("MemFree: 1 kB\n"), None);
        assert!((1..=MOST).contains(&(default_bytes() as u64)));
    }
}
