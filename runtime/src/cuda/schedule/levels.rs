//! Dependency levels of kernel calls: level = 1 + the highest level of the calls that it depends on. Calls of a level run concurrently in
//! the decode kernel, on blocks of their own as far as there are enough.

use std::ops::Range;

use crate::cuda::decode::gemv::Gemv;
use crate::cuda::decode::mailbox::MailboxRole;
use crate::cuda::driver::Address;
use crate::cuda::schedule::Queued;

/// Memory that a call reads, and memory that it writes, without what no other call of a step accesses.
#[derive(Clone, Debug, Default)]
pub(crate) struct Accesses {
    pub reads: Vec<Range<Address>>,
    pub writes: Vec<Range<Address>>,
}

impl Accesses {
    /// Whether the order of the two matters.
    fn conflicts_with(&self, other: &Self) -> bool {
        overlap(&self.writes, &other.writes)
            || overlap(&self.writes, &other.reads)
            || overlap(&self.reads, &other.writes)
    }
}

fn overlap(a: &[Range<Address>], b: &[Range<Address>]) -> bool {
    let meet = |a: &Range<Address>, b: &Range<Address>| a.start < b.end && b.start < a.end;
    a.iter().any(|a| b.iter().any(|b| meet(a, b)))
}

/// An op of the decode kernel: a call in its level.
pub(crate) struct KernelOp<'a> {
    pub queued: &'a Queued,
    /// Its level.
    level: usize,
    /// Whether other ops have the same level.
    pub is_concurrent: bool,
    /// The blocks that run it, modulo the number of blocks.
    pub blocks: Range<usize>,
}

impl KernelOp<'_> {
    /// Whether block `block` of `blocks` runs a part of it.
    fn runs_on(&self, block: usize, blocks: usize) -> bool {
        self.blocks.contains(&block) || self.blocks.contains(&(block + blocks))
    }
}

/// The calls in the order of their levels. A call depends on every earlier call whose accesses conflict with its own; a call with unknown
/// accesses conflicts with all. The calls of a level share `blocks` blocks.
pub(crate) fn by_levels<'a>(calls: &[&'a Queued], blocks: usize) -> Vec<KernelOp<'a>> {
    let known: Vec<_> = calls
        .iter()
        .map(|queued| Known {
            accesses: queued.accesses(),
            uses_mailbox: !matches!(queued.mailbox_role(), MailboxRole::Barrier),
        })
        .collect();
    let levels = levels(&known);
    let mut order: Vec<usize> = (0..calls.len()).collect();
    #[cfg(test)]
    if REVERSED.get() {
        order.reverse();
    }
    order.sort_by_key(|&call| levels[call]);
    let together = order.chunk_by(|&a, &b| levels[a] == levels[b]);
    let ops = together.flat_map(|level| {
        let index = levels[level[0]];
        let level: Vec<&Queued> = level.iter().map(|&call| calls[call]).collect();
        let (is_concurrent, own) = (level.len() > 1, blocks_of(&level, blocks));
        let ops = level.into_iter().zip(own);
        ops.map(move |(queued, blocks)| KernelOp {
            queued,
            level: index,
            is_concurrent,
            blocks,
        })
    });
    ops.collect()
}

/// For each of `blocks`, the first op, then the successor of every op: `next_ops` in cta.cu. A block runs the ops that it has a part of;
/// of a level without one it visits the last op. `arrives`: whether a grid barrier follows an op.
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

#[cfg(test)]
thread_local! {
    /// Whether this thread orders the calls of each level in reverse, for tests.
    pub(crate) static REVERSED: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

struct Known {
    accesses: Option<Accesses>,
    /// Whether it can use mailboxes: then it keeps a level for itself.
    uses_mailbox: bool,
}

fn levels(calls: &[Known]) -> Vec<usize> {
    let conflicts_with = |a: &Known, b: &Known| match (&a.accesses, &b.accesses) {
        (Some(a), Some(b)) => a.conflicts_with(b),
        _ => true,
    };
    let mut levels: Vec<usize> = Vec::with_capacity(calls.len());
    for call in calls {
        let before = calls.iter().zip(&levels);
        let below = before.filter(|(other, _)| conflicts_with(other, call));
        levels.push(below.map(|(_, level)| level + 1).max().unwrap_or(0));
    }
    // A call whose output is read later moves up, so that it does not delay the others of its level.
    for index in (0..calls.len()).rev() {
        let behind = calls.iter().zip(&levels).skip(index + 1);
        let above = behind.filter(|(other, _)| conflicts_with(&calls[index], other));
        let Some((next, &first)) = above.min_by_key(|(_, level)| **level) else {
            continue;
        };
        if calls[index].uses_mailbox || next.accesses.is_none() {
            continue;
        }
        let is_free = |level: &usize| {
            let mut there = calls
                .iter()
                .zip(&levels)
                .filter(|(_, other)| *other == level);
            there.all(|(other, _)| !other.uses_mailbox)
        };
        let later = (levels[index] + 1..first).rev().find(is_free);
        levels[index] = later.unwrap_or(levels[index]);
    }
    levels
}

/// The cost of a row besides its bytes, in bytes.
const ROW_COST: usize = 128;

/// The blocks of each call of a level: GEMVs share all blocks, other calls begin where the ones before ended.
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
            let [x, y, _] = queued.call.grid.blocks(1);
            let (first, count) = (taken, (x * y) as usize);
            taken = (first + count) % blocks;
            first..first + count.min(blocks)
        }
    };
    costs.into_iter().zip(level).map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::schedule::{Call, Form, Grid};

    /// Both as first and last address.
    fn call(reads: &[[Address; 2]], writes: &[[Address; 2]]) -> Known {
        let ranges = |ends: &[[Address; 2]]| ends.iter().map(|&[first, end]| first..end).collect();
        Known {
            accesses: Some(Accesses {
                reads: ranges(reads),
                writes: ranges(writes),
            }),
            uses_mailbox: false,
        }
    }

    fn gemv(reads: [Address; 2], writes: [Address; 2]) -> Known {
        Known {
            uses_mailbox: true,
            ..call(&[reads], &[writes])
        }
    }

    const UNKNOWN: Known = Known {
        accesses: None,
        uses_mailbox: false,
    };

    #[test]
    fn a_call_is_above_those_that_it_depends_on() {
        let calls = [
            call(&[], &[[0, 64]]),
            // Two readers of that. The second overwrites another input of the first.
            call(&[[0, 32], [200, 204]], &[[64, 96]]),
            call(&[[32, 64]], &[[200, 208]]),
            // It adds to the output of the first reader.
            call(&[], &[[64, 68]]),
            // Independent of all of them, then unknown accesses.
            call(&[[300, 304]], &[[304, 308]]),
            UNKNOWN,
            call(&[[400, 404]], &[]),
            call(&[[400, 404]], &[]),
        ];
        assert_eq!(levels(&calls), [0, 1, 2, 2, 0, 3, 4, 4]);
    }

    #[test]
    fn a_call_whose_output_is_read_later_moves_up() {
        let calls = [
            gemv([0, 4], [10, 20]),
            // It reads nothing of this token, and the last call reads its output.
            call(&[], &[[50, 60]]),
            call(&[[10, 20]], &[[20, 30]]),
            gemv([20, 30], [30, 40]),
            call(&[[30, 40], [50, 60]], &[[60, 70]]),
        ];
        assert_eq!(levels(&calls), [0, 1, 1, 2, 3]);
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
        Queued::new(call, Form::Waits)
    }

    #[test]
    fn blocks_run_their_ops_and_arrive_once_a_level() {
        const BLOCKS: usize = 8;
        let calls = [1, 3, 4, 2, 8].map(queued);
        let level: Vec<&Queued> = calls[1..4].iter().collect();
        let together = blocks_of(&level, BLOCKS);
        assert_eq!(together, [0..3, 3..7, 7..9]);
        let of_call = |(index, queued)| KernelOp {
            queued,
            level: [0, 1, 1, 1, 2][index],
            is_concurrent: false,
            blocks: match index {
                0 => 0..1,
                4 => 0..8,
                _ => together[index - 1].clone(),
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
