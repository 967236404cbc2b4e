"""Model text to function calls, as data: the text is parsed, never evaluated.

A message holds calls in BFCL's bracket form `[f(a=1), g(b='x')]`; a single bare call, a missing
bracket and a code fence are understood too, as BFCL's own decoder does. A call is a bare name and
literal arguments, nothing else.

Deviation: BFCL's decoder evaluates arithmetic, drops positional arguments and turns `true` into the
string 'true'; here arithmetic is refused, positional arguments are kept, and `true`, `false` and
`null` are literals.
"""

from __future__ import annotations

import ast
import math
import re
import warnings
from functools import lru_cache
from typing import Any, NamedTuple

# The longest reference message of BFCL has 7,178 characters, 35 calls and integers of 64 bits.
MAX_TEXT_CHARS = 10_000
MAX_CODE_CHARS = 5_000  # outside string literals: bounds the number of syntax nodes, hence the time
MAX_CALLS = 64
MAX_LITERAL_DEPTH = 6
MAX_INT_BITS = 256

_CACHED_TEXT_CHARS = 500
_JSON_NAMES = {"true": True, "false": False, "null": None}
# The closing quote is optional, so that an unclosed string costs one scan only.
_STRING = re.compile(r"'(?:[^'\\\n]|\\.)*'?|\"(?:[^\"\\\n]|\\.)*\"?", re.DOTALL)
_WHAT = {
    ast.Call: "a nested call",
    ast.JoinedStr: "an f-string",
    ast.BinOp: "arithmetic",
    ast.NamedExpr: "an assignment",
    ast.Attribute: "attribute access",
    ast.Subscript: "subscription",
    ast.Starred: "a starred argument",
    ast.Lambda: "a lambda",
    ast.Set: "a set",
    ast.ListComp: "a comprehension",
    ast.SetComp: "a comprehension",
    ast.DictComp: "a comprehension",
    ast.GeneratorExp: "a comprehension",
}


class CallError(ValueError):
    """Text that asks for something other than calls with literal arguments."""


class NoCalls(CallError):
    """Text without any call: prose, nothing, or an empty list. It ends a turn."""


class Call(NamedTuple):
    """One parsed call; `args` and `kwargs` hold literals only.

    Example:
        >>> Call("cd", (), {"folder": "a b"}).text()
        "cd(folder='a b')"
    """

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def text(self) -> str:
        """The call as Python source that `parse_calls` reads back."""
        arguments = [repr(value) for value in self.args]
        arguments += [f"{name}={value!r}" for name, value in self.kwargs.items()]
        return f"{self.name}({', '.join(arguments)})"


class Refused(NamedTuple):
    """A call of the list that was not accepted, and why."""

    name: str
    reason: str


def parse_calls(text: str) -> tuple[Call | Refused, ...]:
    """The calls of one assistant message, in order.

    Source: BFCL's prompt asks for `[func1(a=1), func2(b=2)]`.

    Args:
        text: any text; nothing in it is ever executed.
    Returns:
        One `Call` or `Refused` for each element of the list. Treat them as read-only: equal short
        texts share the result.
    Raises:
        NoCalls: the text holds no call.
        CallError: it holds one, but not as a list of calls, or is over a limit of this module.

    Example:
        >>> [call.text() for call in parse_calls("[cd(folder='docs'), ls(true)]")]
        ["cd(folder='docs')", 'ls(True)']
        >>> parse_calls("ls(a=exit())")
        (Refused(name='ls', reason='argument a is a nested call; only literals are allowed'),)
        >>> parse_calls("done")
        Traceback (most recent call last):
        ...
        rc_lib.envs.calls.NoCalls: not a list of calls
    """
    return _parse_cached(text) if len(text) <= _CACHED_TEXT_CHARS else _parse(text)


def _parse(text: str) -> tuple[Call | Refused, ...]:
    source = _bracketed(text)
    root = _syntax_tree(source)
    if not isinstance(root, ast.List) or not any(isinstance(e, ast.Call) for e in root.elts):
        if any(isinstance(node, ast.Call) for node in ast.walk(root)):
            raise CallError("write the calls as a plain list, e.g. [f(a=1), g(b='x')]")
        raise NoCalls("an empty list" if _is_empty(root) else "not a list of calls")
    if len(root.elts) > MAX_CALLS:
        raise CallError(f"{len(root.elts)} calls in one message; at most {MAX_CALLS} are allowed")
    lines = None if source.isascii() else source.encode().split(b"\n")
    return tuple(_call(element, lines) for element in root.elts)


_parse_cached = lru_cache(maxsize=4096)(_parse)
forget = _parse_cached.cache_clear  # for benchmarks


def _bracketed(text: str) -> str:
    """The text with its code fence dropped and missing brackets added, as BFCL's decoder does."""
    if len(text) > MAX_TEXT_CHARS:
        raise CallError(f"{len(text)} characters; at most {MAX_TEXT_CHARS} are allowed")
    if "\0" in text:
        raise CallError("a null byte is not allowed")
    source = text.replace("\r\n", "\n").replace("\r", "\n").strip("`\n\t ")
    if not source:
        raise NoCalls("no text")
    if len(source) > MAX_CODE_CHARS and len(_STRING.sub("", source)) > MAX_CODE_CHARS:
        raise CallError(
            f"more than {MAX_CODE_CHARS} characters outside string literals; send fewer calls"
        )
    opening = "" if source.startswith("[") else "["
    return opening + source + ("" if source.endswith("]") else "]")


def _syntax_tree(source: str) -> ast.expr:
    try:
        with warnings.catch_warnings():  # '\d' or 1if draws one, which is no concern of ours
            warnings.simplefilter("ignore")
            return ast.parse(source, mode="eval").body
    except SyntaxError:  # its message differs between Python versions
        raise NoCalls("not a list of calls") from None
    except (MemoryError, RecursionError):
        raise CallError("nested too deeply") from None
    except ValueError:  # includes UnicodeEncodeError
        raise CallError("a character that is not valid Unicode is not allowed") from None


def _is_empty(root: ast.expr) -> bool:
    return isinstance(root, ast.List) and not root.elts


def _call(node: ast.expr, lines: list[bytes] | None) -> Call | Refused:
    """`lines` is the source in UTF-8 where it is not plain ASCII, to see names as written."""
    if not isinstance(node, ast.Call):
        return Refused("?", f"expected a call, not {_what(node)}")
    if not isinstance(node.func, ast.Name):
        return Refused("?", f"a function is called by its bare name, not by {_what(node.func)}")
    name = node.func.id
    try:
        _check_name(name, node.func, lines)
        args = tuple(_argument(str(i + 1), value) for i, value in enumerate(node.args))
        kwargs: dict[str, Any] = {}
        for keyword in node.keywords:
            if keyword.arg is None:
                raise CallError("** arguments are not allowed")
            if keyword.arg in kwargs:
                raise CallError(f"keyword argument repeated: {keyword.arg}")
            _check_name(keyword.arg, keyword, lines)
            kwargs[keyword.arg] = _argument(keyword.arg, keyword.value)
    except CallError as error:
        return Refused(name, str(error))
    return Call(name, args, kwargs)


def _check_name(name: str, node: ast.expr | ast.keyword, lines: list[bytes] | None) -> None:
    """Refuse look-alike letters: Python's parser has already folded them (NFKC) to plain ones."""
    if lines is None:
        return
    written = lines[node.lineno - 1][node.col_offset :][: len(name)]
    if not name.isascii() or written != name.encode():
        raise CallError(f"name {ascii(name)} is not written in plain ASCII letters")


def _argument(label: str, node: ast.expr) -> Any:
    try:
        return _literal(node, 0)
    except CallError as error:
        raise CallError(f"argument {label} {error}") from None


def _literal(node: ast.expr, depth: int) -> Any:
    kind = type(node)
    if kind is ast.Constant:
        return _constant(node.value)
    if kind is ast.Name and node.id in _JSON_NAMES:
        return _JSON_NAMES[node.id]
    if kind is ast.UnaryOp and type(node.op) in (ast.USub, ast.UAdd):
        if type(node.operand) is ast.Constant and type(node.operand.value) in (int, float):
            value = _constant(node.operand.value)
            return -value if type(node.op) is ast.USub else value
    if depth >= MAX_LITERAL_DEPTH:
        raise CallError(f"is nested more than {MAX_LITERAL_DEPTH} levels deep")
    if kind is ast.List:
        return [_literal(item, depth + 1) for item in node.elts]
    if kind is ast.Tuple:
        return tuple(_literal(item, depth + 1) for item in node.elts)
    if kind is ast.Dict:
        items = zip(node.keys, node.values, strict=True)
        return {_key(key): _literal(value, depth + 1) for key, value in items}
    raise CallError(f"is {_what(node)}; only literals are allowed")


def _key(node: ast.expr | None) -> str:
    # Text keys only, as in JSON: the documented parameters have no others.
    if type(node) is ast.Constant and type(node.value) is str:
        return _constant(node.value)
    raise CallError("has a dictionary key that is not a string")


def _constant(value: Any) -> Any:
    kind = type(value)
    if kind is str:
        if not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
            raise CallError("holds half of a surrogate pair")
    elif kind is int:
        if value.bit_length() > MAX_INT_BITS:
            raise CallError(f"is an integer of more than {MAX_INT_BITS} bits")
    elif kind is float:
        if not math.isfinite(value):
            raise CallError("is a number too large for a float")
    elif kind is not bool and value is not None:
        raise CallError(f"is a {kind.__name__}; only literals of JSON's kinds are allowed")
    return value


def _what(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return f"the bare name {node.id!r} (a string needs quotes)"
    return _WHAT.get(type(node), f"a Python {type(node).__name__}")
