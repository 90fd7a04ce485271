//! Matrix products: the emulator, or a GPU if there is one, against the CPU.

use std::sync::Arc;

use waterline_quant::{Activations, F16, FORMATS, Format, Output, Q4_0, Q4_K, Q5_1, Q6_K, Q8_0};

use super::{Bench, device, matrix, numbers, persistent_device, product, slack};
use crate::cuda::decode::tiling::{ROW_GROUPS, SMALLEST};
use crate::cuda::gemm::WeightMatrix;
use crate::cuda::schedule::Epilogue;
use crate::cuda::schedule::Launches;
use crate::cuda::{Device, merge};
use crate::functions::Activation;
use crate::operands::{INPUTS, View};
use crate::ops::rig::plan;
use crate::ops::{DeviceOp, Gate, Prepare};
use crate::state::StateDtype;

#[test]
fn products_are_those_of_the_cpu() {
    let Some(device) = device() else { return };
    let small = |format: &Format| match format.block_len {
        1 => 37,
        length => 2 * length,
    };
    // The last case has several tiles along each side, some of them partial.
    let cases = [
        (1, 1, 70),
        (3, 3, 70),
        (70, 70, 70),
        (1, 70, 70),
        (150, 200, 300),
    ];
    for (tokens, most, first_rows) in cases {
        for format in FORMATS {
            if first_rows > 70 && has_one_width(&device, format) {
                continue;
            }
            let cols = if first_rows > 70 { 768 } else { small(format) };
            let rows = [first_rows, 5];
            let width = rows[0] + rows[1];
            let bench = Bench::new(Arc::clone(&device), [cols, cols, width, width], most);
            let x = numbers(7, tokens * cols);
            bench
                .queue
                .write(
                    bench.buffers[INPUTS - 1].address(),
                    bytemuck::cast_slice(&x),
                )
                .expect("a copy");
            let bias: crate::weights::Vector = numbers(9, rows[1]).into();
            let matrices = [
                matrix(format, rows[0], cols, 100 + format.ggml_type),
                matrix(&waterline_quant::F32, rows[1], cols, 50),
            ];
            let mut scratch = Vec::new();
            let mut launches = bench.launches(most, &mut scratch);
            let prologue = launches
                .prologue(View::whole(0, cols), None)
                .expect("an input");
            let factors = [
                WeightMatrix::plain(&matrices[0]),
                WeightMatrix {
                    bias: Some(&bias),
                    column: rows[0],
                    ..WeightMatrix::plain(&matrices[1])
                },
            ];
            let output = View::whole(3, width);
            launches
                .gemm(prologue, &factors, output, false)
                .expect("launches");
            let calls = launches.calls;
            for launch in bench.compile(&calls, tokens) {
                bench.queue.launch(&launch).expect("a launch");
            }
            let mut found = vec![0.0f32; tokens * width];
            let place = bench.buffers[3].address();
            bench
                .queue
                .read(place, bytemuck::cast_slice_mut(&mut found))
                .expect("a copy");

            let mut inputs = Activations::new(tokens, cols).expect("memory");
            inputs.load(&x, tokens, cols, format.rounding());
            let mut expected = vec![0.0f32; tokens * width];
            let out = Output::new(&mut expected, width);
            for WeightMatrix { matrix, column, .. } in factors {
                // SAFETY: one thread, columns that the output has.
                unsafe { matrix.mul_rows(0..matrix.rows(), 0, &inputs, &out, column) };
            }
            for row in expected.chunks_mut(width) {
                for (x, bias) in row[rows[0]..].iter_mut().zip(bias.iter()) {
                    *x += bias;
                }
            }
            // Chunks are multiplied in 16 bits: in bf16 without a norm, except for F16.
            let tolerance = match (most >= 8, format.name) {
                (true, "F16") => 5e-4,
                (true, name) if name != "F32" => 0.005,
                _ => 1e-5 * slack(format),
            } * (cols as f32).sqrt();
            for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
                assert!(
                    (found - expected).abs() <= tolerance,
                    "{format}, {tokens} of {most} tokens, value {i}: {found}, on the CPU {expected}"
                );
            }
        }
    }
}

/// Where experts are chosen, a chunk's products with 8-bit inputs match the CPU's except for the last bits, even where two matrices read
/// inputs that are rounded in two ways. F16 weights are multiplied with inputs in f16, as in ggml.
#[test]
fn chunks_before_a_choice_are_those_of_the_cpu() {
    let Some(device) = device() else { return };
    let cases = [
        (&Q8_0, 21, 70, 512),
        (&Q4_0, 130, 200, 96),
        (&Q8_0, 64, 128, 32),
        (&Q4_K, 21, 70, 512),
        (&Q6_K, 70, 130, 256),
        (&Q5_1, 12, 70, 96),
        (&F16, 21, 70, 512),
    ];
    for (format, tokens, rows, cols) in cases {
        let tolerance = if format == &F16 {
            5e-4
        } else {
            1e-5 * slack(format)
        };
        let matrices = [matrix(format, rows, cols, 1), matrix(&Q4_0, rows, cols, 2)];
        let bench = Bench::new(
            Arc::clone(&device),
            [cols, cols, 2 * rows, 2 * rows],
            tokens,
        );
        let x = numbers(7, tokens * cols);
        bench.write(0, &x);
        let mut scratch = Vec::new();
        let mut launches = bench.launches(tokens, &mut scratch);
        launches.has_routing = true;
        let prologue = launches.prologue(View::whole(0, cols), None);
        let second = WeightMatrix {
            column: rows,
            ..WeightMatrix::plain(&matrices[1])
        };
        let factors = [WeightMatrix::plain(&matrices[0]), second];
        let output = View::whole(3, 2 * rows);
        let made = launches.gemm(prologue.expect("an input"), &factors, output, false);
        made.expect("launches");
        bench.run(&launches.calls, tokens);
        let found = bench.read(3, tokens * 2 * rows);
        for (part, matrix) in matrices.iter().enumerate() {
            for t in 0..tokens {
                let mut input = Activations::new(1, cols).expect("memory");
                input.load(&x[t * cols..][..cols], 1, cols, matrix.format().rounding());
                let found = &found[t * 2 * rows + part * rows..][..rows];
                for (row, (found, expected)) in
                    found.iter().zip(product(matrix, &input)).enumerate()
                {
                    let tolerance = if part == 0 { tolerance } else { 1e-5 } * (cols as f32).sqrt();
                    assert!(
                        (found - expected).abs() <= tolerance,
                        "{}, token {t}, row {row}: {found}, on the CPU {expected}",
                        matrix.format()
                    );
                }
            }
        }
    }
}

/// The product of one token with two of three parts of matrices of every format.
#[test]
fn products_of_chosen_parts_leave_the_others_as_they_are() {
    let Some(device) = device() else { return };
    const PARTS: usize = 3;
    const CHOSEN: [f32; 2] = [2.0, 0.0];
    for format in FORMATS {
        let cols = 2 * format.block_len.max(32);
        let heights = [37, 2];
        let rows = heights.map(|height| PARTS * height);
        let width = rows[0] + rows[1];
        let bench = Bench::new(Arc::clone(&device), [cols, 4, 1, width], 1);
        let x = numbers(7, cols);
        bench.write(0, &x);
        bench.write(1, &CHOSEN);
        bench.write(3, &vec![0.5; width]);
        let bias: crate::weights::Vector = numbers(9, rows[1]).into();
        let matrices = [
            matrix(format, rows[0], cols, 100 + format.ggml_type),
            matrix(&waterline_quant::F32, rows[1], cols, 50),
        ];
        let mut scratch = Vec::new();
        let mut launches = bench.launches(1, &mut scratch);
        let prologue = launches.prologue(View::whole(0, cols), None);
        let factors = [
            WeightMatrix::plain(&matrices[0]),
            WeightMatrix {
                bias: Some(&bias),
                column: rows[0],
                ..WeightMatrix::plain(&matrices[1])
            },
        ];
        let (route, output) = (View::whole(1, 4), View::whole(3, width));
        launches
            .gemv_chosen(
                prologue.expect("an input"),
                &factors,
                (PARTS, route),
                output,
            )
            .expect("launches");
        let calls = launches.calls;
        for launch in bench.compile(&calls, 1) {
            bench.queue.launch(&launch).expect("a launch");
        }
        let found = bench.read(3, width);

        let mut inputs = Activations::new(1, cols).expect("memory");
        inputs.load(&x, 1, cols, format.rounding());
        let mut expected = vec![0.5f32; width];
        let out = Output::new(&mut expected, width);
        for (WeightMatrix { matrix, column, .. }, height) in factors.iter().zip(heights) {
            for part in CHOSEN.map(|part| part as usize) {
                // SAFETY: one thread, columns that the output has.
                unsafe {
                    matrix.mul_rows(
                        part * height..(part + 1) * height,
                        0,
                        &inputs,
                        &out,
                        *column,
                    )
                };
            }
        }
        for part in CHOSEN.map(|part| part as usize) {
            let rows_of_part = part * heights[1]..(part + 1) * heights[1];
            for (x, bias) in expected[rows[0]..][rows_of_part.clone()]
                .iter_mut()
                .zip(&bias[rows_of_part])
            {
                *x += bias;
            }
        }
        for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert!(
                (found - expected).abs() <= slack(format) * 1e-5 * (cols as f32).sqrt(),
                "{format}, value {i}: {found}, on the CPU {expected}"
            );
        }
    }
}

/// Two ops have gates on the columns of one product. The product finishes the gates of the first; those of the second remain an op.
#[test]
fn a_product_finishes_the_rows_of_one_stage() {
    let Some((device, blocks)) = persistent_device() else {
        return;
    };
    let (cols, width) = (64, 48);
    let mut bench = Bench::new(Arc::clone(&device), [cols, 1, width, 1], 1);
    // The position, which gates do not use.
    bench.plan = plan(&[(StateDtype::U64, &[1])]);
    let x = numbers(7, cols);
    bench.write(0, &x);
    let weights = matrix(&waterline_quant::F32, width, cols, 3);
    let mut scratch = Vec::new();
    let mut launches = bench.launches(1, &mut scratch);
    launches.persistent = true;
    let prologue = launches.prologue(View::whole(0, cols), None);
    let output = View::whole(2, width);
    let pushed = launches.gemm(
        prologue.expect("an input"),
        &[WeightMatrix::plain(&weights)],
        output,
        false,
    );
    pushed.expect("an op");
    let part = |start: usize| View {
        start,
        width: width / 2,
        ..output
    };
    for (start, scale) in [(0, 1.0), (width / 2, 2.0)] {
        let prepare = Prepare {
            groups: Vec::new(),
            rope: None,
            gates: vec![(part(start), Gate::Sigmoid { scale })],
        };
        prepare.launch(&mut launches).expect("an op");
    }
    let calls = merge(launches.into_nodes(), |_| true);
    assert_eq!(calls.len(), 2, "one set of gates is finished");

    bench.run_decode(&calls, blocks);
    let found = bench.read(2, width);
    let values = numbers(3, width * cols);
    for (row, (found, weights)) in found.iter().zip(values.chunks(cols)).enumerate() {
        let product: f32 = x.iter().zip(weights).map(|(x, w)| x * w).sum();
        let scale = if row < width / 2 { 1.0 } else { 2.0 };
        let expected = scale / (1.0 + (-product).exp());
        assert!(
            (found - expected).abs() < 1e-5,
            "row {row}: {found}, {expected}"
        );
    }
}

#[test]
fn products_through_the_ring_are_those_of_the_cpu() {
    if let Some((device, blocks)) = persistent_device() {
        check_gemvs(&device, blocks, usize::MAX);
    }
}

#[test]
fn products_in_the_smallest_tiles_are_those_of_the_cpu() {
    if let Some((device, blocks)) = persistent_device() {
        SMALLEST.set(true);
        // All widths of one format per block length; rows of more than one step, the last one partial, of the others.
        check_gemvs_of(&device, blocks, |format| match format.block_len {
            _ if ["BF16", "Q4_0", "Q4_K"].contains(&format.name) => widths(&device, format),
            1 => &[1496],
            32 => &[4352],
            _ => &[2304],
        });
    }
}

/// Short rows, of which a tile has several groups: the last tile is not full, and some of its groups are empty.
#[test]
fn products_in_row_groups_are_those_of_the_cpu() {
    if let Some((device, blocks)) = persistent_device() {
        for groups in [4, 1] {
            ROW_GROUPS.set(Some(groups));
            check_gemvs_of(&device, blocks, |format| match format.block_len {
                1 => &[56, 64, 120, 256],
                // The scales of eight rows, a byte each, are a multiple of 16 bytes.
                32 if format.name == "MXFP4" => &[64, 512, 704, 960],
                32 => &[32, 512, 736, 992],
                _ if has_one_width(&device, format) => &[768],
                _ => &[512, 768],
            });
        }
        ROW_GROUPS.set(None);
    }
}

/// Every product fits into the shared memory of an RTX card, where wide inputs are not split into bf16 numbers.
#[cfg(feature = "emulator")]
#[test]
fn products_in_little_shared_memory_are_those_of_the_cpu() {
    // An f32 matrix of 11,008 columns together with one in 8 bits, which no model has, does not fit.
    check_gemvs(&Device::emulated_with_shared(99 << 10), 1, 6688);
}

/// Checks products with matrices of every format through the weight pipeline of a persistent program: one that is added to the output
/// twice, and a gated one.
fn check_gemvs(device: &Arc<Device>, blocks: usize, most_cols: usize) {
    check_gemvs_of(device, blocks, |format| {
        let widths = widths(device, format);
        &widths[..widths.partition_point(|cols| *cols <= most_cols)]
    });
}

/// Formats that `wide.cu` unpacks, but for `IQ2_XS`, `Q2_0` and `NVFP4`. The emulator, which is slow, multiplies them in one width.
const UNPACKED_ALIKE: [&str; 11] = [
    "Q1_0", "PQ2_0", "TQ1_0", "PTQ1_0", "TQ2_0", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_S", "IQ3_XXS",
    "IQ3_S",
];

fn has_one_width(device: &Device, format: &Format) -> bool {
    device.name() == "emulator" && UNPACKED_ALIKE.contains(&format.name)
}

/// Row lengths with a partial last piece, and with more pieces than warps; bf16 in whole rows and in tiles; an odd number per row of
/// entries that are read in pairs; more inputs than fit into registers.
fn widths(device: &Device, format: &Format) -> &'static [usize] {
    match format.block_len {
        1 => &[1496, 6688],
        32 => &[1536, 4352, 6656, 11008],
        _ if has_one_width(device, format) => &[1536],
        _ => &[1536, 6656],
    }
}

/// Like `check_gemvs`, for rows of the given lengths.
fn check_gemvs_of(
    device: &Arc<Device>,
    blocks: usize,
    widths: impl Fn(&Format) -> &'static [usize],
) {
    for format in FORMATS {
        for &cols in widths(format) {
            // Enough rows for several batches, if one block has all of them; with wide rows, less than one batch.
            let rows = if cols < 2048 { [295, 5] } else { [71, 5] };
            let width = rows[0] + rows[1];
            let bench = Bench::new(Arc::clone(device), [cols, cols, width, width], 1);
            let x = numbers(7, cols);
            bench.write(0, &x);
            bench.write(3, &vec![0.0; width]);
            let bias: crate::weights::Vector = numbers(9, rows[1]).into();
            let matrices = [
                matrix(format, rows[0], cols, 100 + format.ggml_type),
                matrix(&waterline_quant::F32, rows[1], cols, 50),
                matrix(format, rows[0], cols, 60),
            ];
            let mut scratch = Vec::new();
            let mut launches = bench.launches(1, &mut scratch);
            launches.persistent = true;
            let input = |launches: &Launches| launches.prologue(View::whole(0, cols), None);
            let prologue = input(&launches).expect("an input");
            let factors = [
                WeightMatrix::plain(&matrices[0]),
                WeightMatrix {
                    bias: Some(&bias),
                    column: rows[0],
                    ..WeightMatrix::plain(&matrices[1])
                },
            ];
            for _ in 0..2 {
                launches
                    .gemm(prologue, &factors, View::whole(3, width), true)
                    .expect("ops");
            }
            let gated = [&matrices[0], &matrices[2]].map(WeightMatrix::plain);
            let inner = launches.rows(View::whole(2, width));
            let pushed = launches.push_streaming_gemv(
                prologue,
                &gated,
                format.rounding(),
                inner,
                Epilogue::Gated(Activation::Silu),
            );
            assert!(pushed.expect("ops"), "{format}: rows are aligned");

            bench.run_decode(&launches.calls, blocks);

            let mut inputs = Activations::new(1, cols).expect("memory");
            inputs.load(&x, 1, cols, format.rounding());
            let [first, second, third] = [0, 1, 2].map(|i| product(&matrices[i], &inputs));
            let second = second.iter().zip(bias.iter()).map(|(x, bias)| x + bias);
            let sums: Vec<f32> = first
                .iter()
                .copied()
                .chain(second)
                .map(|x| 2.0 * x)
                .collect();
            let gated: Vec<f32> = (first.iter().zip(&third))
                .map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up)
                .collect();
            let largest = sums
                .iter()
                .chain(&gated)
                .fold(0.0f32, |a, x| a.max(x.abs()));
            for (kind, found, expected) in [
                ("sums", bench.read(3, width), &sums),
                ("gated", bench.read(2, width), &gated),
            ] {
                for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
                    assert!(
                        (found - expected).abs() <= slack(format) * 1e-5 * largest,
                        "{format}, {cols} columns, {kind} {i}: {found}, on the CPU {expected}"
                    );
                }
            }
        }
    }
}
