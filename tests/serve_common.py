"""Shared by the scripts that test `waterline serve`: starting a server, and a model that thinks and calls tools."""

import array
import contextlib
import json
import signal
import struct
import subprocess
import threading

ROWS = 264
IM_END, THINK, THINK_END, CALL, PAYLOAD, CALL_END = 257, 258, 259, 260, 261, 262
CALLED = {"city": "Paris", "days": 3}
TEMPLATE = (
    "{% if tools %}{{ tools | tojson }} <tool_call>{\"name\"...}</tool_call>{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% if m.tool_calls %}{% for c in m.tool_calls %}<tool_call>{{ c.function.arguments | tojson }}</tool_call>{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant"
    "{% if enable_thinking is defined and enable_thinking %}<think>"
    "{% elif tools and messages[-1].role != 'tool' %};{% else %}:{% endif %}{% endif %}"
)


def write_table(folder, otherwise="x"):
    """Writes a model whose next token is a function of the last: it answers "Hi", thinks "Hm" and calls one tool. Other letters are
    followed by `otherwise`."""
    payload = "\n" + json.dumps({"name": "get_weather", "arguments": CALLED}) + "\n"
    names = ["<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", payload, "</tool_call>"]
    printable = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b <= 255]
    others = iter(range(256, 1000))
    letters = [chr(b) if b in printable else chr(next(others)) for b in range(256)]
    added = [
        {"id": 256 + i, "content": name, "special": i < 2, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        for i, name in enumerate(names)
    ]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer = {
        "version": "1.0", "added_tokens": added, "pre_tokenizer": level, "decoder": level,
        "model": {"type": "BPE", "vocab": {c: i for i, c in enumerate(letters)}, "merges": []},
    }
    follows = [ord(otherwise)] * ROWS
    for last, following in [
        (":", "H"), ("H", "i"), ("i", IM_END), (THINK, "h"), ("h", "m"), ("m", THINK_END), (THINK_END, CALL),
        (";", CALL), (CALL, PAYLOAD), (PAYLOAD, CALL_END), (CALL_END, IM_END), ("x", IM_END),
    ]:
        code = lambda x: ord(x) if isinstance(x, str) else x
        follows[code(last)] = code(following)
    square = lambda place: array.array("f", (1.0 if place(r, c) else 0.0 for r in range(ROWS) for c in range(ROWS)))
    layer = "model.layers.0."
    tensors = {
        "model.embed_tokens.weight": ([ROWS, ROWS], square(lambda r, c: r == c)),
        "lm_head.weight": ([ROWS, ROWS], square(lambda r, c: follows[c] == r)),
        "model.norm.weight": ([ROWS], array.array("f", [8.0] * ROWS)),
        layer + "input_layernorm.weight": ([ROWS], array.array("f", [1.0] * ROWS)),
        layer + "post_attention_layernorm.weight": ([ROWS], array.array("f", [1.0] * ROWS)),
    }
    for name in ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"]:
        tensors[layer + name + ".weight"] = ([4, ROWS], array.array("f", [0.0] * 4 * ROWS))
    for name in ["self_attn.o_proj", "mlp.down_proj"]:
        tensors[layer + name + ".weight"] = ([ROWS, 4], array.array("f", [0.0] * 4 * ROWS))
    header, data = {}, b""
    for name, (shape, values) in tensors.items():
        start, data = len(data), data + values.tobytes()
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, len(data)]}
    header = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + data)
    (folder / "config.json").write_text(json.dumps({
        "model_type": "llama", "vocab_size": ROWS, "hidden_size": ROWS, "num_hidden_layers": 1, "num_attention_heads": 1,
        "num_key_value_heads": 1, "head_dim": 4, "intermediate_size": 4, "hidden_act": "silu", "rms_norm_eps": 1e-6,
        "max_position_embeddings": 4096, "tie_word_embeddings": False, "eos_token_id": IM_END,
    }))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>", "chat_template": TEMPLATE}))


@contextlib.contextmanager
def server(program, *arguments, seconds=240):
    """Runs a server and yields its address. The server must stop successfully when it is signalled, within a time limit."""
    with server_process(program, *arguments, seconds=seconds) as (address, _):
        yield address


@contextlib.contextmanager
def server_process(program, *arguments, seconds=240):
    """Like `server`, and also yields the process."""
    command = [program, "serve", *arguments, "--port", "0", "--threads", "1"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    # A plain wait would hang if the server did.
    guard = threading.Timer(seconds, process.kill)
    guard.start()
    try:
        lines = []
        for line in process.stderr:
            lines.append(line)
            if " at http://" in line:
                break
        assert lines and " at http://" in lines[-1], "".join(lines)
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield lines[-1].split(" at ")[1].strip(), process
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0, process.returncode
    finally:
        guard.cancel()
        process.kill()
