//! What a list of times says.

/// The nearest-rank percentile of `sorted` (ascending, not empty): the smallest value that `share` of all do not exceed.
pub fn percentile(sorted: &[f64], share: f64) -> f64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

/// The median, as a percentile.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    percentile(&sorted, 0.5)
}

/// How much a time differs from the one before it, on average. 0 for a single time.
pub fn jitter(times: &[f64]) -> f64 {
    let sum: f64 = times.windows(2).map(|pair| (pair[1] - pair[0]).abs()).sum();
    sum / times.len().saturating_sub(1).max(1) as f64
}

/// FNV-1a, 64 bits: enough to see that two runs gave the same tokens and logits.
pub struct Hash(u64);

impl Hash {
    /// Nothing hashed yet.
    pub fn new() -> Self {
        Hash(0xcbf2_9ce4_8422_2325)
    }

    /// Adds four bytes, the least significant first.
    pub fn add(&mut self, value: u32) {
        for byte in value.to_le_bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }

    /// Sixteen hexadecimal digits.
    pub fn digits(&self) -> String {
        format!("{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_of_the_list() {
        let values: Vec<f64> = (1..=10).map(f64::from).collect();
        for (share, expected) in [
            (0.0, 1.0),
            (0.5, 5.0),
            (0.51, 6.0),
            (0.9, 9.0),
            (0.99, 10.0),
            (1.0, 10.0),
        ] {
            assert_eq!(percentile(&values, share), expected, "{share}");
        }
        assert_eq!(percentile(&[7.0], 0.5), 7.0);
        assert_eq!(median(&[9.0, 1.0, 5.0]), 5.0);
    }

    #[test]
    fn jitter_is_the_mean_step() {
        assert_eq!(jitter(&[5.0, 7.0, 4.0, 4.0]), 5.0 / 3.0);
        assert_eq!(jitter(&[5.0]), 0.0);
    }

    #[test]
    fn the_hash_is_fnv_1a() {
        assert_eq!(Hash::new().digits(), "cbf29ce484222325");
        let mut hash = Hash::new();
        hash.add(u32::from_le_bytes(*b"foob"));
        // The published value of "foobar" is reached two bytes later.
        for byte in *b"ar" {
            hash.0 = (hash.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
        assert_eq!(hash.digits(), "85944171f73967e8");
    }
}
