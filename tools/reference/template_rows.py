"""The rows of llama.cpp's template test as JSON: template_rows.py LLAMA_CPP_SOURCE OUT.json (needs jinja2). A row holds a template, its
variables, and what jinja2 renders with the settings of transformers; rows that jinja2 refuses are left out. The test
`templates_render_as_jinja2_renders_them` of `waterline-text` reads the file that TEMPLATE_ROWS names."""
import json, os, re, sys
import chat_rows

class Array(list): pass

def plain(value):
    """A braced list of pairs that begin with a text is an object, as in nlohmann's library."""
    if not isinstance(value, list): return value
    items = [plain(item) for item in value]
    pair = lambda raw: isinstance(raw, list) and not isinstance(raw, Array) and len(raw) == 2 and isinstance(raw[0], str)
    if not isinstance(value, Array) and value and all(map(pair, value)): return {raw[0]: item for raw, item in zip(value, (plain(raw[1]) for raw in value))}
    return items

def main(root, out):
    text = open(os.path.join(root, "tests/test-jinja.cpp")).read()
    chat_rows.NAMES.update({"json::array": lambda items=(): Array(items), "json::object": lambda items=(): {k: plain(v) for k, v in items}, "nullptr": None, "json": lambda x=None: x})
    rows, refused, unread = [], 0, 0
    for m in re.finditer(r"(?m)^    test_template\(t, ", text):
        try:
            reader = chat_rows.Reader(text[m.start():m.start() + 9000])
            reader.at = next(i for i, t in enumerate(reader.t) if t == ("p", "(")) + 1
            _, name, source, variables, expected = reader.list(")")[:5]
            variables = plain(variables) or {}
            assert isinstance(variables, dict)
        except Exception as error:
            unread += 1
            print("unread:", text[m.start():m.start() + 120].split("\n")[0], repr(error))
            continue
        try: found = chat_rows.environment().from_string(source).render(**variables)
        except Exception as error:
            refused += 1
            continue
        rows.append({"name": name, "source": source, "variables": variables, "expected": found, "llama_cpp": expected})
    json.dump(rows, open(out, "w"), ensure_ascii=False)
    print(len(rows), "rows,", refused, "that jinja2 refuses,", unread, "unread")

main(*sys.argv[1:3])
