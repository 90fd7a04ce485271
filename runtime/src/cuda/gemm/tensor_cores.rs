//! GEMMs of chunks on tensor cores: arguments of `mma.cu` and `wgmma.cu`.

use waterline_quant::{FORMATS, Matrix};

use crate::cuda::driver::{Address, TensorCores};
use crate::cuda::gemm::{GatedUnit, MOST_LINEARS, Prologue, THREADS, WeightMatrix, format_of};
use crate::cuda::schedule::{Call, Grid, Launches, Parameter, Rows};
use crate::error::Result;
use crate::operands::{INPUTS, View};

const MMA_SOURCE: &str = include_str!("mma.cu");
/// Rows and tokens of a tile of `mma.cu`, and columns of a step.
const MMA_TILE: usize = 128;
const MMA_DEPTH: usize = 64;
const WGMMA_SOURCE: &str = include_str!("wgmma.cu");
/// Rows of a tile of `wgmma.cu`, threads, and bytes of shared memory: four stages and their alignment.
const WGMMA_ROWS: usize = 256;
const WGMMA_THREADS: usize = 384;
const WGMMA_SHARED: usize = 4 * (MMA_TILE + WGMMA_ROWS) * MMA_DEPTH * size_of::<u16>() + 1024;

impl Launches<'_> {
    /// Whether chunks are multiplied with this matrix on tensor cores.
    pub(crate) fn on_tensor_cores(&self, matrix: &Matrix) -> bool {
        self.tensor_cores != TensorCores::None && format_of(matrix) != 0
    }

    /// Workspace for `width` bf16 columns of each token of a chunk.
    fn room_in_bf16(&mut self, purpose: &'static str, width: usize) -> Result<Address> {
        let tokens = self.tokens.next_multiple_of(MMA_TILE);
        let bytes = tokens * width.next_multiple_of(MMA_DEPTH) * size_of::<u16>();
        self.shared_address(purpose, bytes)
    }

    /// Computes an input in bf16; the next one overwrites it.
    pub(crate) fn prologue_in_bf16(&mut self, prologue: Prologue, cols: usize) -> Result<Address> {
        let widest = self.buffers[INPUTS].bytes() / size_of::<f32>() / self.tokens;
        let address = self.room_in_bf16("inputs in bf16", widest.max(cols))?;
        self.push(Call {
            source: MMA_SOURCE,
            kernel: format!("prologue_bf16<{cols}, {}>", prologue.flags(cols)),
            grid: Grid::Tokens,
            threads: THREADS,
            shared: cols * size_of::<f32>(),
            parameters: vec![
                Parameter::value("Prologue", prologue),
                Parameter::pointer("u16", address),
            ],
        });
        Ok(address)
    }

    /// As [`Launches::gemm_into`], of inputs in bf16.
    pub(crate) fn gemm_bf16(
        &mut self,
        inputs: Address,
        weights: &[WeightMatrix],
        output: Rows,
        add: bool,
    ) -> Result<()> {
        let cols = weights[0].matrix.cols();
        let groups = self.tensor_cores == TensorCores::WarpGroups;
        for format in 1..FORMATS.len() {
            let of_format = |weight: &&WeightMatrix| format_of(weight.matrix) == format;
            let weights: Vec<WeightMatrix> = weights.iter().filter(of_format).copied().collect();
            for weights in weights.chunks(MOST_LINEARS) {
                let inputs = Parameter::pointer("const u16", inputs);
                let output = Parameter::value("Rows", output);
                let call = if groups {
                    let (linears, tiles) = self.linears(weights, WGMMA_ROWS, add)?;
                    let tiles = Parameter::int(tiles);
                    let parameters = vec![inputs, linears, tiles, output, Parameter::tokens()];
                    let templates = format!("{format}, {cols}");
                    self.wgmma_call("gemm_wgmma", &templates, parameters)
                } else {
                    let (linears, tiles) = self.linears(weights, MMA_TILE, add)?;
                    Call {
                        source: MMA_SOURCE,
                        kernel: format!("gemm_mma<{format}, {cols}>"),
                        grid: Grid::EachTile(tiles, MMA_TILE),
                        threads: THREADS,
                        shared: 4 * MMA_TILE * (MMA_DEPTH + 8) * size_of::<u16>(),
                        parameters: vec![inputs, linears, output, Parameter::tokens()],
                    }
                };
                self.push(call);
            }
        }
        Ok(())
    }

    /// A call of `wgmma.cu`: one persistent block per SM.
    fn wgmma_call(&self, kernel: &str, templates: &str, parameters: Vec<Parameter>) -> Call {
        Call {
            source: WGMMA_SOURCE,
            kernel: format!("{kernel}<{templates}>"),
            grid: Grid::Blocks(self.sms),
            threads: WGMMA_THREADS,
            shared: WGMMA_SHARED,
            parameters,
        }
    }

    /// As [`Launches::gemm_gated`] by `wgmma.cu`: the gated product is the last matrix' input in bf16.
    pub(crate) fn gemm_wgmma_gated(
        &mut self,
        prologue: Prologue,
        unit: &GatedUnit,
        output: View,
        add: bool,
    ) -> Result<()> {
        let rows = unit.gate.matrix.rows();
        let (cols, format) = (unit.gate.matrix.cols(), format_of(unit.gate.matrix));
        let width = rows.next_multiple_of(MMA_DEPTH);
        let inputs = self.prologue_in_bf16(prologue, cols)?;
        let inner = self.room_in_bf16("gated products in bf16", width)?;
        let tile = WGMMA_ROWS / 2;
        let (linears, _) = self.linears(&[unit.gate, unit.up], tile, false)?;
        let parameters = vec![
            Parameter::pointer("const u16", inputs),
            linears,
            Parameter::int(rows.div_ceil(tile)),
            Parameter::pointer("u16", inner),
            Parameter::int(width),
            Parameter::tokens(),
        ];
        let function = unit.activation as i32;
        let templates = format!("{format}, {cols}, {function}");
        let call = self.wgmma_call("gemm_wgmma_gated", &templates, parameters);
        self.push(call);
        self.gemm_bf16(inner, &[unit.down], self.rows(output), add)
    }
}
