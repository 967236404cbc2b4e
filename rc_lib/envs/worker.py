"""A killable process for the few calls whose cost is not bounded beforehand.

One worker a process, started when first needed, asked and answering by the line. A call that is not
answered in time costs the worker its life; the caller's own backends are untouched, because the
worker rebuilds their state from the pickled start and the log of calls. It ends with its parent
(end of input), or by its own alarm clock when stuck, and is always waited for.
"""

from __future__ import annotations

import atexit
import base64
import json
import os
import pickle
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from rc_lib.envs.calls import Call

TIME_LIMIT_S = 1.0
START_LIMIT_S = 60.0  # the imports, on a busy machine
MEMORY_LIMIT_BYTES = 2 << 30


def run(start: bytes, log: list[Call], call: Call, *, time_limit_s: float = TIME_LIMIT_S) -> str:
    """The result text of one call, run in the worker.

    Args:
        start: pickled backend instance, made by this process.
        log: the calls already run on it, in order.
        call: the call to run.
        time_limit_s: wall clock for the log and the call.
    Raises:
        TimeoutError: the call took longer, or ended the worker; the next one gets a fresh worker.

    Example:
        >>> from rc_lib.envs.backends import load_start
        >>> from rc_lib.tasks.base import Task
        >>> start = load_start(Task("t", "base", (), {}, ("MathAPI",), ()))
        >>> run(start.pickles["MathAPI"], [], Call("add", (1, 2), {}))
        '{"result": 3}'
    """
    request = base64.b64encode(pickle.dumps((start, log, call, time_limit_s)))
    with _lock:
        return _worker.ask(request, time_limit_s)


class _Worker:
    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, request: bytes, time_limit_s: float) -> str:
        process = self._started()
        try:
            process.stdin.write(request + b"\n")
            process.stdin.flush()
            return json.loads(self._read_line(time_limit_s))
        except (BrokenPipeError, EOFError, TimeoutError):
            self.stop()
            raise TimeoutError(f"stopped after {time_limit_s:g} s") from None
        except BaseException:  # an interrupt: an answer may still come, to nobody's question
            self.stop()
            raise

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self.stop()
        root = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from rc_lib.envs.worker import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": path},
            start_new_session=True,  # the terminal's Ctrl-C is for the parent
        )
        try:
            self._read_line(START_LIMIT_S)
        except (EOFError, TimeoutError):
            self.stop()
            raise RuntimeError(
                f"the worker process of {__name__} did not start; "
                f'try: {sys.executable} -c "import rc_lib.envs.execution"'
            ) from None
        return self._process

    def _read_line(self, time_limit_s: float) -> bytes:
        output = self._process.stdout.fileno()
        deadline = time.monotonic() + time_limit_s
        line = b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([output], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError
            part = os.read(output, 1 << 16)
            if not part:
                raise EOFError
            line += part
        return line

    def stop(self) -> None:
        """Kill the process, wait for it and close its pipes."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            self.close_pipes(process)

    def forget(self) -> None:
        """In a forked child: leave the parent's worker to the parent."""
        process, self._process = self._process, None
        if process is not None:
            self.close_pipes(process)
            process.returncode = 0  # not our child: nothing to wait for

    @staticmethod
    def close_pipes(process: subprocess.Popen[bytes]) -> None:
        for pipe in (process.stdin, process.stdout):
            try:
                pipe.close()
            except BrokenPipeError:
                pass  # unsent input of a dead worker


_worker = _Worker()
_lock = threading.Lock()


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _worker.forget()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_worker.stop)


def serve() -> None:
    """Answer requests on standard input until it ends; the worker's own main loop."""
    from rc_lib.envs import execution

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    # The default action of SIGALRM ends the process even inside C code, should the parent be gone.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    print("ready", flush=True)
    for line in sys.stdin.buffer:
        start, log, call, time_limit_s = pickle.loads(base64.b64decode(line))
        signal.setitimer(signal.ITIMER_REAL, 2 * time_limit_s)
        text = execution.replay(pickle.loads(start), log, call)
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(json.dumps(text), flush=True)
