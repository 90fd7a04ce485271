"""Makes ARCHITECTURE-mtp.gguf, a tiny random model with an MTP block: qwen35, qwen35moe or qwen3next. drafts.cpp beside it prints what
llama.cpp's block drafts.

    pip install numpy
    for architecture in qwen35 qwen35moe qwen3next; do
      python make_mtp.py LLAMA_CPP_SOURCES $architecture; ./drafts $architecture-mtp.gguf > $architecture-mtp.json
    done
"""

import sys
from pathlib import Path

import numpy as np

sys.path[:0] = [f"{sys.argv[1]}/gguf-py"]

import gguf

ARCHITECTURE = sys.argv[2]
PATH = Path(__file__).with_name(f"{ARCHITECTURE}-mtp.gguf")
VOCAB, HIDDEN, WIDE, LAYERS = 72, 32, 40, 2
HEADS, KV_HEADS, HEAD = 4, 2, 12
KEYS, VALUES, DELTA = 2, 4, 8
EXPERTS, USED, EXPERT = 4, 2, 16
DENSE = ARCHITECTURE == "qwen35"

random = np.random.default_rng(1)
writer = gguf.GGUFWriter(str(PATH), ARCHITECTURE)


def add(name, *shape):
    """Values that keep activations of order one."""
    x = random.uniform(-1, 1, shape)
    if name.endswith("norm.weight"):
        x = 1 + 0.3 * x
    elif name.endswith("ssm_a"):
        x = -np.exp(x)
    elif len(shape) > 1:
        x = 2 * x / np.sqrt(shape[-1])
    writer.add_tensor(name, x.astype(np.float32))


def feed_forward(block):
    if DENSE:
        for name, shape in {"gate": (WIDE, HIDDEN), "up": (WIDE, HIDDEN), "down": (HIDDEN, WIDE)}.items():
            add(f"blk.{block}.ffn_{name}.weight", *shape)
        return
    add(f"blk.{block}.ffn_gate_inp.weight", EXPERTS, HIDDEN)
    add(f"blk.{block}.ffn_gate_inp_shexp.weight", HIDDEN)
    for name, shape in {"gate": (EXPERT, HIDDEN), "up": (EXPERT, HIDDEN), "down": (HIDDEN, EXPERT)}.items():
        add(f"blk.{block}.ffn_{name}_exps.weight", EXPERTS, *shape)
        add(f"blk.{block}.ffn_{name}_shexp.weight", *shape)


def attention(block):
    for name, shape in {
        "q": (2 * HEADS * HEAD, HIDDEN),
        "k": (KV_HEADS * HEAD, HIDDEN),
        "v": (KV_HEADS * HEAD, HIDDEN),
        "output": (HIDDEN, HEADS * HEAD),
        "q_norm": (HEAD,),
        "k_norm": (HEAD,),
    }.items():
        add(f"blk.{block}.attn_{name}.weight", *shape)


def recurrent(block):
    width = (2 * KEYS + VALUES) * DELTA
    for name, shape in {
        "attn_qkv.weight": (width, HIDDEN),
        "attn_gate.weight": (VALUES * DELTA, HIDDEN),
        "ssm_conv1d.weight": (width, 4),
        "ssm_dt.bias": (VALUES,),
        "ssm_a": (VALUES,),
        "ssm_norm.weight": (DELTA,),
        "ssm_out.weight": (HIDDEN, VALUES * DELTA),
    }.items():
        add(f"blk.{block}.{name}", *shape)
    if ARCHITECTURE == "qwen3next":
        add(f"blk.{block}.ssm_ba.weight", 2 * VALUES, HIDDEN)
    else:
        add(f"blk.{block}.ssm_alpha.weight", VALUES, HIDDEN)
        add(f"blk.{block}.ssm_beta.weight", VALUES, HIDDEN)


writer.add_tokenizer_model("none")
writer.add_vocab_size(VOCAB)
writer.add_context_length(256)
writer.add_embedding_length(HIDDEN)
writer.add_block_count(LAYERS + 1)
writer.add_nextn_predict_layers(1)
writer.add_feed_forward_length(WIDE)
writer.add_head_count(HEADS)
writer.add_head_count_kv(KV_HEADS)
writer.add_key_length(HEAD)
writer.add_value_length(HEAD)
writer.add_rope_dimension_count(8)
writer.add_rope_dimension_sections([2, 1, 1, 0])
writer.add_rope_freq_base(1000.0)
writer.add_layer_norm_rms_eps(1e-6)
writer.add_ssm_conv_kernel(4)
writer.add_ssm_state_size(DELTA)
writer.add_ssm_group_count(KEYS)
writer.add_ssm_time_step_rank(VALUES)
writer.add_ssm_inner_size(VALUES * DELTA)
writer.add_full_attention_interval(LAYERS)
if not DENSE:
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(USED)
    writer.add_expert_feed_forward_length(EXPERT)
    writer.add_expert_shared_feed_forward_length(EXPERT)
add("token_embd.weight", VOCAB, HIDDEN)
add("output_norm.weight", HIDDEN)
add("output.weight", VOCAB, HIDDEN)
for block in range(LAYERS + 1):
    add(f"blk.{block}.attn_norm.weight", HIDDEN)
    add(f"blk.{block}.post_attention_norm.weight", HIDDEN)
    recurrent(block) if block < LAYERS - 1 else attention(block)
    feed_forward(block)
add(f"blk.{LAYERS}.nextn.eh_proj.weight", HIDDEN, 2 * HIDDEN)
for name in "enorm", "hnorm", "shared_head_norm":
    add(f"blk.{LAYERS}.nextn.{name}.weight", HIDDEN)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
