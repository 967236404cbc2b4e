"""Maths with a code tool: generated expressions for the tiny profile, and the AIME loaders."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from rc_lib.demonstrations import Demonstration, demonstrate
from rc_lib.envs.base import Environment
from rc_lib.envs.tags import CODE, Tags
from rc_lib.rewards import exact_match
from rc_lib.seeding import rng
from rc_lib.tasks.qa import QATask, read_tasks
from rc_lib.tasks.world import partition_of

STEPS = (1, 2, 3)
# Set -> number of tasks of one, two and three steps; the set is also the partition.
SET_SIZES = {"pretrain": (120, 240, 240), "train": (120, 240, 240), "test": (40, 80, 80)}
# Name -> data set on the hub and its split; columns `problem` and `answer`, 30 rows each.
AIME = {"aime2024": ("HuggingFaceH4/aime_2024", "train"), "aime2025": ("math-ai/aime25", "test")}
_INTEGER = r"[0-9]{1,3}(?:,[0-9]{3}){1,300}|[0-9]{1,1000}"
_NUMBER = re.compile(rf"([+-]?(?:{_INTEGER})?(?:\.[0-9]{{1,1000}})?)(?: ?/ ?([0-9]{{1,1000}}))?")
_BOXED = re.compile(r"\\boxed\{(.*)\}", re.DOTALL)


@dataclass(frozen=True)
class MathsTask(QATask):
    """A maths problem with its answer.

    Attributes:
        steps: (expression, value) of each step of a generated task; the last value is the answer.

    >>> MathsTask("m", "aime2024", "Find $1+1$. ", ("2",)).asked
    'Find $1+1$.'
    """

    steps: tuple[tuple[str, str], ...] = ()

    @property
    def asked(self) -> str:
        """The problem as prompts ask it, as it stands.

        Deviation: ICRL adds a question mark where it is missing; problems often end with a stop.
        """
        return self.question.strip()


def number(text: str) -> Fraction | None:
    """Return the number that a text is, exactly, or None.

    Read are integers, also with commas between thousands, decimals and fractions, with a sign,
    within dollar signs or ``\\boxed{}``, with a full stop behind. A power is none: it could be too
    large to write out.

    >>> number("$-1,234.50$"), number("3/4"), number("12 apples"), number("1/0")
    (Fraction(-2469, 2), Fraction(3, 4), None, None)
    """
    text = text.strip().replace("\u2212", "-").removesuffix(".").strip("$ ")
    boxed = _BOXED.fullmatch(text)
    match = _NUMBER.fullmatch((boxed.group(1) if boxed else text).strip())
    if not match or not match.group(1).strip("+-") or int(match.group(2) or 1) == 0:
        return None
    return Fraction(match.group(1).replace(",", "")) / int(match.group(2) or 1)


def same_answer(prediction: str, answer: str) -> bool:
    """Return whether a prediction is the gold answer: by value where the gold answer is a number.

    Deviation: where it is no number, by ICRL's exact match.

    >>> same_answer("073", "73"), same_answer("-5", "5"), same_answer("0.5", "1/2")
    (True, False, True)
    """
    value = number(answer)
    if value is None:
        return bool(prediction) and exact_match(prediction, [answer])
    return number(prediction) == value


@cache
def maths_tasks(name: str, limit: int | None = None) -> tuple[MathsTask, ...]:
    """Return a set of generated tasks: ``pretrain`` (600), ``train`` (600) or ``test`` (200).

    A task is an expression of one to three operations without words. The first one multiplies two
    numbers of three digits, which no small model does by heart. An operation, in either order of
    its numbers, belongs to the partition that its checksum names, so sets share neither a question
    nor a step of a solution.

    Args:
        name: set name.
        limit: take only the first tasks, numbers of steps interleaved (the `smoke` profile).

    Raises:
        ValueError: for an unknown set.

    >>> [task.category for task in maths_tasks("test", 3)]
    ['1-step', '2-step', '3-step']
    >>> maths_tasks("test", 3)[2].question
    'What is ((406 * 183) - 380) * 877?'
    """
    if name not in SET_SIZES:
        raise ValueError(f"unknown task set {name!r}; choose from {', '.join(SET_SIZES)}")
    tasks, seen = [], set()
    for steps, size in zip(STEPS, SET_SIZES[name], strict=True):
        draw, place = rng(0, f"maths-{name}", steps), 0
        while place < size:
            task = _task(f"maths_{name}_{steps}step_{place}", name, steps, draw)
            if task.question not in seen:
                seen.add(task.question)
                tasks.append((place, task))
                place += 1
    tasks.sort(key=lambda pair: pair[0])
    return tuple(task for _, task in tasks[:limit])


def _task(task_id: str, partition: str, length: int, draw: np.random.Generator) -> MathsTask:
    value, whole, steps = int(draw.integers(100, 1000)), "", []
    while len(steps) < length:
        sign = "*" if not steps else str(draw.choice(["+", "-", "*", "%"]))
        operand = int(draw.integers(100, 1000))
        expression = f"{value} {sign} {operand}"
        results = {"+": value + operand, "-": value - operand, "*": value * operand}
        result = results.get(sign, value % operand)
        # Neither negative nor a number that the question shows.
        fresh = result > 9 and str(result) not in re.findall("[0-9]+", f"{whole} {expression}")
        pair = sorted((value, operand)) if sign in "+*" else [value, operand]
        if fresh and partition_of(f"{sign} {pair}") == partition:
            whole = f"({whole}) {sign} {operand}" if whole else expression
            steps.append((expression, str(result)))
            value = result
        elif not steps:
            value = int(draw.integers(100, 1000))
    return MathsTask(
        id=task_id,
        category=f"{length}-step",
        question=f"What is {whole}?",
        answers=(str(value),),
        steps=tuple(steps),
    )


def expert_messages(task: MathsTask, tags: Tags = CODE) -> list[str]:
    """Return the assistant messages that solve a generated task, one program for each step.

    Every expression stands in the thought right before it, and every value next to its expression,
    so that a small model needs to copy over short distances only.

    Raises:
        ValueError: for a task without steps.

    >>> for message in expert_messages(maths_tasks("test", 1)[0]):
    ...     print(message)
    <think> I need 293 * 655. </think> <code> print(293 * 655) </code>
    <think> 293 * 655 is 191915. </think> <answer> 191915 </answer>
    """
    if not task.steps:
        raise ValueError(f"task {task.id} has no steps to follow; use a generated one")
    known, messages = "", []
    for expression, value in task.steps:
        thought = tags.wrap("think", f"{known}I need {expression}.")
        messages.append(f"{thought} {tags.wrap('tool', f'print({expression})')}")
        known = f"{expression} is {value}. "
    return [*messages, f"{tags.wrap('think', known.strip())} {tags.wrap('answer', value)}"]


def demonstration(env: Environment, tags: Tags = CODE) -> Demonstration:
    """Return the expert's solution of an environment's task, with what its programs printed.

    Source: ICRL (arXiv 2603.08068) shows a one-call, a three-call and a one-call solution; give
    ``pretrain`` tasks of one, three and one steps for the same.
    """
    return demonstrate(env, expert_messages(env.task, tags))


def read_maths(path: str | Path) -> list[MathsTask]:
    """Read maths problems from JSON lines, as `rc_lib.tasks.qa.read_tasks` describes them.

    Raises:
        ValueError: for a line that is not so, naming file and line.
        FileNotFoundError: if there is no such file.
    """
    return [MathsTask(t.id, t.category, t.question, t.answers) for t in read_tasks(path)]


def load_aime(name: str) -> list[MathsTask]:
    """Load a year of AIME from the Hugging Face hub by `datasets`, which is imported only here.

    Source: ICRL (arXiv 2603.08068) evaluates on AIME 2024 and 2025.

    Deviation: where the paper took the problems from is not stated.

    Args:
        name: "aime2024" or "aime2025".

    Raises:
        ValueError: for an unknown name, or a row whose answer is no integer from 0 to 999.
        RuntimeError: if `datasets` is not installed or the set cannot be loaded.

    >>> load_aime("aime1999")
    Traceback (most recent call last):
        ...
    ValueError: unknown set 'aime1999'; choose from aime2024, aime2025
    """
    if name not in AIME:
        raise ValueError(f"unknown set {name!r}; choose from {', '.join(AIME)}")
    hub, split = AIME[name]
    try:
        import datasets
    except ImportError as error:
        raise RuntimeError(
            f"{name} is read by the package datasets: pip install 'rc_lib[qa]', or read a file "
            "with rc_lib.tasks.maths.read_maths"
        ) from error
    try:
        rows = datasets.load_dataset(hub, split=split)
    except (OSError, ValueError) as error:
        raise RuntimeError(
            f"{hub} ({split}) could not be loaded ({error}); check the connection and "
            "HF_HUB_OFFLINE, or read a file with rc_lib.tasks.maths.read_maths"
        ) from error
    return _aime_tasks(name, rows)


def _aime_tasks(name: str, rows: Iterable[dict[str, Any]]) -> list[MathsTask]:
    tasks = []
    for place, row in enumerate(rows):
        answer = str(row["answer"]).strip()
        if not re.fullmatch("[0-9]{1,3}", answer):
            raise ValueError(f"{name}, row {place}: answer {answer!r} is no integer up to 999")
        tasks.append(MathsTask(f"{name}_{place}", name, row["problem"], (answer,)))
    if len(tasks) != 30:
        raise ValueError(f"{name} has {len(tasks)} problems; a year of AIME has 30")
    return tasks
