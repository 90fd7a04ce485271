//! The speed at which the same number of threads reads memory and does nothing else.

use std::hint::black_box;
use std::time::Instant;

use waterline::{Pool, Result};
use waterline_quant::plain_read;

/// Parts of the buffer for each thread, enough to keep the threads in step.
const PIECES: usize = 8;

/// A buffer that is larger than any cache, and the threads that read it.
pub struct Bandwidth {
    pool: Pool,
    buffer: Vec<u8>,
    /// Bytes per second of each pass.
    pub passes: Vec<f64>,
}

impl Bandwidth {
    /// Allocates a buffer of four times the size of the last-level cache.
    pub fn new(threads: usize, cache_bytes: Option<u64>) -> Result<Self> {
        let size = (4 * cache_bytes.unwrap_or(32 << 20)).clamp(64 << 20, 2 << 30);
        Ok(Bandwidth {
            pool: Pool::new(threads)?,
            // Not zeros: pages that were never written may all share one physical page.
            buffer: vec![1; size as usize],
            passes: Vec::new(),
        })
    }

    /// Size of the buffer in bytes.
    pub fn bytes(&self) -> u64 {
        self.buffer.len() as u64
    }

    /// Reads the buffer once.
    pub fn pass(&mut self) {
        let pieces = self.pool.threads() * PIECES;
        let share = self.buffer.len() / pieces;
        let start = Instant::now();
        self.pool.each(pieces, |_, index| {
            black_box(plain_read(&self.buffer[index * share..][..share]));
        });
        let speed = (share * pieces) as f64 / start.elapsed().as_secs_f64();
        self.passes.push(speed);
    }
}
