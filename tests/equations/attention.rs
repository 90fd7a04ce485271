//! Attention: latent keys and values, learned eviction by an MLP.

use serde_json::json;

use super::plain::{EPS, Vector, dot, map, rotate, sigmoid, silu, softmax};
use super::{DK, DV, HEADS, KV_HEADS, compare, head};

#[test]
fn absorbed_latent_attention_is_attention_to_the_keys_and_values_of_each_head() {
    const LATENT: usize = 7;
    const ROPE: usize = 4;
    for (rank, theta) in [(None, None), (Some(5), Some(100.0))] {
        let parameters = json!({
            "heads": HEADS, "latent": LATENT, "nope": DK, "rope": ROPE, "value_dim": DV, "query_rank": rank,
            "rope_theta": theta, "norm_eps": EPS,
        });
        let turn = |x: &[f64], t: usize| match theta {
            Some(theta) => rotate(x, t, theta),
            None => x.to_vec(),
        };
        // The key and value of each head, for every token.
        let mut keys: Vec<Vec<Vector>> = Vec::new();
        let mut values: Vec<Vec<Vector>> = Vec::new();
        compare("latent_attention", parameters, |w, t, h| {
            let q = match rank {
                Some(_) => w.apply("q_b_proj", &w.rms("q_a_norm", &w.apply("q_a_proj", h))),
                None => w.apply("q_proj", h),
            };
            let projected = w.apply("kv_a_proj", h);
            let (latent, shared) = projected.split_at(LATENT);
            let latent = w.rms("kv_a_norm", latent);
            let shared = turn(shared, t);
            let key_weight = w.values("k_b.weight");
            let key = |i: usize| -> Vector {
                // A head's matrix is [latent][DK].
                let rows = key_weight[i * LATENT * DK..][..LATENT * DK].chunks_exact(DK);
                let column = |d: usize| rows.clone().zip(&latent).map(|(row, c)| row[d] * c).sum();
                (0..DK).map(column).chain(shared.iter().copied()).collect()
            };
            let value_weight = w.values("v_b.weight");
            let value = |i: usize| -> Vector {
                let rows = value_weight[i * DV * LATENT..][..DV * LATENT].chunks_exact(LATENT);
                rows.map(|row| dot(row, &latent)).collect()
            };
            keys.push((0..HEADS).map(key).collect());
            values.push((0..HEADS).map(value).collect());
            let mut outputs = Vec::new();
            for i in 0..HEADS {
                let (nope, rope) = head(&q, i, DK + ROPE).split_at(DK);
                let query = [nope.to_vec(), turn(rope, t)].concat();
                let scores: Vector = keys.iter().map(|keys| dot(&query, &keys[i])).collect();
                let shares = softmax(&map(&scores, |x| x / ((DK + ROPE) as f64).sqrt()));
                let column = |d: usize| shares.iter().zip(&values).map(|(p, v)| p * v[i][d]).sum();
                outputs.extend((0..DV).map(column).collect::<Vector>());
            }
            outputs
        });
    }
}

/// Learned eviction whose router sees one token: a two-layer MLP on the token's key and value (LTE-MLP in arXiv 2510.20787, Table 2).
#[test]
fn eviction_by_an_mlp_keeps_the_tokens_of_the_highest_scores() {
    const WINDOW: usize = 7;
    const CAPACITY: usize = 5;
    const SINK: usize = 1;
    for scope in ["head", "layer"] {
        let parameters = json!({
            "attention": {
                "heads": HEADS, "kv_heads": KV_HEADS, "head_dim": DK, "window": WINDOW, "rope_theta": null, "bias": false,
                "out_bias": false, "gate": false,
            },
            "capacity": CAPACITY, "sink": SINK, "router_taps": [1], "router_dilations": [1], "router_scope": scope,
            "score": "sigmoid",
        });
        let (mut keys, mut values, mut scores) = (Vec::new(), Vec::new(), Vec::new());
        // The retained tokens of each head.
        let mut sets: Vec<Vec<usize>> = vec![Vec::new(); KV_HEADS];
        let (mut evicted, mut refused) = (0, 0);
        compare("lte", parameters, |w, t, h| {
            let [q, k, v] = ["q_proj", "k_proj", "v_proj"].map(|name| w.apply(name, h));
            let score = |g: usize| {
                if t < SINK {
                    return f64::INFINITY;
                }
                let group = if scope == "head" { g } else { 0 };
                let input = [head(&k, g, DK), head(&v, g, DK)].concat();
                let stack = |name: &str| w.values(&format!("router.conv_stack.{name}"));
                let (first, bias) = (stack("convs.0.weight"), stack("convs.0.bias"));
                let rows = first[group * DK * 2 * DK..].chunks_exact(2 * DK);
                let inner: Vector = rows
                    .zip(&bias[group * DK..][..DK])
                    .map(|(row, b)| silu(dot(row, &input) + b))
                    .collect();
                let last = stack("proj.weight");
                sigmoid(dot(&last[group * DK..][..DK], &inner) + stack("proj.bias")[group]) - 0.5
            };
            scores.push((0..KV_HEADS).map(score).collect::<Vector>());
            keys.push(k);
            values.push(v);
            if let Some(leaves) = t.checked_sub(WINDOW) {
                for (g, set) in sets.iter_mut().enumerate() {
                    let score = |token: usize| scores[token][g];
                    set.sort_by(|&a, &b| score(b).total_cmp(&score(a)));
                    let lowest = set.last().copied();
                    if set.len() < CAPACITY && score(leaves) > 0.0 {
                        set.push(leaves);
                    } else if lowest.is_some_and(|lowest| score(leaves) > score(lowest).max(0.0)) {
                        set[CAPACITY - 1] = leaves;
                        evicted += 1;
                    } else {
                        refused += 1;
                    }
                }
            }
            let mut out = Vec::new();
            for i in 0..HEADS {
                let g = i / (HEADS / KV_HEADS);
                let window = (t + 1).saturating_sub(WINDOW)..=t;
                let seen: Vec<usize> = sets[g].iter().copied().chain(window).collect();
                let score =
                    |&j: &usize| dot(head(&q, i, DK), head(&keys[j], g, DK)) / (DK as f64).sqrt();
                let shares = softmax(&seen.iter().map(score).collect::<Vector>());
                let column = |d: usize| {
                    let weighed = shares.iter().zip(&seen);
                    weighed.map(|(p, &j)| p * values[j][g * DK + d]).sum()
                };
                out.extend((0..DK).map(column).collect::<Vector>());
            }
            out
        });
        assert!(evicted > 0 && refused > 0, "{scope}: {evicted} {refused}");
    }
}
