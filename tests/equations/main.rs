//! Options that no recorded case has, on small models against their equations, written out in f64: row-sparse updates of
//! GLA and GSA, softmax linear attention's gates on every input they may have, mixture of memories, Gated DeltaNet-2, latent
//! attention.

mod plain;
mod synthetic;

use plain::{
    EPS, Plain, State, Vector, dot, largest, map, read, rotate, sigmoid, silu, softmax, softplus,
    state, unit, write,
};
use serde_json::{Value, json};
use synthetic::{block, model, options, spec, tokens, weights};
use waterline::Session;

const HIDDEN: usize = 24;
const TOKENS: usize = 45;

/// Compares a model of one layer with its equations: `mixer(weights, position, normed input)` is the input of the
/// output matrix.
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
        for (x, y) in x.iter_mut().zip(plain.apply("o_proj", &inner)) {
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
                let fade = |i: usize| {
                    if rows.contains(&i) {
                        sigmoid(decay[g * DK + i] + bias[g * DK + i]).powf(0.5)
                    } else {
                        1.0
                    }
                };
                let before = states[g].clone();
                write(&mut states[g], fade, &shares, head(&v, g, DV));
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
fn row_sparse_gsa_changes_its_largest_slots_only() {
    const SLOTS: usize = 7;
    for written in [1, 4, SLOTS] {
        let parameters = json!({
            "heads": HEADS, "kv_heads": KV_HEADS, "head_dim": DK, "value_dim": DV, "slots": SLOTS,
            "feature_map": "silu", "learned_map": false, "conv": null, "gate_normalizer": 3.0, "written": written,
        });
        let mut keys = vec![state(SLOTS, DK); KV_HEADS];
        let mut values = vec![state(SLOTS, DV); KV_HEADS];
        compare("gsa", parameters, |w, _, h| {
            let [q, k, v] = ["q_proj", "k_proj", "v_proj"].map(|name| map(&w.apply(name, h), silu));
            let f = w.apply("f_proj", h);
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
                    let scores: Vector = keys[g].iter().map(|key| dot(key, q)).collect();
                    out.extend(read(&values[g], &softmax(&scores)));
                }
            }
            w.rms("o_norm", &map(&out, silu))
        });
    }
}

/// The two gates of a token, `[heads]` each: of reading and of writing.
fn gates(w: &Plain, input: &str, h: &[f64], q: &[f64], k: &[f64]) -> [Vector; 2] {
    let inputs = if input == "hidden" { [h, h] } else { [q, k] };
    [
        softmax(&w.apply("gate_q_proj", inputs[0])),
        softmax(&w.apply("gate_k_proj", inputs[1])),
    ]
}

#[test]
fn softmax_retnet_weighs_heads_by_any_input() {
    for input in ["hidden", "projections"] {
        let parameters = json!({ "linear": linear(json!(input)), "rope_theta": 100.0 });
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
                    let scale = read_gate[i] / (DK as f64).sqrt();
                    map(&read(&states[i], head(&q, i, DK)), |o| scale * o)
                })
                .collect();
            w.finish(&outputs, h, "g_proj")
        });
    }
}

#[test]
fn softmax_gated_deltanet_weighs_heads_by_any_input() {
    for (input, decays) in [
        ("hidden", true),
        ("projections", true),
        ("projections", false),
    ] {
        let parameters = json!({
            "heads": KV_HEADS, "value_heads": HEADS, "head_dim": DK, "value_dim": DV, "conv": null,
            "conv_bias": false, "gate": "silu", "negative_eigenvalues": false, "decay": decays,
            "head_gates": input, "norm_eps": EPS,
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
                    let fade = if decays {
                        let step = w.apply("a_proj", h)[i] + w.values("dt_bias")[i];
                        (-w.values("A_log")[i].exp() * softplus(step)).exp()
                    } else {
                        1.0
                    };
                    write(&mut states[i], |_| fade, &[0.0; DK], &[0.0; DV]);
                    let known = read(&states[i], key);
                    let new: Vector = (0..DV)
                        .map(|d| beta[i] * (write_gate[i] * v[i * DV + d] - known[d]))
                        .collect();
                    write(&mut states[i], |_| 1.0, key, &new);
                    let scale = read_gate[i] / (DK as f64).sqrt();
                    map(&read(&states[i], head(&q, g, DK)), |o| scale * o)
                })
                .collect();
            w.finish(&outputs, h, "g_proj")
        });
    }
}

/// One memory of a mixture: its states, and its convolutions' inputs of q, k and v, the last one first.
struct Memory {
    states: Vec<State>,
    inputs: [Vec<Vector>; 3],
}

const MOM_HEADS: usize = 2;

impl Memory {
    fn new() -> Self {
        Memory {
            states: vec![state(DK, DV); MOM_HEADS],
            inputs: Default::default(),
        }
    }

    /// Reads a token into the memory with these projections of it, and returns the outputs of its
    /// heads.
    fn read(&mut self, w: &Plain, qkv: [Vector; 3], beta: &[f64], step: &[f64]) -> Vec<Vector> {
        let mut convolved = Vec::new();
        for ((name, inputs), x) in ["q", "k", "v"].into_iter().zip(&mut self.inputs).zip(qkv) {
            inputs.insert(0, x);
            let weight = w.values(&format!("{name}_conv1d.weight"));
            let taps = weight.len() / inputs[0].len();
            let channel = |c: usize| {
                let taps = weight[c * taps..][..taps].iter().rev();
                silu(taps.zip(inputs.iter()).map(|(w, x)| w * x[c]).sum())
            };
            convolved.push((0..inputs[0].len()).map(channel).collect::<Vector>());
        }
        let one = |i: usize| {
            let (q, k) = (
                unit(head(&convolved[0], i, DK)),
                unit(head(&convolved[1], i, DK)),
            );
            let state = &mut self.states[i];
            let step = softplus(step[i] + w.values("dt_bias")[i]);
            let fade = (-w.values("A_log")[i].exp() * step).exp();
            write(state, |_| fade, &[0.0; DK], &[0.0; DV]);
            let known = read(state, &k);
            let new: Vector = (0..DV)
                .map(|d| sigmoid(beta[i]) * (convolved[2][i * DV + d] - known[d]))
                .collect();
            write(state, |_| 1.0, &k, &new);
            map(&read(state, &q), |o| o / (DK as f64).sqrt())
        };
        (0..MOM_HEADS).map(one).collect()
    }
}

/// `heads` convolved heads of `width` columns, each channel by itself, followed by silu; `past` are the previous
/// inputs.
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
                let fade = |c: usize| {
                    let at = of * DK + c;
                    (-rate[of].exp() * softplus(decay[at] + bias[at])).exp()
                };
                write(s, fade, &[0.0; DK], &[0.0; DV]);
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
        // Each head's key and value, for every token.
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
                // A head's matrix has the latent on its left.
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

#[test]
fn a_mixture_of_memories_is_gated_deltanet_over_the_tokens_of_each() {
    const MEMORIES: usize = 4;
    for (chosen, shared, single) in [
        (2, true, false),
        (1, false, false),
        (3, true, true),
        (4, false, true),
    ] {
        let parameters = json!({
            "heads": MOM_HEADS, "head_dim": DK, "value_dim": DV, "memories": MEMORIES, "chosen": chosen,
            "shared": shared, "single": single, "conv": 3, "gate": true, "norm_eps": EPS,
        });
        let mut memories: Vec<Memory> = (0..MEMORIES).map(|_| Memory::new()).collect();
        let mut common = Memory::new();
        compare("mom", parameters, |w, _, h| {
            let q = w.apply("q_proj", h);
            let inputs = |names: [&str; 4], memory: usize, of: usize| {
                let [k, v, b, a] = names.map(|name| {
                    let all = w.apply(name, h);
                    let width = all.len() / of;
                    all[memory * width..][..width].to_vec()
                });
                ([q.clone(), k, v], b, a)
            };
            let common_names = ["shared_k", "shared_v", "shared_b", "shared_a"];
            let shares = softmax(&w.apply("gate", h));
            let best = largest(&shares, chosen);
            let sum: f64 = best.iter().map(|&m| shares[m]).sum();
            let mut outputs = vec![vec![0.0; DV]; MOM_HEADS];
            let mut add = |share: f64, heads: Vec<Vector>| {
                for (output, head) in outputs.iter_mut().zip(heads) {
                    for (output, x) in output.iter_mut().zip(head) {
                        *output += share * x;
                    }
                }
            };
            for m in best {
                let (qkv, b, a) = if single {
                    inputs(common_names, 0, 1)
                } else {
                    inputs(["k_proj", "v_proj", "b_proj", "a_proj"], m, MEMORIES)
                };
                add(shares[m] / sum, memories[m].read(w, qkv, &b, &a));
            }
            if shared {
                let (qkv, b, a) = inputs(common_names, 0, 1);
                add(1.0, common.read(w, qkv, &b, &a));
            }
            w.finish(&outputs, h, "g_proj")
        });
    }
}
