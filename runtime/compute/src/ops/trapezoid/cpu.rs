//! The op on a CPU: one task per head, token by token.

use std::f32::consts::{PI, TAU};

use super::Trapezoid;
use crate::cpu::{Frame, Shared, simd};
use crate::operands::View;
use crate::ops::CpuOp;

/// A head's state.
struct State<'a> {
    angle: &'a mut [f32],
    key: &'a mut [f32],
    value: &'a mut [f32],
    weight: &'a mut f32,
}

/// A head's columns of one token.
struct Token<'a> {
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    step: f32,
    share: f32,
    rate: f32,
    turn: &'a [f32],
}

/// A head's results of one token, in the order of [`super::TrapezoidOutputs`].
type Results<'a> = [&'a mut [f32]; 6];

impl Trapezoid {
    /// Processes one head of one token. `turned` has room for the cosines, then the sines, of the angles.
    #[inline(always)]
    fn token(
        &self,
        head: usize,
        token: Token,
        state: &mut State,
        results: Results,
        turned: &mut [f32],
    ) {
        let Token { step, share, .. } = token;
        let [q, key, value, decay, write, bonus] = results;
        let (cosines, sines) = turned.split_at_mut(state.angle.len());
        let angles = state.angle.iter_mut().zip(token.turn);
        for ((angle, turn), (cos, sin)) in angles.zip(cosines.iter_mut().zip(&mut *sines)) {
            let sum = *angle + PI * turn * step;
            *angle = sum - TAU * (sum / TAU).floor();
            (*sin, *cos) = simd::sin_cos(*angle);
        }
        let own = head * q.len()..(head + 1) * q.len();
        self.q_norm.apply(token.q, q);
        simd::add(&self.q_bias[own.clone()], q);
        rotate(cosines, sines, q);
        key.copy_from_slice(state.key);
        self.k_norm.apply(token.k, state.key);
        simd::add(&self.k_bias[own], state.key);
        rotate(cosines, sines, state.key);
        value.copy_from_slice(state.value);
        state.value.copy_from_slice(token.v);

        decay[0] = token.rate.min(-self.least_rate) * step;
        write[0] = simd::exp(decay[0]) * (*state.weight + (1.0 - share) * step);
        *state.weight = share * step;
        let gain = self.skip[head] + *state.weight * simd::dot(q, state.key);
        for (bonus, v) in bonus.iter_mut().zip(token.v) {
            *bonus = gain * v;
        }
    }
}

/// Rotates the first pairs of a head's values, one for each angle.
#[inline(always)]
fn rotate(cosines: &[f32], sines: &[f32], head: &mut [f32]) {
    let angles = cosines.iter().zip(sines);
    for ([a, b], (cos, sin)) in head.as_chunks_mut::<2>().0.iter_mut().zip(angles) {
        (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
    }
}

impl CpuOp for Trapezoid {
    fn run(&self, frame: &mut Frame) {
        let [dk, dv, pairs] = self.widths();
        let sharing = self.heads / (self.q.width / dk);
        let views = self.out.views();
        let widths = views.map(|view| view.width / self.heads);
        let mut buffers = views.map(|view| frame.buffers.take(view.buffer));
        {
            let results = buffers.each_mut().map(|buffer| Shared::new(buffer));
            let arena = frame.arena.shared();
            frame.pool.each(self.heads, |worker, head| {
                let mut scratch = frame.scratch[worker].lock().expect("scratch");
                let of_head = |tensor: usize, width: usize| {
                    // SAFETY: each task has its own head of the state tensors (rules: widths).
                    unsafe { arena.tensor::<f32>(tensor, head * width..(head + 1) * width) }
                };
                let mut state = State {
                    angle: of_head(self.state.angle, pairs),
                    key: of_head(self.state.key, dk),
                    value: of_head(self.state.value, dv),
                    weight: &mut of_head(self.state.weight, 1)[0],
                };
                simd::vectorize(
                    #[inline(always)]
                    || {
                        for t in 0..frame.tokens.len() {
                            let columns = |view: &View, part: usize, width: usize| {
                                let row = view.token(frame.buffers, t);
                                &row[part * width..][..width]
                            };
                            let token = Token {
                                q: columns(&self.q, head / sharing, dk),
                                k: columns(&self.k, head / sharing, dk),
                                v: columns(&self.v, head, dv),
                                step: columns(&self.step, head, 1)[0],
                                share: columns(&self.share, head, 1)[0],
                                rate: columns(&self.rate, head, 1)[0],
                                turn: columns(&self.turn, 0, pairs),
                            };
                            let own: Results = std::array::from_fn(|i| {
                                let first = views[i].columns(t).start + head * widths[i];
                                // SAFETY: each task has its own head's columns (rules: widths, disjoint writes).
                                unsafe { results[i].part(first..first + widths[i]) }
                            });
                            self.token(head, token, &mut state, own, &mut scratch[..2 * pairs]);
                        }
                    },
                );
            });
        }
        for (view, buffer) in views.into_iter().zip(buffers) {
            frame.buffers.put(view.buffer, buffer);
        }
    }

    fn reads_chunks_as_steps(&self) -> bool {
        true
    }

    fn scratch(&self, _chunk: usize) -> usize {
        2 * self.turn.width
    }
}
