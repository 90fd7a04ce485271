//! The feed-forward network of a layer.

mod experts;
mod mlp_and_experts;

pub use experts::{ExpertsSpec, SharedSpec};
pub use mlp_and_experts::MlpAndExperts;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::config::{Config, LARGEST, changed, in_short};
use crate::error::{Error, Result};
use crate::functions::{Activation, OutputOp};
use crate::lowering::Lowering;
use crate::mixers::Mismatch;
use crate::operands::{RESIDUAL, View};
use crate::ops::{Linear, Mlp};
use crate::weights::WeightSpec;

const MLP: &str = "mlp";
const EXPERTS: &str = "experts";

/// The network that follows a layer's mixer, with its own norms.
#[derive(Debug, Clone, PartialEq)]
pub enum FeedForward {
    /// One network that every token passes.
    Dense(MlpSpec),
    /// A mixture of experts with a router.
    Experts(ExpertsSpec),
    /// Both, side by side, each with its own norms.
    Both(MlpAndExperts),
}

/// A network of two layers of weights.
///
/// Gated: `multiplier down(act(gate_multiplier gate x) * up x)`; else `multiplier down(act(up x))`. The multipliers apply to
/// the biases too.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MlpSpec {
    /// Width between the two matrix products.
    pub intermediate: usize,
    /// Whether a second matrix gates the first one's product.
    pub gated: bool,
    /// Activation of the gate; without a gate, of the product itself.
    pub activation: Activation,
    /// Whether every matrix has a bias.
    pub bias: bool,
    /// Multiplies the gate before its activation.
    pub gate_multiplier: f32,
    /// Multiplies the output.
    pub multiplier: f32,
}

impl Default for MlpSpec {
    fn default() -> Self {
        MlpSpec {
            intermediate: 0,
            gated: true,
            activation: Activation::Silu,
            bias: false,
            gate_multiplier: 1.0,
            multiplier: 1.0,
        }
    }
}

impl From<MlpSpec> for FeedForward {
    fn from(mlp: MlpSpec) -> Self {
        FeedForward::Dense(mlp)
    }
}

impl FeedForward {
    /// Puts the hyperparameters into a layer's JSON.
    pub(crate) fn put(&self, layer: &mut Map<String, Value>) {
        let (mlp, experts) = match self {
            FeedForward::Dense(mlp) => (Some(mlp), None),
            FeedForward::Experts(experts) => (None, Some(experts)),
            FeedForward::Both(both) => (Some(&both.mlp), Some(&both.experts)),
        };
        layer.extend(mlp.map(|mlp| (MLP.into(), mlp.to_json())));
        layer.extend(experts.map(|experts| (EXPERTS.into(), experts.to_json())));
    }

    /// Takes the network out of a layer's description; `file` is named in errors.
    pub(crate) fn take(file: &str, layer: &mut Map<String, Value>) -> Result<Option<Self>> {
        let mlp = layer.remove(MLP).map(|mlp| {
            // The width is required, since it has no default.
            Config::new(&format!("{file}.mlp"), mlp.clone())?.usize("intermediate")?;
            read(file, MLP, mlp)
        });
        let experts = layer.remove(EXPERTS);
        let experts = experts.map(|experts| read(file, EXPERTS, experts));
        Ok(match (mlp.transpose()?, experts.transpose()?) {
            (Some(mlp), Some(experts)) => Some(FeedForward::Both(MlpAndExperts { mlp, experts })),
            (mlp, experts) => {
                let experts = experts.map(FeedForward::Experts);
                mlp.map(FeedForward::Dense).or(experts)
            }
        })
    }

    /// The network's name in errors.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            FeedForward::Dense(_) => MLP,
            FeedForward::Experts(_) => EXPERTS,
            FeedForward::Both(_) => "mlp and experts",
        }
    }

    /// Checks the hyperparameters against each other.
    pub(crate) fn check(&self) -> Result<(), Mismatch> {
        match self {
            FeedForward::Dense(mlp) => mlp.check(),
            FeedForward::Experts(experts) => experts.check(),
            FeedForward::Both(both) => both.check(),
        }
    }

    /// The weights, named relative to the layer.
    pub(crate) fn weights(&self, hidden: usize) -> Vec<WeightSpec> {
        match self {
            FeedForward::Dense(mlp) => mlp.weights(hidden),
            FeedForward::Experts(experts) => experts.weights(hidden),
            FeedForward::Both(both) => both.weights(hidden),
        }
    }

    /// Lowers the network to ops, from the residual stream to the sum into it.
    pub(crate) fn lower(&self, layer: &mut Lowering) -> Result<()> {
        match self {
            FeedForward::Dense(mlp) => mlp.lower(layer),
            FeedForward::Experts(experts) => experts.lower(layer),
            FeedForward::Both(both) => both.lower(layer),
        }
    }
}

impl MlpSpec {
    fn to_json(self) -> Value {
        let mut fields = changed(json!(self), &json!(MlpSpec::default()));
        fields.insert("intermediate".into(), json!(self.intermediate));
        in_short(Value::Object(fields))
    }

    fn check(&self) -> Result<(), Mismatch> {
        Mismatch::unless(
            (1..=LARGEST).contains(&self.intermediate),
            || format!("intermediate {}", self.intermediate),
            &format!("a number from 1 to {LARGEST}"),
        )?;
        let multipliers = [self.gate_multiplier, self.multiplier];
        Mismatch::unless(
            multipliers.iter().all(|x| x.is_finite()) && (self.gated || multipliers[0] == 1.0),
            || format!("multipliers {multipliers:?}"),
            "finite multipliers, and a gate multiplier only with a gate",
        )
    }

    fn weights(&self, hidden: usize) -> Vec<WeightSpec> {
        let gate = self
            .gated
            .then_some(("ffn_gate", self.intermediate, hidden));
        let rest = [
            ("ffn_up", self.intermediate, hidden),
            ("ffn_down", hidden, self.intermediate),
        ];
        let mut weights = Vec::new();
        for (name, rows, cols) in gate.into_iter().chain(rest) {
            weights.push(WeightSpec::matrix(&format!("{name}.weight"), rows, cols));
            if self.bias {
                weights.push(WeightSpec::full(&format!("{name}.bias"), &[rows]));
            }
        }
        weights
    }

    fn lower(&self, layer: &mut Lowering) -> Result<()> {
        if !self.gated {
            let input = View::whole(RESIDUAL, layer.hidden());
            let norm = layer.input_norm();
            let inner = layer.project_from(input, norm, &["ffn_up"])?[0];
            let finish = vec![OutputOp::Map(self.activation)];
            return layer.emit_scaled(inner, finish, "ffn_down", self.multiplier);
        }
        let (down, post_norm) = layer.output_linear("ffn_down", self.multiplier)?;
        let mlp = self.gated_network(layer, down)?;
        layer.push(Mlp { post_norm, ..mlp });
        Ok(())
    }

    /// The gated network with the last matrix `down`, without a norm after it.
    fn gated_network(&self, layer: &mut Lowering, down: Linear) -> Result<Mlp> {
        Ok(Mlp {
            norm: layer.input_norm(),
            inner: layer.buffer(2 * self.intermediate),
            gate: layer.linear("ffn_gate", self.gate_multiplier, 0)?,
            up: layer.linear("ffn_up", 1.0, self.intermediate)?,
            down,
            activation: self.activation,
            post_norm: None,
            output: None,
        })
    }
}

/// Reads the hyperparameters at `key` of a layer.
fn read<T: DeserializeOwned>(file: &str, key: &str, fields: Value) -> Result<T> {
    serde_json::from_value(fields).map_err(|e| Error::Config {
        file: file.into(),
        key: key.into(),
        found: e.to_string(),
        expected: "the hyperparameters of a feed-forward network".into(),
    })
}
