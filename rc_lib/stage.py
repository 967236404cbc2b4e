"""A stage: one notebook with one set of parameters, its names, its files and its command."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from rc_lib import paths
from rc_lib.notebook import find_notebook


@dataclass(frozen=True)
class Stage:
    """One notebook with one set of parameters.

    Attributes:
        notebook: its name.
        parameters: values for its parameters cell.
        needs: stages whose files it reads.
        seed, arms: whose records and checkpoints it writes.
        writes: patterns of further files it writes, below the folder of the results.
        slot: stages of one slot write the same files, so the last one stands.
        extra: runs only when asked for.
    """

    notebook: str
    parameters: dict
    needs: tuple["Stage", ...] = ()
    seed: int | None = None
    arms: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    slot: str = ""
    extra: bool = False

    @property
    def name(self) -> str:
        """The stem of its stamp, log and executed copy."""
        return self.slot or "-".join([self.notebook, *_labels(self.parameters).values()])

    @property
    def title(self) -> str:
        """What progress lines call it."""
        return " ".join([self.notebook, *(f"{k}={v}" for k, v in _labels(self.parameters).items())])

    def file(self, kind: str, results: Path) -> Path:
        """Return its file in ``stages`` (the stamp), ``logs`` or ``notebooks`` (executed copy)."""
        suffix = {"stages": "json", "logs": "log", "notebooks": "ipynb"}[kind]
        return results / kind / f"{self.name}.{suffix}"

    def folders(self, results: Path) -> list[Path]:
        """Return the folders that are its own: records and checkpoints of its arms."""
        places = (paths.record_dir, paths.checkpoint_dir)
        return [place(results, self.seed, arm) for arm in self.arms for place in places]

    def outputs(self, results: Path) -> list[Path]:
        """Return the files that it has written and that count as its result, sorted.

        The executed copy is one only where there is nothing else: it may be opened and saved.
        """
        found = [path for folder in self.folders(results) for path in folder.rglob("*")]
        found += [path for pattern in self.writes for path in results.glob(pattern)]
        found = sorted(path for path in found if path.is_file())
        return found or [self.file("notebooks", results)]

    def missing(self, results: Path) -> list[Path]:
        """Return the files without which it is not finished, as far as they are not there."""
        records = [paths.record_dir(results, self.seed, arm) for arm in self.arms]
        wanted = [file for folder in records for file in paths.finished_record(folder)]
        return [file for file in wanted or [self.file("notebooks", results)] if not file.is_file()]


def _labels(parameters: dict) -> dict[str, str]:
    labels = {k: v for k, v in parameters.items() if k not in ("profile", "results_dir")}
    return {k: str(v).replace(" ", "") for k, v in labels.items()}


def command(stage: Stage, results: Path) -> list[str]:
    """Return the command that runs one stage, relative to the repository's root."""
    notebook = paths.portable(find_notebook(stage.notebook))
    output = paths.portable(stage.file("notebooks", results))
    words = [sys.executable, "-m", "rc_lib", "run-notebook", notebook, "--output", output]
    for name, value in stage.parameters.items():
        words += ["-p", f"{name}={value if isinstance(value, str) else json.dumps(value)}"]
    return words
