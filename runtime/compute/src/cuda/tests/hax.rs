//! Sparse attention with keys from every kind of source, in chunks: the emulator, or a GPU if there is one, against the CPU.

use std::sync::Arc;

use crate::cuda::tests::rig::Comparison;
use crate::cuda::tests::{device, numbers};
use crate::operands::View;
use crate::ops::rig::{plan, side_by_side};
use crate::ops::{Hash, Hax, Pattern, Scorer, Sources};
use crate::state::{Kv, StateDtype};

const WIDTH: usize = 16;
const CHANNELS: usize = 40;
const CHUNKS: [usize; 6] = [3, 70, 33, 1, 64, 9];

/// Bins of a hash with this many columns.
fn bins(columns: usize, signs: bool) -> Pattern {
    let weight = numbers(7, WIDTH * columns).into();
    Pattern::Bins(Hash { weight, signs })
}

fn best() -> Pattern {
    let n = 2 * WIDTH;
    let layer = |seed| (numbers(seed, n * n).into(), numbers(seed + 1, n).into());
    let scorer = Scorer::new([layer(20), layer(30)], numbers(40, n).into(), 0.1);
    Pattern::Best(scorer)
}

/// Reads chunks with these sources; a query sees the given number of tokens of each.
fn compare(patterns: Vec<(Pattern, usize)>, bins: usize) {
    let Some(device) = device() else { return };
    let scored = patterns
        .iter()
        .find(|(pattern, _)| matches!(pattern, Pattern::Best(_)));
    let scored = scored.map(|&(_, seen)| seen);
    let sources = Sources::new(patterns, WIDTH);
    let rows = sources.rows();
    let [k, q, v] = side_by_side([WIDTH, WIDTH, CHANNELS]);
    let widths = [k.stride, CHANNELS, sources.plan_width()];
    let op = Hax {
        k,
        q,
        v,
        keys: 1,
        values: 2,
        positions: 3,
        means: 4,
        cursors: (bins > 0).then_some(5),
        scores: scored.map(|_| 6),
        plan: View::whole(2, widths[2]),
        out: View::whole(1, CHANNELS),
        sources,
    };
    let tensors = [
        (StateDtype::U64, &[1][..]),
        (StateDtype::F32, &[rows, WIDTH]),
        (StateDtype::F32, &[rows, CHANNELS]),
        (StateDtype::U64, &[rows]),
        (StateDtype::F32, &[2, WIDTH]),
        (StateDtype::U32, &[bins.max(1)]),
        (StateDtype::F32, &[scored.unwrap_or(1)]),
    ];
    let comparison = Comparison {
        device: &device,
        op: &op,
        plan: &Arc::new(plan(&tensors)),
        widths: &widths,
        output: 1,
        kv: Kv::F32,
        persistent: false,
        tolerance: 1e-5,
    };
    comparison.read(&CHUNKS, |buffer, values| {
        values.copy_from_slice(&numbers(buffer as u32 + 3, values.len()));
    });
}

#[test]
fn rows_that_follow_from_positions_are_those_of_the_cpu() {
    compare(vec![(Pattern::Window, 5)], 0);
    compare(vec![(Pattern::Sink, 7), (Pattern::Dilated(3), 6)], 0);
}

#[test]
fn rows_of_bins_are_those_of_the_cpu() {
    compare(vec![(bins(3, true), 4)], 8);
    compare(vec![(bins(5, false), 3)], 5);
}

#[test]
fn the_best_keys_are_those_of_the_cpu() {
    compare(vec![(best(), 9)], 0);
    compare(vec![(best(), 40)], 0);
}

#[test]
fn a_token_that_several_sources_hold_is_seen_once() {
    let all = vec![
        (Pattern::Window, 6),
        (Pattern::Sink, 4),
        (Pattern::Dilated(2), 5),
        (bins(2, true), 3),
        (best(), 7),
    ];
    compare(all, 4);
}
