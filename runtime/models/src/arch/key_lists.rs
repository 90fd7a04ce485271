//! Keys that no frontend reads: keys without any effect on the logits, which are ignored silently, and keys whose value may
//! change the mathematics, which are an error at values that are not listed. Any other key causes a note.

use super::unused_lists::Idle;

/// Keys that do not affect the logits of any model.
pub(super) const KEYS: &[Idle] = &[
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
        "is_matryoshka matryoshka_dimensions",
        "lengths of vectors, read with the other files about vectors",
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
         router_jitter_noise input_jitter_noise z_loss_coefficient aux_loss_* l1_* routing_grad routing_freeze_steps \
         use_layer_wise_balance use_l2warp add_gumbel_noise fuse_cross_entropy fuse_linear_cross_entropy gradient_checkpointing",
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
        "attention_bias conv_bias add_bias_linear",
        "biases, which the tensors say",
    ),
    (
        "hidden_ratio elementwise_affine conv_size max_window_layers use_sliding_window no_rope_layer_interval \
         _sliding_window_pattern full_attention_interval",
        "read where another key or the tensors do not say it already",
    ),
];

/// Keys that the reference of these families never reads, or reads only if another key is set, in which case a frontend
/// reads them.
pub(super) const KEYS_OF: &[(&[&str], Idle)] = &[
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
        &["rwkv6"],
        (
            "rescale_every context_length",
            "sums divided for numbers of few bits, which norms undo",
        ),
    ),
    (
        &["minicpm_sala"],
        (
            "mup_denominator sparse_config",
            "softmax attention is over all tokens, and sums are divided by the number of layers",
        ),
    ),
    (
        &["bailing_hybrid"],
        (
            "use_qk_norm qk_head_dim num_key_value_heads rotary_type *_loss_scaling_factor head_dim linear_conv_kernel_dim \
             layer_group_size first_k_dense_replace rope_interleave",
            "KDA's queries and keys are unit vectors, all heads share one latent, and newer files list the kinds of layers",
        ),
    ),
    (
        &["mamba2", "hax_mamba2"],
        ("time_step_rank", "a head has one step, whatever the rank"),
    ),
    (
        &["mamba3"],
        ("mimo_rank", "heads have one input and output"),
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
        &["gemma4", "gemma4_text"],
        (
            "num_experts top_k_experts moe_intermediate_size num_global_key_value_heads sliding_window \
             rope_parameters.sliding_attention",
            "numbers of experts and of heads, where no layer has any such, and sizes of a kind of layer that the model does not have",
        ),
    ),
    (
        &["lfm3"],
        (
            "partial_rotary_factor",
            "read where it scales positions; other kinds turn each head whole",
        ),
    ),
    (
        &["gpt_oss"],
        (
            "experts_per_token initial_context_length",
            "older spellings of what other keys say",
        ),
    ),
    (
        &["mistral3"],
        (
            "spatial_merge_size projector_hidden_act multimodal_projector_bias vision_feature_layer",
            "how images become inputs",
        ),
    ),
    (
        &["laguna"],
        (
            "gating_types",
            "the reference reads one kind of gate for all layers",
        ),
    ),
    (
        &["laguna", "lfm3", "gemma3", "gemma3_text"],
        (
            "sliding_window rope_parameters.sliding_attention rope_parameters.full_attention",
            "of a kind of layer that the model does not have",
        ),
    ),
    (
        &["jamba"],
        (
            "num_experts_per_tok rope_theta rope_scaling",
            "numbers of experts and of positions, where no layer has any",
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
             attention_bias rope_theta rope_scaling partial_rotary_factor sliding_window",
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
             rope_theta rope_scaling num_experts num_experts_per_token num_shared_experts num_expert_group moe_* routed_scaling_factor \
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

/// A key that changes the mathematics, and the values, as JSON, at which it does not.
pub(super) type Switch = (&'static str, &'static [&'static str]);

const ONE: &[&str] = &["1", "1.0"];
const OFF: &[&str] = &["false"];
const ON: &[&str] = &["true"];

/// Keys of configurations that are an error at other values unless a frontend reads them.
pub(super) const SWITCHES: &[Switch] = &[
    // Positions.
    ("rope_type", &["\"default\""]),
    ("rope_interleaved", OFF),
    ("rope_scaling", &[]),
    ("partial_rotary_factor", ONE),
    ("alibi", OFF),
    ("use_alibi", OFF),
    ("use_mrope", OFF),
    ("use_long_context", OFF),
    // Attention.
    ("attn_logit_softcapping", &[]),
    ("attn_output_gate", ON),
    ("attn_temperature_tuning", OFF),
    ("attention_chunk_size", &[]),
    ("clip_qkv", &[]),
    ("is_causal", ON),
    ("qk_layernorm", OFF),
    ("sliding_window", &[]),
    ("use_bidirectional_attention", OFF),
    ("use_qk_norm", OFF),
    // Recurrences.
    ("row_topk", &[]),
    ("safe_gate", OFF),
    ("sla", OFF),
    ("sla_base", &[]),
    ("sparse_arch", &["\"\""]),
    ("use_gk", ON),
    ("use_gv", OFF),
    // Layers, norms, mixtures and logits.
    ("attnres_block_size", &[]),
    ("capacity", ONE),
    ("final_logit_softcapping", &[]),
    ("logit_scale", ONE),
    ("logits_scaling", ONE),
    ("logits_soft_cap", &[]),
    ("mlp_only_layers", &["[]"]),
    ("moe_apply_router_weight_on_input", OFF),
    ("normalization_function", &["\"rmsnorm\""]),
    ("rms_norm", ON),
    ("scale_depth", ONE),
    ("scale_emb", ONE),
    ("use_norm", ON),
    ("use_output_norm", ON),
    ("use_shared_mlp_adapter", ON),
    ("attention_multiplier", &[]),
    ("embedding_multiplier", ONE),
    ("lm_head_multiplier", ONE),
    ("residual_multiplier", ONE),
];

/// Keys of GGUF files that do not affect the logits; keys that begin with a dot follow the architecture's name.
pub(super) const GGUF_KEYS: &[Idle] = &[
    (
        ".context_length .vocab_size .nextn_predict_layers .rope.scaling.finetuned .rope.scaling.original_context_length \
         .expert_shared_count",
        "lengths that bound nothing, and parts that are not loaded",
    ),
    (
        ".attention.head_count .attention.head_count_kv .feed_forward_length",
        "sizes of a kind of layer that the model does not have",
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
        "qwen3vl.n_deepstack_layers qwen3vlmoe.n_deepstack_layers",
        "layers that read images",
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

/// Keys of GGUF files, after the architecture's name, that are an error at other values unless a frontend reads them.
pub(super) const GGUF_SWITCHES: &[Switch] = &[
    ("attention.causal", ON),
    ("attention.clamp_kqv", &["0"]),
    ("attention.max_alibi_bias", &["0"]),
    ("attention.scale", &[]),
    ("attention.sliding_window", &["0"]),
    ("attn_logit_softcapping", &["0"]),
    ("embedding_scale", ONE),
    ("expert_weights_norm", ON),
    ("expert_weights_scale", ONE),
    ("final_logit_softcapping", &["0"]),
    ("logit_scale", ONE),
    ("residual_scale", ONE),
    ("rope.scaling.attn_factor", ONE),
    ("rope.scaling.factor", ONE),
    ("rope.scaling.type", &["none"]),
    ("router_logit_softcapping", &["0"]),
    ("token_shift_count", &["2"]),
    ("use_parallel_residual", OFF),
];
