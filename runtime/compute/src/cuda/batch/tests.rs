//! Slots of a batch get the bits of recorded steps, on the emulator or on a GPU where there is one.

use std::sync::Arc;

use waterline_quant::{BF16, F32, FORMATS, Q4_0, Q4_K, Q5_K, Q6_K, Q8_0};

use super::{Calls, Program, Rooms, Slot};
use crate::cuda::driver::Memory;
use crate::cuda::gemm::{GatedUnit, WeightMatrix};
use crate::cuda::tests::{Bench, device, matrix, numbers};
use crate::functions::{Activation, Norm};
use crate::operands::View;
use crate::ops::rig::plan;
use crate::ops::{Conv, DeviceOp, Gate, HeadGroup, HeadOp, Prepare};
use crate::state::{StateDtype, StatePlan};

/// The product of a gated unit's three matrices, for every format: it has the bits of `gemv_gated` and `gemv`, except for BF16 among more
/// than eight slots, where inputs are rounded to 16 bits of fraction.
#[test]
fn slots_of_every_format_have_the_bits_of_steps() {
    let Some(device) = device() else {
        return;
    };
    let rows = 37;
    let formats = (FORMATS.iter()).map(|&format| (format, 11, format.block_len.max(64)));
    // Widths for which all, some or none of the lanes of a warp on tensor cores have units.
    let widths = [
        (&Q4_0, 11, 1312),
        (&Q4_0, 2, 1312),
        (&Q8_0, 9, 1312),
        (&Q8_0, 7, 160),
        (&Q4_0, 17, 96),
    ];
    for (format, slots, width) in formats.chain(widths).chain([(&BF16, 7, 64)]) {
        let bench = Bench::new(Arc::clone(&device), [width, width, 2 * width, rows], slots);
        let bias: crate::weights::Vector = numbers(9, rows).into();
        let matrices = [(width, 1), (width, 2), (rows, 3)]
            .map(|(rows, seed)| matrix(format, rows, width, seed));
        let [gate, up, down] = matrices.each_ref().map(WeightMatrix::plain);
        let unit = GatedUnit {
            gate,
            up: WeightMatrix {
                column: width,
                ..up
            },
            down: WeightMatrix {
                bias: Some(&bias),
                multiplier: 0.5,
                ..down
            },
            activation: Activation::Silu,
            inner: View::whole(2, 2 * width),
        };
        let steps = slots.min(7);
        let mut results = [(steps, false), (slots, true)].map(|(tokens, as_steps)| {
            let mut scratch = Vec::new();
            let mut launches = bench.launches(tokens, &mut scratch);
            launches.as_steps = as_steps;
            let prologue = launches
                .prologue(View::whole(0, width), None)
                .expect("an input");
            let output = View::whole(3, rows);
            launches
                .gemm_gated(prologue, &unit, output, false)
                .expect("launches");
            let calls = launches.calls;
            bench.write(0, &numbers(7, tokens * width));
            bench.run(&calls, tokens);
            bench.read(3, tokens * rows)
        });
        results[1].truncate(steps * rows);
        let [steps, found] = &results;
        let largest = steps.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        let rounded = format == &BF16 && slots > 8;
        let bound = if rounded { largest * 1e-4 } else { 0.0 };
        for (i, (found, step)) in found.iter().zip(steps).enumerate() {
            let same = (found - step).abs() <= bound;
            assert!(
                same,
                "{} {slots}, {i}: {found}, in a step {step}",
                format.name
            );
        }
        assert!(largest > 0.1 && largest.is_finite());
    }
}

/// Matrices whose rows come in several pieces, some of which the same kernel multiplies on plain cores, with a norm or without: the product
/// has the bits of `gemv`.
#[test]
fn pieces_of_wide_rows_have_the_bits_of_steps() {
    const STEPS: usize = 3;
    let Some(device) = device() else {
        return;
    };
    let width = 4352;
    let gains: crate::weights::Vector = numbers(4, width).into();
    let norm = Norm {
        weight: gains,
        bias: None,
        eps: 1e-5,
        centred: false,
    };
    for (format, slots, with_norm, rows) in [
        (&Q4_0, 3, true, [37, 5]),
        (&Q4_0, 20, false, [37, 5]),
        (&Q8_0, 9, true, [150, 21]),
        (&Q8_0, 8, false, [70, 0]),
        (&Q6_K, 9, true, [150, 5]),
        (&Q4_K, 4, false, [37, 0]),
        (&Q5_K, 5, true, [37, 3]),
    ] {
        let bench = Bench::new(
            Arc::clone(&device),
            [width, width, 64, rows[0] + rows[1]],
            slots,
        );
        let matrices = [
            matrix(format, rows[0], width, 1),
            matrix(&F32, rows[1].max(1), width, 2),
        ];
        let all = [
            WeightMatrix::plain(&matrices[0]),
            WeightMatrix {
                column: rows[0],
                multiplier: 0.25,
                ..WeightMatrix::plain(&matrices[1])
            },
        ];
        let weights = if rows[1] > 0 { &all[..] } else { &all[..1] };
        let results = [(STEPS, false), (slots, true)].map(|(tokens, as_steps)| {
            let mut scratch = Vec::new();
            let mut launches = bench.launches(tokens, &mut scratch);
            launches.as_steps = as_steps;
            let prologue = launches
                .prologue(View::whole(0, width), with_norm.then_some(&norm))
                .expect("an input");
            let output = View::whole(3, rows[0] + rows[1]);
            launches
                .gemm(prologue, weights, output, false)
                .expect("launches");
            let calls = launches.calls;
            bench.write(0, &numbers(7, tokens * width));
            bench.run(&calls, tokens);
            bench.read(3, STEPS * (rows[0] + rows[1]))
        });
        assert_eq!(results[0], results[1], "{} {slots}", format.name);
        assert!(results[0].iter().all(|x| x.is_finite() && *x != 0.0));
    }
}

/// Columns of a product: unchanged, through a convolution and an activation, unchanged, through a gate, and unchanged again.
const PARTS: [usize; 5] = [9, 40, 3, 6, 2];

/// Work on single values of the product's columns, with a convolution of `taps` taps.
fn work_on_values(taps: usize) -> Prepare {
    let stride = PARTS.iter().sum();
    let view = |part: usize| View {
        buffer: 1,
        start: PARTS[..part].iter().sum(),
        width: PARTS[part],
        stride,
    };
    let channels = PARTS[1];
    let bias = (taps > 2).then(|| numbers(6, channels).into());
    let conv = Conv::new(&numbers(5, channels * taps), channels, bias, 1);
    let maps = vec![HeadOp::Activation(Activation::Silu)];
    let step = Gate::Step {
        bias: numbers(8, PARTS[3]).into(),
        min: 0.01,
        max: 0.9,
    };
    Prepare {
        groups: vec![HeadGroup::per_channel(view(1), Some(conv), maps)],
        rope: None,
        gates: vec![(view(3), step)],
    }
}

/// Builds a program of a product and of the work after it, for up to `slots` slots. Unless `joins`, the two stay apart.
fn product_and_work(
    bench: &Bench,
    plan: &StatePlan,
    (taps, slots): (usize, usize),
    scratch: &mut Vec<Memory>,
    joins: bool,
) -> Program {
    let rows: usize = PARTS.iter().sum();
    let weights = matrix(&Q4_0, rows, 96, 1);
    let memory = bench.memory(plan, Program::STATE);
    let mut product = Calls::rows(&memory, scratch, &mut Rooms::new(), slots, |launches| {
        let prologue = launches.prologue(View::whole(0, 96), None)?;
        let weights = [WeightMatrix::plain(&weights)];
        launches.gemm(prologue, &weights, View::whole(1, rows), false)
    })
    .expect("a product");
    if let (false, Calls::Rows(calls)) = (joins, &mut product) {
        calls.iter_mut().for_each(|queued| queued.finished = None);
    }
    let op = work_on_values(taps);
    let work = (0..slots).map(|row| {
        let slot = Slot {
            row,
            position: None,
            sharing: slots,
        };
        let write = |launches: &mut crate::cuda::Launches| op.launch(launches);
        Calls::slot(&memory, scratch, &mut Rooms::new(), slot, write).expect("work")
    });
    let parts = vec![product, Calls::Each(work.collect())];
    Program::new(vec![parts], slots, &bench.device, &*bench.queue).expect("a program")
}

/// Compares outputs and states after six tokens of each slot.
#[test]
fn products_that_do_the_work_after_them_give_the_bits_of_two_kernels() {
    let Some(device) = device() else {
        return;
    };
    let rows: usize = PARTS.iter().sum();
    for (taps, slots, used) in [(4, 3, 3), (2, 8, 7)] {
        let shape = [taps - 1, PARTS[1]];
        let plan = plan(&[(StateDtype::U64, &[1]), (StateDtype::F32, &shape)]);
        let results = [true, false].map(|joins| {
            let bench = Bench::new(Arc::clone(&device), [96, rows, 1, 1], slots);
            let mut scratch = Vec::new();
            let of = (taps, slots);
            let mut program = product_and_work(&bench, &plan, of, &mut scratch, joins);
            let states: Vec<Memory> = (0..slots)
                .map(|_| Memory::new(device.driver(), plan.bytes()).expect("memory"))
                .collect();
            for (slot, state) in states.iter().enumerate() {
                let cleared = bench.queue.clear(state.address(), plan.bytes());
                cleared.expect("a state");
                let set = program.set_state(slot, state.address(), &*bench.queue);
                set.expect("a state");
            }
            let launches = program.launches(0, used, true);
            assert_eq!(launches.len(), if joins { 2 } else { 3 });
            let mut found = Vec::new();
            for token in 0..6 {
                bench.write(0, &numbers(20 + token, used * 96));
                for launch in &launches {
                    bench.queue.launch(launch).expect("a launch");
                }
                found.extend(bench.read(1, used * rows));
            }
            let mut bytes = vec![0; plan.bytes()];
            for state in &states[..used] {
                bench.queue.read(state.address(), &mut bytes).expect("one");
                found.extend(bytemuck::cast_slice::<u8, f32>(&bytes));
            }
            found.iter().map(|x| x.to_bits()).collect::<Vec<u32>>()
        });
        assert!(results[0] == results[1], "{taps} taps, {slots} slots");
    }
}

#[test]
fn products_over_more_than_a_tile_of_slots_leave_the_work_to_another_kernel() {
    let Some(device) = device() else {
        return;
    };
    let rows: usize = PARTS.iter().sum();
    let (taps, slots) = (3, 33);
    let shape = [taps - 1, PARTS[1]];
    let plan = plan(&[(StateDtype::U64, &[1]), (StateDtype::F32, &shape)]);
    let bench = Bench::new(Arc::clone(&device), [96, rows, 1, 1], slots);
    let program = product_and_work(&bench, &plan, (taps, slots), &mut Vec::new(), true);
    assert_eq!(program.launches(0, 20, true).len(), 3);
}
