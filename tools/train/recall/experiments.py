"""The experiments: for each paper the models to compare, their initial values, their training rows, and their questions.

An arm is one model of an experiment. Its configuration is the content of config.json; `prepare` changes initial values that no
configuration covers. All arms of an experiment see the same rows in the same order.
"""

import math
from dataclasses import dataclass, field

import torch

from joint import authors_start
from models import SHARED
from train import OPEN

SEEDS = (1, 2, 3, 4, 5)


@dataclass
class Stage:
    steps: int
    rows: int  # for each seed in a step
    length: int  # tokens of a row
    most: int  # pairs


@dataclass
class Arm:
    config: dict
    prepare: object = field(default=lambda model: None)  # changes a model's initial values
    without: tuple = ()  # switches of `waterline eval recall` that the table has
    converted: dict = field(default_factory=dict)  # further rows of the table: options of `waterline convert` on the trained model
    rate: float = 3e-3  # learning rate
    control: str = ""  # the arm that the table of a loss compares with


@dataclass
class Experiment:
    arms: dict
    stages: tuple
    tasks: tuple  # that training rows are drawn from
    asked: tuple  # (task, keys, length) of the table
    open: tuple = OPEN  # (progress, share): until this progress, this share of the rows is open (see `partitions_used` and LTE)


SMALL = SHARED | {"hidden_size": 64}
FLA = SMALL | {"num_hidden_layers": 2, "intermediate_size": 128, "hidden_act": "swish", "norm_eps": 1e-6, "attn": None,
    "use_short_conv": True, "conv_size": 4}


def gla(heads=4, expand_k=1.0, expand_v=1.0, gates=None):
    """Returns GLA, or with `gates` softmax linear attention, whose gates read `hidden` or each `head`."""
    config = FLA | {"model_type": "gla", "num_heads": heads, "expand_k": expand_k, "expand_v": expand_v, "use_output_gate": True}
    return config if gates is None else config | {"model_type": "softmax_gla", "sla_gate_input": gates}


def retnet(gates=None):
    config = FLA | {"model_type": "retnet", "num_heads": 4, "expand_k": 1.0, "expand_v": 1.0}
    del config["use_short_conv"], config["conv_size"]
    return config if gates is None else config | {"model_type": "softmax_retnet", "sla_gate_input": gates}


def gdn(heads=4, head_dim=16, gates=None, **more):
    config = FLA | {"model_type": "gated_deltanet", "num_heads": heads, "head_dim": head_dim, "expand_v": 1.0, "use_gate": True} | more
    return config if gates is None else config | {"model_type": "softmax_gated_deltanet", "sla_gate_input": gates}


# A first layer that sees four tokens binds a value to its key, so that the second layer needs no convolutions, which SSE's partitions lack.
BINDING = {"attn": {"layers": [0], "num_heads": 4, "num_kv_heads": 4, "window_size": 4, "qkv_bias": False, "rope_theta": 1e4},
    "use_short_conv": False}


def gsa(slots):
    """Returns GSA with one head, after a layer that binds: with several small heads and convolutions the logits of the slots are so small at
    first that their softmax is uniform, and no gradient tells the slots apart."""
    return FLA | BINDING | {"model_type": "gsa", "num_heads": 1, "expand_k": 1, "expand_v": 1, "num_slots": slots, "feature_map": "swish",
        "gate_logit_normalizer": 8}


def sse(partitions, softmax_keys=True):
    """Returns SSE with two heads of 16, where each token uses one partition, after a layer that binds."""
    return FLA | BINDING | {"model_type": "sse_swa_moba", "layer_types": ["sliding_attention", "sse"], "num_heads": 2, "head_dim": 16,
        "expand_v": 1.0, "linear_attn_type": "gla", "num_sparse_partition": partitions, "num_writer": 1, "num_reader": 1, "sse_lora": True,
        "use_output_gate": True, "sse_layer_defaults": {"emulk": True, "emulq": True, "gate_logit_normalizer": 16,
            "gate_low_rank_dim": 16, "use_k_softmax": softmax_keys, "use_q_softmax": False}}


def mamba2(sources=None, hidden=64):
    """Returns Mamba-2 in its sizes of HAX's paper; `sources` of HAX see 32 tokens in total."""
    config = SHARED | {"hidden_size": hidden, "model_type": "mamba2", "num_hidden_layers": 2, "state_size": 32, "expand": 2,
        "num_heads": 8, "head_dim": hidden // 4, "n_groups": 1, "conv_kernel": 4, "use_conv_bias": True, "use_bias": False,
        "hidden_act": "silu", "layer_norm_epsilon": 1e-5}
    if sources is None:
        return config
    return config | {"model_type": "hax_mamba2", "sparse_arch": sources, "sparse_keys": 32, "num_hash": 8, "hax_stats": "running"}


def hybrid(**attention):
    """Returns one head of 16 of Gated DeltaNet, followed by attention. LTE has a window of 16 and retains 32 older tokens."""
    base = {"layers": [1], "num_heads": 4, "num_kv_heads": 4, "qkv_bias": False, "rope_theta": 1e6}
    return gdn(heads=1, attn=base | attention)


def lte(taps):
    layers = len(taps)
    config = hybrid(attn_type="lte", window_size=15, buffer_size=32, sink_size=1, conv_size=list(taps), conv_dilation=[2] * layers,
        receptive_margin=sum(t - 1 for t in taps), routing_shared="head", routing_method="sigmoid")
    return config | {"model_type": "hybrid_gated_deltanet"}


def memory(tokens):
    """Initializes all channels of GLA with this memory."""
    share = math.exp(-16 / tokens)

    def prepare(model):
        with torch.no_grad():
            for layer in model.model.layers:
                if hasattr(layer.attn, "gk_proj"):
                    layer.attn.gk_proj[1].bias.fill_(math.log(share / (1 - share)))

    return prepare


def partitions_used(model):
    """Leaves SSE's shared state out of open rows, so that recall must be learned from the partitions, and makes the router's first choices
    eight times as decided: with a uniform router the partitions' share of the output falls with the square of their number."""
    layer = model.model.layers[-1].attn
    layer.closes = True
    with torch.no_grad():
        layer.e_proj.weight.mul_(8)


# Models of text: three layers 128 wide over the vocabulary of the built-in model.
TEXT = {"vocab_size": 4096, "hidden_size": 128, "num_hidden_layers": 3, "intermediate_size": 256}
OF_SSE = ("partitions", "shared")
OF_GATES = ("read-gate", "write-gate", "read-gate,write-gate")
OF_SLOTS = ("slot-read", "slot-decay", "slot-read,slot-decay")
# The initial memory of GSA's slots with normalizer 8: sigmoid(0)^(1/8) per token.
SHORT = 8 / math.log(2)
RATES = (1e-3, 3e-3, 1e-2)

# As many tokens as LTE retains, for the model with attention to all tokens.
RETAINED = ("--window", "16", "--retained", "32", "--sink", "1")

# Of tables, the most pairs of a stage are the most contexts, and the most keys of each.
TABLES = (Stage(500, 64, 22, 2), Stage(1000, 64, 74, 4), Stage(600, 64, 158, 6), Stage(1000, 32, 274, 8), Stage(600, 12, 602, 12),
    Stage(1000, 6, 1058, 16))
FIRST = (Stage(3000, 128, 32, 6), Stage(1200, 64, 96, 22), Stage(1000, 48, 224, 54))

EXPERIMENTS = {
    "sse": Experiment(
        {
            "gla": Arm(gla(2, 0.5, 0.5) | BINDING, rate=1e-3),
            "gla-bytes-of-n4": Arm(gla(2, 1.0, 1.25) | BINDING, rate=1e-3),
            "n1": Arm(sse(1), partitions_used, OF_SSE, rate=1e-3),
            "n4": Arm(sse(4), partitions_used, OF_SSE, rate=1e-3),
            "n16": Arm(sse(16), partitions_used, OF_SSE, rate=1e-3),
            "n1-silu-keys": Arm(sse(1, softmax_keys=False), partitions_used, OF_SSE, rate=1e-3),
            "n4-silu-keys": Arm(sse(4, softmax_keys=False), partitions_used, OF_SSE, rate=1e-3),
            "n16-silu-keys": Arm(sse(16, softmax_keys=False), partitions_used, OF_SSE, rate=1e-3),
        },
        (Stage(8000, 128, 32, 6),) + FIRST[1:] + (Stage(2500, 32, 512, 126),), ("mqar",),
        (("mqar", 32, 0), ("mqar", 64, 0), ("mqar", 96, 0), ("mqar", 128, 0)), ((1.0, 0.5),)),
    "hax": Experiment(
        {
            name: Arm(config, authors_start, ("attention",) if "sparse_arch" in config else (), rate=5e-3)
            for name, config in (
                ("mamba2", mamba2()),
                ("double-width", mamba2(hidden=128)),
                ("window", mamba2("sliding_window")),
                ("lsh", mamba2("sign_bin_lsh")),
                ("key-selection", mamba2("key_selection")),
                ("hax", mamba2("sign_bin_lsh+key_selection")),
            )
        },
        TABLES, ("table",), (("table", 64, 0), ("table", 144, 0), ("table", 256, 0))),
    "sla": Experiment(
        {
            "gla": Arm(gla() | TEXT),
            "gla-gates": Arm(gla(gates="hidden") | TEXT, without=OF_GATES, control="gla"),
            "retnet": Arm(retnet() | TEXT),
            "retnet-gates": Arm(retnet("hidden") | TEXT, without=OF_GATES, control="retnet"),
            "gdn": Arm(gdn(head_dim=32) | TEXT),
            "gdn-gates": Arm(gdn(head_dim=32, gates="hidden") | TEXT, without=OF_GATES, control="gdn"),
        },
        (Stage(1500, 32, 512, 0),), ("text",), (("text", 0, 512),)),
    "gsa": Experiment(
        {
            f"{name}-rate-{rate:g}": Arm(config, prepare, switches, rate=rate)
            for rate in RATES
            for name, config, prepare, switches in (
                ("gla", gla(1, 2.0) | BINDING, memory(SHORT), ()),
                ("gla-half", gla(1, 1.0) | BINDING, memory(SHORT), ()),
                ("gsa", gsa(64), lambda model: None, OF_SLOTS),
                ("gsa-half", gsa(32), lambda model: None, OF_SLOTS),
            )
        },
        (Stage(6000, 256, 32, 6),) + FIRST[1:] + (Stage(2500, 32, 512, 126),), ("mqar",),
        (("mqar", 32, 0), ("mqar", 64, 0), ("mqar", 96, 0), ("mqar", 128, 0))),
    "lalte": Experiment(
        {
            "gdn": Arm(gdn(heads=1)),
            "gdn-swa": Arm(hybrid(window_size=16), without=("attention",)),
            "gdn-swa-48": Arm(hybrid(window_size=48), without=("attention",)),
            "lalte": Arm(lte((3, 3, 3)), without=("set", "attention")),
            "lalte-mlp": Arm(lte((1,)), without=("set", "attention")),
            "gdn-attn": Arm(hybrid(), without=("attention",), converted={
                "tova": ("--retain", "tova", *RETAINED), "stride": ("--retain", "stride=32", *RETAINED)}),
        },
        (Stage(1500, 128, 48, 2), Stage(600, 64, 128, 3), Stage(600, 32, 320, 4), Stage(1400, 12, 1024, 4)), ("marked",),
        (("marked", 4, 256), ("marked", 4, 512), ("marked", 4, 1024))),
}


def runs(names):
    """Yields (experiment, arm) for names such as `sse` or `sse/n4`, in their order."""
    for name in names:
        experiment, _, arm = name.partition("/")
        for found in EXPERIMENTS[experiment].arms:
            if arm in ("", found):
                yield experiment, found
