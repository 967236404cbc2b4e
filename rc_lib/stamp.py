"""What a stage was made from and what it wrote: its stamp, and why it has to run again.

A stage is cached if every part of its key is what it was (code, parameters, locks, inputs, and the
outputs of the stages it needs) and every file it wrote still has the hash it had.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from rc_lib import paths
from rc_lib.code_key import code_parts, file_hash, lock_hash
from rc_lib.config import PROFILES
from rc_lib.notebook import find_notebook
from rc_lib.stage import Stage

LOCKS = ("requirements.lock", "requirements-nodeps.lock")
VARYING = ("timing.csv", "manifest.json")  # differ between equal runs, so no key depends on them
NEED = "output of "


@dataclass(frozen=True)
class State:
    """Where a stage stands.

    Attributes:
        kind: cached, stale, missing, interrupted or running.
        why: reasons to run it (again), one a changed part or damaged file.
        parts: its key now, without the needs that are not cached.
        stamp: what its last run left, empty if nothing.
    """

    kind: str
    why: tuple[str, ...] = ()
    parts: dict = field(default_factory=dict)
    stamp: dict = field(default_factory=dict)


def key_parts(stage: Stage, stamps: Mapping[str, Mapping]) -> dict[str, str]:
    """Return all that a stage is made from, by name; two runs of equal parts are equal.

    Args:
        stage: the stage; its ``results_dir`` does not count.
        stamps: stamps of finished stages by title; needs that are not in it are left out.
    """
    parts = code_parts(find_notebook(stage.notebook))
    for name, value in stage.parameters.items():
        if name != "results_dir":
            parts[f"parameter {name}"] = json.dumps(value)
    for name in LOCKS:
        parts[name] = lock_hash(paths.ROOT / name)
    profile = PROFILES.get(stage.parameters.get("profile"))
    if profile and "module rc_lib.policy" in parts:  # a base from the hub is named in config
        for file in sorted(filter(Path.is_file, (paths.ROOT / profile.base).glob("*"))):
            parts[f"input {profile.base}/{file.name}"] = file_hash(file)
    for need in stage.needs:
        if need.title in stamps:
            kept = stamps[need.title]["outputs"].items()
            kept = {path: sha for path, sha in kept if Path(path).name not in VARYING}
            parts[NEED + need.title] = json.dumps(kept)
    return parts


def look(stage: Stage, results: Path, stamps: Mapping[str, Mapping]) -> State:
    """Compare a stage with its stamp.

    Args:
        stage: the stage.
        results: folder of the results.
        stamps: stamps of the stages that are finished and valid, by title.
    """
    stamp, parts = read_stamp(stage.file("stages", results)), key_parts(stage, stamps)
    if not stamp:
        return State("missing", (), parts)
    absent = [need.title for need in stage.needs if need.title not in stamps]
    unknown = {NEED + title for title in absent}
    before = {name: sha for name, sha in stamp["parts"].items() if name not in unknown}
    why = _changes(before, parts)
    if stamp["state"] == "done" and not why:
        why = _damages(stamp["outputs"], results)
    more = f" and {len(absent) - 1} more" if absent[1:] else ""
    why += [f"it needs {absent[0]}{more} first"] if absent else []
    if stamp["state"] == "done":
        kind = "stale" if why else "cached"
    else:
        kind = "running" if _runs(stamp["pid"]) else "stale" if why else "interrupted"
    return State(kind, tuple(why), parts, stamp)


def survey(declared: Sequence[Stage], results: Path) -> dict[str, State]:
    """Return the state of each stage by title, needs first.

    A table that a later one of its slot replaces at once is left out.
    """
    states, stamps = {}, {}
    for stage in declared:
        states[stage.title] = state = look(stage, results, stamps)
        if state.kind == "cached":
            stamps[stage.title] = state.stamp
    for n, stage in enumerate(declared):
        later = [other for other in declared[n + 1 :] if stage.slot and other.slot == stage.slot]
        if any(all(need.title in stamps for need in other.needs) for other in later):
            del states[stage.title]
    return states


def output_hashes(stage: Stage, results: Path) -> dict[str, str]:
    """Return the sha256 of each file that a stage wrote, by its path below the results."""
    files = stage.outputs(results)
    return {file.relative_to(results).as_posix(): file_hash(file) for file in files}


def read_stamp(path: Path) -> dict:
    """Return a stage's stamp; one that is absent, damaged or of another form counts as none."""
    try:
        stamp = json.loads(path.read_text(encoding="utf-8"))
        more = {"started": ("pid",), "done": ("outputs", "seconds", "finished")}[stamp["state"]]
        return stamp if all(name in stamp for name in ("parts", *more)) else {}
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return {}


def _changes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    verbs = {name: "changed" if name in before else "is new" for name in now}
    verbs |= {name: "is gone" for name in before if name not in now}
    return [f"{name} {verb}" for name, verb in verbs.items() if before.get(name) != now.get(name)]


def _damages(outputs: Mapping[str, str], results: Path) -> list[str]:
    words = []
    for name, sha in outputs.items():
        if not (results / name).is_file():
            words.append(f"{name} is missing")
        elif file_hash(results / name) != sha:
            words.append(f"{name} is damaged")
    return words


def _runs(pid: int) -> bool:
    try:
        return "run-notebook" in psutil.Process(pid).cmdline()
    except psutil.Error:  # ended
        return False
