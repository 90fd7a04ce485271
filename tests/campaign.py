#!/usr/bin/env python3
"""Runs the program on hostile files: tests/campaign.py PROGRAM [--seed N] [--count N] [KIND...]

Every run has 20 seconds and 2 GB of address space. It must end with status 0, 1 or 2, in time, and without a panic.
Kinds: truncated, damaged, killed, full, escapes."""
import argparse, glob, os, random, resource, shutil, signal, subprocess, sys, tempfile, time

SECONDS, BYTES = 20, 2 << 30
TESTS = os.path.dirname(os.path.abspath(__file__))


class Campaign:
    def __init__(self, program, seed):
        self.program, self.random = program, random.Random(seed)
        self.room = tempfile.mkdtemp(prefix="waterline-campaign-")
        self.findings, self.runs, self.accepted = [], 0, 0

    def path(self, name):
        return os.path.join(self.room, name)

    def run(self, what, *arguments, text=b"", blocks=None):
        """Runs the program. A crash, a panic, a hang or an unexpected status is a finding."""
        def limits():
            resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            if blocks is not None:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (blocks, blocks))
        self.runs += 1
        home = dict(os.environ, HOME=self.room, XDG_STATE_HOME=self.path("state"), RUST_BACKTRACE="0")
        try:
            done = subprocess.run([self.program, *arguments], input=text, capture_output=True, timeout=SECONDS,
                                  preexec_fn=limits, env=home)
        except subprocess.TimeoutExpired:
            self.findings.append(f"{what}: no end in {SECONDS} s: {arguments}")
            return None
        said = done.stderr.decode("utf-8", "replace")
        if done.returncode not in (0, 1, 2) or "panicked" in said or "memory allocation" in said:
            self.findings.append(f"{what}: status {done.returncode}: {arguments}: {said[-300:]}")
        self.accepted += done.returncode == 0
        return done

    def seeds(self):
        models = sorted(glob.glob(os.path.join(TESTS, "models/*.gguf")))
        models.append(os.path.join(TESTS, "../tools/model/waterline-chat.gguf"))
        cases = sorted(glob.glob(os.path.join(TESTS, "fixtures/*/")))
        return models, cases

    def state(self):
        """Reads a text with the built-in model; returns the command and the state file's bytes."""
        book, path = self.path("book.txt"), self.path("book.state")
        open(book, "w").write("".join(f"On day {i} the ship was {i * i % 97} miles from the coast.\n" for i in range(80)))
        command = ["read", book, "-o", path, "--segment", "64", "--threads", "1"]
        self.run("state", *command)
        return command, open(path, "rb").read()

    def use(self, what, path):
        if path.endswith(".state"):
            answer = ["run", "--state", path, "-p", "Hi", "-n", "2", "--threads", "1"]
            return self.run(what, *self.random.choice([["inspect", path], answer, ["check", path, self.path("book.txt")]]))
        command = self.random.choice([["inspect"], ["inspect", "--json"], ["run", "-p", "Hi", "-n", "2", "--threads", "1"]])
        return self.run(what, command[0], path, *command[1:])

    def spoiled(self, content, cut):
        """Returns a file that is truncated or has a few changed bytes."""
        if cut:
            return content[: self.random.randrange(len(content))]
        content = bytearray(content)
        for _ in range(self.random.randint(1, 8)):
            # Mostly in the header, which describes the rest of the file.
            at = self.random.randrange(len(content) if self.random.random() < 0.3 else min(len(content), 4096))
            size = self.random.choice([1, 1, 4, 8])
            content[at : at + size] = self.random.choice([self.random.randbytes, bytes, lambda n: b"\xff" * n])(size)[: len(content) - at]
        return bytes(content)

    def files(self, count, cut):
        models, cases = self.seeds()
        _, state = self.state()
        for i in range(count):
            what = f"{'truncated' if cut else 'damaged'} {i}"
            kind = self.random.random()
            if kind < 0.6:
                path = self.path("model.gguf" if kind < 0.4 else "spoiled.state")
                content = open(self.random.choice(models), "rb").read() if kind < 0.4 else state
                open(path, "wb").write(self.spoiled(content, cut))
            else:
                path = self.path("folder")
                shutil.rmtree(path, ignore_errors=True)
                shutil.copytree(self.random.choice(cases), path)
                name = os.path.join(path, self.random.choice(["config.json", "model.safetensors"]))
                content = open(name, "rb").read()
                open(name, "wb").write(self.spoiled(content, cut))
            done = self.use(what, path)
            if cut and done and done.returncode == 0 and not path.endswith("folder"):
                self.findings.append(f"{what}: a file that is cut off is accepted")

    def truncated(self, count):
        self.files(count, True)

    def damaged(self, count):
        self.files(count, False)

    def killed(self, count):
        """kill -9 at any time leaves either the old or the new file, complete. A text that was read in part is continued."""
        path, source = self.path("out.gguf"), self.path("source.gguf")
        self.run("killed", "synth", "gdn-tiny", "--type", "f32", "-o", source)
        read, state = self.state()
        ways = [["quantize", source, "-o", path, "--type", kind] for kind in ("f16", "q8_0", "q4_0")]
        ways += [["synth", "gdn-tiny", "--type", "f32", "-o", path], read, read]
        seconds = {}
        for way in ways:
            start = time.monotonic()
            self.run("killed", *way)
            seconds[way[0]] = time.monotonic() - start
        for i in range(count):
            way = self.random.choice(ways)
            path = way[way.index("-o") + 1]
            child = subprocess.Popen([self.program, *way], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                child.wait(self.random.random() * 1.5 * seconds[way[0]])
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            self.runs += 1
            if os.path.exists(path):
                done = self.run(f"killed {i}", "inspect", path)
                if done and done.returncode != 0:
                    self.findings.append(f"killed {i}: {path} is no whole file: {done.stderr[-200:]}")
                if self.random.random() < 0.3:
                    os.remove(path)
        self.run("killed", *read)
        if open(read[3], "rb").read() != state:
            self.findings.append("killed: the state that was read in parts is another one")

    def full(self, count):
        """A disk that becomes full at a random size: the run fails, and the old file stays."""
        read, state = self.state()
        ways = [read, ["synth", "gdn-tiny", "--type", "f32", "-o", self.path("out.gguf")]]
        for i in range(count):
            way = self.random.choice(ways)
            path = way[way.index("-o") + 1]
            open(path, "wb").write(b"old")
            limit = int(2 ** self.random.uniform(0, 21))
            done = self.run(f"full {i}", *way, blocks=limit)
            left = open(path, "rb").read()
            if done and (done.returncode != 1 or left != b"old"):
                self.findings.append(f"full {i}: status {done.returncode}, {len(left)} bytes left")
        self.run("full", *read)
        if open(read[3], "rb").read() != state:
            self.findings.append("full: the state that was read in parts is another one")

    def escapes(self, count):
        """No escape sequence from a file reaches the terminal."""
        model = open(os.path.join(TESTS, "models/gdn.gguf"), "rb").read()
        _, cases = self.seeds()
        for i in range(count):
            sequence = self.random.choice(["\x1b[2J", "\x1b]0;t\x07", "\x9b31m", "\x07", "\x1b[8m", "\r\x1b[K", "\u202e"])
            path = self.path(f"folder{sequence}".replace("/", "_"))
            shutil.rmtree(path, ignore_errors=True)
            shutil.copytree(self.random.choice(cases), path)
            config = os.path.join(path, "config.json")
            text = open(config).read()
            at = text.index('"', self.random.randrange(len(text) // 2)) + 1
            escaped = "".join(f"\\u{ord(c):04x}" for c in sequence)
            open(config, "w").write(text[:at] + escaped + text[at:])
            done = self.use(f"escapes {i}", path)
            shutil.rmtree(path)
            for stream in (done.stdout, done.stderr) if done else ():
                shown = stream.decode("utf-8", "replace")
                if any(c in shown for c in "\x1b\x07\x9b\u202e"):
                    self.findings.append(f"escapes {i}: {shown[:200]!r}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("kinds", nargs="*", default=["truncated", "damaged", "killed", "full", "escapes"])
    arguments = parser.parse_intermixed_args()
    failed = False
    for kind in arguments.kinds:
        campaign = Campaign(os.path.abspath(arguments.program), f"{kind} {arguments.seed}")
        getattr(campaign, kind)(arguments.count)
        shutil.rmtree(campaign.room, ignore_errors=True)
        print(f"{kind}: seed {arguments.seed}, {campaign.runs} runs, {campaign.accepted} accepted, {len(campaign.findings)} findings", flush=True)
        for finding in campaign.findings[:20]:
            print(f"  {finding}")
        failed |= bool(campaign.findings)
    sys.exit(failed)


main()
