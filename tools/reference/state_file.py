"""Reads a state file by runtime/docs/state-format.md alone, with Python's standard library.

    python3 tools/reference/state_file.py BOOK.state                    lists the checkpoints and checks every hash
    python3 tools/reference/state_file.py BOOK.state NAME [--layer N] [--record N] [-o FILE]
                                                                        writes a tensor's bytes; the last record by default
"""

import argparse
import hashlib
import json
import struct
import sys

SIZES = {"f16": 2, "f32": 4, "u32": 4, "u64": 8}
NAMES = ("position", "tokens", "grid", "hash", "seed", "draws", "rows", "state", "logits", "note", "last")


def padded(count):
    return -(-count // 64) * 64


def sha256(*parts):
    return hashlib.sha256(b"".join(parts)).digest()


class StateFile:
    """A file with its header and records. Every hash is checked."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self.bytes = file.read()
        magic, length = struct.unpack_from("<8sQ", self.bytes)
        if magic != b"WLSTATE4":
            raise ValueError(f"{path}: not a state file of this version")
        self.header = json.loads(self.bytes[16:16 + length])
        at = padded(16 + length)
        chain, tokens_hash = sha256(self.bytes[:at]), bytes(32)
        self.records = []
        while at < len(self.bytes):
            record = self.record(at, chain, tokens_hash)
            chain, tokens_hash, at = record["chain"], record["hashes"][0], record["end"]
            self.records.append(record)
        if not self.records or self.records[-1]["last"] != 1:
            raise ValueError(f"{path}: the last record is missing")

    def record(self, at, chain, tokens_hash):
        index, head = len(self.records), self.bytes[at:at + 256]
        if len(head) < 256 or head[:8] != b"WLRECORD":
            raise ValueError(f"record {index}: no head at byte {at}")
        record = dict(zip(NAMES, struct.unpack_from("<11Q", head, 8)))
        record["hashes"] = [head[96:128], head[128:160], head[160:192]]
        record["chain"] = sha256(chain, head[:192])
        if record["chain"] != head[192:224]:
            raise ValueError(f"record {index}: the chain of hashes breaks")
        sizes = (4 * record["tokens"], record["rows"], record["state"], 4 * record["logits"], record["note"])
        offsets = [at + 256]
        for size in sizes:
            offsets.append(offsets[-1] + padded(size))
        record["end"] = offsets[-1]
        if record["end"] > len(self.bytes):
            raise ValueError(f"record {index}: the file ends in its sections")
        tokens = self.bytes[offsets[0]:offsets[0] + sizes[0]]
        found = [
            sha256(tokens_hash, tokens),
            sha256(self.bytes[offsets[1]:offsets[2]]),
            sha256(self.bytes[offsets[2]:offsets[5]]),
        ]
        for name, one, other in zip(("tokens", "rows", "state"), record["hashes"], found):
            if one != other:
                raise ValueError(f"record {index}: its {name} have another hash")
        record["offsets"] = offsets
        record["start"] = self.records[-1]["position"] if self.records else 0
        return record

    def tensor(self, name, layer=None, index=-1):
        """The bytes of a tensor, or of the logits, at a record."""
        index %= len(self.records)
        record = self.records[index]
        if name == "logits":
            return self.bytes[record["offsets"][3]:][:4 * record["logits"]]
        at = record["offsets"][2]
        for entry in self.header["tensors"][4:]:
            size = SIZES[entry["dtype"]]
            for length in entry["shape"]:
                size *= length
            if (entry["name"], entry["layer"]) == (name, layer):
                return self.rows(entry, index) if entry["rows"] else self.bytes[at:at + size]
            if not entry["rows"]:
                at += padded(size)
        raise KeyError(f"no tensor {name} in layer {layer}")

    def rows(self, wanted, index):
        """The rows of a tensor of full attention, gathered from all records up to `index`."""
        dimension, tokens = wanted["rows"]["dimension"], wanted["rows"]["tokens"]
        outer = [1]
        for length in wanted["shape"][:dimension]:
            outer[0] *= length
        parts = [bytearray() for _ in range(outer[0])]
        for record in self.records[:index + 1]:
            at = record["offsets"][1]
            for entry in self.header["tensors"][4:]:
                if not entry["rows"]:
                    continue
                count, first, end, row = self.extent(entry, record)
                for part in range(count):
                    if entry is wanted:
                        del parts[part][first * row:]
                        parts[part] += self.bytes[at:at + (end - first) * row]
                    at += (end - first) * row
        return b"".join(parts)

    def extent(self, entry, record):
        """Of a record: the parts of a tensor, the first row and the end in each, and the bytes of a row."""
        dimension, tokens = entry["rows"]["dimension"], entry["rows"]["tokens"]
        count, row, held = 1, SIZES[entry["dtype"]], entry["shape"][dimension]
        for length in entry["shape"][:dimension]:
            count *= length
        for length in entry["shape"][dimension + 1:]:
            row *= length
        if record["start"] == record["position"]:
            return count, 0, 0, row
        first, end = record["start"] // tokens, -(-record["position"] // tokens)
        return count, min(first, held), min(end, held), row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("name", nargs="?")
    parser.add_argument("--layer", type=int)
    parser.add_argument("--record", type=int, default=-1)
    parser.add_argument("-o", "--output")
    args = parser.parse_args()
    state = StateFile(args.file)
    if args.name:
        found = state.tensor(args.name, args.layer, args.record)
        with open(args.output, "wb") if args.output else sys.stdout.buffer as out:
            out.write(found)
        return
    print(f"model {state.header['model']} ({state.header['name']}), read on {state.header['device']}")
    for index, record in enumerate(state.records):
        print(f"{index:5} {record['position']:9} tokens  {record['hashes'][0].hex()}")


if __name__ == "__main__":
    try:
        main()
    except (ValueError, KeyError, OSError) as error:
        sys.exit(f"state_file.py: {error}")
