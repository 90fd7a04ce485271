//! Constants of the decode kernel that depend on the GPU: on its compute capability or its number of SMs, so that kernels built ahead of
//! time have the same constants.
//!
//! Two are delays of mailbox polls. The first poll should not come before the values: a second one queues after weight copies. Another one
//! bounds the weight tiles in flight, which hide DRAM latency and delay mailbox loads. All were measured on an H200, and an H100 uses the
//! same. For other GPUs the tiles in flight follow from the memory bandwidth per SM in data sheets; they have not been measured.
//!
//! No model is too small for one kernel: on an H200 a step of the built-in model (13 MB of weights) took 159 us as one kernel and 168 as a
//! graph; models of 350 million parameters in Q4_0 took 327 and 552 us (`sla-gdn-340m`), 341 and 481 us (`lfm2-350m`).

/// Latency of DRAM under load, in microseconds: 48 KiB in flight per SM saturate an H200.
const LOADED_LATENCY_US: f64 = 1.35;

/// Bytes that DRAM delivers per SM and microsecond: bandwidth / SMs of one part of each compute capability.
const BYTES_PER_US: [(i32, f64); 8] = [
    (80, 2.0e6 / 108.0),   // A100
    (86, 0.94e6 / 82.0),   // RTX 3090
    (87, 0.205e6 / 16.0),  // AGX Orin
    (89, 1.01e6 / 128.0),  // RTX 4090
    (100, 8.0e6 / 148.0),  // B200
    (110, 0.273e6 / 20.0), // Jetson Thor
    (120, 1.79e6 / 170.0), // RTX 5090
    (121, 0.273e6 / 48.0), // GB10
];

/// Returns the largest number of row groups of a tile for a kernel of this many blocks, one per SM. A row of few units occupies some of a
/// block's warps; with more row groups per tile the other warps multiply more rows. With many blocks, a block has too few rows to fill such
/// tiles. Built-in model, us per token on SMs of an H100, with one group and with four: 132 SMs 180 and 178, 64: 178 and 181, 32: 197 and
/// 197, 16: 251 and 229, 8: 335 and 285.
pub(crate) fn most_row_groups(blocks: usize) -> usize {
    if blocks <= 16 { 4 } else { 1 }
}

/// Constants of the decode kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tuning {
    /// Nanoseconds before the first poll, where an op has few bytes of weights. Sleeps come in powers of two: on an H200 GDN 1.3B in Q4_0
    /// decodes 2,383 tokens/s with 100 or 200, 2,326 with 300 to 480.
    pub first_poll_ns: usize,
    /// Nanoseconds between polls.
    pub poll_ns: usize,
    /// Bytes of large tiles in flight per SM.
    pub bytes_in_flight: f64,
}

impl Tuning {
    /// Returns the constants for a GPU of this compute capability; 90 is 9.0.
    pub fn for_capability(capability: i32) -> Self {
        let listed = BYTES_PER_US
            .iter()
            .find(|(listed, _)| *listed == capability);
        Tuning {
            first_poll_ns: 200,
            poll_ns: 100,
            bytes_in_flight: listed.map_or(48.0 * 1024.0, |(_, bytes)| bytes * LOADED_LATENCY_US),
        }
    }

    /// Returns the limit of large tiles in flight: one or two for each of the producer warps.
    pub(crate) fn tiles_in_flight(
        self,
        producers: usize,
        stages: usize,
        stage_bytes: usize,
    ) -> usize {
        let tiles = (self.bytes_in_flight / stage_bytes.max(1) as f64).ceil() as usize;
        let even = tiles.next_multiple_of(producers);
        even.clamp(producers, 2 * producers).min(stages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_in_flight_follow_from_the_bandwidth_of_an_sm() {
        // Stages of Q4_0 and BF16 on large parts, of half the rows on small ones.
        for (capability, stage, tiles) in [
            (90, 19_712, 4),
            (90, 16_384, 4),
            (100, 19_712, 4),
            (87, 19_712, 2),
            (89, 9_856, 2),
            (120, 8_192, 2),
        ] {
            let tuning = Tuning::for_capability(capability);
            assert_eq!(tuning.tiles_in_flight(2, 8, stage), tiles, "{capability}");
        }
        assert_eq!(Tuning::for_capability(90).tiles_in_flight(2, 2, 16_384), 2);
    }
}
