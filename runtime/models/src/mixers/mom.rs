//! Mixture of memories (arXiv 2502.13685; flash-linear-attention `layers/mom.py`): Gated DeltaNet with a set of memories;
//! each token uses a few of them.
//!
//! With x the normed input, for each memory m chosen for x, and per head:
//! ```text
//! p    = softmax(W_r x)                                [memories]; the largest are chosen, p <- p / sum p of the chosen
//! q, k = l2(silu(conv(W_q x))), l2(silu(conv(W_k^m x)))          v = silu(conv(W_v^m x))
//! beta = sigmoid(W_b^m x);  a = exp(-exp(A_log) softplus(W_a^m x + dt_bias))
//! S_m <- a S_m;  S_m <- S_m + k^T beta (v - k S_m);  o = sum_m p_m head_dim^-1/2 q S_m
//! y    = W_o (rms(o) silu(W_g x))
//! ```
//! Gated linear attention instead (optional; the baseline of arXiv 2507.16577): q and k are not normalised, there is no beta, and
//! ```text
//! a = exp(ln sigmoid(W_2^m W_1 x + b^m) / normalizer)  [head_dim]; W_1 is the same for all memories
//! S_m <- diag(a) S_m + k^T v
//! ```
//! A memory's convolutions see only the tokens routed to it. A shared memory (optional) takes every token, with its own
//! matrices and without a weight; with `single`, all memories use its matrices. The lower memory wins a tie. The
//! reference reorders a memory's tokens with an unstable sort; here they keep the order of the text.
//! State: `S [memories, heads, head_dim, value_dim]` and the last inputs of each memory's convolutions, both also for
//! the shared memory. A token touches only its chosen memories and the shared one.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::short_conv::{self, Branch};
use super::{Mismatch, Mixer, output_norm};
use crate::error::Result;
use crate::functions::{Activation, OutputOp};
use crate::lowering::Lowering;
use crate::operands::View;
use crate::ops::{
    ChosenGroup, Conv, ConvChosen, Decay, Finish, Gate, HeadGroup, HeadOp, Key, Partitions,
    Prepare, Recur, Route, Router, Write,
};
use crate::state::{StateDtype, StateKind, StateTensor};
use crate::weights::{Vector, WeightSpec};

pub(super) const KIND: &str = "mom";

/// Hyperparameters.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mom {
    /// Heads.
    pub heads: usize,
    /// Width of a query or key head.
    pub head_dim: usize,
    /// Width of a value head.
    pub value_dim: usize,
    /// Memories, without the shared one.
    pub memories: usize,
    /// Memories that a token uses.
    pub chosen: usize,
    /// Whether a shared memory takes every token.
    pub shared: bool,
    /// Whether all memories use the matrices of the shared memory.
    pub single: bool,
    /// Taps of the short convolutions; `None` for no convolutions, only silu, as in the baselines of arXiv 2507.16577.
    pub conv: Option<usize>,
    /// Whether the output is gated, by silu.
    pub gate: bool,
    /// Decays of gated linear attention; `None` for Gated DeltaNet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gla: Option<GlaDecay>,
    /// Epsilon of the output norm.
    pub norm_eps: f32,
}

/// Decays of gated linear attention.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GlaDecay {
    /// Width between the two matrices.
    pub rank: usize,
    /// Divides the decay's logarithm.
    pub normalizer: f32,
}

/// The input columns of a memory: key, value, decay and, with the delta rule, write strength.
#[derive(Clone, Copy)]
struct MemoryInputs {
    k: View,
    v: View,
    decay: View,
    beta: Option<View>,
}

/// Names of each memory's matrices for key, value, decay and write strength; [`SHARED`] names the shared memory's.
const OWN: [&str; 4] = ["k_proj", "v_proj", "a_proj", "b_proj"];
const SHARED: [&str; 4] = ["shared_k", "shared_v", "shared_a", "shared_b"];
/// Names of the matrices of gated linear attention's decays.
const FIRST_DECAY: &str = "gk_proj.0";
const OWN_DECAY: &str = "gk_proj.1";
const SHARED_DECAY: &str = "shared_gk";
const CONVOLUTIONS: [&str; 3] = ["q_conv1d", "k_conv1d", "v_conv1d"];
/// Index of the shared memory's first state tensor.
const AFTER_MEMORIES: usize = 4;

impl Mom {
    fn branches(&self) -> [Branch; 3] {
        short_conv::qkv([self.heads; 3], self.head_dim, self.value_dim)
    }

    /// Taps of the memories' convolutions; one tap of weight one where there are none.
    fn taps(&self) -> usize {
        self.conv.unwrap_or(1)
    }

    fn key_width(&self) -> usize {
        self.heads * self.head_dim
    }

    fn value_width(&self) -> usize {
        self.heads * self.value_dim
    }

    /// The names of a memory's matrices on the layer's input, taken from [`OWN`] or [`SHARED`].
    fn names(&self, [k, v, decay, beta]: [&'static str; 4]) -> Vec<&'static str> {
        match self.gla {
            Some(_) => vec![k, v],
            None => vec![k, v, decay, beta],
        }
    }

    /// The recurrence on these columns, with one state per head.
    fn recur(&self, q: View, inputs: MemoryInputs, tensor: usize, out: View) -> Recur {
        Recur {
            heads: self.heads,
            states: self.heads,
            dk: self.head_dim,
            dv: self.value_dim,
            q,
            k: Key::View(inputs.k),
            v: inputs.v,
            decay: match inputs.beta {
                Some(_) => Decay::Head(inputs.decay),
                None => Decay::Key(inputs.decay),
            },
            write: inputs.beta.map_or(Write::Add, Write::Delta),
            gates: None,
            scale: (self.head_dim as f32).powf(-0.5),
            finish: Finish::default(),
            state: tensor,
            out,
        }
    }

    /// The gates that turn `inputs` into decays and write strengths, for `memories` memories.
    fn gates(
        &self,
        layer: &Lowering,
        inputs: MemoryInputs,
        memories: usize,
    ) -> Result<Vec<(View, Gate)>> {
        if let Some(gla) = self.gla {
            let gate = Gate::LogSigmoid {
                scale: 1.0 / gla.normalizer,
                min: f32::NEG_INFINITY,
            };
            return Ok(vec![(inputs.decay, gate)]);
        }
        let rate: Vec<f32> = layer.vector("A_log")?.iter().map(|a| a.exp()).collect();
        let repeated = |values: &[f32]| -> Vector { values.repeat(memories).into() };
        let decay = Gate::Decay {
            rate: repeated(&rate),
            bias: repeated(&layer.vector("dt_bias")?),
        };
        let beta = inputs.beta.map(|beta| (beta, Gate::Sigmoid { scale: 1.0 }));
        Ok(beta.into_iter().chain([(inputs.decay, decay)]).collect())
    }

    /// Head groups of the shared memory's queries, keys and values: convolutions, silu and, with the delta rule, unit length.
    fn shared_groups(&self, layer: &Lowering, views: &[View]) -> Result<Vec<HeadGroup>> {
        let (branches, first) = (self.branches(), AFTER_MEMORIES + 1);
        if self.gla.is_none() {
            return short_conv::unit_qkv(layer, &branches, views, first);
        }
        let silu = || vec![HeadOp::Activation(Activation::Silu)];
        let group =
            |(i, branch): (usize, &Branch)| branch.group(layer, views[i], first + i, silu());
        branches.iter().enumerate().map(group).collect()
    }
}

/// Returns part `index` of `parts` equal parts of `view`.
fn part(view: View, index: usize, parts: usize) -> View {
    let width = view.width / parts;
    View {
        start: view.start + index * width,
        width,
        ..view
    }
}

impl Mixer for Mom {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn to_json(&self) -> Value {
        json!(self)
    }

    fn check(&self, _hidden: usize) -> Result<(), Mismatch> {
        let dims = [self.heads, self.head_dim, self.value_dim];
        Mismatch::unless_positive(&dims, "heads and widths of one or more")?;
        Mismatch::unless(
            (1..=self.memories).contains(&self.chosen) && self.memories <= 1 << 16,
            || format!("{} chosen of {} memories", self.chosen, self.memories),
            "at least one memory and at most all of them, of at most 65536",
        )?;
        Mismatch::unless(
            self.gla.is_none_or(|gla| gla.rank > 0),
            || "gla of rank 0".into(),
            "a rank of one or more",
        )?;
        short_conv::check(self.conv)
    }

    fn weights(&self, hidden: usize) -> Vec<WeightSpec> {
        let (keys, values) = (self.key_width(), self.value_width());
        let mut weights = vec![
            WeightSpec::matrix("q_proj.weight", keys, hidden),
            WeightSpec::full("gate.weight", &[self.memories, hidden]),
        ];
        let mut inputs = |[k, v, a, b]: [&str; 4], times: usize| {
            for (name, width) in [(k, keys), (v, values)] {
                let rows = width.saturating_mul(times);
                weights.push(WeightSpec::matrix(&format!("{name}.weight"), rows, hidden));
            }
            let mut gate = |name: &str, width: usize| {
                let shape = [width.saturating_mul(times), hidden];
                weights.push(WeightSpec::full(&format!("{name}.weight"), &shape));
            };
            if self.gla.is_none() {
                gate(b, self.heads);
                gate(a, self.heads);
            }
        };
        if !self.single {
            inputs(OWN, self.memories);
        }
        if self.single || self.shared {
            inputs(SHARED, 1);
        }
        match self.gla {
            None => {
                for name in ["A_log", "dt_bias"] {
                    weights.push(WeightSpec::full(name, &[self.heads]));
                }
            }
            Some(GlaDecay { rank, .. }) => {
                weights.push(WeightSpec::full(
                    &format!("{FIRST_DECAY}.weight"),
                    &[rank, hidden],
                ));
                let own = (!self.single).then_some((OWN_DECAY, self.memories));
                let shared = (self.single || self.shared).then_some((SHARED_DECAY, 1));
                for (name, times) in own.into_iter().chain(shared) {
                    let rows = keys.saturating_mul(times);
                    weights.push(WeightSpec::full(&format!("{name}.weight"), &[rows, rank]));
                    weights.push(WeightSpec::full(&format!("{name}.bias"), &[rows]));
                }
            }
        }
        let convolutions = CONVOLUTIONS.into_iter().zip([keys, keys, values]);
        for ((name, width), taps) in convolutions.filter_map(|conv| Some((conv, self.conv?))) {
            let shape = [width, taps];
            weights.push(WeightSpec::full(&format!("{name}.weight"), &shape));
        }
        if self.gate {
            weights.push(WeightSpec::matrix("g_proj.weight", values, hidden));
        }
        weights.push(WeightSpec::full("o_norm.weight", &[self.value_dim]));
        weights.push(WeightSpec::matrix("o_proj.weight", hidden, values));
        weights
    }

    fn state(&self) -> Vec<StateTensor> {
        let tensor =
            |name, kind, shape: &[usize]| StateTensor::new(name, kind, StateDtype::F32, shape);
        let (heads, dk, dv) = (self.heads, self.head_dim, self.value_dim);
        let memories = [self.memories, heads, dk, dv];
        let mut tensors = vec![tensor("memories", StateKind::Matrix, &memories)];
        let histories = ["q_histories", "k_histories", "v_histories"];
        for (name, width) in histories
            .into_iter()
            .zip([heads * dk, heads * dk, heads * dv])
        {
            let shape = [self.memories, self.taps() - 1, width];
            tensors.push(tensor(name, StateKind::Shift, &shape));
        }
        if self.shared {
            tensors.push(tensor("shared", StateKind::Matrix, &memories[1..]));
            tensors.extend(short_conv::tensors(&self.branches(), self.conv));
        }
        tensors
    }

    fn lower(&self, layer: &mut Lowering) -> Result<()> {
        let n = self.memories;
        let mut names = vec!["q_proj", "gate"];
        names.extend(self.gate.then_some("g_proj"));
        names.extend(self.gla.map(|_| FIRST_DECAY));
        if self.single || self.shared {
            names.extend(self.names(SHARED));
        }
        let views = layer.project(&names)?;
        let (q, logits, gate) = (views[0], views[1], self.gate.then(|| views[2]));
        let route = layer.buffer(2 * self.chosen);
        layer.push(Route {
            logits,
            router: Router::softmax(true),
            bias: None,
            gains: None,
            out: route,
        });
        let narrow = names.iter().position(|name| *name == FIRST_DECAY);
        let narrow = narrow.map(|i| views[i]);
        let inputs = |layer: &mut Lowering, views: &[View], second: &str| -> Result<_> {
            Ok(MemoryInputs {
                k: views[0],
                v: views[1],
                decay: match narrow {
                    Some(narrow) => layer.project_from(narrow, None, &[second])?[0],
                    None => views[2],
                },
                beta: views.get(3).copied(),
            })
        };
        let shared = if self.single || self.shared {
            let views = &views[views.len() - self.names(SHARED).len()..];
            Some(inputs(layer, views, SHARED_DECAY)?)
        } else {
            None
        };
        let own = if self.single {
            None
        } else {
            let views = layer.project_chosen(&self.names(OWN), n, route)?;
            Some(inputs(layer, &views, OWN_DECAY)?)
        };

        // The memories' inputs have separate columns, because the shared memory changes its inputs in place.
        let (keys, values) = (n * self.key_width(), n * self.value_width());
        let room = layer.buffer(2 * keys + values);
        let (memory_q, rest) = room.split(keys);
        let (memory_k, memory_v) = rest.split(keys);
        let raw = own.or(shared).expect("matrices of the memories");
        let mut groups = Vec::new();
        for (i, (input, out)) in [(q, memory_q), (raw.k, memory_k), (raw.v, memory_v)]
            .into_iter()
            .enumerate()
        {
            let weight = layer.optional_vector(&format!("{}.weight", CONVOLUTIONS[i]))?;
            let weight = weight.unwrap_or_else(|| vec![1.0; out.width / n].into());
            groups.push(ChosenGroup {
                input,
                out,
                head_dim: [self.head_dim, self.head_dim, self.value_dim][i],
                conv: Conv::new(&weight, out.width / n, None, layer.state_tensor(1 + i)),
                unit_length: i < 2 && self.gla.is_none(),
            });
        }
        layer.push(ConvChosen {
            partitions: n,
            route,
            groups,
        });
        let mut groups = Vec::new();
        let mut memory = MemoryInputs {
            k: memory_k,
            v: memory_v,
            ..raw
        };
        if self.single {
            let width = raw.decay.width + raw.beta.map_or(0, |beta| beta.width);
            let (decay, beta) = layer.buffer(n * width).split(n * raw.decay.width);
            (memory.decay, memory.beta) = (decay, raw.beta.map(|_| beta));
            let copies = raw.beta.map(|from| (beta, from));
            for (to, from) in copies.into_iter().chain([(decay, raw.decay)]) {
                groups.extend((0..n).map(|memory| HeadGroup {
                    view: part(to, memory, n),
                    head_dim: self.heads,
                    conv: None,
                    maps: vec![HeadOp::Copy(from)],
                }));
            }
        }
        layer.push(Prepare {
            groups,
            rope: None,
            gates: self.gates(layer, memory, n)?,
        });
        let out = layer.buffer(self.value_width());
        if let (true, Some(inputs)) = (self.shared, shared) {
            layer.push(Prepare {
                groups: self.shared_groups(layer, &[q, inputs.k, inputs.v])?,
                rope: None,
                gates: self.gates(layer, inputs, 1)?,
            });
            let recur = self.recur(q, inputs, layer.state_tensor(AFTER_MEMORIES), out);
            layer.push(recur);
        }
        layer.push(Partitions {
            recur: self.recur(memory_q, memory, layer.state_tensor(0), out),
            partitions: n,
            route,
            writers: self.chosen,
            readers: self.chosen,
            weigh_queries: true,
            weigh_keys: false,
            unit_length: false,
            own_columns: true,
            add: self.shared,
        });
        let mut finish = vec![output_norm(layer, self.norm_eps)?];
        finish.extend(gate.map(|gate| OutputOp::Gate(gate, Activation::Silu)));
        layer.emit(out, finish, "o_proj")
    }
}
