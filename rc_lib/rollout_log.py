"""The logged rollouts of a run: where they lie, what a line holds, and its transcript again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from rc_lib import paths
from rc_lib.errors import RcError
from rc_lib.transcript import Transcript

LOG = "rollouts.jsonl"
FIELDS = {
    "step", "task_id", "category", "group_id", "member", "token", "reward", "parts", "ended",
    "advantage", "texts", "ids", "spans",
}  # fmt: skip


class RunPlace(NamedTuple):
    """Where the rollouts of one arm and seed are logged."""

    seed: int
    arm: str
    path: Path


def find_runs(root: str | Path) -> list[RunPlace]:
    """Return the runs with logged rollouts under a results root, by seed and arm.

    Raises:
        RcError: if there is none.
    """
    folder = paths.resolve(root) / "checkpoints"
    found = [
        RunPlace(int(path.parts[-3][4:]), path.parts[-2], path)
        for path in folder.glob(f"seed[0-9]*/*/{LOG}")
    ]
    if not found:
        raise RcError(
            f"no {LOG} under {folder}; run notebooks 10 and 11 with this results_dir first"
        )
    return sorted(found)


def load_groups(path: Path) -> dict[tuple[int, int], list[dict]]:
    """Read the logged groups of a run.

    Returns:
        (step, group_id) -> its members in order, as `rc_lib.trainer` logged them.

    Raises:
        ValueError: for a line that is no record, a group that is not whole, or no group at all.
    """
    groups: dict[tuple[int, int], list[dict]] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n")[:-1], start=1):
        try:
            record = json.loads(line)
            missing = sorted(FIELDS - record.keys())
        except (ValueError, AttributeError) as error:
            raise ValueError(f"{path}, line {number}, is no record of a rollout: {error}") from None
        if missing:
            raise ValueError(f"{path}, line {number}, lacks {', '.join(missing)}")
        groups.setdefault((int(record["step"]), int(record["group_id"])), []).append(record)
    for (step, group_id), members in groups.items():
        numbers = [one["member"] for one in members]
        if numbers != list(range(len(numbers))):
            raise ValueError(f"{path}: step {step}, group {group_id}, has members {numbers}")
    if not groups:
        raise ValueError(f"{path} holds no rollouts yet; wait for the first step of the run")
    return dict(sorted(groups.items()))


def logged_transcript(record: dict) -> Transcript:
    """Build a logged transcript again, by the same checks; its log-probabilities are not logged.

    Raises:
        ValueError: if the spans do not cover the ids in order.

    >>> spans = [["prompt", 0, 2], ["model", 2, 3]]
    >>> logged_transcript({"ids": [5, 6, 7], "spans": spans}).mask().tolist()
    [False, False, True]
    """
    transcript = Transcript()
    for kind, start, end in record["spans"]:
        transcript.append(kind, record["ids"][start:end])
    if transcript.ids != record["ids"]:
        raise ValueError(f"spans {record['spans']} do not cover {len(record['ids'])} ids in order")
    return transcript
