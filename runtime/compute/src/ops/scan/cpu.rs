//! The op on a CPU.

use super::Scan;
use crate::cpu::{Frame, Shared, simd};
use crate::operands::View;
use crate::ops::CpuOp;

impl CpuOp for Scan {
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

    fn reads_chunks_as_steps(&self) -> bool {
        true
    }
}

/// Channels per task: their states stay in the L1 cache while a chunk passes.
const BLOCK: usize = 64;

/// Processes one token of up to [`BLOCK`] channels. `rate(n)` and `state(n)` are the channels' values of component n.
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
