use serde::{Deserialize, Serialize};

use crate::abi::device_struct;

device_struct! {
    /// The random number generator of a session. Number `n` is a pure function of (seed, n): saving two integers saves the generator, and a
    /// device computes equal numbers.
    ///
    /// With `mix` as the output function of SplitMix64 and all arithmetic modulo 2^64, draw `n` is `mix(mix(seed) + (n + 1) *
    /// 0x9e3779b97f4a7c15) >> 11`, divided by 2^53. Because of the inner `mix`, neighbouring seeds do not give shifted copies of one
    /// sequence.
    #[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    pub struct SamplerState {
        /// The user's seed.
        pub seed: u64,
        /// Number of random numbers drawn so far.
        pub draws: u64,
    }
}

impl SamplerState {
    /// The state before the first draw.
    pub fn new(seed: u64) -> Self {
        Self { seed, draws: 0 }
    }

    /// Draws the next number, uniform in [0, 1).
    pub fn draw(&mut self) -> f64 {
        let number = uniform(self.seed, self.draws);
        self.draws = self.draws.wrapping_add(1);
        number
    }
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

fn uniform(seed: u64, n: u64) -> f64 {
    let bits = mix(mix(seed).wrapping_add(n.wrapping_add(1).wrapping_mul(GOLDEN)));
    (bits >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}

/// The output function of SplitMix64 (Steele, Lea, Flood 2014).
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mix_gives_the_published_splitmix64_sequence() {
        let output = |n: u64| mix(1234567u64.wrapping_add(n.wrapping_mul(GOLDEN)));
        assert_eq!(output(1), 6457827717110365317);
        assert_eq!(output(2), 3203168211198807973);
        assert_eq!(mix(GOLDEN), 0xe220_a839_7b1d_cdaf);
    }

    #[test]
    fn a_draw_depends_on_seed_and_count_only() {
        let mut state = SamplerState::new(7);
        let numbers: Vec<f64> = (0..8).map(|_| state.draw()).collect();
        assert_eq!(state, SamplerState { seed: 7, draws: 8 });
        let mut resumed = SamplerState { seed: 7, draws: 5 };
        assert_eq!(resumed.draw(), numbers[5]);
        assert!(numbers.windows(2).all(|pair| pair[0] != pair[1]));
        assert_ne!(SamplerState::new(8).draw(), numbers[0]);
    }

    #[test]
    fn neighbouring_seeds_are_not_shifted_copies() {
        let of = |seed: u64| (0..64).map(|n| uniform(seed, n)).collect::<Vec<_>>();
        let first = of(0);
        for shifted in [of(1), of(GOLDEN), of(GOLDEN.wrapping_neg())] {
            assert!(shifted.iter().all(|number| !first.contains(number)));
        }
    }

    #[test]
    fn numbers_fill_the_unit_interval_evenly() {
        const BINS: usize = 64;
        const DRAWS: u64 = 64 * 1000;
        let mut counts = [0u32; BINS];
        for n in 0..DRAWS {
            let number = uniform(42, n);
            assert!((0.0..1.0).contains(&number));
            counts[(number * BINS as f64) as usize] += 1;
        }
        let chi_square: f64 = counts
            .iter()
            .map(|&c| (c as f64 - 1000.0).powi(2) / 1000.0)
            .sum();
        // 63 degrees of freedom: between the 0.1 % and 99.9 % quantiles.
        assert!((33.9..103.5).contains(&chi_square), "{chi_square}");
    }
}
