//! Inputs that the prologues of products compute in a persistent program, against the CPU.

use std::sync::Arc;

use waterline_quant::{Activations, Q8_0};

use crate::cuda::gemm::WeightMatrix;
use crate::cuda::tests::{Bench, matrix, numbers, persistent_device, product};
use crate::functions::{Activation, Norm, OutputOp};
use crate::operands::View;

/// A thread holds four values of a row, two adjacent runs of four, or several such pairs; some rows leave the last threads without values.
/// A part of a norm spans two warps, or one.
#[test]
fn inputs_are_normed_and_gated_as_on_the_cpu() {
    let Some((device, blocks)) = persistent_device() else {
        return;
    };
    const PART: usize = 256;
    const ROWS: usize = 37;
    for cols in [2048, 4096, 4352, 6144, 11008] {
        let weights = matrix(&Q8_0, ROWS, cols, 3);
        let (x, gates) = (numbers(5, cols), numbers(6, cols));
        let parts = Norm::rms(numbers(8, PART).into(), 1e-5);
        let whole = Norm::rms(numbers(8, cols).into(), 1e-5);
        for norm in [parts, whole] {
            let bench = Bench::new(Arc::clone(&device), [cols, cols, cols, ROWS], 1);
            bench.write(0, &x);
            bench.write(2, &gates);
            bench.write(3, &[0.0; ROWS]);
            let mut scratch = Vec::new();
            let mut launches = bench.launches(1, &mut scratch);
            launches.persistent = true;
            let by_parts = norm.weight.len() == PART;
            let mut finish = vec![OutputOp::Norm(norm.clone())];
            if by_parts {
                finish.push(OutputOp::Gate(View::whole(2, cols), Activation::Silu));
            }
            let prologue = launches.output_prologue(View::whole(0, cols), &finish);
            let factors = [WeightMatrix::plain(&weights)];
            launches
                .gemm(
                    prologue.expect("an input"),
                    &factors,
                    View::whole(3, ROWS),
                    true,
                )
                .expect("ops");
            bench.run_decode(&launches.calls, blocks);

            let mut made = x.clone();
            let groups = made.chunks_exact_mut(norm.weight.len());
            groups.for_each(|group| norm.apply_in_place(group));
            if by_parts {
                Activation::Silu.gate(&gates, &mut made);
            }
            let mut inputs = Activations::new(1, cols).expect("memory");
            inputs.load(&made, 1, cols, Q8_0.rounding());
            let expected = product(&weights, &inputs);
            let largest = expected.iter().fold(0.0f32, |a, x| a.max(x.abs()));
            for (row, (found, expected)) in bench.read(3, ROWS).iter().zip(&expected).enumerate() {
                // A value between two codes may be rounded to either.
                assert!(
                    (found - expected).abs() <= 1e-3 * largest,
                    "{cols} columns, by parts: {by_parts}, row {row}: {found}, on the CPU {expected}"
                );
            }
        }
    }
}
