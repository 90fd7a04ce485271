#!/usr/bin/env python3
"""Writes a model with random F16 weights in the layout of llama.cpp's converter for its architecture, for measurements.

usage: random_gguf.py [--tiny] FAMILY OUTPUT.gguf [SIZE=NUMBER...]

A family has the shape of a published model (--help lists them) and a vocabulary of bytes and fillers. SIZE=NUMBER changes a size, such as
layers=8 or vocab=32000; with fewer layers, the first ones of the model are used. --tiny uses the same pattern with small sizes, for tests.
Needs the packages gguf and numpy.
"""
import argparse
import functools
import re

import gguf
import numpy as np

# Tables of tensors: each line has a kind of `Values`, a shape, rows first, in terms of the family's sizes, and the names of the tensors
# with both.
EMBEDDING = "f16 vocab, hidden: token_embd.weight\n"
TIED = EMBEDDING + "one hidden: output_norm.weight\n"
UNTIED = TIED + "f16 vocab, hidden: output.weight\n"
NORM = "one hidden: attn_norm.weight\n"
FFN_NORM = "one hidden: ffn_norm.weight\n"
POST_NORM = "one hidden: post_attention_norm.weight\n"
SQUARED_RELU = """
    f16    ff, hidden:                 ffn_up.weight
    f16    hidden, ff:                 ffn_down.weight
"""
FFN = SQUARED_RELU + "f16 ff, hidden: ffn_gate.weight\n"
EXPERTS = """
    f32    experts, hidden:            ffn_gate_inp.weight
    f16    experts, expert_ff, hidden: ffn_gate_exps.weight ffn_up_exps.weight
    f16    experts, hidden, expert_ff: ffn_down_exps.weight
    f16    expert_ff, hidden:          ffn_gate_shexp.weight ffn_up_shexp.weight
    f16    hidden, expert_ff:          ffn_down_shexp.weight
"""
ALL_BUT_QUERIES = """
    f16    kv_heads*head, hidden:      attn_k.weight attn_v.weight
    f16    hidden, heads*head:         attn_output.weight
"""
ATTENTION = ALL_BUT_QUERIES + "f16 heads*head, hidden: attn_q.weight\n"
HEAD_NORMS = "one head: attn_q_norm.weight attn_k_norm.weight\n"
GATED_ATTENTION = ALL_BUT_QUERIES + HEAD_NORMS + "f16 2*heads*head, hidden: attn_q.weight\n"
LATENT_ATTENTION = """
    f16    heads*(nope + rope), hidden: attn_q.weight
    f16    latent + rope, hidden:       attn_kv_a_mqa.weight
    one    latent:                      attn_kv_a_norm.weight
    f16    heads, latent, nope:         attn_k_b.weight
    f16    heads, value, latent:        attn_v_b.weight
    f16    hidden, heads*value:         attn_output.weight
"""
SHORT_CONVOLUTION = """
    f16    3*hidden, hidden:           shortconv.in_proj.weight
    tap    hidden, conv:               shortconv.conv.weight
    f16    hidden, hidden:             shortconv.out_proj.weight
"""
MAMBA = """
    f16    2*inner, hidden:            ssm_in.weight
    tap    inner, conv:                ssm_conv1d.weight
    bias   inner:                      ssm_conv1d.bias
    f16    rank + 2*state, inner:      ssm_x.weight
    one    rank:                       ssm_dt_norm.weight
    one    state:                      ssm_b_norm.weight ssm_c_norm.weight
    f16    inner, rank:                ssm_dt.weight
    step   inner:                      ssm_dt.bias
    decay  inner, state:               ssm_a
    one    inner:                      ssm_d
    f16    hidden, inner:              ssm_out.weight
"""
MAMBA2 = """
    f16    2*inner + 2*groups*state + ssm_heads, hidden: ssm_in.weight
    tap    inner + 2*groups*state, conv: ssm_conv1d.weight
    bias   inner + 2*groups*state:     ssm_conv1d.bias
    step   ssm_heads:                  ssm_dt.bias
    decay  ssm_heads, 1:               ssm_a
    one    ssm_heads, 1:               ssm_d
    f16    hidden, inner:              ssm_out.weight
"""
GROUP_NORM = "one groups, inner // groups: ssm_norm.weight\n"
GATED_DELTANET = """
    f16    (2*key_heads + value_heads)*state, hidden: attn_qkv.weight
    tap    (2*key_heads + value_heads)*state, conv: ssm_conv1d.weight
    f16    value_heads, hidden:        ssm_alpha.weight ssm_beta.weight
    step   value_heads:                ssm_dt.bias
    decay  value_heads:                ssm_a
    f16    value_heads*state, hidden:  attn_gate.weight
    one    state:                      ssm_norm.weight
    f16    hidden, value_heads*state:  ssm_out.weight
"""
DELTA_ATTENTION = """
    f16    heads*head, hidden:         attn_q.weight attn_k.weight attn_v.weight
    tap    1, heads*head, 1, conv:     ssm_conv1d_q.weight ssm_conv1d_k.weight ssm_conv1d_v.weight
    f16    head, hidden:               ssm_f_a.weight ssm_g_a.weight
    f16    heads*head, head:           ssm_f_b.weight ssm_g_b.weight
    f16    heads, hidden:              ssm_beta.weight
    step   heads*head:                 ssm_dt.bias
    decay  1, 1, heads, 1:             ssm_a
    one    head:                       ssm_norm.weight
    f16    hidden, heads*head:         attn_output.weight
"""
RWKV7 = """
    one    hidden:             attn_norm.weight attn_norm_2.weight time_mix_ln.weight time_mix_k_k.weight time_mix_k_a.weight
    bias   hidden:             attn_norm.bias attn_norm_2.bias time_mix_ln.bias time_mix_a0.weight time_mix_v0.weight time_mix_r_k.weight
    unit   6, 1, 1, hidden:    time_mix_lerp_fused.weight
    unit   1, 1, hidden:       channel_mix_lerp_k.weight
    step   hidden:             time_mix_w0.weight
    f32    decay_rank, hidden: time_mix_w1.weight
    f32    hidden, decay_rank: time_mix_w2.weight
    f16    rate_rank, hidden:  time_mix_a1.weight
    f16    hidden, rate_rank:  time_mix_a2.weight
    f16    gate_rank, hidden:  time_mix_g1.weight
    f16    hidden, gate_rank:  time_mix_g2.weight
    f16    hidden, hidden:     time_mix_receptance.weight time_mix_key.weight time_mix_value.weight time_mix_output.weight
    f16    ff, hidden:         channel_mix_key.weight
    f16    hidden, ff:         channel_mix_value.weight
"""
VALUE_MIX = "f16 value_rank, hidden: time_mix_v1.weight\n f16 hidden, value_rank: time_mix_v2.weight\n"

# Metadata keys without the architecture's prefix, with values in terms of the sizes; a family's own keys override them.
KEYS = """
    vocab_size                         vocab
    context_length                     262144
    embedding_length                   hidden
    block_count                        layers
    feed_forward_length                ff
    attention.head_count               heads
    attention.layer_norm_rms_epsilon   1e-5
"""
HEAD_KEYS = """
    attention.head_count_kv     kv_heads
    attention.key_length        head
    attention.value_length      head
"""
KV_HEADS_OF_LAYERS = """
    attention.head_count_kv     [kv_heads if kind == 'A' else 0 for kind in kinds]
"""
STATE_KEYS = """
    ssm.conv_kernel      conv
    ssm.inner_size       inner
    ssm.state_size       state
    ssm.time_step_rank   ssm_heads
    ssm.group_count      groups
"""
QWEN35_KEYS = HEAD_KEYS + """
    attention.layer_norm_rms_epsilon   1e-6
    rope.freq_base            1e7
    rope.dimension_count      64
    rope.dimension_sections   [11, 11, 10, 0]
    ssm.conv_kernel           conv
    ssm.state_size            state
    ssm.group_count           key_heads
    ssm.time_step_rank        value_heads
    ssm.inner_size            value_heads*state
    full_attention_interval   4
"""
EXPERT_KEYS = """
    expert_count                 experts
    expert_used_count            chosen
    expert_feed_forward_length   expert_ff
"""

# A family: the published model, its sizes, a letter for each layer, llama.cpp's name of its pre-tokenizer, keys, and tensors of the model
# and of each kind of layer. All families have a byte-level vocabulary, which llama.cpp opens with any architecture.
FAMILIES = {
    "lfm2": dict(
        model="LFM2-1.2B",
        sizes=dict(layers=16, hidden=2048, ff=8192, heads=32, kv_heads=8, head=64, conv=3, vocab=65536),
        kinds="CCACCACCACACACAC", pre="lfm2",
        keys=KV_HEADS_OF_LAYERS + "rope.freq_base 1e6\n shortconv.l_cache conv",
        tensors=EMBEDDING + "one hidden: token_embd_norm.weight",  # the output norm, despite its name
        layers={"C": NORM + SHORT_CONVOLUTION + FFN_NORM + FFN, "A": NORM + ATTENTION + HEAD_NORMS + FFN_NORM + FFN}),
    "falcon-h1": dict(
        model="Falcon-H1-0.5B",
        sizes=dict(layers=36, hidden=1024, ff=2048, heads=8, kv_heads=2, head=64, inner=1536, ssm_heads=24, groups=1, state=128, conv=4, vocab=32784),
        kinds="P", pre="falcon-h1", tensors=UNTIED,
        keys=HEAD_KEYS + STATE_KEYS + "rope.freq_base 1e11",
        layers={"P": NORM + MAMBA2 + ATTENTION + "one hidden: ffn_norm" + FFN}),
    "granitehybrid": dict(
        model="Granite-4.0-H-1B",
        sizes=dict(layers=40, hidden=1536, ff=4096, heads=12, kv_heads=4, head=128, inner=3072, ssm_heads=48, groups=1, state=128, conv=4, vocab=100352),
        kinds="MMMMMAMMMM", pre="dbrx", tensors=TIED,
        keys=KV_HEADS_OF_LAYERS + STATE_KEYS + """
            rope.dimension_count     head
            rope.scaling.finetuned   False
            attention.scale          1 / head
            embedding_scale          12.0
            residual_scale           0.22
            logit_scale              6.0
        """,
        layers={"M": NORM + MAMBA2 + GROUP_NORM + FFN_NORM + FFN, "A": NORM + ATTENTION + FFN_NORM + FFN}),
    "nemotron_h": dict(
        model="Nemotron-3-Nano-4B, 8 GB; layers=14 makes it 1.9B, 4 GB",
        sizes=dict(layers=42, hidden=3136, ff=12544, heads=40, kv_heads=8, head=128, inner=7680, ssm_heads=96, groups=8, state=128, conv=4, vocab=131072),
        kinds="M-M-M-MM-M-MA-M-MA-M-M-MA-M-M-MMA-MMM-M-M-", pre="pixtral", tensors=UNTIED,
        keys=HEAD_KEYS + KV_HEADS_OF_LAYERS + STATE_KEYS + """
            attention.layer_norm_epsilon   1e-5
            feed_forward_length            [ff if kind == '-' else 0 for kind in kinds]
            rope.dimension_count           head
            rope.scaling.finetuned         False
        """,
        layers={"M": NORM + MAMBA2 + GROUP_NORM, "A": NORM + ATTENTION, "-": NORM + SQUARED_RELU}),
    "mamba2": dict(
        model="Mamba2-1.3B",
        sizes=dict(layers=48, hidden=2048, inner=4096, ssm_heads=64, groups=1, state=128, conv=4, vocab=50288),
        kinds="M", pre="olmo", tensors=TIED,
        keys=STATE_KEYS + "feed_forward_length 0\n attention.head_count 0",
        layers={"M": NORM + MAMBA2 + GROUP_NORM}),
    "rwkv7": dict(
        model="RWKV7-World-0.4B",
        sizes=dict(layers=24, hidden=1024, ff=4096, head=64, decay_rank=64, rate_rank=64, value_rank=32, gate_rank=128, vocab=65536),
        kinds="0" + 23 * "T", pre="gpt-2",
        keys="""
            attention.layer_norm_epsilon                  1e-5
            attention.head_count                          0
            wkv.head_size                                 head
            attention.decay_lora_rank                     decay_rank
            attention.iclr_lora_rank                      rate_rank
            attention.value_residual_mix_lora_rank        value_rank
            attention.gate_lora_rank                      gate_rank
        """,
        tensors=UNTIED + "one hidden: token_embd_norm.weight\n bias hidden: token_embd_norm.bias output_norm.bias",
        layers={"T": RWKV7 + VALUE_MIX, "0": RWKV7 + VALUE_MIX.replace("value_rank", "rate_rank")}),  # a copy that is not used
    "jamba": dict(
        model="Jamba-Reasoning-3B, 6 GB",
        sizes=dict(layers=28, hidden=2560, ff=8192, heads=20, kv_heads=1, head=128, inner=5120, rank=160, state=16, conv=4, vocab=65536),
        kinds="MMMMMMMAMMMMMM", pre="gpt-2", tensors=TIED,
        keys=KV_HEADS_OF_LAYERS + "ssm.conv_kernel conv\n ssm.inner_size inner\n ssm.state_size state\n ssm.time_step_rank rank",
        layers={"M": NORM + MAMBA + FFN_NORM + FFN, "A": NORM + ATTENTION + FFN_NORM + FFN}),
    "kimi-linear": dict(
        model="Kimi-Linear-48B-A3B with 4 of 27 layers, 32 of 256 experts and a fifth of the vocabulary",
        sizes=dict(layers=4, hidden=2304, ff=9216, heads=32, head=128, latent=512, nope=128, rope=64, value=128, conv=4, experts=32,
                   chosen=8, expert_ff=1024, vocab=32768),
        kinds="DKKA" + 5 * "KKKA" + "KKA", pre="kimi-k2", tensors=UNTIED,
        keys=EXPERT_KEYS + """
            attention.head_count_kv      [1 if kind == 'A' else 0 for kind in kinds]
            ssm.conv_kernel              conv
            kda.head_dim                 head
            attention.kv_lora_rank       latent
            rope.dimension_count         rope
            attention.key_length         latent + rope
            attention.value_length       latent
            attention.key_length_mla     nope + rope
            attention.value_length_mla   value
            expert_shared_count          1
            leading_dense_block_count    1
            expert_weights_scale         2.446
            expert_gating_func           2
        """,
        layers={"D": NORM + DELTA_ATTENTION + FFN_NORM + FFN, "K": NORM + DELTA_ATTENTION + FFN_NORM + EXPERTS + "bias experts: exp_probs_b.bias",
                "A": NORM + LATENT_ATTENTION + FFN_NORM + EXPERTS + "bias experts: exp_probs_b.bias"}),
    "qwen35": dict(
        model="Qwen3.5-0.8B",
        sizes=dict(layers=24, hidden=1024, ff=3584, heads=8, kv_heads=2, head=256, key_heads=16, value_heads=16, state=128, conv=4, vocab=248320),
        kinds="DDDA", pre="qwen35", tensors=TIED,
        keys=QWEN35_KEYS,
        layers={"D": NORM + GATED_DELTANET + POST_NORM + FFN, "A": NORM + GATED_ATTENTION + POST_NORM + FFN}),
    "qwen35moe": dict(
        model="Qwen3.5-35B-A3B with 8 of 40 layers, 64 of 256 experts and an eighth of the vocabulary",
        sizes=dict(layers=8, hidden=2048, heads=16, kv_heads=2, head=256, key_heads=16, value_heads=32, state=128, conv=4,
                   experts=64, chosen=8, expert_ff=512, vocab=32000),
        kinds="DDDA", pre="qwen35", tensors=TIED,
        keys=QWEN35_KEYS + EXPERT_KEYS + "feed_forward_length expert_ff\n expert_shared_feed_forward_length expert_ff",
        layers={kind: NORM + mixer + POST_NORM + EXPERTS + "f32 hidden: ffn_gate_inp_shexp.weight"
                for kind, mixer in [("D", GATED_DELTANET), ("A", GATED_ATTENTION)]}),
}

# The maximum sizes with --tiny. Rows of 256 columns are the shortest that llama.cpp's K-quants accept.
TINY = dict(layers=14, hidden=256, ff=512, vocab=1024, heads=4, kv_heads=2, head=64, inner=512, ssm_heads=8, groups=2, state=64, rank=16,
            key_heads=2, value_heads=4, decay_rank=32, rate_rank=32, value_rank=32, gate_rank=64, latent=64, nope=32, rope=16, value=32,
            experts=8, chosen=3, expert_ff=256)


class Values:
    """Random values: `kinds` maps each kind of the tables to a function of the shape."""

    def __init__(self, count):
        random = self.random = np.random.default_rng(7)
        self.block = random.standard_normal(count, dtype=np.float32)
        self.kinds = {
            "f16": self.matrix,
            "f32": lambda shape: random.standard_normal(shape) * shape[-1] ** -0.5,
            "one": np.ones,
            "tap": lambda shape: random.standard_normal(shape) * 0.5,
            "bias": lambda shape: random.standard_normal(shape) * 0.1,
            "unit": random.random,
            "step": lambda shape: random.uniform(-4, -2, shape),
            "decay": lambda shape: random.uniform(-16, -1, shape),
        }

    @functools.cache
    def scaled(self, columns):
        return (self.block * columns**-0.5).astype(np.float16)

    def matrix(self, shape):
        """Returns a slice of one block, because drawing every matrix takes long. A larger matrix repeats the block, whose length is prime,
        so no two rows are equal."""
        block, count = self.scaled(shape[-1]), np.prod(shape)
        start = self.random.integers(max(1, len(block) - count))
        return (block[start : start + count] if count <= len(block) else np.resize(block, count)).reshape(shape)


def byte_tokens():
    """Returns the 256 characters that represent bytes in a byte-level vocabulary."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) for byte in printable] + [chr(256 + i) for i in range(len(others))]


def lines(table):
    return [line.strip() for line in table.splitlines() if line.strip()]


def write(arch, family, sizes, values, output):
    writer = gguf.GGUFWriter(output, arch)
    kinds = (family["kinds"] * sizes["layers"])[: sizes["layers"]]
    names = {**sizes, "kinds": kinds}
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    add = {int: writer.add_uint32, float: writer.add_float32, bool: writer.add_bool, list: writer.add_array}
    for key, expression in dict(line.split(None, 1) for line in lines(KEYS + family["keys"])).items():
        value = eval(expression, names)
        add[type(value)](f"{arch}.{key}", value)
    tokens = byte_tokens()
    tokens += [f"token{i}" for i in range(len(tokens), sizes["vocab"])]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(family["pre"])
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * len(tokens))
    writer.add_token_merges(["t h"])
    writer.add_eos_token_id(len(tokens) - 1)

    tables = [("", family["tensors"])] + [(f"blk.{layer}.", family["layers"][kind]) for layer, kind in enumerate(kinds)]
    for prefix, table in tables:
        for line in lines(table):
            kind, shape, tensors = re.match(r"(\w+) +(.*): +(.*)", line).groups()
            for tensor in tensors.split():
                data = values.kinds[kind](eval(f"({shape},)", names))
                writer.add_tensor(prefix + tensor, data if kind == "f16" else np.ascontiguousarray(data, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    listing = ""
    for name, family in FAMILIES.items():
        listing += f"  {name:14} {family['model']}\n{'':17}{' '.join(f'{size}={number}' for size, number in family['sizes'].items())}\n"
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], epilog=f"families:\n{listing}", formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="small sizes, for tests")
    parser.add_argument("family", choices=FAMILIES, metavar="FAMILY")
    parser.add_argument("output", metavar="OUTPUT.gguf")
    parser.add_argument("sizes", nargs="*", metavar="SIZE=NUMBER", help="other sizes than the family's")
    args = parser.parse_args()
    family = FAMILIES[args.family]
    sizes = dict(family["sizes"])
    if args.tiny:
        sizes = {name: min(size, TINY.get(name, size)) for name, size in sizes.items()}
    for name, number in (size.split("=") for size in args.sizes):
        if name not in sizes:
            parser.error(f"{args.family} has no size '{name}'")
        sizes[name] = int(number)
    write(args.family, family, sizes, Values(1_000_003 if args.tiny else 80_000_023), args.output)


if __name__ == "__main__":
    main()
