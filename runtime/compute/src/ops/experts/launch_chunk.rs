//! The op over many tokens: pairs of a token and an expert are grouped by expert, so that a row of a matrix is read once for
//! several tokens. Launches the kernels in `experts_chunk.cu`.

use bytemuck::Zeroable;
use waterline_quant::{Matrix, Rounding};

use super::launch::{Matrices, SOURCE};
use super::{Expert, Experts};
use crate::abi::device_struct;
use crate::cuda::{
    Address, CODE_ROWS, CODES_SHARED, Call, Grid, Launches, Parameter, Rows, Source, format_of,
    shared_bytes,
};
use crate::error::Result;
use crate::functions::Activation;
use crate::operands::View;

const CHUNK_SOURCE: &[Source] = &[Source::new("ops/experts/experts_chunk.cu", &[])];

/// `tile_pairs` in experts.cu.
const TILE: usize = 64;
/// Pairs and rows that a warp multiplies at once on CUDA cores: `plain_pairs` and `plain_rows` in experts_chunk.cu.
const PLAIN_PAIRS: usize = 8;
const PLAIN_ROWS: usize = 4;
const THREADS: usize = 256;
/// Largest size in bytes of a chunk's expert outputs before they are summed, so that they remain in L2. Small in tests, so that
/// small matrices have several parts.
const MOST_PRODUCTS: usize = if cfg!(test) { 1 << 18 } else { 32 << 20 };

device_struct! {
    /// The pairs of a chunk by expert, then by token. An expert's pairs start at a new tile.
    pub(super) struct ExpertLists {
        /// The expert of each tile; `no_expert` after the last one.
        experts: Address as *mut i32,
        /// The pairs of each tile: the token's number times the experts per token, plus the rank; `no_expert` in empty places.
        pairs: Address as *mut i32,
    }
}

device_struct! {
    /// Inputs of products in the forms that formats need.
    pub(super) struct Staged {
        floats: Address as *mut f32,
        /// 8-bit codes.
        codes: Address as *mut u8,
    }
}

/// Names of the workspaces that all mixtures share.
const INPUTS: [&str; 2] = ["floats of experts' inputs", "codes of experts' inputs"];
const INNER: [&str; 2] = ["floats of inner values", "codes of inner values"];
const SHARED: [&str; 2] = [
    "floats of shared inner values",
    "codes of shared inner values",
];

/// Experts of one shape: the experts that tokens choose, with their lists, or the shared expert of all tokens.
#[derive(Clone, Copy)]
struct ExpertGroup<'a> {
    expert: &'a Expert,
    matrices: Matrices,
    networks: usize,
    /// Number of experts per token.
    count: usize,
    lists: Option<ExpertLists>,
    /// The values between the matrices, and names of the workspaces for the inputs of the last one.
    inner: View,
    names: [&'static str; 2],
}

/// The matrices of a product of pairs, and the function of the products.
struct PairProduct<'a> {
    gate: Option<&'a Matrix>,
    up: &'a Matrix,
    /// Their addresses.
    matrices: Matrices,
    function: i32,
}

/// A range of matrix rows: the first row, the number of rows, and the address of their products.
struct OutputRows {
    begin: usize,
    count: usize,
    output: Rows,
    /// Pairs that share one input.
    share: usize,
}

impl Experts {
    /// Whether chunks of this many tokens are grouped by expert, which sums in a different order than a step.
    pub(super) fn is_grouped(&self, launches: &Launches) -> bool {
        launches.tokens >= PLAIN_PAIRS && !launches.as_steps
    }

    pub(super) fn launch_chunk(&self, launches: &mut Launches) -> Result<()> {
        let chosen = self.chosen();
        let inner = self.inner.split(chosen * self.expert.width());
        let mut all = vec![ExpertGroup {
            expert: &self.expert,
            matrices: self.routed_matrices(launches)?,
            networks: self.experts,
            count: chosen,
            lists: Some(self.list_pairs(launches)?),
            inner: inner.0,
            names: INNER,
        }];
        if let Some(shared) = &self.shared {
            all.push(ExpertGroup {
                expert: &shared.expert,
                matrices: self.matrices(&shared.expert, launches)?,
                networks: 1,
                count: 1,
                lists: None,
                inner: inner.1,
                names: SHARED,
            });
        }
        let mut ends = Vec::new();
        // Inputs that are rounded alike are made together.
        for alike in all.chunk_by(|a, b| a.expert.rounding() == b.expert.rounding()) {
            let first: Vec<&Matrix> = alike.iter().flat_map(|of| of.expert.first()).collect();
            let inputs = self.stage_inputs(&first, alike[0].expert.rounding(), launches)?;
            for group in alike {
                let Expert { gate, up, .. } = group.expert;
                let product = PairProduct {
                    gate: gate.as_ref(),
                    up,
                    matrices: group.matrices,
                    function: self.function(),
                };
                let part = OutputRows {
                    begin: 0,
                    count: group.expert.width(),
                    output: launches.rows(group.inner),
                    share: group.count,
                };
                group.multiply(product, inputs, part, launches)?;
                ends.push((*group, group.stage_inner(launches)?));
            }
        }
        self.end(&ends, launches)
    }

    /// Computes the weighted sums of the experts' outputs, a range of rows of the last matrices at a time.
    fn end(&self, ends: &[(ExpertGroup, Staged)], launches: &mut Launches) -> Result<()> {
        let (chosen, width, tokens) = (self.chosen(), self.output.width, launches.tokens);
        let made = ends.iter().map(|(group, _)| group.count).sum::<usize>();
        let row_bytes = tokens * made * size_of::<f32>();
        let most = MOST_PRODUCTS / row_bytes / CODE_ROWS * CODE_ROWS;
        let most = most.max(CODE_ROWS).min(width);
        let first = launches.shared_address("products of experts", row_bytes * most)?;
        let gate = self.shared.as_ref().and_then(|shared| shared.gate);
        let gate = gate.map_or(Rows::zeroed(), |gate| launches.rows(gate));
        let multiplier = self.shared.as_ref().map_or(1.0, |shared| shared.multiplier);
        for begin in (0..width).step_by(most) {
            let count = most.min(width - begin);
            let mut output = Rows {
                first,
                stride: (made * count) as i32,
                width: (made * count) as i32,
            };
            for (group, staged) in ends {
                let part = OutputRows {
                    begin,
                    count,
                    output,
                    share: 1,
                };
                let product = PairProduct {
                    gate: None,
                    up: &group.expert.down,
                    matrices: group.matrices.last(),
                    function: Activation::Identity as i32,
                };
                group.multiply(product, *staged, part, launches)?;
                output.first += (group.count * count * size_of::<f32>()) as u64;
            }
            let (shared, add) = (ends.len() > 1, self.add);
            let sums = View {
                start: self.output.start + begin,
                width: count,
                ..self.output
            };
            launches.push(Call {
                source: CHUNK_SOURCE,
                kernel: format!("sum_experts<{chosen}, {shared}, {add}>"),
                grid: Grid::EachToken(count.div_ceil(THREADS)),
                threads: THREADS,
                shared: 0,
                parameters: vec![
                    Parameter::value(Rows { first, ..output }),
                    Parameter::int(count),
                    launches.view(self.route),
                    Parameter::value(gate),
                    Parameter::value(multiplier),
                    launches.view(sums),
                ],
            });
        }
        Ok(())
    }

    /// Prepares every token's input of these matrices once.
    fn stage_inputs(
        &self,
        matrices: &[&Matrix],
        rounding: Option<Rounding>,
        launches: &mut Launches,
    ) -> Result<Staged> {
        let staged = staged(INPUTS, matrices, launches.tokens, launches)?;
        let formats = matrices
            .iter()
            .fold(0, |set, matrix| set | 1usize << format_of(matrix));
        let prologue = launches.prologue(self.input, self.norm.as_ref())?;
        let places = [staged.floats, staged.codes];
        launches.write_inputs(prologue, (formats, rounding), self.input.width, places);
        Ok(staged)
    }

    /// Lists the pairs by expert.
    fn list_pairs(&self, launches: &mut Launches) -> Result<ExpertLists> {
        let (chosen, experts) = (self.chosen(), self.experts);
        // Complete tiles, and one partial tile for each expert.
        let tiles = launches.tokens * chosen / TILE + experts;
        let lists = ExpertLists {
            experts: launches.shared_address("experts of tiles", tiles * size_of::<u32>())?,
            pairs: launches.shared_address("pairs of tiles", tiles * TILE * size_of::<u32>())?,
        };
        launches.push(Call {
            source: SOURCE,
            kernel: format!("list_pairs<{experts}, {chosen}>"),
            grid: Grid::Blocks(experts),
            threads: THREADS,
            shared: 0,
            parameters: vec![
                launches.view(self.route),
                Parameter::value(lists),
                Parameter::tokens(),
            ],
        });
        Ok(lists)
    }
}

impl ExpertGroup<'_> {
    /// Computes the value between the matrices of each pair for a range of rows. The inputs belong to
    /// tokens for the first matrices and to pairs for the last one.
    fn multiply(
        &self,
        product: PairProduct,
        inputs: Staged,
        part: OutputRows,
        launches: &mut Launches,
    ) -> Result<()> {
        let PairProduct { gate, up, .. } = product;
        let (chosen, share, listed) = (self.count, part.share, self.lists.is_some());
        let codes = gate
            .iter()
            .chain([&up])
            .all(|matrix| launches.in_code_tiles(matrix));
        let (kernel, blocks, shared) = if codes {
            ("pair_codes", part.count.div_ceil(CODE_ROWS), CODES_SHARED)
        } else {
            let tiles = part.count.div_ceil(THREADS / 32 * PLAIN_ROWS);
            ("pair_products", tiles * (TILE / PLAIN_PAIRS), 0)
        };
        let grid = if listed {
            Grid::EachListedTile {
                blocks,
                tile: TILE,
                lists: self.networks,
                used: chosen,
            }
        } else {
            Grid::EachTile(blocks, TILE)
        };
        let gate = gate.map_or(-1, |gate| format_of(gate) as i32);
        let (networks, cols, rows) = (self.networks, up.cols(), up.rows() / self.networks);
        let (up, function) = (format_of(up), product.function);
        launches.push(Call {
            source: CHUNK_SOURCE,
            kernel: format!(
                "{kernel}<PairProduct<{gate}, {up}, {cols}, {rows}, {networks}, {chosen}, {share}, {listed}, {function}>>"
            ),
            grid,
            threads: THREADS,
            shared,
            parameters: vec![
                Parameter::value(product.matrices),
                Parameter::value(self.lists.unwrap_or(ExpertLists::zeroed())),
                Parameter::value(inputs),
                Parameter::value(part.output),
                Parameter::int(part.begin),
                Parameter::int(part.count),
                Parameter::tokens(),
            ],
        });
        Ok(())
    }

    /// Prepares the inner values of each pair as the input of the last matrix.
    fn stage_inner(&self, launches: &mut Launches) -> Result<Staged> {
        let (down, chosen) = (&self.expert.down, self.count);
        let staged = staged(self.names, &[down], launches.tokens * chosen, launches)?;
        let rounding = Rounding::device_number(down.format().rounding());
        let width = down.cols();
        launches.push(Call {
            source: SOURCE,
            kernel: format!("stage_inner<{rounding}, {width}, {chosen}>"),
            grid: Grid::EachToken(chosen),
            threads: THREADS.min(width.next_multiple_of(32)),
            shared: shared_bytes(width),
            parameters: vec![launches.view(self.inner), Parameter::value(staged)],
        });
        Ok(staged)
    }
}

/// Workspaces for this many inputs of these matrices, which all have the same number of columns.
fn staged(
    [floats, codes]: [&'static str; 2],
    matrices: &[&Matrix],
    inputs: usize,
    launches: &mut Launches,
) -> Result<Staged> {
    // Pointers to empty workspaces would not be aligned.
    const LEAST: usize = 16;
    let cols = matrices.first().map_or(0, |matrix| matrix.cols());
    let is_rounded = |matrix: &&&Matrix| matrix.format().is_integer_dot();
    let rounded = matrices.iter().filter(is_rounded).count();
    let exact = matrices.len() - rounded;
    let float_bytes = inputs * cols.next_multiple_of(32) * size_of::<f32>();
    let code_bytes = inputs * (cols + cols / 32 * 8).next_multiple_of(16);
    let used = |count: usize, bytes: usize| if count > 0 { bytes } else { LEAST };
    Ok(Staged {
        floats: launches.shared_address(floats, used(exact, float_bytes))?,
        codes: launches.shared_address(codes, used(rounded, code_bytes))?,
    })
}
