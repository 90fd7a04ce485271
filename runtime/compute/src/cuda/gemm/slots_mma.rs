//! Matrix products of a batch's slots on tensor cores (`slots_mma.cu`): with the bits of a step for matrices with 8-bit inputs; for BF16
//! matrices with more than eight slots, whose inputs have 16 bits of fraction.

use waterline_quant::{BF16, FORMATS, Format, Matrix, Rounding};

use super::slots::{FINISH_SOURCE, SLOTS, SOURCE, WARPS};
use super::{MOST_LINEARS, Prologue, THREADS, WeightMatrix, format_of, formats_of, shared_bytes};
use crate::cuda::driver::TensorCores;
use crate::cuda::schedule::{Call, FinishedProduct, Grid, Launches, Parameter, Rows};
use crate::error::Result;
use crate::functions::Activation;
use crate::operands::{INPUTS, View};

/// Rows and slots of a tile.
const ROWS: usize = 16;
const TILE: usize = 8;
/// Bytes of 32 inputs of a tile: `SlotUnit` in slots_mma.cu.
const SLOT_UNIT: usize = TILE * (32 + 8);
/// Maximum rows of matrices on plain cores that the same kernel multiplies, such as gates.
const MOST_JOINED: usize = 256;
/// Bytes of shared memory for the operands that finish one value of a product: `SlotFinish` in slots_finish.cu.
const FINISH_BYTES: usize = 8 * size_of::<f32>();
/// Maximum tiles of slots whose values a product finishes. With four, a separate kernel is faster.
const FINISHED_TILES: usize = 1;
/// Maximum tiles of slots with which a warp sums two tiles of rows at once: more sums do not fit its registers.
const TILES_OF_TWO: usize = 2;

/// Pieces of a block's rows in shared memory: `StagedRows` in slots_mma.cu.
struct StagedRows {
    /// Number of pieces in shared memory at a time.
    stages: usize,
    /// Bytes of these pieces.
    bytes: usize,
}

impl StagedRows {
    /// Chooses as many pieces as fit into a third of an SM's shared memory, but at least two.
    fn new(matrix: &Matrix, row_tiles: usize, shared_memory: usize) -> Self {
        const BYTES: usize = 1024;
        let units = matrix.cols() / 32;
        let format = matrix.format().plain();
        let blocks = matrix.cols() / format.block_len;
        let scales = blocks * format.device_apart_bytes();
        let codes = blocks * format.block_bytes - scales;
        let most = BYTES * units / codes / 32 * 32;
        let piece = if units > most {
            most
        } else {
            units.next_multiple_of(8)
        };
        let pieces = units.div_ceil(piece);
        let (codes, scales) = (piece * codes / units, piece * scales / units);
        let stage = row_tiles * ROWS * (codes + 16 + scales.next_multiple_of(16) + 16);
        let stages = (shared_memory / 3 / stage).clamp(pieces.min(2), pieces);
        StagedRows {
            stages,
            bytes: stages * stage,
        }
    }
}

/// Rows of all matrices.
fn rows(weights: &[WeightMatrix]) -> usize {
    weights.iter().map(|weight| weight.matrix.rows()).sum()
}

fn format_is(matrix: &Matrix, format: &Format) -> bool {
    matrix.format().plain() == format
}

/// The inputs that [`Launches::slots_prologue_codes`] makes.
struct TileInputs {
    units: Parameter,
    floats: Parameter,
    codes: Parameter,
}

impl Launches<'_> {
    /// Whether this matrix is multiplied with a batch's slots on tensor cores.
    pub(super) fn slots_on_tensor_cores(&self, matrix: &Matrix) -> bool {
        let least = if format_is(matrix, &BF16) { SLOTS } else { 1 };
        self.as_steps
            && self.tokens > least
            && self.limits.tensor_cores != TensorCores::None
            && matrix.format().plain().slot_tiles
            && matrix.cols().is_multiple_of(32)
    }

    /// Whether one kernel on tensor cores multiplies the slots with a gate and another matrix.
    pub(super) fn gated_on_tensor_cores(&self, [gate, up]: &[WeightMatrix; 2]) -> bool {
        let alike = up.matrix.format().plain() == gate.matrix.format().plain();
        let few = self.slot_tiles() <= TILES_OF_TWO && !format_is(gate.matrix, &BF16);
        alike && few && self.slots_on_tensor_cores(gate.matrix)
    }

    fn slot_tiles(&self) -> usize {
        self.tokens.div_ceil(TILE)
    }

    /// Takes a workspace for inputs on tensor cores, of `bytes` per tile of slots and matrix column. The next product reuses it.
    fn tiles_room(&mut self, purpose: &'static str, cols: usize, bytes: usize) -> Result<u64> {
        let widest = self.memory.buffers[INPUTS].bytes() / size_of::<f32>() / self.tokens;
        let widest = widest.max(cols).next_multiple_of(32);
        self.shared_address(purpose, self.slot_tiles() * widest * bytes)
    }

    /// Makes the inputs for BF16 matrices.
    fn slots_prologue_parts(
        &mut self,
        prologue: Prologue,
        rounding: Option<Rounding>,
        cols: usize,
    ) -> Result<Parameter> {
        let inputs = self.tiles_room("parts of slots", cols, TILE * 2 * size_of::<u16>())?;
        let span = self.input_span(cols);
        self.push_prefetching(Call {
            source: SOURCE,
            kernel: format!(
                "slots_prologue_parts<{}, {cols}, {}, {span}>",
                Rounding::device_number(rounding),
                prologue.all_flags(cols)
            ),
            grid: Grid::EachToken(cols / span),
            threads: THREADS,
            shared: cols * size_of::<f32>(),
            parameters: vec![Parameter::value(prologue), Parameter::pointer("u8", inputs)],
        });
        Ok(Parameter::pointer("const u8", inputs))
    }

    /// Makes the inputs for matrices with 8-bit inputs, and for `others` on plain cores.
    fn slots_prologue_codes(
        &mut self,
        prologue: Prologue,
        rounding: Option<Rounding>,
        cols: usize,
        others: &[WeightMatrix],
    ) -> Result<TileInputs> {
        let units = self.tiles_room("units of slots", cols, SLOT_UNIT / 32)?;
        let [floats, codes] = self.slots_room(cols, !others.is_empty())?;
        let span = self.input_span(cols);
        self.push_prefetching(Call {
            source: SOURCE,
            kernel: format!(
                "slots_prologue_codes<{}, {}, {cols}, {}, {span}>",
                formats_of(others),
                Rounding::device_number(rounding),
                prologue.all_flags(cols)
            ),
            grid: Grid::EachToken(cols / span),
            threads: THREADS,
            shared: shared_bytes(cols),
            parameters: vec![
                Parameter::value(prologue),
                Parameter::pointer("float", floats),
                Parameter::pointer("u8", codes),
                Parameter::pointer("u8", units),
            ],
        });
        Ok(TileInputs {
            units: Parameter::pointer("const u8", units),
            floats: Parameter::pointer("const float", floats),
            codes: Parameter::pointer("const u8", codes),
        })
    }

    /// Multiplies the matrices whose products run on tensor cores. Returns the others, except a few that the same kernel multiplies on
    /// plain cores.
    pub(super) fn gemm_slots_tensor<'a>(
        &mut self,
        prologue: Prologue,
        weights: &[WeightMatrix<'a>],
        rounding: Option<Rounding>,
        output: Rows,
        add: bool,
    ) -> Result<Vec<WeightMatrix<'a>>> {
        let cols = weights[0].matrix.cols();
        let (on_tensor_cores, mut others): (Vec<WeightMatrix>, Vec<WeightMatrix>) =
            (weights.iter()).partition(|weight| self.slots_on_tensor_cores(weight.matrix));
        for format in FORMATS {
            let alike = on_tensor_cores.iter().copied();
            let alike = alike.filter(|weight| weight.matrix.format().plain() == format);
            let alike: Vec<WeightMatrix> = alike.collect();
            if alike.is_empty() {
                continue;
            }
            let joins = format != &BF16 && alike.len() + others.len() <= MOST_LINEARS;
            let joined = if joins && rows(&others) <= MOST_JOINED {
                std::mem::take(&mut others)
            } else {
                Vec::new()
            };
            let inputs = if format == &BF16 {
                let units = self.slots_prologue_parts(prologue, rounding, cols)?;
                TileInputs {
                    units,
                    floats: Parameter::pointer("const float", 0),
                    codes: Parameter::pointer("const u8", 0),
                }
            } else {
                self.slots_prologue_codes(prologue, rounding, cols, &joined)?
            };
            for alike in alike.chunks(MOST_LINEARS) {
                self.push_slots_tensor(&inputs, alike, &joined, output, add)?;
            }
        }
        Ok(others)
    }

    /// Appends a product with matrices of one format, and with `joined` matrices on plain cores.
    fn push_slots_tensor(
        &mut self,
        inputs: &TileInputs,
        alike: &[WeightMatrix],
        joined: &[WeightMatrix],
        output: Rows,
        add: bool,
    ) -> Result<()> {
        let (first, tiles) = (alike[0].matrix, self.slot_tiles());
        let in_bf16 = format_is(first, &BF16);
        let many = rows(alike) / (2 * ROWS) >= self.limits.sms;
        let row_tiles = if many && tiles <= TILES_OF_TWO && !in_bf16 {
            2
        } else {
            1
        };
        let staged = if in_bf16 {
            StagedRows {
                stages: 1,
                bytes: 0,
            }
        } else {
            StagedRows::new(first, row_tiles, self.limits.shared_memory)
        };
        let format = format_of(first);
        let tile = |matrix: &Matrix| {
            if format_of(matrix) == format {
                row_tiles * ROWS
            } else {
                1
            }
        };
        let all = [alike, joined].concat();
        let (linears, blocks) = self.linears_in_tiles(&all, tile, add)?;
        let shape = format!("{format}, {}, {tiles}, {row_tiles}", first.cols());
        let shared = staged.bytes.max(self.sums_bytes(row_tiles));
        let finished_bytes = shared + row_tiles * ROWS * tiles * TILE * FINISH_BYTES;
        let can_finish = joined.is_empty()
            && !add
            && !in_bf16
            && tiles <= FINISHED_TILES
            && finished_bytes <= self.limits.shared_memory;
        let columns = |weight: &WeightMatrix| {
            let first = output.first + (weight.column * size_of::<f32>()) as u64;
            first..first + (weight.matrix.rows() * size_of::<f32>()) as u64
        };
        let finished = can_finish.then(|| FinishedProduct {
            call: Box::new(Call {
                source: FINISH_SOURCE,
                kernel: format!(
                    "gemm_finished_slots_tensor<{shape}, {}, {shared}>",
                    staged.stages
                ),
                grid: Grid::Blocks(blocks),
                threads: THREADS,
                shared: finished_bytes,
                parameters: vec![
                    inputs.units.clone(),
                    linears.clone(),
                    Parameter::value(output),
                    Parameter::tokens(),
                ],
            }),
            columns: alike.iter().map(columns).collect(),
        });
        let queued = self.push_prefetching(Call {
            source: SOURCE,
            kernel: format!(
                "gemm_slots_tensor<{shape}, {}, {}>",
                staged.stages,
                formats_of(joined)
            ),
            grid: Grid::Blocks(blocks),
            threads: THREADS,
            shared,
            parameters: vec![
                inputs.units.clone(),
                inputs.floats.clone(),
                inputs.codes.clone(),
                linears,
                Parameter::value(output),
                Parameter::tokens(),
            ],
        });
        queued.finished = finished;
        Ok(())
    }

    /// Appends `inner = activation(gate x) * up x` of two matrices for which [`Launches::gated_on_tensor_cores`] holds.
    pub(super) fn gemm_gated_slots_tensor(
        &mut self,
        prologue: Prologue,
        weights: &[WeightMatrix; 2],
        (activation, rounding): (Activation, Option<Rounding>),
        inner: View,
    ) -> Result<()> {
        let gate = weights[0].matrix;
        let inputs = self.slots_prologue_codes(prologue, rounding, gate.cols(), &[])?;
        let (linears, _) = self.linears(weights, ROWS, false)?;
        let staged = StagedRows::new(gate, 2, self.limits.shared_memory);
        self.push_prefetching(Call {
            source: SOURCE,
            kernel: format!(
                "gemm_gated_slots_tensor<{}, {}, {}, {}, {}>",
                format_of(gate),
                gate.cols(),
                self.slot_tiles(),
                staged.stages,
                activation as i32
            ),
            grid: Grid::Blocks(gate.rows().div_ceil(ROWS)),
            threads: THREADS,
            shared: staged.bytes.max(self.sums_bytes(2)),
            parameters: vec![inputs.units, linears, self.view(inner), Parameter::tokens()],
        });
        Ok(())
    }

    /// Returns the bytes of the sums of all warps.
    fn sums_bytes(&self, row_tiles: usize) -> usize {
        row_tiles * ROWS * WARPS * self.slot_tiles() * TILE * size_of::<f32>()
    }
}
