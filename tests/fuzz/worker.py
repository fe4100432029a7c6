"""The child process that runs the cases of one fuzzer; `fuzz.driver` starts it and hears of it through a pipe.

A fuzzer is a module of this folder with a table ``PROPERTIES``: name -> (strategy of cases, check of a case), and
``MEMORY``, the bytes that it may take beyond what it has after its imports.
"""

import argparse
import importlib
import json
import os
import re
import resource
import signal
import time
import traceback
import warnings
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.database import DirectoryBasedExampleDatabase
from hypothesis.errors import FlakyFailure, StopTest, UnsatisfiedAssumption

DATABASE = Path(".hypothesis") / "fuzz"  # failing cases are tried first in the next run
BATCH = 200  # cases of a property before the next one has its turn
CASE_SECONDS = 30
SHOWN = 4000  # characters of a case


class TooLongError(AssertionError):
    """A case did not end."""


class CrashError(AssertionError):
    """A case ended its process."""


def alarm(number, frame):
    raise TooLongError(f"did not end in {CASE_SECONDS} s")


def limit_memory(size):
    """Let this process take so many bytes more than it has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + size,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def fingerprint(name, error):
    """What two appearances of one fault have in common: where it was raised, and its words without the numbers."""
    frames = traceback.extract_tb(error.__traceback__)
    inner = [frame for frame in frames if "/evenkeel/" in frame.filename] or frames
    words = re.sub(r"\S*/\S*|'[^']*'|\"[^\"]*\"|\[[^]]*\]|\([^)]*\)|[-+.\d]+(e[-+]?\d+)?", "", str(error))
    place = f"{Path(inner[-1].filename).name} {inner[-1].name}" if inner else ""
    return f"{name} {type(error).__name__} {place} {' '.join(words.split())[:60]}"


def isolated(check, case):
    """Run a case in a child of its own: the end of that process becomes an error, which Hypothesis can minimise."""
    child = os.fork()
    if child == 0:
        signal.alarm(CASE_SECONDS)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        try:
            check(case)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        raise CrashError(f"the process ended with {signal.Signals(os.WTERMSIG(status)).name}")


class Worker:
    """Runs properties and reports: ``cases`` as they are counted, each fault once."""

    def __init__(self, options):
        self.options = options
        self.module = importlib.import_module(f"fuzz.{options.fuzzer}")
        self.pipe = os.fdopen(options.pipe, "w", buffering=1)
        self.known, self.cases, self.spoken = set(options.known), 0, time.monotonic()
        self.end = self.spoken + options.seconds

    def say(self, **message):
        self.spoken = time.monotonic()
        self.pipe.write(json.dumps(message) + "\n")

    def run(self):
        """Take turns until the time or the number of cases is over."""
        names = [self.options.property] if self.options.property else list(self.module.PROPERTIES)
        share = -(-self.options.cases // len(names)) if self.options.cases else BATCH
        turn = self.options.turn
        while True:
            for name in names:
                self.say(property=name, turn=turn)
                self.take_turn(name, turn, share)
            turn += 1
            if self.options.cases or self.options.isolate or time.monotonic() > self.end:
                self.say(cases=self.cases)
                return

    def take_turn(self, name, turn, cases):
        """Search for one fault of a property, and report it minimised."""
        strategy, check = self.module.PROPERTIES[name]
        failure = []

        # the seed and the database make a turn what it is: the same property, seed and turn give the same cases
        @seed(f"{self.options.seed} {name} {turn}")
        @settings(
            max_examples=cases,
            database=None if self.options.cases else DirectoryBasedExampleDatabase(DATABASE),
            deadline=None,
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
            phases=[phase for phase in Phase if phase is not Phase.explain],
        )
        @given(strategy)
        def run(case):
            if time.monotonic() > self.end:
                return
            self.begin(name, case)
            signal.setitimer(signal.ITIMER_REAL, CASE_SECONDS)
            try:
                isolated(check, case) if self.options.isolate else check(case)
            except (StopTest, UnsatisfiedAssumption):
                raise
            except Exception as error:
                if fingerprint(name, error) in self.known:
                    return
                failure[:] = [case, error]
                raise
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)

        run.hypothesis.inner_test.__qualname__ = f"{self.options.fuzzer}.{name}"  # the key in the database
        try:
            run()
        except (Exception, FlakyFailure):
            if not failure:
                raise
        if failure:
            self.report(name, *failure)

    def begin(self, name, case):
        """Count a case, and leave its text where the driver finds it if this process ends in it."""
        self.cases += 1
        Path(self.options.case).write_text(f"{name}: {case!r}"[:SHOWN], errors="replace")
        if time.monotonic() - self.spoken > 1:
            self.say(cases=self.cases)

    def report(self, name, case, error):
        """Tell a fault, with its minimised case and the files to keep."""
        self.known.add(fingerprint(name, error))
        frames = traceback.extract_tb((error.__cause__ or error).__traceback__)
        text = "".join(traceback.format_list([frame for frame in frames if "/hypothesis/" not in frame.filename][-3:]))
        files = {file: content.hex() for file, content in getattr(error, "files", {}).items()}
        self.say(
            cases=self.cases,
            found={
                "property": name,
                "key": fingerprint(name, error),
                "case": repr(case)[:SHOWN],
                "error": f"{type(error).__name__}: {error}",
                "traceback": text,
                "files": files,
            },
        )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("fuzzer")
    parser.add_argument("--pipe", type=int)
    parser.add_argument("--case")
    parser.add_argument("--seed", default="0")
    parser.add_argument("--turn", type=int, default=0)
    parser.add_argument("--cases", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--property")
    parser.add_argument("--isolate", action="store_true")
    parser.add_argument("--known", nargs="*", default=())
    options = parser.parse_args()
    signal.signal(signal.SIGALRM, alarm)
    warnings.simplefilter("ignore")
    worker = Worker(options)
    limit_memory(worker.module.MEMORY)
    worker.run()


if __name__ == "__main__":
    main()
