"""`rc bfcl verify` and `rc bfcl step`: our BFCL environment beside the official checker.

Both judge the same trajectories, one after the other in one process: the 800 references and any
number of seeded corruptions of them.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rc_lib.envs.backends import BFCL_VERSION
from rc_lib.envs.bfcl import BFCLEnv
from rc_lib.envs.calls import Call
from rc_lib.envs.changes import changes
from rc_lib.envs.execution import ERROR
from rc_lib.official import OfficialChecker
from rc_lib.seeding import rng
from rc_lib.tasks.base import Task
from rc_lib.tasks.bfcl import bfcl_task, bfcl_tasks
from rc_lib.tasks.corruptions import Trajectory, corrupted_trajectory, reference_trajectory

if TYPE_CHECKING:
    import pandas as pd

STEPS = 10_000  # no limit: the official checker judges trajectories of any length


def judge(task: Task, trajectory: Trajectory, *, bar_functions: bool = False) -> dict[str, float]:
    """Play a trajectory through our environment, turn by turn, and return the reward's parts.

    Args:
        bar_functions: whether withheld functions are barred, which BFCL's checker never does.

    Example:
        >>> task = bfcl_task("multi_turn_base_0")
        >>> judge(task, reference_trajectory(task))["official"]
        1.0
    """
    env = BFCLEnv(task, protocol="turns", max_steps=STEPS, bar_functions=bar_functions)
    env.reset()
    for messages in trajectory:
        for calls in messages:
            env.step(f"[{', '.join(calls)}]")
        env.step("")
    return env.reward()


def trajectories(n_corrupt: int, seed: int) -> Iterator[tuple[Task, str, Trajectory]]:
    """All references, then corrupted ones that go round the tasks: (task, kind, trajectory)."""
    tasks = bfcl_tasks()
    for task in tasks:
        yield task, "reference", reference_trajectory(task)
    for index in range(n_corrupt):
        task = tasks[index % len(tasks)]
        yield task, *corrupted_trajectory(task, rng(seed, "bfcl-corruption", index))


def verify(
    n_corrupt: int = 10_000, seed: int = 0, *, limit: int | None = None, progress: bool = False
) -> pd.DataFrame:
    """Judge references and corrupted trajectories with our environment and the official checker.

    Args:
        n_corrupt: number of corrupted trajectories, >= 0.
        seed: of the corruptions.
        limit: judge every k-th trajectory only, so that about this many remain.
        progress: show a progress bar on stderr.
    Returns:
        One row a trajectory: task_id, category, kind, theirs (official checker), official, strict,
        reward, state, action (ours), barred (our official verdict with withheld functions barred),
        ours_ms, theirs_ms.

    Example:
        >>> frame = verify(n_corrupt=8, limit=4)
        >>> len(frame), bool((frame.official == frame.theirs).all())
        (4, True)
    """
    import pandas as pd
    from tqdm import tqdm

    if n_corrupt < 0:
        raise ValueError(f"n_corrupt is {n_corrupt}; give 0 or more corrupted trajectories")
    checker = OfficialChecker()
    total = len(bfcl_tasks()) + n_corrupt
    every = 1 if limit is None else max(1, total // limit)
    rows = []
    bar = tqdm(total=total, desc="trajectories", unit="", disable=not progress, file=sys.stderr)
    with bar:
        for index, (task, kind, trajectory) in enumerate(trajectories(n_corrupt, seed)):
            bar.update()
            if index % every == 0:
                rows.append(_compared(checker, task, kind, trajectory, index % 2 == 0))
    return pd.DataFrame(rows)


def _compared(
    checker: OfficialChecker, task: Task, kind: str, trajectory: Trajectory, ours_first: bool
) -> dict:
    if not ours_first:
        theirs, theirs_ms = timed(checker.valid, task, trajectory)
    parts, ours_ms = timed(judge, task, trajectory)
    if ours_first:
        theirs, theirs_ms = timed(checker.valid, task, trajectory)
    barred = parts["official"]
    if task.missed_function or task.excluded_function:
        barred = judge(task, trajectory, bar_functions=True)["official"]
    return {
        "task_id": task.id,
        "category": task.category,
        "kind": kind,
        "theirs": float(theirs),
        **{name: parts[name] for name in ("official", "strict", "reward", "state", "action")},
        "barred": barred,
        "ours_ms": ours_ms,
        "theirs_ms": theirs_ms,
    }


def timed(function: Callable, *arguments: Any) -> tuple[Any, float]:
    """A function's result and the wall milliseconds it took.

    Example:
        >>> timed(abs, -1)[0]
        1
    """
    started = time.perf_counter()
    result = function(*arguments)
    return result, (time.perf_counter() - started) * 1e3


def summary(frame: pd.DataFrame, by: str) -> pd.DataFrame:
    """Counts, passes and times of `verify`'s rows, one row for each value of a column and a total.

    Args:
        frame: from `verify`.
        by: "category" or "kind".
    """
    import pandas as pd

    groups = [(name, frame[frame[by] == name]) for name in dict.fromkeys(frame[by])]
    rows = []
    for name, group in [*groups, ("all", frame)]:
        ours, theirs = group.ours_ms.mean(), group.theirs_ms.mean()
        rows.append(
            {
                by: name,
                "n": len(group),
                "agree": int((group.official == group.theirs).sum()),
                "official": int(group.official.sum()),
                "strict": int(group.strict.sum()),
                "reward": int(group.reward.sum()),
                "barred": int(group.barred.sum()),
                "ours ms": round(ours, 3),
                "theirs ms": round(theirs, 3),
                "ratio": round(ours / theirs, 2),
            }
        )
    return pd.DataFrame(rows)


def report(frame: pd.DataFrame, seed: int) -> dict[str, Any]:
    """The outcome of `verify` as data for JSON: agreement, times and both summaries.

    Args:
        frame: from `verify`.
        seed: of the corruptions, to be recorded.
    """
    agree = frame.official == frame.theirs
    is_reference = frame.kind == "reference"
    warm = frame[~is_reference] if (~is_reference).any() else frame
    return {
        "bfcl_eval": BFCL_VERSION,
        "seed": seed,
        "references": f"{int(agree[is_reference].sum())}/{int(is_reference.sum())}",
        "references_valid": int(frame.theirs[is_reference].sum()),
        "corrupted": f"{int(agree[~is_reference].sum())}/{int((~is_reference).sum())}",
        "ours_ms": round(float(warm.ours_ms.mean()), 4),
        "official_ms": round(float(warm.theirs_ms.mean()), 4),
        "ratio": round(float(warm.ours_ms.mean() / warm.theirs_ms.mean()), 3),
        "by_category": summary(frame, "category").to_dict("records"),
        "by_kind": summary(frame, "kind").to_dict("records"),
        "disagreements": frame[~agree].to_dict("records"),
    }


def step_text(task_id: str, text: str, *, protocol: str = "merged") -> dict[str, Any]:
    """What one model text does to a fresh environment.

    Args:
        task_id: of a BFCL task.
        text: any text.
        protocol: "merged" or "turns".
    Returns:
        calls (as understood), results (of the tools), error (why the text or its first failing
        call was refused, else None), state_changed and diff (path -> [before, after]), observation
        (what the policy is shown), terminated, truncated, reward, parts and ms.

    Example:
        >>> answer = step_text("multi_turn_base_0", "[mkdir('temp')]")
        >>> answer["calls"], answer["diff"]
        (["mkdir('temp')"], {'GorillaFileSystem.root/temp': [None, 'directory']})
    """
    env = BFCLEnv(bfcl_task(task_id), protocol=protocol)
    env.reset()
    started = time.perf_counter()
    observation, reward, terminated, truncated, info = env.step(text)
    ms = (time.perf_counter() - started) * 1e3
    failures = (result for result in info["results"] if result.startswith(ERROR))
    calls = [c.text() if isinstance(c, Call) else f"refused: {c.name}" for c in info["calls"]]
    start = env.instances.start
    return {
        "task": task_id,
        "protocol": protocol,
        "calls": calls,
        "results": info["results"],
        "error": info["error"] or next(failures, None),
        "state_changed": not env.instances.same_state(
            start.states, dict.fromkeys(start.states, True)
        ),
        "diff": changes(env.instances),
        "observation": [list(message) for message in observation],
        "terminated": terminated,
        "truncated": truncated,
        "reward": reward,
        "parts": env.reward(),
        "ms": round(ms, 3),
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `verify` and `step` below the command `rc bfcl`; each sets `run`.

    Example:
        >>> parser = argparse.ArgumentParser()
        >>> add_arguments(parser)
        >>> parser.parse_args(["step", "--task", "multi_turn_base_0", "ls()"]).text
        'ls()'
    """
    commands = parser.add_subparsers(dest="bfcl_command", required=True)
    command = commands.add_parser("verify", help="compare our verdicts with the official checker's")
    command.add_argument("--corrupt", type=int, default=10_000, help="corrupted trajectories")
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--json", metavar="FILE", help="also write the outcome as JSON")
    command.set_defaults(run=_run_verify)
    command = commands.add_parser("step", help="what one model text does to a fresh environment")
    command.add_argument("--task", required=True, help="e.g. multi_turn_base_0")
    command.add_argument("--protocol", choices=("merged", "turns"), default="merged")
    texts = command.add_mutually_exclusive_group(required=True)
    texts.add_argument("text", nargs="?", help="the model's text")
    texts.add_argument("--stdin", action="store_true", help="one JSON-encoded text a line")
    command.set_defaults(run=_run_step)


def _run_verify(parsed: argparse.Namespace) -> int:
    frame = verify(parsed.corrupt, parsed.seed, progress=True)
    outcome = report(frame, parsed.seed)
    for by in ("category", "kind"):
        print(summary(frame, by).to_string(index=False), end="\n\n")
    print("official, strict, reward: verdicts of our environment; barred: official, with withheld")
    print("and excluded functions barred, as in training; ms: mean wall time a trajectory.")
    print(f"agreement on references: {outcome['references']}")
    print(f"agreement on corrupted trajectories: {outcome['corrupted']}")
    print(
        f"ms a task: {outcome['ours_ms']:.3f} ours, {outcome['official_ms']:.3f} official, "
        f"ratio {outcome['ratio']:.2f}"
    )
    if parsed.json:
        Path(parsed.json).write_text(json.dumps(outcome, indent=1) + "\n")
    if outcome["disagreements"]:
        print(f"DISAGREEMENT, first of all: {outcome['disagreements'][0]}")
        return 1
    return 0


def _run_step(parsed: argparse.Namespace) -> int:
    bfcl_task(parsed.task)  # a wrong id is the user's mistake, not an answer
    if not parsed.stdin:
        print(json.dumps(step_text(parsed.task, parsed.text, protocol=parsed.protocol)))
        return 0
    for line in sys.stdin.buffer:
        try:
            text = json.loads(line)
            if not isinstance(text, str):
                raise ValueError(f"a {type(text).__name__}")
        except (ValueError, RecursionError) as error:
            answer: dict[str, Any] = {"error": f"the line is not one JSON string: {error}"}
        else:
            answer = step_text(parsed.task, text, protocol=parsed.protocol)
        print(json.dumps(answer), flush=True)
    return 0
