//! Prologue of a matrix product: computes its input from a buffer's columns by norms, gates and functions. Arguments of `prologue.cu`.

use bytemuck::Zeroable;

use crate::abi::{device_enum, device_struct};
use crate::cuda::driver::Address;
use crate::cuda::schedule::{Call, Grid, Launches, Parameter, Rows};
use crate::error::Result;
use crate::functions::{Activation, Norm, OutputOp};
use crate::operands::{INPUTS, View};

device_struct! {
    /// A step of a prologue: a norm of each part of the row, a function, or an operation with other columns.
    struct PrologueStep {
        weight: Address as *const f32,
        bias: Address as *const f32,
        columns: Rows,
        eps: f32,
        /// A [`StepKind`].
        kind: i32,
        /// Number of gains.
        span: i32,
        /// Parts that the gains cover.
        groups: i32,
        /// Values of a part.
        size: i32,
        function: i32,
    }
}

device_enum! {
    /// Kinds of steps.
    #[derive(Clone, Copy)]
    pub(crate) enum StepKind("STEP_") {
        Norm,
        LayerNorm,
        Add,
        Map,
        Gate,
    }
}

const NORM: i32 = StepKind::Norm as i32;
const LAYER_NORM: i32 = StepKind::LayerNorm as i32;
const ADD: i32 = StepKind::Add as i32;
const MAP: i32 = StepKind::Map as i32;
const GATE: i32 = StepKind::Gate as i32;

device_enum! {
    /// Properties of a prologue, known at compile time so that absent steps cost no instructions.
    #[derive(Clone, Copy)]
    pub(crate) enum PrologueFlag("") {
        WholeNorm = 1,
        PartNorm = 2,
        OddPartNorm = 4,
        CentredNorm = 8,
        AddedColumns = 16,
        Mapped = 32,
        GatedByColumns = 64,
        /// Each warp has runs of 256 values, and finds their common scale without other warps.
        WarpHasSuperBlock = 128,
        /// All rows begin at multiples of 16 bytes and have a multiple of four values.
        Quads = 256,
        /// The last step is the only norm, an RMS norm of the whole row without a bias: its factor may be applied to the product.
        LateNorm = 512,
        /// At most one norm, one addition of columns and one gate: their operands are loaded together with the input.
        FewSteps = 1024,
        /// All gates are SiLU, which is then inlined.
        SiluGates = 2048,
        /// Norms of parts have gains of one part, which repeat, instead of the whole row. Set only where the size of parts is known.
        RepeatedGains = 4096,
    }
}

/// The logarithm of the size of parts begins at this bit of the flags, as in prologue.cu.
const PART_BITS: u32 = 13;

const MOST_STEPS: usize = 4;

device_struct! {
    /// The computation of an input from a buffer's columns.
    pub struct Prologue {
        pub(super) input: Rows,
        steps: i32,
        unused: i32,
        step: [PrologueStep; MOST_STEPS],
    }
}

impl PrologueFlag {
    /// Returns the set of these flags.
    pub(crate) fn set(flags: &[(bool, PrologueFlag)]) -> usize {
        let bit = |&(has, flag): &(bool, PrologueFlag)| if has { flag as usize } else { 0 };
        flags.iter().map(bit).sum()
    }
}

impl Prologue {
    /// Returns the steps.
    fn steps(&self) -> &[PrologueStep] {
        &self.step[..self.steps as usize]
    }

    /// Returns the properties, bits of prologue.cu, for an input of `cols` columns.
    pub fn flags(&self, cols: usize) -> usize {
        let kind = |step: &PrologueStep| {
            let size = step.size as usize;
            let norm = match size {
                size if size == cols => PrologueFlag::WholeNorm,
                size if size.is_multiple_of(32) => PrologueFlag::PartNorm,
                _ => PrologueFlag::OddPartNorm,
            };
            match step.kind {
                NORM => norm as usize,
                LAYER_NORM => norm as usize | PrologueFlag::CentredNorm as usize,
                ADD => PrologueFlag::AddedColumns as usize,
                MAP => PrologueFlag::Mapped as usize,
                _ => PrologueFlag::GatedByColumns as usize,
            }
        };
        self.steps()
            .iter()
            .fold(0, |flags, step| flags | kind(step))
    }

    /// Like [`Prologue::flags`], with the flags that make a kernel faster and change no bit of the input.
    pub fn all_flags(&self, cols: usize) -> usize {
        let parts = self.equal_parts(cols);
        let size = parts.map_or(0, |(size, _)| (size.ilog2() as usize) << PART_BITS);
        let repeated = parts.is_some_and(|(_, repeated)| repeated);
        let more = [
            (self.has_few_steps(), PrologueFlag::FewSteps),
            (self.gates_are_silu(), PrologueFlag::SiluGates),
            (repeated, PrologueFlag::RepeatedGains),
        ];
        self.flags(cols) | PrologueFlag::set(&more) | size
    }

    /// Whether a norm has parts of a size that warps cannot share: then the whole row goes through shared memory.
    pub fn has_odd_norm(&self, cols: usize) -> bool {
        self.flags(cols) & PrologueFlag::OddPartNorm as usize != 0
    }

    /// Whether one token's input can be read in quads: all addresses are multiples of 16 bytes.
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

    /// Whether a thread's quads may be paired. A warp then has 256 consecutive values; the size of parts must be a multiple or a divisor of
    /// 256.
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

    /// Returns the common size of all normed parts of a row of `cols`, if it is a power of two of at least 32, and whether they share the
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

    /// Returns epsilon of a late norm: the last step is the only norm, an RMS norm of the whole row of `cols` without a bias.
    pub fn late_norm(&self, cols: usize) -> Option<f32> {
        let (last, others) = self.steps().split_last()?;
        let plain = last.kind == NORM && last.size as usize == cols && last.bias == 0;
        let alone = others.iter().all(|step| step.kind > LAYER_NORM);
        (plain && alone).then_some(last.eps)
    }

    /// Returns the input columns, if [`Prologue::has_few_steps`].
    pub fn columns(&self, cols: usize) -> Option<Rows> {
        self.has_few_steps().then_some(Rows {
            width: cols as i32,
            ..self.input
        })
    }

    /// Returns the columns of the first step of this kind, an addition or a gate.
    pub(crate) fn columns_of(&self, kind: StepKind, cols: usize) -> Option<Rows> {
        let step = self.steps().iter().find(|step| step.kind == kind as i32)?;
        Some(Rows {
            width: cols as i32,
            ..step.columns
        })
    }

    /// Whether the last step is a norm: values are then no larger than its gains times the square root of its width.
    pub fn ends_in_norm(&self) -> bool {
        self.steps()
            .last()
            .is_some_and(|step| step.kind <= LAYER_NORM)
    }

    /// Whether there are no steps.
    pub fn is_plain(&self) -> bool {
        self.steps == 0
    }
}

impl Launches<'_> {
    /// Returns the prologue of an input: its columns, or their norm.
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

    /// Returns the prologue of a mixer's output with the steps `finish`. More steps than a kernel has go through the buffer of inputs.
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

    /// Stores an input in `output`, which may be the input's own columns.
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
            parameters: vec![Parameter::value(prologue), self.view(output)],
        });
    }
}
