//! Gated slot attention with row-sparse updates and the ablations of its paper, and Raven.

use serde_json::json;

use super::plain::{
    EPS, Vector, dot, largest, map, read, sigmoid, silu, softmax, softplus, state, write,
};
use super::{DK, DV, HEADS, KV_HEADS, compare, head};

#[test]
fn slots_are_those_of_every_ablation() {
    const SLOTS: usize = 7;
    for (written, scores, fixed_decay) in [
        (1, None, false),
        (4, None, false),
        (SLOTS, None, false),
        (SLOTS, None, true),
        (SLOTS, Some("identity"), false),
        (SLOTS, Some("silu"), true),
        (SLOTS, Some("relu"), false),
        (4, Some("squared_relu"), false),
    ] {
        let parameters = json!({
            "heads": HEADS, "kv_heads": KV_HEADS, "head_dim": DK, "value_dim": DV, "slots": SLOTS,
            "feature_map": "silu", "learned_map": false, "conv": null, "gate_normalizer": 3.0, "written": written,
            "scores": scores, "fixed_decay": fixed_decay,
        });
        let weigh = |q_k: &[f64]| match scores {
            None => softmax(q_k),
            Some("silu") => map(q_k, silu),
            Some("relu") => map(q_k, |x| x.max(0.0)),
            Some("squared_relu") => map(q_k, |x| x.max(0.0).powi(2)),
            Some(_) => q_k.to_vec(),
        };
        let mut keys = vec![state(SLOTS, DK); KV_HEADS];
        let mut values = vec![state(SLOTS, DV); KV_HEADS];
        compare("gsa", parameters, |w, _, h| {
            let [q, k, v] = ["q_proj", "k_proj", "v_proj"].map(|name| map(&w.apply(name, h), silu));
            let f = if fixed_decay {
                w.values("f_proj.bias")
            } else {
                w.apply("f_proj", h)
            };
            let mut out = Vec::new();
            for g in 0..KV_HEADS {
                let s = map(head(&f, g, SLOTS), |x| 1.0 - sigmoid(x).powf(1.0 / 3.0));
                let tensors = largest(&s, written);
                let s: Vector = (0..SLOTS)
                    .map(|m| if tensors.contains(&m) { s[m] } else { 0.0 })
                    .collect();
                write(&mut keys[g], |m| 1.0 - s[m], &s, head(&k, g, DK));
                write(&mut values[g], |m| 1.0 - s[m], &s, head(&v, g, DV));
                for query in 0..HEADS / KV_HEADS {
                    let q = head(&q, g * HEADS / KV_HEADS + query, DK);
                    let q_k: Vector = keys[g].iter().map(|key| dot(key, q)).collect();
                    out.extend(read(&values[g], &weigh(&q_k)));
                }
            }
            w.rms("o_norm", &map(&out, silu))
        });
    }
}

#[test]
fn raven_writes_the_slots_that_its_router_chooses() {
    const SLOTS: usize = 7;
    for (written, softmax_router, slot_decay) in [
        (1, false, None),
        (3, false, None),
        (3, true, None),
        (SLOTS, false, Some(3.0)),
        (3, true, Some(3.0)),
    ] {
        let parameters = json!({
            "heads": HEADS, "kv_heads": KV_HEADS, "head_dim": DK, "value_dim": DV, "slots": SLOTS, "written": written,
            "softmax_router": softmax_router, "feature_map": "silu", "learned_map": false, "slot_decay": slot_decay,
            "rope_theta": null, "gate": false, "norm_eps": EPS,
        });
        let mut keys = vec![state(SLOTS, DK); KV_HEADS];
        let mut values = vec![state(SLOTS, DV); KV_HEADS];
        compare("raven", parameters, |w, _, h| {
            let [q, k, v] = ["q_proj", "k_proj", "v_proj"].map(|name| map(&w.apply(name, h), silu));
            let router = w.apply("r_proj", h);
            let mut out = Vec::new();
            for g in 0..KV_HEADS {
                let scores = head(&router, g, SLOTS);
                let scores = if softmax_router {
                    softmax(scores)
                } else {
                    map(scores, sigmoid)
                };
                let chosen = largest(&scores, written);
                let sum: f64 = chosen.iter().map(|&m| scores[m]).sum();
                let s: Vector = (0..SLOTS)
                    .map(|m| {
                        let log_decay = match slot_decay {
                            Some(scale) => {
                                sigmoid(w.apply("f_proj", h)[g * SLOTS + m]).ln() / scale
                            }
                            None => {
                                let step = w.apply("a_proj", h)[g] + w.values("dt_bias")[g];
                                -w.values("A_log")[g].exp() * softplus(step)
                            }
                        };
                        let share = if softmax_router { 1.0 } else { sum };
                        if chosen.contains(&m) {
                            1.0 - (log_decay * scores[m] / share).exp()
                        } else {
                            0.0
                        }
                    })
                    .collect();
                let k = w.rms("k_norm", head(&k, g, DK));
                write(&mut keys[g], |m| 1.0 - s[m], &s, &k);
                write(&mut values[g], |m| 1.0 - s[m], &s, head(&v, g, DV));
                for query in 0..HEADS / KV_HEADS {
                    let q = w.rms("q_norm", head(&q, g * HEADS / KV_HEADS + query, DK));
                    let q_k: Vector = keys[g].iter().map(|key| dot(key, &q)).collect();
                    out.extend(read(&values[g], &softmax(&q_k)));
                }
            }
            w.rms("o_norm", &map(&out, silu))
        });
    }
}
