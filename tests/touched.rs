//! Compares the bytes of state that a token accesses, as the ops count them, with a real step: writes by comparing the state before and
//! after, reads by poisoning the state piece by piece and looking for the poison in the results.

mod synthetic;

use std::sync::Arc;

use serde_json::{Value, json};
use synthetic::{block, model, options, spec, tokens, weights};
use waterline::{Model, Session, Snapshot};
use waterline::{StateDtype, StateTensorPlan, Touched};

const CONTEXT: usize = 64;

fn one_block(kind: &str, numbers: Value) -> Arc<Model> {
    let spec = spec(16, vec![block(kind, numbers, None)]);
    model(&spec, &weights(&spec, 3))
}

fn session(model: &Arc<Model>) -> Session {
    Session::new(Arc::clone(model), options(8, CONTEXT)).expect("a session")
}

fn sse(partitions: usize, chosen: usize, update: Value) -> Value {
    json!({
        "heads": 2, "value_heads": 2, "head_dim": 8, "value_dim": 8, "partitions": partitions, "writers": chosen,
        "readers": chosen, "update": update, "query_map": "silu", "key_map": "softmax", "weigh_queries": true,
        "weigh_keys": true, "lora_rank": 4, "conv": 4, "gate_rank": 4, "bias": false, "norm_eps": 1e-5,
    })
}

fn attention(window: Value, retained: Value) -> Value {
    json!({
        "heads": 4, "kv_heads": 2, "head_dim": 8, "window": window, "rope_theta": 1000.0, "rope_dim": null,
        "rope_scaling": null, "bias": false, "out_bias": false, "gate": false, "head_norm_eps": null,
        "retained": retained,
    })
}

/// Returns mixers whose state does not depend on the context, with functions that have no zeros.
fn constant() -> Vec<(&'static str, Value)> {
    let linear = json!({
        "heads": 4, "kv_heads": 2, "head_dim": 8, "value_dim": 8, "feature_map": null, "conv": 4, "gate": true,
        "head_gates": null, "norm_eps": 1e-5,
    });
    let gla = json!({ "kind": "gla", "rank": 4, "normalizer": 4.0 });
    let delta = json!({ "kind": "gated_delta", "negative_eigenvalues": false });
    let hax = json!({ "keys": 4, "sources": ["window", { "sign_bins": { "bits": 2 } }, "best"] });
    let retained = |policy: Value| json!({ "capacity": 5, "sink": 1, "policy": policy });
    vec![
        (
            "gla",
            json!({ "linear": linear, "gate_rank": 4, "gate_normalizer": 4.0, "gate_min": null }),
        ),
        ("retnet", json!({ "linear": linear, "rope_theta": 1000.0 })),
        (
            "simple_gla",
            json!({ "linear": linear, "gate_normalizer": 4.0 }),
        ),
        (
            "hgrn2",
            json!({ "heads": 2, "head_dim": 8, "value_dim": 8, "conv": 4, "lower_bound": false }),
        ),
        (
            "delta_net",
            json!({
                "heads": 2, "head_dim": 8, "value_dim": 8, "conv": 4, "activation": "silu", "key_norm": "l2",
                "beta": true, "gate": false, "negative_eigenvalues": false, "norm_eps": 1e-5,
            }),
        ),
        (
            "gated_deltanet",
            json!({
                "heads": 2, "value_heads": 4, "head_dim": 8, "value_dim": 8, "conv": 4, "conv_bias": false,
                "gate": "silu", "negative_eigenvalues": false, "decay": true, "head_gates": null, "norm_eps": 1e-5,
            }),
        ),
        (
            "gated_deltanet2",
            json!({
                "heads": 2, "value_heads": 4, "head_dim": 8, "value_dim": 8, "conv": 4, "conv_bias": false,
                "negative_eigenvalues": false, "norm_eps": 1e-5,
            }),
        ),
        (
            "kda",
            json!({
                "heads": 2, "value_heads": 2, "head_dim": 8, "value_dim": 8, "conv": 4,
                "negative_eigenvalues": false, "decay_bound": null, "norm_eps": 1e-5,
            }),
        ),
        (
            "gated_conv",
            json!({ "channels": 16, "conv": 3, "bias": false }),
        ),
        (
            "gsa",
            json!({
                "heads": 4, "kv_heads": 2, "head_dim": 8, "value_dim": 8, "slots": 8, "feature_map": "silu",
                "learned_map": false, "conv": null, "gate_normalizer": 4.0,
            }),
        ),
        (
            "raven",
            json!({
                "heads": 4, "kv_heads": 2, "head_dim": 8, "value_dim": 8, "slots": 8, "written": 8,
                "softmax_router": false, "feature_map": "silu", "learned_map": false, "slot_decay": null,
                "rope_theta": 1000.0, "gate": false, "norm_eps": 1e-5,
            }),
        ),
        (
            "abc",
            json!({
                "heads": 2, "head_dim": 8, "value_dim": 8, "slots": 8, "conv": null, "rope_theta": null, "min": null,
                "max": null, "norm_eps": 1e-5,
            }),
        ),
        (
            "mom",
            json!({
                "heads": 2, "head_dim": 8, "value_dim": 8, "memories": 4, "chosen": 2, "shared": true,
                "single": false, "conv": 4, "gate": true, "norm_eps": 1e-5,
            }),
        ),
        ("sse", sse(4, 1, gla.clone())),
        ("sse", sse(4, 2, delta)),
        (
            "sse_swa",
            json!({ "sse": sse(4, 1, gla), "swa": attention(json!(6), json!(null)) }),
        ),
        ("attention", attention(json!(6), json!(null))),
        (
            "attention",
            attention(json!(6), retained(json!("attention"))),
        ),
        (
            "attention",
            attention(json!(6), retained(json!({ "stride": 2 }))),
        ),
        (
            "lte",
            json!({
                "attention": attention(json!(12), json!(null)), "capacity": 5, "sink": 1, "router_taps": [3, 3],
                "router_dilations": [1, 2], "router_scope": "head", "score": "sigmoid",
            }),
        ),
        (
            "mamba",
            json!({
                "inner": 24, "state": 4, "rank": 3, "conv": 4, "conv_bias": true, "bias": false, "hax": hax,
            }),
        ),
        (
            "mamba2",
            json!({
                "heads": 3, "head_dim": 8, "groups": 1, "state": 8, "conv": 4, "conv_bias": true, "bias": false,
                "skip_per_channel": false, "norm_groups": 1, "norm_before_gate": false, "norm_eps": 1e-5,
                "step_min": 0.001, "step_max": null, "hax": null,
            }),
        ),
        (
            "mamba3",
            json!({
                "heads": 4, "head_dim": 8, "groups": 2, "state": 8, "pairs": 2, "bias": false, "least_rate": 0.0001,
                "norm": false, "norm_eps": 1e-5,
            }),
        ),
        ("rg_lru", json!({ "width": 24, "heads": 2, "conv": 4 })),
        (
            "rwkv6",
            json!({ "heads": 2, "head_dim": 8, "mix_rank": 4, "decay_rank": 4, "norm_eps": 1e-5 }),
        ),
        (
            "rwkv7",
            json!({
                "heads": 2, "head_dim": 8, "value_dim": 8, "first": true, "decay_rank": 4, "rate_rank": 4,
                "value_rank": 4, "gate_rank": 4, "key_eps": 1e-12, "norm_eps": 1e-5,
            }),
        ),
        (
            "rwkv_channel_mix",
            json!({ "hidden": 16, "intermediate": 9, "activation": "silu", "receptance": true }),
        ),
    ]
}

/// Returns the size of the pieces of a state tensor that are read and written completely: rows of the innermost dimension.
fn row_bytes(tensor: &StateTensorPlan) -> usize {
    let last = tensor.shape.last().copied().unwrap_or(1);
    // A score is accessed as a single number.
    if tensor.name.contains("scores") {
        4
    } else {
        tensor.bytes / tensor.shape.iter().product::<usize>().max(1) * last
    }
}

/// Returns whether a state tensor holds floats, which can be poisoned.
fn is_float(tensor: &StateTensorPlan) -> bool {
    tensor.layer.is_some() && tensor.dtype == StateDtype::F32 && tensor.bytes > 0
}

/// Returns the bytes of every state tensor after a step.
fn tensors(session: &Session) -> Vec<Vec<u8>> {
    let snapshot = session.snapshot().expect("a snapshot");
    snapshot
        .tensors()
        .map(|(_, bytes)| bytes.to_vec())
        .collect()
}

/// Returns the snapshot with one row of a state tensor poisoned.
fn poisoned(snapshot: &Snapshot, tensor: &StateTensorPlan, row: usize, length: usize) -> Snapshot {
    let mut poisoned = snapshot.clone();
    let start = tensor.offset + row * length;
    // A quiet NaN in every number.
    for number in poisoned.bytes_mut()[start..start + length].chunks_exact_mut(4) {
        number.copy_from_slice(&f32::NAN.to_le_bytes());
    }
    poisoned
}

/// Returns the bytes of each state tensor that the step on `token` after `before` reads and writes.
fn measured(model: &Arc<Model>, before: &Snapshot, token: u32) -> Vec<(usize, usize)> {
    let plan = model.plan(&options(8, CONTEXT).state).expect("a plan");
    let mut session = session(model);
    session.restore(before).expect("restored");
    session.feed(&[token]).expect("a step");
    let (logits, after) = (
        session.logits().expect("logits").to_vec(),
        tensors(&session),
    );
    let old: Vec<Vec<u8>> = before.tensors().map(|(_, bytes)| bytes.to_vec()).collect();
    let mut found = Vec::new();
    for (index, tensor) in plan.tensors().iter().enumerate() {
        if !is_float(tensor) {
            found.push((0, 0));
            continue;
        }
        let length = row_bytes(tensor);
        let rows = old[index]
            .chunks_exact(length)
            .zip(after[index].chunks_exact(length));
        let written = rows.filter(|(a, b)| a != b).count() * length;
        let mut read = 0;
        for row in 0..tensor.bytes / length {
            session
                .restore(&poisoned(before, tensor, row, length))
                .expect("restored");
            session.feed(&[token]).expect("a step");
            let now = tensors(&session);
            // Poison that stays in place has not been read.
            let spread = now
                .iter()
                .zip(&after)
                .enumerate()
                .any(|(other, (now, then))| {
                    if plan.tensors()[other].layer.is_none() {
                        return false;
                    }
                    let own = row * length..(row + 1) * length;
                    if other == index {
                        now[..own.start] != then[..own.start]
                            || now[own.end..] != then[own.end..]
                            || now[own.clone()] != then[own.clone()]
                                && now[own.clone()].chunks_exact(4).any(|x| {
                                    !f32::from_le_bytes(x.try_into().expect("four")).is_nan()
                                })
                    } else {
                        now != then
                    }
                });
            let shows = |(a, b): (&f32, &f32)| a.to_bits() != b.to_bits();
            if spread
                || session
                    .logits()
                    .expect("logits")
                    .iter()
                    .zip(&logits)
                    .any(shows)
            {
                read += length;
            }
        }
        found.push((read, written));
    }
    found
}

/// Returns the counted bytes of each state tensor, in the order of the plan.
fn counted(model: &Arc<Model>, position: u64) -> Vec<(usize, usize)> {
    let plan = model.plan(&options(8, CONTEXT).state).expect("a plan");
    let mut all = vec![(0, 0); plan.tensors().len()];
    for Touched {
        tensor,
        read,
        written,
    } in model.touched(&plan, position)
    {
        if is_float(&plan.tensors()[tensor]) {
            all[tensor].0 += read;
            all[tensor].1 += written;
        }
    }
    all
}

/// Checks that the accesses of a step never exceed the count, and that over a few steps every counted byte is accessed.
fn check(kind: &str, model: &Arc<Model>) {
    let plan = model.plan(&options(8, CONTEXT).state).expect("a plan");
    let text = tokens(model.spec().vocab, 40, 9);
    let mut most = vec![(0, 0); plan.tensors().len()];
    let mut session = session(model);
    for position in [30, 33, 35, 38] {
        session.reset().expect("a reset");
        session.feed(&text[..position]).expect("a prompt");
        let before = session.snapshot().expect("a snapshot");
        let found = measured(model, &before, text[position]);
        let counted = counted(model, position as u64);
        for (index, (found, counted)) in found.iter().zip(&counted).enumerate() {
            let name = &plan.tensors()[index].name;
            assert!(
                found.0 <= counted.0 && found.1 <= counted.1,
                "{kind} {name} at {position}: {found:?} read and written, {counted:?} counted"
            );
            most[index].0 = most[index].0.max(found.0);
            most[index].1 = most[index].1.max(found.1);
        }
        let exact = most
            .iter()
            .zip(&counted)
            .all(|(most, counted)| most == counted);
        if exact {
            return;
        }
    }
    let counted = counted(model, 38);
    for (index, (most, counted)) in most.iter().zip(&counted).enumerate() {
        let name = &plan.tensors()[index].name;
        // Where the tokens decide, a few steps need not do everything that some step may do.
        let decided =
            name.contains("set") || name.contains("hax") || name.contains("window_scores");
        let decided = decided
            || plan
                .tensors()
                .iter()
                .any(|tensor| tensor.name.contains("set"));
        assert!(
            decided || most == counted,
            "{kind} {name}: {most:?} read and written at most, {counted:?} counted"
        );
    }
}

#[test]
fn what_is_counted_is_what_a_step_touches() {
    for (kind, numbers) in constant() {
        check(kind, &one_block(kind, numbers));
    }
    check(
        "attention",
        &one_block("attention", attention(json!(null), json!(null))),
    );
}

#[test]
fn keys_that_layers_share_are_counted_once() {
    for window in [json!(6), json!(null)] {
        let owner = attention(window, json!(null));
        let mut reader = owner.clone();
        reader["keys_of"] = json!(0);
        let layers = [owner, reader.clone(), reader];
        let layers = layers.map(|layer| block("attention", layer, None)).to_vec();
        let spec = spec(16, layers);
        let plan = spec.plan(&options(8, CONTEXT).state).expect("a plan");
        let layers = plan.tensors().iter().filter_map(|tensor| tensor.layer);
        assert_eq!(layers.collect::<Vec<_>>(), [0, 0]);
        check("shared keys", &model(&spec, &weights(&spec, 3)));
    }
}

#[test]
fn sparse_expansion_touches_the_same_bytes_whatever_the_number_of_partitions() {
    for update in [
        json!({ "kind": "gla", "rank": 4, "normalizer": 4.0 }),
        json!({ "kind": "gated_delta", "negative_eigenvalues": false }),
    ] {
        let bytes = |partitions: usize| {
            let model = one_block("sse", sse(partitions, 1, update.clone()));
            check("sse", &model);
            let plan = model.plan(&options(8, CONTEXT).state).expect("a plan");
            let of_layer = plan
                .tensors()
                .iter()
                .filter(|tensor| tensor.layer == Some(0));
            let bytes: usize = of_layer.map(|tensor| tensor.bytes).sum();
            (bytes, model.state_bytes(&plan, 30))
        };
        let ((small, touched), (large, touched_of_more)) = (bytes(4), bytes(16));
        assert_eq!(touched, touched_of_more);
        assert!(large > 3 * small, "{small} {large}");
    }
}

#[test]
fn a_constant_state_costs_the_same_at_every_position() {
    for (kind, numbers) in constant() {
        let model = one_block(kind, numbers);
        let plan = model.plan(&options(8, CONTEXT).state).expect("a plan");
        let bytes = |position: u64| model.state_bytes(&plan, position);
        // After windows and sets are full.
        for position in [1 << 10, 1 << 20, 1 << 40] {
            assert_eq!(bytes(position), bytes(100), "{kind} at {position}");
        }
        assert!(bytes(0) <= bytes(100), "{kind}");
    }
    let full = one_block("attention", attention(json!(null), json!(null)));
    let plan = full.plan(&options(8, CONTEXT).state).expect("a plan");
    let bytes = |position: u64| full.state_bytes(&plan, position);
    assert!(bytes(10) < bytes(20));
}
