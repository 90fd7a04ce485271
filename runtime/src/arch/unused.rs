//! Strict checkpoints: a key or a tensor that no frontend read is an error that names it, unless it stands in one of the lists
//! below, which say of each why the model's logits do not depend on it.
//!
//! What a frontend reads through [`Config`], [`safetensors::Checkpoint`] or [`Gguf`] is used; nothing else needs to be
//! declared. A key at null says nothing and is passed over.

use serde_json::Value;
use waterline_quant::gguf::{Gguf, Value as GgufValue};
use waterline_quant::safetensors;

use super::Config;
use crate::error::{Error, Result};
use crate::weights::Tensors;

/// Most names in an error.
const SHOWN: usize = 8;
const KEY: [&str; 2] = ["the key", "the keys"];
const TENSOR: [&str; 2] = ["the tensor", "the tensors"];

/// Names in which stars stand for anything, separated by spaces, and why nothing needs to read them.
type Idle = (&'static str, &'static str);

/// Keys without a meaning for the logits of any model.
const KEYS: &[Idle] = &[
    (
        "architectures auto_map _name_or_path _commit_hash transformers_version fla_version model_type tokenizer_class \
         torch_dtype dtype _attn_implementation* attn_implementation torchscript use_bfloat16 pretraining_tp unsloth_* \
         mlx_*",
        "where the file comes from, and for which program and format it was made",
    ),
    (
        "*_token_id *_token_ids *_token_index id2label label2id problem_type finetuning_task task_specific_params prefix \
         max_position_embeddings max_sequence_length model_max_length max_length min_length n_positions n_ctx",
        "tokens, labels and lengths: no context is bounded by what was trained, and a scaling of angles has its own",
    ),
    (
        "use_cache return_dict return_dict_in_generate output_hidden_states output_attentions output_scores \
         output_router_logits num_logits_to_keep logits_to_keep is_decoder is_encoder_decoder tie_encoder_decoder \
         add_cross_attention cross_attention_hidden_size chunk_size_feed_forward pruned_heads tf_legacy_loss \
         remove_invalid_values",
        "what calls of the reference return",
    ),
    (
        "do_sample early_stopping num_beams num_beam_groups num_return_sequences diversity_penalty temperature top_k top_p \
         typical_p repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids \
         suppress_tokens begin_suppress_tokens exponential_decay_length_penalty",
        "how tokens are chosen, which the caller decides",
    ),
    (
        "initializer_range initializer_factor initializer_cutoff_factor init_method A_init_range A_initializer_range \
         conv_init *_init_floor *_init_scheme *w_init_variance_scale time_step_min time_step_max time_step_floor \
         time_step_scale dt_min dt_max dt_scale linear_a_log_* linear_dt_* rescale_prenorm_residual",
        "how weights are drawn before training",
    ),
    (
        "attention_dropout hidden_dropout *_dropout *_pdrop dropout *dropout_prob router_aux_loss_coef router_z_loss_coef \
         router_jitter_noise input_jitter_noise z_loss_coefficient aux_loss_* l1_lambda* routing_grad \
         use_layer_wise_balance use_l2warp fuse_cross_entropy fuse_linear_cross_entropy gradient_checkpointing",
        "how a model is trained",
    ),
    (
        "attn_mode fuse_norm fuse_swiglu chunk_size mamba_chunk_size use_associative_scan use_mambapy use_mamba_kernels \
         use_mem_eff_path use_flash_attn residual_in_fp32 cache_implementation mamba_ssm_cache_dtype mamba_ssm_dtype \
         sse_implementation mrope_section mrope_interleaved",
        "which of several equal ways computes it; a text has one position for all sections of its angles",
    ),
    (
        "num_nextn_predict_layers mtp_* vision_config audio_config mm_tokens_per_image language_model_only",
        "parts beside the language model, which are not loaded",
    ),
    (
        "hidden_ratio elementwise_affine conv_size max_window_layers use_sliding_window no_rope_layer_interval \
         _sliding_window_pattern full_attention_interval",
        "read where another key or the tensors do not say it already",
    ),
];

/// Keys that the reference of these families never reads, or only if another key is set, and then a frontend
/// reads it.
const KEYS_OF: &[(&[&str], Idle)] = &[
    (
        &["gsa", "abc", "retnet", "softmax_retnet"],
        (
            "use_output_gate use_short_conv gate_low_rank_dim feature_map",
            "the library's model does not hand them on to its layers",
        ),
    ),
    (
        &["softmax_gla", "softmax_retnet", "softmax_gated_deltanet"],
        ("sla_base", "the type of the model says it"),
    ),
    (
        &["hybrid_gated_deltanet"],
        (
            "receptive_margin head_dim",
            "they follow from the router's taps and from the width",
        ),
    ),
    (
        &["hgrn2", "rwkv7"],
        ("num_heads", "the width of a head says it"),
    ),
    (
        &["mamba2", "hax_mamba2"],
        ("time_step_rank", "a head has one step, whatever the rank"),
    ),
    (
        &["mamba2"],
        (
            "norm_before_gate",
            "transformers writes it and norms behind the gate all the same",
        ),
    ),
    (
        &["hax_mamba", "hax_mamba2"],
        (
            "num_hash data_max_length hax_hash_fixed hax_stats",
            "numbers of sources that the model does not have; the hash is a tensor",
        ),
    ),
    (
        &["falcon_h1"],
        ("mamba_expand", "where the number of channels is given too"),
    ),
    (
        &["granitemoehybrid"],
        (
            "num_experts_per_tok intermediate_size rope_theta rope_parameters rope_scaling",
            "numbers of experts and of positions, where the model has none",
        ),
    ),
    (
        &["minimax"],
        (
            "block_size full_attn_alpha_factor full_attn_beta_factor linear_attn_alpha_factor linear_attn_beta_factor",
            "which of several equal ways computes it, and factors of a kind of layer that the model does not have",
        ),
    ),
    (
        &["bamba"],
        (
            "attn_rotary_emb",
            "half of each head turns, whatever it says",
        ),
    ),
    (
        &["gemma3", "gemma3_text"],
        (
            "attn_logit_softcapping",
            "the reference reads it and hands it to no layer",
        ),
    ),
    (
        &["lfm3", "gemma3", "gemma3_text"],
        (
            "sliding_window rope_parameters.sliding_attention rope_parameters.full_attention",
            "of a kind of layer that the model does not have",
        ),
    ),
    (
        &["jamba"],
        (
            "num_experts_per_tok",
            "a number of experts, where no layer has any",
        ),
    ),
    (
        &["qwen3_5_moe", "qwen3_5_moe_text"],
        (
            "intermediate_size",
            "the width of dense networks, of which it has none",
        ),
    ),
    (
        &["nemotron_h"],
        (
            "expand mamba_proj_bias moe_intermediate_size moe_latent_size moe_shared_expert_intermediate_size \
             moe_shared_expert_overlap n_group topk_group n_routed_experts n_shared_experts norm_topk_prob \
             routed_scaling_factor num_experts_per_tok num_hidden_layers intermediate_size tie_word_embeddings \
             attention_bias rope_theta partial_rotary_factor",
            "numbers of experts, where no layer has any, and keys that the reference reads nowhere",
        ),
    ),
    (
        &["zamba2"],
        (
            "hybrid_layer_ids kv_channels num_query_groups",
            "they follow from the kinds of layers and from the heads",
        ),
    ),
    (
        &["kimi_linear"],
        (
            "qk_head_dim head_dim num_key_value_heads topk_group topk_method use_grouped_topk linear_attn_config.kda_layers \
             rope_theta num_experts num_experts_per_token num_shared_experts num_expert_group moe_* routed_scaling_factor \
             intermediate_size kv_lora_rank q_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim linear_num_heads \
             linear_head_dim linear_conv_kernel_dim",
            "they follow from other keys, or are sizes of a kind of layer that the model does not have",
        ),
    ),
    (
        &["qwen3_next"],
        (
            "num_experts_per_tok moe_intermediate_size shared_expert_intermediate_size norm_topk_prob decoder_sparse_step \
             intermediate_size",
            "numbers of experts, where no layer has any, and the width of dense networks, where all have",
        ),
    ),
    (
        &["lfm2", "lfm2_moe"],
        (
            "block_dim block_mlp_init_scale block_norm_eps block_out_init_scale block_use_swiglu block_use_xavier_init conv_dim \
             conv_dim_out conv_use_xavier_init num_heads use_pos_enc intermediate_size block_multiple_of \
             block_ffn_dim_multiplier",
            "older spellings of what other keys say, which the code reads nowhere",
        ),
    ),
    (
        &["sse_swa_moba"],
        (
            "moba_chunk_size moba_topk attn attn.* allow_neg_eigval sse_layer num_v_heads gate_logit_normalizer \
             gate_low_rank_dim",
            "numbers of layers that the model does not have; block attention is refused",
        ),
    ),
];

/// Keys that say what is done in any case, and the values at which they do; at others they are an error.
const KEYS_AT: &[(&str, &str)] = &[
    ("rope_type", "\"default\""),
    ("attention_bias", "false"),
    ("use_gk", "true"),
    ("use_gv", "false"),
    ("use_norm", "true"),
    ("use_output_norm", "true"),
    ("rms_norm", "true"),
    ("conv_bias", "false"),
    ("safe_gate", "false"),
    ("capacity", "1.0"),
    ("attn_output_gate", "true"),
    ("mlp_only_layers", "[]"),
    ("use_long_context", "false"),
    ("add_bias_linear", "false"),
    ("use_bidirectional_attention", "false"),
    ("normalization_function", "\"rmsnorm\""),
    ("use_qk_norm", "false"),
    ("use_mrope", "false"),
    ("sparse_arch", "\"\""),
    ("use_shared_mlp_adapter", "true"),
];

/// Tensors without a meaning for the logits.
const TENSORS: &[Idle] = &[
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
        "mtp.* model.mtp.* visual.* model.visual.* vision_tower.* model.vision_tower.* multi_modal_projector.* \
         model.multi_modal_projector.*",
        "parts beside the language model: prediction of several tokens, images",
    ),
];

/// What the names of a shared block's tensors have between the layer and the part.
const SHARED: &str = ".shared_transformer.";

/// Tensors without a meaning where a key of the configuration has this value.
const TENSORS_AT: &[(&str, bool, &str)] = &[(
    "sla_gdn_decay",
    false,
    "*.attn.A_log *.attn.a_proj.weight *.attn.dt_bias",
)];

/// Keys of GGUF files without a meaning for the logits; after the architecture's name if they begin with a dot.
const GGUF_KEYS: &[Idle] = &[
    (
        "general.* quantize.* split.* tokenizer.*",
        "where the file comes from, and text, which is checked when a tokenizer is made",
    ),
    (
        ".context_length .vocab_size .nextn_predict_layers .rope.scaling.finetuned .rope.scaling.original_context_length \
         .expert_shared_count",
        "lengths that bound nothing, and parts that are not loaded",
    ),
    (
        ".attention.decay_lora_rank .attention.iclr_lora_rank .attention.value_residual_mix_lora_rank \
         .attention.gate_lora_rank",
        "ranks, which the shapes of the tensors say",
    ),
    (
        "rwkv7.attention.layer_norm_rms_epsilon nemotron_h.attention.layer_norm_epsilon \
         nemotron_h_moe.attention.layer_norm_epsilon",
        "a kind of norm that the model does not have",
    ),
    (
        "kimi-linear.rope.freq_base mamba.rope.freq_base mamba2.rope.freq_base",
        "positions, which the model does not have",
    ),
    (
        "kimi-linear.attention.value_length",
        "the converter copies the configuration's head_dim, which no layer has",
    ),
    (
        "granite.expert_shared_feed_forward_length granitehybrid.expert_shared_feed_forward_length",
        "the width of the dense network, read where there are experts beside it",
    ),
    (
        "granite.ssm.* granitemoe.ssm.*",
        "sizes of recurrent layers, of which a hybrid written as a Transformer has none",
    ),
];

/// Keys of GGUF files that say what is done in any case, and the values at which they do.
const GGUF_KEYS_AT: &[(&str, &str)] = &[
    (".attention.head_count", "0"),
    (".attention.head_count_kv", "0"),
    (".feed_forward_length", "0"),
    (".attention.causal", "true"),
    (".rope.scaling.type", "none"),
    ("rwkv7.token_shift_count", "2"),
    // Their routers always divide by the sum.
    ("lfm2moe.expert_weights_norm", "true"),
    ("kimi-linear.expert_weights_norm", "true"),
];

/// Tensors of GGUF files without a meaning for the logits.
const GGUF_TENSORS: &[Idle] = &[
    (
        "blk.*.nextn.*",
        "prediction of several tokens, which is not loaded",
    ),
    (
        "blk.0.time_mix_v0.weight blk.0.time_mix_v1.weight blk.0.time_mix_v2.weight",
        "the first layer of RWKV-7 has no earlier values to mix with",
    ),
];

/// Refuses a configuration of which a key was not read that may mean something.
pub(super) fn check_config(config: &Config) -> Result<()> {
    let model_type = config.optional_string("model_type").unwrap_or_default();
    let unused = config.unused().into_iter();
    let unused = unused.filter(|(key, value)| !is_idle_key(model_type, key, value));
    let unused: Vec<String> = unused.map(|(key, _)| key).collect();
    refuse(config.file(), KEY, unused.iter().map(String::as_str))
}

/// Refuses a checkpoint of which a tensor was not read that may mean something. `tensors` are those that the model has.
pub(super) fn check_tensors(
    config: &Config,
    weights: &safetensors::Checkpoint,
    tensors: &Tensors,
) -> Result<()> {
    // A copy of the embedding beside it is how some programs write a tied output matrix.
    let is_embedding = |name: &str| {
        name.ends_with("lm_head.weight")
            && tensors.get("token_embd.weight").is_some_and(|embedding| {
                weights
                    .bytes(name)
                    .is_some_and(|bytes| bytes[..] == embedding.data[..])
            })
    };
    let unused: Vec<&str> = weights.unused().collect();
    let at = |name: &str| {
        let mut lists = TENSORS_AT.iter().filter(|(key, value, _)| {
            let found = config.object().get(*key);
            found.and_then(Value::as_bool) == Some(*value)
        });
        lists.any(|(_, _, names)| is_named(names, name))
    };
    let bytes = |name: &str| weights.bytes(name).map(|bytes| &bytes[..]);
    // Some programs write the tensors of a shared block under every layer that uses it.
    let repeats = |name: &str| {
        let ending = name.split_once(SHARED).map(|(_, ending)| ending);
        let same = |other: &str| {
            other != name
                && other.split_once(SHARED).map(|(_, ending)| ending) == ending
                && bytes(other) == bytes(name)
        };
        let used = |other: &&str| !unused.contains(other);
        ending.is_some() && weights.names().filter(used).any(same)
    };
    let idle =
        |name: &str| is_listed(TENSORS, name) || is_embedding(name) || at(name) || repeats(name);
    let unused = unused.iter().copied().filter(|name| !idle(name));
    refuse(weights.name(), TENSOR, unused)
}

/// Refuses a GGUF file of which a key or a tensor was not read that may mean something.
pub(crate) fn check_gguf(gguf: &Gguf) -> Result<()> {
    let unused: Vec<&str> = gguf.unused_keys().collect();
    let architecture = gguf.get_str("general.architecture").unwrap_or_default();
    let is_idle = |key: &str| {
        let own = key
            .strip_prefix(architecture)
            .filter(|own| own.starts_with('.'))
            .unwrap_or(key);
        let said = || gguf.get(key).map(said).unwrap_or_default();
        let at = |(k, value): &(&str, &str)| [own, key].contains(k) && *value == said();
        is_listed(GGUF_KEYS, own) || is_listed(GGUF_KEYS, key) || GGUF_KEYS_AT.iter().any(at)
    };
    let keys = unused.into_iter().filter(|key| !is_idle(key));
    refuse(gguf.name(), KEY, keys)?;
    let tensors = gguf.unused_tensors();
    // Blocks behind the last layer predict further tokens.
    let number = |key: &str| {
        let value = gguf.get(&format!("{architecture}.{key}"));
        value.and_then(GgufValue::as_u64).unwrap_or(0)
    };
    let blocks = number("block_count");
    let further = blocks.saturating_sub(number("nextn_predict_layers"))..blocks;
    let is_further = |name: &str| {
        let block = name
            .strip_prefix("blk.")
            .and_then(|rest| rest.split('.').next());
        let block = block.and_then(|block| block.parse::<u64>().ok());
        block.is_some_and(|block| further.contains(&block))
    };
    let tensors = tensors.filter(|name| !is_listed(GGUF_TENSORS, name) && !is_further(name));
    refuse(gguf.name(), TENSOR, tensors)
}

/// A single value as a text; nothing of a list.
fn said(value: &GgufValue) -> String {
    match (value.as_u64(), value.as_bool(), value.as_str()) {
        (Some(number), _, _) => number.to_string(),
        (_, Some(switch), _) => switch.to_string(),
        (_, _, Some(text)) => text.into(),
        _ => String::new(),
    }
}

/// Whether a key of a configuration, which may be one of an inner object, means nothing at this value.
fn is_idle_key(model_type: &str, key: &str, value: &Value) -> bool {
    let inner = key.rsplit('.').next().unwrap_or(key);
    let is_in = |list: &[Idle]| is_listed(list, key) || is_listed(list, inner);
    let of_family = |(families, idle): &(&[&str], Idle)| {
        families.contains(&model_type) && is_in(std::slice::from_ref(idle))
    };
    let value = value.to_string();
    let at = |(k, expected): &(&str, &str)| *k == inner && *expected == value;
    // Kinds of layers that are all the same need no reader.
    let only_attention = || {
        let kinds = value.trim_matches(['[', ']']).split(',');
        inner == "layer_types" && kinds.into_iter().all(|kind| kind == "\"full_attention\"")
    };
    is_in(KEYS) || KEYS_OF.iter().any(of_family) || KEYS_AT.iter().any(at) || only_attention()
}

fn is_listed(list: &[Idle], name: &str) -> bool {
    list.iter().any(|(names, _)| is_named(names, name))
}

fn is_named(patterns: &str, name: &str) -> bool {
    let mut patterns = patterns.split_whitespace();
    patterns.any(|pattern| matches(pattern, name))
}

/// Whether `name` is `pattern`, in which one star stands for anything.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, end)) => {
            let rest = name.strip_prefix(start);
            match end.split_once('*') {
                None => rest.is_some_and(|rest| rest.ends_with(end)),
                Some((middle, end)) => rest.is_some_and(|rest| {
                    let mut ends = rest.match_indices(middle);
                    ends.any(|(i, _)| rest[i + middle.len()..].ends_with(end))
                }),
            }
        }
    }
}

/// The error that names what is unused, if anything; `what` is the word for one and for many.
fn refuse<'a>(
    file: &str,
    what: [&'static str; 2],
    names: impl Iterator<Item = &'a str>,
) -> Result<()> {
    let names: Vec<&str> = names.collect();
    if names.is_empty() {
        return Ok(());
    }
    let mut shown = names[..names.len().min(SHOWN)].join(", ");
    if names.len() > SHOWN {
        shown += &format!(" and {} more", names.len() - SHOWN);
    }
    Err(Error::Unused {
        file: file.into(),
        what: what[usize::from(names.len() > 1)],
        names: shown,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(config: Value) -> Option<String> {
        let config = Config::new("config.json", config).expect("an object");
        config.optional_string("model_type");
        config.usize("hidden_size").expect("a number");
        if let Some(inner) = config.child("attn").expect("an object") {
            inner.usize("heads").expect("a number");
        }
        check_config(&config).err().map(|error| error.to_string())
    }

    #[test]
    fn a_key_that_nobody_read_is_named() {
        let plain = serde_json::json!({
            "model_type": "gla", "hidden_size": 8, "torch_dtype": "float32", "bos_token_id": 1, "gate": null,
            "attn": { "heads": 2, "dropout_prob": 0.1 }, "use_gk": true,
        });
        assert_eq!(refused(plain.clone()), None);
        for (key, value) in [
            ("row_topk", serde_json::json!(4)),
            ("use_gk", serde_json::json!(false)),
            ("quantization_config", serde_json::json!({ "bits": 4 })),
            ("layer_types", serde_json::json!(["full_attention", "conv"])),
            ("sla_base", serde_json::json!("GLA")),
        ] {
            let mut config = plain.clone();
            config[key] = value;
            let said = refused(config).expect(key);
            assert!(said.contains(&format!("the key: {key};")), "{said}");
        }
        let mut inner = plain.clone();
        inner["attn"]["gate"] = serde_json::json!(true);
        inner["gate"] = serde_json::json!(true);
        let said = refused(inner).expect("keys");
        assert!(said.contains("the keys: attn.gate, gate;"), "{said}");
        let mut all_alike = plain;
        all_alike["layer_types"] = serde_json::json!(["full_attention", "full_attention"]);
        assert_eq!(refused(all_alike), None);
    }

    #[test]
    fn only_the_first_of_many_names_are_shown() {
        let names: Vec<String> = (0..20).map(|i| format!("t{i}")).collect();
        let error = refuse("f", TENSOR, names.iter().map(String::as_str)).unwrap_err();
        let said = error.to_string();
        assert!(
            said.contains("the tensors: t0, t1") && said.contains("and 12 more"),
            "{said}"
        );
    }

    #[test]
    fn stars_stand_for_anything() {
        assert!(matches("*.inv_freq", "model.rotary_emb.inv_freq"));
        assert!(matches("blk.*.nextn.*", "blk.12.nextn.eh_proj.weight"));
        assert!(matches("a*", "a") && matches("a", "a"));
        assert!(
            !matches("a*", "b")
                && !matches("a", "ab")
                && !matches("blk.*.nextn.*", "blk.1.attn.weight")
        );
    }
}
