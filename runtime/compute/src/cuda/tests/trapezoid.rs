//! Inputs of Mamba-3's recurrence: the emulator, or a GPU if there is one, against the CPU.

use std::sync::Arc;

use crate::cuda::tests::rig::Comparison;
use crate::cuda::tests::{device, numbers};
use crate::ops::rig::plan;
use crate::ops::trapezoid::tests::Example;
use crate::state::{Kv, StateDtype};

/// Compares each result for heads, groups, and widths of keys, values and pairs: in chunks, then one by one with ops of the decode kernel.
fn compare(shape: [usize; 5]) {
    let Some(device) = device() else { return };
    let example = Example::new(shape, 1, |number, length| {
        numbers(20 + number as u32, length).into()
    });
    let mut tensors: Vec<(StateDtype, &[usize])> = vec![(StateDtype::U64, &[1])];
    tensors.extend(example.tensors());
    for (chunks, persistent) in [(&[70, 1, 2, 33][..], false), (&[1; 9], true)] {
        for output in 1..example.widths.len() {
            let comparison = Comparison {
                device: &device,
                op: &example.op,
                plan: &Arc::new(plan(&tensors)),
                widths: &example.widths,
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
