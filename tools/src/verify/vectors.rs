//! Recorded final states and pooled vectors of a case.

use std::sync::Arc;

use waterline::{EmbedOptions, Model, Pooling};
use waterline_quant::safetensors;

use crate::error::{Error, Result};

/// The recorded arrays and what each row is: a final state, or the unit vector of the tokens up to that row.
const ARRAYS: [(&str, Option<Pooling>); 4] = [
    ("final", None),
    ("embed_mean", Some(Pooling::Mean)),
    ("embed_cls", Some(Pooling::Cls)),
    ("embed_last", Some(Pooling::Last)),
];

/// A recorded array of vectors, from the first token on.
pub(super) struct Vectors {
    pub name: &'static str,
    pooling: Option<Pooling>,
    /// `[rows, hidden]`.
    pub values: Vec<f32>,
}

impl Vectors {
    /// Reads the arrays of vectors of a case with `tokens` tokens.
    pub fn read(case: &safetensors::Checkpoint, tokens: usize, hidden: usize) -> Result<Vec<Self>> {
        let mut all = Vec::new();
        for (name, pooling) in ARRAYS {
            if !case.contains(name) {
                continue;
            }
            let tensor = case.tensor(name)?;
            match tensor.shape[..] {
                [rows, width] if width == hidden && (1..=tokens).contains(&rows) => {}
                _ => {
                    let found = format!("{name}: shape {:?}", tensor.shape);
                    let expected = format!("at most [{tokens}, {hidden}]");
                    return Err(Error::input(
                        case.name(),
                        format!("{found}, expected {expected}"),
                    ));
                }
            }
            all.push(Vectors {
                name,
                pooling,
                values: tensor.to_f32(),
            });
        }
        Ok(all)
    }

    /// Computes the same rows from final states `[tokens, hidden]`.
    pub fn compute(&self, model: &Arc<Model>, states: &[f32]) -> Result<Vec<f32>> {
        let Some(pooling) = self.pooling else {
            return Ok(states[..self.values.len()].to_vec());
        };
        let mut options = EmbedOptions::default();
        (options.pooling, options.normalize) = (Some(pooling), Some(true));
        let mut pooler = model.pooler(&options)?;
        let hidden = model.spec().hidden;
        let mut rows = Vec::with_capacity(self.values.len());
        for state in states.chunks_exact(hidden).take(self.values.len() / hidden) {
            pooler.add(state);
            rows.extend(pooler.vector());
        }
        Ok(rows)
    }
}
