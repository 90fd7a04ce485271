"""Makes mamba.gguf, mamba2.gguf and logits.json: tiny random models as llama.cpp's converter writes them, and what
llama.cpp computes from them.

    pip install torch transformers llama-cpp-python
    python make.py LLAMA_CPP_SOURCES        (llama-cpp-python's source archive has them under vendor/llama.cpp)
"""

import json
import sys
import tempfile
from pathlib import Path

import torch
from transformers import Mamba2Config, Mamba2ForCausalLM, MambaConfig, MambaForCausalLM

SOURCES = sys.argv[1]
sys.path[:0] = [f"{SOURCES}/gguf-py", SOURCES]

import gguf
import llama_cpp
from conversion import mamba

torch.manual_seed(1)
COMMON = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "initializer_range": 0.3}
MODELS = {
    "mamba": (MambaForCausalLM(MambaConfig(**COMMON, state_size=8)), mamba.MambaModel),
    "mamba2": (
        Mamba2ForCausalLM(Mamba2Config(**COMMON, num_heads=4, head_dim=16, n_groups=2, state_size=16)),
        mamba.Mamba2Model,
    ),
}
TOKENS = [7 * i * i % 64 for i in range(20)]


def no_vocabulary(self):
    """In place of the tokenizer, which these models lack."""
    self.gguf_writer.add_tokenizer_model("none")
    self.gguf_writer.add_vocab_size(self.hparams["vocab_size"])


def logits(path):
    model = llama_cpp.Llama(str(path), n_ctx=64, logits_all=True, verbose=False)
    model.eval(TOKENS)
    return [[float(f"{x:.7g}") for x in row] for row in model.scores[: len(TOKENS)].tolist()]


def main():
    results = {"tokens": TOKENS}
    for name, (model, converter) in MODELS.items():
        for parameter in model.parameters():
            if parameter.dim() == 1 and parameter.abs().max() in (0.0, 1.0):
                parameter.data += 0.3 * torch.randn_like(parameter)  # norms, biases and skips that do something
        path = Path(__file__).with_name(f"{name}.gguf")
        converter.set_vocab = no_vocabulary
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            converter(Path(folder), gguf.LlamaFileType.ALL_F32, path).write()
        results[name] = logits(path)
    Path(__file__).with_name("logits.json").write_text(json.dumps(results) + "\n")


main()
