//! The memory that a store takes by default.

use std::fs::read_to_string;

/// Most bytes of a store that nobody has given a bound.
const MOST: u64 = 8 << 30;
/// Its bytes where the system does not say how much memory there is.
const UNKNOWN: u64 = 1 << 30;

/// A quarter of the memory that this process may use, but no more than [`MOST`].
pub fn default_bytes() -> usize {
    let machine = read_to_string("/proc/meminfo").ok();
    let machine = machine.and_then(|text| total(&text));
    // The limit of a container.
    let limit = read_to_string("/sys/fs/cgroup/memory.max").ok();
    let limit = limit.and_then(|text| text.trim().parse().ok());
    let bytes = match (machine, limit) {
        (Some(machine), Some(limit)) => machine.min(limit) / 4,
        (Some(bytes), None) | (None, Some(bytes)) => bytes / 4,
        (None, None) => UNKNOWN,
    };
    usize::try_from(bytes.min(MOST)).unwrap_or(usize::MAX)
}

/// The bytes that `/proc/meminfo` names as its total.
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
