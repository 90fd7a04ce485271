//! GEMMs of chunks on tensor cores: builds the arguments of `mma.cu` and `wgmma.cu`.

use bytemuck::Zeroable;
use waterline_quant::{BF16, F16, FORMATS, Format, Matrix, Rounding};

use crate::cuda::driver::{Address, TensorCores};
use crate::cuda::gemm::{
    GatedUnit, MOST_LINEARS, Prologue, THREADS, WeightMatrix, format_number, format_of,
    roundings_of,
};
use crate::cuda::schedule::{Call, Grid, Launches, Parameter, Rows, Source};
use crate::error::Result;
use crate::operands::{INPUTS, View};

const MMA_SOURCE: &[Source] = &[Source::new("cuda/gemm/mma.cu", &[])];
/// Rows and tokens of a tile of `mma.cu`, and columns of a step.
const MMA_TILE: usize = 128;
const MMA_DEPTH: usize = 64;
const WGMMA_SOURCE: &[Source] = &[Source::new("cuda/gemm/wgmma.cu", &[])];
/// Rows of a tile of `wgmma.cu`, threads, and bytes of shared memory: four stages and their alignment.
const WGMMA_ROWS: usize = 256;
const WGMMA_THREADS: usize = 384;
/// Maximum bytes of unpacked weights: gate and up of a model of 20B. Larger matrices go to `mma.cu`.
const MOST_UNPACKED: usize = 512 << 20;
const WGMMA_SHARED: usize = 4 * (MMA_TILE + WGMMA_ROWS) * MMA_DEPTH * size_of::<u16>() + 1024;

/// Returns the bytes of a matrix in 16-bit numbers.
fn unpacked_bytes(weight: &WeightMatrix) -> usize {
    weight.matrix.rows() * weight.matrix.cols() * size_of::<u16>()
}

impl Launches<'_> {
    /// Returns the format in which a matrix is multiplied with this input. Weights of 16 bits keep theirs, and inputs are converted, as in
    /// ggml. For quantized weights f16 keeps more bits than bf16; it is used where a norm bounds the input.
    pub(super) fn number_of(&self, matrix: &Matrix, prologue: &Prologue) -> &'static Format {
        match matrix.format().plain().name {
            "F16" => &F16,
            "BF16" => &BF16,
            _ if prologue.ends_in_norm() => &F16,
            _ => &BF16,
        }
    }

    /// Whether chunks are multiplied with this matrix on tensor cores.
    pub(crate) fn on_tensor_cores(&self, matrix: &Matrix) -> bool {
        self.limits.tensor_cores != TensorCores::None && format_of(matrix) != 0
    }

    /// Takes a workspace for `width` columns of 16 bits of each token of a chunk.
    fn room_in_16_bits(&mut self, purpose: &'static str, width: usize) -> Result<Address> {
        let tokens = self.tokens.next_multiple_of(MMA_TILE);
        let bytes = tokens * width.next_multiple_of(MMA_DEPTH) * size_of::<u16>();
        self.shared_address(purpose, bytes)
    }

    /// Rounds an input and stores it in this format, where the next input overwrites it, and in f32 at `floats`, if any.
    pub(super) fn prologue_in_16_bits(
        &mut self,
        prologue: Prologue,
        cols: usize,
        (number, rounding): (&Format, Option<Rounding>),
        floats: Option<Rows>,
    ) -> Result<Address> {
        let widest = self.memory.buffers[INPUTS].bytes() / size_of::<f32>() / self.tokens;
        let address = self.room_in_16_bits("inputs in 16 bits", widest.max(cols))?;
        let (number, rounding) = (format_number(number), Rounding::device_number(rounding));
        self.push(Call {
            source: MMA_SOURCE,
            kernel: format!(
                "prologue_16_bits<{number}, {rounding}, {cols}, {}, {}>",
                prologue.flags(cols),
                floats.is_some()
            ),
            grid: Grid::Tokens,
            threads: THREADS,
            shared: cols * size_of::<f32>(),
            parameters: vec![
                Parameter::value(prologue),
                Parameter::pointer("u16", address),
                Parameter::value(floats.unwrap_or(prologue.input)),
            ],
        });
        Ok(address)
    }

    /// Like [`Launches::gemm_into`], for inputs in this format.
    pub(super) fn gemm_16_bits(
        &mut self,
        (inputs, number): (Address, &Format),
        weights: &[WeightMatrix],
        output: Rows,
        add: bool,
    ) -> Result<()> {
        let cols = weights[0].matrix.cols();
        for format in 1..FORMATS.len() {
            let of_format = |weight: &&WeightMatrix| format_of(weight.matrix) == format;
            let weights: Vec<WeightMatrix> = weights.iter().filter(of_format).copied().collect();
            for weights in weights.chunks(MOST_LINEARS) {
                let inputs = Parameter::pointer("const u16", inputs);
                let output = Parameter::value(output);
                if self.by_warp_groups(weights, number) {
                    let (linears, tiles) = self.wgmma_linears((weights, number), WGMMA_ROWS)?;
                    let has_bias = weights.iter().any(|weight| weight.bias.is_some());
                    let number = format_number(number);
                    self.push_wgmma(
                        format!("gemm_wgmma<{number}, {cols}, {add}, {has_bias}>"),
                        (tiles, cols),
                        vec![
                            inputs,
                            linears,
                            Parameter::int(tiles),
                            output,
                            Parameter::tokens(),
                        ],
                    );
                    continue;
                }
                let (linears, tiles) = self.linears(weights, MMA_TILE, add)?;
                self.push(Call {
                    source: MMA_SOURCE,
                    kernel: format!("gemm_mma<{format}, {}, {cols}>", format_number(number)),
                    grid: Grid::EachTile(tiles, MMA_TILE),
                    threads: THREADS,
                    shared: 4 * MMA_TILE * (MMA_DEPTH + 8) * size_of::<u16>(),
                    parameters: vec![inputs, linears, output, Parameter::tokens()],
                });
            }
        }
        Ok(())
    }

    /// Whether `wgmma.cu` multiplies chunks with these matrices of one format: weights must have 16 bits or fit when unpacked.
    pub(super) fn by_warp_groups(&self, weights: &[WeightMatrix], number: &Format) -> bool {
        let cols = weights[0].matrix.cols();
        self.limits.tensor_cores == TensorCores::WarpGroups
            && cols.is_multiple_of(8)
            && (format_of(weights[0].matrix) == format_number(number)
                || weights.iter().map(unpacked_bytes).sum::<usize>() <= MOST_UNPACKED)
    }

    /// Returns matrices of one format in the number format of their inputs, for `wgmma.cu`, and the number of their tiles of `tile` rows.
    /// Whether the kernel adds is its template argument.
    fn wgmma_linears(
        &mut self,
        (weights, number): (&[WeightMatrix], &Format),
        tile: usize,
    ) -> Result<(Parameter, usize)> {
        if format_of(weights[0].matrix) == format_number(number) {
            return self.linears(weights, tile, false);
        }
        let addresses = self.unpack_weights(weights, number)?;
        self.linears_at(weights, |_| tile, false, &addresses)
    }

    /// Appends a call of `wgmma.cu` for this many tiles of rows of `cols` columns: one persistent block per SM.
    fn push_wgmma(
        &mut self,
        kernel: String,
        (row_tiles, cols): (usize, usize),
        parameters: Vec<Parameter>,
    ) {
        self.push(Call {
            source: WGMMA_SOURCE,
            kernel,
            grid: Grid::SplitTiles {
                blocks: self.limits.sms,
                row_tiles,
                tile: MMA_TILE,
                steps: cols.div_ceil(MMA_DEPTH),
            },
            threads: WGMMA_THREADS,
            shared: WGMMA_SHARED,
            parameters,
        });
    }

    /// Unpacks matrices of one format into 16-bit numbers; returns their addresses.
    fn unpack_weights(
        &mut self,
        weights: &[WeightMatrix],
        number: &Format,
    ) -> Result<Vec<Address>> {
        let (cols, format) = (weights[0].matrix.cols(), format_of(weights[0].matrix));
        let bytes = weights.iter().map(unpacked_bytes).sum();
        let mut address = self.shared_address("weights in 16 bits", bytes)?;
        let (linears, _) = self.linears(weights, WGMMA_ROWS, false)?;
        self.push(Call {
            source: WGMMA_SOURCE,
            kernel: format!(
                "unpack_weights<{format}, {}, {cols}>",
                format_number(number)
            ),
            grid: Grid::Blocks(8 * self.limits.sms),
            threads: THREADS,
            shared: 0,
            parameters: vec![linears, Parameter::pointer("u16", address)],
        });
        let addresses = weights.iter().map(|weight| {
            let own = address;
            address += unpacked_bytes(weight) as u64;
            own
        });
        Ok(addresses.collect())
    }

    /// Like [`Launches::gemm_gated`], by `wgmma.cu`: the gated product is the last matrix's input in 16-bit numbers. It is not rounded to 8
    /// bits first, since the numbers that share a scale are in different blocks.
    pub(crate) fn gemm_wgmma_gated(
        &mut self,
        prologue: Prologue,
        unit: &GatedUnit,
        output: View,
        add: bool,
    ) -> Result<()> {
        let rows = unit.gate.matrix.rows();
        let cols = unit.gate.matrix.cols();
        let width = rows.next_multiple_of(MMA_DEPTH);
        let number = self.number_of(unit.gate.matrix, &prologue);
        let of_gate = (number, roundings_of(&[unit.gate, unit.up])[0]);
        let inputs = self.prologue_in_16_bits(prologue, cols, of_gate, None)?;
        let inner = self.room_in_16_bits("gated products in 16 bits", width)?;
        let next = self.number_of(unit.down.matrix, &Prologue::zeroed());
        let tile = WGMMA_ROWS / 2;
        let function = unit.activation as i32;
        let has_bias = unit.gate.bias.is_some() || unit.up.bias.is_some();
        let (linears, _) = self.wgmma_linears((&[unit.gate, unit.up], number), tile)?;
        let (number, next_number) = (format_number(number), format_number(next));
        self.push_wgmma(
            format!("gemm_wgmma_gated<{number}, {cols}, {function}, {next_number}, {has_bias}>"),
            (rows.div_ceil(tile), cols),
            vec![
                Parameter::pointer("const u16", inputs),
                linears,
                Parameter::int(rows.div_ceil(tile)),
                Parameter::pointer("u16", inner),
                Parameter::int(width),
                Parameter::tokens(),
            ],
        );
        self.gemm_16_bits((inner, next), &[unit.down], self.rows(output), add)
    }
}
