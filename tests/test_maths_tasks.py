"""Generated expressions and their partitions, answers by value, and the readers of real sets."""

import re
import sys
from collections import Counter
from types import SimpleNamespace

import pytest

from rc_lib.curriculum import Curriculum
from rc_lib.demonstrations import prompt
from rc_lib.envs.python_sandbox import PythonSandbox
from rc_lib.envs.python_tool import PythonToolEnv
from rc_lib.envs.tags import Tags
from rc_lib.tasks.maths import (
    AIME,
    SET_SIZES,
    MathsTask,
    demonstration,
    expert_messages,
    load_aime,
    maths_tasks,
    number,
    read_maths,
    same_answer,
)
from rc_lib.tasks.maths_demonstrations import SOLVED, maths_demonstrations


@pytest.fixture(scope="module")
def sandbox():
    with PythonSandbox() as one:
        yield one


@pytest.mark.parametrize("name", SET_SIZES)
def test_a_set_has_its_sizes_and_right_answers(name):
    tasks = maths_tasks(name)
    counts = Counter(task.category for task in tasks)
    assert counts == dict(zip(("1-step", "2-step", "3-step"), SET_SIZES[name], strict=True))
    assert len({task.id for task in tasks}) == len({task.question for task in tasks}) == len(tasks)
    for task in tasks:
        expression = re.fullmatch(r"What is ([0-9 ()*+%-]+)\?", task.question).group(1)
        assert str(eval(expression)) == task.answers[0] == task.steps[-1][1]
        assert all(str(eval(step)) == value for step, value in task.steps)
        assert int(task.category[0]) == len(task.steps)
        assert not set(re.findall("[0-9]+", task.question)) & {value for _, value in task.steps}
    assert {len(task.answers[0]) for task in tasks} >= {3, 5, 6}


def test_sets_share_neither_questions_nor_steps_in_any_order():
    def content(step):
        left, sign, right = step.split()
        return (sign, *(sorted((left, right)) if sign in "+*" else (left, right)))

    names = list(SET_SIZES)
    steps = [{content(s) for t in maths_tasks(name) for s, _ in t.steps} for name in names]
    assert all(len(some) > 300 for some in steps)
    for i in range(3):
        for j in range(i):
            assert not steps[i] & steps[j]


def test_a_limit_takes_the_first_tasks_and_sets_repeat():
    first = maths_tasks("train", 5)
    maths_tasks.cache_clear()
    assert maths_tasks("train")[:5] == first
    with pytest.raises(ValueError, match="unknown task set 'dev'"):
        maths_tasks("dev")


def test_every_expert_earns_full_reward_through_the_sandbox(sandbox):
    for task in maths_tasks("test", 30):
        env = PythonToolEnv(task, sandbox, count_tokens=len, max_turns=len(task.steps))
        env.reset()
        results = [env.step(message) for message in expert_messages(task)]
        assert results[-1][1:4] == (1.0, True, False)
        assert env.reward()["programs"] == len(task.steps) and env.reward()["valid"] == 1.0
        printed = [result[4]["result"].output.strip() for result in results[:-1]]
        assert printed == [value for _, value in task.steps]


def test_demonstrations_of_generated_tasks_fit_a_curriculum(sandbox):
    tags = Tags("reason", "python", "printed", "final")
    pool = []
    for task in maths_tasks("pretrain", 3):
        env = PythonToolEnv(task, sandbox, count_tokens=len, tags=tags)
        pool.append(demonstration(env, tags))
    assert [len(one.messages) // 2 for one in pool] == [1, 2, 3]
    task = maths_tasks("train", 1)[0]
    env = PythonToolEnv(task, sandbox, count_tokens=len, tags=tags)
    Curriculum(((3, 1), (0, 1)), pool=tuple(pool)).show(env, 0, 0, 0)
    ((opening,), _) = env.reset()
    assert [opening] == prompt(env.told, task.asked, pool)
    assert opening.content.count("<printed>") == 7  # six results, and the instructions
    env.task = maths_tasks("pretrain", 1)[0]
    with pytest.raises(ValueError, match="solves the question of task"):
        env.reset()


def test_hand_written_demonstrations_compute_their_answers():
    shown = maths_demonstrations()
    assert [one.question for one in shown] == [one[0] for one in SOLVED]
    answers = [eval(one.messages[-2].content[8:-9].replace("/", "+")) for one in shown]
    assert answers == [int(one[1]) for one in SOLVED]
    assert "Error" not in str(shown) and "printed nothing" not in str(shown)
    with pytest.raises(ValueError, match="has no steps"):
        expert_messages(MathsTask("a", "aime2024", "What?", ("1",)))


@pytest.mark.parametrize(
    ("prediction", "answer", "same"),
    [
        ("73", "073", True), (" 73. ", "73", True), ("+73", "73", True), ("73.0", "73", True),
        ("$73$", "73", True), ("\\boxed{73}", "73", True), ("$\\boxed{73}$.", "73", True),
        ("1,234", "1234", True), ("12,34", "1234", False), ("1,234,567.5", "1234567.5", True),
        ("-5", "5", False), ("\u22125", "-5", True), ("0.5", "05", False), ("1/2", "12", False),
        ("2/4", "1/2", True), ("-.5", "-1/2", True), ("0.333", "1/3", False), ("1/0", "1", False),
        ("5 apples", "5", False), ("x = 5", "5", False), ("", "5", False), ("-", "0", False),
        (".", "0", False), ("1e3", "1000", False), ("1" * 2000, "1", False), ("5 6", "56", False),
        ("\u0665", "5", False), ("no", "No!", True), ("5", "five", False), ("", "the", False),
    ],
)  # fmt: skip
def test_answers_are_the_same_by_value(prediction, answer, same):
    assert same_answer(prediction, answer) is same


def test_hostile_answers_cost_nothing():
    for text in (
        "9" * 10**6,
        "1e999999999",
        "1" + ",000" * 10**5,
        "\\boxed{" * 10**5,
        "1/" * 10**5,
    ):
        assert number(text) is None


def test_problems_are_read_from_json_lines(tmp_path):
    path = tmp_path / "aime.jsonl"
    path.write_text('{"question": "Find $1+1$.", "answers": ["002"], "dataset": "aime2024"}\n')
    (task,) = read_maths(path)
    assert task == MathsTask("aime2024_1", "aime2024", "Find $1+1$.", ("002",))
    assert task.asked == "Find $1+1$."
    path.write_text('{"question": "Find $1+1$.", "dataset": "aime2024"}\n')
    with pytest.raises(ValueError, match="aime.jsonl:1 lacks 'answers'"):
        read_maths(path)


def hub(monkeypatch, rows):
    asked = []

    def load_dataset(name, split):
        asked.append((name, split))
        if isinstance(rows, Exception):
            raise rows
        return rows

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    return asked


@pytest.mark.parametrize("name", AIME)
def test_aime_is_loaded_from_the_hub(monkeypatch, name):
    rows = [{"id": 60 + i, "problem": f"Find {i}.", "answer": f"{i:03}"} for i in range(30)]
    asked = hub(monkeypatch, rows)
    tasks = load_aime(name)
    assert asked == [AIME[name]] and len(tasks) == 30
    assert tasks[7] == MathsTask(f"{name}_7", name, "Find 7.", ("007",))


def test_faults_of_the_hub_are_told(monkeypatch):
    row = {"problem": "Find.", "answer": 5}
    for rows, message in (
        ([row] * 29, "has 29 problems"),
        ([row | {"answer": "33^2"}] * 30, "row 0: answer '33\\^2'"),
    ):
        hub(monkeypatch, rows)
        with pytest.raises(ValueError, match=message):
            load_aime("aime2025")
    hub(monkeypatch, ConnectionError("offline"))
    with pytest.raises(RuntimeError, match="could not be loaded"):
        load_aime("aime2025")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(RuntimeError, match="pip install 'rc_lib\\[qa\\]'"):
        load_aime("aime2024")
