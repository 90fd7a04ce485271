//! Native sparse attention: the emulator, or a GPU if there is one, against the CPU.

use std::sync::Arc;

use crate::cuda::tests::rig::Comparison;
use crate::cuda::tests::{device, numbers};
use crate::operands::View;
use crate::ops::AttendBlocks;
use crate::ops::rig::{plan, side_by_side};
use crate::state::{Kv, StateDtype};

/// Reads tokens in steps and in chunks: heads, key heads and head width; tokens of a block, chosen blocks, window and context.
fn compare(kv: Kv, [heads, kv_heads, dim]: [usize; 3], [block, chosen, window, rows]: [usize; 4]) {
    let Some(device) = device() else { return };
    let width = heads * dim;
    let [q, k, v, gates] = side_by_side([width, kv_heads * dim, kv_heads * dim, 3 * heads]);
    let stride = q.stride;
    let op = AttendBlocks {
        heads,
        kv_heads,
        q,
        k,
        v,
        gates,
        scale: 2.0 * (dim as f32).powf(-0.5),
        block,
        chosen,
        window,
        keys: 1,
        values: 2,
        mean_keys: 3,
        mean_values: 4,
        out: View::whole(1, width),
    };
    let cached = match kv {
        Kv::F16 => StateDtype::F16,
        Kv::F32 => StateDtype::F32,
    };
    let ring: &[usize] = &[kv_heads, rows, dim];
    let means: &[usize] = &[kv_heads, rows.div_ceil(block), dim];
    let plan = Arc::new(plan(&[
        (StateDtype::U64, &[1]),
        (cached, ring),
        (cached, ring),
        (cached, means),
        (cached, means),
    ]));
    // On tensor cores, operands have 16 bits of fraction.
    for (chunks, tolerance) in [(&[1; 70][..], 1e-5), (&[3, 17, 1, 40, 9], 1e-4)] {
        Comparison {
            device: &device,
            op: &op,
            plan: &plan,
            widths: &[stride, width, 1],
            output: 1,
            kv,
            persistent: false,
            tolerance,
        }
        .read(chunks, |buffer, values| {
            values.copy_from_slice(&numbers(buffer as u32 + 5, values.len()))
        });
    }
}

#[test]
fn a_context_without_end_is_that_of_the_cpu() {
    compare(Kv::F32, [32, 2, 32], [8, 4, 20, 80]);
    compare(Kv::F16, [3, 1, 64], [5, 3, 0, 80]);
    compare(Kv::F32, [20, 1, 32], [16, 5, 33, 80]);
}

#[test]
fn a_wrapped_context_is_that_of_the_cpu() {
    compare(Kv::F16, [4, 2, 32], [8, 3, 9, 37]);
    compare(Kv::F32, [2, 1, 24], [4, 4, 9, 19]);
}
