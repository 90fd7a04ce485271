//! Columns on the emulator, or on a GPU where there is one: the bits of recorded steps.

use std::path::PathBuf;
use std::sync::Arc;

use waterline_quant::{BF16, FORMATS, Q4_0, Q8_0};

use crate::bound::Model;
use crate::cuda::Device;
use crate::cuda::gemm::{GatedUnit, WeightMatrix};
use crate::cuda::tests::{Bench, device, matrix, numbers};
use crate::engine::StepProgram;
use crate::functions::Activation;
use crate::operands::View;
use crate::sampler::SamplerParams;
use crate::session::{Batch, Session, SessionOptions};
use crate::state::StateOptions;
use crate::synthetic::{repeating, state_of};

/// Models whose ops are of every kind: those whose blocks pass nothing on, those with several kernels, with experts, with chosen
/// parts of matrices, and with kept inputs.
const MODELS: [&str; 6] = [
    "fixtures/gdn_swa",
    "fixtures/fla_mamba_rank3",
    "fixtures/mom_k2",
    "fixtures/hf_qwen3_5_moe_fused",
    "fixtures/rwkv7_plain",
    "fixtures/lalte_stream_gqa",
];

fn models() -> impl Iterator<Item = (&'static str, Arc<Model>)> {
    let tests = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests");
    let open = move |name: &'static str| (name, Model::open(tests.join(name)).expect("a model"));
    MODELS.into_iter().map(open)
}

/// A session whose steps are recorded, which has read a prompt of its own.
fn session(model: &Arc<Model>, device: &Arc<Device>, number: usize, lookup: usize) -> Session {
    let options = SessionOptions {
        state: StateOptions {
            context: 128,
            history: 64,
            ..StateOptions::default()
        },
        chunk: 16,
        threads: 1,
        lookup,
        sampler: SamplerParams {
            temperature: [0.0, 0.8, 0.4][number],
            // Some sessions choose on the host, and repeat a token until noise is larger.
            logit_bias: vec![(3, 6.0); usize::from(number == 2)],
            seed: number as u64,
            ..SamplerParams::default()
        },
        step: StepProgram::Recorded,
        device: Some(Arc::clone(device)),
        ..SessionOptions::default()
    };
    repeating(model, options, number)
}

/// The sessions of each step: the second one joins late and leaves early, the third one leaves earlier. So the host chooses, then
/// the device samples, then it chooses the most probable token.
fn is_in(number: usize, step: usize) -> bool {
    [true, (2..5).contains(&step), step < 4][number]
}

#[test]
fn sessions_of_a_batch_give_what_they_give_alone() {
    let Some(device) = device() else {
        return;
    };
    for (name, model) in models() {
        let sessions =
            || -> Vec<Session> { (0..3).map(|n| session(&model, &device, n, 0)).collect() };
        let (mut alone, mut batched) = (sessions(), sessions());
        let mut batch = Batch::new(&alone[0], 3).expect("a batch");
        let room = batch.work_bytes();
        for step in 0..6 {
            let members = batched.iter_mut().enumerate();
            let members = members.filter(|(n, _)| is_in(*n, step));
            let (numbers, mut members): (Vec<usize>, Vec<&mut Session>) = members.unzip();
            let tokens = match step {
                3 => {
                    let tokens: Vec<u32> = (0..members.len() as u32).collect();
                    batch.feed(&mut members, &tokens).expect("tokens");
                    tokens
                }
                _ => batch.step(&mut members).expect("a step").to_vec(),
            };
            for (number, token) in numbers.into_iter().zip(tokens) {
                let (one, other) = (&mut alone[number], &mut batched[number]);
                match step {
                    3 => one.feed(&[token]).expect("a token"),
                    _ => assert_eq!(
                        one.step().expect("a step"),
                        token,
                        "{name}: {number}, {step}"
                    ),
                }
                assert_eq!(
                    one.logits().expect("logits"),
                    other.logits().expect("logits"),
                    "{name}: session {number}, step {step}"
                );
                if step == 4 {
                    // A step alone, between those of the batch.
                    assert_eq!(one.step().expect("a step"), other.step().expect("a step"));
                }
            }
        }
        assert_eq!(batch.work_bytes(), room);
        for (one, other) in alone.iter().zip(&batched) {
            assert!(state_of(one) == state_of(other), "{name}: another state");
        }
    }
}

/// Whatever is accepted, refused or taken back: the same tokens and, to the bit, the same state as step by step.
#[test]
fn reading_ahead_is_stepping() {
    let Some(device) = device() else {
        return;
    };
    let (mut accepted, mut refused) = (0, 0);
    for (name, model) in models() {
        for number in [0, 2] {
            let mut plain = session(&model, &device, number, 0);
            let mut ahead = session(&model, &device, number, 5);
            let mut tokens = Vec::new();
            for round in 0..6 {
                ahead.step_ahead(5, &[1]).expect("tokens");
                let read = ahead.ahead().to_vec();
                accepted += read.len() - 1;
                refused += usize::from(read.len() == 1);
                let kept = if round % 3 == 2 { 1 } else { read.len() };
                ahead.keep_ahead(kept).expect("a state");
                tokens.extend_from_slice(&read[..kept]);
            }
            for token in tokens {
                assert_eq!(plain.step().expect("a token"), token, "{name}");
            }
            assert!(
                state_of(&plain) == state_of(&ahead),
                "{name}: another state"
            );
        }
    }
    assert!(accepted > 4 && refused > 4, "{accepted} {refused}");
}

#[test]
fn what_a_batch_cannot_step_is_refused() {
    let Some(device) = device() else {
        return;
    };
    let (_, model) = models().next().expect("a model");
    let mut one = session(&model, &device, 0, 0);
    let mut other = Session::new(
        Arc::clone(&model),
        SessionOptions {
            device: Some(Arc::clone(&device)),
            chunk: 16,
            ..SessionOptions::default()
        },
    )
    .expect("a session");
    let mut on_cpu = Session::new(Arc::clone(&model), SessionOptions::default()).expect("one");
    let mut batch = Batch::new(&one, 2).expect("a batch");
    for (session, reason) in [
        (&mut other, "another context"),
        (&mut on_cpu, "another device"),
    ] {
        let refused = batch.feed(&mut [&mut one, session], &[1, 2]);
        let error = refused.expect_err("a refusal").to_string();
        assert!(error.contains(reason), "{error}");
    }
    assert!(Batch::new(&one, 65).is_err());
    assert!(batch.step(&mut []).expect("nobody").is_empty());
}

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
