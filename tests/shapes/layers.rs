//! Layers of every mixer with random hyperparameters.

use serde_json::{Value, json};

use super::synthetic::{Random, block};

/// Widths of heads: one, odd numbers, and numbers around a register's width.
const WIDTHS: [usize; 8] = [1, 3, 7, 8, 9, 17, 32, 33];
const EVEN_WIDTHS: [usize; 5] = [2, 6, 8, 18, 34];

/// Returns a number of heads, and a number of key and value heads that divides it.
fn heads(random: &mut Random) -> (usize, usize) {
    let kv = random.within(1, 3);
    (kv * random.within(1, 3), kv)
}

fn maybe(random: &mut Random, value: Value) -> Value {
    if random.flip() { value } else { Value::Null }
}

fn taps(random: &mut Random) -> Value {
    let taps = random.within(1, 6);
    maybe(random, json!(taps))
}

fn attention(random: &mut Random, window: Value) -> Value {
    let (heads, kv_heads) = heads(random);
    let head_dim = random.of(&EVEN_WIDTHS);
    let rope_dim = 2 * random.within(1, head_dim / 2);
    json!({
        "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "window": window,
        "rope_theta": maybe(random, json!(1000.0)), "rope_dim": maybe(random, json!(rope_dim)),
        "rope_scaling": null, "bias": random.flip(), "out_bias": random.flip(), "gate": random.flip(),
        "head_norm_eps": maybe(random, json!(1e-5)), "retained": null,
    })
}

fn linear(random: &mut Random, widths: &[usize]) -> Value {
    let (heads, kv_heads) = heads(random);
    let gates = random.of(&[None, Some("hidden"), Some("projections")]);
    json!({
        "heads": heads, "kv_heads": kv_heads, "head_dim": random.of(widths), "value_dim": random.of(&WIDTHS),
        "feature_map": random.of(&[None, Some("relu"), Some("silu"), Some("elu_plus_one")]),
        "conv": taps(random), "gate": random.flip(), "head_gates": gates, "read_gate_after_norm": gates.is_some() && random.flip(),
        "norm_eps": 1e-5,
    })
}

fn hax(random: &mut Random) -> Value {
    let mut sources = Vec::new();
    let bins = random.of(&[0, 1, 2]);
    match bins {
        1 => sources.push(json!({ "sign_bins": { "bits": random.within(1, 3) } })),
        2 => sources.push(json!({ "argmax_bins": { "bins": random.within(1, 5) } })),
        _ => {}
    }
    for source in ["window", "sink", "best"] {
        if random.flip() {
            sources.push(json!(source));
        }
    }
    if random.flip() || sources.is_empty() {
        let (every, keys) = (random.within(1, 5), random.within(1, 4));
        sources.push(json!({ "dilated": { "every": every, "keys": keys } }));
    }
    let hax = json!({ "keys": random.within(1, 6), "sources": sources });
    maybe(random, hax)
}

fn sse(random: &mut Random, value_heads: usize) -> Value {
    let heads = random.within(1, 3);
    let partitions = random.within(1, 5);
    let update = if random.flip() {
        json!({ "kind": "gla", "rank": random.within(1, 5), "normalizer": 4.0 })
    } else {
        json!({ "kind": "gated_delta", "negative_eigenvalues": random.flip() })
    };
    let maps = ["silu", "relu", "softmax"];
    let rank = random.within(1, 9);
    let lora = maybe(random, json!(rank));
    let separate = lora.is_null() && update["kind"] == "gla" && random.flip();
    json!({
        "heads": heads, "value_heads": heads * value_heads, "head_dim": random.of(&WIDTHS),
        "value_dim": random.of(&WIDTHS), "partitions": partitions, "writers": random.within(1, partitions),
        "readers": random.within(1, partitions), "update": update, "query_map": random.of(&maps),
        "key_map": random.of(&maps), "weigh_queries": random.flip(), "weigh_keys": random.flip(),
        "lora_rank": lora, "separate": separate, "conv": taps(random), "gate_rank": maybe(random, json!(rank)),
        "bias": random.flip(), "norm_eps": 1e-5,
    })
}

fn rwkv7(random: &mut Random, heads: usize, head_dim: usize, first: bool) -> Value {
    json!({
        "heads": heads, "head_dim": head_dim, "value_dim": 9, "first": first, "decay_rank": random.within(1, 5),
        "rate_rank": random.within(1, 5), "value_rank": random.within(1, 5),
        "gate_rank": random.of(&[None, Some(1), Some(4)]), "key_eps": 1e-12, "norm_eps": random.of(&[None, Some(1e-5)]),
    })
}

/// Returns layers with the mixer `kind` and random hyperparameters, `hidden` wide.
pub fn blocks(kind: &str, hidden: &mut usize, random: &mut Random) -> Vec<Value> {
    let (heads, kv_heads) = heads(random);
    let (dk, dv) = (random.of(&WIDTHS), random.of(&WIDTHS));
    let delta = json!({
        "heads": kv_heads, "value_heads": heads, "head_dim": dk, "value_dim": dv, "conv": taps(random),
        "negative_eigenvalues": random.flip(), "norm_eps": 1e-5,
    });
    let with = |object: &Value, more: Value| {
        let mut object = object.clone();
        let fields = object.as_object_mut().expect("an object");
        fields.extend(more.as_object().expect("an object").clone());
        object
    };
    let window = random.within(1, 20);
    let numbers = match kind {
        "gla" => {
            let linear = linear(random, &WIDTHS);
            let rows = random.within(1, linear["head_dim"].as_u64().expect("a width") as usize);
            json!({
                "linear": linear, "gate_rank": random.within(1, 5), "gate_normalizer": 4.0,
                "gate_min": maybe(random, json!(-0.2)), "written": maybe(random, json!(rows)),
            })
        }
        "simple_gla" => json!({ "linear": linear(random, &WIDTHS), "gate_normalizer": 4.0 }),
        "retnet" => json!({ "linear": linear(random, &EVEN_WIDTHS), "rope_theta": 1000.0 }),
        "hgrn2" => json!({
            "heads": heads, "head_dim": dk, "value_dim": dv, "conv": taps(random), "lower_bound": random.flip(),
            "written": random.flip().then(|| random.within(1, dk)),
        }),
        "delta_net" => json!({
            "heads": heads, "head_dim": dk, "value_dim": dv, "conv": taps(random),
            "activation": random.of(&[None, Some("silu"), Some("relu"), Some("elu_plus_one")]), "key_norm": "l2",
            "beta": random.flip(), "gate": random.flip(), "negative_eigenvalues": random.flip(), "norm_eps": 1e-5,
        }),
        "gated_deltanet" => {
            let gates = random.of(&[None, Some("hidden"), Some("projections")]);
            let gate = random.of(&[None, Some("silu"), Some("sigmoid")]);
            let bias = random.flip() && !delta["conv"].is_null();
            with(
                &delta,
                json!({
                    "conv_bias": bias, "gate": gate, "decay": random.flip(), "head_gates": gates,
                    "read_gate_after_norm": gates.is_some() && random.flip(),
                }),
            )
        }
        "gated_deltanet2" => {
            let bias = random.flip() && !delta["conv"].is_null();
            with(&delta, json!({ "conv_bias": bias }))
        }
        "kda" => {
            let bound = maybe(random, json!(-5.0));
            let more = json!({ "decay_bound": bound, "full_rank": dk > dv });
            with(&delta, more)
        }
        "gated_conv" => json!({
            "channels": *hidden, "conv": random.within(1, 6), "bias": random.flip(),
        }),
        "gsa" => {
            let slots = random.within(1, 9);
            let written = random.within(1, slots);
            json!({
                "heads": heads, "kv_heads": kv_heads, "head_dim": dk, "value_dim": dv, "slots": slots,
                "feature_map": random.of(&["silu", "relu"]), "learned_map": random.flip(), "conv": taps(random),
                "gate_normalizer": 4.0, "written": maybe(random, json!(written)), "fixed_decay": random.flip(),
                "scores": random.of(&[None, None, Some("identity"), Some("silu"), Some("squared_relu")]),
            })
        }
        "raven" => {
            let slots = random.within(1, 9);
            json!({
                "heads": heads, "kv_heads": kv_heads, "head_dim": random.of(&EVEN_WIDTHS), "value_dim": dv, "slots": slots,
                "written": random.within(1, slots), "softmax_router": random.flip(),
                "feature_map": random.of(&["silu", "relu"]), "learned_map": random.flip(), "gate": random.flip(),
                "slot_decay": maybe(random, json!(4.0)), "rope_theta": maybe(random, json!(1000.0)), "norm_eps": 1e-5,
            })
        }
        "abc" => json!({
            "heads": heads, "head_dim": random.of(&EVEN_WIDTHS), "value_dim": dv, "slots": random.within(1, 9),
            "conv": taps(random), "rope_theta": maybe(random, json!(1000.0)), "min": maybe(random, json!(-1.0)),
            "max": maybe(random, json!(1.0)), "norm_eps": 1e-5,
        }),
        "mom" => {
            let memories = random.within(1, 5);
            json!({
                "heads": heads, "head_dim": dk, "value_dim": dv, "memories": memories,
                "chosen": random.within(1, memories), "shared": random.flip(), "single": random.flip(),
                "conv": taps(random), "gate": random.flip(), "norm_eps": 1e-5,
                "gla": random.flip().then(|| json!({ "rank": random.within(1, 5), "normalizer": 4.0 })),
            })
        }
        "sse" => {
            let more = random.within(1, 3);
            sse(random, more)
        }
        "sse_swa" => json!({ "sse": sse(random, 1), "swa": attention(random, json!(window)) }),
        "attention" => {
            let window = random.of(&[0, 1, 3, 16, 33]);
            let mut attention = attention(
                random,
                if window == 0 {
                    json!(null)
                } else {
                    json!(window)
                },
            );
            attention["gate_per_head"] = json!(attention["gate"] == true && random.flip());
            if attention["gate"] == true && random.flip() {
                attention["gate_function"] = json!("softplus");
            }
            if random.flip() {
                attention["query_growth"] = json!({ "rate": 0.3, "period": random.within(1, 9) });
            }
            let turned = 2 * random.within(0, 2);
            let scalings = [
                json!(null),
                json!({
                    "kind": "yarn", "factor": 4.0, "fast": 32.0, "slow": 1.0, "trained": 16.0, "magnitude": 1.2,
                    "whole": random.flip(),
                }),
                json!({ "kind": "proportional", "turned": turned }),
            ];
            attention["rope_scaling"] = scalings[random.below(scalings.len())].clone();
            if window > 0 && random.flip() {
                let sink = random.within(0, 2);
                let policy = random.of(&[None, Some(1), Some(3)]);
                if policy.is_none() {
                    // A norm over one channel keeps only its sign: the keys would be equal, and rounding would decide which one is
                    // retained.
                    *hidden = (*hidden).max(5);
                }
                attention["retained"] = json!({
                    "capacity": random.within(sink.max(1), 9), "sink": sink,
                    "policy": policy.map_or(json!("attention"), |every| json!({ "stride": every })),
                });
            }
            attention
        }
        "shared_keys" => {
            let window = random.of(&[None, Some(1), Some(3), Some(16)]);
            let mut owner = attention(random, json!(window));
            if window.is_some() && random.flip() {
                *hidden = (*hidden).max(5);
                let policy = random.of(&[None, Some(2)]);
                let policy = policy.map_or(json!("attention"), |every| json!({ "stride": every }));
                owner["retained"] = json!({ "capacity": 4, "sink": 1, "policy": policy });
            }
            let mut reader = owner.clone();
            reader["keys_of"] = json!(0);
            owner["values_are_keys"] = json!(random.flip());
            owner["value_norm_eps"] = maybe(random, json!(1e-5));
            let mlp = random.of(&[None, Some(31)]);
            return vec![
                block("attention", owner, None),
                block("attention", reader.clone(), mlp),
                block("attention", reader, mlp),
            ];
        }
        "latent_attention" => {
            let rope = 2 * random.within(0, 4);
            let rank = random.within(1, 9);
            json!({
                "heads": heads, "latent": dk, "nope": dv, "rope": rope, "value_dim": random.of(&WIDTHS),
                "query_rank": maybe(random, json!(rank)), "head_gate": random.flip(),
                "rope_theta": if rope > 0 { maybe(random, json!(1000.0)) } else { json!(null) }, "norm_eps": 1e-5,
            })
        }
        "lte" => {
            let layers = random.within(1, 3);
            let taps: Vec<usize> = (0..layers).map(|_| random.within(1, 4)).collect();
            let dilations: Vec<usize> = (0..layers).map(|_| random.within(1, 2)).collect();
            let sink = random.within(0, 2);
            let window = random.within(13, 24);
            let mut attention = attention(random, json!(window));
            attention["head_dim"] = json!(random.of(&[4, 12, 36]));
            attention["rope_dim"] = json!(null);
            json!({
                "attention": attention, "capacity": random.within(sink.max(1), 9), "sink": sink,
                "router_taps": taps, "router_dilations": dilations, "router_scope": random.of(&["head", "layer"]),
                "score": random.of(&["sigmoid", "relu"]),
            })
        }
        "native_sparse_attention" => {
            let mut attention = attention(random, json!(null));
            attention["gate"] = json!(false);
            json!({
                "attention": attention, "block_size": random.within(1, 9), "block_count": random.within(1, 5),
                "window": random.within(0, 12),
            })
        }
        "lightning_attention" => json!({
            "heads": heads, "head_dim": 2 * dk, "slope": 0.3, "norm_eps": 1e-5, "unmapped": random.flip().then(|| json!({
                "kv_heads": kv_heads, "head_norm_eps": 1e-5, "rope_theta": maybe(random, json!(1000.0)), "scale": 0.5,
            })),
        }),
        "mamba" => json!({
            "inner": random.of(&[1, 13, 64, 67]), "state": random.within(1, 9), "rank": random.within(1, 9),
            "conv": random.within(1, 5), "conv_bias": random.flip(), "bias": random.flip(), "hax": hax(random),
            "norm_eps": maybe(random, json!(1e-5)), "norm_gains": random.flip(),
        }),
        "mamba2" => json!({
            "heads": heads, "head_dim": dk, "groups": kv_heads, "state": dv, "conv": random.within(1, 5),
            "conv_bias": random.flip(), "bias": random.flip(), "skip_per_channel": random.flip(),
            "norm_groups": random.of(&[None, Some(1), Some(kv_heads)]), "norm_before_gate": random.flip(),
            "norm_eps": 1e-5, "step_min": 0.001, "step_max": maybe(random, json!(0.5)), "hax": hax(random),
            "out_bias": maybe(random, json!(true)), "multipliers": maybe(random, json!([0.5, 1.5, 0.75, 1.25, 2.0])),
        }),
        "mamba3" => {
            let state = random.of(&EVEN_WIDTHS);
            json!({
                "heads": heads, "head_dim": dv, "groups": kv_heads, "state": state, "pairs": random.within(1, state / 2),
                "bias": random.flip(), "least_rate": random.of(&[0.0, 0.5]), "norm": random.flip(), "norm_eps": 1e-5,
            })
        }
        "parallel" => {
            let part = |kind: &str, random: &mut Random| {
                let mut part = blocks(kind, &mut 16, random).remove(0);
                let fields = part.as_object_mut().expect("an object");
                fields.remove("mlp");
                fields.insert(
                    "input_multiplier".into(),
                    json!(random.of(&[0.5, 1.0, 2.0])),
                );
                fields.insert("output_multiplier".into(), json!(random.of(&[0.5, 1.0])));
                part
            };
            json!({ "parts": [part("mamba2", random), part("attention", random)] })
        }
        "shared_block" => {
            let mut behind = blocks("mamba2", &mut 16, random).remove(0);
            behind.as_object_mut().expect("an object").remove("mlp");
            let (rank, attention_rank) = (random.within(1, 9), random.within(1, 9));
            json!({
                // Two blocks with the same number would share matrices of different shapes.
                "number": random.below(1 << 16), "heads": heads, "kv_heads": kv_heads,
                "head_dim": random.of(&EVEN_WIDTHS), "rope_theta": maybe(random, json!(1000.0)),
                "intermediate": random.of(&WIDTHS), "rank": maybe(random, json!(rank)),
                "attention_rank": maybe(random, json!(attention_rank)), "bias": random.flip(), "behind": behind,
            })
        }
        "rg_lru" => json!({ "width": heads * dk, "heads": heads, "conv": random.within(1, 6) }),
        "rwkv6" => {
            *hidden = heads * dk;
            let [mix, decay] = [(); 2].map(|()| random.within(1, 5));
            json!({ "heads": heads, "head_dim": dk, "mix_rank": mix, "decay_rank": decay, "norm_eps": 1e-5 })
        }
        "rwkv7" => {
            *hidden = heads * dk;
            let first = rwkv7(random, heads, dk, true);
            let second = rwkv7(random, heads, dk, false);
            return vec![block(kind, first, None), block(kind, second, Some(5))];
        }
        "rwkv_channel_mix" => json!({
            "hidden": *hidden, "intermediate": random.of(&WIDTHS), "activation": "squared_relu",
        }),
        _ => unreachable!("{kind}"),
    };
    let mlp = random.of(&[None, Some(1), Some(31)]);
    vec![block(kind, numbers, mlp)]
}

/// Varies the MLP, norms and multipliers of a layer, or removes its mixer.
pub fn vary(layer: &mut Value, random: &mut Random) {
    let kind = layer["mixer"].as_str().expect("a mixer").to_string();
    let mut sublayer = |pre_norm: bool, post_norm: bool| {
        json!({
            "pre_norm": random.flip() || pre_norm,
            "post_norm": post_norm && random.flip(),
            "multiplier": random.of(&[0.5, 1.0, 1.5]),
        })
    };
    // A norm must follow a single sum, and scaled inputs need a norm before them.
    let one_sum = !["sse_swa", "parallel"].contains(&kind.as_str());
    layer["mixer_sublayer"] = sublayer(!one_sum, one_sum);
    layer["ffn_sublayer"] = sublayer(false, true);
    if layer.get("mlp").is_some() {
        let functions = ["silu", "gelu", "gelu_erf", "squared_relu"];
        let gated = random.flip();
        layer["mlp"] = json!({
            "activation": random.of(&functions),
            "intermediate": random.of(&WIDTHS),
            "gated": gated,
            "bias": random.flip(),
            "gate_multiplier": if gated { 0.75 } else { 1.0 },
            "multiplier": random.of(&[0.5, 1.0]),
        });
        // Layers of rwkv7, and layers without keys, read what other layers published.
        if kind != "rwkv7" && layer.get("keys_of").is_none() && random.within(1, 4) == 1 {
            let fields = layer.as_object_mut().expect("an object");
            fields.retain(|key, _| ["mlp", "mixer_sublayer", "ffn_sublayer"].contains(&&**key));
        }
    }
}
