"""Writes histories.json: templates that look at contents, rendered by jinja2 with transformers' settings. record.py (needs jinja2)."""
import datetime, json, os
import jinja2, jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

TEMPLATES = {
    "flags": "{% for m in messages %}{% if '/no_think' in m.content %}<off>{% endif %}<{{ m.role }}>{{ m.content.replace('/no_think', '').strip() }}</>{% endfor %}",
    "default": "{% set s = messages[0].content if messages[0].role == 'system' else '' %}<system>{{ s or 'Answer in full.' }}</>"
    "{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}</>{% endfor %}",
    "thought": "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% set c = m.content %}{% set r = m.reasoning_content or '' %}"
    "{% if '</think>' in c %}{% set r = c.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}"
    "{% set c = c.split('</think>')[-1].lstrip('\\n') %}{% endif %}{% if r and loop.index0 > 1 %}<think>{{ r|trim }}</think>{% endif %}{{ c }}"
    "{% else %}{{ m.content }}{% endif %}</>{% endfor %}",
    "json": "{% for m in messages %}<{{ m.role }}>{{ m.content|tojson }}|{{ m.content|tojson(ensure_ascii=true) }}|{{ {'c': m.content} }}</>{% endfor %}"
    "{{ messages|tojson(indent=2) }}",
    "parts": "{% macro text(c) %}{% if c is string %}{{ c }}{% elif c is mapping %}{{ c|tojson }}{% elif c is iterable %}{% for p in c %}"
    "{% if p.type == 'text' %}{{ p.text }}{% endif %}{% endfor %}{% endif %}{% endmacro %}"
    "{% for m in messages %}<{{ m.role }}>{{ text(m.content) }}{{ text(m.content)|length }}</>{% endfor %}",
    "calls": "{% for m in messages %}<{{ m.role }}>{% if m.content is string and m.content|trim %}{{ m.content }}{% endif %}{% if m.tool_calls is defined and m.tool_calls %}"
    "{% for c in m.tool_calls %}{% set c = c.function if c.function is defined else c %}[{{ c.name }}{% for k, v in c.arguments|items %} {{ k }}="
    "{{ v if v is string else v|tojson }}{% endfor %}]{% endfor %}{% endif %}</>{% endfor %}",
    "turns": "{% set ns = namespace(last=-1, note='') %}{% for m in messages[::-1] %}{% if ns.last < 0 and m.role == 'user' and not (m.content is string and "
    "m.content.startswith('<result>')) %}{% set ns.last = messages|length - 1 - loop.index0 %}{% endif %}{% endfor %}{{ ns.last }}"
    "{% for m in messages %}{% set ns.note = ns.note ~ m.role[0]|upper %}{% endfor %}{{ ns.note }}{{ messages|map(attribute='role')|join(',') }}"
    "{{ messages|selectattr('role', '==', 'user')|list|length }}{% for r in messages|groupby('role') %}{{ r[0] }}:{{ r[1]|length }};{% endfor %}",
    "blocks": "{% macro turn(role) %}<{{ role }}>{{ caller(role|title) }}</>{% endmacro %}{% for m in messages %}{% call(name) turn(m.role) %}{{ name }}: "
    "{{ '%-8s|%s' % (m.content, loop.index) }}{% endcall %}{% endfor %}{% for k in messages[0] recursive %}{{ loop.depth }}{{ k }}"
    "{{ loop(['x']) if k == 'role' }}{% endfor %}{{ messages[0].items is defined }}{{ messages[0]['role'].nothing is defined }}{{ dict(messages[0].items())|length }}",
}
HISTORIES = [
    [{"role": "user", "content": "hi"}],
    [{"role": "system", "content": ""}, {"role": "user", "content": "hi /no_think"}],
    [{"role": "system", "content": "/no_think Be brief."}, {"role": "user", "content": "  say \"a\\b\"\nand 'c'\t<b>&amp; é\u00a0日本 "}],
    [{"role": "user", "content": "q"}, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nan answer"}, {"role": "user", "content": "r"},
     {"role": "assistant", "content": "<think>more</think>last", "reasoning_content": "field"}],
    [{"role": "user", "content": [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]}],
    [{"role": "user", "content": "x"}, {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function":
      {"name": "f", "arguments": {"city": "Pärís \"x\"", "days": 2, "deep": {"a": [1, 2.5, None, True]}}}}]},
     {"role": "tool", "tool_call_id": "c1", "content": {"t": 3, "sky": "blue\n"}}, {"role": "assistant"}, {"role": "user", "content": "<result>y"}],
]

class Generation(jinja2.ext.Extension):
    tags = {"generation"}
    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)
    def _body(self, caller):
        return caller()

def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = lambda x, ensure_ascii=False, indent=None, separators=None, sort_keys=False: json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    env.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return env

if __name__ == "__main__":
    cases = []
    for name, source in TEMPLATES.items():
        for messages in HISTORIES:
            try:
                rendered = environment().from_string(source).render(messages=messages, tools=None, add_generation_prompt=False)
            except Exception:
                continue
            # A list of parts or a null content that a template writes as it is: here it is the text.
            if "'type'" in rendered or '"type": "text"' in rendered or "None</" in rendered:
                continue
            cases.append({"template": source, "messages": messages, "rendered": rendered})
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "histories.json")
    with open(path, "w", encoding="utf-8") as file:
        file.write("[\n" + ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases) + "\n]\n")
    print(len(cases), "cases")
