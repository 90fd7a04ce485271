//! Token mixers, one per file, and the list of all mixers.
//!
//! A mixer consists of its equations (in the module comment), its hyperparameters, a table of weights, a table of state
//! tensors, and its lowering to ops. Outside this folder, only the frontends in `arch`, which read a checkpoint's
//! configuration, name a mixer.

mod abc;
mod attention;
mod delta_net;
mod gated_conv;
mod gated_deltanet;
mod gated_deltanet2;
mod gla;
mod gsa;
mod hax;
mod head_gates;
mod hgrn2;
mod kda;
mod latent_attention;
mod lightning_attention;
mod linear_attention;
mod lte;
mod mamba;
mod mamba2;
mod mamba3;
mod mom;
mod native_sparse_attention;
mod parallel;
mod raven;
mod retnet;
mod rg_lru;
mod rwkv6;
mod rwkv7;
mod rwkv_channel_mix;
mod shared_block;
mod short_conv;
mod simple_gla;
mod sse;
mod sse_swa;
mod token_shift;

use std::fmt::Debug;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

pub use abc::Abc;
pub use attention::{Attention, Retained, RetainedPolicy, RopeScaling};
pub use delta_net::{DeltaNet, KeyNorm};
pub use gated_conv::GatedConv;
pub use gated_deltanet::GatedDeltaNet;
pub use gated_deltanet2::GatedDeltaNet2;
pub use gla::Gla;
pub use gsa::Gsa;
pub use hax::{Hax, KeySource};
pub use head_gates::HeadGateInput;
pub use hgrn2::Hgrn2;
pub use kda::Kda;
pub use latent_attention::LatentAttention;
pub use lightning_attention::{LightningAttention, Unmapped};
pub use linear_attention::LinearAttention;
pub use lte::{Lte, RouterScope, ScoreMap};
pub use mamba::Mamba;
pub use mamba2::Mamba2;
pub use mamba3::Mamba3;
pub use mom::{GlaDecay, Mom};
pub use native_sparse_attention::NativeSparseAttention;
pub use parallel::{Parallel, ParallelPart};
pub use raven::Raven;
pub use retnet::RetNet;
pub use rg_lru::RgLru;
pub use rwkv_channel_mix::RwkvChannelMix;
pub use rwkv6::Rwkv6;
pub use rwkv7::Rwkv7;
pub use shared_block::{SharedBlock, SharedBlockSpec};
pub use simple_gla::SimpleGla;
pub use sse::{HeadMap, Sse, StateUpdate};
pub use sse_swa::SseSwa;

use crate::error::{Error, Result};
use crate::functions::{Norm, OutputOp};
use crate::lowering::Lowering;
use crate::state::StateTensor;
use crate::weights::WeightSpec;

/// A token mixer with its hyperparameters.
pub trait Mixer: Debug + Send + Sync {
    /// The mixer's name in files.
    fn kind(&self) -> &'static str;

    /// The hyperparameters, as stored in files.
    fn to_json(&self) -> Value;

    /// Checks the hyperparameters against each other and the width `hidden` of the residual stream.
    fn check(&self, hidden: usize) -> Result<(), Mismatch>;

    /// The weights, named relative to the layer.
    fn weights(&self, hidden: usize) -> Vec<WeightSpec>;

    /// The state tensors, in the order of their indices in [`Mixer::lower`]. All-zero bytes are the empty state.
    fn state(&self) -> Vec<StateTensor>;

    /// Returns the mixer with its attention bounded to `window` keys (`None` keeps the current window) and a retained
    /// set of the tokens that leave the window. Returns `None` for a mixer without plain attention.
    fn retaining(&self, _window: Option<usize>, _retained: Retained) -> Option<Arc<dyn Mixer>> {
        None
    }

    /// The earlier layer whose keys and values the mixer reads; `None` for most mixers.
    fn shares(&self) -> Option<Shared> {
        None
    }

    /// Whether the mixer reads the token's embedding in addition to the residual stream.
    fn reads_embedding(&self) -> bool {
        false
    }

    /// A note for users about differences from the released code; `None` for most mixers.
    fn note(&self) -> Option<String> {
        None
    }

    /// Lowers the mixer to ops, from the layer's input to the sum into the residual stream.
    fn lower(&self, layer: &mut Lowering) -> Result<()>;
}

/// Keys and values that a mixer reads in an earlier layer.
#[derive(Debug)]
pub struct Shared {
    /// Number of that layer.
    pub layer: usize,
    /// The state tensors that it must have.
    pub state: Vec<StateTensor>,
}

/// Hyperparameters that do not fit together.
#[derive(Debug)]
pub struct Mismatch {
    /// The value in the file.
    pub found: String,
    /// A value that fits.
    pub expected: String,
}

impl Mismatch {
    /// Fails with the given found and expected values unless `holds`.
    pub fn unless(
        holds: bool,
        found: impl FnOnce() -> String,
        expected: &str,
    ) -> Result<(), Mismatch> {
        if holds {
            Ok(())
        } else {
            Err(Mismatch {
                found: found(),
                expected: expected.into(),
            })
        }
    }

    /// Fails unless all `sizes` are positive; `expected` names them.
    fn unless_positive(sizes: &[usize], expected: &str) -> Result<(), Mismatch> {
        let found = || format!("{sizes:?}");
        Self::unless(sizes.iter().all(|&n| n > 0), found, expected)
    }

    /// Fails unless the base of rotary positions, if there is one, is positive and finite.
    fn unless_base(theta: Option<f32>) -> Result<(), Mismatch> {
        Self::unless(
            theta.is_none_or(|theta| theta.is_finite() && theta > 0.0),
            || format!("rope_theta {}", theta.unwrap_or_default()),
            "a positive, finite base of the rotary positions",
        )
    }

    /// Fails unless `many`, a number of `names`, is a multiple of `few`, a number of `name`s.
    fn unless_shared(many: usize, names: &str, few: usize, name: &str) -> Result<(), Mismatch> {
        let found = || format!("{many} {names} for {few} {name}s");
        let expected = format!("a whole number of {names} for each {name}");
        Self::unless(many.is_multiple_of(few), found, &expected)
    }
}

/// The norm of a mixer's output with the gains `o_norm.weight`.
fn output_norm(layer: &Lowering, eps: f32) -> Result<OutputOp> {
    let weight = layer.vector("o_norm.weight")?;
    Ok(OutputOp::Norm(Norm::rms(weight, eps)))
}

/// Takes an object, because [`Value`] would accept a list too, which doubles the code for each mixer.
type Read = fn(Map<String, Value>) -> Result<Arc<dyn Mixer>, serde_json::Error>;

/// Every mixer: its name in files, and the function that reads its hyperparameters.
const MIXERS: &[(&str, Read)] = &[
    (abc::KIND, read_as::<Abc>),
    (attention::KIND, read_as::<Attention>),
    (delta_net::KIND, read_as::<DeltaNet>),
    (gated_conv::KIND, read_as::<GatedConv>),
    (gated_deltanet::KIND, read_as::<GatedDeltaNet>),
    (gated_deltanet2::KIND, read_as::<GatedDeltaNet2>),
    (gla::KIND, read_as::<Gla>),
    (gsa::KIND, read_as::<Gsa>),
    (hgrn2::KIND, read_as::<Hgrn2>),
    (kda::KIND, read_as::<Kda>),
    (lightning_attention::KIND, read_as::<LightningAttention>),
    (latent_attention::KIND, read_as::<LatentAttention>),
    (lte::KIND, read_as::<Lte>),
    (
        native_sparse_attention::KIND,
        read_as::<NativeSparseAttention>,
    ),
    (mamba::KIND, read_as::<Mamba>),
    (mamba2::KIND, read_as::<Mamba2>),
    (mamba3::KIND, read_as::<Mamba3>),
    (mom::KIND, read_as::<Mom>),
    (parallel::KIND, read_as::<Parallel>),
    (raven::KIND, read_as::<Raven>),
    (retnet::KIND, read_as::<RetNet>),
    (rg_lru::KIND, read_as::<RgLru>),
    (rwkv_channel_mix::KIND, read_as::<RwkvChannelMix>),
    (rwkv6::KIND, read_as::<Rwkv6>),
    (rwkv7::KIND, read_as::<Rwkv7>),
    (shared_block::KIND, read_as::<SharedBlock>),
    (simple_gla::KIND, read_as::<SimpleGla>),
    (sse::KIND, read_as::<Sse>),
    (sse_swa::KIND, read_as::<SseSwa>),
];

fn read_as<M: Mixer + DeserializeOwned + 'static>(
    hyperparameters: Map<String, Value>,
) -> Result<Arc<dyn Mixer>, serde_json::Error> {
    Ok(Arc::new(M::deserialize(hyperparameters)?))
}

/// Reads the mixer called `kind` from its hyperparameters; `file` is named in errors.
pub fn read(file: &str, kind: &str, hyperparameters: Value) -> Result<Arc<dyn Mixer>> {
    let Some((_, read)) = MIXERS.iter().find(|(name, _)| *name == kind) else {
        let known: Vec<&str> = MIXERS.iter().map(|(name, _)| *name).collect();
        return Err(Error::Config {
            file: file.into(),
            key: "mixer".into(),
            found: format!("{kind:?}"),
            expected: format!("one of {}", known.join(", ")),
        });
    };
    let wrong = |found: String| Error::Config {
        file: file.into(),
        key: kind.into(),
        found,
        expected: "the hyperparameters of this mixer".into(),
    };
    match hyperparameters {
        Value::Object(fields) => read(fields).map_err(|e| wrong(e.to_string())),
        other => Err(wrong(other.to_string())),
    }
}
