//! Softmax linear attention: gates on each possible input, and the read gate before and after the norm.

use serde_json::json;

use super::plain::{
    EPS, Plain, Vector, map, read, rotate, sigmoid, silu, softmax, softplus, state, unit, write,
};
use super::{DK, DV, HEADS, KV_HEADS, compare, head, linear};

/// Returns the read gate and the write gate of a token, `[heads]` each.
fn gates(w: &Plain, input: &str, h: &[f64], q: &[f64], k: &[f64]) -> [Vector; 2] {
    let inputs = if input == "hidden" { [h, h] } else { [q, k] };
    [
        softmax(&w.apply("gate_q_proj", inputs[0])),
        softmax(&w.apply("gate_k_proj", inputs[1])),
    ]
}

/// Returns the heads' outputs, scaled by the read gate before or after their norm, times silu of the output gate.
fn gated(w: &Plain, outputs: &[Vector], read: &[f64], after_norm: bool, h: &[f64]) -> Vector {
    let heads = outputs.iter().zip(read).flat_map(|(o, gate)| {
        if after_norm {
            map(&w.rms("o_norm", o), |x| gate * x)
        } else {
            w.rms("o_norm", &map(o, |x| gate * x))
        }
    });
    let output_gate = w.apply("g_proj", h);
    heads.zip(output_gate).map(|(o, g)| o * silu(g)).collect()
}

#[test]
fn softmax_retnet_weighs_heads_by_any_input() {
    for (input, after_norm) in [("hidden", false), ("projections", false), ("hidden", true)] {
        let mut linear = linear(json!(input));
        linear["read_gate_after_norm"] = json!(after_norm);
        let parameters = json!({ "linear": linear, "rope_theta": 100.0 });
        let mut states = vec![state(DK, DV); HEADS];
        compare("retnet", parameters, |w, t, h| {
            let rotated = |name: &str| -> Vector {
                let heads = w.apply(name, h);
                heads
                    .chunks_exact(DK)
                    .flat_map(|x| rotate(x, t, 100.0))
                    .collect()
            };
            let (q, k, v) = (rotated("q_proj"), rotated("k_proj"), w.apply("v_proj", h));
            let [read_gate, write_gate] = gates(w, input, h, &q, &k);
            let outputs: Vec<Vector> = (0..HEADS)
                .map(|i| {
                    let g = i / (HEADS / KV_HEADS);
                    let gamma = 1.0 - (-5.0 - i as f64).exp2();
                    let key = map(head(&k, g, DK), |k| write_gate[i] * k);
                    write(&mut states[i], |_| gamma, &key, head(&v, g, DV));
                    map(&read(&states[i], head(&q, i, DK)), |o| {
                        o / (DK as f64).sqrt()
                    })
                })
                .collect();
            gated(w, &outputs, &read_gate, after_norm, h)
        });
    }
}

#[test]
fn softmax_gated_deltanet_weighs_heads_by_any_input() {
    for (input, decays, after_norm) in [
        ("hidden", true, false),
        ("projections", true, false),
        ("projections", false, false),
        ("hidden", true, true),
        ("projections", false, true),
    ] {
        let parameters = json!({
            "heads": KV_HEADS, "value_heads": HEADS, "head_dim": DK, "value_dim": DV, "conv": null,
            "conv_bias": false, "gate": "silu", "negative_eigenvalues": false, "decay": decays,
            "head_gates": input, "read_gate_after_norm": after_norm, "norm_eps": EPS,
        });
        let mut states = vec![state(DK, DV); HEADS];
        compare("gated_deltanet", parameters, |w, _, h| {
            let normed = |name: &str| -> Vector {
                let heads = map(&w.apply(name, h), silu);
                heads.chunks_exact(DK).flat_map(unit).collect()
            };
            let (q, k, v) = (
                normed("q_proj"),
                normed("k_proj"),
                map(&w.apply("v_proj", h), silu),
            );
            let [read_gate, write_gate] = gates(w, input, h, &q, &k);
            let beta = map(&w.apply("b_proj", h), sigmoid);
            let outputs: Vec<Vector> = (0..HEADS)
                .map(|i| {
                    let g = i / (HEADS / KV_HEADS);
                    let key = head(&k, g, DK);
                    let factor = if decays {
                        let step = w.apply("a_proj", h)[i] + w.values("dt_bias")[i];
                        (-w.values("A_log")[i].exp() * softplus(step)).exp()
                    } else {
                        1.0
                    };
                    write(&mut states[i], |_| factor, &[0.0; DK], &[0.0; DV]);
                    let known = read(&states[i], key);
                    let new: Vector = (0..DV)
                        .map(|d| beta[i] * (write_gate[i] * v[i * DV + d] - known[d]))
                        .collect();
                    write(&mut states[i], |_| 1.0, key, &new);
                    map(&read(&states[i], head(&q, g, DK)), |o| {
                        o / (DK as f64).sqrt()
                    })
                })
                .collect();
            gated(w, &outputs, &read_gate, after_norm, h)
        });
    }
}
