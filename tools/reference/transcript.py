#!/usr/bin/env python3
"""Types a conversation of forty messages and two commands into `waterline chat` in a terminal, and writes the terminal's output as text and
as a picture. Needs the package pyte, a terminal emulator in Python.

    tools/reference/transcript.py target/release/waterline runtime/docs/conversation.svg

Answers are greedy, so the conversation is the same in every run. The script fails if the model does not recall a fact at the end.
"""

import argparse
import fcntl
import html
import os
import pty
import select
import struct
import sys
import tempfile
import termios
import time

import pyte

COLUMNS, ROWS = 116, 40

# The typed lines. Facts come early and late, some change, and the text in between would fill a small context.
TURNS = """\
Hello!
My name is Anna.
I have a cat called Miso and my password is 48213.
What is 12 + 30?
Tell me a story about a dog.
What is my name?
My favorite color is green.
What is 81 - 17?
Count to five.
Tell me a story about a red ball.
What is my cat called?
Can you count to seven?
I live in Oslo and I work as a baker.
Where do I live?
What is 45 + 54?
Spell cat.
Tell me a story about a bird and a tree.
That was a nice story.
What is my password?
What is my favorite color?
/state
Thank you!
What is 7 + 8?
Who are you?
Tell me a story about a girl who lost her hat.
What is my job?
My favorite color is blue now.
What is 99 - 9?
Tell me a story about a bear.
What is my favorite color?
What is the capital of France?
How are you?
What is 20 + 22?
/undo
What is 21 + 22?
Tell me a story about rain.
Do you remember my name?
Tell me a story about a boat.
What is my cat called?
Where do I live?
What is the password?
Goodbye!
""".splitlines()


class Terminal:
    """A program in a terminal, including all lines that have scrolled off the screen."""

    def __init__(self, command, folder):
        self.screen = pyte.HistoryScreen(COLUMNS, ROWS, history=100_000, ratio=1)
        self.stream = pyte.ByteStream(self.screen)
        self.asked = self.typed = 0
        self.process, self.file = pty.fork()
        if self.process == 0:
            environment = {"PATH": os.environ["PATH"], "HOME": folder, "TERM": "xterm-256color", "LANG": "C.UTF-8"}
            os.chdir(folder)
            os.execve(command[0], command, environment)
        fcntl.ioctl(self.file, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))

    def read_until(self, ready, seconds=120):
        """Reads until `ready` returns true; returns False when the program ends."""
        end = time.monotonic() + seconds
        while not ready():
            if time.monotonic() > end:
                raise TimeoutError("\n".join(self.screen.display))
            if not select.select([self.file], [], [], 1)[0]:
                continue
            try:
                data = os.read(self.file, 1 << 16)
            except OSError:
                return False
            if not data:
                return False
            self.asked += data.count(b"\x1b[?2004h")
            # pyte does not support faint text, so it becomes grey.
            self.stream.feed(data.replace(b"\x1b[2m", b"\x1b[90m"))
        return True

    def prompts(self):
        """Returns whether the program waits for the next line: it has enabled bracketed paste and shown its prompt."""
        line = self.screen.display[self.screen.cursor.y].rstrip()
        return self.asked > self.typed and line == ">" and self.screen.cursor.x == 2

    def type(self, text):
        """Types a line like a person, one key at a time."""
        self.typed = self.asked
        for key in text + "\r":
            os.write(self.file, key.encode())
            time.sleep(0.004)

    def lines(self):
        """Returns all lines that were shown, each a list of (text, colour, bold)."""
        rows = [*self.screen.history.top, *(self.screen.buffer[y] for y in range(ROWS))]
        found = []
        for row in rows:
            runs = []
            for x in range(COLUMNS):
                cell = row[x]
                style = (cell.fg, cell.bold)
                if runs and runs[-1][1] == style:
                    runs[-1][0] += cell.data
                else:
                    runs.append([cell.data, style])
            while runs and not runs[-1][0].strip():
                runs.pop()
            found.append(runs)
        while found and not found[-1]:
            found.pop()
        return found


COLOURS = {
    "default": "#d4d8dd", "black": "#7d858f", "red": "#f28b82", "green": "#8fd19e", "brown": "#e0c37a", "blue": "#8ab4f8",
    "magenta": "#d7aefb", "cyan": "#78d9ec", "white": "#ffffff", "brightblack": "#8b939c",
}


def picture(lines):
    """Returns the terminal's lines as an SVG, in columns so that the picture fits on a page."""
    columns = 2
    per_column = -(-len(lines) // columns)
    width, height, size = 7.2, 15, 12
    column_width = COLUMNS * width + 24
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {columns * column_width + 24:.0f} {per_column * height + 44}" '
        f'font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="{size}">',
        '<rect width="100%" height="100%" rx="8" fill="#1b1e22"/>',
    ]
    for i, runs in enumerate(lines):
        column, row = divmod(i, per_column)
        x, y = 24 + column * column_width, 32 + row * height
        for text, (colour, bold) in runs:
            if text.strip():
                fill = COLOURS.get(colour, COLOURS["default"] if colour.isalpha() else f"#{colour}")
                lead = len(text) - len(text.lstrip())
                weight = ' font-weight="bold"' if bold else ""
                out.append(
                    f'<text x="{x + lead * width:.1f}" y="{y}" fill="{fill}"{weight} xml:space="preserve" '
                    f'textLength="{len(text.strip()) * width:.1f}">{html.escape(text.strip())}</text>'
                )
            x += len(text) * width
    return "\n".join(out) + "\n</svg>\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("program")
    parser.add_argument("svg", nargs="?", help="the picture to write")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        command = [os.path.abspath(arguments.program), "chat", "--greedy"]
        terminal = Terminal(command, folder)
        for text in TURNS:
            terminal.read_until(terminal.prompts)
            terminal.type(text)
        terminal.read_until(terminal.prompts)
        terminal.type("/quit")
        terminal.read_until(lambda: False, 60)
        lines = terminal.lines()
        os.close(terminal.file)
        _, status = os.waitpid(terminal.process, 0)
    text = "\n".join("".join(run[0] for run in runs).rstrip() for runs in lines)
    print(text)
    if arguments.svg:
        with open(arguments.svg, "w", encoding="utf-8") as file:
            file.write(picture(lines))
    last = text[text.rindex("What is the password?"):]
    if status or "48213" not in last:
        sys.exit(f"status {status}; the password was 48213")


if __name__ == "__main__":
    main()
