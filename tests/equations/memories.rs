//! Mixture of memories, over Gated DeltaNet and over gated linear attention.

use serde_json::json;

use super::plain::{
    EPS, Plain, State, Vector, largest, map, read, sigmoid, silu, softmax, softplus, state, unit,
    write,
};
use super::{DK, DV, compare, head};

/// One memory of a mixture: its states, and the past inputs of the q, k and v convolutions, the latest first.
struct Memory {
    states: Vec<State>,
    inputs: [Vec<Vector>; 3],
}

const MOM_HEADS: usize = 2;

/// Divides the logarithm of the decay of gated linear attention.
const NORMALIZER: f64 = 3.0;

impl Memory {
    fn new() -> Self {
        Memory {
            states: vec![state(DK, DV); MOM_HEADS],
            inputs: Default::default(),
        }
    }

    /// Reads a token with its projections `qkv` into the memory, and returns the outputs of its heads. `beta` is the write strength of the
    /// delta rule, or `None` for gated linear attention, whose decay `a` has one value per channel.
    fn read(
        &mut self,
        w: &Plain,
        qkv: [Vector; 3],
        beta: Option<&[f64]>,
        a: &[f64],
    ) -> Vec<Vector> {
        let mut convolved = Vec::new();
        for ((name, inputs), x) in ["q", "k", "v"].into_iter().zip(&mut self.inputs).zip(qkv) {
            inputs.insert(0, x);
            let weight = format!("{name}_conv1d.weight");
            // Without a convolution only the present input counts.
            let weight = if w.has(&weight) {
                w.values(&weight)
            } else {
                vec![1.0; inputs[0].len()]
            };
            let taps = weight.len() / inputs[0].len();
            let channel = |c: usize| {
                let taps = weight[c * taps..][..taps].iter().rev();
                silu(taps.zip(inputs.iter()).map(|(w, x)| w * x[c]).sum())
            };
            convolved.push((0..inputs[0].len()).map(channel).collect::<Vector>());
        }
        let one = |i: usize| {
            let (q, k) = (head(&convolved[0], i, DK), head(&convolved[1], i, DK));
            let state = &mut self.states[i];
            let Some(beta) = beta else {
                let factor = |c: usize| sigmoid(a[i * DK + c]).powf(1.0 / NORMALIZER);
                write(state, factor, k, head(&convolved[2], i, DV));
                return map(&read(state, q), |o| o / (DK as f64).sqrt());
            };
            let (q, k) = (unit(q), unit(k));
            let step = softplus(a[i] + w.values("dt_bias")[i]);
            let factor = (-w.values("A_log")[i].exp() * step).exp();
            write(state, |_| factor, &[0.0; DK], &[0.0; DV]);
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

#[test]
fn a_mixture_of_memories_is_a_recurrence_over_the_tokens_of_each() {
    const MEMORIES: usize = 4;
    for (chosen, shared, single, delta, conv) in [
        (2, true, false, true, json!(3)),
        (1, false, false, true, json!(3)),
        (3, true, true, true, json!(3)),
        (4, false, true, true, json!(3)),
        (2, true, false, false, json!(3)),
        (1, false, false, false, json!(3)),
        (3, true, true, false, json!(3)),
        (1, true, false, false, json!(null)),
        (2, true, true, true, json!(null)),
    ] {
        let parameters = json!({
            "heads": MOM_HEADS, "head_dim": DK, "value_dim": DV, "memories": MEMORIES, "chosen": chosen,
            "shared": shared, "single": single, "conv": conv, "gate": true, "norm_eps": EPS,
            "gla": (!delta).then(|| json!({ "rank": 3, "normalizer": NORMALIZER })),
        });
        let mut memories: Vec<Memory> = (0..MEMORIES).map(|_| Memory::new()).collect();
        let mut common = Memory::new();
        compare("mom", parameters, |w, _, h| {
            let q = w.apply("q_proj", h);
            let inputs = |names: [&str; 4], memory: usize, of: usize| {
                let row = |all: Vector| {
                    let width = all.len() / of;
                    all[memory * width..][..width].to_vec()
                };
                let part = |name: &str| row(w.apply(name, h));
                let [k, v, b, a] = names;
                let qkv = [q.clone(), part(k), part(v)];
                if delta {
                    return (qkv, Some(part(b)), part(a));
                }
                let second = if of == 1 { "shared_gk" } else { "gk_proj.1" };
                let biases = w.values(&format!("{second}.bias"));
                let logits = w.apply(second, &w.apply("gk_proj.0", h));
                let sums = logits.iter().zip(biases).map(|(x, b)| x + b);
                (qkv, None, row(sums.collect()))
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
                add(shares[m] / sum, memories[m].read(w, qkv, b.as_deref(), &a));
            }
            if shared {
                let (qkv, b, a) = inputs(common_names, 0, 1);
                add(1.0, common.read(w, qkv, b.as_deref(), &a));
            }
            w.finish(&outputs, h, "g_proj")
        });
    }
}
