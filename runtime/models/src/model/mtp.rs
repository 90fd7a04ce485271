//! Multi-token prediction: a block after the last layer that predicts the token after the next one (DeepSeek-V3, arXiv 2412.19437;
//! Qwen3-Next and Qwen3.5: llama.cpp `src/models/qwen35.cpp`, vLLM `qwen3_next_mtp.py`).
//!
//! ```text
//! u   = W_eh [enorm(embedding(x_t)); hnorm(h_{t-1})]    h_{t-1}: of the previous token, after the final norm; zero before the first
//! h_t = head_norm(layer(u));  logits of token t + 1 = W_head h_t    a layer of full attention and a feed-forward network
//! ```
//! The embedding, `head_norm` and `W_head` are the block's own or the model's. To draft more than one token, the block reads its
//! own `h_t` and its own choice in place of the model's, as both references do. Pairing the first token with zero follows
//! llama.cpp; vLLM starts with the second token. The two are otherwise equivalent: their positions differ by one, which rotary
//! attention does not see.
//!
//! State: keys and values of the block's attention, and `h` of the last token. The model's program writes it in an additional layer
//! that ends with the attention and leaves the residual stream unchanged, so the state covers exactly the tokens that the model has
//! read. [`Draft`] is the program of the complete block, and runs on a copy of the state.

use serde_json::{Map, Value, json};

use super::spec::{LayerSpec, ModelSpec};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::lowering::{EMBEDDING, FIRST_FREE, Lowering, WeightSource, Written, matrix, norm};
use crate::operands::{Operand, RESIDUAL, View};
use crate::ops::{
    Embed, HeadGroup, HeadOp, Linear, Logits, Normalize, Op, Prepare, Project, TokenShift,
};
use crate::program::Program;
use crate::state::{StateDtype, StateKind, StateTensor};
use crate::weights::WeightSpec;

/// Name under which the rows of the block's own embedding are published.
const OWN_EMBEDDING: &str = "embedding of the MTP block";

/// The MTP block; its layer number follows the last layer's.
#[derive(Debug, Clone)]
pub struct MtpSpec {
    /// The block's layer.
    pub(crate) layer: LayerSpec,
    /// Whether the block has a separate embedding.
    pub(crate) own_embedding: bool,
    /// Whether the block has a separate norm after its layer.
    pub(crate) own_norm: bool,
    /// Whether the block has a separate output matrix.
    pub(crate) own_head: bool,
}

impl MtpSpec {
    /// The block's tensors, without its layer's, in a model with this description.
    pub(super) fn weights(&self, spec: &ModelSpec) -> Vec<WeightSpec> {
        let (hidden, vocab) = (spec.hidden, spec.vocab);
        let name = |part: &str| spec.mtp_name(part);
        let matrix = |part: &str, rows, cols| {
            WeightSpec::matrix(&format!("{}.weight", name(part)), rows, cols)
        };
        let mut all = vec![matrix("eh_proj", hidden, 2 * hidden)];
        all.extend(spec.norm_weights(&name("enorm")));
        all.extend(spec.norm_weights(&name("hnorm")));
        if self.own_embedding {
            all.push(matrix("embed_tokens", vocab, hidden));
        }
        if self.own_norm {
            all.extend(spec.norm_weights(&name("shared_head_norm")));
        }
        if self.own_head {
            all.push(matrix("shared_head_head", vocab, hidden));
        }
        all
    }

    /// The state tensors: the layer's, and the output of the model's final norm for the last token.
    pub(crate) fn state(&self, hidden: usize) -> Vec<StateTensor> {
        let mut tensors = self.layer.state();
        let last = StateTensor::new("hidden", StateKind::Shift, StateDtype::F32, &[hidden]);
        tensors.push(last);
        tensors
    }

    /// Checks the block of a model with this description; `file` is named in the error.
    pub(super) fn check(&self, file: &str, spec: &ModelSpec) -> Result<()> {
        self.layer.check(file, spec.layers.len(), spec.hidden)?;
        let wrong = |found: &str, expected: &str| {
            Err(Error::Config {
                file: file.into(),
                key: "mtp".into(),
                found: found.into(),
                expected: expected.into(),
            })
        };
        if self.layer.mixer.is_none() || self.layer.ffn.is_none() {
            let found = "a layer without a mixer or a feed-forward network";
            return wrong(found, "a layer with both");
        }
        // Multipliers of the embedding or the residual stream have no defined place in the block's inputs.
        let scales = spec.layers.iter().chain([&self.layer]);
        let scales = scales.flat_map(|layer| [layer.mixer_sublayer, layer.ffn_sublayer]);
        let plain = spec.embedding_multiplier == 1.0
            && spec.logits_multiplier == 1.0
            && spec.per_layer_inputs.is_none()
            && !spec.layers.iter().any(|layer| layer.output_scale)
            && scales
                .into_iter()
                .all(|sublayer| sublayer.normed_residual.is_none());
        if !plain {
            return wrong("multipliers of the model", "a model without multipliers");
        }
        Ok(())
    }

    /// The block as JSON.
    pub(super) fn to_json(&self) -> Value {
        let mut object = Map::new();
        object.insert("layer".into(), self.layer.to_json());
        for (key, own) in [
            ("own_embedding", self.own_embedding),
            ("own_norm", self.own_norm),
            ("own_head", self.own_head),
        ] {
            object.insert(key.into(), json!(own));
        }
        Value::Object(object)
    }

    /// Reads the block from JSON; `file` is named in errors.
    pub(super) fn from_json(file: &str, config: &Config) -> Result<Self> {
        let layer = config.object().get("layer").unwrap_or(&Value::Null);
        Ok(MtpSpec {
            layer: LayerSpec::from_json(&format!("{file}: mtp.layer"), layer)?,
            own_embedding: config.bool("own_embedding")?,
            own_norm: config.bool("own_norm")?,
            own_head: config.bool("own_head")?,
        })
    }

    /// Begins a model's program by publishing the embedding rows that the block reads.
    pub(super) fn begin(
        &self,
        source: &WeightSource,
        spec: &ModelSpec,
        written: &mut Written,
    ) -> Result<()> {
        if self.own_embedding {
            let name = format!("{}.weight", spec.mtp_name("embed_tokens"));
            let embedding = matrix(source.file, source.tensors, &name)?;
            written.push(Embed {
                matrix: embedding,
                multiplier: 1.0,
                norm: None,
                output: View::whole(RESIDUAL, spec.hidden),
            });
            written.keep_stream(OWN_EMBEDDING, spec.hidden);
        }
        Ok(())
    }

    /// Ends a model's program with the ops that read every token into the block's state.
    pub(super) fn lower_state(
        &self,
        source: &WeightSource,
        spec: &ModelSpec,
        first_tensor: usize,
        written: &mut Written,
    ) -> Result<()> {
        let hidden = spec.hidden;
        let mut lowering = Lowering::new(source, spec.layers.len(), first_tensor, written);
        lowering.begin("mixer.", spec.norm, &self.layer.mixer_sublayer)?;
        let embedding = if self.own_embedding {
            lowering.published(OWN_EMBEDDING, hidden)?
        } else {
            lowering.published(EMBEDDING, hidden)?
        };
        let pair = lowering.buffer(2 * hidden);
        let (token, before) = pair.split(hidden);
        lowering.push(copy(embedding, token));
        let final_norm = norm(
            source.file,
            source.tensors,
            "output_norm",
            spec.norm,
            spec.norm_eps,
        )?;
        let last = lowering.state_tensor(self.layer.state().len());
        lowering.push(TokenShift {
            norm: Some(final_norm),
            mixes: vec![vec![1.0; hidden].into()],
            state: last,
            out: before,
        });
        let joined = lowering.buffer(hidden);
        join(source, spec, &mut lowering, (pair, joined))?;
        let first = lowering.ops().len();
        if let Some(mixer) = &self.layer.mixer {
            lowering.reading(joined, |lowering| mixer.lower(lowering))?;
        }
        // Without a call to `end`, the mixer's sums are dropped: the residual stream stays unchanged.
        let stream = Operand::Columns(View::whole(RESIDUAL, hidden));
        let meets = |op: &dyn Op| {
            let access = op.access();
            let mut operands = access.reads.iter().chain(&access.writes);
            operands.any(|operand| operand.overlaps(&stream))
        };
        if lowering.ops()[first..].iter().any(|op| meets(&**op)) {
            Err(Error::Config {
                file: source.file.into(),
                key: "mtp.layer".into(),
                found: "a mixer that reads or writes the residual stream by itself".into(),
                expected: "a mixer that reads only its input, such as attention".into(),
            })
        } else {
            Ok(())
        }
    }
}

/// The drafting program: the complete block.
pub struct Draft {
    /// Reads a token, with the previous hidden state in [`Draft::before`].
    pub program: Program,
    /// Location of the previous token's hidden state.
    pub before: View,
    /// Index of the block's first state tensor; its state tensors are the plan's last.
    pub first_tensor: usize,
    /// Index of the state tensor that holds the last token's hidden state.
    pub last: usize,
}

impl Draft {
    /// Lowers the block of a model; its state tensors start at index `first_tensor` of the plan.
    pub(super) fn lower(
        source: &WeightSource,
        spec: &ModelSpec,
        mtp: &MtpSpec,
        first_tensor: usize,
    ) -> Result<Self> {
        let (file, tensors, hidden) = (source.file, source.tensors, spec.hidden);
        let own = |own: bool, part: &str, otherwise: &str| {
            if own {
                spec.mtp_name(part)
            } else {
                otherwise.into()
            }
        };
        let shared_name = if spec.tied { "token_embd" } else { "output" };
        let embedding = own(mtp.own_embedding, "embed_tokens", "token_embd");
        let head = own(mtp.own_head, "shared_head_head", shared_name);
        let head_norm = own(mtp.own_norm, "shared_head_norm", "output_norm");
        let embed = Embed {
            matrix: matrix(file, tensors, &format!("{embedding}.weight"))?,
            multiplier: 1.0,
            norm: None,
            output: View::whole(RESIDUAL, hidden),
        };
        let program = Program {
            widths: vec![hidden; FIRST_FREE],
            ops: vec![Box::new(embed)],
            // The block's layer follows the model's layers, which are empty here.
            layer_ends: vec![1; spec.layers.len()],
            logits: Logits {
                norm: norm(file, tensors, &head_norm, spec.norm, spec.norm_eps)?,
                matrix: matrix(file, tensors, &format!("{head}.weight"))?,
                softcap: spec.logit_softcap,
            },
        };
        let mut written = Written::new(program);
        let mut lowering = Lowering::new(source, spec.layers.len(), first_tensor, &mut written);
        lowering.begin("mixer.", spec.norm, &mtp.layer.mixer_sublayer)?;
        let pair = lowering.buffer(2 * hidden);
        let (token, before) = pair.split(hidden);
        let stream = View::whole(RESIDUAL, hidden);
        lowering.push(copy(stream, token));
        join(source, spec, &mut lowering, (pair, stream))?;
        if let Some(mixer) = &mtp.layer.mixer {
            mixer.lower(&mut lowering)?;
        }
        lowering.end()?;
        if let Some(ffn) = &mtp.layer.ffn {
            lowering.begin("", spec.norm, &mtp.layer.ffn_sublayer)?;
            ffn.lower(&mut lowering)?;
            lowering.end()?;
        }
        written.end_layer();
        Ok(Draft {
            program: written.finish(),
            before,
            first_tensor,
            last: first_tensor + mtp.layer.state().len(),
        })
    }
}

fn copy(from: View, to: View) -> Prepare {
    Prepare {
        groups: vec![HeadGroup::per_channel(to, None, vec![HeadOp::Copy(from)])],
        rope: None,
        gates: Vec::new(),
    }
}

/// Computes `to = W_eh [enorm(token); hnorm(before)]`; `pair` holds the token's embedding and the previous hidden state.
fn join(
    source: &WeightSource,
    spec: &ModelSpec,
    lowering: &mut Lowering,
    (pair, to): (View, View),
) -> Result<()> {
    let (file, tensors) = (source.file, source.tensors);
    let (token, before) = pair.split(spec.hidden);
    for (columns, name) in [(token, "enorm"), (before, "hnorm")] {
        let norm = norm(
            file,
            tensors,
            &spec.mtp_name(name),
            spec.norm,
            spec.norm_eps,
        )?;
        lowering.push(Normalize { columns, norm });
    }
    lowering.wide_inputs(pair.width);
    let linear = Linear {
        column: 0,
        bias: None,
        multiplier: 1.0,
        matrix: matrix(
            file,
            tensors,
            &format!("{}.weight", spec.mtp_name("eh_proj")),
        )?,
    };
    lowering.push(Project::new(pair, None, vec![linear], to));
    Ok(())
}
