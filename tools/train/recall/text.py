"""Text as an experiment's task: rows of books for training, and other books for the loss of trained models.

    text.py CORPUS OUT    writes OUT/train.npy (token numbers of the books, BOS before each), held.jsonl, and the tokenizer's files

CORPUS is the folder of the built-in model's corpus (tools/train).
"""

import json
import lzma
import shutil
import sys
from pathlib import Path

TASK = "text"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
BOS = 1
MOST = 8_000_000  # tokens of train.npy


def books(path):
    with lzma.open(path, "rt") as file:
        for line in file:
            document = json.loads(line)
            if document["kind"] == "book":
                yield document["text"]


def windows(generator, text, count, length):
    """Returns rows that begin anywhere in `text` [tokens], after a BOS, and which of their tokens are followed by one to predict."""
    import torch

    device = generator.device
    start = (torch.rand(count, 1, generator=generator, device=device) * (len(text) - length)).long()
    tokens = text[start + torch.arange(length, device=device)]
    tokens[:, 0] = BOS
    asked = torch.ones(count, length, dtype=torch.bool, device=device)
    asked[:, -1] = False
    return tokens, asked, torch.zeros(count, dtype=torch.long, device=device)


def load(folder, device):
    """Returns the tokens of the training text."""
    import numpy
    import torch

    return torch.from_numpy(numpy.load(folder / "train.npy").astype("int16")).to(device)


def add_tokenizer(folder, model):
    """Copies the text's tokenizer to a model's directory, which lets `waterline convert` read text with it."""
    for name in TOKENIZER:
        shutil.copy(folder / name, model / name)


def main():
    import numpy
    import tokenizers

    corpus, out = Path(sys.argv[1]), Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    for name in TOKENIZER:
        shutil.copyfile(corpus / "tok4096" / name, out / name)
    tokenizer = tokenizers.Tokenizer.from_file(str(out / "tokenizer.json"))
    encoded = tokenizer.encode_batch(list(books(corpus / "corpus.jsonl.xz")), add_special_tokens=False)
    tokens = numpy.concatenate([numpy.array([BOS] + e.ids, dtype=numpy.uint16) for e in encoded])
    numpy.save(out / "train.npy", tokens[:MOST])
    with open(out / "held.jsonl", "w") as file:
        file.writelines(json.dumps({"text": book}) + "\n" for book in books(corpus / "heldout.jsonl.xz"))


if __name__ == "__main__":
    main()
