"""A multi-turn tool-calling task, whether it comes from BFCL or is generated on its backends."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from typing import Any

CATEGORIES = ("base", "miss_func", "miss_param", "long_context")


@dataclass(frozen=True, eq=True)
class Task:
    """A user's turns, the backends they are about, and the reference calls of each turn.

    Attributes:
        id: e.g. "multi_turn_base_0"; generated tasks "gen_train_base_12".
        category: one of `CATEGORIES`.
        turns: the user's message of each turn, "" where withheld functions appear instead.
        initial_config: backend class name -> scenario for its `_load_scenario`.
        involved_classes: backend class names.
        reference: the gold call strings of each turn (an empty tuple: no call is right).
        missed_function: turn -> names of the functions whose docs appear only at that turn.
        excluded_function: names that must not be called at all.
        path: BFCL's own annotation "Class.function", for reading only.

    Example:
        >>> task = Task("t_0", "base", ("Files?",), {}, ("GorillaFileSystem",), (("ls()",),))
        >>> Task.from_json(task.to_json()) == task
        True
    """

    id: str
    category: str
    turns: tuple[str, ...]
    initial_config: dict[str, Any]
    involved_classes: tuple[str, ...]
    reference: tuple[tuple[str, ...], ...]
    missed_function: dict[int, tuple[str, ...]] = field(default_factory=dict)
    excluded_function: tuple[str, ...] = ()
    path: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.category not in CATEGORIES:
            raise ValueError(f"task {self.id}: category {self.category!r} is not in {CATEGORIES}")
        if len(self.turns) != len(self.reference):
            raise ValueError(
                f"task {self.id}: {len(self.turns)} turns but {len(self.reference)} turns of "
                "reference calls; give one tuple of calls (maybe empty) for each turn"
            )

    def __hash__(self) -> int:
        return hash(self.id)

    def to_json(self) -> str:
        """The task as one line of JSON.

        Example:
            >>> Task("t_0", "base", (), {}, (), ()).to_json()[:12]
            '{"id": "t_0"'
        """
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Task:
        """The task that `to_json` wrote.

        Args:
            text: one JSON object.
        Raises:
            ValueError: on an unknown or a missing field, naming it.

        Example:
            >>> Task.from_json('{"id": "t_0"}')
            Traceback (most recent call last):
            ...
            ValueError: task JSON lacks category, turns, initial_config, involved_classes, reference
        """
        data = json.loads(text)
        names = [f.name for f in fields(cls)]
        if unknown := [name for name in data if name not in names]:
            raise ValueError(f"task JSON has unknown fields {', '.join(unknown)}; known: {names}")
        if missing := [name for name in names[:6] if name not in data]:
            raise ValueError(f"task JSON lacks {', '.join(missing)}")
        for name in ("turns", "involved_classes", "excluded_function", "path"):
            if name in data:
                data[name] = tuple(data[name])
        data["reference"] = tuple(tuple(calls) for calls in data["reference"])
        if "missed_function" in data:
            missed = data["missed_function"].items()
            data["missed_function"] = {int(turn): tuple(names) for turn, names in missed}
        return cls(**data)
