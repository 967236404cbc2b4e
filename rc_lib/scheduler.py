"""Run stages in the order of their needs, several processes side by side, and tell how far it is.

A stage that succeeded leaves a stamp of what it was made from and what it wrote, and is skipped
next time if both are still so. A killed stage starts again, and its trainer goes on from its
checkpoint.
"""

import fcntl
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from tqdm import tqdm

from rc_lib import paths
from rc_lib.errors import RcError
from rc_lib.manifest import git_state, write_json
from rc_lib.stage import Stage, command
from rc_lib.stamp import State, look, output_hashes, survey

HEARTBEAT_S = 60
ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
)
# Blocks that a step frees serve the next one instead of going back to the system (glibc only).
KEEP_MEMORY = {
    "MALLOC_TRIM_THRESHOLD_": str(2**32),
    "MALLOC_MMAP_THRESHOLD_": str(2**25),
    "MALLOC_TOP_PAD_": str(2**26),
}
QUIET = {"TOKENIZERS_PARALLELISM": "false", "PYDEVD_DISABLE_FILE_VALIDATION": "1"}


@dataclass
class Running:
    """A stage's process."""

    stage: Stage
    parts: dict  # of its key, from its start, as the code may be edited meanwhile
    process: subprocess.Popen
    started: float = field(default_factory=time.time)


class Run:
    """One reproduction: starts stages, watches them, tells how far it is."""

    def __init__(
        self,
        declared: list[Stage],
        results: Path,
        jobs: int,
        expected_seconds: Callable[[str], float],
    ) -> None:
        self.declared, self.results, self.jobs = list(declared), results, jobs
        self.expected_seconds = expected_seconds  # of a notebook that has no measured time yet
        self.started = time.time()
        self.measured: dict[str, list[float]] = {}
        self.done: dict[str, dict] = {}  # stamps by title
        self.running: list[Running] = []
        self.failures: list[str] = []
        self.heartbeat = time.time()

    def take_stock(self) -> dict[str, State]:
        """Look at every stage, and drop the tables that a later one replaces at once.

        Returns:
            The states of the stages that are left, by title.
        """
        states = survey(self.declared, self.results)
        self.declared = [stage for stage in self.declared if stage.title in states]
        for stage in self.declared:
            state = states[stage.title]
            if "seconds" in state.stamp:  # a stale one tells how long it takes, too
                self._count(stage.notebook, state.stamp["seconds"])
            if state.kind == "cached":
                self.done[stage.title] = state.stamp
        return states

    def skip_done(self) -> None:
        """Leave out the stages whose work stands, and say of the others why it does not."""
        for title, state in self.take_stock().items():
            if state.kind == "cached":
                _tell_hit(title, state.stamp, print)
            elif state.kind != "missing":
                print(f"{title}: {state.kind}: {several(state.why) or 'goes on'}")

    def execute(self) -> None:
        """Run what is left.

        Raises:
            RcError: if a stage failed, after those beside it have ended.
        """
        form = "|{bar:30}| {n_fmt}/{total_fmt} stages, {elapsed}{postfix}"
        bar = tqdm(total=len(self.declared), initial=len(self.done), disable=None, bar_format=form)
        try:
            while self.running or (self._waiting() and not self.failures):
                self._start_ready()
                self._collect()
                self._tell(bar)
                time.sleep(0.1)
        finally:
            for one in self.running:
                kill_tree(one.process)
                one.process.stdin.close()
            bar.close()
        if self.failures:
            raise RcError("\n".join([*self.failures, "mend it and run the same again to go on"]))

    def seconds_left(self) -> float:
        """Estimate the time left from the stages of each notebook that have ended."""
        elapsed = {one.stage.title: time.time() - one.started for one in self.running}
        left = [
            max(self.estimate(stage.notebook) - elapsed.get(stage.title, 0.0), 1.0)
            for stage in self.declared
            if stage.title not in self.done
        ]
        return max(sum(left) / self.jobs, max(left, default=0.0))

    def estimate(self, notebook: str) -> float:
        """Return the seconds of a notebook: the mean measured, else what is expected."""
        measured = self.measured.get(notebook)
        return sum(measured) / len(measured) if measured else self.expected_seconds(notebook)

    def _waiting(self) -> list[Stage]:
        busy = {*self.done, *(one.stage.title for one in self.running)}
        return [stage for stage in self.declared if stage.title not in busy]

    def _start_ready(self) -> None:
        for stage in self._waiting():
            if len(self.running) >= self.jobs or self.failures:
                return
            names = {one.stage.name for one in self.running}
            if stage.name not in names and all(need.title in self.done for need in stage.needs):
                state = look(stage, self.results, self.done)
                if state.kind == "cached":  # what it needs ran again, and wrote the same
                    self.done[stage.title] = state.stamp
                    _tell_hit(stage.title, state.stamp, tqdm.write)
                else:
                    self._start(stage, state)

    def _start(self, stage: Stage, state: State) -> None:
        was_cut_off = state.stamp.get("state") == "started"
        if not was_cut_off or state.stamp["parts"] != state.parts:  # nothing to go on from
            for folder in stage.folders(self.results):
                shutil.rmtree(folder, ignore_errors=True)
        log = stage.file("logs", self.results)
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "wb") as output:
            process = subprocess.Popen(
                [*command(stage, self.results), "--end-with-parent"],
                cwd=paths.ROOT,
                env=os.environ | ONE_THREAD | KEEP_MEMORY | QUIET,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches this process only, which then ends all
            )
        self.running.append(Running(stage, state.parts, process))
        # A pipeline killed before this line takes the child with it, before that has begun.
        stamp = {"state": "started", "pid": process.pid, "parts": state.parts}
        write_json(stamp, stage.file("stages", self.results))

    def _collect(self) -> None:
        for one in [one for one in self.running if one.process.poll() is not None]:
            self.running.remove(one)
            one.process.stdin.close()
            seconds = time.time() - one.started
            missing = [paths.portable(file) for file in one.stage.missing(self.results)]
            if one.process.returncode != 0 or missing:
                self._fail(one, missing)
                continue
            stamp = {"state": "done", "seconds": round(seconds, 1)}
            stamp |= {"finished": time.strftime("%Y-%m-%d %H:%M"), "git": git_state()}
            stamp |= {"outputs": output_hashes(one.stage, self.results), "parts": one.parts}
            write_json(stamp, one.stage.file("stages", self.results))
            self.done[one.stage.title] = stamp
            self._count(one.stage.notebook, seconds)
            tqdm.write(
                f"[{len(self.done)}/{len(self.declared)}] {one.stage.title}: {clock(seconds)}"
                f" | elapsed {clock(time.time() - self.started)}"
                f" | about {clock(self.seconds_left())} left"
            )

    def _fail(self, one: Running, missing: list[str]) -> None:
        log = one.stage.file("logs", self.results)
        words = command(one.stage, self.results)
        words[0] = paths.portable(words[0])
        last = last_line(log).removeprefix("rc: error: ")
        if one.process.returncode == 0:
            last = f"{one.stage.title}: ended without writing {', '.join(missing)}"
        elif not last.startswith(one.stage.notebook):
            last = f"{one.stage.title}: exit {one.process.returncode}: {last}"
        message = f"{last}\n  log    {paths.portable(log)}\n  alone  {shlex.join(words)}"
        self.failures.append(message)
        others = f"; waiting for {len(self.running)} beside it" if self.running else ""
        tqdm.write(f"FAILED {one.stage.title}{others}")

    def _tell(self, bar: tqdm) -> None:
        bar.n = len(self.done)
        bar.set_postfix_str(f"about {clock(self.seconds_left())} left")
        if time.time() - self.heartbeat >= HEARTBEAT_S:
            self.heartbeat = time.time()
            for one in self.running:
                said = last_line(one.stage.file("logs", self.results))
                tqdm.write(f"... {one.stage.title}, {clock(time.time() - one.started)}: {said}")

    def _count(self, notebook: str, seconds: float) -> None:
        self.measured.setdefault(notebook, []).append(seconds)


@contextmanager
def locked(results: Path) -> Iterator[None]:
    """Keep a second run out of a results folder; the lock ends with this process, however it ends.

    Raises:
        RcError: if another process holds it.
    """
    results.mkdir(parents=True, exist_ok=True)
    with open(results / "lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RcError(
                f"another run uses {paths.portable(results)}; wait for it or stop it"
            ) from None
        yield


def kill_tree(process: subprocess.Popen, patience_s: float = 5.0) -> None:
    """End a process and all below it, first asking, then by force."""
    try:
        parent = psutil.Process(process.pid)
        tree = [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for send in (psutil.Process.terminate, psutil.Process.kill):
        for one in tree:
            with suppress(psutil.NoSuchProcess):
                send(one)
        _, tree = psutil.wait_procs(tree, timeout=patience_s)
    process.wait()


def last_line(log: Path) -> str:
    """Return the last line of a log that is not empty; a progress bar counts as last drawn."""
    with open(log, "rb") as file:
        file.seek(max(0, log.stat().st_size - 4000))
        text = file.read().decode("utf-8", errors="replace")
    lines = text.replace("\r", "\n").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def clock(seconds: float) -> str:
    """Write a duration as people read it.

    >>> clock(59.7), clock(3725)
    ('1:00', '1:02:05')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def several(reasons: Sequence[str], most: int = 3) -> str:
    """Write the first reasons in one line, and how many more there are.

    >>> several(["a changed", "b changed"], 1)
    'a changed and 1 more'
    """
    more = f" and {len(reasons) - most} more" if len(reasons) > most else ""
    return ", ".join(reasons[:most]) + more


def _tell_hit(title: str, stamp: Mapping, tell: Callable[[str], object]) -> None:
    tell(f"{title}: done before in {clock(stamp['seconds'])} ({stamp['finished']}), skipped")
