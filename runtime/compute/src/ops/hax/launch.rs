//! Launches of sparse attention in parallel with a state-space model, in `hax.cu`.

use bytemuck::{Pod, Zeroable};
use waterline_kernels::{File, file};

use super::Hax;
use crate::cuda::{Call, Grid, Launches, Parameter, Rows};
use crate::error::{Error, Result};
use crate::ops::DeviceOp;
use crate::ops::hax_sources::{KeySource, Pattern};

const SOURCE: &[File] = &[file("ops/hax/hax.cu"), file("ops/hax/hax_chunk.cu")];
const THREADS: usize = 256;

/// `HaxSource` in hax.cu.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct HaxSource {
    weights: u64,
    second_weights: u64,
    bias: u64,
    second_bias: u64,
    last: u64,
    last_bias: f32,
    kind: i32,
    first: i32,
    rows: i32,
    every: i32,
    columns: i32,
}

const MOST_SOURCES: usize = 8;

/// `HaxChunk` in hax_chunk.cu.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct HaxChunk {
    means: u64,
    measures: u64,
    last: u64,
    values: u64,
}

/// Numbers that are measured of a token, and tokens of a tile that is measured, as in hax_chunk.cu.
const MEASURES: usize = 3;
const TILE: usize = 8;
/// Channels and tokens of a block that mixes, as there.
const MIX_CHANNELS: usize = 64;
const MIX_TOKENS: usize = 8;
/// Most rows that a query of a chunk sees: shared memory has room for them.
const MOST_SEEN: usize = 2048;
/// Most blocks that store rows of the table.
const MOST_STORING: usize = 4096;

/// `HaxParts` in hax.cu.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct HaxParts {
    k: Rows,
    q: Rows,
    v: Rows,
    plan: Rows,
    out: Rows,
    keys: u64,
    values: u64,
    positions: u64,
    means: u64,
    cursors: u64,
    scores: u64,
    count: i32,
    seen: i32,
    at: [HaxSource; MOST_SOURCES],
}

// The kinds in hax.cu.
const WINDOW: i32 = 0;
const SINK: i32 = 1;
const DILATED: i32 = 2;
const SIGNS: i32 = 3;
const LARGEST: i32 = 4;
const BEST: i32 = 5;

impl DeviceOp for Hax {
    fn launch(&self, launches: &mut Launches) -> Result<()> {
        let width = self.k.width;
        let list = self.sources.list();
        if list.len() > MOST_SOURCES {
            return Err(Error::Device {
                device: "kernels".into(),
                reason: format!(
                    "sparse attention with {} sources, kernels take up to {MOST_SOURCES}",
                    list.len()
                ),
            });
        }
        let mut at = [HaxSource::zeroed(); MOST_SOURCES];
        for (place, source) in at.iter_mut().zip(list) {
            *place = source_of(source, width, launches)?;
        }
        let address =
            |tensor: Option<usize>| tensor.map_or(0, |tensor| launches.state_address(tensor));
        let parts = HaxParts {
            k: launches.rows(self.k),
            q: launches.rows(self.q),
            v: launches.rows(self.v),
            plan: launches.rows(self.plan),
            out: launches.rows(self.out),
            keys: address(Some(self.keys)),
            values: address(Some(self.values)),
            positions: address(Some(self.positions)),
            means: address(Some(self.means)),
            cursors: address(self.cursors),
            scores: address(self.scores),
            count: list.len() as i32,
            seen: self.sources.most() as i32,
            at,
        };
        if launches.tokens > 1 && self.sources.most() <= MOST_SEEN {
            self.launch_chunk(parts, launches)
        } else {
            self.launch_steps(parts, launches);
            Ok(())
        }
    }
}

impl Hax {
    /// Token by token.
    fn launch_steps(&self, parts: HaxParts, launches: &mut Launches) {
        let (kv, width, channels) = (launches.kv(), self.k.width, self.v.width);
        let tokens = Parameter::tokens();
        let value = Parameter::value("HaxParts", parts);
        launches.push(Call {
            source: SOURCE,
            kernel: format!("hax_choose<{kv}, {width}>"),
            grid: Grid::Blocks(1),
            threads: THREADS,
            shared: 5 * width * size_of::<f32>(),
            parameters: vec![value.clone(), launches.position(), tokens.clone()],
        });
        launches.push(Call {
            source: SOURCE,
            kernel: format!("hax_mix<{kv}, {channels}>"),
            grid: Grid::Blocks(channels.div_ceil(32)),
            threads: THREADS,
            shared: 0,
            parameters: vec![value, tokens],
        });
    }

    /// All tokens of a chunk at once.
    fn launch_chunk(&self, parts: HaxParts, launches: &mut Launches) -> Result<()> {
        let (kv, width, channels) = (launches.kv(), self.k.width, self.v.width);
        let (tokens, seen) = (launches.tokens, self.sources.most());
        let rows = self.sources.rows();
        let element = launches.kv_bytes();
        let mut room = |purpose, numbers: usize| launches.shared_address(purpose, numbers * 4);
        let chunk = HaxChunk {
            means: room("means of keys", tokens * 2 * width)?,
            measures: room("measures of keys", tokens * MEASURES)?,
            last: room("last tokens of rows", rows)?,
            values: room("cached values", (tokens * channels * element).div_ceil(4))?,
        };
        let lists = self.sources.bins(width) + usize::from(self.scores.is_some());
        let position = launches.position();
        let parts_value = Parameter::value("HaxParts", parts);
        let chunk_value = Parameter::value("HaxChunk", chunk);
        let mut push = |kernel: String, grid, threads, shared, parameters: &[&Parameter]| {
            let parameters = parameters.iter().map(|&parameter| parameter.clone());
            launches.push(Call {
                source: SOURCE,
                kernel,
                grid,
                threads,
                shared,
                parameters: parameters.chain([Parameter::tokens()]).collect(),
            });
        };
        let blocks = Grid::Blocks((2 * width).div_ceil(THREADS));
        let all = [&parts_value, &chunk_value, &position];
        push(format!("hax_means<{width}>"), blocks, THREADS, 0, &all);
        if lists > 0 {
            let shared = 2 * 2 * width * TILE * size_of::<f32>();
            let grid = Grid::EachTile(1, TILE);
            push(
                format!("hax_measure<{width}>"),
                grid,
                THREADS,
                shared,
                &all[..2],
            );
            let shared = seen * (size_of::<u64>() + size_of::<i32>() + size_of::<f32>());
            push("hax_hold".into(), Grid::Blocks(lists), 32, shared, &all);
        }
        let shared = seen * size_of::<u64>();
        let kernel = format!("hax_weigh_chunk<{kv}, {width}>");
        push(kernel, Grid::Tokens, THREADS, shared, &all);
        let grid = Grid::EachToken(channels.div_ceil(THREADS));
        push(
            format!("hax_narrow<{kv}, {channels}>"),
            grid,
            THREADS,
            0,
            &all[..2],
        );
        let grid = Grid::EachTile(channels.div_ceil(MIX_CHANNELS), MIX_TOKENS);
        let kernel = format!("hax_mix_chunk<{kv}, {channels}>");
        push(kernel, grid, THREADS, 0, &all[..2]);
        let kernel = format!("hax_store<{kv}, {width}, {channels}>");
        let table = Parameter::int(rows);
        let grid = Grid::Blocks(rows.min(MOST_STORING));
        push(kernel, grid, THREADS, 0, &[all[0], all[1], all[2], &table]);
        Ok(())
    }
}

fn source_of(source: &KeySource, width: usize, launches: &Launches) -> Result<HaxSource> {
    let mut parts = HaxSource {
        first: source.first as i32,
        rows: source.rows as i32,
        ..HaxSource::zeroed()
    };
    match &source.pattern {
        Pattern::Window => parts.kind = WINDOW,
        Pattern::Sink => parts.kind = SINK,
        Pattern::Dilated(every) => {
            parts.kind = DILATED;
            parts.every = *every as i32;
        }
        Pattern::Bins(hash) => {
            parts.kind = if hash.signs { SIGNS } else { LARGEST };
            parts.columns = (hash.weight.len() / width) as i32;
            parts.weights = launches.vector_address(&hash.weight)?;
        }
        Pattern::Best(scorer) => {
            parts.kind = BEST;
            parts.weights = launches.vector_address(&scorer.weights[0])?;
            parts.second_weights = launches.vector_address(&scorer.weights[1])?;
            parts.bias = launches.vector_address(&scorer.biases[0])?;
            parts.second_bias = launches.vector_address(&scorer.biases[1])?;
            parts.last = launches.vector_address(&scorer.last)?;
            parts.last_bias = scorer.last_bias;
        }
    }
    Ok(parts)
}
