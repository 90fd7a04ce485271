//! The description of a model: checked dimensions, from which all other sizes follow.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde_json::{Map, Value, json};
use waterline_quant::ask_room;

use super::mtp::MtpSpec;
use super::per_layer;
use crate::config::{Config, DEEPEST, LARGEST, changed, in_short};
use crate::error::{Error, Result};
use crate::feed_forward::{FeedForward, MlpSpec};
use crate::lowering::{NormKind, Sublayer};
use crate::mixers::{self, Mixer, Retained};
use crate::state::{StateOptions, StatePlan, StateTensor};
use crate::weights::{OF_MODEL, WeightSpec, full_name};

/// Bytes to reserve for the table of a layer's state tensors.
const OF_LAYER: usize = 1 << 12;

/// One layer: a token mixer, then a feed-forward network, each with its norms and added to the residual stream. One of
/// the two may be missing.
#[derive(Debug, Clone, Default)]
pub struct LayerSpec {
    /// The token mixer.
    pub(crate) mixer: Option<Arc<dyn Mixer>>,
    /// The feed-forward network. A network with a state is a mixer in a separate layer.
    pub(crate) ffn: Option<FeedForward>,
    /// Norms and multipliers of the mixer.
    pub(crate) mixer_sublayer: Sublayer,
    /// Norms and multipliers of the feed-forward network.
    pub(crate) ffn_sublayer: Sublayer,
    /// Whether a learned number multiplies the residual stream after the layer.
    pub(crate) output_scale: bool,
}

impl LayerSpec {
    /// A layer with a mixer and an optional network, each after a norm.
    pub(crate) fn new(mixer: Arc<dyn Mixer>, mlp: Option<MlpSpec>) -> Self {
        LayerSpec {
            mixer: Some(mixer),
            ffn: mlp.map(FeedForward::Dense),
            ..LayerSpec::default()
        }
    }

    /// The mixer's name, or `none`.
    pub fn kind(&self) -> &'static str {
        self.mixer.as_ref().map_or("none", |mixer| mixer.kind())
    }

    /// The state tensors of the layer, which are its mixer's.
    #[doc(hidden)]
    pub fn state(&self) -> Vec<StateTensor> {
        self.mixer
            .as_ref()
            .map_or_else(Vec::new, |mixer| mixer.state())
    }

    /// The layer as JSON: the mixer's name and hyperparameters, the feed-forward network, and norms and multipliers that are not default.
    pub fn to_json(&self) -> Value {
        let mut object = Map::new();
        if let Some(mixer) = &self.mixer {
            object.insert("mixer".into(), json!(mixer.kind()));
            if let Value::Object(numbers) = in_short(mixer.to_json()) {
                object.extend(numbers);
            }
        }
        if let Some(ffn) = &self.ffn {
            ffn.put(&mut object);
        }
        if self.output_scale {
            object.insert(OUTPUT_SCALE_KEY.into(), json!(true));
        }
        for (key, sublayer) in [
            (MIXER_SUBLAYER, self.mixer_sublayer),
            (FFN_SUBLAYER, self.ffn_sublayer),
        ] {
            let unusual = changed(json!(sublayer), &json!(Sublayer::default()));
            if !unusual.is_empty() {
                object.insert(key.into(), in_short(Value::Object(unusual)));
            }
        }
        Value::Object(object)
    }

    /// Reads a layer from JSON; `file` is named in errors.
    pub(crate) fn from_json(file: &str, layer: &Value) -> Result<Self> {
        let config = Config::new(file, layer.clone())?;
        let mut parameters = config.object().clone();
        let mixer_sublayer = config.read_or(MIXER_SUBLAYER, Sublayer::default())?;
        let ffn_sublayer = config.read_or(FFN_SUBLAYER, Sublayer::default())?;
        let ffn = FeedForward::take(file, &mut parameters)?;
        let output_scale = config.bool_or(OUTPUT_SCALE_KEY, false)?;
        for key in ["mixer", MIXER_SUBLAYER, FFN_SUBLAYER, OUTPUT_SCALE_KEY] {
            parameters.remove(key);
        }
        // A layer without a mixer consists of its network alone.
        let mixer = match (config.optional_text("mixer")?, &ffn) {
            (None, Some(_)) if parameters.is_empty() => None,
            _ => Some(mixers::read(
                file,
                config.string("mixer")?,
                Value::Object(parameters),
            )?),
        };
        Ok(LayerSpec {
            mixer,
            ffn,
            mixer_sublayer,
            ffn_sublayer,
            output_scale,
        })
    }

    /// Checks layer number `index` of a model of width `hidden`; `file` is named in the error.
    pub(super) fn check(&self, file: &str, index: usize, hidden: usize) -> Result<()> {
        let wrong = |part: &str, found: String, expected: &str| Error::Config {
            file: file.into(),
            key: format!("layers[{index}]{part}"),
            found,
            expected: expected.into(),
        };
        if self.mixer.is_none() && self.ffn.is_none() {
            let expected = "a mixer, a feed-forward network or both";
            return Err(wrong("", "neither".into(), expected));
        }
        for (key, sublayer) in [
            (MIXER_SUBLAYER, self.mixer_sublayer),
            (FFN_SUBLAYER, self.ffn_sublayer),
        ] {
            if !sublayer.multiplier.is_finite() {
                let found = format!("multiplier {}", sublayer.multiplier);
                return Err(wrong(&format!(".{key}"), found, "a finite number"));
            }
            if let Some(eps) = sublayer
                .post_norm_eps
                .filter(|eps| eps.is_nan() || *eps < 0.0)
            {
                let found = format!("post_norm_eps {eps}");
                return Err(wrong(&format!(".{key}"), found, "a number of 0 or more"));
            }
            let fits = |&x: &f32| x.is_finite() && x > 0.0 && sublayer.pre_norm;
            if let Some(x) = sublayer.normed_residual.filter(|x| !fits(x)) {
                let expected = "a positive number, and a norm before the sublayer";
                let found = format!("normed_residual {x}");
                return Err(wrong(&format!(".{key}"), found, expected));
            }
        }
        if let Some(ffn) = &self.ffn {
            let checked = ffn.check();
            let part = format!(" ({})", ffn.kind());
            checked.map_err(|reason| wrong(&part, reason.found, &reason.expected))?;
        }
        let Some(mixer) = &self.mixer else {
            return Ok(());
        };
        let part = format!(" ({})", mixer.kind());
        // The product of two numbers this small does not overflow, and no mixer multiplies more of them without a
        // check.
        if let Some((name, number)) = too_large("", &mixer.to_json()) {
            let expected = format!("a number up to {LARGEST}");
            return Err(wrong(&part, format!("{name} {number}"), &expected));
        }
        let checked = mixer.check(hidden);
        checked.map_err(|reason| wrong(&part, reason.found, &reason.expected))?;
        for weight in mixer.weights(hidden) {
            let size = weight
                .shape
                .iter()
                .try_fold(1usize, |n, &d| n.checked_mul(d));
            if size.is_none_or(|n| n == 0 || n > 1 << 40) {
                let found = format!("{} of shape {:?}", weight.name, weight.shape);
                return Err(wrong(
                    &part,
                    found,
                    "dimensions whose product is from 1 to 2^40",
                ));
            }
        }
        Ok(())
    }
}

/// Keys of the norms and multipliers around a mixer and a feed-forward network.
const MIXER_SUBLAYER: &str = "mixer_sublayer";
const FFN_SUBLAYER: &str = "ffn_sublayer";
/// Key of the number after a layer, and its tensor.
const OUTPUT_SCALE_KEY: &str = "output_scale";
pub(super) const OUTPUT_SCALE: &str = "layer_output_scale.weight";

/// A model's dimensions.
#[derive(Debug, Clone)]
pub struct ModelSpec {
    /// Number of token ids.
    pub vocab: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// The kind of norm before every layer's parts and before the logits.
    pub(crate) norm: NormKind,
    /// Epsilon of these norms, added under the square root.
    pub(crate) norm_eps: f32,
    /// Whether the embedding is normalized as well.
    pub(crate) embedding_norm: bool,
    /// Multiplies the embedding's rows.
    pub(crate) embedding_multiplier: f32,
    /// Multiplies the logits.
    pub logits_multiplier: f32,
    /// Bounds the logits: `cap tanh(logits / cap)`; `None` for no bound.
    pub(crate) logit_softcap: Option<f32>,
    /// Width of a further input of each layer; `None` for no such input.
    pub(crate) per_layer_inputs: Option<usize>,
    /// Whether the output matrix is the embedding.
    pub tied: bool,
    /// The layers, first to last.
    pub layers: Vec<LayerSpec>,
    /// The block that predicts the token after the next one; `None` if the model has none or it was not read.
    pub(crate) mtp: Option<MtpSpec>,
}

impl Default for ModelSpec {
    /// A model of size zero without multipliers.
    fn default() -> Self {
        ModelSpec {
            vocab: 0,
            hidden: 0,
            norm: NormKind::Rms,
            norm_eps: 1e-6,
            embedding_norm: false,
            embedding_multiplier: 1.0,
            logits_multiplier: 1.0,
            logit_softcap: None,
            per_layer_inputs: None,
            tied: false,
            layers: Vec::new(),
            mtp: None,
        }
    }
}

/// Finds an integer above [`LARGEST`] in `value`, which is called `name`.
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
    /// Whether layers attend to the keys and values of earlier layers, which the last of these layers caches.
    pub fn shares_keys(&self) -> bool {
        let mut mixers = self.layers.iter().filter_map(|layer| layer.mixer.as_ref());
        mixers.any(|mixer| mixer.shares().is_some())
    }

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
        let multipliers = [self.embedding_multiplier, self.logits_multiplier];
        let cap = self.logit_softcap.unwrap_or(1.0);
        if !(multipliers.iter().all(|x| x.is_finite()) && cap.is_finite() && cap > 0.0) {
            return Err(Error::Config {
                file: file.into(),
                key: "embedding_multiplier, logits_multiplier, logit_softcap".into(),
                found: format!("{multipliers:?}, {cap}"),
                expected: "finite multipliers, and a positive softcap".into(),
            });
        }
        let mut layers = self.layers.iter().enumerate();
        layers.try_for_each(|(i, layer)| layer.check(file, i, self.hidden))?;
        let width = self.per_layer_inputs.unwrap_or(1);
        within("per_layer_inputs", width, LARGEST / self.layers.len())?;
        self.check_shared(file)?;
        if let Some(mtp) = &self.mtp {
            mtp.check(file, self)?;
        }
        self.check_common(file)
    }

    /// Checks that layers which read the keys and values of another layer find them there.
    fn check_shared(&self, file: &str) -> Result<()> {
        for (i, layer) in self.layers.iter().enumerate() {
            let Some(shared) = layer.mixer.as_ref().and_then(|mixer| mixer.shares()) else {
                continue;
            };
            let owner = self.layers[..i].get(shared.layer);
            let own = |owner: &LayerSpec| {
                let shares = owner.mixer.as_ref().and_then(|mixer| mixer.shares());
                shares.is_none() && owner.state() == shared.state
            };
            if !owner.is_some_and(own) {
                return Err(Error::Config {
                    file: file.into(),
                    key: format!("layers[{i}]"),
                    found: format!("keys and values of layer {}", shared.layer),
                    expected:
                        "an earlier layer with its own, of the same shape, window and positions"
                            .into(),
                });
            }
        }
        Ok(())
    }

    /// Checks that a tensor shared by layers has the same shape in all of them.
    fn check_common(&self, file: &str) -> Result<()> {
        let mut shapes: HashMap<String, Vec<usize>> = HashMap::new();
        for (i, layer) in self.layers.iter().enumerate() {
            let mixer = layer.mixer.iter();
            for weight in mixer.flat_map(|mixer| mixer.weights(self.hidden)) {
                if !weight.name.starts_with(OF_MODEL) {
                    continue;
                }
                let first = shapes
                    .entry(weight.name.clone())
                    .or_insert_with(|| weight.shape.clone());
                if *first != weight.shape {
                    return Err(Error::Config {
                        file: file.into(),
                        key: format!("layers[{i}]"),
                        found: format!("{} of shape {:?}", weight.name, weight.shape),
                        expected: format!("{first:?}, as in the earlier layers"),
                    });
                }
            }
        }
        Ok(())
    }

    /// Every tensor of the model under its full name, in the order of the file.
    pub fn weights(&self) -> Vec<WeightSpec> {
        let mut all = vec![WeightSpec::matrix(
            "token_embd.weight",
            self.vocab,
            self.hidden,
        )];
        if self.embedding_norm {
            all.extend(self.norm_weights("token_embd_norm"));
        }
        if let Some(width) = self.per_layer_inputs {
            all.extend(per_layer::weights(self, width));
        }
        let mut common = HashSet::new();
        for (i, layer) in self.layers.iter().enumerate() {
            let mut weights = self.layer_weights(i, layer);
            if let Some(width) = self.per_layer_inputs {
                weights.extend(per_layer::layer_weights(self, i, width));
            }
            if layer.output_scale {
                let name = format!("blk.{i}.{OUTPUT_SCALE}");
                weights.push(WeightSpec::full(&name, &[1]));
            }
            let is_new = |weight: &WeightSpec| {
                !weight.name.starts_with(OF_MODEL) || common.insert(weight.name.clone())
            };
            all.extend(weights.into_iter().filter(is_new));
        }
        all.extend(self.norm_weights("output_norm"));
        if !self.tied {
            all.push(WeightSpec::matrix("output.weight", self.vocab, self.hidden));
        }
        if let Some(mtp) = &self.mtp {
            all.extend(self.layer_weights(self.layers.len(), &mtp.layer));
            all.extend(mtp.weights(self));
        }
        all
    }

    /// The tensors of a norm of the residual stream.
    pub(super) fn norm_weights(&self, name: &str) -> Vec<WeightSpec> {
        let full = |part| WeightSpec::full(&format!("{name}.{part}"), &[self.hidden]);
        match self.norm {
            NormKind::Layer { bias: true } => vec![full("weight"), full("bias")],
            _ => vec![full("weight")],
        }
    }

    /// The tensors of layer number `i`.
    fn layer_weights(&self, i: usize, layer: &LayerSpec) -> Vec<WeightSpec> {
        let mut all = Vec::new();
        let mixer = layer.mixer.as_ref().map(|mixer| {
            let weights = mixer.weights(self.hidden);
            (true, "mixer.", layer.mixer_sublayer, weights)
        });
        let ffn = layer.ffn.as_ref().map(|ffn| {
            let weights = ffn.weights(self.hidden);
            (false, "", layer.ffn_sublayer, weights)
        });
        for (of_mixer, scope, sublayer, weights) in mixer.into_iter().chain(ffn) {
            let [pre, post] = Sublayer::norms(of_mixer);
            if sublayer.pre_norm {
                all.extend(self.norm_weights(&format!("blk.{i}.{pre}")));
            }
            let scope = format!("blk.{i}.{scope}");
            all.extend(weights.into_iter().map(|weight| WeightSpec {
                name: full_name(&scope, &weight.name),
                ..weight
            }));
            if sublayer.post_norm {
                all.extend(self.norm_weights(&format!("blk.{i}.{post}")));
            }
        }
        all
    }

    /// The full name of a part of the block that predicts the token after the next one.
    pub(super) fn mtp_name(&self, part: &str) -> String {
        format!("blk.{}.nextn.{part}", self.layers.len())
    }

    /// Bounds every plain attention layer to `window` keys (`None` keeps its window) and adds a retained set. Returns
    /// the number of layers that changed.
    pub fn retain(&mut self, window: Option<usize>, retained: Retained) -> usize {
        let mut changed = 0;
        let mtp = self.mtp.as_mut().map(|mtp| &mut mtp.layer);
        for layer in self.layers.iter_mut().chain(mtp) {
            let bounded = |mixer: &Arc<dyn Mixer>| mixer.retaining(window, retained);
            if let Some(mixer) = layer.mixer.as_ref().and_then(bounded) {
                layer.mixer = Some(mixer);
                changed += 1;
            }
        }
        changed
    }

    /// Epsilon of the norms before every layer's parts.
    #[doc(hidden)]
    pub fn norm_eps(&self) -> f32 {
        self.norm_eps
    }

    /// The plan of the state of a session on this model.
    pub fn plan(&self, options: &StateOptions) -> Result<StatePlan> {
        ask_room(self.layers.len().saturating_mul(OF_LAYER))?;
        StatePlan::new(self.vocab, self.states(), options)
    }

    /// The state tensors of every layer, and of the MTP block if there is one.
    pub fn states(&self) -> impl Iterator<Item = Vec<StateTensor>> {
        let layers = self.layers.iter().map(LayerSpec::state);
        let mtp = self.mtp.iter().map(|mtp| mtp.state(self.hidden));
        layers.chain(mtp)
    }

    /// Removes the feed-forward networks, to measure the mixers alone.
    pub fn remove_feed_forward(&mut self) {
        self.layers.iter_mut().for_each(|layer| layer.ffn = None);
    }

    /// Number of parameters.
    pub fn parameters(&self) -> usize {
        self.weights().iter().map(WeightSpec::len).sum()
    }

    /// The description as JSON, as in a GGUF file under `waterline.spec`.
    pub fn to_json(&self) -> Value {
        let layers: Vec<Value> = self.layers.iter().map(LayerSpec::to_json).collect();
        let mut model = json!({
            "vocab": self.vocab,
            "hidden": self.hidden,
            "norm": self.norm,
            "norm_eps": in_short(json!(self.norm_eps)),
            "embedding_norm": self.embedding_norm,
            "tied": self.tied,
            "layers": layers,
        });
        let usual = ModelSpec::default();
        if self.embedding_multiplier != usual.embedding_multiplier {
            model["embedding_multiplier"] = in_short(json!(self.embedding_multiplier));
        }
        if self.logits_multiplier != usual.logits_multiplier {
            model["logits_multiplier"] = in_short(json!(self.logits_multiplier));
        }
        if let Some(cap) = self.logit_softcap {
            model["logit_softcap"] = in_short(json!(cap));
        }
        if let Some(width) = self.per_layer_inputs {
            model["per_layer_inputs"] = json!(width);
        }
        if let Some(mtp) = &self.mtp {
            model["mtp"] = mtp.to_json();
        }
        model
    }

    /// Reads the description from JSON; `file` is named in errors.
    pub fn from_json(file: &str, value: &Value) -> Result<Self> {
        let config = Config::new(file, value.clone())?;
        // Files written before November 2026 use the key "blocks".
        let key = if config.object().contains_key("blocks") {
            "blocks"
        } else {
            "layers"
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
            embedding_multiplier: config.f32_or("embedding_multiplier", 1.0)?,
            logits_multiplier: config.f32_or("logits_multiplier", 1.0)?,
            logit_softcap: config.optional_f32("logit_softcap")?,
            per_layer_inputs: config.optional_usize("per_layer_inputs")?,
            tied: config.bool("tied")?,
            layers,
            mtp: match config.child("mtp")? {
                Some(mtp) => Some(MtpSpec::from_json(file, &mtp)?),
                None => None,
            },
        };
        spec.check(file)?;
        Ok(spec)
    }
}

#[cfg(test)]
#[path = "spec_tests.rs"]
mod tests;
