//! Mixes each normed token with the one before it.

use super::{Access, DeviceOp, Op};
use crate::cpu::{Frame, simd};
use crate::cuda::{Address, Call, Grid, Launches, Parameter};
use crate::error::Result;
use crate::functions::Norm;
use crate::operands::{RESIDUAL, View};
use crate::ops::Rules;
use crate::state::{StatePlan, Touched};
use crate::weights::Vector;

const SOURCE: &str = include_str!("token_shift.cu");
const MOST_MIXES: usize = 8;

/// `h + mix (h_before - h)` with `h = norm(residual)`, for each of several mixes; zero before the first token.
pub struct TokenShift {
    /// Applied to the residual stream first.
    pub norm: Option<Norm>,
    /// How much of the token before each result takes, for each channel.
    pub mixes: Vec<Vector>,
    /// The state tensor of the last normed token `[hidden]`.
    pub state: usize,
    /// Where the results stand, `[mixes, hidden]`.
    pub out: View,
}

impl Op for TokenShift {
    fn run(&self, frame: &mut Frame) {
        let hidden = self.mixes[0].len();
        let mut out = frame.buffers.take(self.out.buffer);
        let residual = frame.buffers.get(RESIDUAL).chunks_exact(hidden);
        let before = frame.arena.tensor_mut::<f32>(self.state);
        let mut scratch = frame.scratch[0].lock().expect("scratch");
        let normed = &mut scratch[..hidden];
        simd::vectorize(
            #[inline(always)]
            || {
                let rows = out.chunks_exact_mut(self.out.stride);
                for (x, row) in residual.zip(rows).take(frame.tokens.len()) {
                    match &self.norm {
                        Some(norm) => norm.apply(x, normed),
                        None => normed.copy_from_slice(x),
                    }
                    let row = &mut row[self.out.start..][..self.out.width];
                    for (mix, out) in self.mixes.iter().zip(row.chunks_exact_mut(hidden)) {
                        let inputs = normed.iter().zip(before.iter()).zip(mix.iter());
                        for (out, ((h, before), mix)) in out.iter_mut().zip(inputs) {
                            *out = h + mix * (before - h);
                        }
                    }
                    before.copy_from_slice(normed);
                }
            },
        );
        drop(scratch);
        frame.buffers.put(self.out.buffer, out);
    }

    fn access(&self) -> Access {
        Access::default()
            .reads([View::whole(RESIDUAL, self.mixes[0].len())])
            .state([self.state])
            .writes([self.out])
    }

    fn check(&self, rules: &mut Rules) {
        let hidden = self.mixes[0].len();
        rules.width("out", self.out, self.mixes.len() * hidden);
        rules.state(self.state, &[Some(hidden)]);
    }

    fn scratch(&self, _chunk: usize) -> usize {
        self.mixes[0].len()
    }

    fn touched(&self, plan: &StatePlan, _position: u64) -> Vec<Touched> {
        vec![Touched::whole(plan, self.state)]
    }
}

impl DeviceOp for TokenShift {
    fn launch(&self, launches: &mut Launches) -> Result<()> {
        let hidden = self.mixes[0].len();
        let residual = View::whole(RESIDUAL, hidden);
        let prologue = launches.prologue(residual, self.norm.as_ref())?;
        let flags = prologue.flags(hidden);
        let mut weights: [Address; MOST_MIXES] = [0; MOST_MIXES];
        assert!(self.mixes.len() <= MOST_MIXES, "at most {MOST_MIXES} mixes");
        for (place, mix) in weights.iter_mut().zip(&self.mixes) {
            *place = launches.vector_address(mix)?;
        }
        let (mixes, step) = (self.mixes.len(), launches.tokens == 1);
        launches.push(Call {
            source: SOURCE,
            kernel: format!("token_shift<{hidden}, {flags}, {mixes}, {step}>"),
            grid: Grid::Tokens,
            threads: launches.prologue_threads(),
            shared: 2 * hidden * size_of::<f32>(),
            parameters: vec![
                Parameter::value("Prologue", prologue),
                Parameter::value("TokenMixes", weights),
                launches.state("float", self.state),
                launches.view(self.out),
            ],
        });
        if !step {
            launches.push(Call {
                source: SOURCE,
                kernel: format!("keep_token<{hidden}, {flags}>"),
                grid: Grid::Blocks(1),
                threads: launches.prologue_threads(),
                shared: 0,
                parameters: vec![
                    Parameter::value("Prologue", prologue),
                    launches.state("float", self.state),
                    Parameter::tokens(),
                ],
            });
        }
        Ok(())
    }
}
