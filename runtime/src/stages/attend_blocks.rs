//! Native sparse attention: three softmaxes over the same keys and values, each multiplied by a gate and summed.
//! Position p lies in row `p % rows` of a circular segment, block c in row `c % blocks` of the means. For query t,
//! with `current = t / block`:
//!
//! - means: the keys and values of every complete block, averaged over the block
//! - chosen: the tokens up to t in the most important blocks. A block's importance is the sum over the group's query
//!   heads of its share in the softmax over means; the first block and the last two count as a full share of every
//!   head. The lower block wins a tie.
//! - window: the last `window` tokens
//!
//! Tokens are taken one after another; the heads of a group share every key that is read. When the context has
//! wrapped, blocks that have lost a token are out of view, and the first whole one stands for the first.

mod launch;

use std::ops::Range;

use half::f16;

use super::softmax::{Element, Running, TILE};
use crate::cpu::{Buffers, Frame, Shared, SharedArena, simd};
use crate::program::View;
use crate::state::{SlotDtype, StatePlan, Touched};

/// Attention over block means, chosen blocks and a window.
pub struct AttendBlocks {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; query head h reads head `h / (heads / kv_heads)`.
    pub kv_heads: usize,
    /// Queries `[heads, head_dim]`.
    pub q: View,
    /// Keys `[kv_heads, head_dim]`.
    pub k: View,
    /// Values `[kv_heads, head_dim]`.
    pub v: View,
    /// Factors of means, chosen and window, `[heads, 3]`.
    pub gates: View,
    /// Multiplies the scores.
    pub scale: f32,
    /// Tokens of a block.
    pub block: usize,
    /// Blocks that a query chooses.
    pub chosen: usize,
    /// Tokens of the window; zero: no window.
    pub window: usize,
    /// The slot of the cached keys `[kv_heads, rows, head_dim]`.
    pub keys: usize,
    /// The slot of the cached values, likewise.
    pub values: usize,
    /// The slot of the blocks' mean keys `[kv_heads, blocks, head_dim]`.
    pub mean_keys: usize,
    /// The slot of the blocks' mean values, likewise.
    pub mean_values: usize,
    /// Outputs `[heads, head_dim]`.
    pub out: View,
}

const BRANCHES: usize = 3;

impl AttendBlocks {
    fn head_dim(&self) -> usize {
        self.k.width / self.kv_heads
    }

    fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    pub(crate) fn scratch(&self) -> usize {
        let dim = self.head_dim();
        BRANCHES * self.group() * (dim + 2) + 2 * TILE * dim + TILE + 2 * self.chosen
    }

    pub(crate) fn touched(&self, plan: &StatePlan, position: u64) -> Vec<Touched> {
        let block = self.block as u64;
        let oldest = (position + 1).saturating_sub(plan.slots[self.keys].shape[1] as u64);
        let current = position / block;
        let first = oldest.div_ceil(block).min(current);
        // The window and the last two blocks lie together, the other chosen blocks may lie anywhere.
        let window = (position + 1).saturating_sub(self.window as u64);
        let recent = window.min(current.saturating_sub(1) * block).max(oldest);
        let others = (self.chosen as u64)
            .min(current - first + 1)
            .saturating_sub(2);
        let tokens = (position - recent + others * block).min(position - oldest);
        let completes = (position + 1).is_multiple_of(block);
        let rows = |slot, read: u64, written| Touched::rows(plan, slot, read as usize, written);
        let mean = |slot| rows(slot, current - first, usize::from(completes));
        vec![
            rows(self.keys, tokens, 1),
            rows(self.values, tokens, 1),
            mean(self.mean_keys),
            mean(self.mean_values),
        ]
    }

    pub(crate) fn run(&self, frame: &mut Frame) {
        match frame.arena.plan().slots[self.keys].dtype {
            SlotDtype::F16 => self.run_as::<f16>(frame),
            _ => self.run_as::<f32>(frame),
        }
    }

    fn run_as<E: Element>(&self, frame: &mut Frame) {
        let mut out = frame.buffers.take(self.out.buffer);
        {
            let out = Shared::new(&mut out);
            let state = frame.arena.shared();
            let task = Task::<E> {
                attend: self,
                buffers: frame.buffers,
                position: frame.position,
                rows: state.rows(self.keys),
                blocks: state.rows(self.mean_keys),
                out: &out,
                state: &state,
                element: std::marker::PhantomData,
            };
            let tokens = frame.tokens.len();
            if frame.position + tokens as u64 <= task.rows as u64 {
                // Nothing is overwritten: all tokens can be cached before the first query.
                frame.pool.each(self.kv_heads, |worker, head| {
                    let mut scratch = frame.scratch[worker].lock().expect("scratch");
                    simd::vectorize(
                        #[inline(always)]
                        || (0..tokens).for_each(|t| task.cache(head, t, &mut scratch)),
                    );
                });
                frame.pool.each(self.kv_heads * tokens, |worker, index| {
                    let mut scratch = frame.scratch[worker].lock().expect("scratch");
                    let (t, head) = (index / self.kv_heads, index % self.kv_heads);
                    simd::vectorize(
                        #[inline(always)]
                        || task.query(head, t, &mut scratch),
                    );
                });
            } else {
                frame.pool.each(self.kv_heads, |worker, head| {
                    let mut scratch = frame.scratch[worker].lock().expect("scratch");
                    simd::vectorize(
                        #[inline(always)]
                        || {
                            for t in 0..tokens {
                                task.cache(head, t, &mut scratch);
                                task.query(head, t, &mut scratch);
                            }
                        },
                    );
                });
            }
        }
        frame.buffers.put(self.out.buffer, out);
    }
}

/// A chunk. Only its [`Task::cache`] writes to the state.
struct Task<'a, E> {
    attend: &'a AttendBlocks,
    buffers: &'a Buffers,
    position: u64,
    rows: usize,
    blocks: usize,
    out: &'a Shared<'a, f32>,
    state: &'a SharedArena<'a>,
    element: std::marker::PhantomData<E>,
}

/// What a query sees.
struct Sight {
    /// The oldest position.
    oldest: u64,
    /// The position after the last.
    end: u64,
    /// The first block of which no token has been dropped.
    first: u64,
    /// The query's own block.
    current: u64,
    /// The block after the last complete one.
    complete: u64,
}

/// Room for the tiles of keys and values, and for the scores of one query head.
struct Tile<'a> {
    keys: &'a mut [f32],
    values: &'a mut [f32],
    scores: &'a mut [f32],
}

impl<E: Element> Task<'_, E> {
    #[inline(always)]
    fn sight(&self, t: usize) -> Sight {
        let end = self.position + t as u64 + 1;
        let block = self.attend.block as u64;
        let oldest = end.saturating_sub(self.rows as u64);
        let current = (end - 1) / block;
        Sight {
            oldest,
            end,
            first: oldest.div_ceil(block).min(current),
            current,
            complete: end / block,
        }
    }

    /// Columns of one head in the projections of token `t`.
    #[inline(always)]
    fn projection(&self, view: &View, head: usize, t: usize) -> &[f32] {
        let dim = self.attend.head_dim();
        &self.buffers.get(view.buffer)[t * view.stride + view.start + head * dim..][..dim]
    }

    /// Where rows `rows` of one head lie in a slot.
    #[inline(always)]
    fn span(&self, slot: usize, head: usize, rows: Range<usize>) -> Range<usize> {
        let dim = self.attend.head_dim();
        let first = head * self.state.rows(slot);
        (first + rows.start) * dim..(first + rows.end) * dim
    }

    /// Widens rows of one head in a slot.
    #[inline(always)]
    fn widen(&self, slot: usize, head: usize, rows: Range<usize>, to: &mut [f32]) {
        let span = self.span(slot, head, rows);
        // SAFETY: a head's rows are written by its own task in `cache`, or before the queries begin.
        E::widen(
            unsafe { self.state.read(slot, span.clone()) },
            &mut to[..span.len()],
        );
    }

    /// Caches the key and value of token `t`, and the means of the block that it completes.
    #[inline(always)]
    fn cache(&self, head: usize, t: usize, scratch: &mut [f32]) {
        let attend = self.attend;
        let dim = attend.head_dim();
        let sight = self.sight(t);
        let row = |position: u64| (position % self.rows as u64) as usize;
        let pairs = [
            (&attend.k, attend.keys, attend.mean_keys),
            (&attend.v, attend.values, attend.mean_values),
        ];
        for (view, slot, means) in pairs {
            let place = row(sight.end - 1);
            let place = self.span(slot, head, place..place + 1);
            // SAFETY: each task caches its own head's rows, and no query runs beside it that uses them.
            let place = unsafe { self.state.slot(slot, place) };
            E::narrow(self.projection(view, head, t), place);
            let block = attend.block as u64;
            if !sight.end.is_multiple_of(block) || sight.end - block < sight.oldest {
                continue;
            }
            let (sums, cached) = scratch[..2 * dim].split_at_mut(dim);
            sums.fill(0.0);
            for position in sight.end - block..sight.end {
                self.widen(slot, head, row(position)..row(position) + 1, cached);
                simd::add(cached, sums);
            }
            simd::scale(1.0 / block as f32, sums);
            let mean = (sight.current % self.blocks as u64) as usize;
            let mean = self.span(means, head, mean..mean + 1);
            // SAFETY: as above.
            E::narrow(sums, unsafe { self.state.slot(means, mean) });
        }
    }

    /// The three softmaxes of token `t` for the query heads of one key and value head.
    #[inline(always)]
    fn query(&self, head: usize, t: usize, scratch: &mut [f32]) {
        let attend = self.attend;
        let (dim, group) = (attend.head_dim(), attend.group());
        let sight = self.sight(t);
        let branch = group * (dim + 2);
        let (running, rest) = scratch.split_at_mut(BRANCHES * branch);
        let (keys, rest) = rest.split_at_mut(TILE * dim);
        let (values, rest) = rest.split_at_mut(TILE * dim);
        let (scores, rest) = rest.split_at_mut(TILE);
        let (importance, numbers) = rest[..2 * attend.chosen].split_at_mut(attend.chosen);
        let mut tile = Tile {
            keys,
            values,
            scores,
        };
        running.chunks_exact_mut(dim + 2).for_each(Running::clear);
        let (means, rest) = running.split_at_mut(branch);
        let (chosen, window) = rest.split_at_mut(branch);

        let slots = [attend.mean_keys, attend.mean_values];
        let complete = sight.first..sight.complete.max(sight.first);
        self.attend(head, t, slots, complete, means, &mut tile);

        let mut best = Best {
            importance,
            numbers: bytemuck::cast_slice_mut(numbers),
            count: 0,
        };
        self.choose(head, t, &sight, means, &mut tile, &mut best);
        let slots = [attend.keys, attend.values];
        let blocks = &mut best.numbers[..best.count];
        blocks.sort_unstable();
        for &mut number in blocks {
            let start = (sight.first + u64::from(number)) * attend.block as u64;
            let end = (start + attend.block as u64).min(sight.end);
            let tokens = start.max(sight.oldest)..end;
            self.attend(head, t, slots, tokens, chosen, &mut tile);
        }

        let start = sight.end.saturating_sub(attend.window as u64);
        let tokens = start.max(sight.oldest)..sight.end;
        self.attend(head, t, slots, tokens, window, &mut tile);

        let gates = &attend.gates;
        let gates = &self.buffers.get(gates.buffer)[t * gates.stride + gates.start..];
        for g in 0..group {
            let query_head = head * group + g;
            let start = t * attend.out.stride + attend.out.start + query_head * dim;
            // SAFETY: each task has its own heads' columns of its own token.
            let out = unsafe { self.out.part(start..start + dim) };
            out.fill(0.0);
            for (branch, running) in [&*means, chosen, window].into_iter().enumerate() {
                let entry = &running[g * (dim + 2)..][..dim + 2];
                // No key has passed: not so for a NaN, which must show.
                if entry[1] != 0.0 {
                    let gate = gates[query_head * BRANCHES + branch];
                    simd::axpy(gate / entry[1], &entry[2..], out);
                }
            }
        }
    }

    /// Adds entries `range` of two slots, keys and values, to the running softmaxes of the group's query heads.
    #[inline(always)]
    fn attend(
        &self,
        head: usize,
        t: usize,
        [keys, values]: [usize; 2],
        range: Range<u64>,
        running: &mut [f32],
        tile: &mut Tile,
    ) {
        let attend = self.attend;
        let (dim, group) = (attend.head_dim(), attend.group());
        let mut first = range.start;
        while first < range.end {
            let rows = tile_rows(first..range.end, self.state.rows(keys));
            let n = rows.len();
            self.widen(keys, head, rows.clone(), tile.keys);
            self.widen(values, head, rows, tile.values);
            for g in 0..group {
                let query = self.projection(&attend.q, head * group + g, t);
                Running::new(&mut running[g * (dim + 2)..][..dim + 2]).add(
                    query,
                    attend.scale,
                    n,
                    tile.keys,
                    tile.values,
                    tile.scores,
                );
            }
            first += n as u64;
        }
    }

    /// Offers every block, numbered from the first in view, with its importance.
    #[inline(always)]
    fn choose(
        &self,
        head: usize,
        t: usize,
        sight: &Sight,
        means: &[f32],
        tile: &mut Tile,
        best: &mut Best,
    ) {
        let attend = self.attend;
        let (dim, group) = (attend.head_dim(), attend.group());
        let fixed = |block: u64| {
            block == sight.first || block + 1 == sight.current || block == sight.current
        };
        let mut first = sight.first;
        while first <= sight.current {
            let rows = tile_rows(first..sight.current + 1, self.blocks);
            let n = rows.len();
            self.widen(attend.mean_keys, head, rows, tile.keys);
            tile.scores[..n].fill(0.0);
            for g in 0..group {
                let query = self.projection(&attend.q, head * group + g, t);
                let [largest, sum] = means[g * (dim + 2)..].first_chunk().expect("an entry");
                for (i, share) in tile.scores[..n].iter_mut().enumerate() {
                    if !fixed(first + i as u64) {
                        let score = attend.scale * simd::dot(query, &tile.keys[i * dim..][..dim]);
                        *share += simd::exp(score - largest) / sum;
                    }
                }
            }
            for (i, &share) in tile.scores[..n].iter().enumerate() {
                let block = first + i as u64;
                let importance = if fixed(block) { group as f32 } else { share };
                best.offer((block - sight.first) as u32, importance);
            }
            first += n as u64;
        }
    }
}

/// Rows of the first entries of `range`, entry i in row `i % rows`: up to the end of the segment, a tile at most.
#[inline(always)]
fn tile_rows(range: Range<u64>, rows: usize) -> Range<usize> {
    let row = (range.start % rows as u64) as usize;
    let n = (range.end - range.start).min(TILE as u64) as usize;
    row..(row + n).min(rows)
}

/// The most important blocks so far, most important first.
struct Best<'a> {
    importance: &'a mut [f32],
    numbers: &'a mut [u32],
    count: usize,
}

impl Best<'_> {
    /// Takes a block in, if fewer than all places are taken or it is more important than the last. Blocks are
    /// offered in order, so that the lower one keeps its place in a tie.
    #[inline(always)]
    fn offer(&mut self, number: u32, importance: f32) {
        let mut place = self.count;
        while place > 0 && self.importance[place - 1] < importance {
            place -= 1;
        }
        if place == self.numbers.len() {
            return;
        }
        self.count = (self.count + 1).min(self.numbers.len());
        self.importance[place..self.count].rotate_right(1);
        self.numbers[place..self.count].rotate_right(1);
        self.importance[place] = importance;
        self.numbers[place] = number;
    }
}

#[cfg(test)]
mod tests;
