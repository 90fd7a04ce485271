//! Inputs of Mamba-3's recurrence on the emulator, or on a GPU where there is one, against the CPU's.

use std::sync::Arc;

use crate::cuda::tests::rig::Comparison;
use crate::cuda::tests::{device, numbers};
use crate::functions::Norm;
use crate::operands::View;
use crate::ops::rig::{plan, side_by_side};
use crate::ops::{Trapezoid, TrapezoidOutputs, TrapezoidState};
use crate::state::{Kv, StateDtype};

/// Each result of heads, groups, widths of keys and values and pairs, in chunks, then one by one as ops of the decode kernel.
fn compare([heads, groups, dk, dv, pairs]: [usize; 5]) {
    let Some(device) = device() else { return };
    let [q, k, v, step, share, rate, turn] = side_by_side([
        groups * dk,
        groups * dk,
        heads * dv,
        heads,
        heads,
        heads,
        pairs,
    ]);
    let widths = [
        q.stride,
        heads * dk,
        heads * dk,
        heads * dv,
        heads,
        heads,
        heads * dv,
    ];
    let result = |buffer: usize| View::whole(buffer, widths[buffer]);
    let vector = |seed: u32, length: usize| numbers(seed, length).into();
    let op = Trapezoid {
        heads,
        q,
        k,
        v,
        step,
        share,
        rate,
        turn,
        q_norm: Norm::rms(vector(20, dk), 1e-5),
        k_norm: Norm::rms(vector(21, dk), 1e-5),
        q_bias: vector(22, heads * dk),
        k_bias: vector(23, heads * dk),
        skip: vector(24, heads),
        least_rate: 0.1,
        state: TrapezoidState {
            angle: 1,
            key: 2,
            value: 3,
            weight: 4,
        },
        out: TrapezoidOutputs {
            q: result(1),
            key: result(2),
            value: result(3),
            decay: result(4),
            write: result(5),
            bonus: result(6),
        },
    };
    let shapes: [&[usize]; 4] = [&[heads, pairs], &[heads, dk], &[heads, dv], &[heads]];
    let mut tensors: Vec<(StateDtype, &[usize])> = vec![(StateDtype::U64, &[1])];
    tensors.extend(shapes.map(|shape| (StateDtype::F32, shape)));
    for (chunks, persistent) in [(&[70, 1, 2, 33][..], false), (&[1; 9], true)] {
        for output in 1..widths.len() {
            let comparison = Comparison {
                device: &device,
                op: &op,
                plan: &Arc::new(plan(&tensors)),
                widths: &widths,
                output,
                kv: Kv::F32,
                persistent,
                tolerance: 1e-4,
            };
            comparison.read(chunks, |buffer, values| {
                values.copy_from_slice(&numbers(buffer as u32 + 3, values.len()));
            });
        }
    }
}

#[test]
fn previous_tokens_and_bonuses_are_those_of_the_cpu() {
    compare([4, 2, 8, 5, 3]);
    compare([3, 1, 34, 70, 17]);
    compare([1, 1, 130, 33, 40]);
}
