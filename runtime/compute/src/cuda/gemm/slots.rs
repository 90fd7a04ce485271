//! Matrix products of several slots, with the bits of a step: on plain cores (`slots.cu`), or on tensor cores (`slots_mma.rs`). Chunks with
//! 8-bit inputs and some formats use larger tiles (`codes_mma.cu`), which differ from a step only in the order of f32 sums.

use waterline_quant::{Matrix, Rounding};

use super::{
    GatedUnit, MOST_LINEARS, Prologue, THREADS, WeightMatrix, format_of, formats_of, roundings_of,
    shared_bytes,
};
use crate::cuda::driver::{Address, TensorCores};
use crate::cuda::schedule::{Call, Grid, Launches, Parameter, ROW_OPS, Rows, Source};
use crate::error::Result;
use crate::functions::OutputOp;
use crate::operands::{INPUTS, View};

/// The files that define products of slots.
pub(crate) const SOURCE: &[Source] = &[
    Source::new("cuda/gemm/slots.cu", &[]),
    Source::new("cuda/gemm/slots_mma.cu", &[]),
    Source::new("cuda/gemm/codes_mma.cu", &[]),
];

/// The files that define products of slots that also do the work on single values after them.
pub(super) const FINISH_SOURCE: &[Source] = &[
    ROW_OPS[0],
    SOURCE[0],
    SOURCE[1],
    Source::new("cuda/gemm/slots_finish.cu", &[]),
];

/// Maximum number of slots that a warp multiplies at once.
pub(super) const SLOTS: usize = 8;
/// Rows per warp where there are many rows, so that they share the loads of the slots' inputs, and where there are few.
const ROWS: [usize; 2] = [4, 2];
/// Warps of a block.
pub(super) const WARPS: usize = THREADS / 32;

/// Numbers of input columns that a block may make.
const SPANS: [usize; 4] = [256, 512, 1024, 2048];

/// Rows and tokens of a tile of codes on tensor cores, and bytes of shared memory: two `CodeStage`s of codes_mma.cu.
pub(crate) const CODE_ROWS: usize = 128;
const CODE_TOKENS: usize = 64;
pub(crate) const CODES_SHARED: usize =
    2 * (CODE_ROWS + CODE_TOKENS) * (2 * (32 + 2 * size_of::<f32>()) + 16);

/// The inputs of several tokens.
struct SlotInputs {
    floats: Parameter,
    codes: Parameter,
    formats: usize,
    cols: usize,
}

impl Launches<'_> {
    /// Returns the slots that a warp multiplies at once: a power of two.
    fn slot_tile(&self) -> usize {
        self.tokens.next_power_of_two().min(SLOTS)
    }

    /// Returns the rows per warp with which `rows` rows in all fill the SMs with blocks, if possible.
    fn rows_of_warp(&self, rows: usize) -> usize {
        let fills = |of_warp: &&usize| rows / (WARPS * **of_warp) >= self.limits.sms;
        *ROWS.iter().find(fills).unwrap_or(&ROWS[1])
    }

    /// Takes a workspace for the inputs of several tokens: in f32, and in 8 bits if `has_codes`. The next product reuses it.
    pub(super) fn slots_room(&mut self, cols: usize, has_codes: bool) -> Result<[Address; 2]> {
        let widest = self.memory.buffers[INPUTS].bytes() / size_of::<f32>() / self.tokens;
        let widest = widest.max(cols).next_multiple_of(32);
        let tokens = self.tokens.next_multiple_of(SLOTS);
        let floats = self.shared_address("floats of slots", tokens * widest * 4)?;
        let of_token = if has_codes {
            widest + widest / 4 + 16
        } else {
            0
        };
        // The address must be aligned even if there are no codes.
        let codes = self.shared_address("codes of slots", (tokens * of_token).max(16))?;
        Ok([floats, codes])
    }

    /// Returns the place where another kernel stores the inputs of f32 matrices for [`Launches::gemm_stored_slots`].
    pub(super) fn stored_slots(&mut self, cols: usize) -> Result<Rows> {
        let [first, _] = self.slots_room(cols, false)?;
        Ok(Rows {
            first,
            stride: cols.next_multiple_of(32) as i32,
            width: cols as i32,
        })
    }

    /// Like [`Launches::gemm_slots`], for f32 matrices whose inputs are stored already.
    pub(super) fn gemm_stored_slots(
        &mut self,
        weights: &[WeightMatrix],
        output: Rows,
        add: bool,
    ) -> Result<()> {
        let cols = weights[0].matrix.cols();
        let [floats, codes] = self.slots_room(cols, false)?;
        let inputs = SlotInputs {
            floats: Parameter::pointer("const float", floats),
            codes: Parameter::pointer("const u8", codes),
            formats: formats_of(weights),
            cols,
        };
        for weights in weights.chunks(MOST_LINEARS) {
            self.gemm_plain_slots(&inputs, weights, output, add)?;
        }
        Ok(())
    }

    /// Makes the inputs for matrices of these formats.
    fn slots_prologue(
        &mut self,
        prologue: Prologue,
        (formats, rounding): (usize, Option<Rounding>),
        cols: usize,
    ) -> Result<SlotInputs> {
        let has_codes = rounding.is_some_and(Rounding::is_integer);
        let [floats, codes] = self.slots_room(cols, has_codes)?;
        self.write_inputs(prologue, (formats, rounding), cols, [floats, codes]);
        Ok(SlotInputs {
            floats: Parameter::pointer("const float", floats),
            codes: Parameter::pointer("const u8", codes),
            formats,
            cols,
        })
    }

    /// Returns the input columns per block: as few as possible while the blocks of all tokens run at once. Values that share a scale are in
    /// one block.
    pub(super) fn input_span(&self, cols: usize) -> usize {
        let most = (2 * self.limits.sms / self.tokens).max(1);
        let mut spans = SPANS.into_iter();
        let span = spans.find(|span| cols.is_multiple_of(*span) && cols / span <= most);
        span.unwrap_or(cols)
    }

    /// Writes the inputs for matrices of these formats: floats, and codes where a format needs them.
    pub(crate) fn write_inputs(
        &mut self,
        prologue: Prologue,
        (formats, rounding): (usize, Option<Rounding>),
        cols: usize,
        [floats, codes]: [Address; 2],
    ) {
        let rounding = Rounding::device_number(rounding);
        let span = self.input_span(cols);
        self.push_prefetching(Call {
            source: SOURCE,
            kernel: format!(
                "slots_prologue<{formats}, {rounding}, {cols}, {}, {span}>",
                prologue.flags(cols)
            ),
            grid: Grid::EachToken(cols / span),
            threads: THREADS,
            shared: shared_bytes(cols),
            parameters: vec![
                Parameter::value(prologue),
                Parameter::pointer("float", floats),
                Parameter::pointer("u8", codes),
            ],
        });
    }

    /// Whether chunks of 8-bit inputs are multiplied with this matrix in tiles on tensor cores.
    pub(crate) fn in_code_tiles(&self, matrix: &Matrix) -> bool {
        self.limits.tensor_cores != TensorCores::None && matrix.format().plain().code_tiles
    }

    /// Like [`Launches::gemm_into`], for inputs with one rounding.
    pub(super) fn gemm_slots(
        &mut self,
        prologue: Prologue,
        weights: &[WeightMatrix],
        rounding: Option<Rounding>,
        output: Rows,
        add: bool,
    ) -> Result<()> {
        let cols = weights[0].matrix.cols();
        let weights = self.gemm_slots_tensor(prologue, weights, rounding, output, add)?;
        if weights.is_empty() {
            return Ok(());
        }
        let formats = (formats_of(&weights), rounding);
        let inputs = self.slots_prologue(prologue, formats, cols)?;
        // Matrices in tiles format by format, the others together.
        let tiles_of = |weight: &WeightMatrix| {
            let in_tiles = !self.as_steps && self.in_code_tiles(weight.matrix);
            in_tiles.then(|| format_of(weight.matrix))
        };
        let formats: Vec<Option<usize>> = weights.iter().map(tiles_of).collect();
        for (first, &format) in formats.iter().enumerate() {
            if formats[..first].contains(&format) {
                continue;
            }
            let alike = weights.iter().zip(&formats).filter(|of| *of.1 == format);
            let alike: Vec<WeightMatrix> = alike.map(|of| *of.0).collect();
            for weights in alike.chunks(MOST_LINEARS) {
                if let Some(format) = format {
                    let output = Parameter::value(output);
                    let (linears, tiles) = self.linears(weights, CODE_ROWS, add)?;
                    let codes = inputs.codes.clone();
                    self.push(Call {
                        source: SOURCE,
                        kernel: format!("gemm_codes<{format}, {cols}>"),
                        grid: Grid::EachTile(tiles, CODE_TOKENS),
                        threads: THREADS,
                        shared: CODES_SHARED,
                        parameters: vec![codes, linears, output, Parameter::tokens()],
                    });
                    continue;
                }
                self.gemm_plain_slots(&inputs, weights, output, add)?;
            }
        }
        Ok(())
    }

    /// Appends the products of at most [`MOST_LINEARS`] matrices on plain cores.
    fn gemm_plain_slots(
        &mut self,
        inputs: &SlotInputs,
        weights: &[WeightMatrix],
        output: Rows,
        add: bool,
    ) -> Result<()> {
        let rows = weights.iter().map(|weight| weight.matrix.rows()).sum();
        let rows = self.rows_of_warp(rows);
        let (linears, tiles) = self.linears(weights, WARPS * rows, add)?;
        let parameters = [linears, Parameter::value(output)];
        self.push_slots("gemm_slots", "", inputs, (rows, tiles), parameters);
        Ok(())
    }

    /// Like [`Launches::gemm_gated`].
    pub(super) fn gemm_gated_slots(
        &mut self,
        prologue: Prologue,
        unit: &GatedUnit,
        output: View,
        add: bool,
    ) -> Result<()> {
        let GatedUnit { gate, up, down, .. } = *unit;
        let inner = View {
            width: gate.matrix.rows(),
            ..unit.inner
        };
        let weights = [gate, WeightMatrix { column: 0, ..up }];
        let function = format!(", {}", unit.activation as i32);
        let rounding = roundings_of(&weights)[0];
        if self.gated_on_tensor_cores(&weights) {
            self.gemm_gated_slots_tensor(prologue, &weights, (unit.activation, rounding), inner)?;
            let prologue = self.prologue(inner, None)?;
            return self.gemm(prologue, &[down], output, add);
        }
        if self.slots_on_tensor_cores(gate.matrix) {
            let halves = unit.inner.split(gate.matrix.rows());
            self.gemm(prologue, &[gate, unit.up], unit.inner, false)?;
            let gated = [OutputOp::Gate(halves.0, unit.activation)];
            let prologue = self.output_prologue(halves.1, &gated)?;
            return self.gemm(prologue, &[down], output, add);
        }
        let formats = (formats_of(&weights), rounding);
        let inputs = self.slots_prologue(prologue, formats, gate.matrix.cols())?;
        let rows = self.rows_of_warp(gate.matrix.rows());
        let (linears, _) = self.linears(&weights, WARPS * rows, false)?;
        let tiles = gate.matrix.rows().div_ceil(WARPS * rows);
        self.push_slots(
            "gemm_gated_slots",
            &function,
            &inputs,
            (rows, tiles),
            [linears, self.view(inner)],
        );
        let prologue = self.prologue(inner, None)?;
        self.gemm(prologue, &[down], output, add)
    }

    /// Appends a product of `tiles` blocks with this many rows per warp.
    fn push_slots(
        &mut self,
        kernel: &str,
        function: &str,
        inputs: &SlotInputs,
        (rows, tiles): (usize, usize),
        [linears, output]: [Parameter; 2],
    ) {
        let slots = self.slot_tile();
        let SlotInputs { formats, cols, .. } = inputs;
        self.push_prefetching(Call {
            source: SOURCE,
            kernel: format!("{kernel}<{formats}, {cols}, {rows}, {slots}{function}>"),
            grid: Grid::EachTile(tiles, slots),
            threads: THREADS,
            shared: 0,
            parameters: vec![
                inputs.floats.clone(),
                inputs.codes.clone(),
                linears,
                output,
                Parameter::tokens(),
            ],
        });
    }
}
