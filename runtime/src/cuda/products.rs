//! Matrix products as launches: what `project.cu` is called with.

use bytemuck::{Pod, Zeroable};
use waterline_quant::{FORMATS, Matrix};

use super::driver::{Address, TensorCores};
use super::launches::{Call, Grid, Launches, Parameter, Rows};
use super::ring_products::Kind;
use crate::error::Result;
use crate::functions::{Activation, Norm, OutputOp};
use crate::operands::{INPUTS, View};
use crate::weights::Vector;

/// `GatherStep` in gather.cu: what happens to an input on its way.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct GatherStep {
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

/// One of `Gather::kinds`, as in gather.cu.
const ODD_PART_NORM: usize = 4;

/// Kinds of steps, by their numbers in gather.cu.
const NORM: i32 = 0;
const LAYER_NORM: i32 = 1;
pub(super) const ADD: i32 = 2;
const MAP: i32 = 3;
pub(super) const GATE: i32 = 4;

const MOST_STEPS: usize = 4;

/// `Gather` in gather.cu: how an input is made of a buffer's columns.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Gather {
    input: Rows,
    steps: i32,
    unused: i32,
    step: [GatherStep; MOST_STEPS],
}

impl Gather {
    /// Its steps.
    fn steps(&self) -> &[GatherStep] {
        &self.step[..self.steps as usize]
    }

    /// What kinds of steps it has, a set of the bits in gather.cu, for an input of `cols` columns.
    pub fn kinds(&self, cols: usize) -> usize {
        let kind = |step: &GatherStep| {
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
            .fold(0, |kinds, step| kinds | kind(step))
    }

    /// Whether a norm has parts that warps cannot share, for which the whole row needs room.
    pub fn has_odd_norm(&self, cols: usize) -> bool {
        self.kinds(cols) & ODD_PART_NORM != 0
    }

    /// Whether everything that it reads begins at a multiple of 16 bytes, as the one row of a step.
    pub fn in_quads(&self, cols: usize) -> bool {
        let aligned = |address: &Address| address.is_multiple_of(16);
        let addresses = self
            .steps()
            .iter()
            .flat_map(|step| [step.weight, step.bias, step.columns.first]);
        let parts = |step: &GatherStep| {
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

    /// Whether at most one step is a norm, one adds other columns, and one gates by others.
    pub fn has_few_steps(&self) -> bool {
        let few = |kinds: &[i32]| {
            let of_these = |step: &&GatherStep| kinds.contains(&step.kind);
            self.steps().iter().filter(of_these).count() <= 1
        };
        few(&[NORM, LAYER_NORM]) && few(&[ADD]) && few(&[GATE])
    }

    /// Whether other columns' gates all go through SILU.
    pub fn gates_are_silu(&self) -> bool {
        let gate = |step: &GatherStep| step.kind == GATE;
        let silu = |step: &GatherStep| step.function == Activation::Silu as i32;
        self.steps().iter().any(gate) && self.steps().iter().all(|step| !gate(step) || silu(step))
    }

    /// The size of all parts of a row of `cols` that are normed in whole warps, if that is one power of two, and whether
    /// their gains are one part's, which repeat.
    pub fn equal_parts(&self, cols: usize) -> Option<(usize, bool)> {
        let normed = |step: &&GatherStep| step.kind <= LAYER_NORM && step.size as usize != cols;
        let mut parts = self.steps().iter().filter(normed).map(|step| {
            let (size, repeated) = (step.size as usize, step.groups == 1);
            let known = size.is_power_of_two() && size >= 32;
            (known && (repeated || step.span as usize == cols)).then_some((size, repeated))
        });
        let first = parts.next()??;
        parts.all(|part| part == Some(first)).then_some(first)
    }

    /// The epsilon, if the last step is the only norm, an RMS norm of the whole row of `cols` without a bias.
    pub fn late_norm(&self, cols: usize) -> Option<f32> {
        let (last, others) = self.steps().split_last()?;
        let plain = last.kind == NORM && last.size as usize == cols && last.bias == 0;
        let alone = others.iter().all(|step| step.kind > LAYER_NORM);
        (plain && alone).then_some(last.eps)
    }

    /// The columns that an input of `cols` is made of, if at most one step adds others, and at most one gates by others.
    pub fn columns(&self, cols: usize) -> Option<Rows> {
        self.has_few_steps().then_some(Rows {
            width: cols as i32,
            ..self.input
        })
    }

    /// The columns that the first step of this kind adds or gates by.
    pub fn columns_of(&self, kind: i32, cols: usize) -> Option<Rows> {
        let step = self.steps().iter().find(|step| step.kind == kind)?;
        Some(Rows {
            width: cols as i32,
            ..step.columns
        })
    }

    /// Whether the input is the columns as they are.
    fn is_plain(&self) -> bool {
        self.steps == 0
    }
}

/// `Linear` in project.cu.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct DeviceLinear {
    weights: Address,
    bias: Address,
    rows: i32,
    column: i32,
    format: i32,
    first: i32,
    multiplier: f32,
    unused: i32,
}

pub(super) const MOST_LINEARS: usize = 12;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Linears {
    count: i32,
    add: i32,
    at: [DeviceLinear; MOST_LINEARS],
}

/// A matrix, and what becomes of its product.
#[derive(Clone, Copy)]
pub(crate) struct Factor<'a> {
    pub matrix: &'a Matrix,
    /// Added to the multiplied product.
    pub bias: Option<&'a Vector>,
    /// First column of the product.
    pub column: usize,
    /// Multiplies the product.
    pub multiplier: f32,
}

impl<'a> Factor<'a> {
    /// A matrix whose product stands as it is in the first columns.
    pub fn plain(matrix: &'a Matrix) -> Self {
        Factor {
            matrix,
            bias: None,
            column: 0,
            multiplier: 1.0,
        }
    }
}

/// The three matrices of a gated unit, `down(activation(gate x) * up x)`.
pub(crate) struct GatedUnit<'a> {
    pub gate: Factor<'a>,
    /// Its product begins where the gate's ends.
    pub up: Factor<'a>,
    pub down: Factor<'a>,
    pub activation: Activation,
    /// Room for the products of gate and up, side by side.
    pub inner: View,
}

/// The number of a matrix' format in kernels.
pub(crate) fn format_of(matrix: &Matrix) -> usize {
    let known = FORMATS.iter().position(|&f| f == matrix.format());
    known.expect("every format is in the list")
}

/// The set of the matrices' formats, by their numbers.
pub(super) fn formats_of(factors: &[Factor]) -> usize {
    (factors.iter()).fold(0, |set, factor| set | 1 << format_of(factor.matrix))
}

/// Threads of a block, but for those which make one token's input themselves.
pub(super) const THREADS: usize = 256;
/// Rows that a warp takes of a matrix.
const WARP_ROWS: usize = 2;

/// Rows of f32 matrices that a chunk's tokens take one by one.
const FEW_ROWS: usize = 64;
/// Rows and tokens of a block's tile.
const TILE: usize = 64;

/// Shared memory of a block that multiplies one token: the input, and the same in 8 bits.
pub(crate) fn shared_bytes(cols: usize) -> usize {
    cols.next_multiple_of(32) * 5 + cols.div_ceil(32) * 8
}

/// Whether a chunk of so many tokens is multiplied in tiles: below, each token's columns are computed on their own.
fn in_tiles(tokens: usize) -> bool {
    tokens >= 8
}

impl Launches<'_> {
    /// An input made of `input`'s columns, behind a norm if there is one.
    pub fn gathered(&self, input: View, norm: Option<&Norm>) -> Result<Gather> {
        let mut gather = Gather {
            input: self.rows(input),
            ..Gather::zeroed()
        };
        if let Some(norm) = norm {
            gather.step[0] = self.norm_step(norm, 1)?;
            gather.steps = 1;
        }
        Ok(gather)
    }

    /// An input made of a mixer's output by the steps `finish`; more than a kernel takes pass through the buffer of inputs.
    pub fn finished(&mut self, input: View, finish: &[OutputOp]) -> Result<Gather> {
        let mut gather = self.gathered(input, None)?;
        for (index, steps) in finish.chunks(MOST_STEPS).enumerate() {
            if index > 0 {
                let staged = View::whole(INPUTS, input.width);
                self.stage(gather, staged);
                gather = self.gathered(staged, None)?;
            }
            for (place, step) in gather.step.iter_mut().zip(steps) {
                *place = self.finish_step(step)?;
            }
            gather.steps = steps.len() as i32;
        }
        Ok(gather)
    }

    fn norm_step(&self, norm: &Norm, groups: usize) -> Result<GatherStep> {
        Ok(GatherStep {
            weight: self.vector_address(&norm.weight)?,
            bias: self.optional_address(norm.bias.as_ref())?,
            eps: norm.eps,
            kind: norm.centred.into(),
            span: norm.weight.len() as i32,
            groups: groups as i32,
            size: (norm.weight.len() / groups) as i32,
            ..GatherStep::zeroed()
        })
    }

    fn finish_step(&self, step: &OutputOp) -> Result<GatherStep> {
        let none = GatherStep::zeroed();
        Ok(match step {
            OutputOp::Norm(norm) => self.norm_step(norm, 1)?,
            OutputOp::GroupNorm(norm, groups) => self.norm_step(norm, *groups)?,
            OutputOp::Add(view, gains) => GatherStep {
                weight: self.vector_address(gains)?,
                columns: self.rows(*view),
                kind: ADD,
                ..none
            },
            OutputOp::Map(function) => GatherStep {
                kind: MAP,
                function: *function as i32,
                ..none
            },
            OutputOp::Gate(view, function) => GatherStep {
                columns: self.rows(*view),
                kind: GATE,
                function: *function as i32,
                ..none
            },
        })
    }

    /// Writes an input to `output`, which may be its own columns.
    pub fn stage(&mut self, gather: Gather, output: View) {
        self.works_in(self.rows(output).bytes());
        self.push(Call {
            source: "",
            kernel: format!("gather<{}, {}>", output.width, gather.kinds(output.width)),
            grid: Grid::Tokens,
            threads: self.gather_threads(),
            shared: 0,
            parameters: vec![Parameter::value("Gather", gather), self.view(output)],
        });
    }

    /// `output = down(activation(gate x) * up x)`, or `+=`.
    pub fn multiply_gated(
        &mut self,
        gather: Gather,
        unit: &GatedUnit,
        output: View,
        add: bool,
    ) -> Result<()> {
        let GatedUnit { gate, up, down, .. } = *unit;
        let (halves, function) = (unit.inner.split(gate.matrix.rows()), unit.activation);
        if self.as_steps {
            return self.multiply_gated_columns(gather, unit, output, add);
        }
        if in_tiles(self.tokens) {
            let alike = format_of(gate.matrix) == format_of(up.matrix);
            let mut all = [gate, up, down].into_iter();
            let rounded = all.all(|factor| self.on_tensor_cores(factor.matrix));
            if alike && rounded && self.tensor_cores == TensorCores::WarpGroups {
                return self.multiply_gated_groups(gather, unit, output, add);
            }
            self.multiply(gather, &[gate, up], unit.inner, false)?;
            let gated = self.finished(halves.1, &[OutputOp::Gate(halves.0, function)])?;
            return self.multiply(gated, &[down], output, add);
        }
        let cols = gate.matrix.cols();
        let inner = View {
            width: gate.matrix.rows(),
            ..unit.inner
        };
        let factors = [gate, Factor { column: 0, ..up }];
        let formats = formats_of(&factors);
        let kind = Kind::Gated(function);
        if !self.push_to_ring(gather, &factors, self.rows(inner), kind)? {
            let rows = self.block_rows();
            let (linears, _) = self.linears(&factors, rows, false)?;
            self.push_streaming(Call {
                source: "",
                kernel: format!(
                    "multiply_gated<{formats}, {cols}, {}, {}>",
                    gather.kinds(cols),
                    function as i32
                ),
                grid: Grid::EachToken(gate.matrix.rows().div_ceil(rows)),
                threads: self.gather_threads(),
                shared: shared_bytes(cols),
                parameters: vec![
                    Parameter::value("Gather", gather),
                    linears,
                    self.view(inner),
                ],
            });
        }
        let gather = self.gathered(inner, None)?;
        self.multiply(gather, &[down], output, add)
    }

    /// `output[column..] = multiplier matrix gather + bias` for each factor, or `+=`.
    pub fn multiply(
        &mut self,
        gather: Gather,
        factors: &[Factor],
        output: View,
        add: bool,
    ) -> Result<()> {
        self.multiply_into(gather, factors, self.rows(output), add)
    }

    /// As [`Launches::multiply`], into any memory.
    pub fn multiply_into(
        &mut self,
        gather: Gather,
        factors: &[Factor],
        output: Rows,
        add: bool,
    ) -> Result<()> {
        if self.as_steps {
            return self.multiply_columns(gather, factors, output, add);
        }
        if in_tiles(self.tokens) {
            return self.multiply_chunk(gather, factors, output, add);
        }
        self.multiply_tokens(gather, factors, output, add)
    }

    /// As [`Launches::multiply`], each token on its own.
    fn multiply_tokens(
        &mut self,
        gather: Gather,
        factors: &[Factor],
        output: Rows,
        add: bool,
    ) -> Result<()> {
        let kind = if add { Kind::Add } else { Kind::Store };
        if self.push_to_ring(gather, factors, output, kind)? {
            return Ok(());
        }
        let cols = factors[0].matrix.cols();
        let formats = formats_of(factors);
        for factors in factors.chunks(MOST_LINEARS) {
            let (linears, tiles) = self.linears(factors, self.block_rows(), add)?;
            self.push_streaming(Call {
                source: "",
                kernel: format!("multiply<{formats}, {cols}, {}>", gather.kinds(cols)),
                grid: Grid::EachToken(tiles),
                threads: self.gather_threads(),
                shared: shared_bytes(cols),
                parameters: vec![
                    Parameter::value("Gather", gather),
                    linears,
                    Parameter::value("Rows", output),
                ],
            });
        }
        Ok(())
    }

    /// Rows that a block takes of a matrix where each token is on its own.
    pub fn block_rows(&self) -> usize {
        self.gather_threads() / 32 * WARP_ROWS
    }

    /// As [`Launches::multiply`], for many tokens: on tensor cores, but for f32 matrices, whose products stay exact.
    fn multiply_chunk(
        &mut self,
        gather: Gather,
        factors: &[Factor],
        output: Rows,
        add: bool,
    ) -> Result<()> {
        let cols = factors[0].matrix.cols();
        let (rounded, exact): (Vec<Factor>, Vec<Factor>) =
            (factors.iter()).partition(|factor| self.on_tensor_cores(factor.matrix));
        if !rounded.is_empty() {
            let inputs = self.gather_in_bf16(gather, cols)?;
            self.multiply_in_bf16(inputs, &rounded, output, add)?;
        }
        if exact.is_empty() {
            return Ok(());
        }
        // A few rows, such as those of gates, would leave most of a tile empty.
        if exact
            .iter()
            .map(|factor| factor.matrix.rows())
            .sum::<usize>()
            <= FEW_ROWS
        {
            return self.multiply_tokens(gather, &exact, output, add);
        }
        let mut input = gather.input;
        if !gather.is_plain() {
            let staged = View::whole(INPUTS, cols);
            self.stage(gather, staged);
            input = self.rows(staged);
        }
        let formats = formats_of(&exact);
        for factors in exact.chunks(MOST_LINEARS) {
            let (linears, tiles) = self.linears(factors, TILE, add)?;
            self.push(Call {
                source: "",
                kernel: format!("multiply_tile<{formats}, {cols}>"),
                grid: Grid::EachTile(tiles, TILE),
                threads: THREADS,
                shared: 0,
                parameters: vec![
                    Parameter::value("Rows", input),
                    linears,
                    Parameter::value("Rows", output),
                    Parameter::tokens(),
                ],
            });
        }
        Ok(())
    }

    pub(super) fn linears(
        &self,
        factors: &[Factor],
        tile: usize,
        add: bool,
    ) -> Result<(Parameter, usize)> {
        let mut linears = Linears {
            count: factors.len() as i32,
            add: add.into(),
            ..Linears::zeroed()
        };
        let mut tiles = 0;
        for (place, factor) in linears.at.iter_mut().zip(factors) {
            *place = DeviceLinear {
                weights: self.matrix_address(factor.matrix)?,
                bias: self.optional_address(factor.bias)?,
                rows: factor.matrix.rows() as i32,
                column: factor.column as i32,
                format: format_of(factor.matrix) as i32,
                first: tiles as i32,
                multiplier: factor.multiplier,
                unused: 0,
            };
            tiles += factor.matrix.rows().div_ceil(tile);
        }
        Ok((Parameter::value("Linears", linears), tiles))
    }
}
