//! What happens to projected values before they meet the state: short convolutions, feature maps, head norms,
//! rotary positions, gates. In place, one task a head.

use serde::{Deserialize, Serialize};

use super::activation::{Activation, log_sigmoid};
use super::norm::Norm;
use super::softmax::softmax;
use crate::cpu::{Frame, Shared, SharedArena, simd};
use crate::program::{Vector, View};

/// Lanes, then gates.
pub struct Prepare {
    /// Columns of one buffer that are prepared head by head.
    pub lanes: Vec<Lane>,
    /// Positions, where a lane has [`Map::Rope`].
    pub rope: Option<Rope>,
    /// Columns that are mapped token by token.
    pub gates: Vec<(View, Gate)>,
}

/// Columns with the same treatment of each head.
pub struct Lane {
    /// The columns.
    pub view: View,
    /// Width of a head; divides the view's width.
    pub head_dim: usize,
    /// A causal convolution over time of each channel, before the maps.
    pub conv: Option<Conv>,
    /// What follows, in order.
    pub maps: Vec<Map>,
}

impl Lane {
    /// Columns without heads: parts as wide as a divisor of their number up to 128, so that threads can share them.
    pub fn of_channels(view: View, conv: Option<Conv>, maps: Vec<Map>) -> Self {
        let divides = |n: &usize| view.width.is_multiple_of(*n);
        Lane {
            view,
            head_dim: (1..=128).rev().find(divides).unwrap_or(1),
            conv,
            maps,
        }
    }
}

/// `y_t = bias + sum_j weight[taps - 1 - j] x_{t - j}`, for each channel.
pub struct Conv {
    /// `[taps, channels]`: the last row meets the current token.
    pub weight: Vector,
    /// `[channels]`.
    pub bias: Option<Vector>,
    /// The slot with the last `taps - 1` inputs, `[taps - 1, channels]`, oldest first.
    pub slot: usize,
}

impl Conv {
    /// From a checkpoint's weight `[channels, taps]`.
    pub fn new(weight: &[f32], channels: usize, bias: Option<Vector>, slot: usize) -> Self {
        let taps = weight.len() / channels;
        let transposed: Vec<f32> = (0..weight.len())
            .map(|i| weight[i % channels * taps + i / channels])
            .collect();
        Conv {
            weight: transposed.into(),
            bias,
            slot,
        }
    }
}

/// A map of one head's values.
pub enum Map {
    /// A function of each value.
    Activation(Activation),
    /// `x / sqrt(sum x^2 + 1e-6)`.
    L2Norm,
    /// `x / sum |x|`.
    SumNorm,
    /// Softmax over the head.
    Softmax,
    /// The largest of the head's values; zero for the others. The lower one wins a tie.
    Largest(usize),
    /// Zero where these columns of another buffer are zero.
    Where(View),
    /// The product with a matrix `[head_dim, head_dim]`.
    Linear(Vector),
    /// The sum with these columns of another buffer.
    Add(View),
    /// These columns of another buffer instead.
    Copy(View),
    /// Root-mean-square norm.
    Rms(Norm),
    /// Rotary position, as [`Prepare::rope`] says.
    Rope,
}

/// Rotary position embedding on halves: with a, b the halves of a head's leading values,
/// `(a cos - b sin, b cos + a sin)`. What follows them stays.
pub struct Rope {
    /// Angle per position of each pair, `[table.width / 2]`.
    pub frequencies: Vector,
    /// Room for the cosines, then the sines, of each token: they are the same for every head.
    pub table: View,
}

/// How rotary frequencies are stretched so that a model reaches further than it was first trained to.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum RopeScaling {
    /// All angles divided by `factor`.
    Linear {
        /// The divisor.
        factor: f32,
    },
    /// Llama 3: slow angles divided by `factor`, fast ones kept, a smooth passage between.
    Llama3 {
        /// The divisor.
        factor: f32,
        /// Pairs that turn less often than this within `trained` tokens are divided.
        low: f32,
        /// Pairs that turn more often than this are kept.
        high: f32,
        /// The context of the first training, in tokens.
        trained: f32,
    },
}

impl RopeScaling {
    fn apply(self, frequency: f64) -> f64 {
        match self {
            RopeScaling::Linear { factor } => frequency / f64::from(factor),
            RopeScaling::Llama3 {
                factor,
                low,
                high,
                trained,
            } => {
                let turns = f64::from(trained) * frequency / std::f64::consts::TAU;
                let kept = (turns - f64::from(low)) / (f64::from(high) - f64::from(low));
                let kept = kept.clamp(0.0, 1.0);
                frequency * (kept + (1.0 - kept) / f64::from(factor))
            }
        }
    }
}

impl Rope {
    /// Angles `theta^(-2 i / d)` for the d columns of `table`, scaled.
    pub fn new(theta: f32, scaling: Option<RopeScaling>, table: View) -> Self {
        let frequency = |i| {
            let plain = f64::from(theta).powf(-2.0 * i as f64 / table.width as f64);
            scaling.map_or(plain, |scaling| scaling.apply(plain)) as f32
        };
        Rope {
            frequencies: (0..table.width / 2).map(frequency).collect(),
            table,
        }
    }

    fn fill(&self, position: u64, row: &mut [f32]) {
        let (cosines, sines) = row.split_at_mut(self.frequencies.len());
        for ((cos, sin), frequency) in cosines.iter_mut().zip(sines).zip(self.frequencies.iter()) {
            // The reference multiplies in f32; its rounding of the angle is part of its result.
            (*sin, *cos) = (position as f32 * frequency).sin_cos();
        }
    }
}

#[inline(always)]
fn rotate(angles: &[f32], head: &mut [f32]) {
    let (cosines, sines) = angles.split_at(angles.len() / 2);
    let (a, b) = head.split_at_mut(cosines.len());
    for (((a, b), cos), sin) in a.iter_mut().zip(b).zip(cosines).zip(sines) {
        (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
    }
}

/// A map of one token's columns to what a recurrence takes. Vectors have one value for each column.
pub enum Gate {
    /// The logarithm of a decay, `-rate softplus(x + bias)`.
    Decay {
        /// `exp(a_log)`.
        rate: Vector,
        /// Added to x.
        bias: Vector,
    },
    /// The logarithm of a decay that is bounded below, `bound sigmoid(rate (x + bias))`.
    BoundedDecay {
        /// `exp(a_log)`.
        rate: Vector,
        /// Added to x.
        bias: Vector,
        /// The smallest logarithm.
        bound: f32,
    },
    /// The logarithm of a decay, `max(scale ln sigmoid(x), min)`.
    LogSigmoid {
        /// One over the gate's normalizer.
        scale: f32,
        /// The smallest logarithm; may be negative infinity.
        min: f32,
    },
    /// The logarithm of a decay of at least L, `ln(L + (1 - L) sigmoid(x))`.
    LowerBound(Vector),
    /// `scale sigmoid(x)`.
    Sigmoid {
        /// 1, or 2 where negative eigenvalues are allowed.
        scale: f32,
    },
    /// `softplus(x + bias)`, clamped.
    Step {
        /// Added to x.
        bias: Vector,
        /// Smallest result.
        min: f32,
        /// Largest result.
        max: f32,
    },
    /// Softmax over the columns.
    Softmax,
    /// What a decay leaves to be written, `1 - sigmoid(x)^scale`.
    Forget {
        /// One over the gate's normalizer.
        scale: f32,
    },
    /// Softmax over time of each column, as it stands at every token: what the token itself weighs.
    RunningSoftmax {
        /// Bounds of x.
        clamp: [f32; 2],
        /// The slot of each column's largest x, then of the sum of `e^(x - largest)`, `[2, columns]`.
        slot: usize,
    },
    /// A constant, whatever x is.
    Constant(f32),
}

impl Prepare {
    pub(crate) fn scratch(&self, _chunk: usize) -> usize {
        // The convolution's history, or the input of a linear map.
        let room = |lane: &Lane| {
            let past = lane
                .conv
                .as_ref()
                .map_or(0, |conv| conv.weight.len() / lane.view.width - 1);
            past.max(1) * lane.head_dim
        };
        self.lanes.iter().map(room).max().unwrap_or(0)
    }

    /// The slots that are read and written.
    pub(crate) fn slots(&self) -> impl Iterator<Item = usize> {
        let histories = self.lanes.iter().filter_map(|lane| lane.conv.as_ref());
        let sums = self.gates.iter().filter_map(|(_, gate)| match gate {
            Gate::RunningSoftmax { slot, .. } => Some(*slot),
            _ => None,
        });
        histories.map(|conv| conv.slot).chain(sums)
    }

    pub(crate) fn run(&self, frame: &mut Frame) {
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
        if let Some(first) = self.lanes.first() {
            let mut values = frame.buffers.take(first.view.buffer);
            self.run_lanes(frame, &mut values);
            frame.buffers.put(first.view.buffer, values);
        }
        for (view, gate) in &self.gates {
            let width = view.stride;
            let values = frame.buffers.get_mut(view.buffer);
            let state = match gate {
                Gate::RunningSoftmax { slot, .. } => frame.arena.slot_mut(*slot),
                _ => &mut [],
            };
            simd::vectorize(
                #[inline(always)]
                || {
                    for t in 0..tokens {
                        gate.apply(&mut values[t * width + view.start..][..view.width], state);
                    }
                },
            );
        }
    }

    fn run_lanes(&self, frame: &mut Frame, values: &mut [f32]) {
        let width = self.lanes[0].view.stride;
        let values = Shared::new(values);
        let state = frame.arena.shared();
        let angles = self
            .rope
            .as_ref()
            .map(|rope| (frame.buffers.get(rope.table.buffer), rope.table.width));
        let heads = self
            .lanes
            .iter()
            .map(|lane| lane.view.width / lane.head_dim)
            .sum();
        frame.pool.each(heads, |worker, task| {
            let mut scratch = frame.scratch[worker].lock().expect("scratch");
            let (lane, head) = self.lane_of(task);
            let column = head * lane.head_dim;
            simd::vectorize(
                #[inline(always)]
                || {
                    if let Some(conv) = &lane.conv {
                        let tokens = frame.tokens.len();
                        // SAFETY: each task has its own head's columns of the values and of the history.
                        unsafe {
                            lane.convolve(
                                conv,
                                &values,
                                width,
                                column,
                                tokens,
                                &state,
                                &mut scratch,
                            )
                        };
                    }
                    for t in 0..frame.tokens.len() {
                        let start = t * width + lane.view.start + column;
                        // SAFETY: as above.
                        let head = unsafe { values.part(start..start + lane.head_dim) };
                        let angles = angles
                            .map_or(&[][..], |(table, angles)| &table[t * angles..][..angles]);
                        for map in &lane.maps {
                            let source = map.source().map_or(&[][..], |view| {
                                let start = t * view.stride + view.start + column;
                                &frame.buffers.get(view.buffer)[start..start + lane.head_dim]
                            });
                            map.apply(angles, source, head, &mut scratch);
                        }
                    }
                },
            );
        });
    }

    /// The lane that the task belongs to, and its head within the lane.
    fn lane_of(&self, mut task: usize) -> (&Lane, usize) {
        for lane in &self.lanes {
            let heads = lane.view.width / lane.head_dim;
            if task < heads {
                return (lane, task);
            }
            task -= heads;
        }
        unreachable!("tasks are counted over the lanes")
    }
}

impl Lane {
    /// Convolves one head's channels over the chunk, in place.
    ///
    /// # Safety
    /// No other thread touches these columns of the values or of the history.
    #[inline(always)]
    unsafe fn convolve(
        &self,
        conv: &Conv,
        values: &Shared<f32>,
        width: usize,
        column: usize,
        tokens: usize,
        state: &SharedArena,
        scratch: &mut [f32],
    ) {
        let (dim, channels) = (self.head_dim, self.view.width);
        let past = conv.weight.len() / channels - 1;
        // SAFETY: the caller's contract.
        let token = |t: usize| unsafe {
            let start = t * width + self.view.start + column;
            values.part(start..start + dim)
        };
        // SAFETY: the caller's contract.
        let kept = |j: usize| unsafe {
            state.slot::<f32>(
                conv.slot,
                j * channels + column..j * channels + column + dim,
            )
        };
        let old = &mut scratch[..past * dim];
        for j in 0..past {
            old[j * dim..][..dim].copy_from_slice(kept(j));
        }
        for j in 0..past {
            // Row j is the input `past - j` tokens before the end.
            match (tokens + j).checked_sub(past) {
                Some(t) => kept(j).copy_from_slice(token(t)),
                None => kept(j).copy_from_slice(&old[(j + tokens) * dim..][..dim]),
            }
        }
        // Last token first: an output replaces an input that no earlier token needs.
        for t in (0..tokens).rev() {
            let out = token(t);
            let tap = |i: usize| &conv.weight[i * channels + column..][..dim];
            for (x, w) in out.iter_mut().zip(tap(past)) {
                *x *= w;
            }
            for j in 1..=past {
                let weight = tap(past - j);
                let input: &[f32] = match t.checked_sub(j) {
                    Some(t) => token(t),
                    None => &old[(past + t - j) * dim..][..dim],
                };
                for ((x, w), input) in out.iter_mut().zip(weight).zip(input) {
                    *x += w * input;
                }
            }
            if let Some(bias) = &conv.bias {
                simd::add(&bias[column..][..dim], out);
            }
        }
    }
}

impl Map {
    fn source(&self) -> Option<&View> {
        match self {
            Map::Add(view) | Map::Copy(view) | Map::Where(view) => Some(view),
            _ => None,
        }
    }

    #[inline(always)]
    fn apply(&self, angles: &[f32], source: &[f32], head: &mut [f32], scratch: &mut [f32]) {
        match self {
            Map::Add(_) => simd::add(source, head),
            Map::Copy(_) => head.copy_from_slice(source),
            Map::Softmax => softmax(head),
            Map::Where(_) => {
                for (x, source) in head.iter_mut().zip(source) {
                    *x = if *source == 0.0 { 0.0 } else { *x };
                }
            }
            Map::Largest(count) => {
                let values = &mut scratch[..head.len()];
                values.copy_from_slice(head);
                head.fill(0.0);
                for _ in 0..*count {
                    let mut best = 0;
                    for (i, x) in values.iter().enumerate() {
                        if *x > values[best] {
                            best = i;
                        }
                    }
                    head[best] = values[best];
                    values[best] = f32::NEG_INFINITY;
                }
            }
            Map::Linear(matrix) => {
                let input = &mut scratch[..head.len()];
                input.copy_from_slice(head);
                for (x, row) in head.iter_mut().zip(matrix.chunks_exact(input.len())) {
                    *x = simd::dot(row, input);
                }
            }
            Map::Activation(function) => function.apply(head),
            Map::L2Norm => simd::scale(1.0 / (simd::dot(head, head) + 1e-6).sqrt(), head),
            Map::SumNorm => {
                let sum: f32 = head.iter().map(|x| x.abs()).sum();
                simd::scale(1.0 / sum.max(1e-6), head);
            }
            Map::Rms(norm) => norm.apply_in_place(head),
            Map::Rope => rotate(angles, head),
        }
    }
}

impl Gate {
    #[inline(always)]
    fn apply(&self, values: &mut [f32], state: &mut [f32]) {
        match self {
            Gate::RunningSoftmax {
                clamp: [low, high], ..
            } => {
                let (largest, sums) = state.split_at_mut(values.len());
                for ((x, largest), sum) in values.iter_mut().zip(largest).zip(sums) {
                    let now = x.max(*low).min(*high);
                    // A sum of zero: the first token.
                    let before = if *sum > 0.0 { *largest } else { now };
                    *largest = now.max(before);
                    let weight = simd::exp(now - *largest);
                    *sum = *sum * simd::exp(before - *largest) + weight;
                    *x = weight / *sum;
                }
            }
            Gate::Decay { rate, bias } => {
                for ((x, rate), bias) in values.iter_mut().zip(rate.iter()).zip(bias.iter()) {
                    *x = -rate * simd::softplus(*x + bias);
                }
            }
            Gate::BoundedDecay { rate, bias, bound } => {
                for ((x, rate), bias) in values.iter_mut().zip(rate.iter()).zip(bias.iter()) {
                    *x = bound * simd::sigmoid(rate * (*x + bias));
                }
            }
            Gate::LogSigmoid { scale, min } => values
                .iter_mut()
                .for_each(|x| *x = (scale * log_sigmoid(*x)).max(*min)),
            Gate::LowerBound(bounds) => {
                for (x, bound) in values.iter_mut().zip(bounds.iter()) {
                    *x = (bound + (1.0 - bound) * simd::sigmoid(*x)).ln();
                }
            }
            Gate::Sigmoid { scale } => values
                .iter_mut()
                .for_each(|x| *x = scale * simd::sigmoid(*x)),
            Gate::Step { bias, min, max } => {
                for (x, bias) in values.iter_mut().zip(bias.iter()) {
                    *x = simd::softplus(*x + bias).clamp(*min, *max);
                }
            }
            Gate::Softmax => softmax(values),
            Gate::Forget { scale } => values
                .iter_mut()
                .for_each(|x| *x = 1.0 - simd::exp(scale * log_sigmoid(*x))),
            Gate::Constant(value) => values.fill(*value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapped(gate: &Gate, values: &[f32]) -> Vec<f32> {
        let mut values = values.to_vec();
        gate.apply(&mut values, &mut []);
        values
    }

    #[test]
    fn gates_keep_their_meaning_at_both_ends() {
        let x = [-200.0f32, -30.0, -3.0, 0.0, 2.5, 40.0, 200.0];
        let sigmoid = |x: f32| 1.0 / (1.0 + (-f64::from(x)).exp());
        let close = |name: &str, found: &[f32], expected: &dyn Fn(f32) -> f64| {
            for (found, x) in found.iter().zip(x) {
                let (found, expected) = (f64::from(*found), expected(x));
                let error = (found - expected).abs();
                assert!(
                    error <= 1e-6 * (1.0 + expected.abs()),
                    "{name} of {x}: {found} {expected}"
                );
            }
        };
        let gate = Gate::LogSigmoid {
            scale: 0.0625,
            min: -1.0,
        };
        let expected = |x: f32| (0.0625 * -(1.0 + (-f64::from(x)).exp()).ln()).max(-1.0);
        close("log sigmoid", &mapped(&gate, &x), &expected);

        let gate = Gate::BoundedDecay {
            rate: vec![0.5; x.len()].into(),
            bias: vec![1.0; x.len()].into(),
            bound: -5.0,
        };
        let expected = |x: f32| -5.0 * sigmoid(0.5 * (x + 1.0));
        close("bounded decay", &mapped(&gate, &x), &expected);

        // The factor itself: its logarithm is all but zero where it is close to one.
        let bounds = |bound: f32| Gate::LowerBound(vec![bound; x.len()].into());
        for bound in [0.0f32, 0.3, 1.0] {
            let factors: Vec<f32> = mapped(&bounds(bound), &x).iter().map(|g| g.exp()).collect();
            let low = f64::from(bound);
            close("lower bound", &factors, &|x| low + (1.0 - low) * sigmoid(x));
        }

        let shares = mapped(&Gate::Softmax, &[1000.0, 1000.0, -1000.0]);
        assert_eq!(shares, [0.5, 0.5, 0.0]);
    }

    #[test]
    fn a_sum_norm_divides_by_absolute_values() {
        let mut head = [1.0, -3.0, 0.0];
        Map::SumNorm.apply(&[], &[], &mut head, &mut []);
        assert_eq!(head, [0.25, -0.75, 0.0]);
        let mut zeros = [0.0; 3];
        Map::SumNorm.apply(&[], &[], &mut zeros, &mut []);
        assert_eq!(zeros, [0.0; 3]);
    }
}
