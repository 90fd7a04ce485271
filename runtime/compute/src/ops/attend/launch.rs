//! Launches of the attention kernels in `attend.cu`.

use std::ops::Range;

use bytemuck::Zeroable;

use super::tiles::{self, Form, Tiles};
use super::{Attend, Eviction, Policy};
use crate::abi::DeviceType;
use crate::cuda::{
    Address, Attended, Attention, Call, Grid, Launches, Node, Parameter, Retained, RotaryInputs,
    Rotation, Rows, Source,
};
use crate::error::Result;
use crate::operands::View;
use crate::ops::DeviceOp;

const SOURCE: &[Source] = &[
    Source::new("ops/attend/attend.cu", &[Attended::define]),
    Source::new("ops/attend/retain.cu", &[Retained::define]),
    Source::new("ops/attend/attend_tiles.cu", &[]),
    Source::new("ops/attend/attend_wide.cu", &[]),
    Source::new("ops/attend/attend_chunk.cu", &[]),
    Source::new("ops/attend/attend_step.cu", &[]),
];

/// With fewer keys than this, one thread block takes all of them.
const SPLIT: usize = 512;
/// Bytes of keys and values that attention to a set keeps in shared memory at once, about as many as the products need there.
const NEAR: usize = 32 << 10;
/// Query heads times tokens that share the keys read by a thread block.
const QUERIES: usize = 4;
/// From this many keys on, a single token attends on tensor cores, whose start takes longer.
const MANY: usize = 1024;
/// Thread blocks for longer heads have half as many threads where the queries of several tokens or heads share a warp.
const LONG_HEAD: usize = 256;

/// Values of a key that a thread reads at once: as many as alignment permits.
pub(in crate::ops) fn unit(dim: usize, chunk: &[View]) -> usize {
    let fits = |unit: usize| {
        dim.is_multiple_of(unit)
            && (chunk.iter())
                .all(|view| view.start.is_multiple_of(4) && view.stride.is_multiple_of(4))
    };
    [8, 4].into_iter().find(|&unit| fits(unit)).unwrap_or(1)
}

/// Threads per thread block, and the bytes of shared memory in which it merges the softmaxes of `queries` queries.
pub(in crate::ops) fn block(dim: usize, queries: usize) -> (usize, usize) {
    let threads = if dim > LONG_HEAD { 128 } else { 256 };
    (threads, merging_bytes(dim, threads, queries))
}

/// Bytes of shared memory in which this many threads merge the softmaxes of `queries` queries per warp.
fn merging_bytes(dim: usize, threads: usize, queries: usize) -> usize {
    threads / 32 * queries * (dim + 2) * size_of::<f32>()
}

/// Query heads of a group that pass over the keys together.
pub(in crate::ops) fn heads_together(group: usize) -> usize {
    let divides = |n: &usize| group.is_multiple_of(*n);
    (1..=QUERIES).rev().find(divides).unwrap_or(1)
}

impl DeviceOp for Attend {
    fn launch(&self, launches: &mut Launches) -> Result<()> {
        let [q, k, v] = [self.q, self.k, self.v].map(|view| launches.rows(view));
        let attended = Attended {
            q,
            k,
            v,
            from: RotaryInputs {
                columns: [q, k, v],
                ..RotaryInputs::zeroed()
            },
            out: launches.rows(self.out),
            keys: launches.state_address(self.keys),
            values: launches.state_address(self.values),
            sinks: launches.optional_address(self.sinks.as_ref())?,
            scale: self.scale,
            heads: self.heads as i32,
            kv_heads: self.kv_heads as i32,
            rows: launches.state_shape(self.keys)[1] as i32,
            chunk: launches.tokens as i32,
            ..Attended::zeroed()
        };
        match &self.eviction {
            Some(eviction) => self.launch_retaining(launches, eviction, attended),
            None => self.launch_attention(launches, Attention::new(attended), 0..0),
        }
    }
}

impl Attend {
    /// A call of a kernel with a thread block for each of `heads` heads and each token, and a thread for each column.
    fn token_call(&self, launches: &Launches, kernel: String, heads: usize) -> Call {
        Call {
            source: SOURCE,
            kernel,
            grid: Grid::EachToken(heads),
            threads: self.head_dim().next_multiple_of(32).min(256),
            shared: 0,
            parameters: vec![launches.position(), Parameter::tokens()],
        }
    }

    /// Launches attention that retains tokens beyond the window.
    fn launch_retaining(
        &self,
        launches: &mut Launches,
        eviction: &Eviction,
        mut attended: Attended,
    ) -> Result<()> {
        let capacity = launches.state_shape(eviction.set_keys)[1];
        attended.capacity = capacity as i32;
        attended.set_keys = launches.state_address(eviction.set_keys);
        attended.set_values = launches.state_address(eviction.set_values);
        let mut retained = Retained {
            counts: launches.state_address(eviction.set_counts),
            set_positions: launches.state_address(eviction.set_positions),
            sink: eviction.sink as i32,
            ..Retained::zeroed()
        };
        if let Policy::Learned { scores, .. } | Policy::Attention(scores) = &eviction.policy {
            retained.window_scores = launches.state_address(scores.window);
            retained.set_scores = launches.state_address(scores.set);
        }
        let kernel = match &eviction.policy {
            Policy::Attention(_) => {
                let heads = heads_together(self.heads / self.kv_heads);
                let (threads, shared) = block(self.head_dim(), heads);
                let (kv, dim) = (launches.kv(), self.head_dim());
                let unit = unit(dim, &[]);
                let kernel = format!("attend_and_weigh<{kv}, {dim}, {unit}, {heads}>");
                let totals = self.heads / self.kv_heads * 2 * size_of::<f32>();
                let call = self.head_call(launches, kernel);
                let call = Call {
                    threads,
                    shared: shared + totals,
                    ..call
                };
                let mut attention = Attention::new(attended);
                attention.retained = Some(retained);
                launches.push_node(call, Node::Attend(Box::new(attention)));
                return Ok(());
            }
            Policy::Learned { router, margin, .. } => {
                retained.router = launches.rows(*router);
                retained.margin = *margin as i32;
                match launches.tokens {
                    1 => "retain<LEARNED>",
                    _ => "retain_chunk",
                }
            }
            Policy::Stride(every) => {
                retained.every = *every as i32;
                "retain<STRIDE>"
            }
        };
        let chunk = launches.tokens;
        let dim = self.head_dim();
        let lengths = [capacity, chunk, chunk, 1, chunk, capacity, dim, dim];
        let bytes = lengths.map(|length| (self.kv_heads * length * size_of::<i32>()) as u64);
        let first = launches.scratch_address(bytes.iter().sum::<u64>() as usize)?;
        let mut end = first;
        let [k, v];
        [
            attended.gone,
            attended.until,
            attended.taken,
            attended.counts,
            retained.leaving,
            retained.occupants,
            k,
            v,
        ] = bytes.map(|bytes| {
            end += bytes;
            end - bytes
        });
        let rotation = Rotation {
            head_dim: self.head_dim(),
            cached: [k, v],
            rotates: false,
        };
        let mut attention = Attention {
            retained: Some(retained),
            prefetches: true,
            // The key and the value stay at `k` and `v` until they are cached, which may be in a later layer.
            rotation: Some(rotation),
            ..Attention::new(attended)
        };
        let mut part = None;
        if let Policy::Learned { scores, .. } = &eviction.policy {
            let tensors = [
                scores.window,
                scores.set,
                eviction.set_positions,
                eviction.set_counts,
            ];
            let [window, set, positions, counts] =
                tensors.map(|tensor| launches.state_bytes(tensor));
            // The score read from the window belongs to the evicted token, the score written to the new token.
            let written = [set, positions, counts, first..end, window.clone()];
            attention.stored_score = Some(window);
            part = Some(written);
        }
        let call = self.head_call(launches, kernel.into());
        launches.push_node(call, Node::Attend(Box::new(attention)));
        if let Some(written) = part {
            launches.narrow_accesses(&[retained.router.bytes()], &written);
        }
        let attention = Attention {
            // The first kernel may rotate a single token's queries and key.
            rotation: Some(Rotation {
                rotates: true,
                ..rotation
            }),
            ..Attention::new(attended)
        };
        self.launch_attention(launches, attention, first..end)
    }

    /// A call of a kernel in which each thread block takes a key head through the chunk's tokens.
    fn head_call(&self, launches: &Launches, kernel: String) -> Call {
        Call {
            source: SOURCE,
            kernel,
            grid: Grid::Blocks(self.kv_heads),
            threads: 256,
            shared: 0,
            parameters: vec![launches.position(), Parameter::tokens()],
        }
    }

    /// Launches all queries, then the cache. `marks` is the memory for the results of `retain` and for a rotated key with its value.
    fn launch_attention(
        &self,
        launches: &mut Launches,
        attention: Attention,
        marks: Range<Address>,
    ) -> Result<()> {
        let is_cached = self.launch_queries(launches, attention.clone(), &marks)?;
        if self.caches && !is_cached {
            self.launch_cache(launches, attention, &marks);
        }
        Ok(())
    }

    /// The memory of the cached keys and values.
    fn cached(&self, launches: &Launches) -> [Range<Address>; 4] {
        let [set_keys, set_values] = match &self.eviction {
            Some(eviction) => [eviction.set_keys, eviction.set_values],
            None => [self.keys, self.values],
        };
        let tensors = [self.keys, self.values, set_keys, set_values];
        tensors.map(|tensor| launches.state_bytes(tensor))
    }

    /// Launches the queries; returns whether the last kernel also caches the token.
    fn launch_queries(
        &self,
        launches: &mut Launches,
        mut attention: Attention,
        marks: &Range<Address>,
    ) -> Result<bool> {
        let attended = &mut attention.attended;
        let (kv, dim, group) = (launches.kv(), self.head_dim(), self.heads / self.kv_heads);
        let unit = unit(dim, &[self.k, self.v]);
        let retains = self.eviction.is_some();
        let (cores, room) = (launches.limits.tensor_cores, launches.limits.shared_memory);
        let single = launches.tokens == 1;
        let size = (dim, launches.memory.kv.bytes());
        let heads = heads_together(group);
        let tile = if single { 1 } else { QUERIES / heads };
        let blocks = self.heads / heads;
        let keys = (attended.rows + attended.capacity) as usize;
        // In the decode kernel the thread blocks of an SM run one after another.
        let blocks_of_sm = if launches.persistent { 1 } else { 2 };
        let splits = if single && keys >= SPLIT {
            (blocks_of_sm * launches.limits.sms / blocks).clamp(1, keys.div_ceil(SPLIT / 4))
        } else {
            1
        };
        let mut parts = attended.out.bytes();
        if splits > 1 {
            let bytes = self.heads * splits * (dim + 2) * size_of::<f32>();
            attended.parts = launches.scratch_address(bytes)?;
            parts = attended.parts..attended.parts + bytes as u64;
        }
        let keys_only = !retains && !self.has_own_values();
        if let Some(tiles) = Tiles::new(size, [keys_only, retains], launches.tokens, cores, room) {
            let aligned = unit == 8;
            let kernel = match tiles.form {
                Form::Chunk {
                    keys,
                    row_tiles,
                    groups,
                } => {
                    self.launch_rounding(launches, &mut attention)?;
                    format!("attend_chunk<{dim}, {retains}, {keys}, {row_tiles}, {groups}>")
                }
                Form::Tiles => format!("attend_tiles<{kv}, {dim}, {retains}, {aligned}>"),
                Form::Wide => format!("attend_wide<{kv}, {dim}, {aligned}>"),
            };
            let call = Call {
                source: SOURCE,
                kernel,
                grid: Grid::EachTile(self.heads, tiles.tokens),
                threads: tiles.threads,
                shared: tiles.shared,
                parameters: vec![launches.position(), Parameter::tokens()],
            };
            launches.push_node(call, Node::Attend(Box::new(attention)));
            return Ok(false);
        }
        let caches = self.caches && single && !retains;
        let all = launches.prologue_threads();
        let shares = single && (all / 32).is_multiple_of(heads);
        let (sharing, (threads, shared)) = if shares {
            (heads, (all, merging_bytes(dim, all, 1)))
        } else {
            (1, block(dim, heads * tile))
        };
        let mut call = Call {
            source: SOURCE,
            kernel: String::new(),
            grid: Grid::EachTile(blocks * splits, tile),
            threads,
            shared,
            parameters: vec![launches.position()],
        };
        if single && retains {
            let row_bytes = 2 * dim * launches.memory.kv.bytes();
            let near = (keys / splits + 1).min(NEAR / row_bytes).max(1);
            call.kernel = format!(
                "attend_retained<{kv}, {dim}, {unit}, {heads}, {splits}, {sharing}, {near}>"
            );
            // Queries, and a sine and a cosine for each rotated pair.
            let own = (heads + 1) * dim * size_of::<f32>();
            call.shared = shared.max(near * (row_bytes + size_of::<i32>()) + own);
            attention.prefetches = true;
        } else {
            call.parameters.push(Parameter::tokens());
            call.kernel = format!(
                "attend<{kv}, {dim}, {unit}, {heads}, {tile}, {retains}, {caches}, {splits}, {sharing}>"
            );
            if single && keys > MANY && tiles::has_step(size, cores) {
                call.kernel = format!(
                    "attend_few_or_many<{kv}, {dim}, {unit}, {heads}, {caches}, {splits}, {sharing}, {MANY}>"
                );
                call.shared = shared.max(tiles::step_bytes(dim, heads, threads));
            }
        }
        let [q, k, v] = attention.attended.from.columns.map(Rows::bytes);
        let out = attention.attended.out.bytes();
        launches.push_node(call, Node::Attend(Box::new(attention.clone())));
        let cached = self.cached(launches);
        let read = [[q, k, v, marks.clone()], cached.clone()];
        let mut written = vec![parts.clone(), marks.clone()];
        if caches {
            written.extend_from_slice(&cached);
        }
        launches.narrow_accesses(read.as_flattened(), &written);
        if splits > 1 {
            let kernel = format!("combine_parts<{kv}, {dim}, {splits}, {retains}>");
            let call = self.token_call(launches, kernel, self.heads);
            attention.prefetches = false;
            let [_, k, v] = attention.columns().map(Rows::bytes);
            launches.push_node(call, Node::Attend(Box::new(attention)));
            let mut written = vec![out];
            if retains {
                written.extend_from_slice(&cached);
            }
            launches.narrow_accesses(&[parts, k, v, marks.clone()], &written);
        }
        Ok(caches || retains && splits > 1)
    }

    /// Launches the rounding of a chunk's keys and values to f16, so that tiles copy them like cached ones.
    fn launch_rounding(&self, launches: &mut Launches, attention: &mut Attention) -> Result<()> {
        let dim = self.head_dim();
        let bytes = launches.tokens * self.kv_heads * dim * size_of::<u16>();
        let bytes = bytes.next_multiple_of(16);
        let own = launches.scratch_address(2 * bytes)?;
        attention.attended.own_keys = own;
        attention.attended.own_values = own + bytes as u64;
        let call = Call {
            parameters: vec![Parameter::tokens()],
            ..self.token_call(launches, format!("round_chunk<{dim}>"), self.kv_heads)
        };
        launches.push_node(call, Node::Attend(Box::new(attention.clone())));
        Ok(())
    }

    fn launch_cache(&self, launches: &mut Launches, attention: Attention, marks: &Range<Address>) {
        let (kv, dim) = (launches.kv(), self.head_dim());
        let kernel = format!("cache<{kv}, {dim}, {}>", self.eviction.is_some());
        let call = self.token_call(launches, kernel, self.kv_heads);
        let [_, k, v] = attention.columns().map(Rows::bytes);
        launches.push_node(call, Node::Attend(Box::new(attention)));
        let read = [k, v, marks.clone()];
        launches.narrow_accesses(&read, &self.cached(launches));
    }
}
