//! The op on a CPU: one task per head of each partition.

use super::{ChosenGroup, ConvChosen};
use crate::cpu::{Frame, Shared, simd};
use crate::ops::CpuOp;
use crate::ops::route::Chosen;

impl CpuOp for ConvChosen {
    fn run(&self, frame: &mut Frame) {
        let Some(first) = self.groups.first() else {
            return;
        };
        let mut out = frame.buffers.take(first.out.buffer);
        {
            let shared = Shared::new(&mut out);
            let state = frame.arena.shared();
            let chosen = Chosen::new(&self.route, frame.buffers.get(self.route.buffer));
            let heads = |group: &ChosenGroup| group.out.width / group.head_dim;
            frame
                .pool
                .each(self.groups.iter().map(heads).sum(), |_, task| {
                    let (mut group, mut head) = (first, task);
                    for next in &self.groups[1..] {
                        if head < heads(group) {
                            break;
                        }
                        head -= heads(group);
                        group = next;
                    }
                    let column = head * group.head_dim;
                    let (partition, inner) = (
                        column / group.width(self.partitions),
                        column % group.width(self.partitions),
                    );
                    let input = if group.input.width == group.out.width {
                        column
                    } else {
                        inner
                    };
                    let width = group.width(self.partitions);
                    let past = group.conv.weight.len() / width - 1;
                    let history = |row: usize| {
                        let start = (partition * past + row) * width + inner;
                        // SAFETY: each task writes its columns of one partition's last inputs (rules: widths,
                        // bounds).
                        unsafe {
                            state.tensor::<f32>(group.conv.state, start..start + group.head_dim)
                        }
                    };
                    simd::vectorize(
                        #[inline(always)]
                        || {
                            for t in 0..frame.tokens.len() {
                                if chosen.rank(t, partition).is_none() {
                                    continue;
                                }
                                let start = t * group.input.stride + group.input.start + input;
                                let x = &frame.buffers.get(group.input.buffer)[start..]
                                    [..group.head_dim];
                                let start = t * group.out.stride + group.out.start + column;
                                // SAFETY: each task has its own columns of the output (rules: widths, disjoint writes).
                                let y = unsafe { shared.part(start..start + group.head_dim) };
                                group.step(width, inner, past, x, &history, y);
                            }
                        },
                    );
                });
        }
        frame.buffers.put(first.out.buffer, out);
    }
}

impl ChosenGroup {
    /// Processes one token of one head: `history(row)` returns the head's last inputs, oldest first.
    #[inline(always)]
    fn step<'s>(
        &self,
        width: usize,
        column: usize,
        past: usize,
        x: &[f32],
        history: &impl Fn(usize) -> &'s mut [f32],
        y: &mut [f32],
    ) {
        let tap = |row: usize| &self.conv.weight[row * width + column..][..x.len()];
        match &self.conv.bias {
            Some(bias) => y.copy_from_slice(&bias[column..][..x.len()]),
            None => y.fill(0.0),
        }
        for row in 0..past {
            let old = history(row);
            for ((y, w), old) in y.iter_mut().zip(tap(row)).zip(old.iter()) {
                *y += w * old;
            }
            if row > 0 {
                history(row - 1).copy_from_slice(old);
            }
        }
        if past > 0 {
            history(past - 1).copy_from_slice(x);
        }
        for ((y, w), x) in y.iter_mut().zip(tap(past)).zip(x) {
            *y = simd::silu(*y + w * x);
        }
        if self.unit_length {
            simd::scale(1.0 / (simd::dot(y, y) + 1e-6).sqrt(), y);
        }
    }
}
