//! Mixes of each token with the previous one, shared by RWKV-7's mixer and the channel mixer.

use crate::error::Result;
use crate::lowering::Lowering;
use crate::operands::View;
use crate::ops::TokenShift;

/// Normalizes the layer's input and mixes each token with the previous one, once for each vector in `names`. The
/// mixer's state tensor `tensor` holds the last token.
pub(super) fn token_shift(
    layer: &mut Lowering,
    names: &[&str],
    tensor: usize,
) -> Result<Vec<View>> {
    let hidden = layer.hidden();
    let out = layer.buffer(names.len() * hidden);
    let mixes = names.iter().map(|name| layer.vector(name));
    let op = TokenShift {
        norm: layer.input_norm(),
        mixes: mixes.collect::<Result<_>>()?,
        state: layer.state_tensor(tensor),
        out,
    };
    layer.push(op);
    let view = |i| View {
        start: i * hidden,
        width: hidden,
        ..out
    };
    Ok((0..names.len()).map(view).collect())
}
