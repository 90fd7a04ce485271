//! ARWKV: RWKV-7's time mixing in place of a Transformer's attention, with the Transformer's norms and feed-forward networks
//! (llama.cpp `src/models/arwkv7.cpp`). The gate and the norm of the output may be missing. As in RWKV-7, the first block's
//! `v0`, `v1` and `v2` are unused.

use std::sync::Arc;

use super::feed_forward::dense;
use super::rwkv7::{time_mix, time_mix_names};
use super::{Description, Family, Keys, layer, model};
use crate::error::Result;
use crate::mixers::{Mixer, Rwkv7};

pub(super) const FAMILY: Family = Family {
    architectures: &["arwkv7"],
    read,
};

fn read(keys: &Keys) -> Result<Description> {
    // Only time mixing reads the previous token.
    const SHIFTS: &str = "token_shift_count";
    match keys.usize_or(SHIFTS, 1)? {
        1 => (),
        other => return Err(keys.wrong(SHIFTS, other, "1")),
    }
    let gate_rank = if keys.has_tensor("blk.0.time_mix_g1.weight") {
        Some(keys.usize("attention.gate_lora_rank")?)
    } else {
        None
    };
    let time_mix = time_mix(keys, gate_rank, keys.has_tensor("blk.0.time_mix_ln.weight"))?;
    let widths = keys.per_layer("feed_forward_length")?;
    let layers = widths.into_iter().enumerate().map(|(block, width)| {
        let time_mix: Arc<dyn Mixer> = Arc::new(Rwkv7 {
            first: block == 0,
            ..time_mix.clone()
        });
        layer(time_mix, Some(dense(keys, block, width)))
    });
    let layers: Vec<_> = layers.collect();
    let names = vec![time_mix_names(); layers.len()];
    Ok(Description::new(model(keys, layers)?, names.into_iter()))
}
