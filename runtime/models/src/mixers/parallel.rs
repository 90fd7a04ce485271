//! Mixers in parallel after one norm (Falcon-H1: transformers `models/falcon_h1`).
//!
//! ```text
//! y = sum_i output_i mixer_i(input_i n)      n: the layer's normed input
//! ```
//! State: the states of all mixers.

use std::sync::Arc;

use serde::de::{Deserialize, Deserializer, Error as _};
use serde_json::{Map, Value, json};

use super::{Mismatch, Mixer, Retained};
use crate::error::Result;
use crate::lowering::{Lowering, Sum};
use crate::state::StateTensor;
use crate::weights::WeightSpec;

pub(super) const KIND: &str = "parallel";

/// Mixers of different kinds in parallel; each mixer's kind prefixes its tensors' names.
#[derive(Debug, Clone)]
pub struct Parallel {
    /// The mixers.
    pub parts: Vec<ParallelPart>,
}

/// One of the mixers in parallel.
#[derive(Debug, Clone)]
pub struct ParallelPart {
    /// The mixer; no two parts have the same kind.
    pub mixer: Arc<dyn Mixer>,
    /// Factor of the input.
    pub input: f32,
    /// Factor of the output.
    pub output: f32,
}

const INPUT: &str = "input_multiplier";
const OUTPUT: &str = "output_multiplier";

impl ParallelPart {
    fn to_json(&self) -> Value {
        let mut part = Map::new();
        part.insert("mixer".into(), json!(self.mixer.kind()));
        for (key, multiplier) in [(INPUT, self.input), (OUTPUT, self.output)] {
            if multiplier != 1.0 {
                part.insert(key.into(), json!(multiplier));
            }
        }
        if let Value::Object(fields) = self.mixer.to_json() {
            part.extend(fields);
        }
        Value::Object(part)
    }

    fn from_json(mut fields: Map<String, Value>) -> Result<Self, String> {
        let mut multiplier = |key: &str| match fields.remove(key) {
            None => Ok(1.0),
            Some(value) => value
                .as_f64()
                .map(|number| number as f32)
                .ok_or_else(|| format!("{key} {value}")),
        };
        let (input, output) = (multiplier(INPUT)?, multiplier(OUTPUT)?);
        let mixer = match fields.remove("mixer") {
            Some(Value::String(kind)) if kind != KIND => {
                super::read("parts", &kind, Value::Object(fields))
            }
            found => return Err(format!("mixer {found:?} of a part")),
        };
        Ok(ParallelPart {
            mixer: mixer.map_err(|error| error.to_string())?,
            input,
            output,
        })
    }

    /// Prefix of the names of the mixer's tensors.
    fn prefix(&self) -> String {
        format!("{}.", self.mixer.kind())
    }
}

impl<'de> Deserialize<'de> for Parallel {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Parts {
            parts: Vec<Map<String, Value>>,
        }
        let parts = Parts::deserialize(from)?.parts.into_iter();
        let parts = parts.map(ParallelPart::from_json).collect::<Result<_, _>>();
        Ok(Parallel {
            parts: parts.map_err(D::Error::custom)?,
        })
    }
}

impl Mixer for Parallel {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn to_json(&self) -> Value {
        let parts = self.parts.iter().map(ParallelPart::to_json);
        json!({ "parts": parts.collect::<Vec<_>>() })
    }

    fn check(&self, hidden: usize) -> Result<(), Mismatch> {
        let kinds: Vec<&str> = self.parts.iter().map(|part| part.mixer.kind()).collect();
        let mut different = kinds.clone();
        different.sort_unstable();
        different.dedup();
        Mismatch::unless(
            !kinds.is_empty() && different.len() == kinds.len(),
            || format!("{kinds:?}"),
            "one or more mixers of different kinds",
        )?;
        for part in &self.parts {
            let multipliers = [part.input, part.output];
            Mismatch::unless(
                multipliers.iter().all(|x| x.is_finite()),
                || format!("multipliers {multipliers:?}"),
                "finite multipliers",
            )?;
            part.mixer.check(hidden)?;
        }
        Ok(())
    }

    fn weights(&self, hidden: usize) -> Vec<WeightSpec> {
        let part = |part: &ParallelPart| {
            let weights = part.mixer.weights(hidden).into_iter();
            let prefix = part.prefix();
            weights.map(move |weight| WeightSpec {
                name: format!("{prefix}{}", weight.name),
                ..weight
            })
        };
        self.parts.iter().flat_map(part).collect()
    }

    fn state(&self) -> Vec<StateTensor> {
        let parts = self.parts.iter();
        parts.flat_map(|part| part.mixer.state()).collect()
    }

    fn retaining(&self, window: Option<usize>, retained: Retained) -> Option<Arc<dyn Mixer>> {
        let bounded = |part: &ParallelPart| ParallelPart {
            mixer: match part.mixer.retaining(window, retained) {
                Some(mixer) => mixer,
                None => Arc::clone(&part.mixer),
            },
            ..*part
        };
        let any = |part: &ParallelPart| part.mixer.retaining(window, retained).is_some();
        self.parts.iter().any(any).then(|| {
            let parts = self.parts.iter().map(bounded).collect();
            Arc::new(Parallel { parts }) as Arc<dyn Mixer>
        })
    }

    fn lower(&self, layer: &mut Lowering) -> Result<()> {
        let mut tensor = 0;
        for part in &self.parts {
            let sum = Sum::Multiplied {
                input: part.input,
                output: part.output,
            };
            layer.part(&part.prefix(), tensor, sum, |layer| part.mixer.lower(layer))?;
            tensor += part.mixer.state().len();
        }
        Ok(())
    }
}
