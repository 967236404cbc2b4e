"""What an episode has changed in its backends, as a flat, bounded and printable difference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rc_lib.envs.execution import Instances

MAX_DEPTH = 12
MAX_VALUES = 20_000  # copied directories may form a graph with more paths than can be listed
MAX_SHOWN = 50
MAX_VALUE_CHARS = 200


def changes(instances: Instances) -> dict[str, list[Any]]:
    """The values that differ between the start and now.

    Args:
        instances: of one episode; not changed.
    Returns:
        Path, such as "GorillaFileSystem.root/docs/a.txt" -> [before, after], None where absent; at
        most 50 of them, then an entry "..." with the number of further ones. Long texts are cut.

    Example:
        >>> from rc_lib.envs.backends import load_start
        >>> from rc_lib.envs.calls import Call
        >>> from rc_lib.tasks.base import Task
        >>> instances = Instances(load_start(Task("t", "base", (), {}, ("TicketAPI",), ())))
        >>> _ = instances.run(Call("ticket_login", ("ann", "x"), {}))
        >>> changes(instances)
        {'TicketAPI.current_user': [None, 'ann']}
    """
    differences = {}
    for owner, instance in instances.live.items():
        before = dict(_flat(owner, instances.start.states[owner]))
        after = dict(_flat(owner, {n: v for n, v in vars(instance).items() if n[0] != "_"}))
        for path in dict.fromkeys([*before, *after]):
            if (pair := [before.get(path), after.get(path)])[0] != pair[1]:
                differences[path] = [_cut(value) for value in pair]
    shown = dict(list(differences.items())[:MAX_SHOWN])
    if len(differences) > MAX_SHOWN:
        shown["..."] = [None, f"{len(differences) - MAX_SHOWN} more"]
    return shown


def _flat(owner: str, attributes: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Leaves by path, in order, with an explicit stack so that no depth can end the process."""
    stack = [(f"{owner}.{name}", value, 0) for name, value in reversed(attributes.items())]
    for _ in range(MAX_VALUES):
        if not stack:
            return
        path, value, depth = stack.pop()
        children = _children(value)
        if not children or depth == MAX_DEPTH:
            yield path, _leaf(value)
            continue
        stack += [(f"{path}/{name}", child, depth + 1) for name, child in reversed(children)]


def _children(value: Any) -> list[tuple[Any, Any]]:
    if hasattr(value, "contents"):  # a directory
        value = value.contents
    if isinstance(value, dict):
        return list(value.items())
    return list(enumerate(value)) if isinstance(value, list | tuple) else []


def _leaf(value: Any) -> Any:
    if hasattr(value, "contents"):
        return "directory"
    if hasattr(value, "content"):  # a file
        return value.content
    if isinstance(value, set):
        return str(sorted(value, key=str))
    return value if isinstance(value, str | int | float | bool | None) else type(value).__name__


def _cut(value: Any) -> Any:
    if isinstance(value, str) and len(value) > MAX_VALUE_CHARS:
        return f"{value[:MAX_VALUE_CHARS]}... [cut: {len(value)} characters in all]"
    return value
