//! Numbers in readable form.

/// Rephrases the standard library's number parsing errors for users; `None` for other errors.
pub fn in_words(reason: &str) -> Option<&'static str> {
    Some(match reason {
        "invalid digit found in string" | "cannot parse integer from empty string" => {
            "expected a whole number, 0 or more"
        }
        "number too large to fit in target type" => "the number is too large",
        "invalid float literal" | "cannot parse float from empty string" => "expected a number",
        _ => return None,
    })
}

/// Formats bytes with a binary unit: `1.93 MiB`.
pub fn bytes(n: usize) -> String {
    let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    scaled(n, &units).unwrap_or_else(|| format!("{n} B"))
}

/// Formats a count with a decimal unit: `1.34 B` for a billion.
pub fn count(n: usize) -> String {
    let units = [(1_000_000_000, "B"), (1_000_000, "M"), (1_000, "K")];
    scaled(n, &units).unwrap_or_else(|| n.to_string())
}

/// Formats a whole number with separators between thousands: `7,730`.
pub fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a quantity with at least three digits: `640`, `64.2`, `6.42`, and `0` below 0.005.
pub fn rounded(x: f64) -> String {
    match x.abs() {
        size if size >= 1000.0 => thousands(x.round().max(0.0) as u64),
        size if size >= 100.0 => format!("{x:.0}"),
        size if size >= 10.0 => format!("{x:.1}"),
        size if size >= 0.005 => format!("{x:.2}"),
        _ => "0".into(),
    }
}

/// Formats a difference: `0`, `0.02`, `0.001`, `8.4e-6`.
pub fn difference(x: f64) -> String {
    // Two digits are enough, and a number that was an f32 then shows no conversion error.
    match x.abs() {
        size if size == 0.0 || (1e-3..1e5).contains(&size) => {
            let digits = if size == 0.0 {
                0
            } else {
                (1.0 - size.log10().floor()).max(0.0) as usize
            };
            let text = format!("{x:.digits$}");
            if text.contains('.') {
                text.trim_end_matches('0').trim_end_matches('.').into()
            } else {
                text
            }
        }
        _ => format!("{x:.1e}").replace(".0e", "e"),
    }
}

/// Parses a count such as `4096`, `1k` (1,000), `1.5m` or `2ki` (2,048).
pub fn parse_count(text: &str) -> Result<usize, String> {
    const UNITS: [(&str, u64); 6] = [
        ("ki", 1 << 10),
        ("mi", 1 << 20),
        ("gi", 1 << 30),
        ("k", 1_000),
        ("m", 1_000_000),
        ("g", 1_000_000_000),
    ];
    let wrong = || format!("{text:?}: expected a count such as 4096, 1k, 1.5m or 2ki (2048)");
    let lower = text.trim().to_lowercase();
    let unit = UNITS.iter().find(|(name, _)| lower.ends_with(name));
    let Some((name, size)) = unit else {
        return lower.parse().map_err(|_| wrong());
    };
    let value: f64 = lower[..lower.len() - name.len()]
        .trim()
        .parse()
        .map_err(|_| wrong())?;
    let count = value * *size as f64;
    if (0.0..=1e15).contains(&count) && count.fract() == 0.0 {
        Ok(count as usize)
    } else {
        Err(wrong())
    }
}

fn scaled(n: usize, units: &[(usize, &str)]) -> Option<String> {
    let (size, unit) = units.iter().find(|(size, _)| n >= *size)?;
    let value = n as f64 / *size as f64;
    let decimals = match value {
        x if x < 10.0 => 2,
        x if x < 100.0 => 1,
        _ => 0,
    };
    Some(format!("{value:.decimals$} {unit}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_have_two_digits() {
        let numbers = [
            0.0,
            f64::from(0.001f32),
            0.02,
            0.5,
            1.25,
            123.4,
            8.404e-6,
            2e-5,
        ];
        let expected = ["0", "0.001", "0.02", "0.5", "1.2", "123", "8.4e-6", "2e-5"];
        assert_eq!(numbers.map(difference), expected);
    }

    #[test]
    fn counts_are_read_as_people_write_them() {
        for (text, expected) in [
            ("0", 0),
            ("4096", 4096),
            ("1k", 1000),
            ("1.5M", 1_500_000),
            ("2ki", 2048),
        ] {
            assert_eq!(parse_count(text), Ok(expected), "{text}");
        }
        for text in [
            "", "k", "many", "-1", "-1k", "1.5", "0.0001k", "1e300g", "nank",
        ] {
            assert!(parse_count(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_keep_three_digits() {
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1024), "1.00 KiB");
        assert_eq!(bytes(12_897_485), "12.3 MiB");
        assert_eq!(bytes(512 << 10), "512 KiB");
        assert_eq!(thousands(999), "999");
        assert_eq!(thousands(1_234_567), "1,234,567");
        let numbers = [1234.4, 640.2, 64.18, 6.416, 0.0];
        assert_eq!(numbers.map(rounded), ["1,234", "640", "64.2", "6.42", "0"]);
        assert_eq!(count(999), "999");
        assert_eq!(count(1_339_000_000), "1.34 B");
    }
}
