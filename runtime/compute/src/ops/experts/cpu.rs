//! The op on a CPU: tokens are grouped by expert, so that each expert's matrices are read once.

use waterline_quant::{Activations, Matrix};

use super::grouped::Grouped;
use super::{Expert, ExpertBiases, Experts};
use crate::cpu::{Frame, Shared, simd};
use crate::operands::View;
use crate::ops::CpuOp;
use crate::ops::frame::load;
use crate::ops::route::Chosen;

/// Rows of the first matrices per task, and rows of the last one.
const INNER_ROWS: usize = 64;

const OUTER_ROWS: usize = 32;

/// Tokens that a task multiplies with at once.
const BATCH: usize = 64;

/// Networks of one shape and their tokens.
struct ExpertPart<'a> {
    expert: &'a Expert,
    biases: Option<&'a ExpertBiases>,
    grouped: Grouped<'a>,
    /// Where the part's inner values begin.
    inner: usize,
}

impl ExpertPart<'_> {
    /// Number of pieces of the first matrices' rows.
    fn pieces(&self) -> usize {
        self.expert.width().div_ceil(INNER_ROWS)
    }

    fn tasks(&self) -> usize {
        self.grouped.count() * self.pieces()
    }

    /// Computes some rows of the values between the matrices of one network, `function` of the products, for its tokens.
    fn begin(
        &self,
        task: usize,
        inputs: &Activations,
        function: impl Fn(Option<&[f32]>, &mut [f32]),
        scratch: &mut [f32],
        inner: &Shared<f32>,
    ) {
        let (width, pieces) = (self.expert.width(), self.pieces());
        let ((number, places), index) = (self.grouped.group(task / pieces), task % pieces);
        let piece = index * INNER_ROWS..width.min((index + 1) * INNER_ROWS);
        let rows = number * width + piece.start..number * width + piece.end;
        let (ups, gates) = scratch.split_at_mut(BATCH * INNER_ROWS);
        let first = self.inner + places.start * width + piece.start;
        let tokens = &self.grouped.tokens[places];
        for (batch, tokens) in tokens.chunks(BATCH).enumerate() {
            let multiply = |matrix: &Matrix, out: &mut [f32]| {
                matrix.mul_picked(rows.clone(), inputs, tokens, out, INNER_ROWS);
            };
            multiply(&self.expert.up, ups);
            if let Some(gate) = &self.expert.gate {
                multiply(gate, gates);
            }
            for i in 0..tokens.len() {
                let up = &mut ups[i * INNER_ROWS..][..piece.len()];
                let gate = &mut gates[i * INNER_ROWS..][..piece.len()];
                if let Some(biases) = self.biases {
                    simd::add(&biases.up[rows.clone()], up);
                    let bias = biases.gate.iter();
                    bias.for_each(|bias| simd::add(&bias[rows.clone()], gate));
                }
                function(self.expert.gate.is_some().then_some(gate), up);
                let start = first + (batch * BATCH + i) * width;
                // SAFETY: a task writes its own columns of its group's rows; groups have separate rows and parts separate
                // ranges (rule: widths).
                unsafe { inner.part(start..start + piece.len()) }.copy_from_slice(up);
            }
        }
    }

    /// Adds the networks' weighted outputs to columns `piece` of every token's output.
    fn end(
        &self,
        piece: std::ops::Range<usize>,
        inputs: &Activations,
        scratch: &mut [f32],
        output: View,
        out: &Shared<f32>,
    ) {
        for index in 0..self.grouped.count() {
            let (number, places) = self.grouped.group(index);
            let first = number * output.width;
            let rows = first + piece.start..first + piece.end;
            let down = &self.expert.down;
            let bias = self.biases.map(|biases| &biases.down[rows.clone()]);
            for batch in self.grouped.places[places].chunks(BATCH) {
                down.mul_picked(rows.clone(), inputs, batch, scratch, OUTER_ROWS);
                let products = scratch.chunks_exact_mut(OUTER_ROWS);
                for (&place, product) in batch.iter().zip(products) {
                    if let Some(bias) = bias {
                        simd::add(bias, &mut product[..bias.len()]);
                    }
                    let (token, weight) = (
                        self.grouped.tokens[place as usize] as usize,
                        self.grouped.weights[place as usize],
                    );
                    let start = token * output.stride + output.start + piece.start;
                    // SAFETY: each task has its own columns of the output (rules: widths, disjoint writes).
                    let sums = unsafe { out.part(start..start + piece.len()) };
                    for (sum, x) in sums.iter_mut().zip(&*product) {
                        *sum += weight * x;
                    }
                }
            }
        }
    }
}

impl Experts {
    /// Computes the inner values of all parts. Parts whose inputs are rounded alike are computed together.
    fn make_inner(&self, frame: &mut Frame, parts: &[ExpertPart], inner: &mut [f32]) {
        let inner = Shared::new(inner);
        let function = |gates: Option<&[f32]>, ups: &mut [f32]| match (gates, self.clamped) {
            (Some(gates), Some(unit)) => unit.gate(gates, ups),
            (Some(gates), None) => self.activation.gate(gates, ups),
            (None, _) => self.activation.apply(ups),
        };
        let rounding = |part: &ExpertPart| part.expert.rounding();
        for parts in parts.chunk_by(|a, b| rounding(a) == rounding(b)) {
            frame.load_normed(self.input, self.norm.as_ref(), rounding(&parts[0]));
            let tasks = parts.iter().map(ExpertPart::tasks).sum();
            frame.pool.each(tasks, |worker, mut task| {
                let mut scratch = frame.scratch[worker].lock().expect("scratch");
                for part in parts {
                    if task < part.tasks() {
                        part.begin(task, frame.inputs, function, &mut scratch, &inner);
                        return;
                    }
                    task -= part.tasks();
                }
            });
        }
    }

    /// Sums the outputs of all parts for their inner values.
    fn sum(&self, frame: &mut Frame, parts: &[ExpertPart], inner: &[f32], out: &mut [f32]) {
        let (rows, output) = (self.output.width, self.output);
        if !self.add {
            for row in out.chunks_mut(output.stride).take(frame.tokens.len()) {
                row[output.start..][..rows].fill(0.0);
            }
        }
        let out = Shared::new(out);
        for part in parts {
            let (count, width) = (part.grouped.tokens.len(), part.expert.width());
            let values = &inner[part.inner..][..count * width];
            let rounding = part.expert.down.format().rounding();
            load(
                frame.pool,
                frame.inputs,
                [count, width],
                rounding,
                |place, row| row.copy_from_slice(&values[place * width..][..width]),
            );
            frame.pool.each(rows.div_ceil(OUTER_ROWS), |worker, task| {
                let mut scratch = frame.scratch[worker].lock().expect("scratch");
                let piece = task * OUTER_ROWS..rows.min((task + 1) * OUTER_ROWS);
                part.end(piece, frame.inputs, &mut scratch, output, &out);
            });
        }
    }
}

impl CpuOp for Experts {
    fn run(&self, frame: &mut Frame) {
        let tokens = frame.tokens.len();
        let mut inner = frame.buffers.take(self.inner.buffer);
        let mut order = frame.buffers.take(self.order.buffer);
        let common = std::mem::take(&mut frame.common);
        {
            let pairs = tokens * self.chosen();
            let (order, weights) = order.split_at_mut(3 * pairs);
            let route = Chosen::new(&self.route, frame.buffers.get(self.route.buffer));
            let room = &mut common[..Grouped::common(self.experts)];
            let grouped = Grouped::new(route, tokens, order, room);
            let starts = [0, tokens as u32];
            let shared = self.shared.as_ref().map(|shared| {
                for (t, weight) in weights[..tokens].iter_mut().enumerate() {
                    let gate = shared.gate.map_or(1.0, |gate| {
                        let values = frame.buffers.get(gate.buffer);
                        simd::sigmoid(values[t * gate.stride + gate.start])
                    });
                    *weight = shared.multiplier * gate;
                }
                ExpertPart {
                    expert: &shared.expert,
                    biases: None,
                    grouped: Grouped::whole(&starts, grouped.places, &weights[..tokens]),
                    inner: pairs * self.expert.width(),
                }
            });
            let routed = ExpertPart {
                expert: &self.expert,
                biases: self.biases.as_ref(),
                grouped,
                inner: 0,
            };
            let mut sum = |frame: &mut Frame, parts: &[ExpertPart]| {
                self.make_inner(frame, parts, &mut inner);
                // The input may lie in the output's buffer, which is therefore taken only here.
                let mut out = frame.buffers.take(self.output.buffer);
                self.sum(frame, parts, &inner, &mut out);
                frame.buffers.put(self.output.buffer, out);
            };
            match shared {
                Some(shared) => sum(frame, &[routed, shared]),
                None => sum(frame, &[routed]),
            }
        }
        frame.common = common;
        frame.buffers.put(self.order.buffer, order);
        frame.buffers.put(self.inner.buffer, inner);
    }

    fn scratch(&self, _chunk: usize) -> usize {
        2 * BATCH * INNER_ROWS
    }

    fn common(&self, _threads: usize) -> usize {
        Grouped::common(self.experts)
    }
}
