"""Model text is parsed as data, within strict limits."""

import ast
import random
import string
import time
import warnings

import pytest

from rc_lib.envs import calls
from rc_lib.envs.calls import Call, CallError, NoCalls, Refused, parse_calls
from rc_lib.tasks.bfcl import bfcl_tasks

REFUSED = [
    "__import__('os').popen('id -un').read()",
    "ls(a=exit())",
    "[sum(iter(int, 1))]",
    "ls(a=(b:=1))",
    "ls(a:=1)",
    "ls(f'{1}')",
    "ls(*[1])",
    "ls(**{'a': 1})",
    "ls(a=1, a=2)",
    "ls(a=x.y)",
    "ls(a=x[0])",
    "ls(a=lambda: 1)",
    "ls(a=[x for x in 'ab'])",
    "ls(a={x for x in 'ab'})",
    "ls(a={x: 1 for x in 'ab'})",
    "ls(x for x in 'ab')",
    "ls(a=1 + 1)",
    "ls(a=2 ** 99999999)",
    "ls(a='x' * 99999999)",
    "ls(a=not True)",
    "ls(a=1 if True else 2)",
    "ls(a=b'x')",
    "ls(a=3j)",
    "ls(a=...)",
    "ls(a={1})",
    "ls(a={1: 2})",
    "ls(a={'x': 1, **{}})",
    "ls(a=document)",
    "ls(a=-True)",
    "ls(a=--1)",
    "ls(a=[[[[[[[1]]]]]]])",
    "ls(a=1e999)",
    "ls(a=" + "9" * 300 + ")",
    "ls(a=0x" + "f" * 300 + ")",
    "ls(a='\\ud800')",
    "ｌs()",
    "lſ()",
    "ls(ａ=1)",
    "lсp()",  # a Cyrillic letter
    "ls.pop()",
    "(lambda: ls)()",
    "[ls, ls()]",
]
NOT_A_LIST = [
    "ls() if True else ls()",
    "ls().a",
    "[ls() for _ in 'ab']",
    "(a := ls())",
    "await ls()",
    "lambda: ls()",
    "[{'a': ls()}]",
    "ls(\0)",
    "ls('\ud800')",
    "ls(a='" + "x" * 20_000 + "')",
    "[" + "ls()," * 65 + "]",
    "[" + "ls(a=1)," * 900 + "]",
    "-" * 8_000 + "ls()",
]
NO_CALLS = [
    "",
    " \n",
    "[]",
    "``` ```",
    "I have moved the file.",
    "Done",
    "42",
    "[1, 2]",
    "{'name': 'ls'}",
    "ls(); pwd()",
    "ls(",
    "import os",
    "[" * 3_000,
    "f(" * 2_000,
    "ls(a=" + "9" * 4_400 + ")",  # Python itself refuses the digits
]


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: ascii(text)[:40])
def test_anything_but_literals_is_refused_with_a_reason(text):
    assert any(isinstance(call, Refused) and call.reason for call in parse_calls(text))


@pytest.mark.parametrize("text", NOT_A_LIST, ids=lambda text: ascii(text)[:40])
def test_calls_inside_other_code_are_an_error(text):
    with pytest.raises(CallError) as caught:
        parse_calls(text)
    assert not isinstance(caught.value, NoCalls)


@pytest.mark.parametrize("text", NO_CALLS, ids=lambda text: ascii(text)[:40])
def test_text_without_a_call_is_told_apart(text):
    with pytest.raises(NoCalls):
        parse_calls(text)


@pytest.mark.parametrize(
    "text",
    ["[a(1), b(x='y')]", "a(1), b(x='y')", "[a(1), b(x='y')", "```[a(1), b(x='y')]```\n"],
)
def test_missing_brackets_and_a_fence_are_forgiven(text):
    assert parse_calls(text) == (Call("a", (1,), {}), Call("b", (), {"x": "y"}))


def test_json_names_and_signed_numbers_are_literals():
    (call,) = parse_calls("f(true, false, null, None, -1, +2.5, ('a', [{'k': -3}]))")
    assert call.args == (True, False, None, None, -1, 2.5, ("a", [{"k": -3}]))


def test_names_of_json_are_plain_text_inside_strings():
    assert parse_calls("f('true', x='ls(a=1)')")[0] == Call("f", ("true",), {"x": "ls(a=1)"})


def test_a_string_may_hold_any_valid_text():
    text = "écho: “x” \U0001f600 \\ ' \" \t"
    assert parse_calls(f"echo({text!r})")[0].args == (text,)


def test_one_refused_call_leaves_the_others_alone():
    kinds = [type(call) for call in parse_calls("[ls(), cd(folder=up()), pwd()]")]
    assert kinds == [Call, Refused, Call]


def test_all_reference_calls_are_understood_and_written_back():
    texts = {call for task in bfcl_tasks() for turn in task.reference for call in turn}
    for text in texts:
        (call,) = parse_calls(text)
        assert isinstance(call, Call), text
        expected = ast.parse(text, mode="eval").body
        assert call.name == expected.func.id
        assert list(call.args) == [ast.literal_eval(value) for value in expected.args]
        assert call.kwargs == {k.arg: ast.literal_eval(k.value) for k in expected.keywords}
        assert parse_calls(call.text()) == (call,)


@pytest.mark.parametrize("text", [r"ls(a='\d')", "[add(a=1if 2 else 3)]", "[add(a=0x1for x in y)]"])
def test_what_the_parser_of_python_warns_of_gives_no_warning(text):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        calm = _outcome(text)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert _outcome(text) == calm
    assert not seen


def _outcome(text):
    try:
        return parse_calls(text)
    except (CallError, NoCalls) as error:
        return repr(error)


def test_random_text_never_raises_anything_else_and_never_hangs():
    pieces = ["ls", "(", ")", "[", "]", "{", "}", "'", '"', "\\", ",", "=", ":", ":=", "*", "**"]
    pieces += [".", "1", "-", "f'", "lambda ", " for x in ", " if ", "\n", "\0", "#", "é", "\ud800"]
    draw = random.Random(0)
    started = time.monotonic()
    for _ in range(3_000):
        text = "".join(draw.choices(pieces, k=draw.randrange(1, 60)))
        try:
            found = parse_calls(text)
        except CallError:
            continue
        assert found and all(isinstance(call, Call | Refused) for call in found)
    assert time.monotonic() - started < 60  # a kill limit, far above the fraction of a second


@pytest.mark.parametrize("unit", ["(", "[", "f(", "{1:", "'", "\\'", "1,", "a.", "not ", "f()("])
def test_long_repetitions_are_answered_quickly(unit):
    started = time.monotonic()
    with pytest.raises(CallError):
        calls._parse((unit * calls.MAX_TEXT_CHARS)[: calls.MAX_TEXT_CHARS])
    assert time.monotonic() - started < 5  # a kill limit; measured below 10 ms


def test_mutated_reference_calls_never_raise_anything_else():
    draw = random.Random(1)
    texts = [f"[{', '.join(task.reference[0])}]" for task in bfcl_tasks("test", "base")]
    for _ in range(2_000):
        characters = list(draw.choice(texts))
        for _ in range(draw.randrange(1, 4)):
            characters[draw.randrange(len(characters))] = draw.choice(string.printable)
        try:
            parse_calls("".join(characters))
        except CallError:
            pass
