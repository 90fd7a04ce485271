#!/usr/bin/env python3
"""Writes a model of Qwen3.5's dense architecture with random weights in F16, as llama.cpp's converter lays it out, for measurements.

usage: random_qwen35.py OUTPUT.gguf [--layers 24] [--hidden 1024] [--feed-forward 3584] [--heads 16] [--vocab 248320] [--experts 0] [--chosen 8]

The defaults are the shape of Qwen3.5-0.8B: three layers of Gated DeltaNet, then one of attention. With --experts every layer has so many
feed-forward networks, of which a token takes --chosen, and one that all tokens take (architecture qwen35moe); they are copies of one.
Needs the packages gguf and numpy.
"""
import argparse

import gguf
import numpy as np

HEAD = 128  # of Gated DeltaNet
ATTENTION_HEAD = 256


def byte_tokens():
    """The 256 characters that stand for bytes in a byte-level vocabulary."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) for byte in printable] + [chr(256 + i) for i in range(len(others))]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("output")
    for name, default in [("layers", 24), ("hidden", 1024), ("feed-forward", 3584), ("heads", 16), ("vocab", 248320), ("experts", 0), ("chosen", 8)]:
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    random = np.random.default_rng(7)
    writer = gguf.GGUFWriter(args.output, "qwen35moe" if args.experts else "qwen35")

    def matrix(name, rows, columns):
        values = random.standard_normal((rows, columns), dtype=np.float32) * columns**-0.5
        writer.add_tensor(name, values.astype(np.float16))

    def experts(name, rows, columns):
        values = random.standard_normal((rows, columns), dtype=np.float32) * columns**-0.5
        writer.add_tensor(name, np.tile(values.astype(np.float16), (args.experts, 1, 1)))

    def vector(name, values):
        writer.add_tensor(name, np.ascontiguousarray(values, dtype=np.float32))

    hidden, inner = args.hidden, args.heads * HEAD
    heads, kv_heads = max(1, args.heads // 2), max(1, args.heads // 8)
    tokens = byte_tokens()
    tokens += [f"token{i}" for i in range(len(tokens), args.vocab)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen35")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * args.vocab)
    writer.add_token_merges(["t h"])
    writer.add_eos_token_id(args.vocab - 1)
    writer.add_context_length(262144)
    writer.add_embedding_length(hidden)
    writer.add_block_count(args.layers)
    writer.add_feed_forward_length(args.feed_forward)
    if args.experts:
        writer.add_expert_count(args.experts)
        writer.add_expert_used_count(args.chosen)
        writer.add_expert_feed_forward_length(args.feed_forward)
        writer.add_expert_shared_feed_forward_length(args.feed_forward)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(ATTENTION_HEAD)
    writer.add_value_length(ATTENTION_HEAD)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e7)
    writer.add_rope_dimension_count(64)
    writer.add_rope_dimension_sections([11, 11, 10, 0])
    writer.add_ssm_conv_kernel(4)
    writer.add_ssm_state_size(HEAD)
    writer.add_ssm_group_count(args.heads)
    writer.add_ssm_time_step_rank(args.heads)
    writer.add_ssm_inner_size(inner)
    writer.add_full_attention_interval(4)

    matrix("token_embd.weight", args.vocab, hidden)
    vector("output_norm.weight", np.ones(hidden))
    for layer in range(args.layers):
        block = f"blk.{layer}."
        vector(block + "attn_norm.weight", np.ones(hidden))
        vector(block + "post_attention_norm.weight", np.ones(hidden))
        if layer % 4 == 3:
            matrix(block + "attn_q.weight", 2 * heads * ATTENTION_HEAD, hidden)  # with its gate
            matrix(block + "attn_k.weight", kv_heads * ATTENTION_HEAD, hidden)
            matrix(block + "attn_v.weight", kv_heads * ATTENTION_HEAD, hidden)
            matrix(block + "attn_output.weight", hidden, heads * ATTENTION_HEAD)
            vector(block + "attn_q_norm.weight", np.ones(ATTENTION_HEAD))
            vector(block + "attn_k_norm.weight", np.ones(ATTENTION_HEAD))
        else:
            matrix(block + "attn_qkv.weight", 3 * inner, hidden)
            matrix(block + "attn_gate.weight", inner, hidden)
            vector(block + "ssm_conv1d.weight", random.standard_normal((3 * inner, 4)) * 0.5)
            vector(block + "ssm_dt.bias", random.uniform(-4, -2, args.heads))
            vector(block + "ssm_a", -random.uniform(1, 16, args.heads))
            matrix(block + "ssm_beta.weight", args.heads, hidden)
            matrix(block + "ssm_alpha.weight", args.heads, hidden)
            vector(block + "ssm_norm.weight", np.ones(HEAD))
            matrix(block + "ssm_out.weight", hidden, inner)
        if args.experts:
            vector(block + "ffn_gate_inp.weight", random.standard_normal((args.experts, hidden)) * hidden**-0.5)
            vector(block + "ffn_gate_inp_shexp.weight", random.standard_normal(hidden) * hidden**-0.5)
            experts(block + "ffn_gate_exps.weight", args.feed_forward, hidden)
            experts(block + "ffn_up_exps.weight", args.feed_forward, hidden)
            experts(block + "ffn_down_exps.weight", hidden, args.feed_forward)
        shared = "_shexp" if args.experts else ""
        matrix(block + f"ffn_gate{shared}.weight", args.feed_forward, hidden)
        matrix(block + f"ffn_up{shared}.weight", args.feed_forward, hidden)
        matrix(block + f"ffn_down{shared}.weight", hidden, args.feed_forward)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
