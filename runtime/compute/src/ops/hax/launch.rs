//! Launches of sparse attention in parallel with a state-space model, in `hax.cu`.

use bytemuck::Zeroable;
use std::ffi::c_void;

use super::Hax;
use crate::abi::{DeviceType, device_enum, device_struct};
use crate::cuda::{Address, Call, Grid, Launches, Parameter, Rows, Source};
use crate::error::{Error, Result};
use crate::ops::DeviceOp;
use crate::ops::hax_sources::{KeySource, Pattern};

const SOURCE: &[Source] = &[
    Source::new("ops/hax/hax.cu", &[HaxKind::define, HaxParts::define]),
    Source::new("ops/hax/hax_chunk.cu", &[HaxChunk::define]),
];
const THREADS: usize = 256;

device_struct! {
    /// A source of keys.
    struct HaxSource {
        /// Weights of the hash `[width, columns]`, or of the scorer's first layer, transposed `[2 width, 2 width]`.
        weights: Address as *const f32,
        /// Weights of the scorer's second layer, transposed `[2 width, 2 width]`.
        second_weights: Address as *const f32,
        bias: Address as *const f32,
        second_bias: Address as *const f32,
        last: Address as *const f32,
        last_bias: f32,
        /// A [`HaxKind`].
        kind: i32,
        /// The source's first row.
        first: i32,
        /// Number of rows that a query sees.
        rows: i32,
        every: i32,
        columns: i32,
    }
}

const MOST_SOURCES: usize = 8;

device_struct! {
    /// Workspaces of a chunk.
    struct HaxChunk {
        /// The mean key and the mean query after each token, `[tokens, 2, width]`.
        means: Address as *mut f32,
        /// For each token, the bins of its query and its key and the score of its key.
        measures: Address as *mut i32,
        /// For each row, the token of the chunk that it holds after the chunk, or `none_seen`.
        last: Address as *mut i32,
        /// Values as they are cached, `[tokens, channels]`.
        values: Address as *mut c_void,
    }
}

/// Numbers that are measured per token, and tokens per tile of `hax_measure`, as in hax_chunk.cu.
const MEASURES: usize = 3;
const TILE: usize = 8;
/// Channels and tokens per thread block of `hax_mix_chunk`.
const MIX_CHANNELS: usize = 64;
const MIX_TOKENS: usize = 8;
/// Most rows that a query of a chunk may see, so that they fit in shared memory.
const MOST_SEEN: usize = 2048;
/// Most thread blocks that store rows of the table.
const MOST_STORING: usize = 4096;

device_struct! {
    /// The op's inputs, state and sources.
    struct HaxParts {
        k: Rows,
        q: Rows,
        v: Rows,
        plan: Rows,
        out: Rows,
        keys: Address as *mut c_void,
        values: Address as *mut c_void,
        positions: Address as *mut u64,
        means: Address as *mut f32,
        cursors: Address as *mut u32,
        scores: Address as *mut f32,
        /// Number of sources.
        count: i32,
        /// Most rows that a query sees.
        seen: i32,
        at: [HaxSource; MOST_SOURCES],
    }
}

device_enum! {
    /// Kinds of sources.
    enum HaxKind("HAX_") {
        Window,
        Sink,
        Dilated,
        Signs,
        Largest,
        Best,
    }
}

impl DeviceOp for Hax {
    fn launch(&self, launches: &mut Launches) -> Result<()> {
        let width = self.k.width;
        let list = self.sources.list();
        if list.len() > MOST_SOURCES {
            return Err(Error::Device {
                device: "kernels".into(),
                reason: format!(
                    "sparse attention has {} sources, expected at most {MOST_SOURCES}",
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
    /// Processes the tokens one by one.
    fn launch_steps(&self, parts: HaxParts, launches: &mut Launches) {
        let (kv, width, channels) = (launches.kv(), self.k.width, self.v.width);
        let tokens = Parameter::tokens();
        let value = Parameter::value(parts);
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

    /// Processes all tokens of a chunk at once.
    fn launch_chunk(&self, parts: HaxParts, launches: &mut Launches) -> Result<()> {
        let (kv, width, channels) = (launches.kv(), self.k.width, self.v.width);
        let (tokens, seen) = (launches.tokens, self.sources.most());
        let rows = self.sources.rows();
        let element = launches.memory.kv.bytes();
        let mut room = |purpose, numbers: usize| launches.shared_address(purpose, numbers * 4);
        let chunk = HaxChunk {
            means: room("means of keys", tokens * 2 * width)?,
            measures: room("measures of keys", tokens * MEASURES)?,
            last: room("last tokens of rows", rows)?,
            values: room("cached values", (tokens * channels * element).div_ceil(4))?,
        };
        let lists = self.sources.bins(width) + usize::from(self.scores.is_some());
        let position = launches.position();
        let parts_value = Parameter::value(parts);
        let chunk_value = Parameter::value(chunk);
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
        Pattern::Window => parts.kind = HaxKind::Window as i32,
        Pattern::Sink => parts.kind = HaxKind::Sink as i32,
        Pattern::Dilated(every) => {
            parts.kind = HaxKind::Dilated as i32;
            parts.every = *every as i32;
        }
        Pattern::Bins(hash) => {
            let kind = if hash.signs {
                HaxKind::Signs
            } else {
                HaxKind::Largest
            };
            parts.kind = kind as i32;
            parts.columns = (hash.weight.len() / width) as i32;
            parts.weights = launches.vector_address(&hash.weight)?;
        }
        Pattern::Best(scorer) => {
            parts.kind = HaxKind::Best as i32;
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
