"""Run stages in the order of their needs, several processes side by side, and tell how far it is.

A stage that succeeded leaves a stamp with the key of what it was made from, and is skipped next
time. A killed stage starts again, and its trainer goes on from its checkpoint.
"""

import fcntl
import json
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from tqdm import tqdm

from rc_lib import paths
from rc_lib.config import MEASUREMENTS
from rc_lib.errors import RcError
from rc_lib.manifest import git_state, write_json
from rc_lib.stage import Stage, command, stage_key

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
    key: str  # from its start, as the notebook may be edited meanwhile
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
        self.done: set[str] = set()
        self.running: list[Running] = []
        self.failures: list[str] = []
        self.heartbeat = time.time()

    def skip_done(self) -> None:
        """Leave out stages whose stamp fits, and tables that the next table replaces at once."""
        for stage in self.declared:
            if stamp := self._valid_stamp(stage):
                self._count(stage, stamp["seconds"])
                print(
                    f"{stage.title}: done before in {clock(stamp['seconds'])} "
                    f"({stamp['finished']}), skipped"
                )
        tables = [stage for stage in self.declared if stage.slot]
        for table, later in zip(tables, tables[1:], strict=False):
            if all(need.title in self.done for need in later.needs):
                self.declared.remove(table)
                self.done.discard(table.title)

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
            max(self._estimate(stage.notebook) - elapsed.get(stage.title, 0.0), 1.0)
            for stage in self.declared
            if stage.title not in self.done
        ]
        return max(sum(left) / self.jobs, max(left, default=0.0))

    def _estimate(self, notebook: str) -> float:
        measured = self.measured.get(notebook)
        return sum(measured) / len(measured) if measured else self.expected_seconds(notebook)

    def _waiting(self) -> list[Stage]:
        busy = self.done | {one.stage.title for one in self.running}
        return [stage for stage in self.declared if stage.title not in busy]

    def _start_ready(self) -> None:
        for stage in self._waiting():
            if len(self.running) >= self.jobs or self.failures:
                return
            names = {one.stage.name for one in self.running}
            if stage.name not in names and all(need.title in self.done for need in stage.needs):
                self._start(stage)

    def _start(self, stage: Stage) -> None:
        key, stamp = stage_key(stage), self._file("stages", stage, "json")
        before = _read_stamp(stamp)
        if (before.get("state"), before.get("key")) != ("started", key):  # nothing to go on from
            for arm in stage.arms:
                for folder in (paths.record_dir, paths.checkpoint_dir):
                    shutil.rmtree(folder(self.results, stage.seed, arm), ignore_errors=True)
        write_json({"key": key, "state": "started"}, stamp)
        log = self._file("logs", stage, "log")
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
        self.running.append(Running(stage, key, process))

    def _collect(self) -> None:
        for one in [one for one in self.running if one.process.poll() is not None]:
            self.running.remove(one)
            one.process.stdin.close()
            seconds = time.time() - one.started
            missing = self._missing_records(one.stage)
            if one.process.returncode != 0 or missing:
                self._fail(one, missing)
                continue
            stamp = {"key": one.key, "state": "done", "seconds": round(seconds, 1)}
            stamp |= {"finished": time.strftime("%Y-%m-%d %H:%M"), "git": git_state()}
            write_json(stamp, self._file("stages", one.stage, "json"))
            self._count(one.stage, seconds)
            tqdm.write(
                f"[{len(self.done)}/{len(self.declared)}] {one.stage.title}: {clock(seconds)}"
                f" | elapsed {clock(time.time() - self.started)}"
                f" | about {clock(self.seconds_left())} left"
            )

    def _fail(self, one: Running, missing: list[str]) -> None:
        log = self._file("logs", one.stage, "log")
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
                said = last_line(self._file("logs", one.stage, "log"))
                tqdm.write(f"... {one.stage.title}, {clock(time.time() - one.started)}: {said}")

    def _count(self, stage: Stage, seconds: float) -> None:
        self.done.add(stage.title)
        self.measured.setdefault(stage.notebook, []).append(seconds)

    def _valid_stamp(self, stage: Stage) -> dict | None:
        stamp = _read_stamp(self._file("stages", stage, "json"))
        is_done = (
            stamp.get("state") == "done"
            and stamp["key"] == stage_key(stage)
            and all(need.title in self.done for need in stage.needs)
            and not self._missing_records(stage)
        )
        return stamp if is_done else None

    def _missing_records(self, stage: Stage) -> list[str]:
        files = []
        for arm in stage.arms:
            names = ["manifest.json"] if arm in MEASUREMENTS else ["per_item.csv", "manifest.json"]
            folder = paths.record_dir(self.results, stage.seed, arm)
            files += [folder / name for name in names]
        return [paths.portable(file) for file in files if not file.is_file()]

    def _file(self, kind: str, stage: Stage, suffix: str) -> Path:
        return self.results / kind / f"{stage.name}.{suffix}"


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


def _read_stamp(path: Path) -> dict:
    """Return a stage's stamp; an absent or damaged one counts as none."""
    try:
        stamp = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}
