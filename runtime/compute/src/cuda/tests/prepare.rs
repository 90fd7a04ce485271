//! Gated convolutions: the emulator, or a GPU if there is one, against the CPU.

use std::sync::Arc;

use crate::cuda::tests::rig::Comparison;
use crate::cuda::tests::{device, numbers};
use crate::functions::Activation;
use crate::operands::View;
use crate::ops::rig::{plan, side_by_side};
use crate::ops::{Conv, Gate, Growth, HeadGroup, HeadOp, Prepare};
use crate::state::{Kv, StateDtype};

/// Reads chunks of `chunks` tokens, with `channels` channels convolved over `taps` taps.
fn compare(channels: usize, taps: usize, chunks: &[usize], persistent: bool) {
    let Some(device) = device() else { return };
    let [before, behind] = side_by_side([channels, channels]);
    let conv = Conv {
        gate: Some(before),
        ..Conv::new(&numbers(7, channels * taps), channels, None, 1)
    };
    let columns = View::whole(1, channels);
    let op = Prepare {
        groups: vec![HeadGroup::per_channel(
            columns,
            Some(conv),
            vec![HeadOp::Multiply(behind)],
        )],
        rope: None,
        gates: Vec::new(),
    };
    let slots: [(StateDtype, &[usize]); 2] = [
        (StateDtype::U64, &[1]),
        (StateDtype::F32, &[taps - 1, channels]),
    ];
    let comparison = Comparison {
        device: &device,
        op: &op,
        plan: &Arc::new(plan(&slots)),
        widths: &[before.stride, channels, 1],
        output: 1,
        kv: Kv::F32,
        persistent,
        tolerance: 1e-5,
    };
    comparison.read(chunks, |buffer, values| {
        values.copy_from_slice(&numbers(buffer as u32 + 3, values.len()));
    });
}

#[test]
fn gated_convolutions_are_those_of_the_cpu() {
    compare(60, 3, &[70, 1, 2, 33], false);
    compare(33, 6, &[40, 5, 1], false);
}

#[test]
fn gated_convolutions_of_a_persistent_program_are_those_of_the_cpu() {
    compare(60, 3, &[1; 9], true);
    compare(33, 6, &[1; 9], true);
}

#[test]
fn gated_heads_are_those_of_the_cpu() {
    const HEADS: usize = 5;
    const HEAD_DIM: usize = 12;
    let Some(device) = device() else { return };
    let gates = View::whole(0, HEADS);
    let op = Prepare {
        groups: vec![HeadGroup {
            view: View::whole(1, HEADS * HEAD_DIM),
            head_dim: HEAD_DIM,
            conv: None,
            maps: vec![
                HeadOp::Gate(gates, Activation::Sigmoid),
                HeadOp::Gate(gates, Activation::Softplus),
                HeadOp::Weigh(gates),
                HeadOp::Grow(Growth {
                    rate: 0.3,
                    period: 3,
                }),
                HeadOp::Scale(-0.3),
                HeadOp::Largest(7),
            ],
        }],
        rope: None,
        gates: Vec::new(),
    };
    for (persistent, chunks) in [(false, &[70, 1, 33][..]), (true, &[1; 5])] {
        let comparison = Comparison {
            device: &device,
            op: &op,
            plan: &Arc::new(plan(&[(StateDtype::U64, &[1])])),
            widths: &[HEADS, HEADS * HEAD_DIM, 1],
            output: 1,
            kv: Kv::F32,
            persistent,
            tolerance: 1e-5,
        };
        comparison.read(chunks, |buffer, values| {
            values.copy_from_slice(&numbers(buffer as u32 + 3, values.len()));
        });
    }
}

#[test]
fn constants_are_those_of_the_cpu() {
    const COLUMNS: usize = 150;
    let Some(device) = device() else { return };
    let op = Prepare {
        groups: Vec::new(),
        rope: None,
        gates: vec![(
            View::whole(1, COLUMNS),
            Gate::Constant(numbers(9, COLUMNS).into()),
        )],
    };
    for (persistent, chunks) in [(false, &[40, 1][..]), (true, &[1; 3])] {
        let comparison = Comparison {
            device: &device,
            op: &op,
            plan: &Arc::new(plan(&[(StateDtype::U64, &[1])])),
            widths: &[1, COLUMNS, 1],
            output: 1,
            kv: Kv::F32,
            persistent,
            tolerance: 1e-6,
        };
        comparison.read(chunks, |buffer, values| {
            values.copy_from_slice(&numbers(buffer as u32 + 3, values.len()));
        });
    }
}
