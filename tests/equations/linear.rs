//! Linear attention: row-sparse updates of GLA and HGRN2, Gated DeltaNet-2.

use serde_json::json;

use super::plain::{
    EPS, Plain, Vector, largest, map, read, sigmoid, silu, softmax, softplus, state, unit, write,
};
use super::{DK, DV, HEADS, KV_HEADS, compare, head, linear};

#[test]
fn row_sparse_gla_changes_its_largest_rows_only() {
    for written in [1, 3, DK] {
        let parameters = json!({
            "linear": linear(json!(null)), "gate_rank": 3, "gate_normalizer": 2.0, "gate_min": null,
            "written": written,
        });
        let mut states = vec![state(DK, DV); KV_HEADS];
        compare("gla", parameters, |w, _, h| {
            let (q, k, v) = (
                w.apply("q_proj", h),
                w.apply("k_proj", h),
                w.apply("v_proj", h),
            );
            let decay = w.apply("gk_proj.1", &w.apply("gk_proj.0", h));
            let bias = w.values("gk_proj.1.bias");
            let mut outputs = Vec::new();
            for g in 0..KV_HEADS {
                let key = head(&k, g, DK);
                let rows = largest(key, written);
                let mut shares = vec![0.0; DK];
                let chosen: Vector = rows.iter().map(|&i| key[i]).collect();
                for (&row, share) in rows.iter().zip(softmax(&chosen)) {
                    shares[row] = share;
                }
                let factor = |i: usize| {
                    if rows.contains(&i) {
                        sigmoid(decay[g * DK + i] + bias[g * DK + i]).powf(0.5)
                    } else {
                        1.0
                    }
                };
                let before = states[g].clone();
                write(&mut states[g], factor, &shares, head(&v, g, DV));
                let changed = (0..DK).filter(|&i| states[g][i] != before[i]);
                assert!(changed.count() <= written);
                for query in 0..HEADS / KV_HEADS {
                    let q = head(&q, g * HEADS / KV_HEADS + query, DK);
                    outputs.push(map(&read(&states[g], q), |o| o / (DK as f64).sqrt()));
                }
            }
            w.finish(&outputs, h, "g_proj")
        });
    }
}

#[test]
fn row_sparse_hgrn2_changes_the_rows_of_its_smallest_decays_only() {
    for (written, lower_bound) in [(1, false), (3, true), (DK, true)] {
        let parameters = json!({
            "heads": HEADS, "head_dim": DK, "value_dim": DV, "conv": null, "lower_bound": lower_bound, "written": written,
        });
        let mut states = vec![state(DK, DV); HEADS];
        compare("hgrn2", parameters, |w, _, h| {
            let q = map(&w.apply("q_proj", h), silu);
            let (f, v) = (w.apply("f_proj", h), w.apply("i_proj", h));
            let mut out = Vec::new();
            for (i, s) in states.iter_mut().enumerate() {
                let decay = |c: usize| {
                    let low = if lower_bound {
                        w.values("lower_bound")[i * DK + c]
                    } else {
                        0.0
                    };
                    low + (1.0 - low) * sigmoid(f[i * DK + c])
                };
                let keys: Vector = (0..DK).map(|c| 1.0 - decay(c)).collect();
                let rows = largest(&keys, written);
                let key = |c: usize| if rows.contains(&c) { keys[c] } else { 0.0 };
                let sparse: Vector = (0..DK).map(key).collect();
                let before = s.clone();
                write(s, |c| 1.0 - sparse[c], &sparse, head(&v, i, DV));
                assert!((0..DK).filter(|&c| s[c] != before[c]).count() <= written);
                out.extend(map(&read(s, head(&q, i, DK)), |o| o / (DK as f64).sqrt()));
            }
            w.rms("o_norm", &out)
        });
    }
}

/// Returns `heads` heads of `width` columns after a per-channel convolution and silu; `past` holds the previous inputs.
fn convolved(w: &Plain, name: &str, x: Vector, past: &mut Vec<Vector>) -> Vector {
    let taps = w.values(&format!("{name}.weight"));
    let count = taps.len() / x.len();
    past.push(x);
    let newest = past.len() - 1;
    let channel = |c: usize| -> f64 {
        let tap = |j: usize| match newest.checked_sub(j) {
            Some(t) => taps[c * count + count - 1 - j] * past[t][c],
            None => 0.0,
        };
        (0..count).map(tap).sum()
    };
    (0..past[newest].len()).map(|c| silu(channel(c))).collect()
}

#[test]
fn gated_deltanet2_erases_and_writes_by_gates_of_their_own() {
    for (heads, negative) in [(HEADS, false), (KV_HEADS, true)] {
        let parameters = json!({
            "heads": heads, "value_heads": HEADS, "head_dim": DK, "value_dim": DV, "conv": 3, "conv_bias": false,
            "negative_eigenvalues": negative, "norm_eps": EPS,
        });
        let mut states = vec![state(DK, DV); HEADS];
        let mut past = vec![Vec::new(); 3];
        compare("gated_deltanet2", parameters, |w, _, h| {
            let q = convolved(w, "q_conv1d", w.apply("q_proj", h), &mut past[0]);
            let k = convolved(w, "k_conv1d", w.apply("k_proj", h), &mut past[1]);
            let v = convolved(w, "v_conv1d", w.apply("v_proj", h), &mut past[2]);
            let reach = if negative { 2.0 } else { 1.0 };
            let erase = map(&w.apply("b_proj", h), |x| reach * sigmoid(x));
            let write_gate = map(&w.apply("w_proj", h), sigmoid);
            let decay = w.apply("f_proj.1", &w.apply("f_proj.0", h));
            let (rate, bias) = (w.values("A_log"), w.values("dt_bias"));
            let mut outputs = Vec::new();
            for (i, s) in states.iter_mut().enumerate() {
                let of = i / (HEADS / heads);
                let key = unit(head(&k, of, DK));
                let factor = |c: usize| {
                    let at = of * DK + c;
                    (-rate[of].exp() * softplus(decay[at] + bias[at])).exp()
                };
                write(s, factor, &[0.0; DK], &[0.0; DV]);
                let erased: Vector = key
                    .iter()
                    .zip(head(&erase, of, DK))
                    .map(|(k, b)| k * b)
                    .collect();
                let held = read(s, &erased);
                let gated = head(&v, i, DV).iter().zip(head(&write_gate, i, DV));
                let value: Vector = gated
                    .zip(&held)
                    .map(|((v, w), held)| v * w - held)
                    .collect();
                write(s, |_| 1.0, &key, &value);
                let query = map(&unit(head(&q, of, DK)), |x| x / (DK as f64).sqrt());
                outputs.push(read(s, &query));
            }
            let mut gate = w.apply("g_proj.1", &w.apply("g_proj.0", h));
            for (gate, bias) in gate.iter_mut().zip(w.values("g_proj.1.bias")) {
                *gate = sigmoid(*gate + bias);
            }
            let normed = outputs.iter().flat_map(|o| w.rms("o_norm", o));
            normed.zip(gate).map(|(o, gate)| o * gate).collect()
        });
    }
}
