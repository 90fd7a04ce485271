//! The op over many tokens: pairs of a token and an expert are grouped by the expert, so that a row of a matrix is read once for several
//! tokens. What `experts_chunk.cu` is called with.

use bytemuck::{Pod, Zeroable};
use waterline_kernels::{File, file};
use waterline_quant::{Matrix, Rounding};

use super::launch::{Matrices, NO_NETWORK, SOURCE};
use super::{Expert, Experts};
use crate::cuda::{
    Address, COLUMNS_SOURCE, Call, Grid, Launches, Parameter, Rows, format_of, shared_bytes,
};
use crate::error::Result;
use crate::operands::View;

const CHUNK_SOURCE: &[File] = &[file("ops/experts/experts_chunk.cu")];

/// `slice_tokens` and `tile_pairs` in experts.cu.
const SLICE: usize = 256;
const TILE: usize = 8;
const THREADS: usize = 256;
const WARPS: usize = THREADS / 32;
/// Rows of a warp; fewer of the last matrices where the blocks would be fewer than the SMs.
const ROWS: usize = 4;
const FEWER_ROWS: usize = 2;

/// `ExpertLists` in experts.cu.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Lists {
    experts: Address,
    pairs: Address,
    capacity: i32,
    unused: i32,
}

/// `Staged` in experts.cu.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Staged {
    floats: Address,
    codes: Address,
}

/// Names of the workspaces that all mixtures share.
const INPUTS: [&str; 2] = ["floats of experts' inputs", "codes of experts' inputs"];
const INNER: [&str; 2] = ["floats of inner values", "codes of inner values"];
const SHARED: [&str; 2] = [
    "floats of shared inner values",
    "codes of shared inner values",
];

/// Most tiles of a slice of `tokens` tokens: whole ones, and for each expert that has any the rest.
fn capacity(tokens: usize, chosen: usize, experts: usize) -> usize {
    let pairs = tokens.min(SLICE) * chosen;
    pairs / TILE + experts.min(pairs)
}

impl Experts {
    /// Whether chunks of so many tokens are grouped by expert: there a step has other sums.
    pub(super) fn is_grouped(&self, launches: &Launches) -> bool {
        launches.tokens >= TILE && !launches.as_steps
    }

    pub(super) fn launch_chunk(&self, launches: &mut Launches) -> Result<()> {
        let (chosen, experts) = (self.chosen(), self.experts);
        let common = self.shared.as_ref().map(|shared| &shared.expert);
        // Inputs that are rounded alike are made together.
        let is_alike = |common: &&Expert| common.rounding() == self.expert.rounding();
        let alike = common.filter(is_alike).into_iter();
        let first = self.expert.first().chain(alike.flat_map(Expert::first));
        let inputs = self.stage_inputs(first, self.expert.rounding(), launches)?;
        let lists = self.list_pairs(launches)?;

        let routed = self.inner.split(chosen * self.expert.width());
        self.begin(
            &self.expert,
            (experts, chosen),
            Some(lists),
            inputs,
            routed.0,
            launches,
        )?;
        let pairs = stage_inner(&self.expert, chosen, routed.0, INNER, launches)?;
        let mut shared = Staged::zeroed();
        if let Some(common) = common {
            let inputs = match is_alike(&common) {
                true => inputs,
                false => self.stage_inputs(common.first(), common.rounding(), launches)?,
            };
            self.begin(common, (1, 1), None, inputs, routed.1, launches)?;
            shared = stage_inner(common, 1, routed.1, SHARED, launches)?;
        }

        let slices = launches.tokens.div_ceil(SLICE);
        let fills = self.output.width / (WARPS * ROWS) * slices >= launches.sms;
        let rows = if fills { ROWS } else { FEWER_ROWS };
        let networks = [
            self.expert.network(),
            common.map_or(NO_NETWORK.into(), Expert::network),
        ]
        .join(", ");
        let matrices = [
            Matrices::of(&self.expert, launches)?,
            common.map_or(Ok(Matrices::zeroed()), |expert| {
                Matrices::of(expert, launches)
            })?,
        ]
        .map(|matrices| Parameter::value("Matrices", matrices));
        let [routed, common] = matrices;
        let gate = self.shared.as_ref().and_then(|shared| shared.gate);
        let gate = gate.map_or(Rows::zeroed(), |gate| launches.rows(gate));
        let multiplier = self.shared.as_ref().map_or(1.0, |shared| shared.multiplier);
        let (width, add) = (self.output.width, self.add);
        launches.push(Call {
            source: CHUNK_SOURCE,
            kernel: format!("end_tiles<{rows}, {networks}, {experts}, {chosen}, {width}, {add}>"),
            grid: Grid::EachTile(width.div_ceil(WARPS * rows), SLICE),
            threads: THREADS,
            shared: WARPS * rows * SLICE * size_of::<f32>(),
            parameters: vec![
                routed,
                common,
                Parameter::value("ExpertLists", lists),
                Parameter::value("Staged", pairs),
                Parameter::value("Staged", shared),
                launches.view(self.route),
                Parameter::value("Rows", gate),
                Parameter::value("float", multiplier),
                launches.view(self.output),
                Parameter::tokens(),
            ],
        });
        Ok(())
    }

    /// Makes every token's input of these matrices once.
    fn stage_inputs<'a>(
        &self,
        matrices: impl Iterator<Item = &'a Matrix>,
        rounding: Option<Rounding>,
        launches: &mut Launches,
    ) -> Result<Staged> {
        let (cols, rounding) = (self.input.width, Rounding::device_number(rounding));
        let matrices: Vec<&Matrix> = matrices.collect();
        let staged = staged(INPUTS, &matrices, launches.tokens, launches)?;
        let formats = matrices
            .iter()
            .fold(0, |set, matrix| set | 1usize << format_of(matrix));
        let prologue = launches.prologue(self.input, self.norm.as_ref())?;
        launches.push(Call {
            source: COLUMNS_SOURCE,
            kernel: format!(
                "columns_prologue<{formats}, {rounding}, {cols}, {}>",
                prologue.flags(cols)
            ),
            grid: Grid::EachToken(1),
            threads: THREADS,
            shared: shared_bytes(cols),
            parameters: vec![
                Parameter::value("Prologue", prologue),
                Parameter::pointer("float", staged.floats),
                Parameter::pointer("u8", staged.codes),
            ],
        });
        Ok(staged)
    }

    /// Lists the pairs of each slice by expert.
    fn list_pairs(&self, launches: &mut Launches) -> Result<Lists> {
        let (chosen, experts) = (self.chosen(), self.experts);
        let capacity = capacity(launches.tokens, chosen, experts);
        let tiles = launches.tokens.div_ceil(SLICE) * capacity;
        let lists = Lists {
            experts: launches.shared_address("experts of tiles", tiles * size_of::<u32>())?,
            pairs: launches.shared_address("pairs of tiles", tiles * TILE * size_of::<u32>())?,
            capacity: capacity as i32,
            unused: 0,
        };
        launches.push(Call {
            source: SOURCE,
            kernel: format!("list_pairs<{experts}, {chosen}>"),
            grid: Grid::EachTile(experts, SLICE),
            threads: THREADS,
            shared: 0,
            parameters: vec![
                launches.view(self.route),
                Parameter::value("ExpertLists", lists),
                Parameter::tokens(),
            ],
        });
        Ok(lists)
    }

    /// The inner values of one kind of expert: of the pairs in `lists`, or of every token. `count` is the number of networks, and of those
    /// that a token passes.
    fn begin(
        &self,
        expert: &Expert,
        (networks, chosen): (usize, usize),
        lists: Option<Lists>,
        inputs: Staged,
        inner: View,
        launches: &mut Launches,
    ) -> Result<()> {
        let (cols, function) = (self.input.width, self.activation as usize);
        let row_tiles = expert.width().div_ceil(WARPS * ROWS);
        let grid = match lists {
            Some(lists) => Grid::EachTile(row_tiles * lists.capacity as usize, SLICE),
            None => Grid::EachTile(row_tiles, TILE),
        };
        let listed = lists.is_some();
        let matrices = Matrices::of(expert, launches)?;
        launches.push(Call {
            source: CHUNK_SOURCE,
            kernel: format!(
                "begin_tiles<{cols}, {ROWS}, {}, {networks}, {chosen}, {listed}, {function}>",
                expert.network()
            ),
            grid,
            threads: THREADS,
            shared: 0,
            parameters: vec![
                Parameter::value("Matrices", matrices),
                Parameter::value("ExpertLists", lists.unwrap_or(Lists::zeroed())),
                Parameter::value("Staged", inputs),
                launches.view(inner),
                Parameter::tokens(),
            ],
        });
        Ok(())
    }
}

/// Makes the inner values of `chosen` networks for each token the inputs of their last matrices.
fn stage_inner(
    expert: &Expert,
    chosen: usize,
    inner: View,
    names: [&'static str; 2],
    launches: &mut Launches,
) -> Result<Staged> {
    let staged = staged(names, &[&expert.down], launches.tokens * chosen, launches)?;
    let rounding = Rounding::device_number(expert.down.format().rounding());
    let width = expert.width();
    launches.push(Call {
        source: SOURCE,
        kernel: format!("stage_inner<{rounding}, {width}, {chosen}>"),
        grid: Grid::EachToken(chosen),
        threads: THREADS.min(width.next_multiple_of(32)),
        shared: shared_bytes(width),
        parameters: vec![launches.view(inner), Parameter::value("Staged", staged)],
    });
    Ok(staged)
}

/// Room for so many inputs of these matrices, which have as many columns.
fn staged(
    [floats, codes]: [&'static str; 2],
    matrices: &[&Matrix],
    inputs: usize,
    launches: &mut Launches,
) -> Result<Staged> {
    // Pointers to nothing would not be aligned.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_list_has_room() {
        // Every token chooses the same experts, or all experts alike, or each its own.
        for (tokens, chosen, experts) in [(8, 1, 8), (300, 8, 256), (2048, 2, 3), (31, 3, 7)] {
            let room = capacity(tokens, chosen, experts);
            for spread in 1..=experts {
                let of = tokens.min(SLICE) * chosen;
                let counts = (0..spread).map(|e| of / spread + usize::from(e < of % spread));
                let tiles: usize = counts.map(|count| count.div_ceil(TILE)).sum();
                assert!(tiles <= room, "{tokens} {chosen} {experts} {spread}");
            }
        }
    }
}
