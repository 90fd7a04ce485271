"""Writes a checkpoint as a Hugging Face directory, in shards small enough to copy: export.py CHECKPOINT TOKENIZER_DIR OUT.

Matrices and the embedding are f16; norms, convolutions, decays, gates and routers stay f32.
"""

import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from model import is_matrix

SHARD = 15_000_000  # bytes


def main():
    checkpoint, tokenizer, out = map(Path, sys.argv[1:4])
    saved = torch.load(checkpoint, map_location="cpu", weights_only=False)
    out.mkdir(parents=True, exist_ok=True)
    shards, size = [{}], 0
    for name, tensor in saved["model"].items():
        if is_matrix(name, tensor) or "embeddings" in name:
            tensor = tensor.to(torch.float16)
        tensor = tensor.contiguous()
        if size + tensor.nbytes > SHARD:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += tensor.nbytes
    index = {"metadata": {"total_size": sum(t.nbytes for s in shards for t in s.values())}, "weight_map": {}}
    for i, shard in enumerate(shards):
        file = f"model-{i + 1:05}-of-{len(shards):05}.safetensors"
        save_file(shard, out / file, metadata={"format": "pt"})
        index["weight_map"] |= {name: file for name in shard}
    (out / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))
    (out / "config.json").write_text(json.dumps(saved["config"], indent=1))
    if tokenizer.is_dir():
        # Written without spaces: the file is embedded in the program's model, which is limited to 12 MiB.
        vocabulary = json.loads((tokenizer / "tokenizer.json").read_text(encoding="utf-8"))
        # Every text begins with the token that begins a document.
        bos = {"SpecialToken": {"id": "<|bos|>", "type_id": 0}}
        sequences = [{"Sequence": {"id": name, "type_id": number}} for number, name in enumerate("AB")]
        vocabulary["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [bos, sequences[0]],
            "pair": [bos, *sequences],
            "special_tokens": {"<|bos|>": {"id": "<|bos|>", "ids": [1], "tokens": ["<|bos|>"]}},
        }
        (out / "tokenizer.json").write_text(json.dumps(vocabulary, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")
        shutil.copy(tokenizer / "tokenizer_config.json", out / "tokenizer_config.json")
    print(f"{len(shards)} shards, {index['metadata']['total_size'] / 1e6:.1f} MB, step {saved['step']}")


if __name__ == "__main__":
    main()
