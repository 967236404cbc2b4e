"""BFCL's own multi-turn checker. It evaluates its input: give it reference calls only."""

from __future__ import annotations

from rc_lib.envs.backends import BACKENDS
from rc_lib.tasks.base import Task
from rc_lib.tasks.bfcl import bfcl_tasks
from rc_lib.tasks.corruptions import Trajectory


class OfficialChecker:
    """BFCL's `multi_turn_checker`, kept from remembering earlier trajectories.

    The official executor keeps its instances in module globals under the model's name and the
    task's id: each trajectory gets its own model name, and the globals are deleted after it.

    Raises:
        RcError: where `bfcl-eval` is missing or of another version.

    Example:
        >>> task = bfcl_tasks("test", "base")[0]
        >>> OfficialChecker().valid(task, [[list(calls)] for calls in task.reference])
        True
    """

    def __init__(self) -> None:
        bfcl_tasks()  # checks the package and its version
        dict(BACKENDS)  # imports, so that no trajectory is charged for them
        from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_checker, multi_turn_utils

        self._check = multi_turn_checker.multi_turn_checker
        self._globals = vars(multi_turn_utils)
        self._judged = 0

    def valid(self, task: Task, trajectory: Trajectory) -> bool:
        """The official verdict on a trajectory."""
        self._judged += 1
        model = f"rc{self._judged}"
        entry = {
            "id": task.id,
            "initial_config": task.initial_config,
            "involved_classes": list(task.involved_classes),
        }
        reference = [list(calls) for calls in task.reference]
        try:
            category = task.id.rpartition("_")[0]
            return self._check(trajectory, reference, entry, category, model)["valid"]
        finally:
            for name in [name for name in self._globals if name.startswith(f"{model}_")]:
                del self._globals[name]
