//! Binds a description to its tensors: embedding, every layer, logits as one program.

use super::ModelSpec;
use crate::error::Result;
use crate::lowering::{FIRST_FREE, Lowering, Source, Written, matrix, norm};
use crate::ops::{Embed, Logits};
use crate::program::Program;
use crate::weights::Tensors;

/// Lowers a whole model: embedding, every layer, logits.
pub(super) fn lower(
    file: &str,
    spec: &ModelSpec,
    tensors: &Tensors,
    first_tensor: usize,
) -> Result<Program> {
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
        norm: match spec.embedding_norm {
            true => Some(named("token_embd_norm")?),
            false => None,
        },
    };
    let program = Program {
        widths: vec![spec.hidden; FIRST_FREE],
        ops: vec![Box::new(embed)],
        layer_ends: Vec::new(),
        logits: Logits {
            // The output matrix, which may be quantized, stays as it is.
            norm: named("output_norm")?.scaled(spec.logits_multiplier),
            matrix: output,
            softcap: spec.logit_softcap,
        },
    };
    let source = Source {
        file,
        tensors,
        hidden: spec.hidden,
        norm_eps: spec.norm_eps,
    };
    let mut written = Written::new(program);
    let mut mixers = spec.layers.iter().filter_map(|layer| layer.mixer.as_ref());
    if mixers.any(|mixer| mixer.reads_embedding()) {
        written.keep_embedding(spec.hidden);
    }
    let mut first_tensor = first_tensor;
    for (layer, layer_spec) in spec.layers.iter().enumerate() {
        let mut lowering = Lowering::new(&source, layer, first_tensor, &mut written);
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
        first_tensor += layer_spec.state().len();
        written.end_layer();
    }
    Ok(written.finish())
}
