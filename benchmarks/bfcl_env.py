"""Milliseconds a task of our BFCL environment against the official executor, side by side.

    python benchmarks/bfcl_env.py [--rounds 5]

Every task's reference is played through both, one straight after the other and in alternating
order, so that other work on the machine slows both alike. "first" is a task's first rollout, which
also loads its scenario and runs its reference; "later" are the further rollouts of a group.
"""

from __future__ import annotations

import argparse
import statistics

from rc_lib.envs import calls, reference
from rc_lib.official import OfficialChecker
from rc_lib.tasks.bfcl import bfcl_tasks
from rc_lib.tasks.corruptions import reference_trajectory
from rc_lib.verify import judge, timed


def one_round(checker: OfficialChecker, ours_first: bool) -> tuple[float, float]:
    """Mean milliseconds a task: ours, official."""
    tasks = bfcl_tasks()
    ours = theirs = 0.0
    for task in tasks:
        trajectory = reference_trajectory(task)
        if ours_first:
            ours += timed(judge, task, trajectory)[1]
        theirs += timed(checker.valid, task, trajectory)[1]
        if not ours_first:
            ours += timed(judge, task, trajectory)[1]
    return ours / len(tasks), theirs / len(tasks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    checker = OfficialChecker()
    for name in ("first", "later"):
        pairs = []
        for index in range(rounds):
            if name == "first":
                reference.forget()
                calls.forget()
            pairs.append(one_round(checker, index % 2 == 0))
        ratios = [ours / theirs for ours, theirs in pairs]
        print(
            f"{name:5s}: ours {statistics.median(o for o, _ in pairs):.3f} ms, "
            f"official {statistics.median(t for _, t in pairs):.3f} ms, "
            f"ratio {statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f}), "
            f"{rounds} rounds of 800 tasks"
        )


if __name__ == "__main__":
    main()
