"""Measures an exported model, or a GGUF file with the built-in model's sizes, with the streaming decoder:
evaluate.py MODEL_DIR|MODEL.gguf --corpus DIR [--only bpb,recall,samples] [--q4] [--ablate]

bpb: sum over the held-out documents of -log2 p(token | all tokens before it), for every token after <|bos|> (including role markers and
<|eos|>), divided by the bytes of the text tokens. Documents are in the chat layout of the corpus, at most 4096 tokens of each. A token's
bytes are its exact bytes (markers have none).

recall: a name, a pet and a password are told in the first turn, followed by other talk of a given length in tokens, then one question;
greedy; the share of answers that contain the value. --ablate repeats it with an empty set, so that only the window and the recurrent state
remember.
"""

import argparse
import math
import time
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

import gguf
from facts import make_facts
from memory_chat import Writer, load_synth
from model import Config, Model, load_weights
from optim import fake_quantized
from prepare import ASSISTANT, BOS, EOS, TOKEN, USER, encode, pieces, read_jsonl
from stream import LTEState, Stream

LIMIT = 4096
DISTANCES = (256, 512, 1024, 2048, 3072, 4096)


def bits_per_byte(model, tokenizer, path, device, limit):
    docs = [d for _, d in zip(range(limit), read_jsonl(path))]
    rows = sorted(((c[:LIMIT] & TOKEN).astype("int64") for c in encode(tokenizer, [pieces(d) for d in docs])), key=len)
    size = torch.tensor([0 if i < 6 else len(tokenizer.id_to_token(i)) for i in range(tokenizer.get_vocab_size())])
    bits, count = 0.0, 0
    for i in range(0, len(rows), 256):
        part = [torch.from_numpy(r) for r in rows[i : i + 256]]
        tokens = torch.nn.utils.rnn.pad_sequence(part, batch_first=True).to(device)
        length = torch.tensor([len(r) for r in part], device=device)
        stream, nll = Stream(model, len(part), device), torch.zeros(len(part), dtype=torch.float64, device=device)
        for t in range(tokens.shape[1] - 1):
            loss = torch.nn.functional.cross_entropy(stream.step(tokens[:, t]), tokens[:, t + 1], reduction="none")
            nll += torch.where(t + 1 < length, loss, 0)
        bits += nll.sum().item() / math.log(2)
        count += sum(size[r].sum().item() for r in part)
    return bits / count, count


def turn(tokenizer, user):
    return [USER] + tokenizer.encode(user, add_special_tokens=False).ids + [ASSISTANT]


def conversation(tokenizer, writer, distance):
    """Returns the prompt's ids and the value asked for. The distance is counted from the end of the user's first turn to the question."""
    r = writer.r
    facts = make_facts(r)
    keys = ["name", "pet", "password"]
    r.shuffle(keys)
    ids = [BOS] + turn(tokenizer, writer.sentences([r.choice(facts[k].tell) for k in keys]))
    told = len(ids)
    answer = r.choice([" I will remember that.", " Okay.", " What would you like to do?"])
    ids += tokenizer.encode("Nice to meet you!" + answer, add_special_tokens=False).ids + [EOS]
    while len(ids) - told < distance:
        for user, said, _ in writer.filler(300 if distance - len(ids) + told > 300 else 20):
            ids += turn(tokenizer, user) + tokenizer.encode(said, add_special_tokens=False).ids + [EOS]
    key = r.choice(keys)
    value = facts[key].answer.rstrip(".").split(" called " if key == "pet" else " is ")[-1]
    return ids + turn(tokenizer, r.choice(facts[key].ask)), value, facts[key].answer


def generate(stream, prompts, device, steps):
    """Returns greedy continuations of prompts of different lengths, decoded in lockstep."""
    length = torch.tensor([len(p) for p in prompts], device=device)
    tokens = torch.nn.utils.rnn.pad_sequence([torch.tensor(p) for p in prompts], batch_first=True).to(device)
    total = tokens.shape[1] + steps
    tokens = torch.nn.functional.pad(tokens, (0, steps))
    for t in range(total - 1):
        best = stream.step(tokens[:, t]).argmax(-1)
        tokens[:, t + 1] = torch.where(t + 1 < length, tokens[:, t + 1], best)
    out = []
    for row, n in zip(tokens.tolist(), length.tolist()):
        reply = row[n : n + steps]
        out.append(reply[: reply.index(EOS)] if EOS in reply else reply)
    return out


def recall(model, tokenizer, synth, device, count, distances, ablate):
    cases = []
    for distance in distances:
        seed = 900000 + distance
        writer = Writer(load_synth(synth, seed), seed)
        cases += [(distance, *conversation(tokenizer, writer, distance)) for _ in range(count)]
    stream = Stream(model, len(cases), device, graph=False)
    for state in stream.states:
        if isinstance(state, LTEState) and ablate:
            state.frozen = True
    if device != "cpu":
        stream.graph = stream.capture()
    replies = [tokenizer.decode(r) for r in generate(stream, [c[1] for c in cases], device, 24)]
    for distance in distances:
        mine = [(c, r) for c, r in zip(cases, replies) if c[0] == distance]
        holds = sum(c[2] in r for c, r in mine) / len(mine)
        exact = sum(c[3] == r for c, r in mine) / len(mine)
        print(f"  distance {distance:5}: value {holds:.3f}  whole answer {exact:.3f}  ({len(mine)} conversations)", flush=True)
    for case, reply in list(zip(cases, replies))[:: max(1, len(cases) // 8)]:
        print(f"    {case[0]}: want {case[3]!r} got {reply!r}")


class Chat:
    """A conversation with the model, one token at a time."""

    def __init__(self, model, tokenizer, device, temperature, seed=0):
        self.stream, self.tokenizer, self.device, self.temperature = Stream(model, 1, device), tokenizer, device, temperature
        self.count, self.generator = 0, torch.Generator(device).manual_seed(seed)
        self.feed([BOS])

    def feed(self, ids):
        for i in ids:
            self.logits = self.stream.step(torch.tensor([i], device=self.device))
        self.count += len(ids)

    def say(self, text, steps=400):
        self.feed(turn(self.tokenizer, text))
        reply = []
        for _ in range(steps):
            if self.temperature:
                token = torch.multinomial((self.logits[0] / self.temperature).softmax(-1), 1, generator=self.generator).item()
            else:
                token = self.logits[0].argmax().item()
            if token == EOS:
                break
            reply.append(token)
            self.feed([token])
        self.feed([EOS])
        return self.tokenizer.decode(reply)


def samples(model, tokenizer, device):
    for temperature, prompts in ((0.0, ["Hello!", "Tell me a story about a dog and a red ball.", "What did the dog lose?"]),
            (0.7, ["Who are you?", "Tell me a story about a dog and a red ball.", "Who is the story about?", "What is the capital of France?", "What is 7 + 5?", "Who won the World Cup?", "Thank you!"])):
        chat = Chat(model, tokenizer, device, temperature)
        print(f"-- temperature {temperature}")
        for prompt in prompts:
            print(f"> {prompt}\n{chat.say(prompt)}", flush=True)
    print("-- memory over 2,000 tokens, all of the assistant's turns by the model, temperature 0.7 for stories")
    chat = Chat(model, tokenizer, device, 0.7)
    first = "My name is Anna. I have a cat called Miso and my password is 48213."
    print(f"> {first}\n{chat.say(first)}")
    start, i = chat.count, 0
    asks = ["Tell me a story about a dog and a red ball.", "Tell me a story about a fox and a drum.", "What is the capital of Italy?", "Tell me another story.", "A story about a girl and a boat, please."]
    while chat.count - start < 2000:
        chat.say(asks[i % len(asks)])
        i += 1
    chat.temperature = 0.0
    print(f"   ... {chat.count - start} tokens later")
    for question in ("What is my name?", "What is my cat called?", "What is the password?", "Do you remember my favorite color?"):
        print(f"> {question}\n{chat.say(question, 40)}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--only", default="bpb,recall,samples")
    parser.add_argument("--q4", action="store_true", help="with weights rounded to 4 bits (embedding 6)")
    parser.add_argument("--ablate", action="store_true")
    parser.add_argument("--count", type=int, default=64, help="conversations per distance")
    parser.add_argument("--distances", type=lambda s: tuple(map(int, s.split(","))), default=DISTANCES)
    parser.add_argument("--docs", type=int, default=10**9, help="held-out documents")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("highest")
    if args.model.is_file():
        model = Model(Config())
        model.load_state_dict(gguf.load(args.model, {k: v.shape for k, v in model.state_dict().items()}))
    else:
        model, tensors = Model(Config.load(args.model / "config.json")), {}
        for shard in sorted(args.model.glob("*.safetensors")):
            tensors |= load_file(shard)
        load_weights(model, tensors)
    model = model.to(device).eval().requires_grad_(False)
    tokenizer = Tokenizer.from_file(str(args.corpus / "tok4096" / "tokenizer.json"))
    with fake_quantized(model, args.q4):
        for what in args.only.split(","):
            begin = time.time()
            if what == "bpb":
                bpb, size = bits_per_byte(model, tokenizer, args.corpus / "heldout.jsonl.xz", device, args.docs)
                print(f"bits per byte {bpb:.4f} ({size} bytes){' 4-bit' if args.q4 else ''}")
            elif what == "recall":
                print(f"recall{' 4-bit' if args.q4 else ''}")
                recall(model, tokenizer, args.corpus / "gen_synth.py", device, args.count, args.distances, False)
                if args.ablate:
                    print("recall, nothing enters the set")
                    recall(model, tokenizer, args.corpus / "gen_synth.py", device, args.count, args.distances, True)
            elif what == "samples":
                samples(model, tokenizer, device)
            print(f"({what}: {time.time() - begin:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
