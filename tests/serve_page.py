"""Tests the page of `waterline serve` in headless Chromium, by keyboard: a chat, stop, regenerate, edit, settings, history after a reload,
a phone.

    python tests/serve_page.py target/release/waterline --out FOLDER

It needs the package playwright and Chromium (--chromium, /usr/bin/chromium). Screenshots are written to the folder. No request may go to
another host.
"""

import argparse
import pathlib
import re

from playwright.sync_api import expect, sync_playwright

from serve_clients import server

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"]


def drive(page, base, out):
    def say(text):
        page.keyboard.type(text)
        page.keyboard.press("Enter")

    def idle():
        expect(page.locator("#send")).to_have_text("Send", timeout=120_000)

    said = lambda: page.locator("article").all_inner_texts()
    page.goto(base)
    expect(page.locator("#name")).to_have_text("waterline")
    page.screenshot(path=out / "empty.png")
    # The message box has the focus, so nothing is clicked.
    say("My name is Anna. Hello!")
    idle()
    first = said()
    assert len(first) == 2 and "Anna" in first[1], first
    say("What is my name?")
    idle()
    assert "Anna" in said()[3] and "not read again" in page.locator("#speed").inner_text(), said()
    page.screenshot(path=out / "chat.png")
    page.get_by_role("button", name="Regenerate").press("Enter")
    idle()
    assert len(said()) == 4
    page.get_by_role("button", name="Edit").last.press("Enter")
    assert len(said()) == 2
    page.keyboard.press("Control+A")
    say("Tell me a long story.")
    # Waits without injecting scripts, which the page's policy forbids.
    expect(page.locator("article").nth(3)).to_contain_text(re.compile(r"(\S+\s+){8}"), timeout=60_000)
    assert page.locator("#send").inner_text() == "Stop"
    page.keyboard.press("Escape")
    idle()
    stopped = said()[3]
    page.wait_for_timeout(500)
    assert said()[3] == stopped
    page.reload()
    expect(page.locator("article")).to_have_count(4)
    page.get_by_role("button", name="Settings").press("Enter")
    page.fill("#s-max_tokens", "3")
    page.screenshot(path=out / "settings.png")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="+ New conversation").press("Enter")
    say("Hello!")
    idle()
    assert len(said()) == 2 and len(said()[1].split("\n")[0].split()) <= 4, said()
    page.set_viewport_size({"width": 390, "height": 780})
    page.locator("#menu").press("Enter")
    page.screenshot(path=out / "phone-menu.png")
    page.locator("#menu").press("Enter")
    wide = page.evaluate("document.documentElement.scrollWidth")
    assert wide <= 390, wide
    page.screenshot(path=out / "phone.png")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with server(options.program) as base, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=options.chromium, args=FLAGS)
        page = browser.new_page(viewport={"width": 1100, "height": 760})
        problems, others = [], []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: None if request.url.startswith((base, "data:")) else others.append(request.url))
        drive(page, base, options.out)
        browser.close()
        assert not problems and not others, (problems, others)
    print(f"the page works; pictures are in {options.out}")


if __name__ == "__main__":
    main()
