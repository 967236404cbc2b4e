"""A task's reference trajectory, executed once and kept for all its rollouts."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rc_lib.envs.backends import Start, load_start, same_state, snapshot
from rc_lib.envs.calls import Call, CallError, parse_calls
from rc_lib.envs.execution import Instances
from rc_lib.tasks.base import Task

NEVER = 1 << 30
_KEPT = 2048  # the 800 BFCL tasks take about 40 MB
_cache: OrderedDict[int, tuple[Task, Reference]] = OrderedDict()
forget = _cache.clear  # for benchmarks


@dataclass(frozen=True)
class ReferenceTurn:
    """What the reference calls of one turn gave.

    Attributes:
        results: result texts, in order; empty where no call is right.
        counts: the same as a multiset.
        states: class -> public attributes after the turn.
        untouched: class -> whether that equals the state at the start.
    """

    results: tuple[str, ...]
    counts: Counter[str]
    states: dict[str, dict[str, Any]]
    untouched: dict[str, bool]


@dataclass(frozen=True)
class Reference:
    """The start of a task and its executed reference.

    Attributes:
        start: the freshly loaded backends.
        turns: one for each turn of the task.
        calls: every reference call, as (name, arguments by name).
        barred: function name -> the first turn that may call it.
    """

    start: Start
    turns: tuple[ReferenceTurn, ...]
    calls: tuple[tuple[str, dict[str, Any]], ...]
    barred: dict[str, int]

    def covered_by(self, calls: Iterable[tuple[str, dict[str, Any]]]) -> bool:
        """R_action of RC-GRPO App. D.

        Args:
            calls: the calls that ran, as (name, arguments by name).
        Returns:
            Whether each reference call has one of the same name whose arguments contain all of the
            reference's with equal values; extra arguments and the order do not matter.

        Example:
            >>> task = Task("t", "base", ("",), {}, ("MathAPI",), (("add(1, b=2)",),))
            >>> execute_reference(task).covered_by([("add", {"a": 1, "b": 2})])
            True
        """
        by_name: dict[str, list[dict[str, Any]]] = {}
        for name, arguments in calls:
            by_name.setdefault(name, []).append(arguments)
        return all(
            any(_contains(candidate, wanted) for candidate in by_name.get(name, ()))
            for name, wanted in self.calls
        )


def execute_reference(task: Task) -> Reference:
    """Run a task's reference calls on fresh backends; kept for the latest 2048 tasks.

    Args:
        task: its reference calls are trusted: withheld functions and costs are not looked at.
    Raises:
        ValueError: a reference call does not parse, or its name or arguments do not exist.

    Example:
        >>> task = Task("t", "base", ("Add.",), {}, ("MathAPI",), (("add(a=1, b=2)",),))
        >>> execute_reference(task).turns[0].results
        ('{"result": 3}',)
    """
    kept = _cache.get(id(task))
    if kept is not None and kept[0] is task:
        _cache.move_to_end(id(task))
        return kept[1]
    reference = _execute(task)
    _cache[id(task)] = (task, reference)
    if len(_cache) > _KEPT:
        _cache.popitem(last=False)
    return reference


def run_calls(task: Task, calls: Iterable[str]) -> list[str]:
    """Run trusted calls one after another on fresh backends of a task.

    Args:
        task: its scenario and classes are used, not its reference.
        calls: call texts.
    Returns:
        The result text of each.
    Raises:
        ValueError: a call does not parse, or its name or arguments do not exist.

    Example:
        >>> task = Task("t", "base", (), {}, ("TicketAPI",), ())
        >>> run_calls(task, ["ticket_login('a', 'b')", "create_ticket(title='x')"])[0]
        '{"success": true}'
    """
    instances = Instances(load_start(task))
    return [_run(task, instances, call)[1] for call in calls]


def _execute(task: Task) -> Reference:
    start = load_start(task)
    instances = Instances(start)
    turns: list[ReferenceTurn] = []
    calls: list[tuple[str, dict[str, Any]]] = []
    first_use: dict[str, int] = {}
    states = start.states
    for turn, texts in enumerate(task.reference):
        results = []
        owners = set()
        for text in texts:
            name_and_arguments, result = _run(task, instances, text)
            owners.add(start.functions[name_and_arguments[0]].owner)
            calls.append(name_and_arguments)
            results.append(result)
            first_use.setdefault(name_and_arguments[0], turn)
        states = _next_states(states, instances, owners)
        untouched = {name: states[name] == start.states[name] for name in states}
        turns.append(ReferenceTurn(tuple(results), Counter(results), states, untouched))
    barred = {name: turn for turn, names in task.missed_function.items() for name in names}
    barred |= dict.fromkeys(task.excluded_function, NEVER)
    barred = {name: min(turn, first_use.get(name, turn)) for name, turn in barred.items()}
    return Reference(start, tuple(turns), tuple(calls), barred)


def _run(task: Task, instances: Instances, text: str) -> tuple[tuple[str, dict[str, Any]], str]:
    try:
        (call,) = parse_calls(text)
    except (CallError, ValueError) as error:
        raise ValueError(f"task {task.id}: reference call {text!r}: {error}") from None
    result = instances.run(call, trusted=True)
    if not isinstance(call, Call) or result.arguments is None:
        raise ValueError(f"task {task.id}: reference call {text!r}: {result.text}")
    return (call.name, result.arguments), result.text


def _next_states(
    before: dict[str, dict[str, Any]], instances: Instances, called: set[str]
) -> dict[str, dict[str, Any]]:
    """Snapshots of all backends; one that has not changed is shared with the turn before."""
    states = dict(before)
    for name in called:
        if not same_state(instances.live[name], before[name]):
            states[name] = snapshot(instances.live[name])
    return states


def _contains(arguments: dict[str, Any], wanted: dict[str, Any]) -> bool:
    return all(name in arguments and arguments[name] == value for name, value in wanted.items())
