//! Sequential reads of memory: the upper bound on the speed of products over large matrices.

/// Number of independent sums, so that no addition waits for another.
const LANES: usize = 64;

/// Reads every complete 512-byte chunk of `bytes` once, with the widest vectors that the CPU has, and returns the sum of the words.
pub fn plain_read(bytes: &[u8]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the CPU has the instructions.
        return unsafe { sum_avx2(bytes) };
    }
    sum(bytes)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn sum_avx2(bytes: &[u8]) -> u64 {
    sum(bytes)
}

#[inline(always)]
fn sum(bytes: &[u8]) -> u64 {
    let mut sums = [0u64; LANES];
    for chunk in bytes.as_chunks::<{ 8 * LANES }>().0 {
        for (sum, word) in sums.iter_mut().zip(chunk.as_chunks::<8>().0) {
            *sum = sum.wrapping_add(u64::from_le_bytes(*word));
        }
    }
    sums.into_iter().fold(0, u64::wrapping_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_whole_chunk_is_read_once() {
        let bytes: Vec<u8> = (0..3 * 512 + 100).map(|i| (i % 251) as u8).collect();
        let words = bytes[..3 * 512].chunks_exact(8);
        let expected = words
            .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
            .fold(0, u64::wrapping_add);
        assert_eq!(plain_read(&bytes), expected);
        assert_eq!(sum(&bytes), expected);
        assert_eq!(plain_read(&bytes[..511]), 0);
    }
}
