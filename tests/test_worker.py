"""Calls that may run long are run in a process that can be killed, and the rollout goes on."""

import os
import time

import pytest

from rc_lib.envs import worker
from rc_lib.envs.bfcl import BFCLEnv
from rc_lib.tasks.base import Task

KILL_LIMIT_S = 30  # far above the worker's own limit of one second
FOLDER = {"type": "directory", "contents": {}}
FILES = Task(
    "files", "base", ("",),
    {"GorillaFileSystem": {"root": {"home": {"type": "directory", "contents": {"a": FOLDER}}}}},
    ("GorillaFileSystem",), (("pwd()",),),
)  # fmt: skip
MATHS = Task("maths", "base", ("",), {}, ("MathAPI",), (("add(a=1, b=2)",),))
CYCLE = "cp('a', 'a')"
# Each round puts two copies of the tree into a new one: the paths to its leaves double.
DOUBLING = [
    f"mkdir('t{i}'), cp('t{i - 1}', 'x'), cp('t{i - 1}', 'y'), mv('x', 't{i}'), mv('y', 't{i}')"
    for i in range(1, 30)
]
HOSTILE = [
    (MATHS, "[power(7, 300000000)]"),
    (MATHS, "[power(-7, 300000000)]"),
    (MATHS, "[logarithm(2, 10, 20000000)]"),
    (MATHS, "[logarithm(2, 10, 1e8)]"),
    (MATHS, "[logarithm(2, 10, '20000000')]"),
    (MATHS, "[square_root(2, 100000000)]"),
    (MATHS, "[square_root(2, precision=1e8)]"),
    (MATHS, "[round_number(7, -1000000000)]"),
    (FILES, f"[{CYCLE}, find(), du()]"),
    (FILES, f"[{CYCLE}, cp('a', 'b'), mv('b', 'a'), {CYCLE}, find('.'), du(True)]"),
]


def begun(task):
    env = BFCLEnv(task, max_steps=100)
    env.reset()
    return env


@pytest.mark.parametrize(("task", "text"), HOSTILE, ids=[text[:40] for _, text in HOSTILE])
def test_endless_calls_get_an_error_and_the_rollout_goes_on(task, text):
    env = begun(task)
    started = time.monotonic()
    results = env.step(text)[4]["results"]
    assert time.monotonic() - started < KILL_LIMIT_S
    assert any("rror" in result for result in results), results
    (good,) = task.reference[0]
    assert "rror" not in env.step(f"[{good}]")[4]["results"][0]
    assert env.reward()["action"] == 1.0


def test_a_tree_with_too_many_paths_is_stopped():
    env = begun(FILES)
    env.step("[mkdir('t0')]")
    for calls in DOUBLING:
        assert "error" not in "".join(env.step(f"[{calls}]")[4]["results"])
    (result,) = env.step("[find()]")[4]["results"]
    assert result == "Error during execution: stopped after 1 s"
    assert env.step("[pwd()]")[4]["results"] == ['{"current_working_directory": "/home"}']
    assert env.reward()["state"] == 0.0  # judging does not walk all paths either


def test_the_worker_rebuilds_the_state_and_gives_the_same_answer():
    env = begun(FILES)
    env.step("[cd('a'), touch('x'), cd('..'), cp('a', 'b'), rm('a')]")
    shown = env.step("[find(), du()]")[4]["results"]
    assert shown == ['{"matches": ["./b", "./b/x"]}', '{"disk_usage": "0 bytes"}']


def test_high_precision_is_exact():
    (text,) = begun(MATHS).step("[square_root(2, 2000)]")[4]["results"]
    assert text.startswith("{'result': Decimal('1.41421356") and len(text) > 2000


def test_a_killed_worker_is_replaced_and_leaves_no_zombie():
    start = begun(MATHS).instances.start.pickles["MathAPI"]
    with pytest.raises(TimeoutError, match=r"stopped after 0\.2 s"):
        worker.run(start, [], worker.Call("power", (7, 30_000_000), {}), time_limit_s=0.2)
    assert worker._worker._process is None
    assert worker.run(start, [], worker.Call("add", (1, 2), {})) == '{"result": 3}'
    pid = worker._worker._process.pid
    worker._worker.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_worker_that_died_by_itself_is_replaced():
    start = begun(MATHS).instances.start.pickles["MathAPI"]
    add = worker.Call("add", (1, 2), {})
    worker.run(start, [], add)
    process = worker._worker._process
    process.kill()
    process.wait()
    assert worker.run(start, [], add) == '{"result": 3}'


def test_numbers_given_as_text_are_computed_in_the_worker():
    (text,) = begun(MATHS).step("[logarithm('1e99999999999', 10, 5)]")[4]["results"]
    assert text == "{'result': mpf('1.0000007e+11')}"


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_starts_its_own_worker():
    start = begun(MATHS).instances.start.pickles["MathAPI"]
    add = worker.Call("add", (1, 2), {})
    worker.run(start, [], add)
    pid = worker._worker._process.pid
    child = os.fork()
    if child == 0:  # no assert here: it would raise into the test run's copy
        own = worker.run(start, [], add) == '{"result": 3}' and worker._worker._process.pid != pid
        worker._worker.stop()
        os._exit(0 if own else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert worker.run(start, [], add) == '{"result": 3}'
    assert worker._worker._process.pid == pid
