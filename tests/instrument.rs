//! Finds operands that an op accesses without declaring them. For tests.

#![allow(dead_code)] // each crate uses a part

use crate::cpu::Frame;
use crate::cuda::Launches;
use crate::operands::{Access, Operand};
use crate::ops::{CpuOp, DeviceOp, Op};
use crate::state::StateDtype;

/// A NaN that no op produces.
const POISON: u32 = 0x7fc0_dead;

/// Runs the op on a frame in which everything that the op does not declare as read is poisoned, and on the original frame; returns the
/// differences. Buffers listed in `working` are poisoned and may hold anything afterwards.
pub(crate) fn run_named(op: &dyn Op, frame: &mut Frame, working: &[usize]) -> Result<(), String> {
    let access = op.access();
    let tokens = frame.tokens.len();
    let (before, state) = (frame.buffers.clone(), frame.arena.bytes().to_vec());
    let reads = |buffer: usize| columns(&access.reads, buffer, tokens, before.get(buffer).len());
    for buffer in 0..before.count() {
        let values = frame.buffers.get_mut(buffer).iter_mut();
        for (value, is_read) in values.zip(reads(buffer)) {
            if !is_read {
                *value = f32::from_bits(POISON);
            }
        }
    }
    let plan = frame.arena.plan().clone();
    let named = |list: &[Operand], tensor| list.contains(&Operand::State(tensor));
    for (tensor, place) in plan.tensors().iter().enumerate() {
        if !named(&access.reads, tensor) {
            let bytes = &mut frame.arena.bytes_mut()[place.offset..][..place.bytes];
            match place.dtype {
                StateDtype::F32 | StateDtype::F16 | StateDtype::Kv => bytes.fill(u8::MAX),
                // A wrong count that is still small enough for an index.
                StateDtype::U32 | StateDtype::U64 => {
                    for count in bytes.chunks_exact_mut(place.dtype.bytes()) {
                        let was_zero = count.iter().all(|&byte| byte == 0);
                        count.fill(0);
                        count[0] = was_zero.into();
                    }
                }
            }
        }
    }
    let poisoned_state = frame.arena.bytes().to_vec();
    op.run(frame);
    let (found, found_state) = (frame.buffers.clone(), frame.arena.bytes().to_vec());

    *frame.buffers = before.clone();
    frame.arena.bytes_mut().copy_from_slice(&state);
    op.run(frame);
    for (tensor, place) in plan.tensors().iter().enumerate() {
        let of = |bytes: &[u8]| bytes[place.offset..][..place.bytes].to_vec();
        let (now, found) = (of(frame.arena.bytes()), of(&found_state));
        let untouched = now == of(&state) && found == of(&poisoned_state);
        let as_named = named(&access.writes, tensor) && now == found;
        if !(untouched || as_named) {
            let name = &place.name;
            return Err(format!(
                "{}: state tensor {tensor} ({name}) is not what it names",
                op.name()
            ));
        }
    }
    for buffer in (0..before.count()).filter(|buffer| !working.contains(buffer)) {
        let writes = columns(&access.writes, buffer, tokens, before.get(buffer).len());
        for (i, (is_written, is_read)) in writes.into_iter().zip(reads(buffer)).enumerate() {
            let [old, now, found] =
                [&before, &*frame.buffers, &found].map(|buffers| buffers.get(buffer)[i].to_bits());
            let untouched = now == old && found == if is_read { old } else { POISON };
            if !(untouched || is_written && now == found) {
                return Err(format!(
                    "{}: value {i} of buffer {buffer}, of {tokens} tokens, is not what it names",
                    op.name()
                ));
            }
        }
    }
    Ok(())
}

/// Returns which values of a buffer of this length the operands cover.
fn columns(operands: &[Operand], buffer: usize, tokens: usize, length: usize) -> Vec<bool> {
    let mut named = vec![false; length];
    for operand in operands {
        let Operand::Columns(view) = operand else {
            continue;
        };
        if view.buffer == buffer {
            for row in named.chunks_mut(view.stride).take(tokens) {
                row[view.start..][..view.width].fill(true);
            }
        }
    }
    named
}

/// An op that does not declare all its accesses.
struct Silent<'a> {
    op: &'a dyn Op,
    access: Access,
}

impl DeviceOp for Silent<'_> {
    fn launch(&self, launches: &mut Launches) -> crate::error::Result<()> {
        self.op.launch(launches)
    }
}

impl Op for Silent<'_> {
    fn access(&self) -> Access {
        self.access.clone()
    }
}

impl CpuOp for Silent<'_> {
    fn run(&self, frame: &mut Frame) {
        self.op.run(frame);
    }

    fn scratch(&self, chunk: usize) -> usize {
        self.op.scratch(chunk)
    }

    fn common(&self, threads: usize) -> usize {
        self.op.common(threads)
    }
}

/// Omits each operand in turn; returns the operands whose omission `run_named` does not detect.
pub(crate) fn unnoticed(op: &dyn Op, frame: &mut Frame, working: &[usize]) -> Vec<Operand> {
    let (buffers, state) = (frame.buffers.clone(), frame.arena.bytes().to_vec());
    let full = op.access();
    let mut unnoticed = Vec::new();
    let all = full.reads.iter().chain(&full.writes);
    for &operand in all {
        let without = |list: &[Operand]| -> Vec<Operand> {
            list.iter().filter(|&o| *o != operand).copied().collect()
        };
        let access = Access {
            reads: without(&full.reads),
            writes: without(&full.writes),
        };
        let silent = Silent { op, access };
        if run_named(&silent, frame, working).is_ok() {
            unnoticed.push(operand);
        }
        *frame.buffers = buffers.clone();
        frame.arena.bytes_mut().copy_from_slice(&state);
    }
    unnoticed
}
