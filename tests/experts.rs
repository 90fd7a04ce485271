//! Mixtures of experts in a model: compares them with their equations, written out in f64, in steps and chunks, and counts the bytes that a
//! token reads.

mod synthetic;

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Value, json};
use synthetic::{Random, model, options, tokens, weights};
use waterline::{Model, ModelSpec, Session};

type Vector = Vec<f64>;

const EPS: f64 = 1e-5;
const TOKENS: usize = 90;

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// The weights of a model.
struct Plain<'a>(&'a HashMap<String, Vec<f32>>);

impl Plain<'_> {
    /// Returns part `index` of `parts` equal parts of a tensor.
    fn part(&self, name: &str, index: usize, parts: usize) -> Vector {
        let values = self.0.get(name).unwrap_or_else(|| panic!("no {name}"));
        let size = values.len() / parts;
        let part = &values[index * size..(index + 1) * size];
        part.iter().map(|&x| f64::from(x)).collect()
    }

    /// Returns `W x`, plus the bias if there is one, with matrix `index` of `parts`.
    fn apply(&self, name: &str, (index, parts): (usize, usize), x: &[f64]) -> Vector {
        let weight = self.part(&format!("{name}.weight"), index, parts);
        let bias = format!("{name}.bias");
        let bias = match self.0.contains_key(&bias) {
            true => self.part(&bias, index, parts),
            false => vec![0.0; weight.len() / x.len()],
        };
        let rows = weight.chunks_exact(x.len());
        rows.zip(bias)
            .map(|(row, bias)| dot(row, x) + bias)
            .collect()
    }

    fn rms(&self, name: &str, x: &[f64]) -> Vector {
        let scale = 1.0 / (dot(x, x) / x.len() as f64 + EPS).sqrt();
        let gains = self.part(&format!("{name}.weight"), 0, 1);
        x.iter()
            .zip(gains)
            .map(|(x, gain)| scale * gain * x)
            .collect()
    }

    /// Returns the output of one MLP whose tensors end with `end`.
    fn network(
        &self,
        layer: &str,
        end: &str,
        at: (usize, usize),
        numbers: &Value,
        x: &[f64],
    ) -> Vector {
        let apply = |part: &str, x: &[f64]| self.apply(&format!("{layer}ffn_{part}_{end}"), at, x);
        let function = |x: f64| match numbers["activation"].as_str() {
            Some("silu") => x * sigmoid(x),
            _ => x.max(0.0).powi(2),
        };
        let mut inner = apply("up", x);
        if let (Some(limit), Some(slope)) = (
            numbers["clamped"]["limit"].as_f64(),
            numbers["clamped"]["slope"].as_f64(),
        ) {
            for (x, gate) in inner.iter_mut().zip(apply("gate", x)) {
                let gate = gate.min(limit);
                *x = (x.clamp(-limit, limit) + 1.0) * gate * sigmoid(slope * gate);
            }
            return apply("down", &inner);
        }
        match numbers["gated"].as_bool() {
            Some(true) => {
                let gates = apply("gate", x);
                inner
                    .iter_mut()
                    .zip(gates)
                    .for_each(|(x, gate)| *x *= function(gate));
            }
            _ => inner.iter_mut().for_each(|x| *x = function(*x)),
        }
        apply("down", &inner)
    }

    /// Returns the experts of a token and their weights.
    fn route(&self, layer: &str, numbers: &Value, x: &[f64]) -> Vec<(usize, f64)> {
        let router = &numbers["router"];
        let mut logits = self.apply(&format!("{layer}ffn_gate_inp"), (0, 1), x);
        if let Some(cap) = router["softcap"].as_f64() {
            logits.iter_mut().for_each(|x| *x = cap * (*x / cap).tanh());
        }
        let scores: Vector = match router["scoring"].as_str() {
            Some("sigmoid") => logits.iter().map(|&x| sigmoid(x)).collect(),
            _ => {
                let sum: f64 = logits.iter().map(|x| x.exp()).sum();
                logits.iter().map(|x| x.exp() / sum).collect()
            }
        };
        let mut ranks = scores.clone();
        if numbers["bias"] == json!(true) {
            let bias = self.part(&format!("{layer}exp_probs_b.bias"), 0, 1);
            ranks.iter_mut().zip(bias).for_each(|(x, bias)| *x += bias);
        }
        if let Some(count) = router["groups"]["count"].as_u64() {
            let size = ranks.len() / count as usize;
            let best_two = |group: &[f64]| {
                let mut group = group.to_vec();
                group.sort_by(|a, b| b.total_cmp(a));
                group[0] + group[1]
            };
            let sums: Vector = ranks.chunks(size).map(best_two).collect();
            let mut order: Vec<usize> = (0..sums.len()).collect();
            order.sort_by(|&a, &b| sums[b].total_cmp(&sums[a]));
            for &group in &order[router["groups"]["kept"].as_u64().expect("kept") as usize..] {
                ranks[group * size..(group + 1) * size].fill(f64::NEG_INFINITY);
            }
        }
        let mut order: Vec<usize> = (0..ranks.len()).collect();
        order.sort_by(|&a, &b| ranks[b].total_cmp(&ranks[a]));
        order.truncate(numbers["chosen"].as_u64().expect("chosen") as usize);
        let mut factor = router["scale"].as_f64().expect("scale");
        if let Some(more) = router["normalize"].as_f64() {
            factor /= order.iter().map(|&expert| scores[expert]).sum::<f64>() + more;
        }
        order
            .iter()
            .map(|&expert| (expert, factor * scores[expert]))
            .collect()
    }

    fn mixture(&self, layer: &str, numbers: &Value, x: &[f64]) -> Vector {
        let latent = numbers["latent"].is_u64();
        let project = |name: &str, x: &[f64]| {
            if latent {
                self.apply(&format!("{layer}{name}"), (0, 1), x)
            } else {
                x.to_vec()
            }
        };
        let input = project("ffn_latent_in", x);
        let experts = numbers["experts"].as_u64().expect("experts") as usize;
        let mut sum = vec![0.0; input.len()];
        for (expert, weight) in self.route(layer, numbers, x) {
            let y = self.network(layer, "exps", (expert, experts), numbers, &input);
            sum.iter_mut()
                .zip(y)
                .for_each(|(sum, y)| *sum += weight * y);
        }
        let mut sum = project("ffn_latent_out", &sum);
        if numbers["shared"].is_object() {
            let gate = match numbers["shared"]["gate"].as_bool() {
                Some(true) => {
                    let name = format!("{layer}ffn_gate_inp_shexp");
                    sigmoid(self.apply(&name, (0, 1), x)[0])
                }
                _ => 1.0,
            };
            let y = self.network(layer, "shexp", (0, 1), numbers, x);
            sum.iter_mut().zip(y).for_each(|(sum, y)| *sum += gate * y);
        }
        sum
    }
}

/// Returns a model with only mixtures as layers, and scaled outputs.
fn mixtures(hidden: usize, all: &[Value]) -> ModelSpec {
    let layer =
        |numbers: &Value| json!({ "experts": numbers, "ffn_sublayer": { "multiplier": 0.75 } });
    let layers: Vec<Value> = all.iter().map(layer).collect();
    let spec = json!({
        "vocab": 61, "hidden": hidden, "norm_eps": EPS, "tied": false, "layers": layers,
    });
    let spec = ModelSpec::from_json("test", &spec).expect("a description");
    let again = ModelSpec::from_json("test", &spec.to_json()).expect("what was written");
    assert_eq!(again.to_json(), spec.to_json());
    spec
}

fn softmax(normalize: Value) -> Value {
    json!({ "scoring": "softmax", "normalize": normalize, "scale": 1.0, "groups": null })
}

/// Returns every kind of router and of experts.
fn kinds() -> Vec<Value> {
    let grouped = json!({
        "scoring": "sigmoid", "normalize": 1e-20, "scale": 1.5, "groups": { "count": 3, "kept": 2 },
    });
    let biased = json!({ "scoring": "sigmoid", "normalize": 1e-6, "scale": 1.25, "groups": null });
    let capped = json!({
        "scoring": "sigmoid", "normalize": 0.0, "scale": 1.5, "groups": null, "softcap": 0.1,
    });
    vec![
        json!({
            "experts": 6, "chosen": 2, "intermediate": 20, "router": softmax(json!(0.0)), "gated": true,
            "activation": "silu", "shared": { "intermediate": 33, "gate": true },
        }),
        json!({
            "experts": 5, "chosen": 3, "intermediate": 70, "router": softmax(json!(null)), "gated": true,
            "activation": "silu", "shared": { "intermediate": 8, "gate": false },
        }),
        json!({
            "experts": 7, "chosen": 1, "intermediate": 9, "router": biased, "bias": true, "gated": true,
            "activation": "silu",
        }),
        json!({
            "experts": 9, "chosen": 4, "intermediate": 17, "router": grouped, "bias": true, "gated": false,
            "activation": "squared_relu", "shared": { "intermediate": 21, "gate": false },
        }),
        json!({
            "experts": 6, "chosen": 2, "intermediate": 17, "router": grouped, "bias": true, "gated": false,
            "activation": "squared_relu", "latent": 10, "shared": { "intermediate": 21, "gate": false },
        }),
        json!({
            "experts": 6, "chosen": 2, "intermediate": 18, "router": softmax(json!(0.0)), "router_bias": true,
            "expert_biases": true, "gated": true, "activation": "silu", "clamped": { "limit": 0.2, "slope": 1.7 },
        }),
        json!({
            "experts": 7, "chosen": 3, "intermediate": 9, "router": capped, "bias": true, "gated": true,
            "activation": "silu", "shared": { "intermediate": 8, "gate": false },
        }),
    ]
}

/// Returns the logits after every token, read in chunks.
fn logits(model: &Arc<Model>, text: &[u32], chunk: usize) -> Vec<Vec<f32>> {
    let mut session = Session::new(Arc::clone(model), options(chunk, 8)).expect("a session");
    text.chunks(chunk)
        .map(|chunk| {
            session.feed(chunk).expect("a chunk");
            session.logits().expect("logits").to_vec()
        })
        .collect()
}

#[test]
fn mixtures_follow_their_equations() {
    for (i, numbers) in kinds().iter().enumerate() {
        let hidden = 24;
        let spec = mixtures(hidden, &[numbers.clone(), numbers.clone()]);
        let weights = weights(&spec, 5 + i as u64);
        let model = model(&spec, &weights);
        let text = tokens(61, TOKENS, 9);
        let steps = logits(&model, &text, 1);
        let w = Plain(&weights);
        for (t, &token) in text.iter().enumerate() {
            let mut x = w.part("token_embd.weight", token as usize, 61);
            for layer in 0..2 {
                let layer = format!("blk.{layer}.");
                let y = w.mixture(&layer, numbers, &w.rms(&format!("{layer}ffn_norm"), &x));
                x.iter_mut().zip(y).for_each(|(x, y)| *x += 0.75 * y);
            }
            let expected = w.apply("output", (0, 1), &w.rms("output_norm", &x));
            for (found, expected) in steps[t].iter().zip(expected) {
                let error = (f64::from(*found) - expected).abs();
                assert!(
                    error < 2e-4 * (1.0 + expected.abs()),
                    "{numbers}, token {t}: {found}, not {expected}"
                );
            }
        }
        for chunk in [7, TOKENS] {
            let last = logits(&model, &text, chunk);
            let (found, expected) = (&last[last.len() - 1], &steps[TOKENS - 1]);
            let same = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-4 * (1.0 + b.abs());
            assert!(
                found.iter().zip(expected).all(same),
                "{numbers}: chunks of {chunk}"
            );
        }
    }
}

#[test]
fn a_token_reads_the_experts_that_it_chose() {
    for mut numbers in kinds() {
        let experts = numbers["experts"].as_u64().expect("experts") as usize;
        let chosen = numbers["chosen"].as_u64().expect("chosen") as usize;
        numbers["bias"] = json!(true);
        numbers["router"]["groups"] = json!(null);
        let spec = mixtures(16, &[numbers.clone()]);
        let mut weights = weights(&spec, 3);
        // Every token chooses the last experts; the other experts' weights must not be read.
        let bias = weights.get_mut("blk.0.exp_probs_b.bias").expect("a bias");
        for (expert, bias) in bias.iter_mut().enumerate() {
            *bias = if expert >= experts - chosen {
                100.0
            } else {
                0.0
            };
        }
        let mut bytes = 0;
        for (name, values) in weights
            .iter_mut()
            .filter(|(name, _)| name.ends_with("_exps.weight"))
        {
            let unused = values.len() / experts * (experts - chosen);
            values[..unused].fill(f32::NAN);
            bytes += unused * 4;
            assert!(values.len() > unused, "{name}");
        }
        let model = model(&spec, &weights);
        for chunk in [1, 30] {
            let all = logits(&model, &tokens(61, 30, 4), chunk);
            assert!(
                all.iter().flatten().all(|x| x.is_finite()),
                "{numbers}, chunks of {chunk}"
            );
        }
        // All bytes except those of experts that were not chosen and of the other rows of the embedding.
        let read: usize = spec
            .weights()
            .iter()
            .filter(|w| w.shape.len() == 2 && !w.name.ends_with(".bias"))
            .map(|w| 4 * w.len())
            .sum();
        assert_eq!(
            model.weight_bytes(),
            read - bytes - 4 * 60 * 16,
            "{numbers}"
        );
    }
}

#[test]
fn numbers_that_do_not_fit_are_refused() {
    let plain = &kinds()[3];
    let refused = |key: &str, value: Value| {
        let mut numbers = plain.clone();
        *numbers.pointer_mut(key).expect("a key") = value;
        let spec = json!({
            "vocab": 61, "hidden": 16, "norm_eps": EPS, "tied": false, "layers": [{ "experts": numbers }],
        });
        let error = ModelSpec::from_json("test", &spec)
            .expect_err("a refusal")
            .to_string();
        assert!(error.contains("layers[0]"), "{error}");
    };
    refused("/chosen", json!(0));
    refused("/chosen", json!(8));
    refused("/experts", json!(10));
    refused("/experts", json!(1u64 << 40));
    refused("/intermediate", json!(0));
    refused("/router/scale", json!(1e300));
    refused("/router/groups/kept", json!(4));
    refused("/router/groups/count", json!(0));
    refused("/router/groups", json!({ "count": 9, "kept": 9 }));
    refused("/router/scoring", json!("sparsemax"));
}

#[test]
fn random_mixtures_read_chunks_as_steps() {
    for seed in 0..12 {
        let mut random = Random(seed * 31 + 7);
        let hidden = random.of(&[1, 5, 16, 33]);
        let experts = random.within(1, 9);
        let numbers = json!({
            "experts": experts, "chosen": random.within(1, experts), "intermediate": random.of(&[1, 7, 64, 65, 130]),
            "router": softmax(random.of(&[Some(0.0), None]).map_or(Value::Null, |x: f64| json!(x))),
            "bias": random.flip(), "router_bias": random.flip(), "expert_biases": random.flip(), "gated": random.flip(),
            "activation": "silu",
        });
        let spec = mixtures(hidden, std::slice::from_ref(&numbers));
        let model = model(&spec, &weights(&spec, seed));
        let text = tokens(61, TOKENS, seed);
        let steps = logits(&model, &text, 1);
        for chunk in [3, 64] {
            let found = logits(&model, &text, chunk);
            for (index, found) in found.iter().enumerate() {
                let end = (chunk * (index + 1)).min(TOKENS) - 1;
                let same = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-4 * (1.0 + b.abs());
                assert!(
                    found.iter().zip(&steps[end]).all(same),
                    "{numbers}, chunks of {chunk}"
                );
            }
        }
    }
}
