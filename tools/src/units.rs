//! Numbers as people read them.

/// Bytes with a binary unit: `1.93 MiB`.
pub fn bytes(n: usize) -> String {
    let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    scaled(n, &units).unwrap_or_else(|| format!("{n} B"))
}

/// A count with a decimal unit: `1.34 B` for a billion.
pub fn count(n: usize) -> String {
    let units = [(1_000_000_000, "B"), (1_000_000, "M"), (1_000, "K")];
    scaled(n, &units).unwrap_or_else(|| n.to_string())
}

fn scaled(n: usize, units: &[(usize, &str)]) -> Option<String> {
    let (size, unit) = units.iter().find(|(size, _)| n >= *size)?;
    let value = n as f64 / *size as f64;
    let decimals = if value < 10.0 { 2 } else { 1 };
    Some(format!("{value:.decimals$} {unit}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_keep_three_digits() {
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1024), "1.00 KiB");
        assert_eq!(bytes(12_897_485), "12.3 MiB");
        assert_eq!(count(999), "999");
        assert_eq!(count(1_339_000_000), "1.34 B");
    }
}
