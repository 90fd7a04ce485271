//! Parameters of kernels for each slot of a program, in device memory.

use crate::cuda::driver::{Address, Driver, Memory, Queue};
use crate::cuda::schedule::{Call, Queued};
use crate::error::Result;
use std::sync::Arc;

/// Placeholder for the address of a slot's state while its calls are written. No parameter has a number like the upper half of such an
/// address: as a float it is NaN, as an integer larger than any dimension.
pub(super) const STATE: Address = 0x7ff4_0000_0000_0000;
pub(super) const STATES: std::ops::Range<Address> = STATE..STATE + (1 << 40);

/// The parameters of all slots; the parameters of a slot are contiguous.
pub(super) struct Table {
    memory: Memory,
    /// The host's copy of the table.
    words: Vec<u64>,
    /// Words of a slot.
    stride: usize,
    /// The words of a slot that hold addresses in its state: index of the word, and offset in the state.
    places: Vec<(usize, u64)>,
    /// The state of each slot that the table refers to.
    states: Vec<Address>,
}

impl Table {
    /// Builds the table from the calls of each slot, which are the same kernels in the same order. Also returns the offset of each call's
    /// parameters in a slot, in bytes.
    pub fn new(
        slots: &[Vec<&Queued>],
        driver: &Arc<dyn Driver>,
        queue: &dyn Queue,
    ) -> Result<(Self, Vec<usize>)> {
        let bytes = |queued: &&Queued| queued.call.packed_bytes();
        let stride = slots[0].iter().map(bytes).sum::<usize>() / size_of::<u64>();
        let mut words = vec![0; stride * slots.len()];
        for (calls, words) in slots.iter().zip(words.chunks_exact_mut(stride.max(1))) {
            let mut rest = words;
            for queued in calls {
                let part;
                (part, rest) = rest.split_at_mut(bytes(queued) / size_of::<u64>());
                pack(&queued.call, part);
            }
        }
        let in_state =
            |(word, value): (usize, &u64)| STATES.contains(value).then(|| (word, value - STATE));
        let first = &words[..stride];
        let table = Table {
            memory: Memory::new(driver, size_of_val(&words[..]))?,
            places: first.iter().enumerate().filter_map(in_state).collect(),
            states: vec![STATE; slots.len()],
            stride,
            words,
        };
        queue.write(table.memory.address(), bytemuck::cast_slice(&table.words))?;
        let starts = slots[0].iter().scan(0, |end, queued| {
            let start = *end;
            *end += bytes(queued);
            Some(start)
        });
        Ok((table, starts.collect()))
    }

    /// Returns the address of the table.
    pub fn address(&self) -> Address {
        self.memory.address()
    }

    /// Returns the bytes of a slot.
    pub fn stride(&self) -> usize {
        self.stride * size_of::<u64>()
    }

    /// Bytes of device memory.
    pub fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    /// Makes slot `slot` work on the state at `state` from now on.
    pub fn set_state(&mut self, slot: usize, state: Address, queue: &dyn Queue) -> Result<()> {
        if self.states[slot] == state {
            return Ok(());
        }
        let place = self.memory.address() + (slot * self.stride()) as u64;
        let words = &mut self.words[slot * self.stride..][..self.stride];
        for &(word, offset) in &self.places {
            words[word] = state + offset;
        }
        self.states[slot] = state;
        queue.write(place, bytemuck::cast_slice(words))
    }
}

/// Writes a call's parameters at [`Call::offsets`].
fn pack(call: &Call, words: &mut [u64]) {
    for (at, value) in call.offsets().zip(call.values()) {
        words[at / size_of::<u64>()..][..value.len()].copy_from_slice(value);
    }
}
