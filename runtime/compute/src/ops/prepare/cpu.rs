//! The op on a CPU: one task per head, then the gates.

use super::conv::HeadColumns;
use super::gate::Gate;
use super::{HeadGroup, Prepare};
use crate::cpu::{Frame, Shared, simd};
use crate::operands::View;
use crate::ops::CpuOp;

impl Prepare {
    fn run_groups(&self, frame: &mut Frame, values: &mut [f32]) {
        let View { buffer, stride, .. } = self.groups[0].view;
        let values = Shared::new(values);
        // Columns that a head group reads in addition to its own.
        let columns = |view: &View, t: usize, column: usize, dim: usize| {
            let start = t * view.stride + view.start + column;
            if view.buffer == buffer {
                // SAFETY: no head group changes columns that another head group reads (rule: concurrent heads).
                unsafe { values.read(start..start + dim) }
            } else {
                &frame.buffers.get(view.buffer)[start..start + dim]
            }
        };
        let state = frame.arena.shared();
        let position = frame.position;
        let angles = self
            .rope
            .as_ref()
            .map(|rope| (frame.buffers.get(rope.table.buffer), rope.table.width));
        let heads = self
            .groups
            .iter()
            .map(|group| group.view.width / group.head_dim)
            .sum();
        frame.pool.each(heads, |worker, task| {
            let mut scratch = frame.scratch[worker].lock().expect("scratch");
            let (group, index) = self.group_of(task);
            let column = index * group.head_dim;
            simd::vectorize(
                #[inline(always)]
                || {
                    let tokens = frame.tokens.len();
                    let head = |t: usize| {
                        let start = t * stride + group.view.start + column;
                        // SAFETY: each task has its own head's columns of the values (rules: widths, disjoint writes).
                        unsafe { values.part(start..start + group.head_dim) }
                    };
                    if let Some(conv) = &group.conv {
                        if let Some(gate) = &conv.gate {
                            for t in 0..tokens {
                                simd::multiply(columns(gate, t, column, group.head_dim), head(t));
                            }
                        }
                        let head = HeadColumns {
                            values: &values,
                            stride,
                            column,
                            tokens,
                        };
                        // SAFETY: each task has its own head's columns of the values and of the history (rules: widths, disjoint writes).
                        unsafe { group.convolve(conv, &head, &state, &mut scratch) };
                    }
                    for t in 0..tokens {
                        let angles = angles
                            .map_or(&[][..], |(table, angles)| &table[t * angles..][..angles]);
                        for map in &group.maps {
                            let source = map.source().map_or(&[][..], |view| {
                                let (first, width) = map.source_columns(index, group.head_dim);
                                columns(view, t, first, width)
                            });
                            let at = (position + t as u64, angles);
                            map.apply(at, source, head(t), &mut scratch);
                        }
                    }
                },
            );
        });
    }

    /// The head group that the task belongs to, and the head's index within the group.
    fn group_of(&self, mut task: usize) -> (&HeadGroup, usize) {
        for group in &self.groups {
            let heads = group.view.width / group.head_dim;
            if task < heads {
                return (group, task);
            }
            task -= heads;
        }
        unreachable!("tasks are counted over the head groups")
    }
}

impl CpuOp for Prepare {
    fn run(&self, frame: &mut Frame) {
        let tokens = frame.tokens.len();
        if let Some(rope) = &self.rope {
            let angles = rope.table.width;
            let table = frame.buffers.get_mut(rope.table.buffer);
            for t in 0..tokens {
                rope.fill(
                    frame.position + t as u64,
                    &mut table[t * angles..][..angles],
                );
            }
        }
        if let Some(first) = self.groups.first() {
            let mut values = frame.buffers.take(first.view.buffer);
            self.run_groups(frame, &mut values);
            frame.buffers.put(first.view.buffer, values);
        }
        for (view, gate) in &self.gates {
            let mut values = frame.buffers.take(view.buffer);
            let rows = Shared::new(&mut values);
            let columns = |t: usize| {
                let first = t * view.stride + view.start;
                // SAFETY: each token is one task, which writes its own columns (rule: bounds).
                unsafe { rows.part(first..first + view.width) }
            };
            match gate {
                Gate::RunningSoftmax { state, .. } => {
                    let state = frame.arena.tensor_mut(*state);
                    (0..tokens).for_each(|t| gate.apply(columns(t), state));
                }
                _ => frame.each_token(
                    #[inline(always)]
                    |t| gate.apply(columns(t), &mut []),
                ),
            }
            frame.buffers.put(view.buffer, values);
        }
    }

    fn reads_chunks_as_steps(&self) -> bool {
        true
    }

    fn scratch(&self, _chunk: usize) -> usize {
        // The convolution's history, or the input of a linear map.
        let room = |group: &HeadGroup| {
            let past = group
                .conv
                .as_ref()
                .map_or(0, |conv| conv.weight.len() / group.view.width - 1);
            past.max(1) * group.head_dim
        };
        self.groups.iter().map(room).max().unwrap_or(0)
    }
}
