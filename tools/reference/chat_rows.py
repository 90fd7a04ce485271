"""The rows of llama.cpp's chat test as JSON: chat_rows.py LLAMA_CPP_SOURCE OUT.json (needs jinja2). A row holds the template, the
prompt that it renders, the tools, an answer, and what the answer is: content, reasoning and calls. The test `chat_rows` of
`waterline-text` reads the file that CHAT_ROWS names."""
import json, os, re, sys
import jinja2, jinja2.ext, jinja2.sandbox

TOKEN = re.compile(r'''R"(?P<d>[^(\s]*)\((?P<raw>.*?)\)(?P=d)"|"(?P<s>(?:\\.|[^"\\])*)"|(?P<n>-?\d+(?:\.\d+)?)|(?P<w>[A-Za-z_][\w:]*(?:<[^<>()]*>)?)|(?P<p>[(){},.;+=&])''', re.S)
ESCAPE = {"n": "\n", "t": "\t", '"': '"', "\\": "\\", "r": "\r", "'": "'"}

def tokens(text):
    text = re.sub(r'("(?:\\.|[^"\\])*"|R"([^(\s]*)\(.*?\)\2")|//[^\n]*|/\*.*?\*/', lambda m: m[1] or " ", text, flags=re.S)
    for m in TOKEN.finditer(text):
        if m["raw"] is not None: yield "s", m["raw"]
        elif m["s"] is not None: yield "s", re.sub(r"\\(.)", lambda e: ESCAPE.get(e[1], e[1]), m["s"], flags=re.S)
        elif m["n"]: yield "n", float(m["n"]) if "." in m["n"] else int(m["n"])
        elif m["w"]: yield "w", m["w"]
        else: yield "p", m["p"]

def message(content="", reasoning="", name="", arguments="", id=""):
    calls = [{"name": name, "arguments": arguments, "id": id}] if name or id else []
    return {"content": content, "reasoning": reasoning, "calls": calls}

def several(reasoning, content, calls):
    return {"content": content, "reasoning": reasoning, "calls": [{"name": n, "arguments": a, "id": ""} for n, a in calls]}

NAMES = {
    "true": True, "false": False, "simple_assist_msg": message, "std::string": lambda text="": text,
    "message_with_tool_calls": lambda n, a: message("", "", n, a),
    "message_with_tool_calls_and_reasoning": lambda n, a, r: message("", r, n, a),
    "message_with_reasoning_and_tool_call": lambda r, n, a: message("", r, n, a),
    "message_with_content_and_tool_call": lambda c, n, a: message(c, "", n, a),
    "message_with_reasoning_content_and_multiple_tool_calls": several,
    "message_user": {"role": "user", "content": "Hey there!"},
}

class Reader:
    def __init__(self, text): self.t, self.at = list(tokens(text)), 0
    def peek(self, value=None, ahead=0):
        k = self.t[self.at + ahead] if self.at + ahead < len(self.t) else ("", None)
        return k if value is None else k == ("p", value)
    def next(self):
        self.at += 1
        return self.t[self.at - 1]
    def list(self, close):
        out = []
        while not self.peek(close):
            out.append(self.value())
            if self.peek(","): self.next()
        self.next()
        return out
    def value(self):
        out = self.one()
        while self.peek("+"):
            self.next()
            out += self.one()
        return out
    def one(self):
        kind, v = self.next()
        if kind == "s":
            while self.peek()[0] == "s": v += self.next()[1]
            return v
        if kind == "n": return v
        if (kind, v) == ("p", "{"): return self.list("}")
        if (kind, v) == ("p", "&"): return self.one()
        found = NAMES.get(v, v)
        if self.peek("("):
            self.next()
            return found(*self.list(")"))
        return found

def definitions(text):
    for m in re.finditer(r"common_chat_tool\s+(\w+)\s*\{(.*?)\n\s*\};", text, re.S):
        NAMES[m[1]] = Reader("{" + m[2] + "}").value()
    # Any variable whose value is a message or a text.
    for m in re.finditer(r"(?:common_chat_msg|std::string|auto|const char \*)\s+(\w+)\s*=\s*((?:R\"\(.*?\)\"|\"(?:\\.|[^\"\\])*\"|[^;])*?);", text, re.S):
        if m[1] in ("tst", "tst2"): continue
        try: NAMES[m[1]] = Reader(m[2]).value()
        except Exception: pass

def statements(text):
    return re.finditer(r"(?m)^ *(tst2?)\s*\.test\(", text)

def rows(text, templates):
    for m in statements(text):
        reader = Reader(text[m.start():m.start() + 12000])
        reader.at = next(i for i, t in enumerate(reader.t) if t == ("p", "(")) + 1
        row = {"input": reader.list(")")[0], "expect": message(), "options": {}}
        while True:
            assert reader.next() == ("p", "."), text[m.start():m.start() + 300]
            name = reader.next()[1]
            reader.next()
            arguments = reader.list(")")
            if name == "run": break
            if name == "expect": row["expect"] = json.loads(json.dumps(arguments[0]))
            elif name == "expect_content": row["expect"]["content"] = arguments[0]
            elif name == "expect_reasoning": row["expect"]["reasoning"] = arguments[0]
            elif name == "expect_tool_calls":
                row["expect"]["calls"] = [{"name": c[0], "arguments": c[1], "id": (c[2] or "") if len(c) > 2 else ""} for c in arguments[0]]
            else: row["options"][name] = arguments[0] if arguments else True
        yield m, row

def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols])
    env.filters["tojson"] = lambda x, ensure_ascii=False, indent=None, separators=None, sort_keys=False: json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    def fail(text): raise jinja2.TemplateError(text)
    env.globals.update(raise_exception=fail, strftime_now=lambda f: "2026-01-01")
    return env

def prompt(source, row):
    options, tools = row["options"], row["tools"]
    try:
        return environment().from_string(source).render(
            messages=[{"role": "user", "content": "Hey there!"}], tools=tools or None, add_generation_prompt=True, bos_token="", eos_token="",
            enable_thinking=options.get("enable_thinking", True), thinking=options.get("enable_thinking", True),
            **({} if options.get("enable_thinking", True) else {"reasoning_effort": "none"}))
    except Exception as error:
        return None

def main(root, out):
    text = open(os.path.join(root, "tests/test-chat.cpp")).read()
    cut = text.index("static void test_template_output_peg_parsers")
    lfm, end = text.index("static void test_lfm2_parser"), text.index("static void test_template_generation_prompt")
    definitions(text[:lfm])
    all, at = [], 0
    body = text[lfm:end]
    marks = [(m.start(), m[1], [m[2]]) for m in re.finditer(r'auto (tst2?) = peg_tester\("([^"]+)"', body)]
    lists = [(m.start(), re.findall(r'"([^"]+\.jinja)"', m[0])) for m in re.finditer(r"for \((?:const char \* tmpl|const auto & path) :.*?\) \{", body, re.S)]
    for m in re.finditer(r"auto (tst2?) = peg_tester\((path|template_path)", body):
        names = next((n for p, n in reversed(lists) if p < m.start()), None) if m[2] == "path" else next(n for p, n in lists if any("LFM2" in x for x in n))
        marks.append((m.start(), m[1], names))
    marks.sort()
    blocks = [p for p, _, _ in marks] + [len(body)]
    for number, (start, variable, templates) in enumerate(marks):
        stop = next(p for p, v, _ in marks[number + 1:] + [(len(body), variable, 0)] if v == variable)
        part = body[start:stop]
        definitions(part)
        for m, row in rows(part, templates):
            if m[1] != variable: continue
            for template in templates:
                source = open(os.path.join(root, template)).read()
                one = json.loads(json.dumps(row))
                one.update(template=os.path.basename(template), source=source)
                tools = one["options"].pop("tools", [])
                one["tools"] = [{"type": "function", "function": {"name": t[0], "description": t[1], "parameters": json.loads(t[2])}} for t in tools]
                one["prompt"] = prompt(source, one)
                one["line"] = text[:lfm + start + m.start()].count("\n") + 1
                all.append(one)
    json.dump(all, open(out, "w"), ensure_ascii=False)
    print(len(all), "rows,", sum(row["prompt"] is None for row in all), "without a prompt")

if __name__ == "__main__": main(*sys.argv[1:])
