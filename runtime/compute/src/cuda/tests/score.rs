//! The retention router: the emulator, or a GPU if there is one, against the CPU.

use std::sync::Arc;

use crate::cuda::tests::rig::Comparison;
use crate::cuda::tests::{device, numbers};
use crate::operands::View;
use crate::ops::rig::{plan, side_by_side};
use crate::ops::{RouterLayer, Score, ScoreMap};
use crate::state::{Kv, StateDtype};

const DIM: usize = 12;
const HEADS: usize = 3;
const TOKENS: usize = 30;

/// Reads tokens with a router of two layers on the device and on the CPU; `groups` is one or the number of heads.
fn compare(groups: usize, taps: usize, dilation: usize, map: ScoreMap) {
    let Some(device) = device() else { return };
    let channels = [2 * DIM, 10, 5];
    let layer = |i: usize| {
        let [inputs, outputs] = [channels[i], channels[i + 1]];
        let weight = numbers(i as u32, groups * outputs * inputs * taps);
        let bias = numbers(i as u32 + 10, groups * outputs);
        RouterLayer::new(&weight, bias.into(), inputs, outputs, dilation, 1 + i)
    };
    let [k, v] = side_by_side([HEADS * DIM; 2]);
    let op = Score {
        kv_heads: HEADS,
        k,
        v,
        layers: vec![layer(0), layer(1)],
        weight: numbers(20, groups * channels[2]).into(),
        bias: numbers(21, groups).into(),
        map,
        out: View::whole(1, HEADS),
        window: None,
    };
    let past = (taps - 1) * dilation;
    let plan = Arc::new(plan(&[
        (StateDtype::U64, &[1]),
        (StateDtype::F32, &[HEADS, past, channels[0]]),
        (StateDtype::F32, &[HEADS, past, channels[1]]),
    ]));
    let steps = &[1; TOKENS][..];
    // Steps in both forms, and chunks, one of which has several tiles.
    for (chunks, persistent) in [
        (steps, false),
        (steps, true),
        (&[5, 1, 7, 2], false),
        (&[3, 70, 1, 9], false),
    ] {
        Comparison {
            device: &device,
            op: &op,
            plan: &plan,
            widths: &[2 * HEADS * DIM, HEADS, 1],
            output: 1,
            kv: Kv::F32,
            persistent,
            tolerance: 1e-5,
        }
        .read(chunks, |buffer, values| {
            values.copy_from_slice(&numbers(buffer as u32 + 30, values.len()))
        });
    }
}

#[test]
fn routers_are_those_of_the_cpu() {
    compare(1, 3, 2, ScoreMap::Sigmoid);
    compare(HEADS, 3, 2, ScoreMap::Relu);
    compare(HEADS, 5, 1, ScoreMap::Sigmoid);
}
