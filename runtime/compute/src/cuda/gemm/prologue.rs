//! Prologue of a matrix product: its input, computed from a buffer's columns by norms, gates and functions. Arguments of `prologue.cu`.

use bytemuck::{Pod, Zeroable};

use crate::cuda::driver::Address;
use crate::cuda::schedule::{Call, Grid, Launches, Parameter, Rows};
use crate::error::Result;
use crate::functions::{Activation, Norm, OutputOp};
use crate::operands::{INPUTS, View};

/// `PrologueStep` in prologue.cu.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct PrologueStep {
    weight: Address,
    bias: Address,
    columns: Rows,
    eps: f32,
    kind: i32,
    span: i32,
    groups: i32,
    size: i32,
    function: i32,
}

/// Some of `Prologue::flags`, as in prologue.cu.
const ODD_PART_NORM: usize = 4;
const FEW_STEPS: usize = 1024;
const SILU_GATES: usize = 2048;
const REPEATED_GAINS: usize = 4096;
/// The logarithm of the size of parts begins at this bit.
const PART_BITS: u32 = 13;

/// Kinds of steps, as in prologue.cu.
const NORM: i32 = 0;
const LAYER_NORM: i32 = 1;
pub(crate) const ADD: i32 = 2;
const MAP: i32 = 3;
pub(crate) const GATE: i32 = 4;

const MOST_STEPS: usize = 4;

/// `Prologue` in prologue.cu: how an input is computed from a buffer's columns.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct Prologue {
    pub(super) input: Rows,
    steps: i32,
    unused: i32,
    step: [PrologueStep; MOST_STEPS],
}

impl Prologue {
    /// Its steps.
    fn steps(&self) -> &[PrologueStep] {
        &self.step[..self.steps as usize]
    }

    /// Its properties, bits of prologue.cu, for an input of `cols` columns.
    pub fn flags(&self, cols: usize) -> usize {
        let kind = |step: &PrologueStep| {
            let size = step.size as usize;
            match step.kind {
                NORM | LAYER_NORM => {
                    let norm = match size {
                        size if size == cols => 1,
                        size if size.is_multiple_of(32) => 2,
                        _ => ODD_PART_NORM,
                    };
                    norm | (step.kind as usize) << 3
                }
                ADD => 16,
                MAP => 32,
                _ => 64,
            }
        };
        self.steps()
            .iter()
            .fold(0, |flags, step| flags | kind(step))
    }

    /// As [`Prologue::flags`], with those that make a kernel faster and change no bit of the input.
    pub fn all_flags(&self, cols: usize) -> usize {
        let parts = self.equal_parts(cols);
        let size = parts.map_or(0, |(size, _)| (size.ilog2() as usize) << PART_BITS);
        let repeated = parts.is_some_and(|(_, repeated)| repeated);
        self.flags(cols)
            | if self.has_few_steps() { FEW_STEPS } else { 0 }
            | if self.gates_are_silu() { SILU_GATES } else { 0 }
            | if repeated { REPEATED_GAINS } else { 0 }
            | size
    }

    /// Whether a norm has parts of a size that warps cannot share: then the whole row goes through shared memory.
    pub fn has_odd_norm(&self, cols: usize) -> bool {
        self.flags(cols) & ODD_PART_NORM != 0
    }

    /// Whether one token's input can be read in quads: everything begins at a multiple of 16 bytes.
    pub fn in_quads(&self, cols: usize) -> bool {
        let aligned = |address: &Address| address.is_multiple_of(16);
        let addresses = self
            .steps()
            .iter()
            .flat_map(|step| [step.weight, step.bias, step.columns.first]);
        let parts = |step: &PrologueStep| {
            let size = step.size;
            step.kind > LAYER_NORM
                || size as usize == cols
                || size % 128 == 0
                || [32, 64].contains(&size)
        };
        cols.is_multiple_of(4)
            && aligned(&self.input.first)
            && addresses.into_iter().all(|address| aligned(&address))
            && self.steps().iter().all(parts)
    }

    /// Whether a thread's quads may be pairs: then a warp has 256 values that follow one another, and parts of norms are whole numbers of
    /// warps' values, or divide them.
    pub fn in_octets(&self, cols: usize) -> bool {
        const WARP: usize = 256;
        let parts = |step: &PrologueStep| {
            let size = step.size as usize;
            step.kind > LAYER_NORM || WARP.is_multiple_of(size) || size.is_multiple_of(WARP)
        };
        cols.is_multiple_of(WARP) && self.in_quads(cols) && self.steps().iter().all(parts)
    }

    /// Whether there is at most one norm, one addition of columns, and one gate.
    pub fn has_few_steps(&self) -> bool {
        let few = |flags: &[i32]| {
            let of_these = |step: &&PrologueStep| flags.contains(&step.kind);
            self.steps().iter().filter(of_these).count() <= 1
        };
        few(&[NORM, LAYER_NORM]) && few(&[ADD]) && few(&[GATE])
    }

    /// Whether there are gates, and all are SiLU.
    pub fn gates_are_silu(&self) -> bool {
        let gate = |step: &PrologueStep| step.kind == GATE;
        let silu = |step: &PrologueStep| step.function == Activation::Silu as i32;
        self.steps().iter().any(gate) && self.steps().iter().all(|step| !gate(step) || silu(step))
    }

    /// The common size of all normed parts of a row of `cols`, if it is a power of two of at least 32, and whether they share the
    /// gains of one part.
    pub fn equal_parts(&self, cols: usize) -> Option<(usize, bool)> {
        let normed = |step: &&PrologueStep| step.kind <= LAYER_NORM && step.size as usize != cols;
        let mut parts = self.steps().iter().filter(normed).map(|step| {
            let (size, repeated) = (step.size as usize, step.groups == 1);
            let known = size.is_power_of_two() && size >= 32;
            (known && (repeated || step.span as usize == cols)).then_some((size, repeated))
        });
        let first = parts.next()??;
        parts.all(|part| part == Some(first)).then_some(first)
    }

    /// Epsilon of a late norm: the last step is the only norm, an RMS norm of the whole row of `cols` without a bias.
    pub fn late_norm(&self, cols: usize) -> Option<f32> {
        let (last, others) = self.steps().split_last()?;
        let plain = last.kind == NORM && last.size as usize == cols && last.bias == 0;
        let alone = others.iter().all(|step| step.kind > LAYER_NORM);
        (plain && alone).then_some(last.eps)
    }

    /// The input columns, if [`Prologue::has_few_steps`].
    pub fn columns(&self, cols: usize) -> Option<Rows> {
        self.has_few_steps().then_some(Rows {
            width: cols as i32,
            ..self.input
        })
    }

    /// The columns of the first step of this kind, an addition or a gate.
    pub fn columns_of(&self, kind: i32, cols: usize) -> Option<Rows> {
        let step = self.steps().iter().find(|step| step.kind == kind)?;
        Some(Rows {
            width: cols as i32,
            ..step.columns
        })
    }

    /// Whether its last step is a norm: values are then no larger than its gains times the root of its width.
    pub fn ends_in_norm(&self) -> bool {
        self.steps()
            .last()
            .is_some_and(|step| step.kind <= LAYER_NORM)
    }

    /// Whether it has no steps.
    pub fn is_plain(&self) -> bool {
        self.steps == 0
    }
}

impl Launches<'_> {
    /// The prologue of an input: its columns, or their norm.
    pub fn prologue(&self, input: View, norm: Option<&Norm>) -> Result<Prologue> {
        let mut prologue = Prologue {
            input: self.rows(input),
            ..Prologue::zeroed()
        };
        if let Some(norm) = norm {
            prologue.step[0] = self.norm_step(norm, 1)?;
            prologue.steps = 1;
        }
        Ok(prologue)
    }

    /// The prologue of a mixer's output with the steps `finish`. More steps than a kernel has go through the buffer of inputs.
    pub fn output_prologue(&mut self, input: View, finish: &[OutputOp]) -> Result<Prologue> {
        let mut prologue = self.prologue(input, None)?;
        for (index, steps) in finish.chunks(MOST_STEPS).enumerate() {
            if index > 0 {
                let staged = View::whole(INPUTS, input.width);
                self.store_prologue(prologue, staged);
                prologue = self.prologue(staged, None)?;
            }
            for (place, step) in prologue.step.iter_mut().zip(steps) {
                *place = self.output_step(step)?;
            }
            prologue.steps = steps.len() as i32;
        }
        Ok(prologue)
    }

    fn norm_step(&self, norm: &Norm, groups: usize) -> Result<PrologueStep> {
        Ok(PrologueStep {
            weight: self.vector_address(&norm.weight)?,
            bias: self.optional_address(norm.bias.as_ref())?,
            eps: norm.eps,
            kind: norm.centred.into(),
            span: norm.weight.len() as i32,
            groups: groups as i32,
            size: (norm.weight.len() / groups) as i32,
            ..PrologueStep::zeroed()
        })
    }

    fn output_step(&self, step: &OutputOp) -> Result<PrologueStep> {
        let none = PrologueStep::zeroed();
        Ok(match step {
            OutputOp::Norm(norm) => self.norm_step(norm, 1)?,
            OutputOp::GroupNorm(norm, groups) => self.norm_step(norm, *groups)?,
            OutputOp::Add(view, gains) => PrologueStep {
                weight: self.vector_address(gains)?,
                columns: self.rows(*view),
                kind: ADD,
                ..none
            },
            OutputOp::Map(function) => PrologueStep {
                kind: MAP,
                function: *function as i32,
                ..none
            },
            OutputOp::Gate(view, function) => PrologueStep {
                columns: self.rows(*view),
                kind: GATE,
                function: *function as i32,
                ..none
            },
        })
    }

    /// Stores an input in `output`, which may be its own columns.
    pub fn store_prologue(&mut self, prologue: Prologue, output: View) {
        self.also_writes(self.rows(output).bytes());
        self.push(Call {
            source: &[],
            kernel: format!(
                "store_prologue<{}, {}>",
                output.width,
                prologue.flags(output.width)
            ),
            grid: Grid::Tokens,
            threads: self.prologue_threads(),
            shared: 0,
            parameters: vec![Parameter::value("Prologue", prologue), self.view(output)],
        });
    }
}
