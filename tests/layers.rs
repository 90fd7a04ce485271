//! Compares layer options with their equations in f64: norms before and after mixers and MLPs, multipliers, MLPs with and without a gate,
//! layers with one sublayer, several mixers on one norm, and bounded logits.

mod synthetic;

use std::collections::HashMap;

use serde_json::{Value, json};
use synthetic::{model, options, tokens, weights};
use waterline::{ModelSpec, Session};

const HIDDEN: usize = 24;
const HEAD: usize = 8;
const INTERMEDIATE: usize = 40;
const TOKENS: usize = 21;
const EPS: f64 = 1e-5;

type Vector = Vec<f64>;

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// The error function by its series, which is accurate for the small arguments here.
fn erf(x: f64) -> f64 {
    let terms = (1..60).scan(x, |power, n| {
        *power *= -x * x / f64::from(n);
        Some(*power / f64::from(2 * n + 1))
    });
    (x + terms.sum::<f64>()) * 2.0 / std::f64::consts::PI.sqrt()
}

fn activation(name: &str, x: f64) -> f64 {
    match name {
        "silu" => x * sigmoid(x),
        "gelu" => x * sigmoid(2.0 * 0.797_884_560_8 * (x + 0.044_715 * x * x * x)),
        "gelu_erf" => 0.5 * x * (1.0 + erf(x / 2f64.sqrt())),
        "squared_relu" => x.max(0.0).powi(2),
        _ => unreachable!("{name}"),
    }
}

/// The weights of a model.
struct Plain(HashMap<String, Vec<f32>>);

impl Plain {
    fn values(&self, name: &str) -> Vector {
        let values = self.0.get(name).unwrap_or_else(|| panic!("no {name}"));
        values.iter().map(|&x| f64::from(x)).collect()
    }

    /// Returns `W x + b`, without b if the model has none.
    fn apply(&self, name: &str, x: &[f64]) -> Vector {
        let weight = self.values(&format!("{name}.weight"));
        let rows = weight.chunks_exact(x.len());
        let mut y: Vector = rows.map(|row| dot(row, x)).collect();
        if let Some(bias) = self.0.get(&format!("{name}.bias")) {
            y.iter_mut()
                .zip(bias)
                .for_each(|(y, b)| *y += f64::from(*b));
        }
        y
    }

    fn rms(&self, name: &str, x: &[f64]) -> Vector {
        let scale = 1.0 / (dot(x, x) / x.len() as f64 + EPS).sqrt();
        let gains = self.values(&format!("{name}.weight"));
        x.iter()
            .zip(gains)
            .map(|(x, gain)| scale * gain * x)
            .collect()
    }

    /// Returns the output of an MLP, computed from its description.
    fn mlp(&self, layer: usize, mlp: &Value, x: &[f64]) -> Vector {
        let number = |key: &str| mlp.get(key).map_or(1.0, |x| x.as_f64().expect("a number"));
        let function = mlp
            .get("activation")
            .map_or("silu", |x| x.as_str().expect("a name"));
        let apply = |name: &str, x: &[f64]| self.apply(&format!("blk.{layer}.ffn_{name}"), x);
        let up = apply("up", x);
        let inner: Vector = match mlp.get("gated") {
            Some(Value::Bool(false)) => up.iter().map(|x| activation(function, *x)).collect(),
            _ => {
                let gate = apply("gate", x);
                let gated =
                    |(g, u): (&f64, &f64)| activation(function, g * number("gate_multiplier")) * u;
                gate.iter().zip(&up).map(gated).collect()
            }
        };
        let down = apply("down", &inner);
        down.iter().map(|x| x * number("multiplier")).collect()
    }
}

/// One head of attention over all earlier keys.
struct Attention {
    scale: f64,
    key: f64,
    keys: Vec<Vector>,
    values: Vec<Vector>,
}

impl Attention {
    fn step(&mut self, w: &Plain, name: &str, x: &[f64]) -> Vector {
        let q = w.apply(&format!("{name}q_proj"), x);
        let k = w.apply(&format!("{name}k_proj"), x);
        self.keys.push(k.iter().map(|k| self.key * k).collect());
        self.values.push(w.apply(&format!("{name}v_proj"), x));
        let scores = self.keys.iter().map(|k| (self.scale * dot(&q, k)).exp());
        let scores: Vector = scores.collect();
        let sum: f64 = scores.iter().sum();
        let mut out = vec![0.0; HEAD];
        for (score, value) in scores.iter().zip(&self.values) {
            out.iter_mut()
                .zip(value)
                .for_each(|(o, v)| *o += score / sum * v);
        }
        w.apply(&format!("{name}o_proj"), &out)
    }
}

#[test]
fn sublayers_multipliers_and_networks_follow_their_equations() {
    let attention = json!({
        "mixer": "attention", "heads": 1, "kv_heads": 1, "head_dim": HEAD, "window": null, "rope_theta": null,
        "rope_dim": null, "rope_scaling": null, "bias": true, "out_bias": true, "gate": false, "head_norm_eps": null,
        "retained": null, "softmax_scale": 0.75, "key_multiplier": 1.5,
    });
    let with = |more: Value| {
        let mut layer = attention.clone();
        let fields = layer.as_object_mut().expect("an object");
        fields.extend(more.as_object().expect("an object").clone());
        layer
    };
    let networks = [
        json!({ "intermediate": INTERMEDIATE, "activation": "gelu_erf", "bias": true, "gate_multiplier": 0.75, "multiplier": 1.25 }),
        json!({ "intermediate": INTERMEDIATE, "activation": "squared_relu", "gated": false, "bias": true, "multiplier": 0.5 }),
        json!({ "intermediate": INTERMEDIATE, "activation": "gelu" }),
        json!({ "intermediate": INTERMEDIATE, "activation": "silu", "gated": false }),
    ];
    let part = with(json!({ "input_multiplier": 0.5, "output_multiplier": 1.75 }));
    let layers = json!([
        with(json!({
            "mixer_sublayer": { "pre_norm": false, "post_norm": true, "multiplier": 0.5 },
            "mlp": networks[0], "ffn_sublayer": { "post_norm": true, "multiplier": 1.5 },
        })),
        { "mlp": networks[1], "ffn_sublayer": { "multiplier": 0.25 } },
        { "mixer": "parallel", "parts": [part], "mixer_sublayer": { "multiplier": 2.0 }, "mlp": networks[2] },
        { "mlp": networks[3], "ffn_sublayer": { "pre_norm": false, "post_norm": true } },
    ]);
    let spec = json!({
        "vocab": 61, "hidden": HIDDEN, "norm_eps": EPS, "tied": false, "embedding_multiplier": 3.0,
        "logits_multiplier": 0.5, "logit_softcap": 2.0, "layers": layers,
    });
    let spec = ModelSpec::from_json("a test", &spec).expect("a description");
    let weights = weights(&spec, 5);
    let model = model(&spec, &weights);
    let text = tokens(spec.vocab, TOKENS, 4);
    let w = Plain(weights);

    let mut attentions = [(); 2].map(|()| Attention {
        scale: 0.75,
        key: 1.5,
        keys: Vec::new(),
        values: Vec::new(),
    });
    let add = |x: &mut Vector, multiplier: f64, y: Vector| {
        x.iter_mut().zip(y).for_each(|(x, y)| *x += multiplier * y);
    };
    let embedding = w.values("token_embd.weight");
    let mut expected = Vec::new();
    for &token in &text {
        let row = &embedding[token as usize * HIDDEN..][..HIDDEN];
        let mut x: Vector = row.iter().map(|x| 3.0 * x).collect();
        let y = attentions[0].step(&w, "blk.0.mixer.", &x);
        add(&mut x, 0.5, w.rms("blk.0.post_attention_norm", &y));
        let y = w.mlp(0, &networks[0], &w.rms("blk.0.ffn_norm", &x));
        add(&mut x, 1.5, w.rms("blk.0.post_ffw_norm", &y));
        let y = w.mlp(1, &networks[1], &w.rms("blk.1.ffn_norm", &x));
        add(&mut x, 0.25, y);
        let n = w.rms("blk.2.attn_norm", &x);
        let n: Vector = n.iter().map(|x| 0.5 * x).collect();
        let y = attentions[1].step(&w, "blk.2.mixer.attention.", &n);
        add(&mut x, 2.0 * 1.75, y);
        let y = w.mlp(2, &networks[2], &w.rms("blk.2.ffn_norm", &x));
        add(&mut x, 1.0, y);
        let y = w.mlp(3, &networks[3], &x);
        add(&mut x, 1.0, w.rms("blk.3.post_ffw_norm", &y));
        let logits = w.apply("output", &w.rms("output_norm", &x));
        expected.extend(logits.iter().map(|x| 2.0 * (0.5 * x / 2.0).tanh()));
    }
    for chunk in [1, 5, TOKENS] {
        let mut session = Session::new(model.clone(), options(chunk, 64)).expect("a session");
        let mut found = Vec::new();
        session
            .feed_each(&text, |_, logits| found.extend_from_slice(logits))
            .expect("a text");
        assert_eq!(found.len(), expected.len());
        for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let error = (f64::from(*found) - expected).abs();
            assert!(error < 1e-4, "chunk {chunk}, logit {i}: {found} {expected}");
        }
    }
}

#[test]
fn a_normed_residual_takes_the_place_of_the_stream() {
    // Large, so that the scale of the stream under the norm matters.
    const EPS: f64 = 0.25;
    let mlp = json!({ "intermediate": INTERMEDIATE });
    let layers = json!([
        { "mlp": mlp, "ffn_sublayer": { "normed_residual": 3.0, "multiplier": 0.5 } },
        { "mlp": mlp, "ffn_sublayer": { "multiplier": 0.75 } },
        { "mlp": mlp, "ffn_sublayer": { "normed_residual": 0.25 } },
    ]);
    let describe = |layers: &Value| {
        let spec = json!({
            "vocab": 61, "hidden": HIDDEN, "norm_eps": EPS, "tied": false, "layers": layers,
        });
        ModelSpec::from_json("a test", &spec)
    };
    let spec = describe(&layers).expect("a description");
    let weights = weights(&spec, 8);
    let model = model(&spec, &weights);
    let text = tokens(spec.vocab, TOKENS, 6);
    let w = Plain(weights);
    let rms = |name: &str, x: &[f64]| -> Vector {
        let scale = 1.0 / (dot(x, x) / x.len() as f64 + EPS).sqrt();
        let gains = w.values(&format!("{name}.weight"));
        x.iter()
            .zip(gains)
            .map(|(x, gain)| scale * gain * x)
            .collect()
    };
    let mut expected = Vec::new();
    for &token in &text {
        let mut x = w.values("token_embd.weight")[token as usize * HIDDEN..][..HIDDEN].to_vec();
        for (layer, [alpha, beta]) in [[3.0, 0.5], [0.0, 0.75], [0.25, 1.0]].iter().enumerate() {
            let n = rms(&format!("blk.{layer}.ffn_norm"), &x);
            let y = w.mlp(layer, &mlp, &n);
            for ((x, n), y) in x.iter_mut().zip(n).zip(y) {
                let residual = if *alpha > 0.0 { alpha * n } else { *x };
                *x = residual + beta * y;
            }
        }
        expected.extend(w.apply("output", &rms("output_norm", &x)));
    }
    for chunk in [1, TOKENS] {
        let mut session = Session::new(model.clone(), options(chunk, 64)).expect("a session");
        let mut found = Vec::new();
        session
            .feed_each(&text, |_, logits| found.extend_from_slice(logits))
            .expect("a text");
        for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let error = (f64::from(*found) - expected).abs();
            assert!(error < 1e-4, "chunk {chunk}, logit {i}: {found} {expected}");
        }
    }
    let refused = json!([{ "mlp": mlp, "ffn_sublayer": { "normed_residual": -1.0 } }]);
    let error = describe(&refused).expect_err("a refusal").to_string();
    assert!(error.contains("normed_residual -1"), "{error}");
}
