//! A mixture of experts as a layer's feed-forward network.
//!
//! With x the normed input of a layer:
//! ```text
//! s = softmax(z) or sigmoid(z), z = W_r x (+ bias), or cap tanh(z / cap)     [experts]
//! the experts with the largest s + b are chosen (of the best groups); w = scale s / sum s of the chosen, if normalised
//! y = sum_e w_e down_e(act(gate_e x) * up_e x) + sigmoid(g x) shared(x)
//! ```
//! The experts may work between two shared projections, `y = out(sum_e w_e expert_e(in x))`, and may lack gates:
//! `down_e(act(up_e x))`. Their matrices may have biases, and a clamped unit may replace `act(gate_e x) * up_e x`. Softmax over the chosen logits equals softmax over all logits, normalised.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::config::{LARGEST, in_short};
use crate::error::Result;
use crate::functions::{Activation, ClampedUnit, OutputOp};
use crate::lowering::Lowering;
use crate::mixers::Mismatch;
use crate::operands::{RESIDUAL, View};
use crate::ops::{Expert, ExpertBiases, Experts, Route, Router, SharedExpert};
use crate::weights::WeightSpec;

/// Factors of the weights of the experts.
const GAINS: &str = "ffn_down_exps.scale";

/// Hyperparameters.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpertsSpec {
    /// Number of experts.
    pub experts: usize,
    /// Number of experts per token.
    pub chosen: usize,
    /// Width of an expert between its matrices.
    pub intermediate: usize,
    /// How experts are chosen and weighted.
    pub router: Router,
    /// Whether a bias is added to the scores for the choice.
    #[serde(default)]
    pub bias: bool,
    /// Whether the router's logits have a bias, which the weights depend on too.
    #[serde(default, skip_serializing_if = "is_false")]
    pub router_bias: bool,
    /// Whether the matrices of the experts, except the shared one's, have biases.
    #[serde(default, skip_serializing_if = "is_false")]
    pub expert_biases: bool,
    /// Whether a learned number multiplies the weight of each expert.
    #[serde(default, skip_serializing_if = "is_false")]
    pub gains: bool,
    /// Whether experts have gates.
    pub gated: bool,
    /// Activation of the gate; without gates, of the first product.
    pub activation: Activation,
    /// The gated unit that replaces the activation and its product with the gated values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clamped: Option<ClampedUnit>,
    /// Width of the experts' inputs and outputs, if they work between two shared projections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latent: Option<usize>,
    /// The expert that every token passes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared: Option<SharedSpec>,
}

fn is_false(value: &bool) -> bool {
    !value
}

/// The expert that every token passes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharedSpec {
    /// Width between its matrices.
    pub intermediate: usize,
    /// Whether the sigmoid of a product with the input gates the expert's output.
    pub gate: bool,
}

impl Default for ExpertsSpec {
    /// Gated experts of size zero, weighted by softmax over the chosen ones.
    fn default() -> Self {
        ExpertsSpec {
            experts: 0,
            chosen: 0,
            intermediate: 0,
            router: Router::softmax(true),
            bias: false,
            router_bias: false,
            expert_biases: false,
            gains: false,
            gated: true,
            activation: Activation::Silu,
            clamped: None,
            latent: None,
            shared: None,
        }
    }
}

impl ExpertsSpec {
    pub(crate) fn to_json(self) -> Value {
        in_short(json!(self))
    }

    pub(crate) fn check(&self) -> Result<(), Mismatch> {
        let shared = self.shared.map_or(1, |shared| shared.intermediate);
        let widths = [self.intermediate, self.latent.unwrap_or(1), shared];
        Mismatch::unless(
            widths.iter().all(|width| (1..=LARGEST).contains(width)),
            || format!("widths {widths:?}"),
            &format!("numbers from 1 to {LARGEST}"),
        )?;
        Mismatch::unless(
            self.experts <= 1 << 16 && (1..=self.experts.min(256)).contains(&self.chosen),
            || format!("{} chosen of {} experts", self.chosen, self.experts),
            "1 to 256 chosen experts, at most the total, and at most 65536 in total",
        )?;
        let numbers = [self.router.scale, self.router.normalize.unwrap_or(0.0)];
        Mismatch::unless(
            numbers.iter().all(|x| x.is_finite()) && numbers[1] >= 0.0,
            || format!("a scale and an epsilon of {numbers:?}"),
            "finite numbers, the second at least 0",
        )?;
        Mismatch::unless(
            self.latent.is_none() || self.shared.is_none_or(|shared| !self.gated && !shared.gate),
            || "a gated shared expert together with projected experts".into(),
            "experts and a shared expert without gates",
        )?;
        let unit = self.clamped.map(|unit| [unit.limit, unit.slope]);
        let bounds: Vec<f32> = (self.router.softcap.into_iter())
            .chain(unit.into_iter().flatten())
            .collect();
        Mismatch::unless(
            bounds.iter().all(|x| x.is_finite() && *x > 0.0) && (self.gated || unit.is_none()),
            || format!("bounds {bounds:?} of the router's logits and of a gated unit"),
            "positive numbers, and bounds of a unit only with gates",
        )?;
        let Some(groups) = self.router.groups else {
            return Ok(());
        };
        let size = self.experts / groups.count.max(1);
        Mismatch::unless(
            (1..=crate::ops::Groups::MOST).contains(&groups.count)
                && self.experts.is_multiple_of(groups.count)
                && size >= 2
                && (1..=groups.count).contains(&groups.top_k)
                && groups.top_k * size >= self.chosen,
            || format!("{} of {} groups", groups.top_k, groups.count),
            "up to 32 groups of two or more experts, and enough chosen groups for all chosen experts",
        )
    }

    pub(crate) fn weights(&self, hidden: usize) -> Vec<WeightSpec> {
        let cols = self.latent.unwrap_or(hidden);
        let mut weights = vec![WeightSpec::full(
            "ffn_gate_inp.weight",
            &[self.experts, hidden],
        )];
        if self.router_bias {
            weights.push(WeightSpec::full("ffn_gate_inp.bias", &[self.experts]));
        }
        if self.bias {
            weights.push(WeightSpec::full("exp_probs_b.bias", &[self.experts]));
        }
        if self.gains {
            weights.push(WeightSpec::full(GAINS, &[self.experts]));
        }
        if let Some(latent) = self.latent {
            weights.push(WeightSpec::matrix("ffn_latent_in.weight", latent, hidden));
            weights.push(WeightSpec::matrix("ffn_latent_out.weight", hidden, latent));
        }
        let mut networks = |count: usize, width: usize, cols: usize, end: &str| {
            let gate = self.gated.then_some("gate");
            for name in gate.into_iter().chain(["up"]) {
                let name = format!("ffn_{name}_{end}.weight");
                weights.push(WeightSpec::matrix(&name, count * width, cols));
            }
            let name = format!("ffn_down_{end}.weight");
            weights.push(WeightSpec::matrix(&name, count * cols, width));
        };
        networks(self.experts, self.intermediate, cols, "exps");
        if let Some(shared) = self.shared {
            networks(1, shared.intermediate, hidden, "shexp");
            if shared.gate {
                let name = "ffn_gate_inp_shexp.weight";
                weights.push(WeightSpec::full(name, &[1, hidden]));
            }
        }
        if self.expert_biases {
            let gate = self.gated.then_some(("gate", self.intermediate));
            for (name, rows) in gate
                .into_iter()
                .chain([("up", self.intermediate), ("down", cols)])
            {
                let name = format!("ffn_{name}_exps.bias");
                weights.push(WeightSpec::full(&name, &[self.experts, rows]));
            }
        }
        weights
    }

    pub(crate) fn lower(&self, layer: &mut Lowering) -> Result<()> {
        let multiplier = layer.plain_multiplier()?;
        let mut names = vec!["ffn_gate_inp"];
        if self.latent.is_some() {
            names.insert(0, "ffn_latent_in");
        }
        let has_gate = self.shared.is_some_and(|shared| shared.gate);
        names.extend(has_gate.then_some("ffn_gate_inp_shexp"));
        let mut views = layer.project(&names)?.into_iter();
        let latent = self.latent.and_then(|_| views.next());
        let (logits, shared_gate) = (views.next().expect("the router"), views.next());

        let scale = match latent {
            Some(_) => 1.0,
            None => multiplier,
        };
        let route = self.route(layer, logits, scale)?;
        let residual = View::whole(RESIDUAL, layer.hidden());
        let (input, norm, output) = match latent {
            Some(latent) => (latent, None, layer.buffer(latent.width)),
            None => (residual, layer.input_norm(), residual),
        };
        let inside = self.shared.filter(|_| latent.is_none());
        let shared = match inside {
            Some(_) => Some(SharedExpert {
                expert: self.expert(layer, "shexp")?,
                gate: shared_gate,
                multiplier,
            }),
            None => None,
        };
        let experts = Experts {
            norm,
            add: latent.is_none(),
            ..self.chosen(layer, input, route, shared, output)?
        };
        layer.push(experts);
        if latent.is_none() {
            return Ok(());
        }
        if self.shared.is_some() {
            let inner = layer.project(&["ffn_up_shexp"])?[0];
            let finish = vec![OutputOp::Map(self.activation)];
            layer.emit(inner, finish, "ffn_down_shexp")?;
        }
        layer.emit(output, Vec::new(), "ffn_latent_out")
    }

    /// Loads the biases of the experts' matrices.
    fn biases(&self, layer: &Lowering) -> Result<Option<ExpertBiases>> {
        if !self.expert_biases {
            return Ok(None);
        }
        let bias = |name: &str| layer.vector(&format!("ffn_{name}_exps.bias"));
        Ok(Some(ExpertBiases {
            gate: if self.gated {
                Some(bias("gate")?)
            } else {
                None
            },
            up: bias("up")?,
            down: bias("down")?,
        }))
    }

    /// Chooses experts by their `logits`; `scale` multiplies their weights. Returns the columns of the choice.
    pub(super) fn route(&self, layer: &mut Lowering, logits: View, scale: f32) -> Result<View> {
        let out = layer.buffer(2 * self.chosen);
        let bias = if self.bias {
            Some(layer.vector("exp_probs_b.bias")?)
        } else {
            None
        };
        let gains = if self.gains {
            Some(layer.vector(GAINS)?)
        } else {
            None
        };
        layer.push(Route {
            logits,
            router: Router {
                scale: self.router.scale * scale,
                ..self.router
            },
            bias,
            gains,
            out,
        });
        Ok(out)
    }

    /// The op of the chosen experts, which writes the columns `output`.
    pub(super) fn chosen(
        &self,
        layer: &mut Lowering,
        input: View,
        route: View,
        shared: Option<SharedExpert>,
        output: View,
    ) -> Result<Experts> {
        let shared_width = shared.as_ref().map_or(0, |shared| shared.expert.up.rows());
        layer.wide_inputs(input.width);
        layer.wide_inputs(Experts::inputs_width(self.chosen, self.intermediate));
        layer.wide_inputs(Experts::inputs_width(1, shared_width));
        let inner = Experts::inner_width(self.chosen, self.intermediate, shared_width);
        Ok(Experts {
            input,
            norm: None,
            route,
            experts: self.experts,
            expert: self.expert(layer, "exps")?,
            shared,
            biases: self.biases(layer)?,
            activation: self.activation,
            clamped: self.clamped,
            inner: layer.buffer(inner),
            order: layer.buffer(Experts::order_width(self.chosen)),
            output,
            add: false,
        })
    }

    /// Loads the expert matrices whose names end in `end`.
    fn expert(&self, layer: &Lowering, end: &str) -> Result<Expert> {
        let matrix = |name: &str| layer.matrix(&format!("ffn_{name}_{end}.weight"));
        Ok(Expert {
            gate: if self.gated {
                Some(matrix("gate")?)
            } else {
                None
            },
            up: matrix("up")?,
            down: matrix("down")?,
        })
    }
}
