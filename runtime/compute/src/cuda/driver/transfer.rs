//! Copies parts of a device's memory to the host while kernels run.
//!
//! The parts are copied on the device first, so that kernels may change them, and then to the host by a second queue. They arrive in
//! page-locked memory of a fixed size; all threads copy them on, since memory that a process touches first is slow.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use super::{Address, Driver, Memory, Queue};
use crate::cpu::Pool;
use crate::error::{Error, Result};

/// Bytes that a thread copies at a time.
const PIECE: usize = 256 << 10;

/// The memory and the queue of one such copy, on the device and on the host.
pub struct Transfer {
    queue: Box<dyn Queue>,
    device: Memory,
    host: Host,
    /// Bytes of the copy in progress.
    begun: usize,
}

impl Transfer {
    /// Allocates memory for copies of up to `bytes`.
    ///
    /// # Errors
    /// [`Error::Memory`] or [`Error::Device`].
    pub fn new(driver: &Arc<dyn Driver>, bytes: usize) -> Result<Self> {
        Ok(Transfer {
            queue: Arc::clone(driver).queue()?,
            device: Memory::new(driver, bytes)?,
            host: Host::new(driver, bytes)?,
            begun: 0,
        })
    }

    /// Returns the maximum bytes of a copy, which are allocated on the device and on the host.
    pub fn bytes(&self) -> usize {
        self.device.bytes()
    }

    /// Starts copying these parts of the memory at `from`, one after the other, as `queue` has left them; then `queue` may change them.
    pub fn begin(
        &mut self,
        queue: &dyn Queue,
        from: Address,
        parts: impl Iterator<Item = Range<usize>>,
    ) -> Result<()> {
        self.finish()?;
        let mut bytes = 0;
        for part in parts {
            assert!(part.len() <= self.bytes() - bytes);
            let to = self.device.address() + bytes as u64;
            queue.copy(from + part.start as u64, to, part.len())?;
            bytes += part.len();
        }
        queue.finish()?;
        self.begun = bytes;
        let to = &mut self.host.bytes[..bytes];
        // SAFETY: the host's bytes are used and freed only after `finish`.
        unsafe { self.queue.begin_read(self.device.address(), to) }
    }

    /// Waits for the copy and returns its bytes in `N` pieces of these lengths. Their memory is allocated here, while kernels run.
    ///
    /// # Errors
    /// [`Error::Memory`] or [`Error::Device`].
    pub fn end<const N: usize>(
        &mut self,
        pool: &Pool,
        lengths: [usize; N],
    ) -> Result<[Vec<u8>; N]> {
        self.finish()?;
        let (mut rest, mut copies) = (&self.host.bytes[..], [const { Vec::new() }; N]);
        for (copy, length) in copies.iter_mut().zip(lengths) {
            let (here, after) = rest.split_at(length);
            *copy = copied(pool, here)?;
            rest = after;
        }
        Ok(copies)
    }

    fn finish(&mut self) -> Result<()> {
        if std::mem::take(&mut self.begun) > 0 {
            self.queue.finish()?;
        }
        Ok(())
    }
}

/// Copies bytes with all threads, into memory that no thread has touched before.
fn copied(pool: &Pool, from: &[u8]) -> Result<Vec<u8>> {
    let mut copy = Vec::new();
    let asked = waterline_quant::ask_room(from.len()).is_ok();
    if !asked || copy.try_reserve_exact(from.len()).is_err() {
        let advice = "reduce the size of the prefix store";
        return Err(Error::memory("a checkpoint", advice));
    }
    let room = copy.spare_capacity_mut()[..from.len()].chunks_mut(PIECE);
    let pieces = Mutex::new(room.zip(from.chunks(PIECE)));
    pool.each(from.len().div_ceil(PIECE), |_, _| {
        let next = pieces.lock().unwrap_or_else(PoisonError::into_inner).next();
        if let Some((to, from)) = next {
            for (to, &byte) in to.iter_mut().zip(from) {
                to.write(byte);
            }
        }
    });
    // SAFETY: there were as many tasks as pieces, so every byte was written.
    unsafe { copy.set_len(from.len()) };
    Ok(copy)
}

impl Drop for Transfer {
    fn drop(&mut self) {
        // A lost device does not write any more.
        let _ = self.finish();
    }
}

/// Page-locked host memory.
struct Host {
    driver: Arc<dyn Driver>,
    bytes: Vec<u8>,
    is_pinned: bool,
}

impl Host {
    fn new(driver: &Arc<dyn Driver>, bytes: usize) -> Result<Self> {
        let bytes = waterline_quant::zeroed(bytes.max(1)).map_err(|_| {
            let what = format!("{bytes} bytes of staging memory for checkpoints");
            Error::memory(what, "use a session without a prefix store")
        })?;
        Ok(Host {
            driver: Arc::clone(driver),
            is_pinned: driver.pin(&bytes),
            bytes,
        })
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if self.is_pinned {
            self.driver.unpin(&self.bytes);
        }
    }
}

#[cfg(all(test, feature = "emulator"))]
mod tests {
    use super::*;
    use crate::cuda::Emulator;

    #[test]
    fn a_copy_has_the_bytes_that_were_there_when_it_began() {
        let driver: Arc<dyn Driver> = Emulator::open();
        let queue = Arc::clone(&driver).queue().expect("a queue");
        let (memory, pool) = (
            Memory::new(&driver, 3 * PIECE).expect("memory"),
            Pool::new(2).expect("a pool"),
        );
        let bytes: Vec<u8> = (0..memory.bytes()).map(|at| (at % 251) as u8).collect();
        let mut transfer = Transfer::new(&driver, 2 * PIECE).expect("a transfer");
        for parts in [[0..10, 20..2 * PIECE - 7], [100..100, PIECE..2 * PIECE]] {
            queue.write(memory.address(), &bytes).expect("written");
            let from = memory.address();
            let begun = transfer.begin(&*queue, from, parts.iter().cloned());
            begun.expect("begun");
            queue.clear(from, memory.bytes()).expect("zeros");
            let lengths = parts.clone().map(|part| part.len());
            let copies = transfer.end(&pool, lengths).expect("ended");
            for (copy, part) in copies.iter().zip(parts) {
                assert!(copy[..] == bytes[part]);
            }
        }
    }
}
