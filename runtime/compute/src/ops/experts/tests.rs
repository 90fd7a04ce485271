use waterline_quant::{BF16, Bytes, F32, Format, Q8_0};

use super::super::rig::{Rig, noise};
use super::super::{Route, Router};
use super::*;

fn matrix(format: &'static Format, rows: usize, cols: usize, seed: usize) -> Matrix {
    let values: Vec<f32> = (0..rows * cols).map(|i| noise(seed + i)).collect();
    let mut bytes = vec![0; format.tensor_bytes(&[rows, cols]).expect("a shape")];
    format.encode_or_imitate(&values, &mut bytes);
    Matrix::new(format, rows, cols, Bytes::from_vec(bytes)).expect("a matrix")
}

fn expert(
    format: &'static Format,
    networks: usize,
    cols: usize,
    width: usize,
    gated: bool,
) -> Expert {
    Expert {
        gate: gated.then(|| matrix(format, networks * width, cols, 1)),
        up: matrix(format, networks * width, cols, 50_000),
        down: matrix(format, networks * cols, width, 100_000),
    }
}

const EXPERTS: usize = 5;
const CHOSEN: usize = 2;

/// Buffers: the input with a gate of the shared expert, inputs of products, the route, inner values, the order, the output.
fn op(
    format: &'static Format,
    cols: usize,
    width: usize,
    gated: bool,
    shared: Option<usize>,
) -> Experts {
    let (input, gate) = View::whole(0, cols + 1).split(cols);
    let inner = Experts::inner_width(CHOSEN, width, shared.unwrap_or(0));
    Experts {
        input,
        norm: None,
        route: View::whole(2, 2 * CHOSEN),
        experts: EXPERTS,
        expert: expert(format, EXPERTS, cols, width, gated),
        biases: None,
        shared: shared.map(|width| SharedExpert {
            expert: expert(format, 1, cols, width, gated),
            gate: Some(gate),
            multiplier: 0.7,
        }),
        activation: if gated {
            Activation::Silu
        } else {
            Activation::SquaredRelu
        },
        clamped: None,
        inner: View::whole(3, inner),
        order: View::whole(4, Experts::order_width(CHOSEN)),
        output: View::whole(5, cols),
        add: true,
    }
}

fn widths(op: &Experts) -> [usize; 6] {
    let inputs = Experts::inputs_width(CHOSEN, op.expert.width()).max(op.input.width);
    [
        op.input.stride,
        inputs,
        2 * CHOSEN,
        op.inner.width,
        op.order.width,
        op.output.width,
    ]
}

/// The experts of a token and their weights.
fn choice(t: usize) -> [f32; 2 * CHOSEN] {
    let first = t * t % EXPERTS;
    let second = (first + 1 + t % (EXPERTS - 1)) % EXPERTS;
    [first as f32, second as f32, 0.4 + noise(t) / 4.0, 0.6]
}

fn fill(buffer: usize, t: usize, row: &mut [f32]) {
    match buffer {
        2 => row.copy_from_slice(&choice(t)),
        0 | 5 => row
            .iter_mut()
            .enumerate()
            .for_each(|(i, x)| *x = noise(buffer + 64 * t + i)),
        // Values that must not be read.
        _ => row.fill(f32::NAN),
    }
}

fn read(op: &Experts, chunks: &[usize]) -> Vec<f32> {
    Rig::new(op, &widths(op), &[])
        .working(&[1])
        .read(chunks, fill, op.output)
        .0
}

/// The output of one network, in f64.
fn network(expert: &Expert, number: usize, x: &[f32], activation: Activation) -> Vec<f64> {
    let product = |matrix: &Matrix, row: usize, x: &[f64]| -> f64 {
        let mut weights = vec![0.0; matrix.cols()];
        matrix.decode_row(row, &mut weights);
        weights.iter().zip(x).map(|(&w, x)| f64::from(w) * x).sum()
    };
    let act = |x: f64| match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        _ => x.max(0.0) * x.max(0.0),
    };
    let x: Vec<f64> = x.iter().map(|&x| x.into()).collect();
    let width = expert.width();
    let inner: Vec<f64> = (number * width..(number + 1) * width)
        .map(|row| {
            let up = product(&expert.up, row, &x);
            match &expert.gate {
                Some(gate) => act(product(gate, row, &x)) * up,
                None => act(up),
            }
        })
        .collect();
    let rows = x.len();
    (number * rows..(number + 1) * rows)
        .map(|row| product(&expert.down, row, &inner))
        .collect()
}

fn follows_its_definition(op: &Experts, tolerance: f64) {
    const TOKENS: usize = 150;
    let found = read(op, &[TOKENS]);
    let cols = op.output.width;
    for (t, found) in found.chunks_exact(cols).enumerate() {
        let mut input = vec![0.0; op.input.stride];
        let mut sums = vec![0.0; cols];
        fill(0, t, &mut input);
        fill(5, t, &mut sums);
        let mut sums: Vec<f64> = sums.into_iter().map(f64::from).collect();
        let mut add = |weight: f64, output: Vec<f64>| {
            sums.iter_mut()
                .zip(output)
                .for_each(|(sum, x)| *sum += weight * x);
        };
        let [first, second, a, b] = choice(t);
        for (number, weight) in [(first, a), (second, b)] {
            let output = network(&op.expert, number as usize, &input[..cols], op.activation);
            add(weight.into(), output);
        }
        if let Some(shared) = &op.shared {
            let gate = 1.0 / (1.0 + f64::from(-input[cols]).exp());
            add(
                0.7 * gate,
                network(&shared.expert, 0, &input[..cols], op.activation),
            );
        }
        for (found, sum) in found.iter().zip(sums) {
            let error = (f64::from(*found) - sum).abs() / (1.0 + sum.abs());
            assert!(error < tolerance, "token {t}: {found}, not {sum}");
        }
    }
}

#[test]
fn outputs_follow_their_definition() {
    follows_its_definition(&op(&F32, 20, 67, true, None), 1e-4);
    follows_its_definition(&op(&F32, 37, 24, false, Some(70)), 1e-4);
    follows_its_definition(&op(&BF16, 48, 130, true, Some(16)), 1e-4);
}

#[test]
fn chunks_are_steps_bit_for_bit() {
    for op in [
        op(&F32, 20, 67, true, Some(9)),
        op(&Q8_0, 64, 96, true, Some(32)),
    ] {
        let steps = read(&op, &[1; 70]);
        assert!(steps.iter().all(|x| x.is_finite()));
        assert_eq!(read(&op, &[70]), steps);
        assert_eq!(read(&op, &[1, 66, 3]), steps);
    }
}

#[test]
fn experts_that_are_not_chosen_are_not_read() {
    let mut op = op(&F32, 16, 24, true, None);
    let poison = |matrix: &Matrix| {
        let size = matrix.bytes().len() / EXPERTS;
        let mut bytes = matrix.bytes().to_vec();
        // Every token of this test chooses 1 and 3.
        for number in [0, 2, 4] {
            bytes[number * size..(number + 1) * size].fill(0xff);
        }
        Matrix::new(&F32, matrix.rows(), matrix.cols(), Bytes::from_vec(bytes)).expect("a matrix")
    };
    op.expert = Expert {
        gate: op.expert.gate.as_ref().map(poison),
        up: poison(&op.expert.up),
        down: poison(&op.expert.down),
    };
    let fill = |buffer: usize, t: usize, row: &mut [f32]| match buffer {
        2 => row.copy_from_slice(&[1.0, 3.0, 0.5, 0.5]),
        _ => fill(buffer, t, row),
    };
    let found = Rig::new(&op, &widths(&op), &[])
        .working(&[1])
        .read(&[1, 40], fill, op.output)
        .0;
    assert!(found.iter().all(|x| x.is_finite()));
    assert_eq!(op.weight_bytes(), 3 * 16 * 24 * 4 * CHOSEN);
}

#[test]
fn a_poisoned_choice_stays_inside_the_matrices() {
    let out = View::whole(1, 2 * CHOSEN);
    let route = Route {
        logits: View::whole(0, EXPERTS),
        router: Router::softmax(true),
        bias: None,
        gains: None,
        out,
    };
    let nan = |_: usize, _: usize, row: &mut [f32]| row.fill(f32::NAN);
    let chosen = Rig::new(&route, &[EXPERTS, out.width], &[])
        .read(&[1], nan, out)
        .0;
    let op = op(&F32, 16, 24, true, None);
    let fill = |buffer: usize, t: usize, row: &mut [f32]| match buffer {
        2 => row.copy_from_slice(&chosen),
        _ => fill(buffer, t, row),
    };
    let found = Rig::new(&op, &widths(&op), &[])
        .working(&[1])
        .read(&[70], fill, op.output)
        .0;
    assert!(found.iter().all(|x| x.is_nan()));
}
