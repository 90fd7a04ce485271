//! Sparse state expansion over gated linear attention, with shared matrices and with separate matrices for each partition.

use serde_json::json;

use super::plain::{EPS, Plain, Vector, largest, map, read, sigmoid, silu, softmax, state, write};
use super::{DK, DV, HEADS, KV_HEADS, compare, head};

const PARTITIONS: usize = 3;
/// Divides the logarithm of the decay.
const NORMALIZER: f64 = 2.0;

/// Returns part `part` of `parts` equal parts.
fn part(all: &[f64], part: usize, parts: usize) -> Vector {
    let width = all.len() / parts;
    all[part * width..][..width].to_vec()
}

/// Returns the decays of a state, from the two matrices `name`.
fn decays(w: &Plain, name: &str, h: &[f64]) -> Vector {
    let logits = w.apply(&format!("{name}.1"), &w.apply(&format!("{name}.0"), h));
    let biases = w.values(&format!("{name}.1.bias"));
    let sums = logits.iter().zip(biases);
    sums.map(|(x, b)| sigmoid(x + b).powf(1.0 / NORMALIZER))
        .collect()
}

/// Applies softmax to each head of keys.
fn keys(k: &[f64]) -> Vector {
    k.chunks_exact(DK).flat_map(softmax).collect()
}

#[test]
fn partitions_are_written_and_read_by_their_tokens_only() {
    for (writers, readers, weighed, separate) in [
        (1, 1, true, false),
        (2, 1, true, false),
        (1, 1, true, true),
        (1, 2, true, true),
        (2, 2, false, true),
    ] {
        let parameters = json!({
            "heads": KV_HEADS, "value_heads": HEADS, "head_dim": DK, "value_dim": DV, "partitions": PARTITIONS,
            "writers": writers, "readers": readers, "update": { "kind": "gla", "rank": 3, "normalizer": NORMALIZER },
            "query_map": "silu", "key_map": "softmax", "weigh_queries": weighed, "weigh_keys": weighed,
            "lora_rank": null, "separate": separate, "conv": null, "gate_rank": null, "bias": false, "norm_eps": EPS,
        });
        let mut shared = vec![state(DK, DV); HEADS];
        let mut states = vec![vec![state(DK, DV); HEADS]; PARTITIONS];
        compare("sse", parameters, |w, _, h| {
            let (q, k) = (
                map(&w.apply("q_proj", h), silu),
                keys(&w.apply("k_proj", h)),
            );
            let v = map(&w.apply("v_proj", h), silu);
            let common = decays(w, "gk_proj.0", h);
            let mut out = vec![vec![0.0; DV]; HEADS];
            let mut add = |i: usize, weight: f64, read: Vector| {
                for (o, x) in out[i].iter_mut().zip(read) {
                    *o += weight * x / (DK as f64).sqrt();
                }
            };
            for (i, s) in shared.iter_mut().enumerate() {
                let of = i / (HEADS / KV_HEADS);
                write(
                    s,
                    |c| common[of * DK + c],
                    head(&k, of, DK),
                    head(&v, i, DV),
                );
                add(i, 1.0, read(s, head(&q, of, DK)));
            }
            let shares = softmax(&w.apply("e_proj", h));
            let all = decays(w, "gk_proj.1", h);
            for (rank, m) in largest(&shares, writers.max(readers))
                .into_iter()
                .enumerate()
            {
                let own = |name: &str| part(&w.apply(name, h), m, PARTITIONS);
                let (q, k, v, decay) = if separate {
                    (
                        map(&own("q_partitions"), silu),
                        keys(&own("k_partitions")),
                        map(&own("v_partitions"), silu),
                        part(&all, m, PARTITIONS),
                    )
                } else {
                    (q.clone(), k.clone(), v.clone(), all.clone())
                };
                let weight = if weighed { shares[m] } else { 1.0 };
                for (i, s) in states[m].iter_mut().enumerate() {
                    let of = i / (HEADS / KV_HEADS);
                    if rank < writers {
                        let key = map(head(&k, of, DK), |k| weight * k);
                        write(s, |c| decay[of * DK + c], &key, head(&v, i, DV));
                    }
                    if rank < readers {
                        add(i, weight, read(s, head(&q, of, DK)));
                    }
                }
            }
            out.iter().flat_map(|o| w.rms("o_norm", o)).collect()
        });
    }
}
