"""A stage: one notebook with one set of parameters, its names, its key and its command."""

import hashlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path

from rc_lib import paths
from rc_lib.notebook import code_hash, find_notebook


@dataclass(frozen=True)
class Stage:
    """One notebook with one set of parameters."""

    notebook: str
    parameters: dict
    needs: tuple["Stage", ...] = ()
    seed: int | None = None
    arms: tuple[str, ...] = ()  # whose records it writes
    slot: str = ""  # stages of one slot write the same files, so the last one stands

    @property
    def name(self) -> str:
        """The stem of its stamp, log and executed copy."""
        return self.slot or "-".join([self.notebook, *_labels(self.parameters).values()])

    @property
    def title(self) -> str:
        """What progress lines call it."""
        return " ".join([self.notebook, *(f"{k}={v}" for k, v in _labels(self.parameters).items())])


def _labels(parameters: dict) -> dict[str, str]:
    labels = {k: v for k, v in parameters.items() if k not in ("profile", "results_dir")}
    return {k: str(v).replace(" ", "") for k, v in labels.items()}


def stage_key(stage: Stage) -> str:
    """Return the sha256 of all that a stage is made from: code cells, parameters, its needs' keys.

    The library's own code is not part of it yet: after a change there, ``make clean`` first.
    """
    parameters = {k: v for k, v in stage.parameters.items() if k != "results_dir"}
    needs = [stage_key(need) for need in stage.needs]
    parts = [code_hash(find_notebook(stage.notebook)), parameters, needs]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def command(stage: Stage, results: Path) -> list[str]:
    """Return the command that runs one stage, relative to the repository's root."""
    notebook = paths.portable(find_notebook(stage.notebook))
    output = paths.portable(results / "notebooks" / f"{stage.name}.ipynb")
    words = [sys.executable, "-m", "rc_lib", "run-notebook", notebook, "--output", output]
    for name, value in stage.parameters.items():
        words += ["-p", f"{name}={value if isinstance(value, str) else json.dumps(value)}"]
    return words
