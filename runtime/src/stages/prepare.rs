//! What happens to projected values before they meet the state: short convolutions, feature maps, head norms,
//! rotary positions, gates. In place, one task a head.

use super::norm::Norm;
use crate::cpu::{Frame, Shared, SharedArena, simd};
use crate::program::{Vector, View};

/// Lanes, then gates.
pub struct Prepare {
    /// Columns of one buffer that are prepared head by head.
    pub lanes: Vec<Lane>,
    /// Positions, where a lane has [`Map::Rope`].
    pub rope: Option<Rope>,
    /// Columns that are mapped value by value.
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
    /// `x sigmoid(x)`.
    Silu,
    /// `x / sqrt(sum x^2 + 1e-6)`.
    L2Norm,
    /// Root-mean-square norm.
    Rms(Norm),
    /// Rotary position, as [`Prepare::rope`] says.
    Rope,
}

/// Rotary position embedding on halves: with a, b the halves of a head, `(a cos - b sin, b cos + a sin)`.
pub struct Rope {
    /// Angle per position of each pair, `[head_dim / 2]`.
    pub frequencies: Vector,
    /// Room for the cosines, then the sines, of each token: they are the same for every head.
    pub table: View,
}

impl Rope {
    /// Angles `theta^(-2 i / head_dim)`.
    pub fn new(head_dim: usize, theta: f32, table: View) -> Self {
        let frequency = |i| f64::from(theta).powf(-2.0 * i as f64 / head_dim as f64) as f32;
        Rope {
            frequencies: (0..head_dim / 2).map(frequency).collect(),
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

/// A map of single values to what a recurrence takes.
pub enum Gate {
    /// The logarithm of a decay, `-exp(a_log) softplus(x + bias)`: `rate` is `exp(a_log)`.
    Decay {
        /// `exp(a_log)`, one for each head.
        rate: Vector,
        /// Added to x.
        bias: Vector,
    },
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
}

impl Prepare {
    pub(crate) fn scratch(&self, _chunk: usize) -> usize {
        let history = |lane: &Lane| {
            lane.conv.as_ref().map_or(0, |conv| {
                (conv.weight.len() / lane.view.width - 1) * lane.head_dim
            })
        };
        self.lanes.iter().map(history).max().unwrap_or(0)
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
            for t in 0..tokens {
                gate.apply(&mut values[t * width + view.start..][..view.width]);
            }
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
            simd::vectorize(|| {
                if let Some(conv) = &lane.conv {
                    let tokens = frame.tokens.len();
                    // SAFETY: each task has its own head's columns of the values and of the history.
                    unsafe {
                        lane.convolve(conv, &values, width, column, tokens, &state, &mut scratch)
                    };
                }
                for t in 0..frame.tokens.len() {
                    let start = t * width + lane.view.start + column;
                    // SAFETY: as above.
                    let head = unsafe { values.part(start..start + lane.head_dim) };
                    let angles =
                        angles.map_or(&[][..], |(table, angles)| &table[t * angles..][..angles]);
                    for map in &lane.maps {
                        map.apply(angles, head);
                    }
                }
            });
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
        // SAFETY (both): the caller's.
        let token = |t: usize| unsafe {
            let start = t * width + self.view.start + column;
            values.part(start..start + dim)
        };
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
    #[inline(always)]
    fn apply(&self, angles: &[f32], head: &mut [f32]) {
        match self {
            Map::Silu => head.iter_mut().for_each(|x| *x = simd::silu(*x)),
            Map::L2Norm => simd::scale(1.0 / (simd::dot(head, head) + 1e-6).sqrt(), head),
            Map::Rms(norm) => norm.apply_in_place(head),
            Map::Rope => rotate(angles, head),
        }
    }
}

impl Gate {
    fn apply(&self, values: &mut [f32]) {
        match self {
            Gate::Decay { rate, bias } => {
                for ((x, rate), bias) in values.iter_mut().zip(rate.iter()).zip(bias.iter()) {
                    *x = -rate * simd::softplus(*x + bias);
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
        }
    }
}
