//! The op on a CPU.

use super::{Groups, Route, Scoring};
use crate::cpu::{Frame, simd};
use crate::ops::CpuOp;
use crate::ops::softmax::softmax;

impl Route {
    #[inline(always)]
    fn choose(&self, scores: &mut [f32], out: &mut [f32]) {
        if let Some(cap) = self.router.softcap {
            // tanh(x) is 2 sigmoid(2 x) - 1.
            let bend = |x: f32| cap * (2.0 * simd::sigmoid(2.0 * x / cap) - 1.0);
            scores.iter_mut().for_each(|x| *x = bend(*x));
        }
        match self.router.scoring {
            Scoring::Softmax => softmax(scores),
            Scoring::Sigmoid => scores.iter_mut().for_each(|x| *x = simd::sigmoid(*x)),
        }
        let bias = |i: usize| self.bias.as_ref().map_or(0.0, |bias| bias[i]);
        if let Some(groups) = self.router.groups {
            drop_groups(scores, groups, bias);
        }
        let (numbers, chosen) = out.split_at_mut(self.out.width / 2);
        for (number, weight) in numbers.iter_mut().zip(chosen.iter_mut()) {
            let mut best = 0;
            for (i, x) in scores.iter().enumerate() {
                if x + bias(i) > scores[best] + bias(best) {
                    best = i;
                }
            }
            (*number, *weight) = (best as f32, scores[best]);
            scores[best] = f32::NEG_INFINITY;
        }
        if let Some(more) = self.router.normalize {
            simd::scale(1.0 / (chosen.iter().sum::<f32>() + more), chosen);
        }
        if self.router.scale != 1.0 {
            simd::scale(self.router.scale, chosen);
        }
        if let Some(gains) = &self.gains {
            for (number, weight) in numbers.iter().zip(chosen) {
                *weight *= gains[*number as usize];
            }
        }
    }
}

/// Excludes the members of all but the best groups.
#[inline(always)]
fn drop_groups(scores: &mut [f32], groups: Groups, bias: impl Fn(usize) -> f32) {
    let size = scores.len() / groups.count;
    let mut sums = [0.0f32; Groups::MOST];
    for (group, sum) in sums[..groups.count].iter_mut().enumerate() {
        let mut best = [f32::NEG_INFINITY; 2];
        for i in group * size..(group + 1) * size {
            let x = scores[i] + bias(i);
            if x > best[0] {
                best = [x, best[0]];
            } else if x > best[1] {
                best[1] = x;
            }
        }
        *sum = best[0] + best[1];
    }
    for (group, &sum) in sums[..groups.count].iter().enumerate() {
        let before = |(other, &x): (usize, &f32)| x > sum || (x == sum && other < group);
        let better = sums[..groups.count].iter().enumerate();
        if better.filter(|&other| before(other)).count() >= groups.top_k {
            scores[group * size..(group + 1) * size].fill(f32::NEG_INFINITY);
        }
    }
}

impl CpuOp for Route {
    fn run(&self, frame: &mut Frame) {
        let mut out = frame.buffers.take(self.out.buffer);
        let (width, stride) = (self.logits.stride, self.out.stride);
        let logits = frame.buffers.get_mut(self.logits.buffer);
        simd::vectorize(
            #[inline(always)]
            || {
                for t in 0..frame.tokens.len() {
                    let scores = &mut logits[t * width + self.logits.start..][..self.logits.width];
                    let out = &mut out[t * stride + self.out.start..][..self.out.width];
                    self.choose(scores, out);
                }
            },
        );
        frame.buffers.put(self.out.buffer, out);
    }
}
