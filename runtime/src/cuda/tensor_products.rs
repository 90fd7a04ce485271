//! Products of chunks on tensor cores: what `project_tensor.cu` and `project_groups.cu` are called with.

use waterline_quant::{FORMATS, Matrix};

use super::driver::{Address, TensorCores};
use super::launches::{Call, Grid, Launches, Parameter, Rows};
use super::products::{Factor, GatedUnit, Gather, MOST_LINEARS, THREADS, format_of};
use crate::error::Result;
use crate::operands::{INPUTS, View};

const TENSOR_SOURCE: &str = include_str!("../ops/project/project_tensor.cu");
/// Rows and tokens of a block's tile on tensor cores, and columns of a step.
const TENSOR_TILE: usize = 128;
const TENSOR_DEPTH: usize = 64;
const GROUPS_SOURCE: &str = include_str!("../ops/project/project_groups.cu");
/// Rows of a block's tile where groups of warps multiply, threads, and shared memory: four stages and what aligns them.
const GROUP_ROWS: usize = 256;
const GROUP_THREADS: usize = 384;
const GROUP_SHARED: usize = 4 * (TENSOR_TILE + GROUP_ROWS) * TENSOR_DEPTH * size_of::<u16>() + 1024;

impl Launches<'_> {
    /// Whether chunks of inputs meet this matrix on tensor cores.
    pub(super) fn on_tensor_cores(&self, matrix: &Matrix) -> bool {
        self.tensor_cores != TensorCores::None && format_of(matrix) != 0
    }

    /// Room for inputs of tensor cores, `width` columns of each token of a chunk.
    fn room_in_bf16(&mut self, purpose: &'static str, width: usize) -> Result<Address> {
        let tokens = self.tokens.next_multiple_of(TENSOR_TILE);
        let bytes = tokens * width.next_multiple_of(TENSOR_DEPTH) * size_of::<u16>();
        self.shared_address(purpose, bytes)
    }

    /// Makes an input for tensor cores; the next one takes its place.
    pub(super) fn gather_in_bf16(&mut self, gather: Gather, cols: usize) -> Result<Address> {
        let widest = self.buffers[INPUTS].bytes() / size_of::<f32>() / self.tokens;
        let address = self.room_in_bf16("inputs in bf16", widest.max(cols))?;
        self.push(Call {
            source: TENSOR_SOURCE,
            kernel: format!("gather_tensor<{cols}, {}>", gather.kinds(cols)),
            grid: Grid::Tokens,
            threads: THREADS,
            shared: cols * size_of::<f32>(),
            parameters: vec![
                Parameter::value("Gather", gather),
                Parameter::pointer("u16", address),
            ],
        });
        Ok(address)
    }

    /// As [`Launches::multiply_into`], of inputs in bf16.
    pub(super) fn multiply_in_bf16(
        &mut self,
        inputs: Address,
        factors: &[Factor],
        output: Rows,
        add: bool,
    ) -> Result<()> {
        let cols = factors[0].matrix.cols();
        let groups = self.tensor_cores == TensorCores::WarpGroups;
        for format in 1..FORMATS.len() {
            let of_format = |factor: &&Factor| format_of(factor.matrix) == format;
            let factors: Vec<Factor> = factors.iter().filter(of_format).copied().collect();
            for factors in factors.chunks(MOST_LINEARS) {
                let inputs = Parameter::pointer("const u16", inputs);
                let output = Parameter::value("Rows", output);
                let call = if groups {
                    let (linears, tiles) = self.linears(factors, GROUP_ROWS, add)?;
                    let tiles = Parameter::int(tiles);
                    let parameters = vec![inputs, linears, tiles, output, Parameter::tokens()];
                    let templates = format!("{format}, {cols}");
                    self.groups_call("multiply_groups", &templates, parameters)
                } else {
                    let (linears, tiles) = self.linears(factors, TENSOR_TILE, add)?;
                    Call {
                        source: TENSOR_SOURCE,
                        kernel: format!("multiply_tensor<{format}, {cols}>"),
                        grid: Grid::EachTile(tiles, TENSOR_TILE),
                        threads: THREADS,
                        shared: 4 * TENSOR_TILE * (TENSOR_DEPTH + 8) * size_of::<u16>(),
                        parameters: vec![inputs, linears, output, Parameter::tokens()],
                    }
                };
                self.push(call);
            }
        }
        Ok(())
    }

    /// A product by groups of warps, as many blocks as there are processors.
    fn groups_call(&self, kernel: &str, templates: &str, parameters: Vec<Parameter>) -> Call {
        Call {
            source: GROUPS_SOURCE,
            kernel: format!("{kernel}<{templates}>"),
            grid: Grid::Blocks(self.processors),
            threads: GROUP_THREADS,
            shared: GROUP_SHARED,
            parameters,
        }
    }

    /// As [`Launches::multiply_gated`], for chunks where groups of warps multiply: the gated product goes to the last matrix in
    /// bf16.
    pub(super) fn multiply_gated_groups(
        &mut self,
        gather: Gather,
        unit: &GatedUnit,
        output: View,
        add: bool,
    ) -> Result<()> {
        let rows = unit.gate.matrix.rows();
        let (cols, format) = (unit.gate.matrix.cols(), format_of(unit.gate.matrix));
        let width = rows.next_multiple_of(TENSOR_DEPTH);
        let inputs = self.gather_in_bf16(gather, cols)?;
        let inner = self.room_in_bf16("gated products in bf16", width)?;
        let tile = GROUP_ROWS / 2;
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
        let call = self.groups_call("multiply_gated_groups", &templates, parameters);
        self.push(call);
        self.multiply_in_bf16(inner, &[unit.down], self.rows(output), add)
    }
}
