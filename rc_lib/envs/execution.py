"""Running parsed calls on one rollout's backends, at a bounded cost.

Results are worded as BFCL's official executor words them. That executor also lets one rollout
change another: the default lists of `post_tweet` are shared by all its tweets, and the precision
that `logarithm` and `square_root` set is global to the process. Both are kept to the call here.
"""

from __future__ import annotations

import decimal
import json
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, NamedTuple

from rc_lib.envs import worker
from rc_lib.envs.backends import Function, Start, functions, restore, same_state
from rc_lib.envs.calls import Call, Refused

ERROR = "Error during execution: "
# The official executor's own list; its words are kept.
FORBIDDEN = frozenset("kill exit quit remove unlink popen Popen run".split())
QUICK_PRECISION = 500  # digits; well under 1 ms
MAX_PRECISION = 10_000
MAX_ROUNDING = 10_000
_IMMUTABLE = frozenset((str, int, float, bool, type(None)))


class Result(NamedTuple):
    """What a call gave: the tool's text, and the bound arguments (None: it was not run)."""

    text: str
    arguments: dict[str, Any] | None


def undefined(name: str) -> Result:
    """The answer to a call of a function that does not exist, or must not be seen to.

    Example:
        >>> undefined("cp").text
        "Error during execution: name 'cp' is not defined"
    """
    return Result(f"{ERROR}name {name!r} is not defined", None)


class Instances:
    """The backends of one rollout.

    Example:
        >>> from rc_lib.envs.backends import load_start
        >>> from rc_lib.tasks.base import Task
        >>> instances = Instances(load_start(Task("t", "base", (), {}, ("MathAPI",), ())))
        >>> instances.run(Call("add", (1, 2), {})).text
        '{"result": 3}'
        >>> instances.run(Call("exec", (), {})).text
        "Error during execution: name 'exec' is not defined"
    """

    def __init__(self, start: Start) -> None:
        self.start = start
        self.live: dict[str, Any] = {}
        self._log: list[tuple[str, Call]] = []  # calls that may have changed a state
        self._shared_directories = False

    def run(self, call: Call | Refused, *, trusted: bool = False) -> Result:
        """Run one call and word its result as the official executor does.

        Args:
            call: a parsed call; a refused one gives its reason as an error.
            trusted: a reference call, run here whatever it may cost.
        """
        if isinstance(call, Refused):
            return Result(f"{ERROR}{call.name}: {call.reason}", None)
        function = self.start.functions.get(call.name)
        if function is None:
            if call.name in FORBIDDEN:
                return Result(f"{ERROR}Function call {call.name} is not allowed.", None)
            return undefined(call.name)
        arguments = function.bind(call)
        instance = self._instance(function.owner)
        if arguments is None:
            return Result(_binding_error(instance, call), None)
        if not trusted:
            refusal = _refusal(call.name, arguments)
            if refusal:
                return Result(ERROR + refusal, None)
            if not self._is_quick(call.name, arguments):
                return self._run_in_worker(function.owner, call, arguments)
        if call.name == "cp":
            self._note_directory_copy(instance, arguments)
        self._log.append((function.owner, call))
        return Result(execute(instance, call.name, function, arguments), arguments)

    def same_state(self, states: dict[str, dict[str, Any]], untouched: dict[str, bool]) -> bool:
        """Whether all public attributes equal those of `states` (class -> attributes).

        `untouched` gives the answer for classes that have not been called.
        """
        return all(
            same_state(self.live[name], state) if name in self.live else untouched[name]
            for name, state in states.items()
        )

    def _instance(self, name: str) -> Any:
        if name not in self.live:
            start = self.start
            self.live[name] = restore(start.pickles[name], start.random_states.get(name))
        return self.live[name]

    def _is_quick(self, name: str, arguments: dict[str, Any]) -> bool:
        """Whether a call's cost is bounded by the caps on the text alone.

        Every function makes a few passes over its arguments and one backend's state, which grows by
        at most one message's text a call, except:
        find, du: they walk a tree, and copied directories share their children, so that the number
          of paths may double with each copy, or never end;
        logarithm, square_root: the cost grows with the precision; logarithm also takes text for a
          number or a precision, and what mpmath makes of it is not bounded here.
        (power and round_number are bounded by `_refusal`.)
        """
        if name in ("find", "du"):
            return not self._shared_directories
        if name == "logarithm":
            return all(isinstance(value, int | float) for value in arguments.values()) and (
                arguments["precision"] <= QUICK_PRECISION
            )
        if name == "square_root":
            precision = arguments["precision"]
            return not isinstance(precision, int) or precision <= QUICK_PRECISION
        return True

    def _run_in_worker(self, owner: str, call: Call, arguments: dict[str, Any]) -> Result:
        """Every function that may be slow only reads, so that its result is all there is."""
        log = [done for name, done in self._log if name == owner]
        try:
            return Result(worker.run(self.start.pickles[owner], log, call), arguments)
        except TimeoutError as error:
            return Result(f"{ERROR}{error}", None)

    def _note_directory_copy(self, file_system: Any, arguments: dict[str, Any]) -> None:
        source = arguments["source"]
        if isinstance(source, str):
            item = file_system._current_dir.contents.get(source)
            self._shared_directories |= hasattr(item, "contents")


def execute(instance: Any, name: str, function: Function, arguments: dict[str, Any]) -> str:
    """Call a method and return its result as text, in the official executor's words."""
    # The call's own values stay as parsed, even where the backend keeps and changes a list.
    values = {key: _fresh(value) for key, value in (function.mutable_defaults | arguments).items()}
    try:
        if name in ("logarithm", "square_root"):
            with _own_precision():
                return _text(getattr(instance, name)(**values))
        return _text(_stable(name, getattr(instance, name)(**values), arguments))
    except Exception as error:  # whatever a backend raises is the tool's answer
        return f"{ERROR}{error}"


def _fresh(value: Any) -> Any:
    return value if type(value) in _IMMUTABLE else deepcopy(value)


def _text(result: Any) -> str:
    if type(result) is str:
        return result
    if type(result) is dict:
        try:
            return json.dumps(result)
        except (TypeError, ValueError):
            return str(result)
    return str(result)


def _stable(name: str, result: Any, arguments: dict[str, Any]) -> Any:
    """Two messages list a set, in an order that changes with each process; sort them."""
    if type(result) is dict and name == "book_flight":
        if str(result.get("error", "")).startswith("Invalid travel class."):
            classes = "{'business', 'economy', 'first'}"
            return result | {"error": f"Invalid travel class. Must be one of {classes}"}
    if type(result) is dict and name == "edit_ticket":
        if str(result.get("error", "")).startswith("Invalid fields for update: "):
            known = {"title", "description", "status", "priority"}
            invalid = sorted(set(arguments["updates"]) - known)
            return {"error": f"Invalid fields for update: {', '.join(invalid)}"}
    return result


@contextmanager
def _own_precision() -> Iterator[None]:
    """Keep a call's change of precision, which is global to the process, to the call."""
    import mpmath

    before = mpmath.mp.prec
    try:
        with decimal.localcontext():
            yield
    finally:
        mpmath.mp.prec = before


def _binding_error(instance: Any, call: Call) -> str:
    """Python's own words for arguments that do not fit; the method's body is not entered."""
    try:
        getattr(instance, call.name)(*call.args, **call.kwargs)
    except TypeError as error:
        return f"{ERROR}{error}"
    raise AssertionError(f"{call.text()} was expected not to bind")


def _refusal(name: str, arguments: dict[str, Any]) -> str | None:
    """Why a call is not run at all, or None: its cost would be out of all proportion."""
    if name in ("logarithm", "square_root"):
        precision = arguments["precision"]
        if isinstance(precision, int | float) and precision > MAX_PRECISION:
            return f"precision is over {MAX_PRECISION}"
    elif name == "power":
        base, exponent = arguments["base"], arguments["exponent"]
        if isinstance(base, int) and isinstance(exponent, int):
            # Such a result has more than 4300 digits, which Python refuses to print: this is what
            # the official executor answers, once it has computed the number.
            if (abs(base).bit_length() - 1) * exponent > 14_300:
                return (
                    "Exceeds the limit (4300 digits) for integer string conversion; "
                    "use sys.set_int_max_str_digits() to increase the limit"
                )
    elif name == "round_number":
        places = arguments.get("decimal_places", 0)
        if isinstance(places, int) and places < -MAX_ROUNDING:
            return f"decimal_places is under -{MAX_ROUNDING}"
    return None


def replay(instance: Any, log: list[Call], call: Call) -> str:
    """Run calls that bind on a bare instance and return the last one's result text.

    Example:
        >>> from rc_lib.envs.backends import BACKENDS
        >>> replay(BACKENDS["MathAPI"](), [Call("add", (1, 2), {})], Call("add", (3, 4), {}))
        '{"result": 7}'
    """
    table = functions((type(instance).__name__,))
    text = ""
    for done in [*log, call]:
        function = table[done.name]
        text = execute(instance, done.name, function, function.bind(done))
    return text
