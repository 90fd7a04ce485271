//! Linear attention layers of flash-linear-attention: maps its keys to the mixers' hyperparameters.

use waterline_quant::{Tensor, safetensors};

use super::fla::{scaled, taps};
use super::{Config, tensors};
use crate::error::{Error, Result};
use crate::functions::Activation;
use crate::mixers::{
    DeltaNet, GatedDeltaNet2, Gla, HeadGateInput, Hgrn2, Kda, KeyNorm, LinearAttention, RetNet,
    SimpleGla,
};
use crate::weights::WeightSpec;

const ACTIVATIONS: &[(&str, Activation)] = &[
    ("silu", Activation::Silu),
    ("swish", Activation::Silu),
    ("sigmoid", Activation::Sigmoid),
    ("logsigmoid", Activation::LogSigmoid),
    ("relu", Activation::Relu),
    ("sqrelu", Activation::SquaredRelu),
    ("gelu", Activation::Gelu),
];

/// The input of softmax linear attention's gates, if the model has them.
pub(super) fn head_gates(config: &Config) -> Result<Option<HeadGateInput>> {
    let softmax = config.string("model_type")?.starts_with("softmax_");
    if !config.bool_or("sla", softmax)? {
        return Ok(None);
    }
    let known = [
        ("hidden", HeadGateInput::Hidden),
        ("qk", HeadGateInput::Projections),
        ("query_key", HeadGateInput::Projections),
        // One vector per head, for the head's own query or key; as a matrix over all heads, it is block-diagonal.
        ("head", HeadGateInput::Projections),
    ];
    config
        .one_of("sla_gate_input", HeadGateInput::Hidden, &known)
        .map(Some)
}

/// Whether the read gate follows the output norm, which otherwise cancels all of it but the part in the norm's epsilon.
pub(super) fn gate_after_norm(config: &Config, gates: Option<HeadGateInput>) -> Result<bool> {
    Ok(gates.is_some() && config.bool_or("sla_gate_after_norm", false)?)
}

fn linear_attention(
    config: &Config,
    [expand_k, expand_v]: [f32; 2],
    heads: usize,
) -> Result<LinearAttention> {
    let hidden = config.usize("hidden_size")?;
    let heads = config.usize_or("num_heads", heads)?;
    let per_head = |key: &str, default: f32| {
        let width = scaled(config, hidden, key, default)?;
        if heads == 0 || !width.is_multiple_of(heads) {
            let expected = format!("a divisor of the width {width} that {key} makes");
            return Err(config.wrong("num_heads", &expected));
        }
        Ok(width / heads)
    };
    let feature_map = match config.optional_text("feature_map")? {
        Some(_) => Some(config.one_of("feature_map", Activation::Relu, ACTIVATIONS)?),
        None => None,
    };
    Ok(LinearAttention {
        heads,
        kv_heads: config.usize_or("num_kv_heads", heads)?,
        head_dim: per_head("expand_k", expand_k)?,
        value_dim: per_head("expand_v", expand_v)?,
        feature_map,
        conv: None,
        gate: config.bool_or("use_output_gate", true)?,
        head_gates: head_gates(config)?,
        read_gate_after_norm: gate_after_norm(config, head_gates(config)?)?,
        norm_eps: config.f32_or("norm_eps", 1e-6)?,
    })
}

pub(super) fn gla(config: &Config) -> Result<Gla> {
    Ok(Gla {
        linear: LinearAttention {
            conv: taps(config, false)?,
            ..linear_attention(config, [0.5, 1.0], 4)?
        },
        gate_rank: 16,
        gate_normalizer: 16.0,
        gate_min: config.optional_f32("clamp_min")?,
        written: config.optional_usize("row_topk")?,
    })
}

/// The library has this layer but no model of it; the keys are those of `gla`, with the layer's defaults.
pub(super) fn simple_gla(config: &Config) -> Result<SimpleGla> {
    Ok(SimpleGla {
        linear: LinearAttention {
            conv: taps(config, true)?,
            gate: true,
            ..linear_attention(config, [1.0, 1.0], 4)?
        },
        gate_normalizer: config.f32_or("gate_logit_normalizer", 16.0)?,
    })
}

/// The model does not pass `use_short_conv` on to its layers, so they never have a convolution.
pub(super) fn retnet(config: &Config) -> Result<RetNet> {
    Ok(RetNet {
        linear: linear_attention(config, [1.0, 2.0], 8)?,
        rope_theta: 10000.0,
    })
}

pub(super) fn delta_net(config: &Config) -> Result<DeltaNet> {
    let hidden = config.usize("hidden_size")?;
    let heads = config.usize_or("num_heads", 16)?;
    let per_head = |key: &str| {
        let width = scaled(config, hidden, key, 1.0)?;
        if heads == 0 || !width.is_multiple_of(heads) {
            let expected = format!("a divisor of the width {width} that {key} makes");
            return Err(config.wrong("num_heads", &expected));
        }
        Ok(width / heads)
    };
    let activations = [
        ("silu", Some(Activation::Silu)),
        ("relu", Some(Activation::Relu)),
        ("elu", Some(Activation::EluPlusOne)),
        ("identity", None),
    ];
    let norms = [("l2", KeyNorm::L2), ("sum", KeyNorm::Sum)];
    Ok(DeltaNet {
        heads,
        head_dim: per_head("expand_k")?,
        value_dim: per_head("expand_v")?,
        conv: taps(config, true)?,
        activation: config.one_of("qk_activation", activations[0].1, &activations)?,
        key_norm: config.one_of("qk_norm", KeyNorm::L2, &norms)?,
        beta: config.bool_or("use_beta", true)?,
        gate: config.bool_or("use_gate", false)?,
        negative_eigenvalues: config.bool_or("allow_neg_eigval", false)?,
        norm_eps: config.f32_or("norm_eps", 1e-6)?,
    })
}

pub(super) fn hgrn2(config: &Config, layer: usize) -> Result<Hgrn2> {
    let hidden = config.usize("hidden_size")?;
    let head_dim = match config.optional_usize("expand_ratio")? {
        Some(ratio) => ratio,
        None => hidden.checked_div(config.usize("num_heads")?).unwrap_or(0),
    };
    let heads = hidden.checked_div(head_dim).unwrap_or(0);
    if heads == 0 || !hidden.is_multiple_of(heads) {
        return Err(config.wrong("expand_ratio", "a divisor of hidden_size"));
    }
    Ok(Hgrn2 {
        heads,
        head_dim,
        value_dim: hidden / heads,
        conv: taps(config, false)?,
        // The first layer's bound is zero.
        lower_bound: config.bool_or("use_lower_bound", true)? && layer > 0,
        written: None,
    })
}

/// The lower bounds of one block's decays: softmax shares over the layers, summed from the second layer up to the
/// block's own. `block` is the block's name in the checkpoint.
pub(super) fn lower_bound(weights: &safetensors::Checkpoint, block: &str) -> Result<Tensor> {
    let name = "model.lower_bounds";
    let tensor = weights.tensor(name)?;
    let layer = block.split('.').find_map(|part| part.parse().ok());
    let (rows, width) = tensor.rows_cols();
    let Some(layer) = layer.filter(|&layer: &usize| layer < rows) else {
        return Err(Error::Tensor {
            file: weights.name().into(),
            name: name.into(),
            found: format!("shape {:?}", tensor.shape),
            expected: format!("a row for {block}"),
        });
    };
    tensors::from_f32(&[width], &shares_up_to(layer, width, &tensor.to_f32()))
}

/// For each column of `values`, computes the softmax over the rows and sums its rows `1..=row`.
fn shares_up_to(row: usize, width: usize, values: &[f32]) -> Vec<f32> {
    let sum = |column: usize| {
        let column = || values.iter().skip(column).step_by(width);
        let max = column().fold(f32::NEG_INFINITY, |max, &x| max.max(x));
        let shares: Vec<f32> = column().map(|x| (x - max).exp()).collect();
        shares[1..=row].iter().sum::<f32>() / shares.iter().sum::<f32>()
    };
    (0..width).map(sum).collect()
}

/// Expands a vector for each head, `tensor` `[heads, head_dim]`, to a block-diagonal matrix of the shape of `weight`: row h holds the
/// vector of head h in the columns that the head reads, and zeros elsewhere.
pub(super) fn block_diagonal(name: &str, tensor: &Tensor, weight: &WeightSpec) -> Result<Tensor> {
    let ([heads, head_dim], &[rows, width]) = (&tensor.shape[..], &weight.shape[..]) else {
        return Err(wrong_gate(name, tensor, weight));
    };
    let inputs = width / (*head_dim).max(1);
    let whole = inputs > 0 && inputs * head_dim == width && rows.is_multiple_of(inputs);
    if *heads != rows || !whole {
        return Err(wrong_gate(name, tensor, weight));
    }
    let mut values = vec![0.0; rows * width];
    for (head, row) in tensor.to_f32().chunks_exact(*head_dim).enumerate() {
        let start = head * width + head / (rows / inputs) * head_dim;
        values[start..start + head_dim].copy_from_slice(row);
    }
    tensors::from_f32(&weight.shape, &values)
}

fn wrong_gate(name: &str, tensor: &Tensor, weight: &WeightSpec) -> Error {
    Error::Tensor {
        file: "the checkpoint".into(),
        name: name.into(),
        found: format!("shape {:?}", tensor.shape),
        expected: format!(
            "one row for each head, as wide as a head of the shape {:?}",
            weight.shape
        ),
    }
}

pub(super) fn kda(config: &Config) -> Result<Kda> {
    let heads = config.usize_or("num_heads", 16)?;
    let head_dim = config.usize_or("head_dim", 128)?;
    Ok(Kda {
        heads,
        value_heads: config.usize_or("num_v_heads", heads)?,
        head_dim,
        value_dim: scaled(config, head_dim, "expand_v", 1.0)?,
        conv: taps(config, true)?,
        negative_eigenvalues: config.bool_or("allow_neg_eigval", false)?,
        decay_bound: config.optional_f32("lower_bound")?,
        full_rank: false,
        gate_bias: true,
        norm_eps: config.f32_or("norm_eps", 1e-6)?,
    })
}

/// The library has this layer but no model of it; the keys and defaults are the layer's.
pub(super) fn gdn2(config: &Config) -> Result<GatedDeltaNet2> {
    let heads = config.usize_or("num_heads", 16)?;
    let head_dim = config.usize_or("head_dim", 128)?;
    let conv = taps(config, true)?;
    Ok(GatedDeltaNet2 {
        heads,
        value_heads: config.usize_or("num_v_heads", heads)?,
        head_dim,
        value_dim: scaled(config, head_dim, "expand_v", 1.0)?,
        conv,
        conv_bias: conv.is_some() && config.bool_or("conv_bias", false)?,
        negative_eigenvalues: config.bool_or("allow_neg_eigval", false)?,
        norm_eps: config.f32_or("norm_eps", 1e-5)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lower_bounds_grow_with_the_layer() {
        // Three layers of two channels; shares 1/2, 1/4, 1/4 and 1/7, 2/7, 4/7.
        let ln = f32::ln;
        let values = [ln(2.0), 0.0, 0.0, ln(2.0), 0.0, ln(4.0)];
        let expected = [[0.0, 0.0], [0.25, 2.0 / 7.0], [0.5, 6.0 / 7.0]];
        for (row, expected) in expected.iter().enumerate() {
            for (found, expected) in shares_up_to(row, 2, &values).iter().zip(expected) {
                assert!((found - expected).abs() < 1e-6, "{row}: {found} {expected}");
            }
        }
    }

    #[test]
    fn a_vector_for_each_head_becomes_a_block_diagonal_matrix() {
        let weights = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
        let tensor = tensors::from_f32(&[4, 2], &weights).expect("a tensor");
        // Four query heads that share two keys.
        let shared = WeightSpec::full("gate", &[4, 4]);
        let matrix = block_diagonal("gate", &tensor, &shared).expect("a matrix");
        let rows: Vec<f32> = matrix.to_f32();
        assert_eq!(rows[..8], [1.0, 2.0, 0.0, 0.0, 3.0, 4.0, 0.0, 0.0]);
        assert_eq!(rows[8..], [0.0, 0.0, 5.0, 6.0, 0.0, 0.0, 7.0, 8.0]);
        for shape in [[4, 3], [3, 6], [4, 12]] {
            let wrong = WeightSpec::full("gate", &shape);
            assert!(
                block_diagonal("gate", &tensor, &wrong).is_err(),
                "{shape:?}"
            );
        }
    }
}
