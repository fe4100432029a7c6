"""Run the fuzzers: random cases against the library's promises, in child processes, until the time is over.

Usage: python -m fuzz.driver [fuzzer ...] [--minutes 60 | --cases N] [--seed S]      (`make fuzz`, from tests/)

Each fuzzer has a part of the time. A line every few seconds says the fuzzer, how many cases ran and how many faults
were found; a fault is shown once, with the smallest case that Hypothesis reached. Files that led to one are kept in
tests/fuzz/corpus, where `test_fuzz.py` tries them again in every run of the tests. Failing cases are also kept in
.hypothesis/fuzz, and tried first by the next run. A child that crashes or hangs is a fault as well; its last case is
minimised in processes of its own. The exit code is 1 where anything was found.
"""

import argparse
import json
import math
import os
import secrets
import selectors
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path

FUZZERS = ("values", "channels", "modules", "arguments", "tables", "files", "commands")
CORPUS = Path(__file__).parent / "corpus"
PROGRESS_SECONDS = 10
SILENCE_SECONDS = 120  # more than a case may take, and starting the child too
MINIMISING_SECONDS = 120


class Fuzzer:
    """One fuzzer in a child process, which is started again when it dies."""

    def __init__(self, name, seed, cases, seconds, corpus):
        self.name, self.seed, self.limit, self.corpus = name, seed, cases, corpus
        self.end = time.monotonic() + seconds
        self.cases, self.found, self.turn, self.property = 0, [], 0, ""
        self.reported = -math.inf  # so that a line comes at once

    def run(self):
        """Run to the end of the time or of the cases."""
        while (status := self.child()) != 0:
            self.crashed(status)
            self.turn += 1
            if status == 1 or self.limit or time.monotonic() > self.end:
                break
        self.progress()

    def child(self, *more, seconds=None):
        """Run a child process and collect what it tells; its exit status, negative for a signal, 1 for an error."""
        left = max(self.end - time.monotonic(), 1.0) if seconds is None else seconds
        receive, send = os.pipe()
        with tempfile.TemporaryDirectory(prefix="evenkeel-fuzz-") as folder:
            self.case = Path(folder) / "case"
            command = [sys.executable, "-m", "fuzz.worker", self.name, "--pipe", str(send), "--case", str(self.case)]
            command += ["--seed", self.seed, "--turn", str(self.turn), "--cases", str(self.limit)]
            command += ["--seconds", str(left), *more, "--known", *(fault["key"] for fault in self.found)]
            with open(Path(folder) / "output", "w+b") as output:
                environment = {**os.environ, "TMPDIR": folder}
                process = subprocess.Popen(command, pass_fds=[send], stdout=output, stderr=output, env=environment)
                os.close(send)
                try:
                    self.listen(receive, process)
                finally:
                    try:
                        process.wait(timeout=60)
                    except subprocess.TimeoutExpired:
                        process.kill()
                        process.wait()
                output.seek(0)
                self.output = output.read()[-2000:].decode(errors="replace")
            self.last = self.case.read_text() if self.case.exists() else "(before the first case)"
        return process.returncode

    def listen(self, receive, process):
        """Read the child's messages until it ends; kill one that says nothing for long."""
        before, heard = self.cases, time.monotonic()
        os.set_blocking(receive, False)
        with open(receive, "rb", buffering=0) as pipe, selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            rest = b""
            while True:
                if selector.select(timeout=1):
                    data = pipe.read(1 << 20)
                    if not data:
                        return
                    *lines, rest = (rest + data).split(b"\n")
                    for line in lines:
                        self.hear(json.loads(line), before)
                        heard = time.monotonic()
                elif time.monotonic() - heard > SILENCE_SECONDS:
                    process.send_signal(signal.SIGKILL)
                    return
                if time.monotonic() - self.reported > PROGRESS_SECONDS:
                    self.progress()

    def hear(self, message, before):
        self.cases = before + message.get("cases", self.cases - before)
        self.turn, self.property = message.get("turn", self.turn), message.get("property", self.property)
        if "found" in message:
            self.show(message["found"])

    def crashed(self, status):
        """Report the end of a child, minimised where a run in isolation ends the same way."""
        if status == 1:
            self.show({"property": self.property, "error": "the fuzzer itself failed", "traceback": self.output})
            return
        ending = f"the process ended with {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        last, known = self.last, len(self.found)
        self.child("--property", self.property, "--isolate", seconds=MINIMISING_SECONDS)
        if len(self.found) == known:
            self.show({"property": self.property, "case": last, "error": ending, "traceback": self.output})

    def show(self, fault):
        """Print a fault and keep its files."""
        fault.setdefault("key", f"{fault['property']} {fault['error']}")
        self.found.append(fault)
        lines = [f"--- {self.name}: fault {len(self.found)}, {fault['property']}: {fault['error']}"]
        lines += [f"    case: {fault['case']}"] if "case" in fault else []
        lines += [f"    {line}" for line in fault.get("traceback", "").splitlines()]
        for name, content in fault.get("files", {}).items():
            lines.append(f"    kept: {keep(self.corpus, name, bytes.fromhex(content))}")
        sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()

    def progress(self):
        self.reported = time.monotonic()
        left = max(0, round(self.end - self.reported))
        until = f"of {self.limit}" if self.limit else f"({left // 60}:{left % 60:02} left)"
        sys.stdout.write(f"{self.name}: {self.cases:,} cases {until}, {len(self.found)} found\n")
        sys.stdout.flush()


def keep(corpus, name, content):
    """Write a file that led to a fault into the corpus; its path."""
    target = corpus / f"{zlib.crc32(content):08x}-{name}"
    corpus.mkdir(exist_ok=True)
    target.write_bytes(content)
    return target


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("fuzzers", nargs="*", default=FUZZERS, help=f"of {', '.join(FUZZERS)}; all by default")
    parser.add_argument("--minutes", type=float, default=60.0, help="of all fuzzers together")
    parser.add_argument("--cases", type=int, default=0, help="of each fuzzer, instead of a time; always the same ones")
    parser.add_argument("--seed", default=None)
    parser.add_argument("--corpus", type=Path, default=CORPUS, help="where to keep files that led to a fault")
    options = parser.parse_args(arguments)
    seed = options.seed or ("0" if options.cases else secrets.token_hex(4))
    sys.stdout.write(f"seed {seed}; give it with --seed to draw the same cases\n")
    seconds = 1e9 if options.cases else 60 * options.minutes / len(options.fuzzers)
    done = []
    try:
        for name in options.fuzzers:
            done.append(Fuzzer(name, seed, options.cases, seconds, options.corpus))
            done[-1].run()
    except KeyboardInterrupt:
        sys.stdout.write("\ninterrupted\n")
    for fuzzer in done:
        keys = "".join(f"\n  {fault['key']}" for fault in fuzzer.found)
        sys.stdout.write(f"{fuzzer.name}: {fuzzer.cases:,} cases, {len(fuzzer.found)} found{keys}\n")
    return int(any(fuzzer.found for fuzzer in done))


if __name__ == "__main__":
    raise SystemExit(main())
