//! Batches and drafts on the emulator, or on a GPU if available, are bit-identical to recorded steps.

use std::path::PathBuf;
use std::sync::Arc;

use waterline_quant::{BF16, Q4_0, Q4_K, Q6_K};

use crate::cpu::Pool;
use crate::cuda::Device;
use crate::devices::{device, persistent_device};
use crate::engine::{self, Setup, StepProgram};
use crate::loaded::Model;
use crate::session::choice::Choice;
use crate::session::{Batch, Session, SessionOptions};
use crate::state::{Kv, StateOptions};
use crate::synthetic::{in_format, repeating, state_of};

/// Models that together have every kind of op: without values passed between blocks, with several kernels, with experts, with selected
/// parts of matrices, and with saved inputs.
const MODELS: [&str; 6] = [
    "fixtures/gdn_swa",
    "fixtures/fla_mamba_rank3",
    "fixtures/mom_k2",
    "fixtures/hf_qwen3_5_moe_fused",
    "fixtures/rwkv7_plain",
    "fixtures/lalte_stream_gqa",
];

/// Models whose rows have whole blocks of 32 and of 256 values.
const SMALL: &str = "models/gdn-swa.gguf";
const BUILT_IN: &str = "../tools/model/waterline-chat.gguf";

fn models() -> impl Iterator<Item = (&'static str, Arc<Model>)> {
    let tests = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests");
    let open = move |name: &'static str| (name, Model::open(tests.join(name)).expect("a model"));
    MODELS.into_iter().map(open)
}

/// Creates a session with recorded steps that has read a prompt.
fn session(model: &Arc<Model>, device: &Arc<Device>, number: usize, lookup: usize) -> Session {
    stepping(model, device, number, lookup, StepProgram::Recorded)
}

/// Creates a session with this form of steps that has read a prompt.
fn stepping(
    model: &Arc<Model>,
    device: &Arc<Device>,
    number: usize,
    lookup: usize,
    step: StepProgram,
) -> Session {
    let mut options = SessionOptions {
        chunk: 16,
        threads: 1,
        lookup,
        step,
        device: Some(Arc::clone(device)),
        ..SessionOptions::default()
    };
    (options.state.context, options.state.history) = (128, 64);
    options.sampler.temperature = [0.0, 0.8, 0.4][number];
    // Some sessions choose on the host; the bias makes them repeat a token most of the time.
    options.sampler.logit_bias = vec![(3, 6.0); usize::from(number == 2)];
    options.sampler.seed = number as u64;
    repeating(model, options, number)
}

/// The sessions of each step: the second joins late and leaves early, the third leaves earlier still. So first the host chooses, then
/// the device samples, then the device chooses the most probable token.
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
                    // A step of the session alone, between those of the batch.
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

#[test]
fn reading_ahead_is_stepping() {
    if let Some(device) = device() {
        read_ahead(&device, models(), StepProgram::Recorded, 5);
    }
}

/// Drafts of up to three tokens run in the decode kernel.
#[test]
fn reading_ahead_in_the_decode_kernel_is_stepping() {
    let Some((device, _)) = persistent_device() else {
        return;
    };
    let in_formats = [
        (SMALL, &Q4_0),
        (SMALL, &BF16),
        (BUILT_IN, &Q4_K),
        (BUILT_IN, &Q6_K),
    ];
    // The emulator takes minutes for larger models.
    let formats = if device.name() == "emulator" {
        &in_formats[..2]
    } else {
        &in_formats
    };
    let formats = formats.iter().map(|(file, format)| {
        let model = in_format(file, format).expect("rows");
        (format.name, model)
    });
    let models = models().chain(formats);
    read_ahead(&device, models, StepProgram::Persistent, 3);
}

/// Whatever is accepted, refused or taken back, tokens and state are bit-identical to single steps.
fn read_ahead(
    device: &Arc<Device>,
    models: impl Iterator<Item = (&'static str, Arc<Model>)>,
    step: StepProgram,
    draft: usize,
) {
    let (mut accepted, mut refused) = (0, 0);
    for (index, (name, model)) in models.enumerate() {
        // The emulator is slow: every second model samples.
        let numbers: &[usize] = match device.name() {
            "emulator" => &[2 * (index % 2)],
            _ => &[0, 2],
        };
        for &number in numbers {
            let mut plain = stepping(&model, device, number, 0, step);
            let mut ahead = stepping(&model, device, number, draft, step);
            let mut tokens = Vec::new();
            for round in 0..6 {
                ahead
                    .step_ahead(&mut Choice::default(), 5, &[1])
                    .expect("tokens");
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

/// From nine slots on, tensor cores multiply BF16 matrices and round the inputs, so such models verify fewer tokens per pass.
#[test]
fn drafts_over_bf16_matrices_have_exact_slots() {
    let Some(device) = device() else {
        return;
    };
    let most = |model: &Arc<Model>| {
        let setup = Setup {
            device: Some(Arc::clone(&device)),
            pool: Arc::new(Pool::new(1).expect("threads")),
            chunk: 16,
            marks: 0,
            kv: Kv::F16,
            step: StepProgram::Recorded,
            exact: false,
            grid: 0,
        };
        let plan = model.plan(&StateOptions::default()).expect("a plan");
        let engine = engine::new(model, Arc::new(plan), &setup).expect("an engine");
        engine.verifier(16, false).expect("memory").most()
    };
    assert_eq!(most(&in_format(SMALL, &BF16).expect("rows")), 8);
    let (_, model) = models().next().expect("a model");
    assert_eq!(most(&model), 16);
}

#[test]
fn exact_sessions_read_and_step_together_as_many_tokens_as_are_exact() {
    let Some(device) = device() else {
        return;
    };
    let rounded = in_format(SMALL, &BF16).expect("rows");
    let (_, model) = models().next().expect("a model");
    for (model, most, is_refused) in [(rounded, 8, true), (model, 16, false)] {
        let options = SessionOptions {
            device: Some(Arc::clone(&device)),
            exact: true,
            chunk: 64,
            ..SessionOptions::default()
        };
        let mut session = Session::new(model, options).expect("a session");
        let mut reads = Vec::new();
        session
            .read_history_with(&[1; 40], &[], |read, _| reads.push(read))
            .expect("tokens");
        let steps = std::iter::once(reads[0]).chain(reads.windows(2).map(|w| w[1] - w[0]));
        assert_eq!(steps.max(), Some(most), "{reads:?}");
        assert!(Batch::new(&session, 8).is_ok());
        assert_eq!(Batch::new(&session, 9).is_err(), is_refused);
    }
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
