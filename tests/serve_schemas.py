"""JSON schemas against a server: answers must fit them, whether the server drafts or not, and while it answers other requests.

    python3 tests/serve_schemas.py target/release/waterline --count 2000
    python3 tests/serve_schemas.py target/release/waterline --schemas jsonschemabench/data --count 2000

The schemas are random, or the JSON files in a folder's subfolders. The built-in model answers each schema without thinking, and a
lookup-table model that thinks answers with and without thinking; one request at a time and eight at once; from a server that drafts and one
that does not. The four answers must be equal, and an answer that ends by itself must fit the schema according to the package jsonschema.
Without that package the answers are written to a file, which `--check` reads.
"""

import argparse
import concurrent.futures
import contextlib
import decimal
import json
import pathlib
import random
import tempfile
import time
import urllib.error
import urllib.request

from serve_common import server, write_table

TOKENS = 160


def made(chance, depth=2):
    """Returns a random schema of up to `depth` levels."""
    kind = chance.randrange(9 if depth else 6)
    if kind == 0:
        return {"type": "boolean"}
    if kind == 1:
        least = chance.randrange(-50, 50)
        return {"type": "integer", "minimum": least, "maximum": least + chance.randrange(500)}
    if kind == 2:
        return {"enum": ["red", 'a "b" é', 7, None, True]}
    if kind == 3:
        return {"type": "string", "maxLength": chance.randrange(12)}
    if kind == 4:
        return {"const": {"k": [1, "x"]}}
    if kind == 5:
        return {"type": "string", "pattern": "^[a-c]{1,4}-[0-9]{2}$"}
    if kind == 6:
        least = chance.randrange(3)
        return {"type": "array", "items": made(chance, depth - 1), "minItems": least, "maxItems": least + chance.randrange(3)}
    if kind == 7:
        return {"anyOf": [made(chance, depth - 1), made(chance, depth - 1)]}
    names = [f"key{i}" for i in range(chance.randrange(1, 4))]
    return {
        "type": "object", "properties": {name: made(chance, depth - 1) for name in names},
        "required": [name for name in names if chance.random() < 0.5], "additionalProperties": False,
    }


def listed(folder, count, seed):
    """Returns schemas from a folder's files, some from each subfolder."""
    files = sorted(pathlib.Path(folder).glob("*/*.json"))
    random.Random(seed).shuffle(files)
    return [(f"{file.parent.name}/{file.stem}", json.loads(file.read_text())) for file in files[:count]]


def ask(base, number, schema, thinks):
    """Returns the status, text and finish reason of an answer."""
    body = {
        "messages": [{"role": "user", "content": f"Number {number}. Tell me a story."}], "temperature": 1, "seed": number, "max_tokens": TOKENS,
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}},
        "chat_template_kwargs": {"enable_thinking": thinks},
    }
    request = urllib.request.Request(base + "/v1/chat/completions", json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=300) as response:
            choice = json.load(response)["choices"][0]
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)["error"]["message"], None
    thought = choice["message"].get("reasoning_content")
    assert bool(thought) == thinks, choice
    return 200, choice["message"]["content"], choice["finish_reason"]

def exact(text):
    """Returns a number as a decimal if its exponent allows that: as floats, 66.13 is not a multiple of 0.01."""
    try:
        return decimal.Decimal(text)
    except decimal.InvalidOperation:
        return float(text)


def check(schema, text):
    """Returns the reason why an answer does not fit its schema, or None if it does."""
    import jsonschema

    read = lambda text: json.loads(text, parse_float=exact)
    try:
        value, schema = read(text), read(json.dumps(schema))
    except json.JSONDecodeError as error:
        return f"not JSON: {error}"
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        errors = list(kind(schema).iter_errors(value))
    except Exception as error:  # a schema that the package cannot read
        return f"unread: {type(error).__name__}: {error}"
    return errors[0].message[:200] if errors else None


def report(cases, answers):
    """Checks finished answers, pairs of a schema's number and a text; returns the number that do not fit."""
    wrong = unread = 0
    for number, text in sorted(answers):
        name, schema = cases[number]
        problem = check(schema, text)
        if problem and problem.startswith("unread"):
            unread += 1
        elif problem:
            wrong += 1
            print(f"{name}: {text[:300]}: {problem}")
    print(f"{len(answers)} different finished answers checked: {wrong} do not fit, {unread} are of schemas that jsonschema cannot read")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", nargs="?")
    parser.add_argument("--schemas", metavar="FOLDER")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--part", default="0/1", help="I/N: only every N-th schema, from I on")
    parser.add_argument("--keep", metavar="FILE", help="write finished answers here")
    parser.add_argument("--check", metavar="FILE", nargs="*", help="check the answers of earlier runs with the same schemas")
    options = parser.parse_args()
    if options.schemas:
        cases = listed(options.schemas, options.count, options.seed)
    else:
        cases = [(f"made {i}", made(random.Random(options.seed * 1_000_003 + i))) for i in range(options.count)]
    if options.check:
        answers = {tuple(json.loads(line)) for file in options.check for line in open(file)}
        raise SystemExit(bool(report(cases, answers)))
    first, step = map(int, options.part.split("/"))
    chosen = list(enumerate(cases))[first::step]

    flags = ["--exact", "--parallel", "8", "--store", "16", "--chunk", "64"]
    drafts = ["--lookup", "12"]
    problems, answers, counts = [], set(), {"answers": 0, "finished": 0, "refused": 0}
    with contextlib.ExitStack() as stack:
        table = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write_table(table, '"')
        start = lambda *more: stack.enter_context(server(options.program, *more, *flags, seconds=7200))
        models = {"built-in": [start(), start(*drafts)], "table": [start(str(table)), start(str(table), *drafts)]}
        for model, thinks in [("built-in", False), ("table", False), ("table", True)]:
            expected, begun = {}, time.time()
            for drafting, base in enumerate(models[model]):
                for clients in (1, 8):
                    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
                        run = lambda case: ask(base, case[0], case[1][1], thinks)
                        found = list(pool.map(run, chosen))
                    for (number, (name, _)), answer in zip(chosen, found):
                        where = f"{name}, {model}, thinking {thinks}, drafts {drafting}, {clients} at once"
                        if expected.setdefault(number, answer) != answer:
                            problems.append(f"{where}: {answer}, expected {expected[number]}")
                        status, text, finish = answer
                        counts["answers"] += 1
                        counts["refused"] += status != 200
                        if finish == "stop":
                            counts["finished"] += 1
                            answers.add((number, text))
            print(f"{model}, thinking {thinks}: {time.time() - begun:.0f} s", flush=True)
        for model, (_, base) in models.items():
            text = urllib.request.urlopen(base + "/metrics").read().decode()
            number = lambda name: int(float(text.split(f"\nwaterline_{name} ")[1].split()[0]))
            print(f"{model}, drafts: {number('generated_tokens_total')} tokens in {number('steps_total')} steps")
    if options.keep:
        pathlib.Path(options.keep).write_text("".join(json.dumps(answer) + "\n" for answer in sorted(answers)))
    for problem in problems[:20]:
        print(problem)
    print(f"{len(chosen)} schemas: {counts}; {len(problems)} answers differ")
    try:
        import jsonschema  # noqa: F401
    except ImportError:
        print("jsonschema is not here: nothing was checked")
        raise SystemExit(bool(problems))
    raise SystemExit(bool(report(cases, answers) or problems))


if __name__ == "__main__":
    main()
