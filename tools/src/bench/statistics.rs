//! Statistics of a list of times.

use crate::splitmix::SplitMix64;

/// Returns the nearest-rank percentile of `sorted` (ascending, not empty): the smallest value that at least `share` of
/// all values do not exceed.
pub fn percentile(sorted: &[f64], share: f64) -> f64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

/// Returns the median, as a nearest-rank percentile.
pub fn median(values: &[f64]) -> f64 {
    percentile(&sorted(values), 0.5)
}

/// Returns the value that 99 % of the values do not exceed.
pub fn p99(values: &[f64]) -> f64 {
    percentile(&sorted(values), 0.99)
}

/// Returns the mean of a list that is not empty.
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// Returns the bounds of the middle nine tenths of the values, or of all if they are fewer than 20.
pub fn spread(values: &[f64]) -> [f64; 2] {
    let sorted = sorted(values);
    let rest = (sorted.len() as f64 * 0.05).floor() as usize;
    let inner = &sorted[rest..sorted.len() - rest];
    [inner[0], inner[inner.len() - 1]]
}

/// Number of successive times in a turn, which are correlated.
const BLOCK: usize = 16;
/// Number of bootstrap resamples.
const DRAWS: usize = 2000;

/// Returns the ratio of the statistic `of` for `b` to that for `a`, and its 95 % interval by a block bootstrap over
/// successive times.
pub fn ratio(a: &[f64], b: &[f64], of: fn(&[f64]) -> f64) -> (f64, [f64; 2]) {
    let mut random = SplitMix64(1);
    let mut drawn = |values: &[f64]| {
        let size = BLOCK.min(values.len().div_ceil(8));
        let blocks: Vec<&[f64]> = values.chunks(size).collect();
        let draws = (0..blocks.len()).flat_map(|_| random.one_of(&blocks));
        of(&draws.copied().collect::<Vec<_>>())
    };
    let mut ratios: Vec<f64> = (0..DRAWS).map(|_| drawn(b) / drawn(a)).collect();
    ratios.sort_by(f64::total_cmp);
    let ends = [percentile(&ratios, 0.025), percentile(&ratios, 0.975)];
    (of(b) / of(a), ends)
}

/// Returns the mean absolute difference of successive times; 0 for a single time.
pub fn jitter(times: &[f64]) -> f64 {
    let sum: f64 = times.windows(2).map(|pair| (pair[1] - pair[0]).abs()).sum();
    sum / times.len().saturating_sub(1).max(1) as f64
}

/// FNV-1a with 64 bits, enough to detect that two runs gave different tokens or logits.
pub struct Hash(u64);

impl Hash {
    /// Creates the hash of nothing.
    pub fn new() -> Self {
        Hash(0xcbf2_9ce4_8422_2325)
    }

    /// Adds four bytes, the least significant first.
    pub fn add(&mut self, value: u32) {
        for byte in value.to_le_bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }

    /// Returns sixteen hexadecimal digits.
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
    fn the_spread_leaves_out_a_tenth() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(spread(&values), [6.0, 95.0]);
        assert_eq!(spread(&[3.0, 1.0, 2.0]), [1.0, 3.0]);
        assert_eq!(spread(&[3.0]), [3.0, 3.0]);
    }

    #[test]
    fn the_interval_of_a_ratio_holds_it_and_narrows() {
        let mut random = SplitMix64(7);
        let mut times = |n: usize, factor: f64| -> Vec<f64> {
            (0..n)
                .map(|_| factor * (100.0 + random.below(10) as f64))
                .collect()
        };
        let (a, b) = (times(1000, 1.0), times(1000, 0.9));
        let (found, [low, high]) = ratio(&a, &b, median);
        assert!((found - 0.9).abs() < 0.02, "{found}");
        assert!(
            low <= found && found <= high && low > 0.87 && high < 0.93,
            "{low} {high}"
        );
        let (_, [low_few, high_few]) = ratio(&times(40, 1.0), &times(40, 0.9), median);
        assert!(high_few - low_few > high - low);
        assert_eq!(ratio(&[2.0], &[3.0], median), (1.5, [1.5, 1.5]));
    }

    #[test]
    fn the_interval_is_of_what_is_compared() {
        // One token in sixteen is slow, which changes the mean but not the median.
        let slow = |every: usize| -> Vec<f64> {
            let time = |i: usize| {
                if i.is_multiple_of(every) {
                    900.0
                } else {
                    100.0
                }
            };
            (0..640).map(time).collect()
        };
        let (a, b) = (slow(1000), slow(16));
        assert_eq!(ratio(&a, &b, median), (1.0, [1.0, 1.0]));
        let (found, [low, high]) = ratio(&a, &b, mean);
        assert!(
            low > 1.4 && low <= found && found <= high,
            "{low} {found} {high}"
        );
        assert_eq!(ratio(&a, &b, p99).0, 9.0);
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
