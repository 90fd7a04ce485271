//! Binds a model description to its tensors: embedding, layers and logits form one program, the drafting block another.

use super::spec::OUTPUT_SCALE;
use super::{Draft, ModelSpec, per_layer};
use crate::error::Result;
use crate::lowering::{EMBEDDING, FIRST_FREE, Lowering, WeightSource, Written, matrix, norm};
use crate::operands::{RESIDUAL, View};
use crate::ops::{Embed, Logits};
use crate::program::Program;

/// Lowers a complete model: embedding, layers and logits, and its MTP block if it has one.
pub fn lower(
    source: &WeightSource,
    spec: &ModelSpec,
    first_tensor: usize,
) -> Result<(Program, Option<Draft>)> {
    let (file, tensors) = (source.file, source.tensors);
    let embedding = matrix(file, tensors, "token_embd.weight")?;
    let output = if spec.tied {
        embedding.clone()
    } else {
        matrix(file, tensors, "output.weight")?
    };
    let named = |name: &str| norm(file, tensors, name, spec.norm, spec.norm_eps);
    let embed = Embed {
        matrix: embedding,
        multiplier: spec.embedding_multiplier,
        norm: if spec.embedding_norm {
            Some(named("token_embd_norm")?)
        } else {
            None
        },
        output: View::whole(RESIDUAL, spec.hidden),
    };
    let program = Program {
        widths: vec![spec.hidden; FIRST_FREE],
        ops: Vec::new(),
        layer_ends: Vec::new(),
        logits: Logits {
            // The norm takes the multiplier, because the output matrix may be quantized.
            norm: named("output_norm")?.scaled(spec.logits_multiplier),
            matrix: output,
            softcap: spec.logit_softcap,
        },
    };
    let mut written = Written::new(program);
    if let Some(mtp) = &spec.mtp {
        mtp.begin(source, spec, &mut written)?;
    }
    written.push(embed);
    let mut mixers = spec.layers.iter().filter_map(|layer| layer.mixer.as_ref());
    let by_mtp = (spec.mtp.iter()).any(|mtp| !mtp.own_embedding);
    if by_mtp || mixers.any(|mixer| mixer.reads_embedding()) {
        written.keep_stream(EMBEDDING, spec.hidden);
    }
    if let Some(width) = spec.per_layer_inputs {
        per_layer::begin(source, spec, width, &mut written)?;
    }
    written.set_layers(layers(spec, first_tensor));
    let mut first_tensor = first_tensor;
    for (layer, layer_spec) in spec.layers.iter().enumerate() {
        let mut lowering = Lowering::new(source, layer, first_tensor, &mut written);
        if let Some(mixer) = &layer_spec.mixer {
            lowering.begin("mixer.", spec.norm, &layer_spec.mixer_sublayer)?;
            mixer.lower(&mut lowering)?;
            lowering.end()?;
        }
        if let Some(ffn) = &layer_spec.ffn {
            lowering.begin("", spec.norm, &layer_spec.ffn_sublayer)?;
            ffn.lower(&mut lowering)?;
            lowering.end()?;
        }
        if let Some(width) = spec.per_layer_inputs {
            per_layer::lower(&mut lowering, spec, width)?;
        }
        if layer_spec.output_scale {
            lowering.scale_by_tensor(OUTPUT_SCALE)?;
        }
        first_tensor += layer_spec.state().len();
        written.end_layer();
    }
    let mut draft = None;
    if let Some(mtp) = &spec.mtp {
        mtp.lower_state(source, spec, first_tensor, &mut written)?;
        written.end_layer();
        draft = Some(Draft::lower(source, spec, mtp, first_tensor)?);
    }
    Ok((written.finish(), draft))
}

/// For each layer, its first state tensor and the last later layer that reads its keys and values.
fn layers(spec: &ModelSpec, first_tensor: usize) -> Vec<(usize, Option<usize>)> {
    let mut first = first_tensor;
    let mut layers: Vec<(usize, Option<usize>)> = Vec::new();
    for (number, layer) in spec.layers.iter().enumerate() {
        layers.push((first, None));
        first += layer.state().len();
        let shared = layer.mixer.as_ref().and_then(|mixer| mixer.shares());
        if let Some(owner) = shared.and_then(|shared| layers.get_mut(shared.layer)) {
            owner.1 = Some(number);
        }
    }
    layers
}
