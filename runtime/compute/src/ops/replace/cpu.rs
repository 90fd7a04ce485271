//! The op on a CPU: one task per head.

use super::{FirstValues, Replace};
use crate::cpu::{Frame, Shared, simd};
use crate::operands::View;
use crate::ops::CpuOp;
use crate::weights::Vector;

/// One head's columns of one token.
struct HeadColumns<'a> {
    r: &'a [f32],
    rate: &'a [f32],
    k: &'a mut [f32],
    v: &'a [f32],
    removal: &'a mut [f32],
    bonus: &'a mut [f32],
}

impl Replace {
    /// Computes the removal, the key and the bonus of one head of one token.
    #[inline(always)]
    fn keys(&self, head: usize, columns: HeadColumns) {
        let HeadColumns {
            r,
            rate,
            k,
            v,
            removal,
            bonus,
        } = columns;
        let gains = |gains| -> &[f32] {
            let gains: &Vector = gains;
            &gains[head * k.len()..][..k.len()]
        };
        let (key_gain, rate_gain, bonus_gain) = (
            gains(&self.key_gain),
            gains(&self.rate_gain),
            gains(&self.bonus_gain),
        );
        for ((removal, k), gain) in removal.iter_mut().zip(&*k).zip(key_gain) {
            *removal = k * gain;
        }
        simd::scale(
            1.0 / (simd::dot(removal, removal) + self.eps).sqrt(),
            removal,
        );
        for ((k, rate), gain) in k.iter_mut().zip(rate).zip(rate_gain) {
            *k *= 1.0 + gain * (rate - 1.0);
        }
        let mut sum = 0.0;
        for ((r, k), gain) in r.iter().zip(&*k).zip(bonus_gain) {
            sum += r * k * gain;
        }
        for (bonus, v) in bonus.iter_mut().zip(v) {
            *bonus = sum * v;
        }
    }
}

impl CpuOp for Replace {
    fn run(&self, frame: &mut Frame) {
        let first = match &self.first {
            FirstValues::Keep(view) => Some(*view),
            FirstValues::Mix { .. } => None,
        };
        let changed = [
            Some(self.k),
            Some(self.v),
            Some(self.removal),
            Some(self.bonus),
            first,
        ];
        let mut buffers = changed.map(|view| match view {
            Some(view) => frame.buffers.take(view.buffer),
            None => Vec::new(),
        });
        {
            let [k, v, removal, bonus, first] = buffers.each_mut().map(|b| Shared::new(b));
            frame.pool.each(self.heads, |_, head| {
                simd::vectorize(
                    #[inline(always)]
                    || {
                        for t in 0..frame.tokens.len() {
                            let columns = |view: &View| {
                                let width = view.width / self.heads;
                                let start = t * view.stride + view.start + head * width;
                                start..start + width
                            };
                            let read = |view: &View| &frame.buffers.get(view.buffer)[columns(view)];
                            // SAFETY: each task has its own head's columns (rules: widths, disjoint writes).
                            let k = unsafe { k.part(columns(&self.k)) };
                            // SAFETY: each task has its own head's columns (rules: widths, disjoint writes).
                            let v = unsafe { v.part(columns(&self.v)) };
                            // SAFETY: each task has its own head's columns (rules: widths, disjoint writes).
                            let removal = unsafe { removal.part(columns(&self.removal)) };
                            // SAFETY: each task has its own head's columns (rules: widths, disjoint writes).
                            let bonus = unsafe { bonus.part(columns(&self.bonus)) };
                            match &self.first {
                                FirstValues::Keep(view) => {
                                    // SAFETY: each task has its own head's columns (rules: widths, disjoint writes).
                                    unsafe { first.part(columns(view)) }.copy_from_slice(v);
                                }
                                FirstValues::Mix { first, mix } => {
                                    let inputs = read(first).iter().zip(read(mix));
                                    for (v, (first, mix)) in v.iter_mut().zip(inputs) {
                                        *v += mix * (first - *v);
                                    }
                                }
                            }
                            let columns = HeadColumns {
                                r: read(&self.r),
                                rate: read(&self.rate),
                                k,
                                v,
                                removal,
                                bonus,
                            };
                            self.keys(head, columns);
                        }
                    },
                );
            });
        }
        for (view, buffer) in changed.into_iter().zip(buffers) {
            if let Some(view) = view {
                frame.buffers.put(view.buffer, buffer);
            }
        }
    }
}
