//! Which phases of a persistent program need nothing of each other: blocks go from one of them to the next without waiting, and each
//! has blocks of its own as long as there are enough.

use std::ops::Range;

use super::driver::Address;
use super::launches::Queued;
use super::passed::Link;
use super::ring_products::Product;

/// Memory that a call reads, and memory that it writes, but for what no other call of a step touches.
#[derive(Clone, Debug, Default)]
pub(super) struct Touched {
    pub reads: Vec<Range<Address>>,
    pub writes: Vec<Range<Address>>,
}

impl Touched {
    /// Whether it matters which of the two comes first.
    fn meets(&self, other: &Self) -> bool {
        overlap(&self.writes, &other.writes)
            || overlap(&self.writes, &other.reads)
            || overlap(&self.reads, &other.writes)
    }
}

fn overlap(a: &[Range<Address>], b: &[Range<Address>]) -> bool {
    let meet = |a: &Range<Address>, b: &Range<Address>| a.start < b.end && b.start < a.end;
    a.iter().any(|a| b.iter().any(|b| meet(a, b)))
}

/// A call in its level.
pub(super) struct Phase<'a> {
    pub queued: &'a Queued,
    /// Its level.
    level: usize,
    /// Whether others have the same level.
    pub has_company: bool,
    /// The blocks that it runs on, from the first one on. They may go past the last one, on to the first again.
    pub blocks: Range<usize>,
}

impl Phase<'_> {
    /// Whether a block of `blocks` has a part of it.
    fn runs_on(&self, block: usize, blocks: usize) -> bool {
        self.blocks.contains(&block) || self.blocks.contains(&(block + blocks))
    }
}

/// The calls in the order of their levels. A call is one level above those before it that it has to come behind; where it
/// is not known what a call touches, that is all of them, and it is below all others. All of a level run on `blocks` blocks.
pub(super) fn in_levels<'a>(calls: &[&'a Queued], blocks: usize) -> Vec<Phase<'a>> {
    let known: Vec<_> = calls
        .iter()
        .map(|queued| Known {
            touched: queued.touched(),
            may_pass: !matches!(queued.link(), Link::Barrier),
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
    let phases = together.flat_map(|level| {
        let index = levels[level[0]];
        let level: Vec<&Queued> = level.iter().map(|&call| calls[call]).collect();
        let (has_company, own) = (level.len() > 1, blocks_of(&level, blocks));
        let phases = level.into_iter().zip(own);
        phases.map(move |(queued, blocks)| Phase {
            queued,
            level: index,
            has_company,
            blocks,
        })
    });
    phases.collect()
}

/// For each of `blocks`, which phase comes first, then for each phase which comes next, as `followers` in phases.cu. A block goes through
/// those that it has a part of, and if it has none of a level, through the last one of that. `arrives` tells for each phase whether
/// others wait for it.
pub(super) fn followers(phases: &[Phase], arrives: &[bool], blocks: usize) -> Vec<u32> {
    const ARRIVES: u32 = 1 << 31;
    let of_block = |block: usize| {
        let mut followers = vec![phases.len() as u32; phases.len() + 1];
        let (mut place, mut first) = (0, 0);
        for level in phases.chunk_by(|a, b| a.level == b.level) {
            let numbers = first..first + level.len();
            let mut own: Vec<usize> = (numbers.clone().zip(level))
                .filter(|(_, phase)| phase.runs_on(block, blocks))
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
                followers[place] = number as u32 | arrives;
                place = number + 1;
            }
            first = numbers.end;
        }
        followers
    };
    (0..blocks).flat_map(of_block).collect()
}

#[cfg(test)]
thread_local! {
    /// Whether programs that this thread lays out have the calls of each level in reverse, for tests.
    pub(super) static REVERSED: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

struct Known {
    touched: Option<Touched>,
    /// Whether it is one of those that pass values, which take a level for themselves.
    may_pass: bool,
}

fn levels(calls: &[Known]) -> Vec<usize> {
    let meets = |a: &Known, b: &Known| match (&a.touched, &b.touched) {
        (Some(a), Some(b)) => a.meets(b),
        _ => true,
    };
    let mut levels: Vec<usize> = Vec::with_capacity(calls.len());
    for call in calls {
        let before = calls.iter().zip(&levels);
        let below = before.filter(|(other, _)| meets(other, call));
        levels.push(below.map(|(_, level)| level + 1).max().unwrap_or(0));
    }
    // What is wanted later need not hold up the others of its level.
    for index in (0..calls.len()).rev() {
        let behind = calls.iter().zip(&levels).skip(index + 1);
        let above = behind.filter(|(other, _)| meets(&calls[index], other));
        let Some((next, &first)) = above.min_by_key(|(_, level)| **level) else {
            continue;
        };
        if calls[index].may_pass || next.touched.is_none() {
            continue;
        }
        let is_free = |level: &usize| {
            let mut there = calls
                .iter()
                .zip(&levels)
                .filter(|(_, other)| *other == level);
            there.all(|(other, _)| !other.may_pass)
        };
        let later = (levels[index] + 1..first).rev().find(is_free);
        levels[index] = later.unwrap_or(levels[index]);
    }
    levels
}

/// What a row of a product costs besides its bytes, in bytes.
const ROW_COST: usize = 128;

/// The blocks of each call of a level: products share all blocks among them, and others go on where the ones before ended.
fn blocks_of(level: &[&Queued], blocks: usize) -> Vec<Range<usize>> {
    let cost = |product: &Product| -> usize {
        let factors = product.factors.iter();
        factors
            .map(|factor| factor.rows * (factor.row_bytes() + ROW_COST))
            .sum()
    };
    let costs: Vec<_> = level
        .iter()
        .map(|queued| queued.product().map(cost))
        .collect();
    let products = costs.iter().flatten().count();
    let all: usize = costs.iter().flatten().sum();
    let (mut before, mut left, mut end, mut taken) = (0, products, 0, 0);
    let one = |(cost, queued): (Option<usize>, &&Queued)| match cost {
        Some(_) if products > blocks => 0..blocks,
        Some(cost) => {
            let first = end;
            before += cost;
            left -= 1;
            // Everyone has a block.
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
    use super::super::launches::{Call, Form, Grid};
    use super::*;

    /// Both as first and last address.
    fn call(reads: &[[Address; 2]], writes: &[[Address; 2]]) -> Known {
        let ranges = |ends: &[[Address; 2]]| ends.iter().map(|&[first, end]| first..end).collect();
        Known {
            touched: Some(Touched {
                reads: ranges(reads),
                writes: ranges(writes),
            }),
            may_pass: false,
        }
    }

    fn product(reads: [Address; 2], writes: [Address; 2]) -> Known {
        Known {
            may_pass: true,
            ..call(&[reads], &[writes])
        }
    }

    const UNKNOWN: Known = Known {
        touched: None,
        may_pass: false,
    };

    #[test]
    fn a_call_is_above_those_that_it_has_to_come_behind() {
        let calls = [
            call(&[], &[[0, 64]]),
            // Two readers of that, of which the second writes over what the first reads besides.
            call(&[[0, 32], [200, 204]], &[[64, 96]]),
            call(&[[32, 64]], &[[200, 208]]),
            // It adds to the second one's.
            call(&[], &[[64, 68]]),
            // Beside all of them, then something unknown.
            call(&[[300, 304]], &[[304, 308]]),
            UNKNOWN,
            call(&[[400, 404]], &[]),
            call(&[[400, 404]], &[]),
        ];
        assert_eq!(levels(&calls), [0, 1, 2, 2, 0, 3, 4, 4]);
    }

    #[test]
    fn what_is_wanted_later_comes_later_where_no_values_are_passed() {
        let calls = [
            product([0, 4], [10, 20]),
            // It needs nothing of this token, and the last one needs it.
            call(&[], &[[50, 60]]),
            call(&[[10, 20]], &[[20, 30]]),
            product([20, 30], [30, 40]),
            call(&[[30, 40], [50, 60]], &[[60, 70]]),
        ];
        assert_eq!(levels(&calls), [0, 1, 1, 2, 3]);
    }

    fn queued(blocks: usize) -> Queued {
        let call = Call {
            source: "",
            kernel: String::new(),
            grid: Grid::Blocks(blocks),
            threads: 32,
            shared: 0,
            parameters: Vec::new(),
        };
        Queued::new(call, Form::Waits)
    }

    #[test]
    fn blocks_go_through_what_they_have_a_part_of_and_arrive_once_a_level() {
        const BLOCKS: usize = 8;
        let calls = [1, 3, 4, 2, 8].map(queued);
        let level: Vec<&Queued> = calls[1..4].iter().collect();
        let together = blocks_of(&level, BLOCKS);
        assert_eq!(together, [0..3, 3..7, 7..9]);
        let of_call = |(index, queued)| Phase {
            queued,
            level: [0, 1, 1, 1, 2][index],
            has_company: false,
            blocks: match index {
                0 => 0..1,
                4 => 0..8,
                _ => together[index - 1].clone(),
            },
        };
        let phases: Vec<Phase> = calls.iter().enumerate().map(of_call).collect();
        let followers = followers(&phases, &[true, true, true, true, false], BLOCKS);
        const ARRIVES: u32 = 1 << 31;
        let way = |block: usize| {
            let own = &followers[block * 6..][..6];
            let mut way = vec![own[0]];
            while way[way.len() - 1] != 5 {
                let at = (way[way.len() - 1] & !ARRIVES) as usize;
                way.push(own[at + 1]);
            }
            way
        };
        // The first block has parts of two of the three that are together, the last one of one.
        assert_eq!(way(0), [ARRIVES, 1, 3 | ARRIVES, 4, 5]);
        assert_eq!(way(4), [ARRIVES, 2 | ARRIVES, 4, 5]);
        assert_eq!(way(7), [ARRIVES, 3 | ARRIVES, 4, 5]);
    }
}
