//! The queries of a chunk, in steps.

use std::ops::Range;

use super::best::Best;
use super::{AttendBlocks, BRANCHES};
use crate::cpu::{Buffers, Shared, SharedArena, simd};
use crate::operands::View;
use crate::ops::softmax::{Element, Running, TILE};

/// Floats of one query head's result from the means: the largest score, and the sum of all scores relative to it.
pub(super) const TOTALS: usize = 2;

/// The three steps of a query: the choice needs the softmax over means of all heads of its group.
#[derive(Clone, Copy)]
pub(super) enum Phase {
    /// Softmax over means, divided by query heads.
    Means,
    /// Importance of blocks, divided by blocks.
    Choice,
    /// Softmax over the chosen blocks and over the window, divided by query heads.
    Tokens,
}

impl Phase {
    pub const ALL: [Phase; 3] = [Phase::Means, Phase::Choice, Phase::Tokens];
}

/// The work of [`Task::run`] for each token.
pub(super) enum Work<'a> {
    /// Caches the token's key and value.
    Cache,
    /// Runs all steps of the token's query.
    Query,
    /// Caches, then runs all steps of the query.
    CacheAndQuery,
    /// Runs a part of one step of the token's query.
    Phase(Phase, usize, &'a Notes<'a>),
}

/// The work on a chunk. Only [`Task::cache`] writes to the state.
pub(super) struct Task<'a, E> {
    pub attend: &'a AttendBlocks,
    pub buffers: &'a Buffers,
    pub position: u64,
    pub rows: usize,
    pub blocks: usize,
    pub out: &'a Shared<'a, f32>,
    pub state: &'a SharedArena<'a>,
    pub element: std::marker::PhantomData<E>,
}

/// The visible range of a query.
struct Sight {
    /// The oldest visible position.
    oldest: u64,
    /// The position after the last visible one.
    end: u64,
    /// The first block that has not lost a token.
    first: u64,
    /// The query's block.
    current: u64,
    /// The block after the last complete one.
    complete: u64,
}

/// Data that the steps of a query pass to one another, for each key and value head.
pub(super) struct Notes<'a> {
    values: Shared<'a, f32>,
    parts: usize,
    /// Values per key and value head.
    of_head: usize,
    /// Values of the totals of all query heads of a key and value head, which come first.
    totals: usize,
    chosen: usize,
}

impl<'a> Notes<'a> {
    pub fn new(attend: &AttendBlocks, parts: usize, values: &'a mut [f32]) -> Self {
        Notes {
            values: Shared::new(values),
            parts,
            of_head: attend.notes(parts),
            totals: TOTALS * attend.group(),
            chosen: attend.chosen,
        }
    }

    /// The range of the totals of query heads `members` of a key head.
    fn totals(&self, head: usize, members: Range<usize>) -> Range<usize> {
        let first = head * self.of_head;
        first + TOTALS * members.start..first + TOTALS * members.end
    }

    /// The range of the best blocks of a part.
    fn best(&self, head: usize, part: usize) -> Range<usize> {
        let floats = Best::floats(self.chosen);
        let first = head * self.of_head + self.totals + part * floats;
        first..first + floats
    }
}

/// Scratch for the tiles of keys and values, and for the scores of one query head.
struct Tile<'a> {
    keys: &'a mut [f32],
    values: &'a mut [f32],
    scores: &'a mut [f32],
}

impl Tile<'_> {
    /// Takes a tile from the beginning of `scratch`; returns it and the rest.
    #[inline(always)]
    fn split(scratch: &mut [f32], dim: usize) -> (Tile<'_>, &mut [f32]) {
        let (keys, rest) = scratch.split_at_mut(TILE * dim);
        let (values, rest) = rest.split_at_mut(TILE * dim);
        let (scores, rest) = rest.split_at_mut(TILE);
        let tile = Tile {
            keys,
            values,
            scores,
        };
        (tile, rest)
    }
}

impl<E: Element> Task<'_, E> {
    /// Runs some work for a key and value head and some tokens. One function with one copy of each step, because it is large and
    /// compiled for each vector unit.
    #[inline(never)]
    pub fn run(&self, work: Work, head: usize, tokens: Range<usize>, scratch: &mut [f32]) {
        E::vectorize(
            #[inline(always)]
            || {
                let (scratch, own) = scratch.split_at_mut(scratch.len() - self.attend.notes(1));
                // These notes are for a single head.
                let own = Notes {
                    of_head: 0,
                    ..Notes::new(self.attend, 1, own)
                };
                let caches = matches!(work, Work::Cache | Work::CacheAndQuery);
                let (steps, part, notes) = match work {
                    Work::Cache => (&[][..], 0, &own),
                    Work::Query | Work::CacheAndQuery => (&Phase::ALL[..], 0, &own),
                    Work::Phase(step, part, notes) => (&[step][..], part, notes),
                };
                for t in tokens {
                    if caches {
                        self.cache(head, t, scratch);
                    }
                    for &step in steps {
                        match step {
                            Phase::Means => self.means(head, t, part, notes, scratch),
                            Phase::Choice => self.choose(head, t, part, notes, scratch),
                            Phase::Tokens => self.tokens(head, t, part, notes, scratch),
                        }
                    }
                }
            },
        );
    }

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

    /// The span of rows `rows` of one head in a state tensor.
    #[inline(always)]
    fn span(&self, tensor: usize, head: usize, rows: Range<usize>) -> Range<usize> {
        let dim = self.attend.head_dim();
        let first = head * self.state.rows(tensor);
        (first + rows.start) * dim..(first + rows.end) * dim
    }

    /// Widens rows of one head in a state tensor.
    #[inline(always)]
    fn widen(&self, tensor: usize, head: usize, rows: Range<usize>, to: &mut [f32]) {
        let span = self.span(tensor, head, rows);
        // SAFETY: a head's rows (rules: widths, bounds) are written only by the head's task in `cache`, or before the queries begin.
        E::widen(
            unsafe { self.state.read(tensor, span.clone()) },
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
        for (view, tensor, means) in pairs {
            let place = row(sight.end - 1);
            let place = self.span(tensor, head, place..place + 1);
            // SAFETY: each task caches its own head's rows (rules: widths, bounds), and no query that uses them runs at the same time.
            let place = unsafe { self.state.tensor(tensor, place) };
            E::narrow(self.projection(view, head, t), place);
            let block = attend.block as u64;
            if !sight.end.is_multiple_of(block) || sight.end - block < sight.oldest {
                continue;
            }
            let (sums, cached) = scratch[..2 * dim].split_at_mut(dim);
            sums.fill(0.0);
            for position in sight.end - block..sight.end {
                self.widen(tensor, head, row(position)..row(position) + 1, cached);
                simd::add(cached, sums);
            }
            simd::scale(1.0 / block as f32, sums);
            let mean = (sight.current % self.blocks as u64) as usize;
            let mean = self.span(means, head, mean..mean + 1);
            // SAFETY: only the head's task writes the head's means (rules: widths, bounds), and no query that uses them runs at
            // the same time.
            E::narrow(sums, unsafe { self.state.tensor(means, mean) });
        }
    }

    /// The query heads of a key and value head that belong to a part.
    #[inline(always)]
    fn members(&self, part: usize, notes: &Notes) -> Range<usize> {
        let group = self.attend.group();
        part * group / notes.parts..(part + 1) * group / notes.parts
    }

    /// Computes the softmax over means for a part's heads. Sets their outputs and notes their totals.
    #[inline(always)]
    fn means(&self, head: usize, t: usize, part: usize, notes: &Notes, scratch: &mut [f32]) {
        let attend = self.attend;
        let entry = attend.head_dim() + 2;
        let members = self.members(part, notes);
        let (mut tile, running) = Tile::split(scratch, attend.head_dim());
        let running = &mut running[..members.len() * entry];
        running.chunks_exact_mut(entry).for_each(Running::clear);
        let tensors = [attend.mean_keys, attend.mean_values];
        let sight = self.sight(t);
        let complete = sight.first..sight.complete.max(sight.first);
        let queries = Queries {
            head,
            t,
            members: members.clone(),
        };
        self.attend(&queries, tensors, complete, running, &mut tile);

        // SAFETY: each part has its own heads' totals.
        let totals = unsafe { notes.values.part(notes.totals(head, members.clone())) };
        for ((g, running), totals) in members
            .zip(running.chunks_exact(entry))
            .zip(totals.chunks_exact_mut(TOTALS))
        {
            totals.copy_from_slice(&running[..TOTALS]);
            self.out(head, g, t).fill(0.0);
            self.add_branch(head, g, t, 0, running);
        }
    }

    /// Computes the softmaxes over the chosen blocks and over the window for a part's heads.
    #[inline(always)]
    fn tokens(&self, head: usize, t: usize, part: usize, notes: &Notes, scratch: &mut [f32]) {
        let attend = self.attend;
        let entry = attend.head_dim() + 2;
        let sight = self.sight(t);
        let members = self.members(part, notes);
        let (mut tile, rest) = Tile::split(scratch, attend.head_dim());
        let (running, rest) = rest.split_at_mut((BRANCHES - 1) * members.len() * entry);
        running.chunks_exact_mut(entry).for_each(Running::clear);
        let (chosen, window) = running.split_at_mut(members.len() * entry);

        let mut best = Best::none(&mut rest[..Best::floats(attend.chosen)]);
        for part in 0..notes.parts {
            // SAFETY: every part has written its best blocks, and no task writes them now.
            best.merge(unsafe { notes.values.read(notes.best(head, part)) });
        }
        let tensors = [attend.keys, attend.values];
        let queries = Queries {
            head,
            t,
            members: members.clone(),
        };
        for &mut number in best.in_order() {
            let start = (sight.first + u64::from(number)) * attend.block as u64;
            let end = (start + attend.block as u64).min(sight.end);
            let seen = start.max(sight.oldest)..end;
            self.attend(&queries, tensors, seen, chosen, &mut tile);
        }
        let start = sight.end.saturating_sub(attend.window as u64);
        let seen = start.max(sight.oldest)..sight.end;
        self.attend(&queries, tensors, seen, window, &mut tile);

        for (i, g) in members.enumerate() {
            self.add_branch(head, g, t, 1, &chosen[i * entry..][..entry]);
            self.add_branch(head, g, t, 2, &window[i * entry..][..entry]);
        }
    }

    /// The outputs of query head `g` of a key and value head.
    #[allow(clippy::mut_from_ref)]
    #[inline(always)]
    fn out(&self, head: usize, g: usize, t: usize) -> &mut [f32] {
        let (out, dim) = (&self.attend.out, self.attend.head_dim());
        let start = t * out.stride + out.start + (head * self.attend.group() + g) * dim;
        // SAFETY: each task writes its heads' columns of one token (rules: widths, disjoint
        // writes).
        unsafe { self.out.part(start..start + dim) }
    }

    /// Adds the result of a running softmax, multiplied by its gate, to the outputs of query head
    /// `g`.
    #[inline(always)]
    fn add_branch(&self, head: usize, g: usize, t: usize, branch: usize, running: &[f32]) {
        let gates = &self.attend.gates;
        let gate = (head * self.attend.group() + g) * BRANCHES + branch;
        let gate = self.buffers.get(gates.buffer)[t * gates.stride + gates.start + gate];
        // A sum of zero means that no key was added. A NaN passes the test and shows in the output.
        if running[1] != 0.0 {
            simd::axpy(gate / running[1], &running[2..], self.out(head, g, t));
        }
    }

    /// Adds entries `range` of two state tensors, keys and values, to the running softmaxes of these queries.
    #[inline(always)]
    fn attend(
        &self,
        queries: &Queries,
        [keys, values]: [usize; 2],
        range: Range<u64>,
        running: &mut [f32],
        tile: &mut Tile,
    ) {
        let attend = self.attend;
        let (dim, group) = (attend.head_dim(), attend.group());
        let Queries { head, t, .. } = *queries;
        let mut first = range.start;
        while first < range.end {
            let rows = tile_rows(first..range.end, self.state.rows(keys));
            let n = rows.len();
            self.widen(keys, head, rows.clone(), tile.keys);
            self.widen(values, head, rows, tile.values);
            for (g, running) in queries
                .members
                .clone()
                .zip(running.chunks_exact_mut(dim + 2))
            {
                let query = self.projection(&attend.q, head * group + g, t);
                Running::new(running).add(
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

    /// Notes the best blocks of a part, numbered from the first block in view.
    #[inline(always)]
    fn choose(&self, head: usize, t: usize, part: usize, notes: &Notes, scratch: &mut [f32]) {
        let attend = self.attend;
        let (dim, group) = (attend.head_dim(), attend.group());
        let sight = self.sight(t);
        let fixed = |block: u64| {
            block == sight.first || block + 1 == sight.current || block == sight.current
        };
        // SAFETY: the first step has written all totals, and no task writes them now.
        let totals = unsafe { notes.values.read(notes.totals(head, 0..group)) };
        // SAFETY: each part has a separate range.
        let mut best = Best::none(unsafe { notes.values.part(notes.best(head, part)) });
        let (tile, _) = Tile::split(scratch, dim);
        let (blocks, parts) = (sight.current + 1 - sight.first, notes.parts as u64);
        let mut first = sight.first + blocks * part as u64 / parts;
        let end = sight.first + blocks * (part as u64 + 1) / parts;
        while first < end {
            let rows = tile_rows(first..end, self.blocks);
            let n = rows.len();
            self.widen(attend.mean_keys, head, rows, tile.keys);
            tile.scores[..n].fill(0.0);
            for (g, totals) in totals.chunks_exact(TOTALS).enumerate() {
                let query = self.projection(&attend.q, head * group + g, t);
                for (i, share) in tile.scores[..n].iter_mut().enumerate() {
                    if !fixed(first + i as u64) {
                        let score = attend.scale * simd::dot(query, &tile.keys[i * dim..][..dim]);
                        *share += simd::exp(score - totals[0]) / totals[1];
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

/// Query heads of one key and value head, for one token.
struct Queries {
    /// The key and value head.
    head: usize,
    /// The token, counted in the chunk.
    t: usize,
    /// The query heads, counted in the group.
    members: Range<usize>,
}

/// Rows of the first entries of `range`, where entry i is in row `i % rows`: at most a tile, up to the end of the segment.
#[inline(always)]
fn tile_rows(range: Range<u64>, rows: usize) -> Range<usize> {
    let row = (range.start % rows as u64) as usize;
    let n = (range.end - range.start).min(TILE as u64) as usize;
    row..(row + n).min(rows)
}
