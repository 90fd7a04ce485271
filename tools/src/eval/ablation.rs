//! Ablation: a trained model with one mechanism switched off.

use clap::ValueEnum;
use serde::Serialize;
use serde_json::{Value, json};
use waterline::ModelSpec;
use waterline::internal::{Bytes, Checkpoint};
use waterline_quant::{Format, Tensor};

use crate::error::{Error, Result};

/// Decay logit with which a state keeps nothing of earlier tokens.
const FORGET: f32 = -1e4;

/// A mechanism that can be switched off.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mechanism {
    /// SSE: the partitions forget each token at the next token that they read.
    Partitions,
    /// SSE: the shared state forgets each token at the next token.
    Shared,
    /// LTE and `convert --retain`: the retained set holds only its sinks, or one token if it has no sinks.
    Set,
    /// Attention layers add nothing, and neither does the sparse attention of HAX.
    Attention,
    /// SLA: the read gate is uniform over the heads.
    ReadGate,
    /// SLA: the write gate is uniform over the heads.
    WriteGate,
    /// GSA: a token reads all slots alike.
    SlotRead,
    /// GSA: the decay of the slots does not depend on the input.
    SlotDecay,
}

impl Mechanism {
    /// The mechanism's name on the command line.
    pub fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or(String::new(), |value| value.get_name().into())
    }

    /// Returns the tensors of a mixer of kind `mixer` that the ablation overwrites, by the ends of their names, and the
    /// value of all their elements.
    fn overwritten(self, mixer: &str) -> (&'static [&'static str], f32) {
        let is_attention = ["attention", "lte", "native_sparse_attention"].contains(&mixer);
        match self {
            Mechanism::Partitions if mixer == "sse" => (&["gk_proj.1.1.bias"], FORGET),
            Mechanism::Shared if mixer == "sse" => (&["gk_proj.0.1.bias"], FORGET),
            Mechanism::Attention if is_attention => (&["o_proj.weight", "o_proj.bias"], 0.0),
            Mechanism::Attention => (&["mixer.E"], 0.0),
            Mechanism::ReadGate => (&["gate_q_proj.weight"], 0.0),
            Mechanism::WriteGate => (&["gate_k_proj.weight"], 0.0),
            Mechanism::SlotRead if mixer == "gsa" => (&["q_proj.weight"], 0.0),
            Mechanism::SlotDecay if mixer == "gsa" => (&["f_proj.weight"], 0.0),
            _ => (&[], 0.0),
        }
    }
}

/// Switches off the mechanism in every layer that has it.
pub fn ablate(checkpoint: &mut Checkpoint, mechanism: Mechanism) -> Result<()> {
    let mut layers = 0;
    if mechanism == Mechanism::Set {
        let mut spec = checkpoint.spec.to_json();
        let described = spec["layers"].as_array_mut().into_iter().flatten();
        layers += described.filter_map(shrink_set).count();
        checkpoint.spec = ModelSpec::from_json(&checkpoint.file, &spec)?;
    }
    for index in 0..checkpoint.spec.layers.len() {
        let (ends, value) = mechanism.overwritten(checkpoint.spec.layers[index].kind());
        let scope = format!("blk.{index}.");
        let mut found = false;
        for (name, tensor) in &mut checkpoint.tensors {
            if name.starts_with(&scope) && ends.iter().any(|end| name.ends_with(end)) {
                *tensor = filled(tensor, value)?;
                found = true;
            }
        }
        layers += usize::from(found);
    }
    if layers == 0 {
        let reason = format!("--without {}: no layer has it", mechanism.name());
        return Err(Error::input(&checkpoint.file, reason));
    }
    Ok(())
}

/// Limits the retained set in a layer's description to its sinks.
fn shrink_set(layer: &mut Value) -> Option<()> {
    let set = match layer["mixer"].as_str()? {
        "lte" => layer,
        _ => layer.get_mut("retained")?,
    };
    let sinks = set["sink"].as_u64()?;
    set["capacity"] = json!(sinks.max(1));
    Some(())
}

/// Returns an f32 tensor of the same shape, filled with one value.
fn filled(tensor: &Tensor, value: f32) -> Result<Tensor> {
    let bytes = value.to_le_bytes().repeat(tensor.len());
    let format = Format::by_name("f32")?;
    Ok(Tensor::new(
        format,
        tensor.shape.clone(),
        Bytes::from_vec(bytes),
    )?)
}
