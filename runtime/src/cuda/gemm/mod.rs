//! Matrix products, by one launcher: [`Launches::gemm`] chooses the streaming GEMV of the decode kernel, `simt.cu`, `mma.cu` or `wgmma.cu`
//! by the number of tokens, the format and the device.

mod chosen;
mod columns;
mod prologue;
mod tensor_cores;

use bytemuck::{Pod, Zeroable};
pub(crate) use columns::SOURCE as COLUMNS_SOURCE;
pub(crate) use prologue::{ADD, GATE, Prologue};
use waterline_quant::{FORMATS, Matrix};

use crate::cuda::decode::gemv::Epilogue;
use crate::cuda::driver::{Address, TensorCores};
use crate::cuda::schedule::{Call, Grid, Launches, Parameter, Rows};
use crate::error::Result;
use crate::functions::{Activation, OutputOp};
use crate::operands::{INPUTS, View};
use crate::weights::Vector;

/// `Linear` in simt.cu.
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

pub(crate) const MOST_LINEARS: usize = 12;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Linears {
    count: i32,
    add: i32,
    at: [DeviceLinear; MOST_LINEARS],
}

/// A matrix with bias and factor, and the columns of its product.
#[derive(Clone, Copy)]
pub struct WeightMatrix<'a> {
    pub matrix: &'a Matrix,
    /// Added to the scaled product.
    pub bias: Option<&'a Vector>,
    /// First column of the product.
    pub column: usize,
    /// Factor of the product.
    pub multiplier: f32,
}

impl<'a> WeightMatrix<'a> {
    /// A matrix without bias and factor, whose product is in the first columns.
    pub fn plain(matrix: &'a Matrix) -> Self {
        WeightMatrix {
            matrix,
            bias: None,
            column: 0,
            multiplier: 1.0,
        }
    }
}

/// The three matrices of a gated unit, `down(activation(gate x) * up x)`.
pub struct GatedUnit<'a> {
    pub gate: WeightMatrix<'a>,
    /// Its product's columns follow the gate's.
    pub up: WeightMatrix<'a>,
    pub down: WeightMatrix<'a>,
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
pub(crate) fn formats_of(weights: &[WeightMatrix]) -> usize {
    (weights.iter()).fold(0, |set, weight| set | 1 << format_of(weight.matrix))
}

/// Threads of a block that computes tiles.
pub(crate) const THREADS: usize = 256;
/// Rows of a warp in `gemv`.
const WARP_ROWS: usize = 2;

/// Most rows of f32 matrices for which a chunk goes token by token.
const FEW_ROWS: usize = 64;
/// Rows and tokens of a tile of `gemm_simt`.
const TILE: usize = 64;

/// Shared memory of `gemv`: the input in f32 and in 8 bits.
pub(crate) fn shared_bytes(cols: usize) -> usize {
    cols.next_multiple_of(32) * 5 + cols.div_ceil(32) * 8
}

/// Whether so many tokens are multiplied in tiles; fewer go token by token.
fn in_tiles(tokens: usize) -> bool {
    tokens >= 8
}

impl Launches<'_> {
    /// `output = down(activation(gate x) * up x)`, or `+=`.
    pub fn gemm_gated(
        &mut self,
        prologue: Prologue,
        unit: &GatedUnit,
        output: View,
        add: bool,
    ) -> Result<()> {
        let GatedUnit { gate, up, down, .. } = *unit;
        let (halves, function) = (unit.inner.split(gate.matrix.rows()), unit.activation);
        if self.as_steps {
            return self.gemm_gated_columns(prologue, unit, output, add);
        }
        if in_tiles(self.tokens) {
            let alike = format_of(gate.matrix) == format_of(up.matrix);
            let mut all = [gate, up, down].into_iter();
            let rounded = all.all(|weight| self.on_tensor_cores(weight.matrix));
            if alike && rounded && self.tensor_cores == TensorCores::WarpGroups {
                return self.gemm_wgmma_gated(prologue, unit, output, add);
            }
            self.gemm(prologue, &[gate, up], unit.inner, false)?;
            let gated = self.output_prologue(halves.1, &[OutputOp::Gate(halves.0, function)])?;
            return self.gemm(gated, &[down], output, add);
        }
        let cols = gate.matrix.cols();
        let inner = View {
            width: gate.matrix.rows(),
            ..unit.inner
        };
        let weights = [gate, WeightMatrix { column: 0, ..up }];
        let formats = formats_of(&weights);
        let kind = Epilogue::Gated(function);
        if !self.push_streaming_gemv(prologue, &weights, self.rows(inner), kind)? {
            let rows = self.block_rows();
            let (linears, _) = self.linears(&weights, rows, false)?;
            self.push_prefetching(Call {
                source: &[],
                kernel: format!(
                    "gemv_gated<{formats}, {cols}, {}, {}>",
                    prologue.flags(cols),
                    function as i32
                ),
                grid: Grid::EachToken(gate.matrix.rows().div_ceil(rows)),
                threads: self.prologue_threads(),
                shared: shared_bytes(cols),
                parameters: vec![
                    Parameter::value("Prologue", prologue),
                    linears,
                    self.view(inner),
                ],
            });
        }
        let prologue = self.prologue(inner, None)?;
        self.gemm(prologue, &[down], output, add)
    }

    /// `output[column..] = multiplier matrix input + bias` for each matrix, or `+=`.
    pub fn gemm(
        &mut self,
        prologue: Prologue,
        weights: &[WeightMatrix],
        output: View,
        add: bool,
    ) -> Result<()> {
        self.gemm_into(prologue, weights, self.rows(output), add)
    }

    /// As [`Launches::gemm`], into any memory.
    pub fn gemm_into(
        &mut self,
        prologue: Prologue,
        weights: &[WeightMatrix],
        output: Rows,
        add: bool,
    ) -> Result<()> {
        if self.as_steps {
            return self.gemm_columns(prologue, weights, output, add);
        }
        if in_tiles(self.tokens) {
            return self.gemm_chunk(prologue, weights, output, add);
        }
        self.gemv_each(prologue, weights, output, add)
    }

    /// As [`Launches::gemm`], token by token.
    fn gemv_each(
        &mut self,
        prologue: Prologue,
        weights: &[WeightMatrix],
        output: Rows,
        add: bool,
    ) -> Result<()> {
        let kind = if add { Epilogue::Add } else { Epilogue::Store };
        if self.push_streaming_gemv(prologue, weights, output, kind)? {
            return Ok(());
        }
        let cols = weights[0].matrix.cols();
        let formats = formats_of(weights);
        for weights in weights.chunks(MOST_LINEARS) {
            let (linears, tiles) = self.linears(weights, self.block_rows(), add)?;
            self.push_prefetching(Call {
                source: &[],
                kernel: format!("gemv<{formats}, {cols}, {}>", prologue.flags(cols)),
                grid: Grid::EachToken(tiles),
                threads: self.prologue_threads(),
                shared: shared_bytes(cols),
                parameters: vec![
                    Parameter::value("Prologue", prologue),
                    linears,
                    Parameter::value("Rows", output),
                ],
            });
        }
        Ok(())
    }

    /// Rows of a block in `gemv`.
    pub fn block_rows(&self) -> usize {
        self.prologue_threads() / 32 * WARP_ROWS
    }

    /// As [`Launches::gemm`], for many tokens: on tensor cores, except f32 matrices, whose products stay exact.
    fn gemm_chunk(
        &mut self,
        prologue: Prologue,
        weights: &[WeightMatrix],
        output: Rows,
        add: bool,
    ) -> Result<()> {
        let cols = weights[0].matrix.cols();
        let (rounded, exact): (Vec<WeightMatrix>, Vec<WeightMatrix>) =
            (weights.iter()).partition(|weight| self.on_tensor_cores(weight.matrix));
        if !rounded.is_empty() {
            let inputs = self.prologue_in_bf16(prologue, cols)?;
            self.gemm_bf16(inputs, &rounded, output, add)?;
        }
        if exact.is_empty() {
            return Ok(());
        }
        // Few rows, such as those of gates, would leave most of a tile empty.
        if exact
            .iter()
            .map(|weight| weight.matrix.rows())
            .sum::<usize>()
            <= FEW_ROWS
        {
            return self.gemv_each(prologue, &exact, output, add);
        }
        let mut input = prologue.input;
        if !prologue.is_plain() {
            let staged = View::whole(INPUTS, cols);
            self.store_prologue(prologue, staged);
            input = self.rows(staged);
        }
        let formats = formats_of(&exact);
        for weights in exact.chunks(MOST_LINEARS) {
            let (linears, tiles) = self.linears(weights, TILE, add)?;
            self.push(Call {
                source: &[],
                kernel: format!("gemm_simt<{formats}, {cols}>"),
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

    pub(crate) fn linears(
        &self,
        weights: &[WeightMatrix],
        tile: usize,
        add: bool,
    ) -> Result<(Parameter, usize)> {
        let addresses = weights
            .iter()
            .map(|weight| self.matrix_address(weight.matrix));
        self.linears_at(weights, tile, add, &addresses.collect::<Result<Vec<_>>>()?)
    }

    /// As [`Launches::linears`], of matrices that lie at `addresses`.
    fn linears_at(
        &self,
        weights: &[WeightMatrix],
        tile: usize,
        add: bool,
        addresses: &[Address],
    ) -> Result<(Parameter, usize)> {
        let mut linears = Linears {
            count: weights.len() as i32,
            add: add.into(),
            ..Linears::zeroed()
        };
        let mut tiles = 0;
        for ((place, weight), &address) in linears.at.iter_mut().zip(weights).zip(addresses) {
            *place = DeviceLinear {
                weights: address,
                bias: self.optional_address(weight.bias)?,
                rows: weight.matrix.rows() as i32,
                column: weight.column as i32,
                format: format_of(weight.matrix) as i32,
                first: tiles as i32,
                multiplier: weight.multiplier,
                unused: 0,
            };
            tiles += weight.matrix.rows().div_ceil(tile);
        }
        Ok((Parameter::value("Linears", linears), tiles))
    }
}
