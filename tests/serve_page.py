"""Tests the page of `waterline serve` in headless Chromium, mostly by keyboard.

    python tests/serve_page.py target/release/waterline --out FOLDER

A chat with the built-in model: stop, regenerate, edit and their branches, settings, history after a reload. Then a server written here, whose
answers are exact: Markdown, text that is appended below a selection, cut answers, errors. Two tabs, undo, export and import, old conversations,
a phone, dark colours. It needs the package playwright and Chromium (--chromium, /usr/bin/chromium). Screenshots are written to the folder. No
request may go to another host.
"""

import argparse
import contextlib
import http.server
import json
import pathlib
import re
import threading

from playwright.sync_api import expect, sync_playwright

from serve_common import server

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
PAGE = pathlib.Path(__file__).parent.parent / "tools/src/serve/page.html"
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; form-action 'none'; frame-ancestors 'none'; base-uri 'none'"
MARKDOWN = """# Birds

Some **bold**, *thin* and `code <b>` text, ~~old~~, 2 * 3 * 4, snake_case_name, <img src=x onerror=alert(1)>,
a [link](https://example.org/a_b) and [no link](javascript:alert(1)).

| bird | eggs |
|---|--:|
| robin | 5 |
| swan \\| goose | 7 |

1. one
   - inner *item*
2. two

> quoted
> lines

```python
def add(a, b):  # sums
    return a + b + 1.5 + len("text")
```

---
The end."""


class Scripted(http.server.BaseHTTPRequestHandler):
    """A server whose answers depend on the last message."""

    release = threading.Event()
    bodies = []

    def log_message(self, *_):
        pass

    def do_GET(self):
        is_page = self.path == "/"
        data = PAGE.read_bytes() if is_page else json.dumps({"data": [{"id": "scripted", "max_model_len": None, "state_bytes": 1 << 20}]}).encode()
        self.send_response(200)
        self.send_header("content-type", "text/html; charset=utf-8" if is_page else "application/json")
        self.send_header("content-security-policy", POLICY)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.bodies.append(body)
        said = body["messages"][-1]["content"]
        if said in ("key", "busy"):
            self.send_response({"key": 401, "busy": 503}[said])
            self.end_headers()
            self.wfile.write(b'{"error": {"message": "the queue is full"}}' if said == "busy" else b"nothing")
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        texts = {"markdown": re.findall(r"[^ ]* ?", MARKDOWN), "cut": ["Half an"], "Half an": [" answer."], "lost": ["Half"], "long": [f"Line {i}.\n\n" for i in range(60)]}
        for i, text in enumerate(texts.get(said, ["An answer to " + said + "."])):
            self.event({"choices": [{"delta": {"content": text}}]})
            if said == "long" and i == 40:
                self.release.wait(30)
        if said == "lost":
            return
        self.event({"choices": [{"delta": {}, "finish_reason": "length" if said == "cut" else "stop"}]})
        self.event({"choices": [], "usage": {"prompt_tokens": 10 * len(body["messages"]), "total_tokens": 20 * len(body["messages"])}})
        self.wfile.write(b"data: [DONE]\n\n")

    def event(self, value):
        with contextlib.suppress(OSError):
            self.wfile.write(b": a comment\n\ndata: " + json.dumps(value).encode() + b"\n\n")
            self.wfile.flush()


@contextlib.contextmanager
def scripted():
    service = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Scripted)
    threading.Thread(target=service.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{service.server_port}", service
    finally:
        service.shutdown()
        service.server_close()


class Page:
    def __init__(self, page, out):
        self.page, self.out = page, out

    def say(self, text, wait=True):
        self.page.locator("#text").focus()
        self.page.keyboard.type(text)
        self.page.keyboard.press("Enter")
        if wait:
            self.idle()

    def idle(self):
        expect(self.page.locator("#send")).to_have_text("Send", timeout=120_000)

    def said(self):
        return self.page.locator("article .body").all_inner_texts()

    def press(self, name, at=-1):
        self.page.get_by_role("button", name=name, exact=True).nth(at).press("Enter")

    def picture(self, name):
        self.page.screenshot(path=self.out / f"{name}.png")

    def fits(self):
        width = self.page.viewport_size["width"]
        wide = self.page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width, (wide, width)


def chat(page):
    expect(page.page.locator("#name")).to_have_text("waterline")
    page.picture("empty")
    # The message box has the focus, so nothing is clicked.
    page.page.keyboard.type("My name is Anna. Hello!")
    page.page.keyboard.press("Enter")
    page.idle()
    first = page.said()
    assert len(first) == 2 and "Anna" in first[1], first
    page.say("What is my name?")
    assert "Anna" in page.said()[3] and "not read again" in page.page.locator("#speed").inner_text(), page.said()
    assert re.search(r"\d+ tokens\s+1\.\d MiB, fixed", page.page.locator("#state").inner_text())
    page.picture("chat")
    # Regenerate and edit make branches, and the old ones stay.
    page.press("Regenerate")
    page.idle()
    assert len(page.said()) == 4
    expect(page.page.locator("article").nth(3)).to_contain_text("2 of 2")
    page.press("Earlier branch")
    expect(page.page.locator("article").nth(3)).to_contain_text("1 of 2")
    page.press("Edit")
    page.page.keyboard.press("Control+A")
    page.page.keyboard.type("Tell me a long story.")
    page.page.keyboard.press("Enter")
    # Waits without injecting scripts, which the page's policy forbids.
    expect(page.page.locator("article .body").nth(3)).to_contain_text(re.compile(r"(\S+\s+){8}"), timeout=60_000)
    assert page.page.locator("#send").inner_text() == "Stop"
    page.page.keyboard.press("Escape")
    page.idle()
    stopped = page.said()[3]
    expect(page.page.locator("article").nth(3)).to_contain_text("Stopped.")
    page.page.wait_for_timeout(500)
    assert page.said()[3] == stopped
    page.page.reload()
    expect(page.page.locator("article")).to_have_count(4)
    expect(page.page.locator("article").nth(2)).to_contain_text("2 of 2")
    page.press("Earlier branch", 0)
    assert "What is my name?" in page.said()[2], page.said()
    page.press("Settings")
    page.page.fill("#s-max_tokens", "3")
    page.page.fill("#s-temperature", "")
    page.picture("settings")
    page.page.keyboard.press("Enter")
    page.press("+ New conversation")
    page.say("Hello!")
    assert len(page.said()) == 2 and len(page.said()[1].split()) <= 4, page.said()
    expect(page.page.locator("article").last).to_contain_text("cut at the limit of tokens")
    page.press("Continue")
    page.idle()
    assert len(page.said()) == 2 and page.page.get_by_role("button", name="Delete Hello!").count() == 1


def markdown(page):
    page.say("markdown")
    body = page.page.locator("article .body").last
    for tag, count in [("h1", 1), ("strong", 1), ("em", 2), ("s", 1), ("a", 1), ("table", 1), ("tr", 3), ("ol > li", 2), ("ol ul > li", 1), ("blockquote", 1), ("pre", 1), ("hr", 1), ("img", 0)]:
        assert body.locator(tag).count() == count, (tag, body.inner_html())
    text = body.inner_text()
    assert "code <b>" in text and "<img src=x" in text and "2 * 3 * 4" in text and "snake_case_name" in text and "javascript:alert(1)" in text, text
    assert "swan | goose" in text and body.locator("td").nth(3).evaluate("e => e.style.textAlign") == "right"
    for kind, found in [("c", "# sums"), ("s", '"text"'), ("n", "1.5"), ("w", "def")]:
        assert found in body.locator(f"pre .{kind}").all_inner_texts(), kind
    body.get_by_role("button", name="Copy").press("Enter")
    copied = page.page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith("def add(a, b):  # sums\n    return"), copied
    page.page.locator("#main").evaluate("e => e.scrollTop = 0")
    page.picture("markdown")


def appended(page):
    """While an answer grows, a selection in it and the scroll position stay."""
    Scripted.release.clear()
    page.say("long", wait=False)
    body = page.page.locator("article .body").last
    expect(body).to_contain_text("Line 40.")
    main = page.page.locator("#main")
    assert main.evaluate("e => e.scrollHeight - e.scrollTop - e.clientHeight") < 60
    body.locator("p").nth(20).evaluate("e => { document.activeElement.blur(); getSelection().selectAllChildren(e); e.scrollIntoView(); }")
    page.page.wait_for_timeout(100)
    at = main.evaluate("e => e.scrollTop")
    Scripted.release.set()
    expect(body).to_contain_text("Line 59.")
    page.idle()
    assert page.page.evaluate("getSelection().toString()").strip() == "Line 20."
    assert main.evaluate("e => e.scrollTop") == at
    expect(page.page.locator("#said")).to_contain_text("Line 59.")


def failures(page):
    for said, end in [("key", "API key"), ("busy", "The server is busy: the queue is full"), ("lost", "connection was lost")]:
        page.say(said)
        expect(page.page.locator("article").last).to_contain_text(end)
    expect(page.page.locator("article").last).to_contain_text("Half")
    page.say("cut")
    expect(page.page.locator("article").last).to_contain_text("cut at the limit of tokens")
    page.press("Continue")
    page.idle()
    assert page.said()[-1] == "Half an answer."
    # Numbers that are none are not sent.
    page.page.evaluate("settings.temperature = 'x'; settings.max_tokens = '5'")
    page.say("numbers")
    assert "temperature" not in Scripted.bodies[-1] and Scripted.bodies[-1]["max_tokens"] == 5
    assert "NaN" not in page.page.locator("body").inner_text()
    page.picture("failures")


def no_server(page, service):
    service.shutdown()
    service.server_close()
    page.say("is anybody there?")
    expect(page.page.locator("article").last).to_contain_text("The server does not answer")
    expect(page.page.locator("article").last.get_by_role("button", name="Try again")).to_be_visible()
    page.picture("no-server")


def tabs(page, context, base):
    other = Page(context.new_page(), page.out)
    other.page.goto(base)
    count = page.page.locator("#list li").count()
    page.press("+ New conversation")
    page.say("of the first tab")
    other.press("+ New conversation")
    other.say("of the second tab")
    for tab in (page, other):
        expect(tab.page.locator("#list li")).to_have_count(count + 2)
    # Both write one conversation, and neither loses a message.
    other.page.get_by_role("button", name="of the first tab", exact=True).press("Enter")
    other.say("one")
    expect(page.page.locator("article")).to_have_count(4)
    page.say("two")
    expect(other.page.locator("article")).to_have_count(6)
    other.page.close()


def deleted(page):
    count = page.page.locator("#list li").count()
    page.page.get_by_role("button", name="of the first tab", exact=True).press("Delete")
    expect(page.page.locator("#list li")).to_have_count(count - 1)
    page.picture("deleted")
    page.press("Undo")
    expect(page.page.locator("#list li")).to_have_count(count)
    assert page.said()[0] == "of the first tab"


def exported(page, browser, base, out):
    with page.page.expect_download() as download:
        page.press("Export")
    saved = out / "conversations.json"
    download.value.save_as(saved)
    count = page.page.locator("#list li").count()
    assert len(json.loads(saved.read_text())["conversations"]) == count
    # Another browser, with conversations of an older page.
    context = browser.new_context(color_scheme="dark", viewport={"width": 1100, "height": 760})
    other = Page(context.new_page(), out)
    other.page.goto(base)
    old = json.dumps([{"messages": [{"role": "user", "content": "an old question"}, {"role": "assistant", "content": "an old answer"}]}])
    other.page.evaluate("old => localStorage.setItem('waterline.talks', old)", old)
    other.page.reload()
    expect(other.page.locator("#list li")).to_have_count(1)
    assert other.said() == ["an old question", "an old answer"]
    other.page.set_input_files("#file", saved)
    expect(other.page.locator("#list li")).to_have_count(count + 1)
    other.page.get_by_role("button", name="markdown", exact=True).press("Enter")
    expect(other.page.locator("article table")).to_have_count(1)
    other.picture("dark")
    (out / "none.json").write_text("{}")
    other.page.set_input_files("#file", out / "none.json")
    expect(other.page.locator("#note")).to_contain_text("none.json was not imported")
    context.close()


def phone(page):
    page.page.set_viewport_size({"width": 390, "height": 780})
    page.fits()
    page.page.locator("#menu").press("Enter")
    expect(page.page.locator("#side")).to_be_visible()
    page.picture("phone-menu")
    page.page.keyboard.press("Escape")
    expect(page.page.locator("#side")).to_be_hidden()
    page.page.locator("#menu").click()
    page.page.locator("#shade").click(position={"x": 380, "y": 400})
    expect(page.page.locator("#side")).to_be_hidden()
    page.page.locator("#menu").click()
    page.page.get_by_role("button", name="markdown", exact=True).click()
    expect(page.page.locator("#side")).to_be_hidden()
    page.fits()
    page.picture("phone")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    problems, others = [], []

    def opened(context, base):
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: None if request.url.startswith((base, "data:", "blob:" + base)) else others.append(request.url))
        page.goto(base)
        return Page(page, options.out)

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=options.chromium, args=FLAGS)
        size = {"width": 1100, "height": 760}
        if options.program != "-":
            with server(options.program) as base:
                chat(opened(browser.new_context(viewport=size), base))
        with scripted() as (base, service):
            context = browser.new_context(viewport=size, permissions=["clipboard-read", "clipboard-write"])
            page = opened(context, base)
            markdown(page)
            appended(page)
            failures(page)
            tabs(page, context, base)
            deleted(page)
            exported(page, browser, base, options.out)
            phone(page)
            no_server(page, service)
        browser.close()
    assert not problems and not others, (problems, others)
    print(f"the page works; pictures are in {options.out}")


if __name__ == "__main__":
    main()
