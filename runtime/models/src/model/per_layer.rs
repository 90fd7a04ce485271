//! Inputs of each layer besides the residual stream (Gemma 4): a second embedding, and a projection of the first one.
//!
//! With x_0 the embedded token, and a slice of P values for each of L layers:
//! ```text
//! in  = (rms(D^-1/2 W x_0) + P^1/2 E[token]) / 2^1/2                  [L, P], a norm of each slice
//! x  += rms(W_out (gelu(W_gate x) * in_i))                            after layer i's sublayers
//! ```

use super::ModelSpec;
use crate::error::Result;
use crate::functions::{Activation, Norm, OutputOp};
use crate::lowering::{Lowering, WeightSource, Written, matrix, vector};
use crate::operands::{RESIDUAL, View};
use crate::ops::{Embed, HeadGroup, HeadOp, Linear, Prepare, Project};
use crate::weights::WeightSpec;

/// Name under which the inputs of all layers are published.
const INPUTS: &str = "inputs of each layer";
const EMBEDDING: &str = "per_layer_token_embd.weight";
const PROJECTION: &str = "per_layer_model_proj.weight";
const NORM: &str = "per_layer_proj_norm.weight";

/// The tensors outside the layers, for `width` values a layer.
pub(super) fn weights(spec: &ModelSpec, width: usize) -> [WeightSpec; 3] {
    let all = spec.layers.len() * width;
    [
        WeightSpec::matrix(EMBEDDING, spec.vocab, all),
        WeightSpec::matrix(PROJECTION, all, spec.hidden),
        WeightSpec::full(NORM, &[width]),
    ]
}

/// The tensors of layer number `i`.
pub(super) fn layer_weights(spec: &ModelSpec, i: usize, width: usize) -> Vec<WeightSpec> {
    let name = |part: &str| format!("blk.{i}.{part}");
    let mut all = vec![
        WeightSpec::matrix(&name("inp_gate.weight"), width, spec.hidden),
        WeightSpec::matrix(&name("proj.weight"), spec.hidden, width),
    ];
    all.extend(spec.norm_weights(&name("post_norm")));
    all
}

/// Computes the inputs of all layers from the token and its embedding, which is the residual stream.
pub(super) fn begin(
    source: &WeightSource,
    spec: &ModelSpec,
    width: usize,
    written: &mut Written,
) -> Result<()> {
    let (file, tensors) = (source.file, source.tensors);
    let all = spec.layers.len() * width;
    let embedded = written.publish("embedding of each layer", all);
    let inputs = written.publish(INPUTS, all);
    // Both terms take the factor of their sum.
    let half = 0.5f32.sqrt();
    written.push(Embed {
        matrix: matrix(file, tensors, EMBEDDING)?,
        multiplier: (width as f32).sqrt() * half,
        norm: None,
        output: embedded,
    });
    written.wide_inputs(spec.hidden);
    let linear = Linear {
        column: 0,
        bias: None,
        multiplier: (spec.hidden as f32).powf(-0.5),
        matrix: matrix(file, tensors, PROJECTION)?,
    };
    let stream = View::whole(RESIDUAL, spec.hidden);
    written.push(Project::new(stream, None, vec![linear], inputs));
    let norm = Norm::rms(vector(file, tensors, NORM)?, spec.norm_eps).scaled(half);
    written.push(Prepare {
        groups: vec![HeadGroup {
            view: inputs,
            head_dim: width,
            conv: None,
            maps: vec![HeadOp::Rms(norm), HeadOp::Add(embedded)],
        }],
        rope: None,
        gates: Vec::new(),
    });
    written.unpublish("embedding of each layer");
    Ok(())
}

/// Adds the term of the layer's own input to the residual stream.
pub(super) fn lower(layer: &mut Lowering, spec: &ModelSpec, width: usize) -> Result<()> {
    let inputs = layer.published(INPUTS, spec.layers.len() * width)?;
    let own = View {
        start: inputs.start + layer.number() * width,
        width,
        ..inputs
    };
    let scale = layer.begin_plain(spec.norm, "post_norm")?;
    let gate = layer.project_scaled(&[("inp_gate", scale)])?[0];
    let finish = vec![OutputOp::Gate(gate, Activation::Gelu)];
    layer.emit(own, finish, "proj")?;
    layer.end()
}
