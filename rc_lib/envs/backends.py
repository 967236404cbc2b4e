"""BFCL's eight backend classes: their functions, and instances that share nothing.

The executor of `bfcl-eval` keeps instances in module globals that outlive a rollout, and shares
module dictionaries (long_context TravelAPI) between them. Here a task's scenario is loaded once
and pickled; each rollout unpickles its own copy, which is also several times quicker.
"""

from __future__ import annotations

import importlib
import inspect
import pickle
import random
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from rc_lib.envs.calls import Call
from rc_lib.errors import RcError
from rc_lib.tasks.base import Task

BFCL_VERSION = "2026.3.23"
INSTALL = f"run: pip install --no-deps bfcl-eval=={BFCL_VERSION} && pip install mpmath"
_MODULES = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TwitterAPI": "posting_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "VehicleControlAPI": "vehicle_control",
}
_SOURCE = "bfcl_eval.eval_checker.multi_turn_eval.func_source_code"


class _Backends(Mapping[str, type]):
    def __getitem__(self, name: str) -> type:
        return _backend_class(name)

    def __iter__(self) -> Iterator[str]:
        return iter(_MODULES)

    def __len__(self) -> int:
        return len(_MODULES)


BACKENDS: Mapping[str, type] = _Backends()  # a class is imported when it is first looked up


@cache
def _backend_class(name: str) -> type:
    if name not in _MODULES:
        raise KeyError(f"backend {name!r} is not one of {', '.join(_MODULES)}")
    try:
        return getattr(importlib.import_module(f"{_SOURCE}.{_MODULES[name]}"), name)
    except ModuleNotFoundError as error:
        raise RcError(f"backend {name} needs {error.name}, which is missing; {INSTALL}") from error


class Function(NamedTuple):
    """A backend's public method: who owns it and how arguments bind to it."""

    owner: str
    parameters: tuple[str, ...]
    required: tuple[str, ...]
    mutable_defaults: dict[str, Any]

    def bind(self, call: Call) -> dict[str, Any] | None:
        """Explicit arguments by parameter name, or None where they do not fit.

        Example:
            >>> functions(("MathAPI",))["add"].bind(Call("add", (1,), {"b": 2}))
            {'a': 1, 'b': 2}
        """
        if len(call.args) > len(self.parameters):
            return None
        bound = dict(zip(self.parameters, call.args, strict=False))
        for name, value in call.kwargs.items():
            if name in bound or name not in self.parameters:
                return None
            bound[name] = value
        return bound if all(name in bound for name in self.required) else None


@cache
def functions(classes: tuple[str, ...]) -> dict[str, Function]:
    """The public methods of some backend classes, by name.

    Args:
        classes: names from `BACKENDS`.

    Example:
        >>> functions(("MathAPI",))["round_number"].required
        ('number',)
    """
    table = {}
    for owner in classes:
        for name, method in inspect.getmembers(BACKENDS[owner], inspect.isfunction):
            if name.startswith("_"):
                continue
            parameters = list(inspect.signature(method).parameters.values())[1:]  # without self
            table[name] = Function(
                owner,
                tuple(p.name for p in parameters),
                tuple(p.name for p in parameters if p.default is p.empty),
                {p.name: p.default for p in parameters if isinstance(p.default, list | dict)},
            )
    return table


class _LazyRandom:
    """A `random.Random` in a given state, made when it is first drawn from (it is large)."""

    def __init__(self, state: tuple) -> None:
        self._state = state

    def __getattr__(self, name: str) -> Any:
        if name not in ("randint", "uniform"):
            raise AttributeError(name)
        generator = random.Random()
        generator.setstate(self._state)
        self.randint, self.uniform = generator.randint, generator.uniform
        return getattr(generator, name)


class Start(NamedTuple):
    """A task's freshly loaded backends, ready to be copied."""

    functions: dict[str, Function]
    pickles: dict[str, bytes]
    random_states: dict[str, tuple]
    states: dict[str, dict[str, Any]]  # public attributes


def load_start(task: Task) -> Start:
    """Load a task's scenario into new backends.

    Args:
        task: its category "long_context" asks the backends for their long outputs.

    Example:
        >>> load_start(Task("t", "base", (), {}, ("TicketAPI",), ())).states
        {'TicketAPI': {'ticket_queue': [], 'ticket_counter': 1, 'current_user': None}}
    """
    pickles, random_states, states = {}, {}, {}
    for name in task.involved_classes:
        instance = BACKENDS[name]()
        if hasattr(instance, "_load_scenario"):  # MathAPI has no state
            config = pickle.loads(pickle.dumps(task.initial_config.get(name, {})))
            instance._load_scenario(config, long_context=task.category == "long_context")
        generator = vars(instance).pop("_random", None)
        if generator is not None:
            random_states[name] = generator.getstate()
        pickles[name] = pickle.dumps(instance, pickle.HIGHEST_PROTOCOL)
        states[name] = _public(pickle.loads(pickles[name]))
    return Start(functions(tuple(task.involved_classes)), pickles, random_states, states)


def restore(pickled: bytes, random_state: tuple | None) -> Any:
    """A new instance that shares nothing with any other."""
    instance = pickle.loads(pickled)
    if random_state is not None:
        instance._random = _LazyRandom(random_state)
    return instance


def snapshot(instance: Any) -> dict[str, Any]:
    """A copy of an instance's public attributes, which are its state for BFCL's checker."""
    return pickle.loads(pickle.dumps(_public(instance), pickle.HIGHEST_PROTOCOL))


def same_state(instance: Any, state: dict[str, Any]) -> bool:
    """Whether an instance's public attributes equal those of a snapshot, as BFCL compares them."""
    attributes = vars(instance)
    return all(attributes[name] == value for name, value in state.items())


def _public(instance: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(instance).items() if name[0] != "_"}
