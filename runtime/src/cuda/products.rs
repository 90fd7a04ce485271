//! Matrix products as launches: what `project.cu` is called with.

use bytemuck::{Pod, Zeroable};
use waterline_quant::{FORMATS, Matrix};

use super::driver::Address;
use super::launches::{Call, Grid, Launches, Parameter, Rows};
use crate::error::Result;
use crate::program::{INPUTS, Vector, View};
use crate::stages::Norm;

/// `Gather` in project.cu: how an input is made of a buffer's columns.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Gather {
    input: Rows,
    weight: Address,
    bias: Address,
    eps: f32,
    kind: i32,
}

const PLAIN: i32 = 0;
const RMS_NORM: i32 = 1;
const LAYER_NORM: i32 = 2;
const SWIGLU: i32 = 3;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct DeviceLinear {
    weights: Address,
    bias: Address,
    rows: i32,
    column: i32,
    format: i32,
    first: i32,
}

const MOST_LINEARS: usize = 12;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Linears {
    count: i32,
    add: i32,
    at: [DeviceLinear; MOST_LINEARS],
}

/// A matrix, its bias, and the first column of its product.
pub(crate) type Factor<'a> = (&'a Matrix, Option<&'a Vector>, usize);

/// The number of a matrix' format in kernels.
pub(crate) fn format_of(matrix: &Matrix) -> usize {
    let known = FORMATS.iter().position(|&f| f == matrix.format());
    known.expect("every format is in the list")
}

/// Whether a chunk of so many tokens is multiplied in tiles: below, each token's columns are computed on their own.
fn in_tiles(tokens: usize) -> bool {
    tokens >= 8
}

impl Launches<'_> {
    /// An input made of `input`'s columns, behind a norm if there is one.
    pub fn gathered(&self, input: View, norm: Option<&Norm>) -> Result<Gather> {
        let (weight, bias) = match norm {
            Some(norm) => (
                self.vector_address(&norm.weight)?,
                match &norm.bias {
                    Some(bias) => self.vector_address(bias)?,
                    None => 0,
                },
            ),
            None => (0, 0),
        };
        Ok(Gather {
            input: self.rows(input),
            weight,
            bias,
            eps: norm.map_or(0.0, |norm| norm.eps),
            kind: match norm {
                None => PLAIN,
                Some(norm) if norm.centred => LAYER_NORM,
                Some(_) => RMS_NORM,
            },
        })
    }

    /// The input of a gated unit's last matrix: `silu` of the left half of `inner` times its right half.
    pub fn gated(&self, inner: View) -> Gather {
        Gather {
            input: self.rows(inner),
            weight: 0,
            bias: 0,
            eps: 0.0,
            kind: SWIGLU,
        }
    }

    /// `output[column..] = matrix gather + bias` for each factor, or `+=`.
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
        let cols = factors[0].0.cols();
        let formats = factors.iter().fold(0, |set, f| set | 1 << format_of(f.0));
        if in_tiles(self.tokens) {
            let staged = View::whole(INPUTS, cols);
            let input = match gather.kind {
                PLAIN => gather.input,
                _ => {
                    self.push(Call {
                        source: "",
                        kernel: format!("gather<{cols}>"),
                        grid: Grid::Tokens,
                        threads: 256,
                        shared: 0,
                        parameters: vec![Parameter::value("Gather", gather), self.view(staged)],
                    });
                    self.rows(staged)
                }
            };
            for factors in factors.chunks(MOST_LINEARS) {
                let (linears, tiles) = self.linears(factors, 64, add)?;
                self.push(Call {
                    source: "",
                    kernel: format!("multiply_tile<{formats}, {cols}>"),
                    grid: Grid::EachTile(tiles, 64),
                    threads: 256,
                    shared: 0,
                    parameters: vec![
                        Parameter::value("Rows", input),
                        linears,
                        Parameter::value("Rows", output),
                        Parameter::tokens(),
                    ],
                });
            }
            return Ok(());
        }
        for factors in factors.chunks(MOST_LINEARS) {
            let (linears, tiles) = self.linears(factors, 16, add)?;
            self.push_streaming(Call {
                source: "",
                kernel: format!("multiply<{formats}, {cols}>"),
                grid: Grid::EachToken(tiles),
                threads: 256,
                shared: cols.next_multiple_of(32) * 5 + cols.div_ceil(32) * 8,
                parameters: vec![
                    Parameter::value("Gather", gather),
                    linears,
                    Parameter::value("Rows", output),
                ],
            });
        }
        Ok(())
    }

    fn linears(&self, factors: &[Factor], tile: usize, add: bool) -> Result<(Parameter, usize)> {
        let mut linears = Linears {
            count: factors.len() as i32,
            add: add.into(),
            ..Linears::zeroed()
        };
        let mut tiles = 0;
        for (place, (matrix, bias, column)) in linears.at.iter_mut().zip(factors) {
            *place = DeviceLinear {
                weights: self.matrix_address(matrix)?,
                bias: bias.map_or(Ok(0), |bias| self.vector_address(bias))?,
                rows: matrix.rows() as i32,
                column: *column as i32,
                format: format_of(matrix) as i32,
                first: tiles as i32,
            };
            tiles += matrix.rows().div_ceil(tile);
        }
        Ok((Parameter::value("Linears", linears), tiles))
    }
}
