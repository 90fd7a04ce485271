//! Launches of the attention kernels in `attend.cu`.

use std::ffi::c_void;
use std::ops::Range;

use bytemuck::Zeroable;

use super::tiles::Tiles;
use super::{Attend, Eviction, Policy};
use crate::abi::{DeviceType, device_struct};
use crate::cuda::{
    Address, Call, Grid, Launches, Parameter, Queued, RotaryInputs, Rows, Source, Take,
};
use crate::error::Result;
use crate::operands::View;
use crate::ops::DeviceOp;

const SOURCE: &[Source] = &[
    Source::new("ops/attend/attend.cu", &[Attended::define]),
    Source::new("ops/attend/retain.cu", &[Retained::define]),
    Source::new("ops/attend/attend_tiles.cu", &[]),
    Source::new("ops/attend/attend_wide.cu", &[]),
];

/// With fewer keys than this, one thread block takes all of them.
const SPLIT: usize = 512;
/// Bytes of keys and values that attention to a set keeps in shared memory at once, about as many as the products need there.
const NEAR: usize = 32 << 10;
/// Query heads times tokens that share the keys read by a thread block.
const QUERIES: usize = 4;
/// Thread blocks for longer heads have half as many threads where the queries of several tokens or heads share a warp.
const LONG_HEAD: usize = 256;

device_struct! {
    /// Attention to a segment of recent tokens, and to a set of others where tokens are retained.
    struct Attended {
        q: Rows,
        k: Rows,
        v: Rows,
        out: Rows,
        /// The inputs where a single token attends to a set. If pairs are rotated there, `k` and `v` are other columns, else the same.
        from: RotaryInputs,
        keys: Address as *mut c_void,
        values: Address as *mut c_void,
        set_keys: Address as *mut c_void,
        set_values: Address as *mut c_void,
        /// For each row of the set, the first token of the chunk that takes the row, or `never`.
        gone: Address as *mut i32,
        /// For each token t of the chunk, the first token that no longer sees the token that t pushes out of the window.
        until: Address as *mut i32,
        /// For each token t of the chunk, the set row for the token that t pushes out of the window, or -1.
        taken: Address as *mut i32,
        /// Number of retained tokens before the chunk.
        counts: Address as *mut i32,
        /// Partial softmaxes `[tokens, heads, splits, head_dim + 2]`.
        parts: Address as *mut f32,
        scale: f32,
        heads: i32,
        kv_heads: i32,
        /// Rows of the segment.
        rows: i32,
        /// Capacity of the set, in tokens.
        capacity: i32,
        /// Tokens of the largest chunk.
        chunk: i32,
    }
}

device_struct! {
    /// The set of retained tokens, and the policy that evicts them.
    struct Retained {
        /// Scores of the learned policy: row t is the score of the token `margin` before the chunk's token t.
        router: Rows,
        window_scores: Address as *mut f32,
        set_scores: Address as *mut f32,
        /// The position of each token of the set, plus one.
        set_positions: Address as *mut u64,
        counts: Address as *mut u32,
        /// Scores of the tokens that leave the window `[kv_heads, chunk]`.
        leaving: Address as *mut f32,
        /// For each row of the set, the last token of the chunk stored in it.
        occupants: Address as *mut i32,
        sink: i32,
        margin: i32,
        every: i32,
        pad: i32,
    }
}

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

/// Makes a call rotate its token's query and key itself, or read the key that an earlier call has rotated.
fn rotate(queued: &mut Queued, from: RotaryInputs, cached: [Address; 2]) {
    let (mut before, mut after) = ([Rows::zeroed(); 3], [Rows::zeroed(); 3]);
    queued.call.parameters[0].update(|attended: &mut Attended| {
        before = [attended.q, attended.k, attended.v];
        attended.from = from;
        [attended.k.first, attended.v.first] = cached;
        after = [attended.q, attended.k, attended.v];
    });
    let Some(accesses) = &mut queued.accesses else {
        return;
    };
    if accesses.reads.contains(&before[0].bytes()) {
        after = from.columns;
    }
    for read in &mut accesses.reads {
        if let Some(index) = before.iter().position(|rows| rows.bytes() == *read) {
            *read = after[index].bytes();
        }
    }
}

/// Adapts the retention call of a token whose score is already in the window, at `window`.
fn leave_score(queued: &mut Queued, window: &Range<Address>) {
    queued.call.parameters[1].update(|retained: &mut Retained| retained.router = Rows::zeroed());
    if let Some(accesses) = &mut queued.accesses {
        accesses.reads.clear();
        accesses.writes.retain(|written| written != window);
    }
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
            scale: self.scale,
            heads: self.heads as i32,
            kv_heads: self.kv_heads as i32,
            rows: launches.state_shape(self.keys)[1] as i32,
            chunk: launches.tokens as i32,
            ..Attended::zeroed()
        };
        match &self.eviction {
            Some(eviction) => self.launch_retaining(launches, eviction, attended),
            None => self.launch_attention(launches, attended, 0..0),
        }
    }
}

impl Attend {
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
                let call = self.head_call(launches, attended, retained, kernel);
                launches.push(Call {
                    threads,
                    shared: shared + totals,
                    ..call
                });
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
        let retain = launches.calls.len();
        launches.push_prefetching(self.head_call(launches, attended, retained, kernel.into()));
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
            launches.narrow_accesses(&[retained.router.bytes()], &written);
            launches.takes(Take::Score {
                stored: window,
                take: leave_score,
            });
        }
        self.launch_attention(launches, attended, first..end)?;
        // The attention kernel may rotate a single token's queries and key. The key and the value stay at `k` and `v` until they
        // are cached, which may be in a later layer.
        for (index, queued) in launches.calls.iter_mut().enumerate().skip(retain) {
            queued.takes.push(Take::Rotation {
                columns: attended.from.columns,
                head_dim: self.head_dim(),
                cached: [k, v],
                rotates: index > retain,
                take: rotate,
            });
        }
        Ok(())
    }

    /// A call of a kernel in which each thread block takes a key head through the chunk's tokens.
    fn head_call(
        &self,
        launches: &Launches,
        attended: Attended,
        retained: Retained,
        kernel: String,
    ) -> Call {
        Call {
            source: SOURCE,
            kernel,
            grid: Grid::Blocks(self.kv_heads),
            threads: 256,
            shared: 0,
            parameters: vec![
                Parameter::value(attended),
                Parameter::value(retained),
                launches.position(),
                Parameter::tokens(),
            ],
        }
    }

    /// Launches all queries, then the cache. `marks` is the memory for the results of `retain` and for a rotated key with its value.
    fn launch_attention(
        &self,
        launches: &mut Launches,
        attended: Attended,
        marks: Range<Address>,
    ) -> Result<()> {
        if !self.launch_queries(launches, attended, &marks)? {
            self.launch_cache(launches, attended, &marks);
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
        mut attended: Attended,
        marks: &Range<Address>,
    ) -> Result<bool> {
        let (kv, dim, group) = (launches.kv(), self.head_dim(), self.heads / self.kv_heads);
        let unit = unit(dim, &[self.k, self.v]);
        let heads = heads_together(group);
        let single = launches.tokens == 1;
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
        let retains = self.eviction.is_some();
        let (cores, room) = (launches.limits.tensor_cores, launches.limits.shared_memory);
        let keys_only = !retains && !self.has_own_values();
        let size = (dim, launches.memory.kv.bytes());
        if let Some(tiles) = Tiles::new(size, keys_only, launches.tokens, cores, room) {
            let aligned = unit == 8;
            let kernel = if tiles.wide {
                format!("attend_wide<{kv}, {dim}, {aligned}>")
            } else {
                format!("attend_tiles<{kv}, {dim}, {retains}, {aligned}>")
            };
            launches.push(Call {
                source: SOURCE,
                kernel,
                grid: Grid::EachTile(self.heads, tiles.tokens),
                threads: tiles.threads,
                shared: tiles.shared,
                parameters: vec![
                    Parameter::value(attended),
                    launches.position(),
                    Parameter::tokens(),
                ],
            });
            return Ok(false);
        }
        let caches = single && !retains;
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
            parameters: vec![Parameter::value(attended), launches.position()],
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
            launches.push_prefetching(call);
        } else {
            call.kernel = format!(
                "attend<{kv}, {dim}, {unit}, {heads}, {tile}, {retains}, {caches}, {splits}, {sharing}>"
            );
            call.parameters.push(Parameter::tokens());
            launches.push(call);
        }
        let cached = self.cached(launches);
        let [q, k, v] = attended.from.columns.map(Rows::bytes);
        let read = [[q, k, v, marks.clone()], cached.clone()];
        let mut written = vec![parts.clone(), marks.clone()];
        if caches {
            written.extend_from_slice(&cached);
        }
        launches.narrow_accesses(read.as_flattened(), &written);
        if splits > 1 {
            launches.push(Call {
                source: SOURCE,
                kernel: format!("combine_parts<{kv}, {dim}, {splits}, {retains}>"),
                grid: Grid::EachToken(self.heads),
                threads: dim.next_multiple_of(32).min(256),
                shared: 0,
                parameters: vec![
                    Parameter::value(attended),
                    launches.position(),
                    Parameter::tokens(),
                ],
            });
            let [k, v] = [attended.k, attended.v].map(Rows::bytes);
            let mut written = vec![attended.out.bytes()];
            if retains {
                written.extend_from_slice(&cached);
            }
            launches.narrow_accesses(&[parts, k, v, marks.clone()], &written);
        }
        Ok(caches || retains && splits > 1)
    }

    fn launch_cache(&self, launches: &mut Launches, attended: Attended, marks: &Range<Address>) {
        let (kv, dim) = (launches.kv(), self.head_dim());
        launches.push(Call {
            source: SOURCE,
            kernel: format!("cache<{kv}, {dim}, {}>", self.eviction.is_some()),
            grid: Grid::EachToken(self.kv_heads),
            threads: dim.next_multiple_of(32).min(256),
            shared: 0,
            parameters: vec![
                Parameter::value(attended),
                launches.position(),
                Parameter::tokens(),
            ],
        });
        let read = [attended.k.bytes(), attended.v.bytes(), marks.clone()];
        launches.narrow_accesses(&read, &self.cached(launches));
    }
}
