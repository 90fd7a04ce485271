//! Dependency levels of kernel calls: a call's level is above the levels of the calls that it depends on. Calls of a level run concurrently
//! in the decode kernel, on separate blocks as far as there are enough. A call with slack goes to a level where it delays no other call.

use std::ops::Range;

use crate::cuda::decode::mailbox::MailboxRole;
use crate::cuda::decode::slots::SlotCalls;
use crate::cuda::schedule::Gemv;
use crate::cuda::schedule::{Accesses, Queued};

/// An op of the decode kernel: a call in its level.
pub(crate) struct KernelOp<'a> {
    pub queued: &'a Queued,
    /// The calls whose parameters the op has: this call, and in a recurrence those of other slots.
    pub parameters: Vec<&'a Queued>,
    /// The slot whose token it reads; 0 if it reads those of all slots.
    pub slot: usize,
    /// The level of the call.
    level: usize,
    /// Whether other ops have the same level.
    pub is_concurrent: bool,
    /// The blocks that run it, modulo the number of blocks.
    pub blocks: Range<usize>,
}

impl KernelOp<'_> {
    /// Whether block `block` of `blocks` runs a part of the call.
    fn runs_on(&self, block: usize, blocks: usize) -> bool {
        self.blocks.contains(&block) || self.blocks.contains(&(block + blocks))
    }
}

/// Sorts the calls by level. A call depends on every earlier call whose accesses conflict with its own; a call with unknown accesses
/// conflicts with all. The calls of a level share `blocks` blocks.
pub(crate) fn by_levels<'a>(calls: Vec<SlotCalls<'a>>, blocks: usize) -> Vec<KernelOp<'a>> {
    let known: Vec<_> = calls
        .iter()
        .map(|calls| Known {
            accesses: calls.accesses(),
            blocks: calls.queued().blocks().min(blocks) as i64,
            has_mailboxes: !matches!(MailboxRole::of(calls.queued()), MailboxRole::Barrier),
        })
        .collect();
    let levels = levels(&known, blocks);
    let mut order: Vec<usize> = (0..calls.len()).collect();
    // Ops that stream weights run last, since they wait for the previous level anyway.
    let places: Vec<usize> = (known.iter().zip(&levels))
        .map(|(call, level)| 2 * level + usize::from(call.has_mailboxes))
        .collect();
    order.sort_by_key(|&call| places[call]);
    #[cfg(feature = "emulator")]
    if REVERSED.get() {
        order.reverse();
        order.sort_by_key(|&call| levels[call]);
    }
    let mut calls: Vec<_> = calls.into_iter().map(Some).collect();
    let mut ops = Vec::new();
    for level in order.chunk_by(|&a, &b| levels[a] == levels[b]) {
        let index = levels[level[0]];
        let level: Vec<SlotCalls> = level
            .iter()
            .filter_map(|&call| calls[call].take())
            .collect();
        let first: Vec<&Queued> = level.iter().map(SlotCalls::queued).collect();
        let own = blocks_of(&first, blocks);
        for (calls, blocks) in level.into_iter().zip(own) {
            let ops_of = calls.ops().into_iter();
            ops.extend(ops_of.map(|(slot, parameters)| KernelOp {
                queued: parameters[0],
                parameters,
                slot,
                level: index,
                is_concurrent: first.len() > 1,
                blocks: blocks.clone(),
            }));
        }
    }
    ops
}

/// Returns `next_ops` of cta.cu for each of `blocks` blocks: the first op, then the successor of every op. A block runs the ops that it has
/// a part of; in a level where it has no part it visits the last op. `arrives`: whether a grid barrier follows each op.
pub(crate) fn next_ops(ops: &[KernelOp], arrives: &[bool], blocks: usize) -> Vec<u32> {
    const ARRIVES: u32 = 1 << 31;
    let of_block = |block: usize| {
        let mut next_ops = vec![ops.len() as u32; ops.len() + 1];
        let (mut place, mut first) = (0, 0);
        for level in ops.chunk_by(|a, b| a.level == b.level) {
            let numbers = first..first + level.len();
            let mut own: Vec<usize> = (numbers.clone().zip(level))
                .filter(|(_, op)| op.runs_on(block, blocks))
                .map(|(number, _)| number)
                .collect();
            if own.is_empty() {
                own.push(numbers.end - 1);
            }
            for (index, &number) in own.iter().enumerate() {
                let is_last = index + 1 == own.len();
                let arrives = if is_last && arrives[number] {
                    ARRIVES
                } else {
                    0
                };
                next_ops[place] = number as u32 | arrives;
                place = number + 1;
            }
            first = numbers.end;
        }
        next_ops
    };
    (0..blocks).flat_map(of_block).collect()
}

#[cfg(feature = "emulator")]
thread_local! {
    /// Whether this thread orders the calls of each level in reverse, for tests.
    pub static REVERSED: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

struct Known {
    accesses: Option<Accesses>,
    /// Blocks that the call occupies.
    blocks: i64,
    /// Whether the call can use mailboxes, for which it must be alone in its level.
    has_mailboxes: bool,
}

impl Known {
    /// Whether the order of the two calls matters.
    fn conflicts_with(&self, other: &Self) -> bool {
        match (&self.accesses, &other.accesses) {
            (Some(own), Some(other)) => own.conflicts_with(other),
            _ => true,
        }
    }
}

/// Returns the lowest possible level of the call that follows the calls with these `levels`.
fn lowest(calls: &[Known], levels: &[usize]) -> usize {
    let mut lowest = 0;
    for (other, &level) in calls.iter().zip(levels) {
        if level >= lowest && other.conflicts_with(&calls[levels.len()]) {
            lowest = level + 1;
        }
    }
    lowest
}

/// Assigns levels to calls that share `blocks` blocks, by list scheduling. A call without slack, or with mailboxes, gets its lowest
/// possible level. The other calls follow in order: each takes the level that lacks the fewest blocks for it, and the first of equal
/// levels. A level that uses mailboxes lacks all blocks.
fn levels(calls: &[Known], blocks: usize) -> Vec<usize> {
    let mut levels = Vec::with_capacity(calls.len());
    while levels.len() < calls.len() {
        levels.push(lowest(calls, &levels));
    }
    let count = levels.iter().max().map_or(0, |last| last + 1);
    // The exclusive upper bound of each call's level.
    let mut ends = vec![count; calls.len()];
    // The free blocks of each level.
    let mut left = vec![blocks as i64; count];
    for index in (0..calls.len()).rev() {
        let call = &calls[index];
        let mut end = ends[index];
        if call.has_mailboxes {
            end = levels[index] + 1;
            left[levels[index]] = i64::MIN;
        }
        for (earlier, other) in ends.iter_mut().zip(&calls[..index]) {
            if *earlier >= end && other.conflicts_with(call) {
                *earlier = end - 1;
            }
        }
        if levels[index] + 1 == end {
            left[end - 1] = left[end - 1].saturating_sub(call.blocks);
        }
        ends[index] = end;
    }
    for index in 0..calls.len() {
        let (start, end, needed) = (levels[index], ends[index], calls[index].blocks);
        if start + 1 == end {
            continue;
        }
        let lowest = lowest(calls, &levels[..index]);
        let lacking = |&level: &usize| needed.saturating_sub(left[level]).max(0);
        let level = (lowest..end).min_by_key(lacking).unwrap_or(lowest);
        left[level] = left[level].saturating_sub(needed);
        levels[index] = level;
    }
    levels
}

/// Fixed cost of a row in addition to its bytes, in bytes.
const ROW_COST: usize = 128;

/// Returns the blocks of each call of a level: GEMVs share all blocks, each other call begins where the one before it ended.
fn blocks_of(level: &[&Queued], blocks: usize) -> Vec<Range<usize>> {
    let cost = |gemv: &Gemv| -> usize {
        let weights = gemv.weights.iter();
        weights
            .map(|weight| weight.rows * (weight.row_bytes() + ROW_COST))
            .sum()
    };
    let costs: Vec<_> = level.iter().map(|queued| queued.gemv().map(cost)).collect();
    let gemvs = costs.iter().flatten().count();
    let all: usize = costs.iter().flatten().sum();
    let (mut before, mut left, mut end, mut taken) = (0, gemvs, 0, 0);
    let one = |(cost, queued): (Option<usize>, &&Queued)| match cost {
        Some(_) if gemvs > blocks => 0..blocks,
        Some(cost) => {
            let first = end;
            before += cost;
            left -= 1;
            // At least one block each.
            end = (before * blocks / all.max(1)).clamp(first + 1, blocks - left);
            first..end
        }
        None => {
            let (first, count) = (taken, queued.blocks());
            taken = (first + count) % blocks;
            first..first + count.min(blocks)
        }
    };
    costs.into_iter().zip(level).map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::driver::Address;
    use crate::cuda::schedule::{Call, Grid, Node};

    /// Ranges are given as first and end address.
    fn call(reads: &[[Address; 2]], writes: &[[Address; 2]]) -> Known {
        let ranges = |ends: &[[Address; 2]]| ends.iter().map(|&[first, end]| first..end).collect();
        Known {
            accesses: Some(Accesses {
                reads: ranges(reads),
                writes: ranges(writes),
            }),
            blocks: 1,
            has_mailboxes: false,
        }
    }

    fn gemv(reads: [Address; 2], writes: [Address; 2]) -> Known {
        Known {
            has_mailboxes: true,
            ..call(&[reads], &[writes])
        }
    }

    const UNKNOWN: Known = Known {
        accesses: None,
        blocks: 1,
        has_mailboxes: false,
    };

    #[test]
    fn a_call_is_above_those_that_it_depends_on() {
        let calls = [
            call(&[], &[[0, 64]]),
            // Two readers of the first call's output. The second overwrites another input of the first.
            call(&[[0, 32], [200, 204]], &[[64, 96]]),
            call(&[[32, 64]], &[[200, 208]]),
            // Adds to the output of the first reader.
            call(&[], &[[64, 68]]),
            // Independent of all of these calls, then unknown accesses.
            call(&[[300, 304]], &[[304, 308]]),
            UNKNOWN,
            call(&[[400, 404]], &[]),
            call(&[[400, 404]], &[]),
        ];
        assert_eq!(levels(&calls, 8), [0, 1, 2, 2, 0, 3, 4, 4]);
    }

    #[test]
    fn a_call_with_slack_shares_a_level_without_mailboxes() {
        let calls = [
            gemv([0, 4], [10, 20]),
            // Reads nothing of this token; the last call reads its output.
            call(&[], &[[50, 60]]),
            call(&[[10, 20]], &[[20, 30]]),
            gemv([20, 30], [30, 40]),
            gemv([30, 40], [40, 45]),
            // All levels where this call could be have mailboxes.
            call(&[[30, 40]], &[[60, 70]]),
            gemv([40, 45], [45, 50]),
            call(&[[45, 70]], &[[70, 80]]),
        ];
        assert_eq!(levels(&calls, 8), [0, 1, 1, 2, 3, 3, 4, 5]);
    }

    #[test]
    fn a_chain_with_slack_goes_where_blocks_are_idle() {
        // A product, an op of three blocks that the next layer reads, and a chain of two and four blocks that nothing reads.
        let layer = |x: Address| {
            let call = |read: Address, written: Address, blocks| Known {
                blocks,
                ..call(&[[read, read + 1]], &[[written, written + 1]])
            };
            [
                gemv([x, x + 1], [x + 1, x + 2]),
                call(x + 1, x + 10, 3),
                call(x + 1, x + 2, 2),
                call(x + 2, x + 3, 4),
            ]
        };
        let calls: Vec<Known> = [0, 10, 20].into_iter().flat_map(layer).collect();
        let with = |blocks| levels(&calls, blocks);
        assert_eq!(with(9), [0, 1, 1, 3, 2, 3, 3, 5, 4, 5, 5, 6]);
        // The second layer's chain has to wait for the third layer.
        assert_eq!(with(8), [0, 1, 1, 3, 2, 3, 5, 6, 4, 5, 5, 6]);
    }

    fn queued(blocks: usize) -> Queued {
        let call = Call {
            source: &[],
            kernel: String::new(),
            grid: Grid::Blocks(blocks),
            threads: 32,
            shared: 0,
            parameters: Vec::new(),
        };
        Queued::new(call, Node::Waits)
    }

    #[test]
    fn blocks_run_their_ops_and_arrive_once_a_level() {
        const BLOCKS: usize = 8;
        let calls = [1, 3, 4, 2, 8].map(queued);
        let level: Vec<&Queued> = calls[1..4].iter().collect();
        let shares = blocks_of(&level, BLOCKS);
        assert_eq!(shares, [0..3, 3..7, 7..9]);
        let of_call = |(index, queued)| KernelOp {
            queued,
            parameters: vec![queued],
            slot: 0,
            level: [0, 1, 1, 1, 2][index],
            is_concurrent: false,
            blocks: match index {
                0 => 0..1,
                4 => 0..8,
                _ => shares[index - 1].clone(),
            },
        };
        let ops: Vec<KernelOp> = calls.iter().enumerate().map(of_call).collect();
        let next_ops = next_ops(&ops, &[true, true, true, true, false], BLOCKS);
        const ARRIVES: u32 = 1 << 31;
        let way = |block: usize| {
            let own = &next_ops[block * 6..][..6];
            let mut way = vec![own[0]];
            while way[way.len() - 1] != 5 {
                let at = (way[way.len() - 1] & !ARRIVES) as usize;
                way.push(own[at + 1]);
            }
            way
        };
        // The first block has parts of two of the three concurrent ops, the last block of one.
        assert_eq!(way(0), [ARRIVES, 1, 3 | ARRIVES, 4, 5]);
        assert_eq!(way(4), [ARRIVES, 2 | ARRIVES, 4, 5]);
        assert_eq!(way(7), [ARRIVES, 3 | ARRIVES, 4, 5]);
    }
}
