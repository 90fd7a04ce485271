//! Columns on the emulator, or on a GPU where there is one: the bits of recorded steps.

use std::sync::Arc;

use waterline_quant::{BF16, FORMATS, Q4_0, Q8_0};

use crate::cuda::gemm::{GatedUnit, WeightMatrix};
use crate::cuda::tests::{Bench, device, matrix, numbers};
use crate::functions::Activation;
use crate::operands::View;

/// Of every format, the product of a gated unit's three matrices: the bits of `gemv_gated` and `gemv`, but of BF16 among more
/// than eight columns, where inputs are rounded to 16 bits of fraction.
#[test]
fn columns_of_every_format_have_the_bits_of_steps() {
    const STEPS: usize = 7;
    let Some(device) = device() else {
        return;
    };
    let rows = 37;
    let formats = (FORMATS.iter()).map(|&format| (format, 11, format.block_len.max(64)));
    // Widths of which a warp of tensor cores has units of every lane, of some and of none.
    let widths = [(&Q4_0, 11, 1312), (&Q8_0, 9, 1312), (&Q8_0, 7, 160)];
    for (format, columns, width) in formats.chain(widths).chain([(&BF16, STEPS, 64)]) {
        let bench = Bench::new(
            Arc::clone(&device),
            [width, width, 2 * width, rows],
            columns,
        );
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
        let mut results = [(STEPS, false), (columns, true)].map(|(tokens, as_steps)| {
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
        results[1].truncate(STEPS * rows);
        let [steps, found] = &results;
        let largest = steps.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        let rounded = format == &BF16 && columns > 8;
        let bound = if rounded { largest * 1e-4 } else { 0.0 };
        for (i, (found, step)) in found.iter().zip(steps).enumerate() {
            let same = (found - step).abs() <= bound;
            assert!(
                same,
                "{} {columns}, {i}: {found}, in a step {step}",
                format.name
            );
        }
        assert!(largest > 0.1 && largest.is_finite());
    }
}
