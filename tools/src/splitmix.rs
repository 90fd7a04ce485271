//! SplitMix64 (Steele, Lea and Flood, 2014): a generator that is short and easy to reproduce in any language.

/// The generator. The seed is its first state.
pub struct SplitMix64(pub u64);

impl SplitMix64 {
    /// Returns the next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `n`. `n` must be far below 2^64, because the tiny bias of the remainder is not corrected.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    /// Returns a random item.
    pub fn one_of<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }

    /// Shuffles by Fisher-Yates, from the last item down.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            let j = self.below(i + 1);
            items.swap(i, j);
        }
    }

    /// Returns `n` different items: the first `n` of a shuffle from the first item up.
    pub fn distinct<T>(&mut self, mut items: Vec<T>, n: usize) -> Vec<T> {
        for i in 0..n {
            let j = i + self.below(items.len() - i);
            items.swap(i, j);
        }
        items.truncate(n);
        items
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_the_published_ones() {
        let mut random = SplitMix64(42);
        let first = [random.bits(), random.bits(), random.bits()];
        let expected = [
            0xbdd7_3226_2feb_6e95,
            0x28ef_e333_b266_f103,
            0x4752_6757_130f_9f52,
        ];
        assert_eq!(first, expected);
    }
}
