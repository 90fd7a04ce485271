//! How fast the same number of threads reads memory and does nothing else.

use std::hint::black_box;
use std::time::Instant;

use waterline::Pool;
use waterline_quant::plain_read;

/// A buffer that no cache holds, and the threads that read it.
pub struct Bandwidth {
    pool: Pool,
    buffer: Vec<u8>,
    /// Bytes per second of each pass.
    pub passes: Vec<f64>,
}

impl Bandwidth {
    /// A buffer of four times the last cache.
    pub fn new(threads: usize, cache_bytes: Option<u64>) -> Self {
        let size = (4 * cache_bytes.unwrap_or(32 << 20)).clamp(64 << 20, 2 << 30);
        Bandwidth {
            pool: Pool::new(threads),
            // Not zeros: pages that were never written may all be the same one.
            buffer: vec![1; size as usize],
            passes: Vec::new(),
        }
    }

    /// Bytes of the buffer.
    pub fn bytes(&self) -> u64 {
        self.buffer.len() as u64
    }

    /// Reads the buffer once.
    pub fn pass(&mut self) {
        let share = self.buffer.len() / self.pool.threads();
        let start = Instant::now();
        self.pool.run(&|worker| {
            black_box(plain_read(&self.buffer[worker * share..][..share]));
        });
        let read = share * self.pool.threads();
        let speed = read as f64 / start.elapsed().as_secs_f64();
        self.passes.push(speed);
    }
}
