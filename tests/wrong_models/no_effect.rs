//! Keys and tensors that have no effect, with the reasons.

/// Keys that are read although some other values make the same model, with the reasons.
pub const NO_EFFECT: &[(&str, &str)] = &[
    (
        "bamba: rope_parameters.partial_rotary_factor, samba: use_conv_bias, nemotron_h: attention_bias, \
         mamba: tie_word_embeddings, samba: tie_word_embeddings",
        "the reference does the same whatever the file says",
    ),
    (
        "bailing_hybrid: rope_theta, falcon_h1: mamba_expand, falcon_mamba: expand, hax_mamba: expand, laguna: num_attention_heads, \
         granite_swa: rope_parameters.rope_theta, granitemoe_swa: rope_parameters.rope_theta, kimi_linear: tie_word_embeddings, \
         muse_glimmer: text_config.model_type, muse_glimmer: text_config.rope_parameters.rope_theta, \
         mamba: expand, samba: expand, \
         qwen3_5: text_config.model_type, qwen3_5: text_config.tie_word_embeddings, \
         qwen3_5_moe: text_config.tie_word_embeddings, gemma4: text_config.tie_word_embeddings",
        "another key says it",
    ),
    (
        "lfm2: intermediate_size, lfm2: block_ffn_dim_multiplier, lfm2: block_multiple_of, recurrent_gemma: intermediate_size, samba: hidden_ratio, jamba: attn_layer_period, \
         smollm3: no_rope_layers",
        "values that are rounded to the same, and periods longer than the model",
    ),
    (
        "gla: conv_size, hgrn2: conv_size, mom: conv_size, sse: conv_size, mamba: num_hash, granitemoehybrid: intermediate_size, hax_mamba: num_hash, \
         laguna: rope_parameters.sliding_attention.partial_rotary_factor, nemotron_h: intermediate_size, \
         nemotron_h: mlp_bias, nemotron_h: moe_intermediate_size, nemotron_h: moe_latent_size, \
         nemotron_h: moe_shared_expert_intermediate_size, nemotron_h: n_routed_experts, nemotron_h: n_shared_experts, \
         gemma4: text_config.use_double_wide_mlp, gemma4_text: use_double_wide_mlp, gemma4_text: num_experts, \
         gemma4_text: moe_intermediate_size, qwen3: layer_types, qwen3: sliding_window, smollm3: layer_types, smollm3: sliding_window, qwen3_next: decoder_sparse_step, \
         qwen3_next: moe_intermediate_size, qwen3_next: num_experts, raven: gate_logit_normalizer, raven: rope_theta, qwen3_next: shared_expert_intermediate_size, \
         sse_swa_moba: attn.num_heads, sse_swa_moba: attn.num_kv_heads, sse_swa_moba: attn.qk_norm, sse_swa_moba: attn.qkv_bias, \
         sse_swa_moba: num_v_heads, sse_swa_moba: sse_layer_defaults.gate_low_rank_dim",
        "parts that the case does not have: convolutions, experts, windows, layers of attention",
    ),
];

/// Tensors for which other values give the same logits, with the reasons.
pub const NO_EFFECT_IN_TENSORS: &[(&str, &str)] = &[
    (
        "model.l1_lambda model.num_kept *.diagonal_decay *.key_decay *.query_decay *.slope_rate model.visual.* model.vision_*",
        "nothing reads them",
    ),
    ("mtp.*", "blocks that draft, which these sessions do not"),
    (
        "model.layers.3.mlp.experts.4.*",
        "an expert that no token of this test chooses",
    ),
    (
        "*.attn.A_log *.attn.a_proj.weight *.attn.dt_bias",
        "the decay of a case without one",
    ),
    (
        "*.bias *.router.conv_stack.convs.*.weight *.router.conv_stack.proj.weight",
        "scores that are only compared, and biases of zero",
    ),
];

/// Keys of GGUF files for which some other values make the same model, with the reasons.
pub const NO_EFFECT_IN_GGUF: &[(&str, &str)] = &[
    (
        "general.* quantize.imatrix.* tokenizer.ggml.padding_token_id *.context_length *.vocab_size *.rope.scaling.finetuned",
        "where the file comes from, and lengths that bound nothing",
    ),
    (
        "tokenizer.ggml.add_bos_token tokenizer.ggml.add_space_prefix tokenizer.ggml.unknown_token_id",
        "tokenizers without such a token",
    ),
    (
        "kimi-linear.attention.value_length granite_swa.attention.sliding_window_pattern",
        "another key says it, and a period longer than the model",
    ),
    (
        "nemotron_h.attention.layer_norm_epsilon nemotron_h_moe.attention.layer_norm_epsilon \
         rwkv7.attention.layer_norm_rms_epsilon *.rope.dimension_count *.rope.freq_base *.rope.dimension_sections \
         *.feed_forward_length *.expert_shared_count mamba.attention.head_count mamba2.attention.head_count rwkv7.attention.head_count",
        "parts that the file does not have: another kind of norm, positions, dense networks",
    ),
];
