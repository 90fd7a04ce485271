//! Falcon-H1: Mamba-2 in parallel with attention after one norm (llama.cpp `src/models/falcon-h1.cpp`;
//! `conversion/falcon_h1.py`). The model's multipliers are folded into its weights. The norm before the feed-forward
//! network has no `.weight`.

use std::sync::Arc;

use super::attention::{self, Pairs};
use super::feed_forward::dense;
use super::mamba::{mamba2_mixer, mamba2_names};
use super::names::as_stored;
use super::{Description, Family, Keys, layer, model};
use crate::error::Result;
use crate::mixers::{Mamba2, Mixer, Parallel, ParallelPart};

pub(super) const FAMILY: Family = Family {
    architectures: &["falcon-h1"],
    read,
};

fn read(keys: &Keys) -> Result<Description> {
    let prefix = format!("{}.", keys.architecture());
    let mut names = keys.gguf().metadata().iter().map(|(key, _)| key);
    if let Some(key) = names.find(|key| key.starts_with(&prefix) && key.contains("multiplier")) {
        return Err(keys.unsupported(format!(
            "{key}: multipliers stored apart from the weights by an early converter; convert the model again, which folds them into the weights"
        )));
    }
    let intermediate = keys.per_layer("feed_forward_length")?;
    let mut layers = Vec::new();
    let mut tables = Vec::new();
    for (i, intermediate) in intermediate.into_iter().enumerate() {
        let has = |name: &str| keys.has_tensor(&format!("blk.{i}.{name}"));
        let mamba = mamba2_mixer(keys, i)?;
        let mamba = Mamba2 {
            norm_groups: has("ssm_norm.weight").then_some(mamba.groups),
            ..mamba
        };
        let attention = attention::attention(keys, i)?;
        let mut names = as_stored(&[("ffn_norm.weight", "ffn_norm")]);
        let of_mamba = mamba2_names().into_iter();
        names.extend(of_mamba.map(|name| name.within("mixer.mamba2.")));
        let of_attention = attention::names(keys, i, &attention, Pairs::Halves).into_iter();
        names.extend(of_attention.map(|name| name.within("mixer.attention.")));
        let part = |mixer: Arc<dyn Mixer>| ParallelPart {
            mixer,
            input: 1.0,
            output: 1.0,
        };
        let mixer = Parallel {
            parts: vec![part(Arc::new(mamba)), part(Arc::new(attention))],
        };
        layers.push(layer(Arc::new(mixer), Some(dense(keys, i, intermediate))));
        tables.push(names);
    }
    Ok(Description::new(model(keys, layers)?, tables.into_iter()))
}
