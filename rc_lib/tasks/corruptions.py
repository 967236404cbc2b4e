"""Seeded corruptions of a reference trajectory, to compare two judges on more than successes.

A trajectory is a list of turns, a turn a list of assistant messages, a message a list of call
texts. What a corruption is worth is measured, never assumed: many of them still pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rc_lib.envs.calls import Call, parse_calls
from rc_lib.tasks.base import Task

Turns = list[list[str]]
Trajectory = list[list[list[str]]]
# A call of each backend that changes no state.
READ_ONLY = {
    "GorillaFileSystem": "pwd()",
    "MathAPI": "add(a=1, b=2)",
    "MessageAPI": "list_users()",
    "TwitterAPI": "posting_get_login_status()",
    "TicketAPI": "ticket_get_login_status()",
    "TradingBot": "get_current_time()",
    "TravelAPI": "list_all_airports()",
    "VehicleControlAPI": "check_tire_pressure()",
}


def reference_trajectory(task: Task) -> Trajectory:
    """The reference, one message for each turn that has calls.

    Example:
        >>> reference_trajectory(Task("t", "base", ("", ""), {}, (), (("f()", "g()"), ())))
        [[['f()', 'g()']], []]
    """
    return [[list(calls)] if calls else [] for calls in task.reference]


def corrupted_trajectory(task: Task, draw: np.random.Generator) -> tuple[str, Trajectory]:
    """Corrupt a task's reference in one way that applies to it.

    Args:
        draw: decides the kind, the place, and whether a turn is one message or one for each call.
    Returns:
        The kind (a key of `CORRUPTIONS`) and the trajectory.

    Example:
        >>> task = Task("t", "base", ("",), {}, ("MathAPI",), (("add(a=1, b=2)",),))
        >>> kind, trajectory = corrupted_trajectory(task, np.random.default_rng(0))
        >>> kind in CORRUPTIONS, len(trajectory)
        (True, 1)
    """
    kinds = list(CORRUPTIONS)
    for index in draw.permutation(len(kinds)):
        turns = CORRUPTIONS[kinds[index]]([list(calls) for calls in task.reference], task, draw)
        if turns is not None:
            return kinds[index], [_messages(calls, draw) for calls in turns]
    raise ValueError(f"task {task.id}: no corruption applies to its reference {task.reference}")


def _messages(calls: list[str], draw: np.random.Generator) -> list[list[str]]:
    if draw.random() < 0.5:
        return [[call] for call in calls]
    return [calls] if calls else []


def _place(turns: Turns, draw: np.random.Generator) -> tuple[int, int]:
    """The turn and the position of one call; every reference has calls."""
    places = [(t, c) for t, calls in enumerate(turns) for c in range(len(calls))]
    return places[draw.integers(len(places))]


def _drop_call(turns: Turns, task: Task, draw: np.random.Generator) -> Turns | None:
    turn, position = _place(turns, draw)
    del turns[turn][position]
    return turns


def _skip_turn(turns: Turns, task: Task, draw: np.random.Generator) -> Turns | None:
    turn, _ = _place(turns, draw)
    turns[turn] = []
    return turns


def _stop_early(turns: Turns, task: Task, draw: np.random.Generator) -> Turns | None:
    turn, _ = _place(turns, draw)
    return [calls if t < turn else [] for t, calls in enumerate(turns)]


def _swap_adjacent_turns(turns: Turns, task: Task, draw: np.random.Generator) -> Turns | None:
    pairs = [t for t in range(len(turns) - 1) if turns[t] != turns[t + 1]]
    if not pairs:
        return None
    turn = pairs[draw.integers(len(pairs))]
    turns[turn], turns[turn + 1] = turns[turn + 1], turns[turn]
    return turns


def _misspelled_function(turns: Turns, task: Task, draw: np.random.Generator) -> Turns | None:
    turn, position = _place(turns, draw)
    name, rest = turns[turn][position].split("(", 1)
    turns[turn][position] = f"{name}_{'abcdef'[draw.integers(6)]}({rest}"
    return turns


def _wrong_argument(turns: Turns, task: Task, draw: np.random.Generator) -> Turns | None:
    turn, position = _place(turns, draw)
    (call,) = parse_calls(turns[turn][position])
    slots = [*range(len(call.args)), *call.kwargs]
    if not slots:
        return None
    slot = slots[draw.integers(len(slots))]
    if isinstance(slot, int):
        args = tuple(_wrong(v) if i == slot else v for i, v in enumerate(call.args))
        wrong = Call(call.name, args, call.kwargs)
    else:
        wrong = Call(call.name, call.args, call.kwargs | {slot: _wrong(call.kwargs[slot])})
    turns[turn][position] = wrong.text()
    return turns


def _wrong(value: Any) -> Any:
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, list):
        return value[:-1]
    if isinstance(value, dict):
        return {key: _wrong(item) for key, item in value.items()}
    return f"{value}_x"


def _next_turn_early(turns: Turns, task: Task, draw: np.random.Generator) -> Turns | None:
    later = [t for t in range(1, len(turns)) if turns[t]]
    if not later:
        return None
    turn = later[draw.integers(len(later))]
    turns[turn - 1] = turns[turn - 1] + turns[turn]
    return turns


def _reverse_within_turn(turns: Turns, task: Task, draw: np.random.Generator) -> Turns | None:
    longer = [t for t, calls in enumerate(turns) if len(calls) > 1]
    if not longer:
        return None
    turns[longer[draw.integers(len(longer))]].reverse()
    return turns


def _duplicate_call(turns: Turns, task: Task, draw: np.random.Generator) -> Turns | None:
    turn, position = _place(turns, draw)
    turns[turn].insert(position, turns[turn][position])
    return turns


def _retry_first_call(turns: Turns, task: Task, draw: np.random.Generator) -> Turns | None:
    turn = next(t for t, calls in enumerate(turns) if calls)
    turns[turn].append(turns[turn][0])
    return turns


def _extra_read_only_call(turns: Turns, task: Task, draw: np.random.Generator) -> Turns | None:
    turn, position = _place(turns, draw)
    backend = task.involved_classes[draw.integers(len(task.involved_classes))]
    turns[turn].insert(position, READ_ONLY[backend])
    return turns


def _call_when_none_is_right(turns: Turns, task: Task, draw: np.random.Generator) -> Turns | None:
    empty = [t for t, calls in enumerate(turns) if not calls]
    if not empty:
        return None
    backend = task.involved_classes[draw.integers(len(task.involved_classes))]
    turns[empty[draw.integers(len(empty))]] = [READ_ONLY[backend]]
    return turns


CORRUPTIONS: dict[str, Callable[[Turns, Task, np.random.Generator], Turns | None]] = {
    "drop a call": _drop_call,
    "skip a turn": _skip_turn,
    "stop early": _stop_early,
    "swap adjacent turns": _swap_adjacent_turns,
    "misspelled function": _misspelled_function,
    "wrong argument": _wrong_argument,
    "next turn early": _next_turn_early,
    "reverse within a turn": _reverse_within_turn,
    "duplicate a call": _duplicate_call,
    "retry the first call": _retry_first_call,
    "extra read-only call": _extra_read_only_call,
    "call when none is right": _call_when_none_is_right,
}
