"""Text unlike stories and talk, for users to paste: random words and letters, tables, code, logs, licences; all drawn at random."""

import string

from facts import invented
from words import ANIMALS, COLORS, FOODS, JOBS, NAMES, THINGS, TOWNS, WORDS

LEGAL_WHO = "the licensor|the licensee|each contributor|the copyright holder|any recipient|the author|a third party|the distributor|you|we|the user|the owner of the work|either party|the provider".split("|")
LEGAL_MAY = "may not|shall|must|may|is entitled to|is required to|agrees to|is not obliged to|undertakes to|is permitted to|shall not".split("|")
LEGAL_DO = """reproduce|distribute|modify|sublicense|convey|publish|make available|transfer|install|include|remove|disclose|perform in public|combine|translate|terminate|warrant|indemnify""".split("|")
LEGAL_WHAT = """the work|any copy of the program|the notices in the source form|derivative works|the covered software|a copy of these terms|the object code|all claims of a patent|the documentation|its trademarks|the larger work|the materials
the contribution|the source code|rights granted under this section|any modified version""".replace("\n", "|").split("|")
LEGAL_HOW = """under the terms of section {n}|without prior written permission|in any medium|provided that the conditions below are met|free of charge|to the extent permitted by applicable law|for any purpose|as of the effective date|within {n} days of notice
subject to clause {n}.{m}|in source or binary form|with or without modification|except as stated in this section|on an "as is" basis, without warranties of any kind|in accordance with paragraph ({c})|notwithstanding any other provision|in no event and under no legal theory
whether express or implied|including, but not limited to, loss of data or profits|together with a prominent notice|at its sole discretion""".replace("\n", "|").split("|")
LEGAL_HEAD = "DEFINITIONS|GRANT OF RIGHTS|REDISTRIBUTION|DISCLAIMER OF WARRANTY|LIMITATION OF LIABILITY|TERMINATION|TRADEMARKS|GOVERNING LAW|CONVEYING COPIES|ADDITIONAL TERMS|PATENTS|ACCEPTANCE|SUBMISSION|NOTICES|SEVERABILITY".split("|")


def letters(r, low=2, high=9):
    return "".join(r.choice(string.ascii_lowercase) for _ in range(r.randint(low, high)))


def legal(r):
    if r.random() < 0.08:
        return f"\n\n{r.randint(1, 20)}. {r.choice(LEGAL_HEAD)}\n\n"

    def clause():
        how = r.choice(LEGAL_HOW).format(n=r.randint(1, 30), m=r.randint(1, 9), c=r.choice("abcdef"))
        return f"{r.choice(LEGAL_WHO)} {r.choice(LEGAL_MAY)} {r.choice(LEGAL_DO)}{r.choice([' or ' + r.choice(LEGAL_DO), ''])} {r.choice(LEGAL_WHAT)} {how}"
    out = clause() + "".join(r.choice(["; ", ", and ", ", unless ", ", provided that ", ", in which case "]) + clause() for _ in range(r.randint(0, 2)))
    out = out[0].upper() + out[1:] + ". "
    return out.upper() if r.random() < 0.07 else out


def words(r, pool):
    return " ".join(r.choice(pool) for _ in range(20)) + " "


def listed(r):
    return r.choice([lambda: f"- {r.choice(FOODS)}: {r.randint(1, 40)}\n", lambda: f"{r.choice(NAMES)} {invented(r)}, {r.choice(JOBS)}, {r.choice(TOWNS)}, {r.randint(18, 90)}\n", lambda: f"{r.choice(THINGS)}\n", lambda: f"{r.randint(1, 99)} {r.choice(COLORS)} {r.choice(ANIMALS)}s; "])()


def row(r):
    return ",".join(str(r.randint(0, 10 ** r.randint(1, 5))) for _ in range(6)) + "\n"


def log(r):
    return f"2026-{r.randint(1, 12):02}-{r.randint(1, 28):02}T{r.randint(0, 23):02}:{r.randint(0, 59):02}:{r.randint(0, 59):02} {r.choice(['INFO', 'WARN', 'ERROR', 'DEBUG'])} {letters(r)}.{letters(r)}: {r.choice(WORDS)} {letters(r)}={r.randint(0, 9999)} {r.choice(['ok', 'failed', 'retried', 'closed', 'opened'])}\n"


def code(r):
    a, b = letters(r, 1, 7), letters(r, 1, 7)
    return r.choice([f"let {a} = {b}({r.randint(0, 99)});\n", f"if ({a} < {r.randint(0, 999)}) {{ {b} += 1; }}\n", f"def {a}({b}):\n    return {b} * {r.randint(2, 9)}\n", f'{{"{a}": {r.randint(0, 999)}, "{b}": "{r.choice(WORDS)}"}},\n', f"for {a} in range({r.randint(1, 99)}): print({b}[{a}])\n",
        f"#include <{a}.h>\n", f"<div class=\"{a}\">{r.choice(WORDS)}</div>\n", f"SELECT {a} FROM {b} WHERE id = {r.randint(1, 999)};\n"])


def hexes(r):
    return " ".join(f"{r.randrange(256):02x}" for _ in range(16)) + "\n"


def text(r, size, pool, licences=()):
    """Returns `size` characters of one kind, or of several kinds. pool: common words; licences: real ones, if there are any."""
    kinds = [lambda: legal(r), lambda: legal(r), lambda: words(r, pool), lambda: words(r, pool), lambda: words(r, WORDS + THINGS + ANIMALS), lambda: " ".join(letters(r) for _ in range(12)) + " ", lambda: " ".join(invented(r) for _ in range(12)) + " ", lambda: listed(r), lambda: row(r),
        lambda: log(r), lambda: code(r), lambda: hexes(r), lambda: f"{r.randint(0, 10 ** r.randint(1, 9))} "]
    kind = r.choice(kinds)
    if licences and r.random() < 0.35:
        whole = r.choice(licences)
        at = r.randrange(max(1, len(whole) - 200)) if r.random() < 0.7 else 0
        return whole[at : at + size] if len(whole) - at >= size else text(r, size, pool) if r.random() < 0.3 else (whole * (size // len(whole) + 2))[at : at + size]
    out, length = [], 0
    mixed = r.random() < 0.15
    while length < size:
        if mixed and r.random() < 0.05:
            kind = r.choice(kinds)
        out.append(kind())
        length += len(out[-1])
    return "".join(out)[:size].strip()


ODD = ["???", "!!!", "...", "?", "hm", "hmm", "uh", "blah blah", "la la la", "xyz", "qwerty", "lorem ipsum", "asdf", "test", "testing", "abc abc", ":)", ":-(", "<3", "^^", "*", "--", "$$$", "@", "0", "x", "ok ok ok ok", "Bonjour", "Wie geht es dir?", "Hola, que tal?", "Ciao bella", "Guten Tag", "Was ist das?",
    "Je ne sais pas", "No entiendo nada", "Hvor er du?", "Dzień dobry", "Привет", "你好", "こんにちは", "😀", "🎉🎉🎉", "👍", "null", "undefined", "NaN", "[object Object]", "echo 1", "ls -la", "sudo reboot", "SELECT 1;"]


def odd(r, pool):
    """Returns a message that has no meaning for the model."""
    k = r.random()
    if k < 0.35:
        return r.choice(ODD)
    if k < 0.6:
        return " ".join(letters(r, 1, 10) for _ in range(r.randint(1, 5)))
    if k < 0.8:
        return " ".join(r.choice(pool) for _ in range(r.randint(2, 8)))
    if k < 0.9:
        return r.choice(string.ascii_letters + string.punctuation) * r.randint(2, 30)
    return " ".join(str(r.randint(0, 10 ** r.randint(1, 6))) for _ in range(r.randint(1, 6)))
