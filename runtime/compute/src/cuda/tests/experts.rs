//! Routers and mixtures of experts: the emulator, or a GPU if there is one, against the CPU.

use std::sync::Arc;

use waterline_quant::{BF16, F32, Format, MXFP4, Q4_0, Q4_K, Q6_K, Q8_0};

use crate::cuda::tests::rig::Comparison;
use crate::cuda::tests::{device, matrix, numbers};
use crate::functions::{Activation, ClampedUnit, Norm};
use crate::operands::View;
use crate::ops::rig::plan;
use crate::ops::{Expert, ExpertBiases, Experts, Groups, Op, Route, Router, Scoring, SharedExpert};
use crate::state::{Kv, StateDtype};

fn compare(
    op: &dyn Op,
    widths: &[usize],
    output: usize,
    (chunks, tolerance): (&[usize], f32),
    fill: impl Fn(usize, &mut [f32]),
) {
    let Some(device) = device() else { return };
    for persistent in [false, true] {
        let chunks = if persistent { &[1; 3][..] } else { chunks };
        let comparison = Comparison {
            device: &device,
            op,
            plan: &Arc::new(plan(&[(StateDtype::U64, &[1][..])])),
            widths,
            output,
            kv: Kv::F32,
            persistent,
            tolerance,
        };
        comparison.read(chunks, &fill);
    }
}

#[test]
fn routers_choose_as_on_the_cpu() {
    const CHOSEN: usize = 3;
    let plain = Router::softmax(true);
    let sigmoid = Router {
        scoring: Scoring::Sigmoid,
        normalize: Some(1e-6),
        scale: 1.7,
        ..plain
    };
    let capped = |router: Router| Router {
        softcap: Some(0.4),
        ..router
    };
    let grouped = |count: usize, top_k: usize| Router {
        groups: Some(Groups { count, top_k }),
        normalize: None,
        ..sigmoid
    };
    let cases = [
        (plain, 7, false),
        (Router::softmax(false), 300, true),
        (sigmoid, 40, true),
        (capped(sigmoid), 40, true),
        (capped(plain), 33, false),
        (grouped(4, 2), 36, true),
        (grouped(32, 5), 64, false),
    ];
    for (router, experts, bias) in cases {
        let op = Route {
            logits: View::whole(0, experts),
            router,
            bias: bias.then(|| numbers(9, experts).into()),
            gains: (!bias).then(|| numbers(5, experts).into()),
            out: View::whole(1, 2 * CHOSEN),
        };
        let widths = [experts, 2 * CHOSEN, 1];
        compare(&op, &widths, 1, (&[11, 1], 1e-5), |buffer, values| {
            values.copy_from_slice(&numbers(buffer as u32 + 3, values.len()));
        });
    }
}

struct Case {
    format: &'static Format,
    experts: usize,
    chosen: usize,
    cols: usize,
    width: usize,
    gated: bool,
    /// Whether experts are biased and their gated unit is clamped.
    clamped: bool,
    shared: Option<usize>,
    norm: bool,
    chunks: &'static [usize],
}

/// Buffers: the input with a gate of the shared expert, inputs of products, the route, inner values, the order, and the output.
fn mixture(case: &Case) {
    let Case {
        cols,
        width,
        experts,
        chosen,
        ..
    } = *case;
    let expert = |networks: usize, width: usize, seed: u32| Expert {
        gate: case
            .gated
            .then(|| matrix(case.format, networks * width, cols, seed)),
        up: matrix(case.format, networks * width, cols, seed + 1),
        down: matrix(case.format, networks * cols, width, seed + 2),
    };
    let (input, gate) = View::whole(0, cols + 4).split(cols);
    let inner = Experts::inner_width(chosen, width, case.shared.unwrap_or(0));
    let op = Experts {
        input,
        norm: case.norm.then(|| Norm::rms(numbers(8, cols).into(), 1e-6)),
        route: View::whole(2, 2 * chosen),
        experts,
        expert: expert(experts, width, 20),
        biases: case.clamped.then(|| ExpertBiases {
            gate: Some(numbers(40, experts * width).into()),
            up: numbers(41, experts * width).into(),
            down: numbers(42, experts * cols).into(),
        }),
        shared: case.shared.map(|width| SharedExpert {
            expert: expert(1, width, 30),
            gate: Some(gate),
            multiplier: 0.7,
        }),
        activation: if case.gated {
            Activation::Silu
        } else {
            Activation::SquaredRelu
        },
        clamped: case.clamped.then_some(ClampedUnit {
            limit: 0.4,
            slope: 1.7,
        }),
        inner: View::whole(3, inner),
        order: View::whole(4, Experts::order_width(chosen)),
        output: View::whole(5, cols),
        add: case.shared.is_some(),
    };
    // Values between the matrices are rounded to 8 bits if a format requires that: the last bit of a sum then changes a code.
    let tolerance = if case.format.is_integer_dot() {
        0.1
    } else {
        2e-4
    };
    let inputs = Experts::inputs_width(chosen, width.max(case.shared.unwrap_or(0))).max(cols);
    let widths = [cols + 4, inputs, 2 * chosen, inner, op.order.width, cols];
    compare(
        &op,
        &widths,
        5,
        (case.chunks, tolerance),
        |buffer, values| {
            values.copy_from_slice(&numbers(buffer as u32 + 3, values.len()));
            match buffer {
                0 | 5 => values.iter_mut().for_each(|x| *x *= 0.3),
                2 => {
                    for (t, row) in values.chunks_exact_mut(2 * chosen).enumerate() {
                        for rank in 0..chosen {
                            row[rank] = ((t * t + rank * (1 + t % 2)) % experts) as f32;
                            row[chosen + rank] = 0.2 + rank as f32 / 8.0;
                        }
                    }
                }
                _ => {}
            }
        },
    );
}

#[test]
fn mixtures_are_those_of_the_cpu() {
    let plain = Case {
        format: &F32,
        experts: 5,
        chosen: 2,
        cols: 44,
        width: 20,
        gated: true,
        clamped: false,
        shared: Some(24),
        norm: true,
        chunks: &[3, 17, 1],
    };
    mixture(&plain);
    mixture(&Case {
        width: 45,
        cols: 37,
        gated: false,
        shared: None,
        norm: false,
        ..plain
    });
    mixture(&Case {
        format: &BF16,
        width: 136,
        chosen: 3,
        ..plain
    });
    for (format, width) in [(&F32, 21), (&MXFP4, 96)] {
        mixture(&Case {
            format,
            width,
            cols: 64,
            clamped: true,
            shared: None,
            ..plain
        });
    }
    mixture(&Case {
        format: &Q8_0,
        cols: 64,
        width: 96,
        shared: Some(32),
        ..plain
    });
    // Experts without tokens.
    mixture(&Case {
        format: &Q8_0,
        experts: 40,
        cols: 32,
        width: 64,
        shared: Some(32),
        chunks: &[270, 5],
        ..plain
    });
    // Several tiles of an expert's pairs and of its rows, an odd number of units, and sums of several parts.
    mixture(&Case {
        format: &Q4_0,
        experts: 3,
        cols: 160,
        width: 192,
        shared: Some(64),
        chunks: &[270, 9],
        ..plain
    });
    let wide = Case {
        format: &Q4_K,
        cols: 256,
        width: 512,
        chosen: 17,
        experts: 19,
        ..plain
    };
    mixture(&Case {
        shared: None,
        norm: false,
        chunks: &[1],
        ..wide
    });
    for format in [&Q4_K, &Q6_K] {
        mixture(&Case {
            format,
            width: 256,
            chosen: 3,
            shared: Some(256),
            chunks: &[20],
            ..wide
        });
    }
}
