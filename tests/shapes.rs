//! Every mixer in sizes that no fixture has: widths that are not multiples of vector registers, odd and single heads, windows that wrap,
//! sets and bins that overflow, texts shorter than a convolution. Random models must give the same results for any split of a text as for
//! single tokens.

#[path = "shapes/layers.rs"]
mod layers;
mod synthetic;

use std::sync::Arc;

use layers::{blocks, vary};
use serde_json::json;
use synthetic::{Random, described, description, model, options, tokens, weights};
use waterline::{ContextEnd, Model, Session, StateDtype};

const TOKENS: usize = 75;
/// The number of descriptions of each mixer.
const SEEDS: u64 = 12;
/// Shorter than the text, so that states limited by the context wrap as well.
const CONTEXT: usize = 50;

const KINDS: [&str; 30] = [
    "abc",
    "attention",
    "delta_net",
    "gated_conv",
    "gated_deltanet",
    "gated_deltanet2",
    "gla",
    "gsa",
    "hgrn2",
    "kda",
    "latent_attention",
    "lightning_attention",
    "lte",
    "mamba",
    "mamba2",
    "mamba3",
    "mom",
    "native_sparse_attention",
    "parallel",
    "raven",
    "retnet",
    "rg_lru",
    "rwkv6",
    "rwkv7",
    "rwkv_channel_mix",
    "shared_block",
    "shared_keys",
    "simple_gla",
    "sse",
    "sse_swa",
];

fn random_model(kind: &str, seed: u64) -> (String, Arc<Model>) {
    let mut random = Random(seed * 7919 + kind.len() as u64);
    random.below(1);
    let mut hidden = random.of(&[1, 5, 16, 33]);
    let mut all = blocks(kind, &mut hidden, &mut random);
    if !matches!(kind, "rwkv6" | "rwkv7") && random.flip() {
        let first = all.len() as u64;
        all.extend(blocks(kind, &mut hidden, &mut random));
        for layer in &mut all[first as usize..] {
            if let Some(owner) = layer.get_mut("keys_of") {
                *owner = json!(first + owner.as_u64().expect("a number"));
            }
        }
    }
    // Every other description keeps the basic layer form, without variations.
    if seed % 2 == 1 {
        all.iter_mut().for_each(|layer| vary(layer, &mut random));
    }
    let has_inputs = kind == "shared_keys" && seed.is_multiple_of(2);
    if has_inputs {
        // A scale after a layer needs a norm before the next one.
        all.iter_mut()
            .for_each(|layer| layer["output_scale"] = json!(true));
    }
    let mut spec = description(hidden, all);
    if has_inputs {
        spec["per_layer_inputs"] = json!(random.within(1, 9));
    }
    if seed % 2 == 1 {
        spec["embedding_multiplier"] = json!(2.0);
        spec["logits_multiplier"] = json!(0.5);
        spec["logit_softcap"] = json!(random.of(&[None, Some(3.0)]));
    }
    spec["tied"] = json!(random.flip());
    spec["embedding_norm"] = json!(random.flip());
    spec["norm"] = if random.flip() {
        json!("rms")
    } else {
        json!({ "layer": { "bias": true } })
    };
    let spec = described(&spec);
    let what = format!("{kind} {seed}: {}", spec.to_json());
    (what, model(&spec, &weights(&spec, seed)))
}

fn session(model: &Arc<Model>, chunk: usize) -> Session {
    let mut options = options(chunk, CONTEXT);
    options.context_end = ContextEnd::Shift;
    // Long chunks use two threads, so that tasks share a state.
    options.threads = if chunk == TOKENS { 2 } else { 1 };
    Session::new(Arc::clone(model), options).expect("a session")
}

/// Returns the largest difference, relative to the largest value of the second list.
fn difference(a: &[f32], b: &[f32]) -> f32 {
    let largest = b.iter().fold(1e-3f32, |m, x| m.max(x.abs()));
    a.iter().zip(b).fold(0.0f32, |m, (x, y)| {
        if x == y {
            m
        } else {
            m.max((x - y).abs() / largest)
        }
    })
}

/// Chunks and steps round differently; an error at a chunk border gives 1e-1 and more.
const ROUNDING: f32 = 2e-3;

fn compare(what: &str, found: &Session, expected: &Session) {
    let (found, expected) = (
        found.snapshot().expect("a snapshot"),
        expected.snapshot().expect("a snapshot"),
    );
    for ((tensor, a), (_, b)) in found.tensors().zip(expected.tensors()) {
        let floats = |bytes: &[u8]| -> Vec<f32> {
            let numbers = bytes.as_chunks().0.iter();
            numbers.map(|&x| f32::from_le_bytes(x)).collect()
        };
        let d = match tensor.dtype {
            StateDtype::F32 => difference(&floats(a), &floats(b)),
            _ => f32::from(u8::from(a != b)),
        };
        assert!(d < ROUNDING, "{} differs by {d}: {what}", tensor.name);
    }
}

#[test]
fn every_mixer_reads_any_split_of_any_size_as_single_steps() {
    for kind in KINDS {
        for seed in 0..SEEDS {
            let (what, model) = random_model(kind, seed);
            let text = tokens(model.spec().vocab, TOKENS, seed);
            let mut steps = session(&model, 1);
            let mut expected = Vec::new();
            steps
                .feed_each(&text, |_, logits| expected.extend_from_slice(logits))
                .expect("steps");
            assert!(expected.iter().all(|x| x.is_finite()), "not finite: {what}");

            let mut random = Random(seed + 1);
            for chunk in [random.within(2, 9), TOKENS] {
                let mut split = session(&model, chunk);
                let (mut rest, mut found) = (&text[..], Vec::new());
                while !rest.is_empty() {
                    let (now, later) = rest.split_at(random.within(1, TOKENS).min(rest.len()));
                    split
                        .feed_each(now, |_, logits| found.extend_from_slice(logits))
                        .expect("a split");
                    rest = later;
                }
                let d = difference(&found, &expected);
                assert!(
                    d < ROUNDING,
                    "logits differ by {d} in chunks of {chunk}: {what}"
                );
                compare(&what, &split, &steps);
            }

            // A saved state continues with the same bits.
            let mut first = session(&model, 8);
            first.feed(&text[..random.within(1, 40)]).expect("a prompt");
            let saved = first.snapshot().expect("a snapshot");
            first.feed(&text[40..]).expect("more");
            let mut second = session(&model, 8);
            second.restore(&saved).expect("restored");
            second.feed(&text[40..]).expect("more");
            assert!(
                first.logits().expect("logits") == second.logits().expect("logits"),
                "a restore differs: {what}"
            );
        }
    }
}
