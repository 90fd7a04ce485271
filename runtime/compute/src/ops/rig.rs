//! Runs a single op over tokens, in chunks of any lengths, for tests.

use std::sync::{Arc, Mutex};

use waterline_quant::Activations;

use super::Op;
use crate::cpu::{Buffers, Frame, Pool};
use crate::instrument::run_named;
use crate::operands::View;
use crate::state::{Arena, StateDtype, StateKind, StateOptions, StatePlan, StateTensor};

/// A plan of state tensors with these types and shapes, numbered from zero.
pub(crate) fn plan(tensors: &[(StateDtype, &[usize])]) -> StatePlan {
    let mut plan = StatePlan::default();
    for (dtype, shape) in tensors {
        let tensor = StateTensor::new("tensor", StateKind::Matrix, *dtype, shape);
        let added = plan.add(Some(0), &tensor, &StateOptions::default());
        added.expect("a small tensor");
    }
    plan
}

/// Adjacent columns of these widths in buffer 0.
pub(crate) fn side_by_side<const N: usize>(widths: [usize; N]) -> [View; N] {
    let stride = widths.iter().sum();
    let mut start = 0;
    widths.map(|width| {
        start += width;
        View {
            buffer: 0,
            start: start - width,
            width,
            stride,
        }
    })
}

/// An op with its buffers and state.
pub(super) struct Rig<'a> {
    op: &'a dyn Op,
    widths: &'a [usize],
    arena: Arena,
    pool: Pool,
    working: &'a [usize],
}

impl<'a> Rig<'a> {
    /// Creates buffers of `widths`, and state tensors of the types and shapes in `tensors`, numbered from zero.
    pub fn new(op: &'a dyn Op, widths: &'a [usize], tensors: &[(StateDtype, &[usize])]) -> Self {
        Rig {
            op,
            widths,
            arena: Arena::new(Arc::new(plan(tensors))).expect("memory"),
            pool: Pool::new(2).expect("threads"),
            working: &[],
        }
    }

    /// Declares these buffers as working memory, which an op uses without naming it.
    pub fn working(mut self, buffers: &'a [usize]) -> Self {
        self.working = buffers;
        self
    }

    /// Sets the number of threads; the default is two.
    pub fn threads(mut self, threads: usize) -> Self {
        self.pool = Pool::new(threads).expect("threads");
        self
    }

    /// Resets the state and reads tokens in chunks of the lengths `chunks`: `fill(buffer, token, row)` writes the
    /// inputs. Returns the columns `out` of every token, and the bytes of the state.
    pub fn read(
        &mut self,
        chunks: &[usize],
        fill: impl Fn(usize, usize, &mut [f32]),
        out: View,
    ) -> (Vec<f32>, Vec<u8>) {
        self.arena.reset();
        let longest = chunks.iter().copied().max().unwrap_or(0);
        let scratch = self.op.scratch(longest);
        let scratch: Vec<_> = (0..self.pool.threads())
            .map(|_| Mutex::new(vec![f32::NAN; scratch]))
            .collect();
        let mut common = vec![f32::NAN; self.op.common(self.pool.threads())];
        let mut buffers = Buffers::new(self.widths, longest).expect("memory");
        let widest = *self.widths.iter().max().unwrap_or(&1);
        let mut inputs = Activations::new(longest, widest).expect("memory");
        let (mut outputs, mut position) = (Vec::new(), 0);
        for &chunk in chunks {
            for (buffer, &width) in self.widths.iter().enumerate() {
                for (t, row) in buffers.get_mut(buffer).chunks_exact_mut(width).enumerate() {
                    fill(buffer, position + t, row);
                }
            }
            let mut frame = Frame {
                pool: &self.pool,
                buffers: &mut buffers,
                inputs: &mut inputs,
                scratch: &scratch,
                common: &mut common,
                arena: &mut self.arena,
                tokens: &vec![0; chunk],
                position: position as u64,
                in_step_order: false,
            };
            run_named(self.op, &mut frame, self.working).expect("an op that names what it touches");
            for t in 0..chunk {
                let row = t * out.stride + out.start;
                outputs.extend_from_slice(&buffers.get(out.buffer)[row..row + out.width]);
            }
            position += chunk;
        }
        (outputs, self.arena.bytes().to_vec())
    }
}

/// A pseudo-random number from -1 to 1.
pub(crate) fn noise(seed: usize) -> f32 {
    let mut x = (seed as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x ^= x >> 29;
    x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^= x >> 32;
    (x & 0xffff) as f32 / 32768.0 - 1.0
}
