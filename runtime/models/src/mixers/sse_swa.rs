//! Sparse state expansion in parallel with sliding-window attention (the layer of the published SSE
//! models).
//!
//! Both read the same normed input:
//! ```text
//! y = (rms(sse(x)) + rms(attention(x))) / 2
//! ```
//! State: the states of both.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Attention, Mismatch, Mixer, Sse};
use crate::error::Result;
use crate::lowering::{Lowering, Sum};
use crate::state::StateTensor;
use crate::weights::WeightSpec;

pub(super) const KIND: &str = "sse_swa";

/// Hyperparameters.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SseSwa {
    /// Sparse state expansion.
    pub sse: Sse,
    /// Attention.
    pub swa: Attention,
}

impl SseSwa {
    /// The two parts, with the prefixes of their tensors.
    fn parts(&self) -> [(&'static str, &dyn Mixer); 2] {
        [("sse_", &self.sse), ("swa_", &self.swa)]
    }
}

impl Mixer for SseSwa {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn to_json(&self) -> Value {
        json!(self)
    }

    fn check(&self, hidden: usize) -> Result<(), Mismatch> {
        self.sse.check(hidden)?;
        self.swa.check(hidden)
    }

    fn weights(&self, hidden: usize) -> Vec<WeightSpec> {
        let part = |(prefix, part): (&str, &dyn Mixer)| {
            let mut weights = part.weights(hidden);
            weights.push(WeightSpec::full("merge_norm.weight", &[hidden]));
            for weight in &mut weights {
                weight.name.insert_str(0, prefix);
            }
            weights
        };
        self.parts().into_iter().flat_map(part).collect()
    }

    fn state(&self) -> Vec<StateTensor> {
        let mut tensors = self.sse.state();
        tensors.extend(self.swa.state());
        tensors
    }

    fn lower(&self, layer: &mut Lowering) -> Result<()> {
        let mut tensor = 0;
        for (prefix, part) in self.parts() {
            layer.part(prefix, tensor, Sum::Normed { share: 0.5 }, |layer| {
                part.lower(layer)
            })?;
            tensor += part.state().len();
        }
        Ok(())
    }
}
