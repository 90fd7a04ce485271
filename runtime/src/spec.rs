//! What a model is: checked dimensions, from which every other size follows.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::error::{Error, Result};
use crate::mixers::{self, Mixer, Retained};

/// A tensor that a model needs: its name, its shape and how it may be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightSpec {
    /// Name; inside a mixer relative to the layer, such as `q_proj.weight`.
    pub name: String,
    /// Shape, outermost dimension first. Dimensions of one are left out.
    pub shape: Vec<usize>,
    /// Which number formats keep the model's meaning.
    pub precision: Precision,
}

/// Which number formats a tensor may be stored in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    /// A large matrix: any format, also 4 bits.
    Quantized,
    /// A decay, gate, norm, convolution or router: always f32.
    Full,
}

impl WeightSpec {
    /// A matrix `[rows, cols]` that may be quantized.
    pub fn matrix(name: &str, rows: usize, cols: usize) -> Self {
        WeightSpec {
            name: name.into(),
            shape: vec![rows, cols],
            precision: Precision::Quantized,
        }
    }

    /// A tensor that always stays f32.
    pub fn full(name: &str, shape: &[usize]) -> Self {
        WeightSpec {
            name: name.into(),
            shape: shape.to_vec(),
            precision: Precision::Full,
        }
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether the tensor has no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// How the residual stream is normed before a mixer, a feed-forward network or the logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NormKind {
    /// By the root of its mean square.
    #[default]
    Rms,
    /// By mean and variance.
    Layer {
        /// Whether a bias is added.
        bias: bool,
    },
}

/// A gated feed-forward network, `down(silu(gate x) * up x)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MlpSpec {
    /// Width between the two matrix products.
    pub intermediate: usize,
}

/// One layer: a token mixer, then a feed-forward network, each behind a norm and added to the residual stream.
#[derive(Debug, Clone)]
pub struct LayerSpec {
    /// The token mixer.
    pub mixer: Arc<dyn Mixer>,
    /// The feed-forward network. Some models have none; one with a state of its own is a mixer in a layer of its own.
    pub mlp: Option<MlpSpec>,
}

impl LayerSpec {
    /// Reads a layer back; `file` is named in errors.
    pub fn from_json(file: &str, value: &Value) -> Result<Self> {
        let layer = crate::arch::Config::new(file, value.clone())?;
        let kind = layer.string("mixer")?;
        let mut parameters = layer.object().clone();
        parameters.remove("mixer");
        let mlp = match parameters.remove("mlp") {
            Some(mlp) => {
                let mlp = crate::arch::Config::new(&format!("{file}.mlp"), mlp)?;
                Some(MlpSpec {
                    intermediate: mlp.usize("intermediate")?,
                })
            }
            None => None,
        };
        let mixer = mixers::read(layer.file(), kind, Value::Object(parameters))?;
        Ok(LayerSpec { mixer, mlp })
    }

    /// The layer as JSON: its mixer's name and hyperparameters, the feed-forward network.
    pub fn to_json(&self) -> Value {
        let mut object = Map::new();
        object.insert("mixer".into(), json!(self.mixer.kind()));
        if let Value::Object(numbers) = in_short(self.mixer.to_json()) {
            object.extend(numbers);
        }
        if let Some(mlp) = self.mlp {
            object.insert("mlp".into(), json!({ "intermediate": mlp.intermediate }));
        }
        Value::Object(object)
    }
}

/// The value with each number that is an f32 written as one: JSON's numbers are f64, in which 1e-6 is 9.99999997e-7.
fn in_short(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.into_iter();
            Value::Object(fields.map(|(key, x)| (key, in_short(x))).collect())
        }
        Value::Array(values) => values.into_iter().map(in_short).collect(),
        Value::Number(number) if number.is_f64() => {
            let exact = number.as_f64().unwrap_or_default();
            let short = (exact as f32).to_string().parse::<f64>();
            match short {
                Ok(short) if f64::from(exact as f32) == exact => json!(short),
                _ => Value::Number(number),
            }
        }
        other => other,
    }
}

/// A whole model's dimensions.
#[derive(Debug, Clone)]
pub struct ModelSpec {
    /// Number of token ids.
    pub vocab: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// The norm before every layer's parts and before the logits.
    pub norm: NormKind,
    /// Added under the square root of these norms.
    pub norm_eps: f32,
    /// Whether the embedding is normed as well.
    pub embedding_norm: bool,
    /// Whether the output matrix is the embedding.
    pub tied: bool,
    /// The layers, first to last.
    pub layers: Vec<LayerSpec>,
}

/// Largest width, depth or count that is believed; what is larger is a corrupt file.
pub(crate) const LARGEST: usize = 1 << 24;
/// The same for the number of layers.
pub(crate) const DEEPEST: usize = 1 << 16;

/// A whole number in `value`, which is called `name`, that is larger than is believed.
fn too_large(name: &str, value: &Value) -> Option<(String, u64)> {
    match value {
        Value::Number(number) => {
            let large = number.as_u64().filter(|&n| n > LARGEST as u64);
            large.map(|n| (name.to_string(), n))
        }
        Value::Array(values) => values.iter().find_map(|value| too_large(name, value)),
        Value::Object(fields) => fields
            .iter()
            .find_map(|(name, value)| too_large(name, value)),
        _ => None,
    }
}

impl ModelSpec {
    /// Checks every dimension; `file` is named in the error.
    pub fn check(&self, file: &str) -> Result<()> {
        let within = |key: &str, value: usize, most: usize| {
            if (1..=most).contains(&value) {
                return Ok(());
            }
            Err(Error::Config {
                file: file.into(),
                key: key.into(),
                found: value.to_string(),
                expected: format!("a number from 1 to {most}"),
            })
        };
        let bound = |key: &str, value: usize| within(key, value, LARGEST);
        bound("vocab", self.vocab)?;
        bound("hidden", self.hidden)?;
        within("layers", self.layers.len(), DEEPEST)?;
        if !(self.norm_eps >= 0.0 && self.norm_eps < 1.0) {
            return Err(Error::Config {
                file: file.into(),
                key: "norm_eps".into(),
                found: self.norm_eps.to_string(),
                expected: "a small number, 0 or more".into(),
            });
        }
        for (i, layer) in self.layers.iter().enumerate() {
            if let Some(mlp) = layer.mlp {
                bound(&format!("layers[{i}].mlp.intermediate"), mlp.intermediate)?;
            }
            // Of numbers this small no product of two overflows, and no mixer multiplies more of them unchecked.
            if let Some((name, number)) = too_large("", &layer.mixer.to_json()) {
                return Err(Error::Config {
                    file: file.into(),
                    key: format!("layers[{i}] ({})", layer.mixer.kind()),
                    found: format!("{name} {number}"),
                    expected: format!("a number up to {LARGEST}"),
                });
            }
            layer
                .mixer
                .check(self.hidden)
                .map_err(|reason| Error::Config {
                    file: file.into(),
                    key: format!("layers[{i}] ({})", layer.mixer.kind()),
                    found: reason.found,
                    expected: reason.expected,
                })?;
            for weight in layer.mixer.weights(self.hidden) {
                let size = weight
                    .shape
                    .iter()
                    .try_fold(1usize, |n, &d| n.checked_mul(d));
                if size.is_none_or(|n| n == 0 || n > 1 << 40) {
                    return Err(Error::Config {
                        file: file.into(),
                        key: format!("layers[{i}] ({})", layer.mixer.kind()),
                        found: format!("{} of shape {:?}", weight.name, weight.shape),
                        expected: "dimensions that a tensor can have".into(),
                    });
                }
            }
        }
        Ok(())
    }

    /// Every tensor of the model by its full name, in the order of the file.
    pub fn weights(&self) -> Vec<WeightSpec> {
        let norm = |name: &str| {
            let mut parts = vec![format!("{name}.weight")];
            if self.norm == (NormKind::Layer { bias: true }) {
                parts.push(format!("{name}.bias"));
            }
            parts
                .into_iter()
                .map(|part| WeightSpec::full(&part, &[self.hidden]))
        };
        let mut all = vec![WeightSpec::matrix(
            "token_embd.weight",
            self.vocab,
            self.hidden,
        )];
        if self.embedding_norm {
            all.extend(norm("token_embd_norm"));
        }
        for (i, layer) in self.layers.iter().enumerate() {
            all.extend(norm(&format!("blk.{i}.attn_norm")));
            all.extend(
                layer
                    .mixer
                    .weights(self.hidden)
                    .into_iter()
                    .map(|w| WeightSpec {
                        name: format!("blk.{i}.mixer.{}", w.name),
                        ..w
                    }),
            );
            if let Some(mlp) = layer.mlp {
                all.extend(norm(&format!("blk.{i}.ffn_norm")));
                for name in ["ffn_gate", "ffn_up"] {
                    all.push(WeightSpec::matrix(
                        &format!("blk.{i}.{name}.weight"),
                        mlp.intermediate,
                        self.hidden,
                    ));
                }
                all.push(WeightSpec::matrix(
                    &format!("blk.{i}.ffn_down.weight"),
                    self.hidden,
                    mlp.intermediate,
                ));
            }
        }
        all.extend(norm("output_norm"));
        if !self.tied {
            all.push(WeightSpec::matrix("output.weight", self.vocab, self.hidden));
        }
        all
    }

    /// Bounds every plain attention layer to `window` keys (none: as it is) and a retained set; the number of layers
    /// that changed.
    pub fn retain(&mut self, window: Option<usize>, retained: Retained) -> usize {
        let mut changed = 0;
        for layer in &mut self.layers {
            if let Some(mixer) = layer.mixer.retaining(window, retained) {
                layer.mixer = mixer;
                changed += 1;
            }
        }
        changed
    }

    /// Number of parameters.
    pub fn parameters(&self) -> usize {
        self.weights().iter().map(WeightSpec::len).sum()
    }

    /// The description as JSON, as it stands in a GGUF file under `waterline.spec`.
    pub fn to_json(&self) -> Value {
        let layers: Vec<Value> = self.layers.iter().map(LayerSpec::to_json).collect();
        json!({
            "vocab": self.vocab,
            "hidden": self.hidden,
            "norm": self.norm,
            "norm_eps": in_short(json!(self.norm_eps)),
            "embedding_norm": self.embedding_norm,
            "tied": self.tied,
            "layers": layers,
        })
    }

    /// Reads the description back; `file` is named in errors.
    pub fn from_json(file: &str, value: &Value) -> Result<Self> {
        let config = crate::arch::Config::new(file, value.clone())?;
        // Files written before November 2026 say "blocks".
        let key = match config.object().contains_key("blocks") {
            true => "blocks",
            false => "layers",
        };
        let mut layers = Vec::new();
        for (i, layer) in config.array(key)?.iter().enumerate() {
            layers.push(LayerSpec::from_json(
                &format!("{file}: layers[{i}]"),
                layer,
            )?);
        }
        let spec = ModelSpec {
            vocab: config.usize("vocab")?,
            hidden: config.usize("hidden")?,
            norm: config.read_or("norm", NormKind::default())?,
            norm_eps: config.f32("norm_eps")?,
            embedding_norm: config.bool_or("embedding_norm", false)?,
            tied: config.bool("tied")?,
            layers,
        };
        spec.check(file)?;
        Ok(spec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_in_short_and_read_back_as_they_were() {
        let value = json!({ "eps": 1e-6f32, "list": [0.1f32, 3, -2.5f32, 0.1f64], "none": null });
        let short = r#"{"eps":1e-6,"list":[0.1,3,-2.5,0.1],"none":null}"#;
        assert_eq!(in_short(value).to_string(), short);
        let mut bits = 1u32;
        for _ in 0..100_000 {
            bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let x = f32::from_bits(bits);
            if x.is_finite() {
                let text = in_short(json!(x)).to_string();
                let read: f32 = serde_json::from_str(&text).unwrap();
                assert_eq!(read.to_bits(), bits, "{text}");
            }
        }
    }

    #[test]
    fn layers_are_read_under_their_former_name() {
        let mixer = mixers::Attention {
            heads: 1,
            kv_heads: 1,
            head_dim: 4,
            ..Default::default()
        };
        let spec = ModelSpec {
            vocab: 8,
            hidden: 4,
            norm: NormKind::Rms,
            norm_eps: 1e-6,
            embedding_norm: false,
            tied: true,
            layers: vec![LayerSpec {
                mixer: Arc::new(mixer),
                mlp: Some(MlpSpec { intermediate: 6 }),
            }],
        };
        let today = spec.to_json();
        let mut former = today.clone();
        former["blocks"] = former["layers"].take();
        former.as_object_mut().unwrap().remove("layers");
        let read = ModelSpec::from_json("a test", &former).unwrap();
        assert_eq!(read.to_json(), today);
    }
}
