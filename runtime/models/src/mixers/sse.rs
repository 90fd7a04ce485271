//! Sparse state expansion (arXiv 2507.16577), with gated linear attention or Gated DeltaNet as its recurrence.
//!
//! With x the normed input, per value head (value head h uses query and key head `h / (value_heads / heads)`):
//! ```text
//! q1, k1, v = W_q x, W_k x, W_v x;  q2, k2 = q1 + W_q'' W_q' x, k1 + W_k'' W_k' x;  q1, k1 <- conv(q1), conv(k1) (optional)
//! q1, q2, k1, k2 <- silu, relu or softmax over the head;  v <- silu(v)
//! p   = softmax(W_e x)                                 [partitions]; the largest are written and read
//! S0 <- update(S0, k1, v);      o = q1 S0              shared
//! Si <- update(Si, p_i k2, v);  o = o + p_i q2 Si      written, read
//! y   = W_o (rms(head_dim^-1/2 o) silu(W_g'' W_g' x))
//! ```
//! `update(S, k, v)` is `diag(a) S + k^T v` with `a = exp(ln sigmoid(W'' W' x + b) / 16)`, or the update of Gated
//! DeltaNet, with q and k normalised to unit length last. S0 has its own decay and write strength; all Si share one decay
//! and one write strength. The lower partition wins a tie.
//!
//! Separate parameters (optional, only with gated linear attention; the ablation of the paper's Table 8): partition i has its own
//! matrices for q2, k2, v and W'' of its decay.
//!
//! State: `S0 [value_heads, head_dim, value_dim]`, `Si` of the same shape for each partition, and the last inputs of
//! the convolutions. A token touches only S0 and its chosen partitions.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::short_conv::{self, Branch};
use super::{Mismatch, Mixer, output_norm};
use crate::error::Result;
use crate::functions::{Activation, OutputOp};
use crate::lowering::Lowering;
use crate::operands::View;
use crate::ops::{
    Decay, Finish, Gate, HeadGroup, HeadOp, Key, Partitions, Prepare, Recur, Route, Router, Write,
};
use crate::state::{StateDtype, StateKind, StateTensor};
use crate::weights::WeightSpec;

pub(super) const KIND: &str = "sse";

/// The recurrence of every partition.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum StateUpdate {
    /// Gated linear attention.
    Gla {
        /// Width between the two matrices of the decay.
        rank: usize,
        /// Divides the decay's logarithm.
        normalizer: f32,
    },
    /// Gated DeltaNet.
    GatedDelta {
        /// Whether the write strength ranges up to 2.
        negative_eigenvalues: bool,
    },
}

/// Function applied to each head of a query or key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeadMap {
    /// `x sigmoid(x)`.
    Silu,
    /// `max(x, 0)`.
    Relu,
    /// Softmax over the head.
    Softmax,
}

impl HeadMap {
    fn map(self) -> HeadOp {
        match self {
            HeadMap::Silu => HeadOp::Activation(Activation::Silu),
            HeadMap::Relu => HeadOp::Activation(Activation::Relu),
            HeadMap::Softmax => HeadOp::Softmax,
        }
    }
}

/// Hyperparameters.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sse {
    /// Query and key heads.
    pub heads: usize,
    /// Value heads, a multiple of `heads`.
    pub value_heads: usize,
    /// Width of a query or key head.
    pub head_dim: usize,
    /// Width of a value head.
    pub value_dim: usize,
    /// Partitions, without the shared state.
    pub partitions: usize,
    /// Partitions that a token writes.
    pub writers: usize,
    /// Partitions that a token reads.
    pub readers: usize,
    /// The recurrence.
    pub update: StateUpdate,
    /// Function applied to queries.
    pub query_map: HeadMap,
    /// Function applied to keys.
    pub key_map: HeadMap,
    /// Whether a partition's weight multiplies its query.
    pub weigh_queries: bool,
    /// Whether a partition's weight multiplies its key.
    pub weigh_keys: bool,
    /// Rank of the correction of the partitions' queries and keys; `None` for no correction.
    pub lora_rank: Option<usize>,
    /// Whether each partition has its own matrices; only with gated linear attention and without a correction.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub separate: bool,
    /// Taps of the short convolutions of the shared state's queries and keys; `None` for no convolutions.
    pub conv: Option<usize>,
    /// Rank of the output gate; `None` for no gate.
    pub gate_rank: Option<usize>,
    /// Whether the projections of q, k and v have a bias.
    pub bias: bool,
    /// Epsilon of the output norm.
    pub norm_eps: f32,
}

impl Sse {
    fn key_width(&self) -> usize {
        self.heads * self.head_dim
    }

    fn value_width(&self) -> usize {
        self.value_heads * self.value_dim
    }

    fn branches(&self) -> [Branch; 2] {
        let branch = |projection, conv| Branch {
            projection,
            conv,
            head_dim: self.head_dim,
            heads: self.heads,
        };
        [
            branch("q_proj", "q_conv1d_shared"),
            branch("k_proj", "k_conv1d_shared"),
        ]
    }

    fn delta(&self) -> bool {
        matches!(self.update, StateUpdate::GatedDelta { .. })
    }

    /// Projections of the layer's input that are used directly, and the matrix pairs of low-rank projections.
    fn projections(&self) -> (Vec<&'static str>, Vec<[&'static str; 2]>) {
        let mut single = vec!["q_proj", "k_proj", "v_proj", "e_proj"];
        let mut pairs = Vec::new();
        match self.update {
            StateUpdate::Gla { .. } => {
                pairs.push(["gk_proj.0.0", "gk_proj.0.1"]);
                pairs.push(["gk_proj.1.0", "gk_proj.1.1"]);
            }
            StateUpdate::GatedDelta { .. } => single.extend(["a_proj", "b_proj"]),
        }
        if self.lora_rank.is_some() {
            pairs.push(["lora_q_proj.0", "lora_q_proj.1"]);
            pairs.push(["lora_k_proj.0", "lora_k_proj.1"]);
        }
        if self.gate_rank.is_some() {
            pairs.push(["g_proj.0", "g_proj.1"]);
        }
        (single, pairs)
    }

    /// The updates of the shared state and of the partitions, and the gates that compute them. With gated linear
    /// attention, each update has its own view; with Gated DeltaNet, both views hold adjacent columns of the two
    /// updates.
    fn updates(&self, layer: &Lowering, views: [View; 2]) -> Result<Updates> {
        let [first, second] = views;
        Ok(match self.update {
            StateUpdate::Gla { normalizer, .. } => {
                let gate = || Gate::LogSigmoid {
                    scale: 1.0 / normalizer,
                    min: f32::NEG_INFINITY,
                };
                let update = |decay| Update { decay, beta: None };
                Updates {
                    shared: update(first),
                    sparse: update(second),
                    gates: vec![(first, gate()), (second, gate())],
                }
            }
            StateUpdate::GatedDelta {
                negative_eigenvalues,
            } => {
                let half = |view: View, i: usize| View {
                    start: view.start + i * self.value_heads,
                    width: self.value_heads,
                    ..view
                };
                let update = |i| Update {
                    decay: half(first, i),
                    beta: Some(half(second, i)),
                };
                let rate = layer.vector("A_log")?.iter().map(|a| a.exp()).collect();
                let bias = layer.vector("dt_bias")?;
                let scale = if negative_eigenvalues { 2.0 } else { 1.0 };
                Updates {
                    shared: update(0),
                    sparse: update(1),
                    gates: vec![
                        (first, Gate::Decay { rate, bias }),
                        (second, Gate::Sigmoid { scale }),
                    ],
                }
            }
        })
    }

    /// The recurrence of one state on these columns.
    fn recur(&self, [q, k, v]: [View; 3], update: Update, tensor: usize, out: View) -> Recur {
        Recur {
            heads: self.value_heads,
            states: self.value_heads,
            dk: self.head_dim,
            dv: self.value_dim,
            q,
            k: Key::View(k),
            v,
            decay: match update.beta {
                Some(_) => Decay::Head(update.decay),
                None => Decay::Key(update.decay),
            },
            write: update.beta.map_or(Write::Add, Write::Delta),
            gates: None,
            scale: (self.head_dim as f32).powf(-0.5),
            finish: Finish::default(),
            state: tensor,
            out,
        }
    }
}

/// Names of the partitions' own matrices for queries, keys and values.
const SEPARATE: [&str; 3] = ["q_partitions", "k_partitions", "v_partitions"];

/// Columns that control an update: the logarithm of the decay, and the delta rule's write strength.
#[derive(Clone, Copy)]
struct Update {
    decay: View,
    beta: Option<View>,
}

struct Updates {
    shared: Update,
    sparse: Update,
    gates: Vec<(View, Gate)>,
}

impl Mixer for Sse {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn to_json(&self) -> Value {
        json!(self)
    }

    fn check(&self, _hidden: usize) -> Result<(), Mismatch> {
        let dims = [self.heads, self.value_heads, self.head_dim, self.value_dim];
        Mismatch::unless_positive(&dims, "heads and widths of one or more")?;
        Mismatch::unless_shared(self.value_heads, "value heads", self.heads, "head")?;
        let chosen = [self.writers, self.readers];
        Mismatch::unless(
            chosen.iter().all(|n| (1..=self.partitions).contains(n)) && self.partitions <= 1 << 16,
            || {
                let [writers, readers] = chosen;
                format!(
                    "{writers} written and {readers} read of {} partitions",
                    self.partitions
                )
            },
            "at least one partition and at most all of them, of at most 65536",
        )?;
        let decay_rank = match self.update {
            StateUpdate::Gla { rank, .. } => Some(rank),
            StateUpdate::GatedDelta { .. } => None,
        };
        let ranks = [self.lora_rank, self.gate_rank, decay_rank];
        Mismatch::unless(
            !ranks.contains(&Some(0)),
            || format!("{ranks:?}"),
            "ranks of one or more",
        )?;
        Mismatch::unless(
            !self.separate || (self.lora_rank.is_none() && !self.delta()),
            || {
                format!(
                    "separate with lora_rank {:?}, {:?}",
                    self.lora_rank, self.update
                )
            },
            "no lora_rank, and the update gla",
        )?;
        short_conv::check(self.conv)
    }

    fn weights(&self, hidden: usize) -> Vec<WeightSpec> {
        let (keys, values) = (self.key_width(), self.value_width());
        let mut weights = short_conv::weights(&self.branches(), hidden, self.conv, false);
        weights.push(WeightSpec::matrix("v_proj.weight", values, hidden));
        if self.bias {
            for (name, width) in [("q", keys), ("k", keys), ("v", values)] {
                weights.push(WeightSpec::full(&format!("{name}_proj.bias"), &[width]));
            }
        }
        weights.push(WeightSpec::full(
            "e_proj.weight",
            &[self.partitions, hidden],
        ));
        // With separate parameters, a tensor holds the matrices of all partitions, one after another.
        let times = if self.separate { self.partitions } else { 1 };
        if self.separate {
            for (name, width) in SEPARATE.into_iter().zip([keys, keys, values]) {
                let rows = width.saturating_mul(times);
                weights.push(WeightSpec::matrix(&format!("{name}.weight"), rows, hidden));
            }
        }
        if let Some(rank) = self.lora_rank {
            for name in ["lora_q_proj", "lora_k_proj"] {
                weights.push(WeightSpec::matrix(
                    &format!("{name}.0.weight"),
                    rank,
                    hidden,
                ));
                weights.push(WeightSpec::matrix(&format!("{name}.1.weight"), keys, rank));
            }
        }
        match self.update {
            StateUpdate::Gla { rank, .. } => {
                for (name, times) in [("gk_proj.0", 1), ("gk_proj.1", times)] {
                    let keys = keys.saturating_mul(times);
                    weights.push(WeightSpec::full(
                        &format!("{name}.0.weight"),
                        &[rank, hidden],
                    ));
                    weights.push(WeightSpec::full(&format!("{name}.1.weight"), &[keys, rank]));
                    weights.push(WeightSpec::full(&format!("{name}.1.bias"), &[keys]));
                }
            }
            StateUpdate::GatedDelta { .. } => {
                for name in ["a_proj.weight", "b_proj.weight"] {
                    weights.push(WeightSpec::full(name, &[2 * self.value_heads, hidden]));
                }
                for name in ["A_log", "dt_bias"] {
                    weights.push(WeightSpec::full(name, &[2 * self.value_heads]));
                }
            }
        }
        if let Some(rank) = self.gate_rank {
            weights.push(WeightSpec::matrix("g_proj.0.weight", rank, hidden));
            weights.push(WeightSpec::matrix("g_proj.1.weight", values, rank));
        }
        weights.push(WeightSpec::full("o_norm.weight", &[self.value_dim]));
        weights.push(WeightSpec::matrix("o_proj.weight", hidden, values));
        weights
    }

    fn state(&self) -> Vec<StateTensor> {
        let matrices = |name, shape: &[usize]| {
            StateTensor::new(name, StateKind::Matrix, StateDtype::F32, shape)
        };
        let (heads, dk, dv) = (self.value_heads, self.head_dim, self.value_dim);
        let mut tensors = vec![
            matrices("shared", &[heads, dk, dv]),
            matrices("partitions", &[self.partitions, heads, dk, dv]),
        ];
        tensors.extend(short_conv::tensors(&self.branches(), self.conv));
        tensors
    }

    fn lower(&self, layer: &mut Lowering) -> Result<()> {
        let (single, pairs) = self.projections();
        let first = pairs.iter().map(|[first, _]| *first);
        let names: Vec<_> = single.iter().copied().chain(first).collect();
        let views = layer.project(&names)?;
        let (q, k, v, logits) = (views[0], views[1], views[2], views[3]);
        let (single, narrow) = views.split_at(single.len());
        let group = |view, head_dim, maps| HeadGroup {
            view,
            head_dim,
            conv: None,
            maps,
        };
        let silu = || vec![HeadOp::Activation(Activation::Silu)];
        layer.push(Prepare {
            groups: vec![group(v, self.value_dim, silu())],
            rope: None,
            gates: Vec::new(),
        });
        let pairs: Vec<_> = narrow
            .iter()
            .zip(pairs)
            .map(|(view, [_, second])| (*view, second))
            .collect();
        let wide = layer.project_each(&pairs)?;
        let (gla, rest) = wide.split_at(if self.delta() { 0 } else { 2 });
        let (lora, gate) = rest.split_at(if self.lora_rank.is_some() { 2 } else { 0 });
        let driving = if self.delta() { &single[4..] } else { gla };
        let updates = self.updates(layer, [driving[0], driving[1]])?;

        let route = layer.buffer(2 * self.writers.max(self.readers));
        layer.push(Route {
            logits,
            router: Router::softmax(false),
            bias: None,
            gains: None,
            out: route,
        });

        // The queries and keys of the partitions and of the shared state come from the same projections. Without convolutions,
        // the shared state's have separate columns, so that neither op waits for the other; else they are convolved in place,
        // after the partitions' copy.
        let maps = [self.query_map, self.key_map];
        let room = |layer: &mut Lowering| {
            let (first, second) = layer.buffer(2 * self.key_width()).split(self.key_width());
            [first, second]
        };
        let separate = if self.separate {
            layer.project_chosen(&SEPARATE, self.partitions, route)?
        } else {
            Vec::new()
        };
        let (own, sources) = match (&separate[..], lora) {
            (&[q2, k2, _], _) => ([q2, k2], None),
            (_, &[q2, k2]) => ([q2, k2], Some([HeadOp::Add(q), HeadOp::Add(k)])),
            _ => (room(layer), Some([HeadOp::Copy(q), HeadOp::Copy(k)])),
        };
        let mut sources = sources.into_iter().flatten();
        let mut groups = Vec::new();
        for (view, map) in own.into_iter().zip(maps) {
            let maps = sources.next().into_iter().chain([map.map()]);
            groups.push(group(view, self.head_dim, maps.collect()));
        }
        groups.extend(separate.get(2).map(|v| group(*v, self.value_dim, silu())));
        layer.push(Prepare {
            groups,
            rope: None,
            gates: updates.gates,
        });

        let shared = match self.conv {
            Some(_) => [q, k],
            None => room(layer),
        };
        let mut groups = Vec::new();
        for (i, branch) in self.branches().iter().enumerate() {
            let from = [q, k][i];
            let mut all = Vec::new();
            all.extend((shared[i] != from).then_some(HeadOp::Copy(from)));
            all.push(maps[i].map());
            all.extend(self.delta().then_some(HeadOp::L2Norm));
            groups.push(branch.group(layer, shared[i], 2 + i, all)?);
        }
        layer.push(Prepare {
            groups,
            rope: None,
            gates: Vec::new(),
        });
        let [q, k] = shared;

        // Each op writes its own part of the sum, so that neither waits for the other.
        let [out, sparse] = [0; 2].map(|_| layer.buffer(self.value_width()));
        let recur = self.recur([q, k, v], updates.shared, layer.state_tensor(0), out);
        layer.push(recur);
        layer.push(Partitions {
            recur: self.recur(
                [own[0], own[1], *separate.get(2).unwrap_or(&v)],
                updates.sparse,
                layer.state_tensor(1),
                sparse,
            ),
            partitions: self.partitions,
            route,
            writers: self.writers,
            readers: self.readers,
            weigh_queries: self.weigh_queries,
            weigh_keys: self.weigh_keys,
            unit_length: self.delta(),
            own_columns: self.separate,
            add: false,
        });
        let ones = vec![1.0; self.value_width()].into();
        let mut finish = vec![
            OutputOp::Add(sparse, ones),
            output_norm(layer, self.norm_eps)?,
        ];
        finish.extend(
            gate.iter()
                .map(|gate| OutputOp::Gate(*gate, Activation::Silu)),
        );
        layer.emit(out, finish, "o_proj")
    }
}
