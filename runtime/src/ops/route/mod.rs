//! A router: which few of many partitions a token uses, and how much.

use super::softmax::softmax;
use super::{Access, DeviceOp, Op};
use crate::cpu::{Frame, simd};
use crate::cuda::{Call, Grid, Launches, Parameter};
use crate::error::Result;
use crate::program::View;

/// Softmax over all partitions, of which the largest are chosen; the lower partition wins a tie.
pub struct Route {
    /// One value for each partition. The op overwrites them.
    pub logits: View,
    /// Whether the weights of the chosen are divided by their sum.
    pub normalize: bool,
    /// The numbers of the chosen partitions, the largest weight first, then their weights: `[2, chosen]`.
    pub out: View,
}

impl Route {
    #[inline(always)]
    fn choose(&self, weights: &mut [f32], out: &mut [f32]) {
        let (numbers, chosen) = out.split_at_mut(self.out.width / 2);
        for (number, weight) in numbers.iter_mut().zip(chosen.iter_mut()) {
            let mut best = 0;
            for (i, x) in weights.iter().enumerate() {
                if *x > weights[best] {
                    best = i;
                }
            }
            (*number, *weight) = (best as f32, weights[best]);
            weights[best] = -1.0;
        }
        if self.normalize {
            simd::scale(1.0 / chosen.iter().sum::<f32>(), chosen);
        }
    }
}

impl Op for Route {
    fn run(&self, frame: &mut Frame) {
        let mut out = frame.buffers.take(self.out.buffer);
        let (width, stride) = (self.logits.stride, self.out.stride);
        let logits = frame.buffers.get_mut(self.logits.buffer);
        simd::vectorize(
            #[inline(always)]
            || {
                for t in 0..frame.tokens.len() {
                    let weights = &mut logits[t * width + self.logits.start..][..self.logits.width];
                    softmax(weights);
                    let out = &mut out[t * stride + self.out.start..][..self.out.width];
                    self.choose(weights, out);
                }
            },
        );
        frame.buffers.put(self.out.buffer, out);
    }

    fn access(&self) -> Access {
        Access::default().updates([self.logits]).writes([self.out])
    }
}

impl DeviceOp for Route {
    fn launch(&self, launches: &mut Launches) -> Result<()> {
        let (partitions, chosen) = (self.logits.width, self.out.width / 2);
        let warps = 4;
        launches.push(Call {
            source: include_str!("route.cu"),
            kernel: format!("route<{partitions}, {chosen}, {}>", self.normalize),
            grid: Grid::EachTile(1, warps),
            threads: 32 * warps,
            shared: 0,
            parameters: vec![
                launches.view(self.logits),
                launches.view(self.out),
                Parameter::tokens(),
            ],
        });
        let [logits, out] = [self.logits, self.out].map(|view| launches.rows(view).bytes());
        launches.touches(&[], &[logits, out]);
        Ok(())
    }
}

/// What a router chose for the tokens of a chunk.
#[derive(Clone, Copy)]
pub(super) struct Chosen<'a> {
    rows: &'a [f32],
    stride: usize,
    chosen: usize,
}

impl<'a> Chosen<'a> {
    /// From the buffer of a [`Route::out`].
    pub fn new(view: &View, buffer: &'a [f32]) -> Self {
        Chosen {
            rows: &buffer[view.start..],
            stride: view.stride,
            chosen: view.width / 2,
        }
    }

    /// The partition with the largest weight but `rank` for token t.
    #[inline(always)]
    pub fn partition(&self, t: usize, rank: usize) -> usize {
        self.rows[t * self.stride + rank] as usize
    }

    /// Its weight.
    #[inline(always)]
    pub fn weight(&self, t: usize, rank: usize) -> f32 {
        self.rows[t * self.stride + self.chosen + rank]
    }

    /// How many chosen partitions weigh more than this one for token t; none if it is not chosen itself.
    #[inline(always)]
    pub fn rank(&self, t: usize, partition: usize) -> Option<usize> {
        (0..self.chosen).find(|&rank| self.partition(t, rank) == partition)
    }
}

#[cfg(test)]
mod tests {
    use super::super::rig::Rig;
    use super::*;

    fn chosen(logits: &[f32], chosen: usize, normalize: bool) -> Vec<f32> {
        let out = View::whole(1, 2 * chosen);
        let op = Route {
            logits: View::whole(0, logits.len()),
            normalize,
            out,
        };
        let widths = [logits.len(), out.width];
        let fill = |buffer: usize, _: usize, row: &mut [f32]| {
            if buffer == 0 {
                row.copy_from_slice(logits);
            }
        };
        Rig::new(&op, &widths, &[]).read(&[1], fill, out).0
    }

    #[test]
    fn the_largest_come_first_and_the_lower_wins_a_tie() {
        let (a, b) = (3.0f32.ln(), 2.0f32.ln());
        let found = chosen(&[0.0, a, b, b, a], 3, false);
        assert_eq!(found[..3], [1.0, 4.0, 2.0]);
        for (weight, expected) in found[3..].iter().zip([3.0, 3.0, 2.0]) {
            assert!((weight - expected / 11.0).abs() < 1e-6, "{weight}");
        }
    }

    #[test]
    fn weights_of_the_chosen_sum_to_one_if_wanted() {
        let found = chosen(&[1.0, -2.0, 0.5, 4.0], 2, true);
        assert_eq!(found[..2], [3.0, 0.0]);
        let ratio = 3.0f32.exp();
        assert!((found[2] - ratio / (1.0 + ratio)).abs() < 1e-6);
        assert!((found[2] + found[3] - 1.0).abs() < 1e-6);
    }

    #[test]
    fn vanishing_weights_are_still_chosen() {
        assert_eq!(chosen(&[0.0, 500.0, -1.0], 3, false)[..3], [1.0, 0.0, 2.0]);
    }
}
