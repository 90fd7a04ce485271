"""Other programs against `waterline serve`: lm-evaluation-harness, the package litellm and LiteLLM's proxy.

    pip install litellm[proxy] lm_eval transformers accelerate torch
    python3 tools/reference/serve_evaluation.py target/release/waterline [MODEL]

lm-evaluation-harness scores questions preceded by examples with `local-completions`; the server reads the examples once. `waterline eval
choice` scores the same texts, and with `--transformers`, for a Hugging Face folder in F32, so does transformers: the scores must agree
within 0.1 points. LiteLLM requests a chat, a stream, tools and a constrained answer. Its proxy in front of two servers, configured as in
runtime/docs/serve.md, routes each conversation back to the server that has read it.
"""

import argparse
import contextlib
import json
import os
import pathlib
import random
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "tests"))
from serve_common import server, write_table

ANIMALS = "cat dog bird horse cow fox wolf bear mouse fish hen goat".split()
PLACES = "house garden river forest field barn hill lake road city sea tree".split()
SHOTS = 12
# The proxy only accepts a long key.
KEY = "sk-" + "0123456789abcdef" * 4


def questions(count):
    """Yields questions with four answers, places that the story names: a small model gets some right."""
    chance = random.Random(7)
    for _ in range(count):
        animals, places = chance.sample(ANIMALS, 4), chance.sample(PLACES, 4)
        story = " ".join(f"The {animal} is in the {place}." for animal, place in zip(animals, places))
        right = chance.randrange(4)
        story += f" Where is the {animals[right]}?"
        texts = [f"in the {name}" for name in places]
        yield {"question": story, "choices": {"text": texts, "label": list("ABCD")}, "answerKey": "ABCD"[right]}


def metric(base, name):
    page = urllib.request.urlopen(base + "/metrics").read().decode()
    return float(page.split(f"\nwaterline_{name} ")[1].split()[0])


def likelihoods(found):
    """Returns the log-likelihood of each answer."""
    rows = sorted(found["samples"]["places"], key=lambda row: row["doc_id"])
    return [float(likelihood) for row in rows for likelihood, _ in row["filtered_resps"]]


def evaluation(program, model, folder, count, transformers):
    """Returns the scores of lm-evaluation-harness, with the server or with transformers, and of `waterline eval choice`."""
    os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", HF_HOME=str(folder / "home"))
    import lm_eval
    from lm_eval.tasks import TaskManager

    examples, *asked = [list(questions(count + SHOTS))[at] for at in [slice(SHOTS), slice(SHOTS, None)]]
    (asked,) = asked
    lines = lambda rows: "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "asked.jsonl").write_text(lines(asked))
    (folder / "examples.jsonl").write_text(lines(examples))
    # The same texts for `eval choice`, which adds no examples itself.
    answer = lambda row: row["choices"]["text"]["ABCD".index(row["answerKey"])]
    before = "".join(f"{row['question']}\nAnswer: {answer(row)}\n\nQuestion: " for row in examples)
    (folder / "whole.jsonl").write_text(lines([{**row, "question": before + row["question"]} for row in asked]))
    (folder / "places.yaml").write_text(json.dumps({
        "task": "places", "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(folder / "asked.jsonl"), "fewshot": str(folder / "examples.jsonl")}},
        "output_type": "multiple_choice", "test_split": "test", "fewshot_split": "fewshot", "num_fewshot": SHOTS,
        "fewshot_config": {"sampler": "first_n"}, "doc_to_text": "Question: {{question}}\nAnswer:",
        "doc_to_target": "{{choices.label.index(answerKey)}}", "doc_to_choice": "{{choices.text}}",
        "metric_list": [{"metric": name, "aggregation": "mean", "higher_is_better": True} for name in ("acc", "acc_norm")],
    }))
    with server(program, *model, "--alias", "waterline", "--exact", seconds=3600) as base:
        arguments = {"model": "waterline", "base_url": base + "/v1/completions", "tokenizer_backend": "remote", "tokenized_requests": False}
        tasks = TaskManager(include_path=str(folder), include_defaults=False)
        score = lambda **by: lm_eval.simple_evaluate(**by, tasks=["places"], task_manager=tasks, bootstrap_iters=0)
        served = score(model="local-completions", model_args=arguments)
        read, reused = metric(base, "prompt_tokens_total"), metric(base, "prompt_tokens_reused_total")
    found = served["results"]["places"]
    command = [program, "eval", "choice", str(folder / "whole.jsonl"), *model, "--json", "--exact", "--threads", "1"]
    own = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    print(f"lm_eval: {found}; eval choice: {own}; {reused:.0f} of {read + reused:.0f} tokens not read again")
    for name in ("acc", "acc_norm"):
        assert abs(found[name + ",none"] - own[name]) < 0.001, name
    assert reused > 0.8 * (read + reused)
    if transformers:
        theirs = score(model="hf", model_args={"pretrained": model[0], "dtype": "float32"}, device="cpu", batch_size=1)
        worst = max(abs(a - b) for a, b in zip(likelihoods(served), likelihoods(theirs), strict=True))
        print(f"transformers: {theirs['results']['places']}; log-likelihoods differ by up to {worst:.2e}")
        for name in ("acc,none", "acc_norm,none"):
            assert abs(found[name] - theirs["results"]["places"][name]) < 0.001, name


def package(program, folder):
    """Tests LiteLLM's package with a model that thinks and calls tools."""
    import litellm

    write_table(folder)
    with server(program, str(folder), "--alias", "table") as base:
        ask = lambda **fields: litellm.completion(model="openai/table", api_base=base + "/v1", api_key="none", temperature=0, **fields)
        hello = [{"role": "user", "content": "Hello!"}]
        assert ask(messages=hello).choices[0].message.content == "Hi"
        chunks = list(ask(messages=hello, stream=True, stream_options={"include_usage": True}))
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "Hi"
        tool = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}}
        called = ask(messages=hello, tools=[tool]).choices[0].message
        assert called.tool_calls[0].function.name == "get_weather", called
        form = {"type": "json_schema", "json_schema": {"name": "yes", "strict": True, "schema": {"enum": ["yes"]}}}
        assert ask(messages=hello, response_format=form).choices[0].message.content == '"yes"'
        thought = ask(messages=hello, extra_body={"chat_template_kwargs": {"enable_thinking": True}, "max_tokens": 8}).choices[0].message
        assert thought.reasoning_content == "hm", thought
    print("litellm: chat, stream, tools, response_format, reasoning_content")


def configuration(bases):
    """Returns the configuration of runtime/docs/serve.md with these addresses."""
    page = (pathlib.Path(__file__).parents[2] / "runtime/docs/serve.md").read_text()
    text = page.split("model_list:")[1].split("```")[0]
    for place, base in enumerate(bases, 1):
        text = text.replace(f"http://10.0.0.{place}:8080", base)
    assert "10.0.0" not in text, text
    return "model_list:" + text


def proxy(program, folder):
    """Tests LiteLLM's proxy in front of two servers: each conversation stays at the server that has read it."""
    with contextlib.ExitStack() as stack:
        bases = [stack.enter_context(server(program, "--exact", seconds=600)) for _ in range(2)]
        (folder / "proxy.yaml").write_text(configuration(bases))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [str(pathlib.Path(sys.executable).parent / "litellm"), "--config", str(folder / "proxy.yaml"), "--port", str(port), "--host", "127.0.0.1"]
        log = stack.enter_context(open(folder / "proxy.log", "w"))
        running = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "LITELLM_MASTER_KEY": KEY})
        stack.callback(running.wait)
        stack.callback(running.terminate)
        deadline = time.time() + 120
        address = f"http://127.0.0.1:{port}"
        while True:
            try:
                urllib.request.urlopen(address + "/health/liveliness", timeout=5)
                break
            except OSError:
                assert time.time() < deadline and running.poll() is None, (folder / "proxy.log").read_text()[-2000:]
                time.sleep(0.5)

        def ask(messages, user):
            body = {"model": "local", "messages": messages, "max_tokens": 8, "temperature": 0}
            headers = {"Content-Type": "application/json", "Authorization": "Bearer " + KEY, "x-litellm-session-id": user}
            request = urllib.request.Request(address + "/v1/chat/completions", json.dumps(body).encode(), headers)
            return json.load(urllib.request.urlopen(request, timeout=120))

        talks = {f"user{i}": [{"role": "user", "content": f"I am number {i}. " + "The cat sat in the sun. " * 40}] for i in range(6)}
        cached = []
        for turn in range(4):
            for user, messages in talks.items():
                answer = ask(messages, user)
                usage = answer["usage"]
                if turn:
                    cached.append(usage["prompt_tokens_details"]["cached_tokens"] / usage["prompt_tokens"])
                messages += [{"role": "assistant", "content": answer["choices"][0]["message"]["content"]}, {"role": "user", "content": "And then?"}]
        requests = [metric(base, "answers_total") for base in bases]
        print(f"proxy: {requests} answers of the two servers; least share of a prompt not read again {min(cached):.2f}")
        assert min(requests) > 0 and min(cached) > 0.8, (requests, cached)


def main():
    # Keeps LiteLLM from downloading its price list.
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("model", nargs="*")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--transformers", action="store_true")
    parser.add_argument("--only", choices=["evaluation", "package", "proxy"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        if options.only in (None, "evaluation"):
            evaluation(options.program, options.model, folder, options.count, options.transformers)
        if options.only in (None, "package"):
            package(options.program, folder)
        if options.only in (None, "proxy"):
            proxy(options.program, folder)


if __name__ == "__main__":
    main()
