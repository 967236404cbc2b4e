"""Kill a smoke reproduction with SIGKILL at random moments; its results must not change.

Run as ``python scripts/kill_check.py [--moments 20] [--results-dir runs/kill_check]``. One
reproduction of one seed is left alone. Another is killed at each moment, by chance with all its
processes or the pipeline alone, and started again at once; whenever it comes to its end before the
next moment, it is compared and begun anew. Records, checkpoints, tables and figures must
equal those of the first byte for byte, but for times and memory. Prints a table and exits with 1 if
a file differs, a re-run fails, or a process outlives a killed pipeline.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import psutil

from rc_lib import paths
from rc_lib.seeding import rng

COMPARED = ("records", "checkpoints", "paper_tables", "figures")
LEFT_OUT = ("timing.csv",)
VARYING = {
    "manifest.json": ("wall_s", "peak_mib", "git"),
    "metrics.json": ("rl_seconds", "tokens_per_s"),
}
LONGEST = 0.5  # the latest moment of a run, as a share of the time of the one left alone
PATIENCE_S = 10.0  # for the processes of a killed pipeline to notice


class Kill(NamedTuple):
    """One moment: when, what was killed, what ran, and which processes outlived it."""

    seconds: float
    victim: str
    running: str
    survivors: int


def start(results: Path, jobs: int) -> subprocess.Popen:
    """Start a smoke reproduction of one seed; what it says is appended to ``<results>.log``."""
    words = ["reproduce", "--profile", "smoke", "--seeds", "1", "--jobs", str(jobs)]
    with open(f"{results}.log", "ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "rc_lib", *words, "--results-dir", str(results)],
            cwd=paths.ROOT, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip


def kill(pipeline: subprocess.Popen, results: Path, seconds: float, everything: bool) -> Kill:
    """Kill a pipeline outright, with all below it or alone, and wait for those below to end."""
    parent = psutil.Process(pipeline.pid)
    stages = [stamp for stamp in _stamps(results) if stamp[1] == "started"]
    below = parent.children(recursive=True)
    for process in [parent, *(below if everything else ())]:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            pass
    pipeline.wait()
    until = time.time() + PATIENCE_S
    while (survivors := [one for one in below if _lives(one)]) and time.time() < until:
        time.sleep(0.05)
    running = ", ".join(name for name, _ in stages) or "(between stages)"
    return Kill(seconds, "all" if everything else "parent", running, len(survivors))


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def differences(left: Path, right: Path) -> list[str]:
    """Return the files below two results folders that differ in what must not."""
    names = {
        path.relative_to(root).as_posix()
        for root in (left, right)
        for folder in COMPARED
        for path in (root / folder).rglob("*")
        if path.is_file() and path.name not in LEFT_OUT
    }
    return [name for name in sorted(names) if _content(left / name) != _content(right / name)]


def _content(path: Path) -> object:
    if not path.is_file():
        return None
    if path.name not in VARYING:
        return path.read_bytes()
    left_out = VARYING[path.name]
    return {k: v for k, v in json.loads(path.read_text()).items() if k not in left_out}


def _stamps(results: Path) -> list[tuple[str, str]]:
    files = sorted((results / "stages").glob("*.json"))
    return [(file.stem, json.loads(file.read_text())["state"]) for file in files]


def check(folder: Path, moments: int, jobs: int, seed: int) -> list[str]:
    """Run the comparison and return what went wrong, printing a row a moment."""
    alone, killed = folder / "alone", folder / "killed"
    for old in (alone, killed):
        shutil.rmtree(old, ignore_errors=True)
        Path(f"{old}.log").unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    began = time.time()
    if start(alone, jobs).wait() != 0:
        return [f"the run left alone failed; see {alone}.log"]
    whole_s = time.time() - began
    print(f"left alone: {whole_s:.0f} s\n{'kill':>4} {'after':>7}  {'killed':6}  running")
    draw, problems, done = rng(seed, "kill-check"), [], 0
    while done < moments:
        seconds, everything = draw.uniform(1.0, LONGEST * whole_s), bool(draw.integers(2))
        pipeline = start(killed, jobs)
        try:
            status = pipeline.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            done += 1
            one = kill(pipeline, killed, seconds, everything)
            print(f"{done:4} {one.seconds:6.1f}s  {one.victim:6}  {one.running}", flush=True)
            if one.survivors:
                problems.append(f"kill {done}: {one.survivors} processes outlived the pipeline")
        else:
            problems += _compared(alone, killed, status)
            shutil.rmtree(killed)
    problems += _compared(alone, killed, start(killed, jobs).wait())
    print(f"{done} kills in {time.time() - began - whole_s:.0f} s")
    return problems


def _compared(alone: Path, killed: Path, status: int) -> list[str]:
    if status != 0:
        return [f"a re-run failed with status {status}; see {killed}.log"]
    different = differences(alone, killed)
    print(f"     came to its end: {len(different)} files differ", flush=True)
    return [f"{name} differs" for name in different]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--moments", type=int, default=20, help="number of kills")
    parser.add_argument("--results-dir", default="runs/kill_check")
    parser.add_argument("--jobs", type=int, default=2, help="processes side by side")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parsed = parser.parse_args()
    problems = check(paths.resolve(parsed.results_dir), parsed.moments, parsed.jobs, parsed.seed)
    print(*(problems or ["no result depends on the kills"]), sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
