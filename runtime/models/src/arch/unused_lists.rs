//! Tensors that no frontend reads, and why the model's logits do not depend on them.

/// Names separated by spaces, in which stars match anything, and the reason why nothing needs to read them.
pub(super) type Idle = (&'static str, &'static str);

/// Tensors that do not affect the logits.
pub(super) const TENSORS: &[Idle] = &[
    (
        "model.l1_lambda model.num_kept",
        "what the training of learnable token eviction counts",
    ),
    (
        "*.self_attn.slope_rate *.self_attn.query_decay *.self_attn.key_decay *.self_attn.diagonal_decay \
         *.inv_freq *.masked_bias *.causal_mask *.num_batches_tracked",
        "buffers that follow from the configuration",
    ),
    (
        "visual.* model.visual.* vision_tower.* model.vision_tower.* multi_modal_projector.* model.multi_modal_projector.* \
         model.vision_adapter.* model.vision_projection.* embed_vision.* model.embed_vision.* audio_tower.* model.audio_tower.* \
         embed_audio.* model.embed_audio.*",
        "parts beside the language model: images and sounds",
    ),
];

/// Tensors of a block that predicts further tokens, which have no effect unless the block is read.
pub(super) const MTP: &str = "mtp.* model.mtp.*";

/// Tensors of layers that read the keys and values of earlier ones, as parts of a name, in a directory and in a GGUF file.
pub(super) const OWN_KEYS: [&str; 6] = [
    "self_attn.k_proj.",
    "self_attn.v_proj.",
    "self_attn.k_norm.",
    "attn_k.",
    "attn_v.",
    "attn_k_norm.",
];

/// Tensors that do not affect the logits if a key of the configuration has this value.
pub(super) const TENSORS_AT: &[(&str, bool, &str)] = &[(
    "sla_gdn_decay",
    false,
    "*.attn.A_log *.attn.a_proj.weight *.attn.dt_bias",
)];

/// Tensors of GGUF files that do not affect the logits.
pub(super) const GGUF_TENSORS: &[Idle] = &[(
    "blk.0.time_mix_v0.weight blk.0.time_mix_v1.weight blk.0.time_mix_v2.weight",
    "the first layer of RWKV-7 has no earlier values to mix with",
)];

/// Tensors of blocks that predict further tokens, which have no effect unless the blocks are read.
pub(super) const GGUF_MTP: &str = "blk.*.nextn.*";
