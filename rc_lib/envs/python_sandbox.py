"""Runs Python programs that a model wrote, each in a process of its own without rights.

What holds where, is told by `guards`. Every program has a forked process, an empty environment,
standard input at its end, no inherited file, and limits on wall time, CPU time, memory and output;
it is killed with its session. Beyond that:

- On Linux (x86_64, aarch64) a seccomp filter lets a program compute, read the clock, sleep and
  print. Every other system call fails: no file is opened, looked up or changed, no process or
  thread is started or signalled, no socket is made, no signal handler is set and no limit is
  changed. The filter needs no privilege, in a container neither, and binds root as well. Root
  becomes the user nobody besides.
- Elsewhere, the limits forbid to open anything (files, sockets, pipes) and to start a process, and
  an audit hook of the interpreter refuses the rest. A program that reaches native code gets around
  the hook, so do not run programs of unknown origin there.

Not protected against: errors of the kernel or of the interpreter that give a program more than its
system calls, reading what the process holds in memory (the interpreter and its modules), learning
by the clock what else the machine does, and burning its CPU time to the limit again and again.

Results are repeatable but for the clock and the addresses of objects: `random` starts from seed 0
and the hashes of strings are fixed.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import NamedTuple

SERVER = Path(__file__).with_name("python_server.py")
MODULES = tuple(
    "array bisect calendar cmath collections copy dataclasses datetime decimal enum fractions "
    "functools heapq itertools json math numbers operator queue random re statistics string "
    "textwrap time typing".split()
)
# Capability -> guards that deny it, the strongest first.
DENIALS = {
    "more CPU time": ("RLIMIT_CPU",),
    "more memory": ("RLIMIT_AS",),
    "reading files": ("seccomp", "RLIMIT_NOFILE", "audit hook"),
    "changing files": ("seccomp", "RLIMIT_FSIZE", "RLIMIT_NOFILE", "audit hook", "another user"),
    "network": ("seccomp", "RLIMIT_NOFILE", "audit hook"),
    "processes": ("seccomp", "RLIMIT_NPROC", "audit hook"),
    "signals": ("seccomp", "another user", "audit hook"),
}


class Result(NamedTuple):
    """What a program printed, and "" or one line that says how it failed."""

    output: str
    error: str


class PythonSandbox:
    """Runs programs one after another; its server process starts with the first one.

    Programs can import `MODULES`, which the server has loaded, and what is built into the
    interpreter; all other modules are not found.

    Deviation: ICRL (arXiv 2603.08068) does not describe the interpreter behind its code tool. The
    limits are ours, and so is the choice of the standard library alone: sympy, which programs for
    competition maths like to use, imports parts of itself from files while it computes.

    Args:
        cpu_s: whole seconds of CPU time a program may use. Independent of what else the machine
            does, so make it the limit that computations meet.
        wall_s: seconds by the clock.
        memory_bytes: address space of a program, the interpreter's part (some 40 MB) included.
        output_bytes: most that a program may print.

    Raises:
        ValueError: for a limit that is not positive, or CPU seconds that are not whole.

    >>> with PythonSandbox() as sandbox:
    ...     sandbox.run("print(12345 * 678)"), sandbox.run("1 / 0").error
    (Result(output='8369910\\n', error=''), 'ZeroDivisionError: division by zero')
    """

    use_seccomp = True  # tests look at the other guards without it

    def __init__(
        self,
        *,
        cpu_s: int = 2,
        wall_s: float = 10.0,
        memory_bytes: int = 512 << 20,
        output_bytes: int = 1 << 16,
    ) -> None:
        if not isinstance(cpu_s, int) or min(cpu_s, wall_s, memory_bytes, output_bytes) <= 0:
            raise ValueError(
                f"{cpu_s=}, {wall_s=}, {memory_bytes=} and {output_bytes=} must be positive, and "
                "cpu_s whole"
            )
        self.settings = {
            "cpu_s": cpu_s, "wall_s": wall_s, "memory_bytes": memory_bytes,
            "output_bytes": output_bytes, "modules": MODULES, "seccomp": self.use_seccomp,
        }  # fmt: skip
        self._process: subprocess.Popen[str] | None = None
        self._owner = 0
        self._lock = threading.Lock()

    def __enter__(self) -> PythonSandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, program: str) -> Result:
        """Run a program.

        Returns:
            What it printed; and the last line of its traceback, "exit code N", the limit that it
            met ("stopped: ...") or the signal that ended it. Never raises for what a program does.

        Raises:
            RuntimeError: if the server does not start, or ends.
        """
        with self._lock:
            process = self._started()
            # The server keeps to wall_s; this is for a server that was itself stopped.
            timer = threading.Timer(self.settings["wall_s"] + 60, process.kill)
            timer.start()
            try:
                return Result(**self._ask(program))
            except BaseException:  # an answer may still come, to nobody's question
                self.close()
                raise
            finally:
                timer.cancel()

    def close(self) -> None:
        """End the server process; the next program starts a new one."""
        if self._process is not None:
            self._process = None
            self._finalize()

    def _started(self) -> subprocess.Popen[str]:
        if self._process is not None and self._owner == os.getpid():
            return self._process
        if self._process is not None:  # in a forked process: the server is the parent's
            self._finalize.detach()
        # Neither environment, site packages, user site nor the working directory play a part.
        command = [sys.executable, "-P", "-s", "-S", "-B", "-Xutf8", "-Wignore", str(SERVER)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, encoding="utf-8", env={"PYTHONHASHSEED": "0"}, cwd="/",
            start_new_session=True,
        )  # fmt: skip
        self._owner = os.getpid()
        self._finalize = weakref.finalize(self, _stop, self._process)
        try:
            self._ask(self.settings)
        except BaseException:
            self.close()
            raise
        return self._process

    def _ask(self, request: object) -> object:
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            said = self._process.stderr.read().strip().split("\n")[-1]
            raise RuntimeError(
                f"the server of the Python sandbox ended ({said or 'it said nothing'}); try: "
                f"echo '{json.dumps(self.settings)}' | {sys.executable} {SERVER}"
            )
        return json.loads(answer)


def _stop(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        with contextlib.suppress(BrokenPipeError):
            pipe.close()


def guards(sandbox: PythonSandbox | None = None) -> dict[str, tuple[str, ...]]:
    """Return what denies programs each capability on this machine, the strongest guard first.

    >>> guards()["more CPU time"]
    ('RLIMIT_CPU',)
    """
    with sandbox or PythonSandbox() as asked:
        result = asked.run("import json; print(json.dumps(GUARDS))")
    if result.error:
        raise RuntimeError(f"a program could not be run at all: {result.error}")
    active = json.loads(result.output)
    return {
        capability: tuple(name for name in names if name in active)
        for capability, names in DENIALS.items()
    }
