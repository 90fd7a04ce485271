//! Matrix products, by one launcher: [`Launches::gemm`] chooses the streaming GEMV of the decode kernel, `simt.cu`, `mma.cu` or `wgmma.cu`
//! by the number of tokens, the format and the device.

mod chosen;
mod prologue;
mod slots;
mod slots_mma;
mod streaming;
mod tensor_cores;

use bytemuck::Zeroable;
pub(crate) use prologue::{Prologue, PrologueFlag, StepKind};
pub(crate) use slots::{CODE_ROWS, CODES_SHARED};
pub(in crate::cuda) use streaming::EpilogueKind;
use waterline_quant::{BF16, F16, FORMATS, Format, Matrix, Rounding};

use crate::abi::device_struct;
use crate::cuda::driver::Address;
use crate::cuda::schedule::Epilogue;
use crate::cuda::schedule::{Call, Grid, Launches, Parameter, Rows};
use crate::error::Result;
use crate::functions::{Activation, OutputOp};
use crate::operands::{INPUTS, View};
use crate::weights::Vector;

device_struct! {
    /// A matrix and the columns of its product.
    struct Linear {
        weights: Address as *const u8,
        bias: Address as *const f32,
        rows: i32,
        column: i32,
        format: i32,
        /// The first tile of the matrix.
        first: i32,
        /// Factor of the product, before the bias.
        multiplier: f32,
        unused: i32,
    }
}

pub(crate) const MOST_LINEARS: usize = 12;

device_struct! {
    /// Matrices with a common input.
    pub(in crate::cuda) struct Linears {
        count: i32,
        /// Whether products are added to the output.
        add: i32,
        at: [Linear; MOST_LINEARS],
    }
}

/// A matrix with a bias and a factor, and the columns of its product.
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
    /// A matrix without a bias and a factor, whose product is in the first columns.
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
    /// The columns of its product follow those of `gate`.
    pub up: WeightMatrix<'a>,
    pub down: WeightMatrix<'a>,
    pub activation: Activation,
    /// Room for the products of gate and up, side by side.
    pub inner: View,
}

/// Returns a format's number in kernels.
fn format_number(format: &Format) -> usize {
    let known = FORMATS.iter().position(|&other| other == format);
    known.expect("every format is in the list")
}

/// Returns the number of a matrix's format in kernels.
pub(crate) fn format_of(matrix: &Matrix) -> usize {
    format_number(matrix.format().plain())
}

/// Returns the set of the matrices' formats, by their numbers.
pub(crate) fn formats_of(weights: &[WeightMatrix]) -> usize {
    (weights.iter()).fold(0, |set, weight| set | 1 << format_of(weight.matrix))
}

/// Returns how the input of each matrix is rounded.
fn roundings_of(weights: &[WeightMatrix]) -> Vec<Option<Rounding>> {
    let formats = || weights.iter().map(|weight| weight.matrix.format().plain());
    let rounding = |format| Rounding::for_shared_input(format, formats());
    formats().map(rounding).collect()
}

/// Groups matrices with a common input by how that input is rounded.
pub(crate) fn by_rounding<'a>(
    weights: &[WeightMatrix<'a>],
) -> Vec<(Option<Rounding>, Vec<WeightMatrix<'a>>)> {
    let mut groups: Vec<(Option<Rounding>, Vec<WeightMatrix>)> = Vec::new();
    for (rounding, &weight) in roundings_of(weights).into_iter().zip(weights) {
        match groups.iter_mut().find(|(known, _)| *known == rounding) {
            Some((_, group)) => group.push(weight),
            None => groups.push((rounding, vec![weight])),
        }
    }
    groups
}

/// Threads of a block that computes tiles.
pub(crate) const THREADS: usize = 256;
/// Rows per warp in `gemv`.
const WARP_ROWS: usize = 2;

/// Rows and tokens of a tile of `gemm_simt`.
const TILE: usize = 64;

/// Shared memory of `gemv`: the input in f32 and in 8 bits.
pub(crate) fn shared_bytes(cols: usize) -> usize {
    cols.next_multiple_of(32) * 5 + cols.div_ceil(32) * 8
}

/// Whether this many tokens are multiplied in tiles; fewer are multiplied token by token.
fn in_tiles(tokens: usize) -> bool {
    tokens >= 8
}

impl Launches<'_> {
    /// Appends `output = down(activation(gate x) * up x)`, or `+=`.
    pub fn gemm_gated(
        &mut self,
        prologue: Prologue,
        unit: &GatedUnit,
        output: View,
        add: bool,
    ) -> Result<()> {
        let GatedUnit { gate, up, down, .. } = *unit;
        let (halves, function) = (unit.inner.split(gate.matrix.rows()), unit.activation);
        let weights = [gate, WeightMatrix { column: 0, ..up }];
        let roundings = roundings_of(&weights);
        let is_chunk = in_tiles(self.tokens) && !self.as_steps;
        if is_chunk || roundings[0] != roundings[1] {
            let alike = format_of(gate.matrix) == format_of(up.matrix);
            let all = || [gate, up, down].into_iter();
            let in_16_bits = all().all(|weight| self.on_tensor_cores(weight.matrix));
            let number = self.number_of(gate.matrix, &prologue);
            let groups = is_chunk && self.by_warp_groups(&[gate, up], number);
            let exact =
                all().any(|weight| self.is_exact(weight.matrix.format().plain().rounding()));
            if alike && in_16_bits && groups && !exact {
                return self.gemm_wgmma_gated(prologue, unit, output, add);
            }
            self.gemm(prologue, &[gate, up], unit.inner, false)?;
            let gated = self.output_prologue(halves.1, &[OutputOp::Gate(halves.0, function)])?;
            return self.gemm(gated, &[down], output, add);
        }
        if self.as_steps {
            return self.gemm_gated_slots(prologue, unit, output, add);
        }
        let cols = gate.matrix.cols();
        let inner = View {
            width: gate.matrix.rows(),
            ..unit.inner
        };
        let formats = formats_of(&weights);
        let kind = Epilogue::Gated(function);
        if !self.push_streaming_gemv(prologue, &weights, roundings[0], self.rows(inner), kind)? {
            let rounding = Rounding::device_number(roundings[0]);
            let rows = self.block_rows();
            let (linears, _) = self.linears(&weights, rows, false)?;
            self.push_prefetching(Call {
                source: &[],
                kernel: format!(
                    "gemv_gated<{formats}, {rounding}, {cols}, {}, {}>",
                    prologue.flags(cols),
                    function as i32
                ),
                grid: Grid::EachToken(gate.matrix.rows().div_ceil(rows)),
                threads: self.prologue_threads(),
                shared: shared_bytes(cols),
                parameters: vec![Parameter::value(prologue), linears, self.view(inner)],
            });
        }
        let prologue = self.prologue(inner, None)?;
        self.gemm(prologue, &[down], output, add)
    }

    /// Appends `output[column..] = multiplier matrix input + bias` for each matrix, or `+=`.
    pub fn gemm(
        &mut self,
        prologue: Prologue,
        weights: &[WeightMatrix],
        output: View,
        add: bool,
    ) -> Result<()> {
        self.gemm_into(prologue, weights, self.rows(output), add)
    }

    /// Like [`Launches::gemm`], but writes to any memory.
    pub fn gemm_into(
        &mut self,
        prologue: Prologue,
        weights: &[WeightMatrix],
        output: Rows,
        add: bool,
    ) -> Result<()> {
        for (rounding, weights) in by_rounding(weights) {
            if self.as_steps || in_tiles(self.tokens) && self.is_exact(rounding) {
                self.gemm_slots(prologue, &weights, rounding, output, add)?;
            } else if in_tiles(self.tokens) {
                self.gemm_chunk(prologue, &weights, rounding, output, add)?;
            } else {
                self.gemv_each(prologue, &weights, rounding, output, add)?;
            }
        }
        Ok(())
    }

    /// Whether chunks with such inputs are multiplied in integers, as in steps: 8-bit inputs, where the program routes tokens. There a
    /// difference of 1e-5 in a sum changes a code of a later input, which may change a choice, and then all logits differ.
    fn is_exact(&self, rounding: Option<Rounding>) -> bool {
        self.has_routing && rounding.is_some_and(Rounding::is_integer)
    }

    /// Like [`Launches::gemm`] for inputs with one rounding, token by token.
    fn gemv_each(
        &mut self,
        prologue: Prologue,
        weights: &[WeightMatrix],
        rounding: Option<Rounding>,
        output: Rows,
        add: bool,
    ) -> Result<()> {
        let kind = if add { Epilogue::Add } else { Epilogue::Store };
        if self.push_streaming_gemv(prologue, weights, rounding, output, kind)? {
            return Ok(());
        }
        let rounding = Rounding::device_number(rounding);
        let cols = weights[0].matrix.cols();
        let formats = formats_of(weights);
        for weights in weights.chunks(MOST_LINEARS) {
            let (linears, tiles) = self.linears(weights, self.block_rows(), add)?;
            self.push_prefetching(Call {
                source: &[],
                kernel: format!(
                    "gemv<{formats}, {rounding}, {cols}, {}>",
                    prologue.flags(cols)
                ),
                grid: Grid::EachToken(tiles),
                threads: self.prologue_threads(),
                shared: shared_bytes(cols),
                parameters: vec![
                    Parameter::value(prologue),
                    linears,
                    Parameter::value(output),
                ],
            });
        }
        Ok(())
    }

    /// Returns the rows per block in `gemv`.
    pub fn block_rows(&self) -> usize {
        self.prologue_threads() / 32 * WARP_ROWS
    }

    /// Like [`Launches::gemm`] for inputs with one rounding, for many tokens: on tensor cores, except for f32 matrices, whose products stay
    /// exact.
    fn gemm_chunk(
        &mut self,
        prologue: Prologue,
        weights: &[WeightMatrix],
        rounding: Option<Rounding>,
        output: Rows,
        add: bool,
    ) -> Result<()> {
        let cols = weights[0].matrix.cols();
        let (short, exact): (Vec<WeightMatrix>, Vec<WeightMatrix>) =
            (weights.iter()).partition(|weight| self.on_tensor_cores(weight.matrix));
        // Tiles of few rows, such as those of gates and routers, would leave SMs idle. The kernel that makes the inputs of the other
        // matrices stores theirs too. They are multiplied first, while their inputs are still in L2.
        let rows: usize = exact.iter().map(|weight| weight.matrix.rows()).sum();
        let in_slots = rows.div_ceil(TILE) * self.tokens.div_ceil(TILE) <= self.limits.sms;
        let mut unread = in_slots && !exact.is_empty();
        for number in [&BF16, &F16] {
            let of_number =
                |weight: &&WeightMatrix| self.number_of(weight.matrix, &prologue) == number;
            let short: Vec<WeightMatrix> = short.iter().filter(of_number).copied().collect();
            if short.is_empty() {
                continue;
            }
            let stored = unread.then(|| self.stored_slots(cols)).transpose()?;
            let inputs = self.prologue_in_16_bits(prologue, cols, (number, rounding), stored)?;
            if std::mem::take(&mut unread) {
                self.gemm_stored_slots(&exact, output, add)?;
            }
            self.gemm_16_bits((inputs, number), &short, output, add)?;
        }
        if unread {
            return self.gemm_slots(prologue, &exact, None, output, add);
        }
        if in_slots {
            return Ok(());
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
                    Parameter::value(input),
                    linears,
                    Parameter::value(output),
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
        self.linears_in_tiles(weights, |_| tile, add)
    }

    /// Like [`Launches::linears`], with this many rows per tile for each matrix.
    fn linears_in_tiles(
        &self,
        weights: &[WeightMatrix],
        tile: impl Fn(&Matrix) -> usize,
        add: bool,
    ) -> Result<(Parameter, usize)> {
        let addresses = weights
            .iter()
            .map(|weight| self.matrix_address(weight.matrix));
        let addresses = addresses.collect::<Result<Vec<_>>>()?;
        self.linears_at(weights, tile, add, &addresses)
    }

    /// Like [`Launches::linears_in_tiles`], for matrices at these `addresses`.
    fn linears_at(
        &self,
        weights: &[WeightMatrix],
        tile: impl Fn(&Matrix) -> usize,
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
            *place = Linear {
                weights: address,
                bias: self.optional_address(weight.bias)?,
                rows: weight.matrix.rows() as i32,
                column: weight.column as i32,
                format: format_of(weight.matrix) as i32,
                first: tiles as i32,
                multiplier: weight.multiplier,
                unused: 0,
            };
            tiles += weight.matrix.rows().div_ceil(tile(weight.matrix));
        }
        Ok((Parameter::value(linears), tiles))
    }
}
