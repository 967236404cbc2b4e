"""The folder of a training run: logs that grow step by step, and a checkpoint to go on from.

A run that is killed anywhere and started again ends with the same bytes as one left alone: the
checkpoint is replaced in one move, and going on cuts the logs back to the step it was made at.
"""

from __future__ import annotations

import csv
import io
import json
import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

CHECKPOINT = "checkpoint.safetensors"


class RunFolder:
    """Logs and checkpoint of one run.

    Args:
        path: the folder; made if absent.
        settings: what the run is, as JSON values; a checkpoint of another run is refused.

    >>> import tempfile
    >>> folder = RunFolder(Path(tempfile.mkdtemp()), {"seed": 0})
    >>> folder.append_csv("curve.csv", {"step": 0, "reward": 0.5, "mu_high": float("nan")})
    >>> print((folder.path / "curve.csv").read_text().strip())
    step,reward,mu_high
    0,0.5,
    """

    def __init__(self, path: Path, settings: Mapping):
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)
        self.settings = json.loads(json.dumps(settings))

    def append_csv(self, name: str, *rows: Mapping[str, float | str]) -> None:
        """Append rows, after a header if the file is new; nan becomes an empty cell."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        if not (self.path / name).exists():
            writer.writerow(rows[0])
        for row in rows:
            writer.writerow("" if value != value else value for value in row.values())
        self._append(name, text.getvalue())

    def append_json(self, name: str, records: Sequence[Mapping]) -> None:
        """Append one line of JSON for each record."""
        self._append(name, "".join(json.dumps(record) + "\n" for record in records))

    def _append(self, name: str, text: str) -> None:
        with open(self.path / name, "a", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())

    def save(
        self, done: int, weights: Mapping[str, torch.Tensor], optimizer: torch.optim.Optimizer
    ) -> None:
        """Replace the checkpoint by the state after `done` steps."""
        tensors = {f"weight/{name}": weight for name, weight in weights.items()}
        for name, weight in weights.items():
            for key, value in optimizer.state.get(weight, {}).items():
                tensors[f"{key}/{name}"] = value
        tensors = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
        # One metadata entry: the order of several is not fixed, and the bytes should be.
        run = json.dumps({"done": done, "settings": self.settings})
        temporary = self.path / f"{CHECKPOINT}.tmp"
        save_file(tensors, temporary, metadata={"run": run})
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, self.path / CHECKPOINT)

    def resume(
        self,
        weights: Mapping[str, torch.Tensor],
        optimizer: torch.optim.Optimizer,
        lines: Mapping[str, tuple[int, int]],
    ) -> int:
        """Load the checkpoint, cut the logs back to it, and return how many steps are done.

        A folder without one gets the state as it is, so that a run that is stopped and started
        again in one process goes back to its start.

        Args:
            weights: trained weights by name; overwritten.
            optimizer: optimizer over ``weights.values()`` in one parameter group; overwritten.
            lines: for each log, its header lines and its lines a step.

        Raises:
            ValueError: if the checkpoint belongs to another run, or a log is shorter than it.
        """
        path = self.path / CHECKPOINT
        if not path.exists():
            self.save(0, weights, optimizer)
        with safe_open(path, "pt") as file:
            run = json.loads(file.metadata()["run"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}
        self._same_run(run["settings"])
        _restore(tensors, weights, optimizer)
        done = run["done"]
        for name, (header, each) in lines.items():
            self._cut(name, header + each * done if done else 0)
        return done

    def _same_run(self, settings: Mapping) -> None:
        for name in sorted(settings.keys() | self.settings.keys()):
            old, new = settings.get(name), self.settings.get(name)
            if old != new:
                raise ValueError(
                    f"{self.path} holds a run with {name} = {old!r}, this one has {new!r}; "
                    "use another output_dir, or delete that folder"
                )

    def _cut(self, name: str, count: int) -> None:
        path = self.path / name
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        if len(lines) < count:
            raise ValueError(
                f"{path} has {len(lines)} lines, its checkpoint needs {count}; "
                f"restore the file, or delete {self.path} to start again"
            )
        if count:
            os.truncate(path, sum(map(len, lines[:count])))
        else:
            path.unlink(missing_ok=True)


def _restore(tensors, weights, optimizer) -> None:
    state = {index: {} for index in range(len(weights))}
    places = {name: index for index, name in enumerate(weights)}
    for full_name, tensor in tensors.items():
        kind, name = full_name.split("/", 1)
        if kind == "weight":
            weights[name].data.copy_(tensor)
        else:
            state[places[name]][kind] = tensor
    state = {index: values for index, values in state.items() if values}
    optimizer.load_state_dict(
        {"state": state, "param_groups": optimizer.state_dict()["param_groups"]}
    )


def checksum(tensors: Mapping[str, torch.Tensor]) -> int:
    """Return a checksum of the values of named tensors, to tell one start from another.

    >>> checksum({"a": torch.zeros(2)}) == checksum({"a": torch.ones(2)})
    False
    """
    crc = 0
    for name, tensor in tensors.items():
        data = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
        crc = zlib.crc32(data, zlib.crc32(name.encode(), crc))
    return crc
