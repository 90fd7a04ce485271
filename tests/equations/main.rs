//! Compares options that no fixture covers with their equations, written out in f64, on small models.

mod attention;
mod gates;
mod linear;
mod memories;
mod partitions;
#[path = "../plain/mod.rs"]
mod plain;
mod slots;
#[path = "../synthetic/mod.rs"]
mod synthetic;
mod trapezoid;

use plain::{EPS, Plain, Vector};
use serde_json::{Value, json};
use synthetic::{block, model, options, spec, tokens, weights};
use waterline::Session;

const HIDDEN: usize = 24;
const TOKENS: usize = 45;

/// Compares a one-layer model with its equations: `mixer(weights, position, normed input)` returns the input of the output matrix.
fn compare(kind: &str, parameters: Value, mut mixer: impl FnMut(&Plain, usize, &[f64]) -> Vector) {
    let what = format!("{kind} {parameters}");
    let spec = spec(HIDDEN, vec![block(kind, parameters, None)]);
    let weights = weights(&spec, 11);
    let model = model(&spec, &weights);
    let text = tokens(spec.vocab, TOKENS, 4);
    let plain = Plain(weights);

    let embedding = plain.values("token_embd.weight");
    let mut expected = Vec::new();
    for (t, &token) in text.iter().enumerate() {
        let mut x = embedding[token as usize * HIDDEN..][..HIDDEN].to_vec();
        let h = plain.rms("blk.0.attn_norm", &x);
        let inner = mixer(&plain, t, &h);
        for (x, y) in x.iter_mut().zip(plain.apply(plain.output_matrix(), &inner)) {
            *x += y;
        }
        expected.extend(plain.apply("output", &plain.rms("output_norm", &x)));
    }
    let largest = expected.iter().fold(0.0f64, |m, x| m.max(x.abs()));
    for chunk in [1, 5, TOKENS] {
        let mut session = Session::new(model.clone(), options(chunk, 64)).expect("a session");
        let mut found = Vec::new();
        session
            .feed_each(&text, |_, logits| found.extend_from_slice(logits))
            .expect("a text");
        for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let error = (f64::from(*found) - expected).abs() / largest;
            assert!(
                error < 1e-4,
                "chunk {chunk}, logit {i}: {found} {expected}: {what}"
            );
        }
    }
}

const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const DK: usize = 6;
const DV: usize = 5;

fn linear(head_gates: Value) -> Value {
    json!({
        "heads": HEADS, "kv_heads": KV_HEADS, "head_dim": DK, "value_dim": DV, "feature_map": null, "conv": null,
        "gate": true, "head_gates": head_gates, "norm_eps": EPS,
    })
}

fn head(x: &[f64], head: usize, width: usize) -> &[f64] {
    &x[head * width..][..width]
}
