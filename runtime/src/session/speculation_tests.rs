//! Compares reading ahead with plain steps, and drafts of an MTP block with its equations.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};

use super::Choice;
use crate::plain::{EPS, Plain, Vector, dot, rotate, sigmoid, silu, softmax};
use crate::synthetic::{
    block, described, description, model, options, repeating, state_of, tokens, weights,
};
use crate::{Device, Model, OpenOptions, Session, SessionOptions, StepProgram};

/// Creates a session that has read repetitive text.
fn session(model: &Arc<Model>, lookup: usize, temperature: f32) -> Session {
    let mut options = SessionOptions {
        threads: 2,
        chunk: 16,
        lookup,
        ..SessionOptions::default()
    };
    (options.sampler.temperature, options.sampler.seed) = (temperature, 3);
    repeating(model, options, 0)
}

/// Whatever is accepted, refused or taken back, tokens and state are bit-identical to single steps.
#[test]
fn reading_ahead_is_stepping() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures");
    let (mut accepted, mut refused, mut cases) = (0, 0, 0);
    for entry in std::fs::read_dir(folder).expect("cases") {
        let path = entry.expect("an entry").path();
        if !path.join("meta.json").exists() {
            continue;
        }
        let model = Model::open(&path).expect("a model");
        if model.spec().shares_keys() {
            let drafting = SessionOptions {
                lookup: 3,
                ..SessionOptions::default()
            };
            assert!(Session::new(Arc::clone(&model), drafting).is_err());
            continue;
        }
        cases += 1;
        // Drafts with more tokens than the limit at which a product changes its summation order, and with fewer.
        for (temperature, most) in [(0.0, 12), (0.3, 5)] {
            let mut plain = session(&model, 0, temperature);
            let mut ahead = session(&model, most + 1, temperature);
            let mut tokens = Vec::new();
            for round in 0..12 {
                ahead
                    .step_ahead(&mut Choice::default(), most, &[1])
                    .expect("tokens");
                let read = ahead.ahead().to_vec();
                assert!((1..=most).contains(&read.len()));
                assert!(!read[..read.len() - 1].contains(&1), "behind an end");
                accepted += read.len() - 1;
                refused += usize::from(read.len() == 1);
                let kept = if round % 3 == 2 {
                    read.len().min(2)
                } else {
                    read.len()
                };
                ahead.keep_ahead(kept).expect("a state");
                tokens.extend_from_slice(&read[..kept]);
                assert!(ahead.ahead().is_empty());
            }
            for token in tokens {
                assert_eq!(plain.step().expect("a token"), token, "{}", path.display());
            }
            assert!(state_of(&plain) == state_of(&ahead), "{}", path.display());
        }
    }
    assert!(
        cases > 15 && accepted > cases && refused > cases,
        "{accepted} {refused}"
    );
}

const HIDDEN: usize = 24;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD: usize = 6;
/// Number of values of a head that are rotated.
const TURNED: usize = 4;
const THETA: f64 = 100.0;

fn attention(more: Value) -> Value {
    let mut parameters = json!({
        "heads": HEADS, "kv_heads": KV_HEADS, "head_dim": HEAD, "rope_theta": THETA, "rope_dim": TURNED,
        "bias": false, "out_bias": false, "gate": true, "head_norm_eps": EPS,
    });
    let more = more.as_object().expect("an object").clone();
    parameters.as_object_mut().expect("an object").extend(more);
    block("attention", parameters, Some(40))
}

/// A model of these layers with an MTP block. The booleans select whether embedding, norm and output matrix are the block's own.
fn with_mtp(layers: Vec<Value>, layer: Value, [embedding, norm, head]: [bool; 3]) -> Value {
    let mut described = description(HIDDEN, layers);
    described["mtp"] = json!({
        "layer": layer, "own_embedding": embedding, "own_norm": norm, "own_head": head,
    });
    described
}

/// The keys and values of one attention layer, `[KV_HEADS * HEAD]` per token.
type Cache = Vec<[Vector; 2]>;

/// A layer of gated attention and a feed-forward network, in f64.
fn layer(w: &Plain, number: usize, mut x: Vector, cache: &mut Cache) -> Vector {
    let name = |part: &str| format!("blk.{number}.{part}");
    let h = w.rms(&name("attn_norm"), &x);
    let turned = |part: &str, norm: &str| -> Vector {
        let projected = w.apply(&name(part), &h);
        let heads = projected.chunks_exact(HEAD).flat_map(|head| {
            let head = w.rms(&name(norm), head);
            let mut turned = rotate(&head[..TURNED], cache.len(), THETA);
            turned.extend_from_slice(&head[TURNED..]);
            turned
        });
        heads.collect()
    };
    let q = turned("mixer.q_proj", "mixer.q_norm");
    let k = turned("mixer.k_proj", "mixer.k_norm");
    cache.push([k, w.apply(&name("mixer.v_proj"), &h)]);
    let mut out = Vector::new();
    for i in 0..HEADS {
        let group = i / (HEADS / KV_HEADS) * HEAD;
        let part = |values: &Vector| values[group..group + HEAD].to_vec();
        let query = &q[i * HEAD..][..HEAD];
        let score = |[k, _]: &[Vector; 2]| dot(&part(k), query) / (HEAD as f64).sqrt();
        let shares = softmax(&cache.iter().map(score).collect::<Vector>());
        for d in group..group + HEAD {
            out.push(
                cache
                    .iter()
                    .zip(&shares)
                    .map(|([_, v], share)| v[d] * share)
                    .sum(),
            );
        }
    }
    let gates = w.apply(&name("mixer.g_proj"), &h);
    let gated: Vector = out.iter().zip(gates).map(|(o, g)| o * sigmoid(g)).collect();
    let add = |x: &mut Vector, y: Vector| x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
    add(&mut x, w.apply(&name("mixer.o_proj"), &gated));
    let h = w.rms(&name("ffn_norm"), &x);
    let up = w.apply(&name("ffn_up"), &h).into_iter();
    let wide: Vector = up
        .zip(w.apply(&name("ffn_gate"), &h))
        .map(|(u, g)| u * silu(g))
        .collect();
    add(&mut x, w.apply(&name("ffn_down"), &wide));
    x
}

/// The block's input for a token: its embedding and the previous token's hidden state.
fn joined(w: &Plain, embedding: &str, token: u32, before: &[f64]) -> Vector {
    let rows = w.values(&format!("{embedding}.weight"));
    let row = &rows[token as usize * HIDDEN..][..HIDDEN];
    let pair = [
        w.rms("blk.1.nextn.enorm", row),
        w.rms("blk.1.nextn.hnorm", before),
    ]
    .concat();
    w.apply("blk.1.nextn.eh_proj", &pair)
}

/// The block's drafts after a text whose last token the model has not read: each token, and the margin of its logit over the second
/// largest.
fn drafted(w: &Plain, own: [bool; 3], text: &[u32], count: usize) -> Vec<(u32, f64)> {
    let name = |own: bool, part: &str, other: &str| {
        if own {
            format!("blk.1.nextn.{part}")
        } else {
            other.into()
        }
    };
    let embedding = name(own[0], "embed_tokens", "token_embd");
    let norm = name(own[1], "shared_head_norm", "output_norm");
    let head = name(own[2], "shared_head_head", "output");
    let (mut main, mut side) = (Cache::new(), Cache::new());
    let mut before = vec![0.0; HIDDEN];
    let rows = w.values("token_embd.weight");
    let (&last, read) = text.split_last().expect("a token");
    for &token in read {
        let x = joined(w, &embedding, token, &before);
        layer(w, 1, x, &mut side);
        let row = rows[token as usize * HIDDEN..][..HIDDEN].to_vec();
        before = w.rms("output_norm", &layer(w, 0, row, &mut main));
    }
    let mut token = last;
    let mut drafts = Vec::new();
    for _ in 0..count {
        let x = joined(w, &embedding, token, &before);
        before = w.rms(&norm, &layer(w, 1, x, &mut side));
        let logits = w.apply(&head, &before);
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
        token = order[0] as u32;
        drafts.push((token, logits[order[0]] - logits[order[1]]));
    }
    drafts
}

fn draft_of(session: &mut Session, first: u32, count: usize) -> Vec<u32> {
    let speculation = session.speculation.as_mut().expect("a session that drafts");
    let mut tokens = vec![first];
    let drafts = speculation
        .verifier
        .draft(&mut *session.engine, &mut tokens, count);
    drafts.expect("drafts");
    tokens.split_off(1)
}

#[test]
fn drafts_of_an_mtp_block_are_its_equations() {
    let mut compared = 0;
    for own in [[false; 3], [false, true, true], [true, true, false]] {
        let spec = with_mtp(vec![attention(json!({}))], attention(json!({})), own);
        let spec = described(&spec);
        let weights = weights(&spec, 5);
        let model = model(&spec, &weights);
        let plain = Plain(weights);
        for (seed, chunk, length) in [(1, 1, 1), (2, 1, 9), (3, 4, 17), (4, 32, 30), (5, 32, 33)] {
            let text = tokens(spec.vocab, length + 1, seed);
            let mut options = options(chunk, 64);
            options.mtp = 6;
            let mut session = Session::new(Arc::clone(&model), options).expect("a session");
            session.feed(&text[..length]).expect("a text");
            let before = state_of(&session);
            let found = draft_of(&mut session, text[length], 6);
            assert!(state_of(&session) == before, "a draft changed the state");
            for ((expected, distance), found) in drafted(&plain, own, &text, 6).iter().zip(&found) {
                // A near tie may be decided by rounding; all later drafts would differ.
                if *distance < 1e-3 {
                    break;
                }
                assert_eq!(
                    found, expected,
                    "{own:?}, {length} tokens in chunks of {chunk}"
                );
                compared += 1;
            }
        }
    }
    assert!(compared > 80, "{compared}");
}

/// Compares with drafts that llama.cpp's MTP block has made from the same files, recorded by `tests/llama_cpp/drafts.cpp`: each token,
/// and the margin of its logit over the second largest.
#[test]
fn drafts_are_those_of_llama_cpp() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/llama_cpp");
    for architecture in ["qwen35", "qwen35moe", "qwen3next"] {
        let path = folder.join(format!("{architecture}-mtp.gguf"));
        let with_mtp = OpenOptions {
            mtp: true,
            ..OpenOptions::default()
        };
        let model = Model::open_with(&path, &with_mtp).expect("a model");
        let recorded = std::fs::read_to_string(path.with_extension("json")).expect("a record");
        let recorded: Value = serde_json::from_str(&recorded).expect("JSON");
        let text: Vec<u32> = serde_json::from_value(recorded["tokens"].clone()).expect("tokens");
        let drafts = recorded["drafts"].as_object().expect("drafts");
        let mut compared = 0;
        for (length, drafts) in drafts {
            let length: usize = length.parse().expect("a number");
            let drafts: Vec<(u32, f64)> = serde_json::from_value(drafts.clone()).expect("pairs");
            let mut options = options(16, 128);
            options.mtp = drafts.len();
            let mut session = Session::new(Arc::clone(&model), options).expect("a session");
            session.feed(&text[..length]).expect("a text");
            let found = draft_of(&mut session, text[length], drafts.len());
            for ((expected, distance), found) in drafts.iter().zip(found) {
                if *distance < 2e-3 {
                    break;
                }
                assert_eq!(found, *expected, "{architecture} behind {length} tokens");
                compared += 1;
            }
        }
        assert!(compared > 40, "{architecture}: {compared}");
    }
}

/// Changes the weights so that the block mostly agrees with the model: the next token then depends almost only on the last one.
fn alike(weights: &mut HashMap<String, Vec<f32>>, layers: usize) {
    for (name, values) in weights.iter_mut() {
        if name.ends_with("o_proj.weight") || name.ends_with("ffn_down.weight") {
            values.iter_mut().for_each(|x| *x *= 0.03);
        }
        if name.ends_with("nextn.enorm.weight") || name == "output_norm.weight" {
            values.fill(1.0);
        }
    }
    let name = format!("blk.{layers}.nextn.eh_proj.weight");
    let matrix = weights.get_mut(&name).expect("the matrix");
    for (i, x) in matrix.iter_mut().enumerate() {
        *x = f32::from(u8::from(i / (2 * HIDDEN) == i % (2 * HIDDEN)));
    }
}

/// A hybrid model whose MTP block has this layer.
fn hybrid(layer: Value) -> Value {
    let delta = json!({
        "heads": 2, "value_heads": 4, "head_dim": 6, "value_dim": 5, "conv": 3, "conv_bias": false,
        "gate": "silu", "negative_eigenvalues": false, "decay": true, "head_gates": null, "norm_eps": EPS,
    });
    let delta = block("gated_deltanet", delta, Some(32));
    let layers = vec![delta.clone(), attention(json!({})), delta];
    with_mtp(layers, layer, [false; 3])
}

fn drafting(model: &Arc<Model>, mtp: usize, temperature: f32) -> Session {
    drafting_on(None, model, mtp, temperature)
}

/// Creates a session that has read a prompt; on a device its steps are recorded.
fn drafting_on(
    device: Option<&Arc<Device>>,
    model: &Arc<Model>,
    mtp: usize,
    temperature: f32,
) -> Session {
    let mut options = options(8, 256);
    (options.device, options.step) = (device.cloned(), StepProgram::Recorded);
    (options.mtp, options.marks) = (mtp, 2);
    options.sampler.temperature = temperature;
    let mut session = Session::new(Arc::clone(model), options).expect("a session");
    let prompt = tokens(model.spec().vocab, 21, 9);
    session.feed(&prompt).expect("a prompt");
    session
}

/// Reads ahead `count` times and sometimes takes tokens back.
fn rounds(session: &mut Session, most: usize, count: usize) -> Vec<u32> {
    let mut tokens = Vec::new();
    for round in 0..count {
        session
            .step_ahead(&mut Choice::default(), most, &[])
            .expect("tokens");
        let read = session.ahead().to_vec();
        let kept = match round % 4 {
            3 => read.len().min(2),
            _ => read.len(),
        };
        session.keep_ahead(kept).expect("a state");
        tokens.extend_from_slice(&read[..kept]);
    }
    tokens
}

#[test]
fn drafts_of_an_mtp_block_change_no_token_and_no_bit_of_the_state() {
    let set =
        json!({ "window": 7, "retained": { "capacity": 6, "sink": 2, "policy": "attention" } });
    let mut counts = Vec::new();
    for layer in [
        attention(json!({})),
        attention(json!({ "window": 5 })),
        attention(set),
    ] {
        let described_with = hybrid(layer);
        let spec = described(&described_with);
        let mut weights = weights(&spec, 3);
        alike(&mut weights, 3);
        let model = model(&spec, &weights);
        let mut without = described_with.clone();
        without.as_object_mut().expect("an object").remove("mtp");
        let without = crate::synthetic::model(&described(&without), &weights);
        assert!(without.identity().is_same(model.identity()));
        for temperature in [0.0, 0.4] {
            let mut ahead = drafting(&model, 5, temperature);
            let fixed = (ahead.state_bytes(), ahead.work_bytes());
            let plan = Session::plan(&model, ahead.options()).expect("a plan");
            assert_eq!((plan.state_bytes, plan.work_bytes), fixed);
            let read = rounds(&mut ahead, 6, 16);
            let (drafted, accepted) = ahead.drafts();
            counts.push((drafted, accepted));
            assert_eq!((ahead.state_bytes(), ahead.work_bytes()), fixed);
            for (model, same_layout) in [(&model, true), (&without, false)] {
                let mut plain = drafting(model, 0, temperature);
                for &token in &read {
                    assert_eq!(plain.step().expect("a token"), token);
                }
                assert!(!same_layout || state_of(&plain) == state_of(&ahead));
                assert_eq!(
                    plain.logits().expect("logits"),
                    ahead.logits().expect("logits")
                );
            }
        }
    }
    // In each session some drafts are accepted, and some only in part.
    assert!(
        counts.iter().all(|(_, accepted)| *accepted > 5),
        "{counts:?}"
    );
    let refused = counts.iter().map(|(drafted, accepted)| drafted - accepted);
    assert!(refused.sum::<u64>() > 20, "{counts:?}");
}

#[test]
fn drafts_go_on_after_a_restored_state_a_rewind_and_a_reset() {
    let spec = described(&hybrid(attention(json!({}))));
    let mut weights = weights(&spec, 3);
    alike(&mut weights, 3);
    let model = model(&spec, &weights);
    let mut session = drafting(&model, 4, 0.0);
    session.mark().expect("a mark");
    let position = session.position();
    let first = rounds(&mut session, 5, 5);
    let middle = session.snapshot().expect("a snapshot");
    let rest = rounds(&mut session, 5, 5);

    let mut options = session.options().clone();
    options.mtp = 4;
    let mut other = Session::new(Arc::clone(&model), options).expect("a session");
    other.restore(&middle).expect("a state");
    assert_eq!(rounds(&mut other, 5, 5), rest);
    assert!(state_of(&other) == state_of(&session));
    let mut fork = session.fork().expect("a fork");
    assert_eq!(rounds(&mut fork, 5, 3), rounds(&mut other, 5, 3));

    session.rewind(position).expect("the mark");
    assert_eq!(rounds(&mut session, 5, 5), first);
    session.reset().expect("an empty state");
    session.feed(&tokens(spec.vocab, 21, 9)).expect("a prompt");
    assert_eq!(rounds(&mut session, 5, 5), first);

    // A state without the block's tensors has another layout.
    let mut without = hybrid(attention(json!({})));
    without.as_object_mut().expect("an object").remove("mtp");
    let without = crate::synthetic::model(&described(&without), &weights);
    let mut plain = drafting(&without, 0, 0.0);
    let error = plain.restore(&middle).expect_err("another layout");
    assert!(error.to_string().contains("MTP"), "{error}");
    let mut options = plain.options().clone();
    options.mtp = 4;
    let error = Session::new(without, options)
        .map(|_| ())
        .expect_err("no block");
    assert!(error.to_string().contains("MTP"), "{error}");
}

#[test]
fn a_device_drafts_as_the_cpu_does() {
    let Some(device) = crate::devices::device() else {
        return;
    };
    let set =
        json!({ "window": 7, "retained": { "capacity": 6, "sink": 2, "policy": "attention" } });
    for (layer, own) in [
        (attention(json!({})), [false; 3]),
        (attention(set), [true, true, true]),
    ] {
        let mut spec = hybrid(layer);
        for (key, own) in ["own_embedding", "own_norm", "own_head"].iter().zip(own) {
            spec["mtp"][key] = own.into();
        }
        let spec = described(&spec);
        let mut weights = weights(&spec, 3);
        alike(&mut weights, 3);
        let model = model(&spec, &weights);
        let mut on_cpu = drafting(&model, 5, 0.0);
        let mut ahead = drafting_on(Some(&device), &model, 5, 0.0);
        assert_eq!(draft_of(&mut ahead, 7, 5), draft_of(&mut on_cpu, 7, 5));
        for temperature in [0.0, 0.4] {
            let mut ahead = drafting_on(Some(&device), &model, 5, temperature);
            let fixed = (ahead.device_bytes(), ahead.work_bytes());
            let read = rounds(&mut ahead, 6, 8);
            let (_, accepted) = ahead.drafts();
            assert!(own[0] || accepted > 3, "{accepted} at {temperature}");
            assert_eq!((ahead.device_bytes(), ahead.work_bytes()), fixed);
            let mut plain = drafting_on(Some(&device), &model, 0, temperature);
            for &token in &read {
                assert_eq!(plain.step().expect("a token"), token);
            }
            assert!(state_of(&plain) == state_of(&ahead), "another state");
        }
    }
}
