//! The selective scan: a recurrence whose every channel keeps a vector of `state` values, each with a decay of its
//! own. For channel d and component n (Mamba, arXiv 2312.00752, algorithm 2):
//!
//! ```text
//! h[n, d] <- exp(step_d rate[n, d]) h[n, d] + step_d x_d b[n],    y_d = sum_n c[n] h[n, d]
//! ```
//!
//! The decay differs from component to component and from token to token, so that no matrix form exists: a chunk is
//! the steps in order, which is also why both give the same bits.

use super::{Access, DeviceOp, Op};
use crate::cpu::{Frame, Shared, simd};
use crate::cuda::{Call, Grid, Launches, Parameter};
use crate::error::Result;
use crate::operands::View;
use crate::ops::Rules;
use crate::state::{StatePlan, Touched};
use crate::weights::Vector;

/// The scan over all channels.
pub struct Scan {
    /// Inputs x `[channels]`.
    pub x: View,
    /// Step sizes before their softplus, `[channels]`.
    pub step: View,
    /// How much of an input each component takes, `[state]`.
    pub b: View,
    /// How much of each component is read, `[state]`.
    pub c: View,
    /// A, `[state, channels]`.
    pub rate: Vector,
    /// The state tensor of the states `[state, channels]`.
    pub state: usize,
    /// Outputs y `[channels]`.
    pub out: View,
}

impl Op for Scan {
    fn run(&self, frame: &mut Frame) {
        let channels = self.x.width;
        let mut out = frame.buffers.take(self.out.buffer);
        {
            let out = Shared::new(&mut out);
            let states = Shared::new(frame.arena.tensor_mut::<f32>(self.state));
            let columns = |view: &View, t: usize, start: usize, width: usize| {
                &frame.buffers.get(view.buffer)[t * view.stride + view.start + start..][..width]
            };
            let components = self.b.width;
            frame.pool.each(channels.div_ceil(BLOCK), |_, task| {
                let first = task * BLOCK;
                let width = BLOCK.min(channels - first);
                simd::vectorize(
                    #[inline(always)]
                    || {
                        for t in 0..frame.tokens.len() {
                            let start = t * self.out.stride + self.out.start + first;
                            step(
                                columns(&self.x, t, first, width),
                                columns(&self.step, t, first, width),
                                columns(&self.b, t, 0, components),
                                columns(&self.c, t, 0, components),
                                |n| &self.rate[n * channels + first..][..width],
                                // SAFETY: each task has its own channels of the states (rules: widths, bounds).
                                |n| unsafe {
                                    states.part(n * channels + first..n * channels + first + width)
                                },
                                // SAFETY: each task has its own channels of the output (rules: widths, disjoint writes).
                                unsafe { out.part(start..start + width) },
                            );
                        }
                    },
                );
            });
        }
        frame.buffers.put(self.out.buffer, out);
    }

    fn access(&self) -> Access {
        Access::default()
            .reads([self.x, self.step, self.b, self.c])
            .state([self.state])
            .writes([self.out])
    }

    fn check(&self, rules: &mut Rules) {
        rules.width("out", self.out, self.x.width);
        rules.state(self.state, &[Some(self.b.width), Some(self.x.width)]);
    }

    fn touched(&self, plan: &StatePlan, _position: u64) -> Vec<Touched> {
        vec![Touched::whole(plan, self.state)]
    }
}

impl DeviceOp for Scan {
    fn launch(&self, launches: &mut Launches) -> Result<()> {
        let (channels, components) = (self.x.width, self.b.width);
        // Channels of a block, and tokens that are in shared memory at once.
        let (block, batch) = (32, if launches.tokens == 1 { 1 } else { 8 });
        let inputs = [self.x, self.step, self.b, self.c];
        let aligned = inputs.iter().all(|view| launches.rows(*view).is_aligned());
        launches.push_prefetching(Call {
            source: include_str!("scan.cu"),
            kernel: format!("scan<{channels}, {components}, {batch}, {aligned}>"),
            grid: Grid::Blocks(channels.div_ceil(block)),
            threads: 128,
            shared: 0,
            parameters: vec![
                launches.view(self.x),
                launches.view(self.step),
                launches.view(self.b),
                launches.view(self.c),
                launches.vector(&self.rate)?,
                launches.state("float", self.state),
                launches.view(self.out),
                Parameter::tokens(),
            ],
        });
        Ok(())
    }
}

/// Channels of a task: their states stay in the nearest cache while a chunk passes.
const BLOCK: usize = 64;

/// One token of up to [`BLOCK`] channels. `rate(n)` and `state(n)` are the channels' values of component n.
#[inline(always)]
fn step<'s>(
    x: &[f32],
    step: &[f32],
    b: &[f32],
    c: &[f32],
    rate: impl Fn(usize) -> &'s [f32],
    state: impl Fn(usize) -> &'s mut [f32],
    y: &mut [f32],
) {
    let (mut steps, mut writes) = ([0.0f32; BLOCK], [0.0f32; BLOCK]);
    let (steps, writes) = (&mut steps[..x.len()], &mut writes[..x.len()]);
    for l in 0..x.len() {
        steps[l] = simd::softplus(step[l]);
        writes[l] = steps[l] * x[l];
        y[l] = 0.0;
    }
    for (n, (&b, &c)) in b.iter().zip(c).enumerate() {
        let (rate, state) = (rate(n), state(n));
        for l in 0..x.len() {
            state[l] = simd::exp(steps[l] * rate[l]) * state[l] + writes[l] * b;
            y[l] += c * state[l];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_the_equations_on_odd_sizes() {
        let value = |i: usize| ((i * 7919 + 13) % 101) as f32 / 50.0 - 1.0;
        for (channels, components, tokens) in [(1, 1, 3), (7, 5, 4), (64, 16, 5), (61, 3, 9)] {
            let rate: Vec<f32> = (0..components * channels)
                .map(|i| -2.0 - value(i))
                .collect();
            let mut state = vec![0.0f32; components * channels];
            let mut expected = vec![0.0f64; components * channels];
            for t in 0..tokens {
                let row = |salt: usize, n: usize| -> Vec<f32> {
                    (0..n).map(|i| value(1000 * salt + 100 * t + i)).collect()
                };
                let (x, steps) = (row(1, channels), row(2, channels));
                let (b, c) = (row(3, components), row(4, components));
                let mut y = vec![0.0; channels];
                let states = Shared::new(&mut state);
                simd::vectorize(
                    #[inline(always)]
                    || {
                        step(
                            &x,
                            &steps,
                            &b,
                            &c,
                            |n| &rate[n * channels..][..channels],
                            // SAFETY: one thread, one part at a time.
                            |n| unsafe { states.part(n * channels..(n + 1) * channels) },
                            &mut y,
                        );
                    },
                );
                for d in 0..channels {
                    let step = f64::from(steps[d]).exp().ln_1p();
                    let mut sum = 0.0f64;
                    for n in 0..components {
                        let h = &mut expected[n * channels + d];
                        *h = (step * f64::from(rate[n * channels + d])).exp() * *h
                            + step * f64::from(x[d] * b[n]);
                        sum += f64::from(c[n]) * *h;
                    }
                    assert!(
                        (f64::from(y[d]) - sum).abs() < 1e-5,
                        "{channels} {components} {t} {d}: {} {sum}",
                        y[d]
                    );
                }
            }
        }
    }
}
