//! Matrices of heads, the recurrent unit that has some, and attention to rows that are both keys and values: the emulator, or a GPU if
//! there is one, against the CPU.

use std::sync::Arc;

use waterline_quant::{BF16, F32, Format, Q4_K, Q5_0, Q8_0};

use crate::cuda::tests::rig::Comparison;
use crate::cuda::tests::{device, matrix, numbers};
use crate::operands::View;
use crate::ops::rig::{plan, side_by_side};
use crate::ops::{Attend, HeadLinear, HeadMatrices, Op, RgLru};
use crate::state::{Kv, StateDtype};

const CHUNKS: &[&[usize]] = &[&[70, 1, 2, 33], &[1; 9]];

/// Reads tokens in chunks, then one by one with ops of the decode kernel.
fn compare(op: &dyn Op, slot: &[usize], widths: [usize; 3], kv: Kv) {
    let fill = |buffer: usize, values: &mut [f32]| {
        values.copy_from_slice(&numbers(buffer as u32 + 3, values.len()));
    };
    let Some(device) = device() else { return };
    let dtype = match kv {
        Kv::F16 => StateDtype::F16,
        Kv::F32 => StateDtype::F32,
    };
    let slots: [(StateDtype, &[usize]); 2] = [(StateDtype::U64, &[1]), (dtype, slot)];
    for (chunks, persistent) in CHUNKS.iter().zip([false, true]) {
        let comparison = Comparison {
            device: &device,
            op,
            plan: &Arc::new(plan(&slots)),
            widths: &widths,
            output: 1,
            kv,
            persistent,
            tolerance: 1e-4,
        };
        comparison.read(chunks, fill);
    }
}

#[test]
fn products_of_heads_are_those_of_the_cpu() {
    let cases: [(&'static Format, [usize; 4]); 7] = [
        (&F32, [3, 40, 16, 8]),
        (&F32, [2, 5, 7, 0]),
        (&BF16, [2, 19, 96, 3]),
        (&Q8_0, [3, 33, 128, 64]),
        (&Q5_0, [2, 70, 96, 0]),
        (&Q4_K, [2, 9, 512, 0]),
        (&Q8_0, [1, 3, 2080, 0]),
    ];
    for (format, [heads, rows, cols, copied]) in cases {
        let width = cols + copied + 1;
        let x = View::whole(0, heads * width);
        let op = HeadLinear {
            heads,
            x,
            matrix: matrix(format, heads * rows, cols, 9),
            copied,
            out: View::whole(1, heads * (rows + copied)),
        };
        let inputs = HeadLinear::inputs_width(heads, cols);
        compare(&op, &[1], [x.width, op.out.width, inputs], Kv::F32);
    }
}

#[test]
fn recurrent_units_are_those_of_the_cpu() {
    for [heads, dim] in [[3, 16], [2, 37]] {
        let width = heads * dim;
        let gate = |seed: u32| HeadMatrices {
            weight: numbers(seed, heads * dim * dim).into(),
            bias: numbers(seed + 1, width).into(),
        };
        let rate = numbers(4, width);
        let op = RgLru {
            heads,
            x: View::whole(0, width),
            input: gate(20),
            recurrence: gate(30),
            rate: rate.iter().map(|x| -x.abs()).collect(),
            state: 1,
            out: View::whole(1, width),
        };
        compare(&op, &[width], [width, width, 1], Kv::F32);
    }
}

#[test]
fn attention_to_rows_that_are_keys_and_values_is_that_of_the_cpu() {
    for (heads, dim) in [(3, 28), (2, 300)] {
        let [q, row] = side_by_side([heads * dim, dim]);
        let op = Attend {
            heads,
            kv_heads: 1,
            q,
            k: row,
            v: row,
            scale: 0.3,
            keys: 1,
            values: 1,
            caches: true,
            sinks: None,
            eviction: None,
            out: View::whole(1, heads * dim),
        };
        compare(&op, &[1, 120, dim], [q.stride, op.out.width, 1], Kv::F32);
    }
}
