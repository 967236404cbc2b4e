"""The 800 multi-turn tasks of BFCL v4, read from the installed `bfcl-eval`, and their split.

Source: RC-GRPO Tables 6-7 (720 training tasks, 80 test tasks). The four categories are variants of
the same 200 tasks, so the split goes by the number in the id.

Deviation: the paper's categories have 18/23/17/22 test tasks, which no split by id can give; here
five ids of each of the four 50-id domain blocks are held out, 20 of each category.
"""

from __future__ import annotations

import json
from functools import cache, lru_cache
from importlib import metadata, resources
from importlib.resources.abc import Traversable

from rc_lib.envs.backends import BFCL_VERSION, INSTALL
from rc_lib.errors import RcError
from rc_lib.seeding import rng
from rc_lib.tasks.base import CATEGORIES, Task

BLOCKS = 4  # ids 0-49 file system, 50-99 vehicle, 100-149 trading, 150-199 travel
BLOCK_IDS = 50
TEST_IDS_PER_BLOCK = 5
_DOCS = {
    "GorillaFileSystem": "gorilla_file_system.json",
    "MathAPI": "math_api.json",
    "MessageAPI": "message_api.json",
    "TwitterAPI": "posting_api.json",
    "TicketAPI": "ticket_api.json",
    "TradingBot": "trading_bot.json",
    "TravelAPI": "travel_booking.json",
    "VehicleControlAPI": "vehicle_control.json",
}
# bfcl-eval, constants/default_prompts.py: persona, task, tool_call_no_tag, multiturn_behavior and
# available_tools of the style "classic", in the plain text template.
_SYSTEM_PROMPT = (
    "You are an expert in composing functions."
    "You are given a question and a set of possible functions. Based on the question, you will "
    "need to make one or more function/tool calls to achieve the purpose. If none of the functions "
    "can be used, point it out. If the given question lacks the parameters required by the "
    "function, also point it out.\n\n"
    "You should only return the function calls in your response.\n\n"
    "If you decide to invoke any of the function(s), you MUST put it in the format of "
    "[func_name1(params_name1=params_value1, params_name2=params_value2...), func_name2(params)]. "
    " You SHOULD NOT include any other text in the response.\n\n"
    "At each turn, you should try your best to complete the tasks requested by the user within the "
    "current turn. Continue to output functions to call until you have fulfilled the user's "
    "request to the best of your ability. Once you have no more functions to call, the system will "
    "consider the current turn complete and proceed to the next turn or task.\n\n"
    "Here is a list of functions in json format that you can invoke.\n{functions}\n"
)


def bfcl_tasks(split: str = "all", category: str | None = None) -> tuple[Task, ...]:
    """The BFCL multi-turn tasks of a split, in file order.

    Args:
        split: "all" (800), "train" (720) or "test" (80).
        category: one of `CATEGORIES`, or None for all four.
    Raises:
        ValueError: for an unknown split or category.
        RcError: where `bfcl-eval` is missing or of another version.

    Example:
        >>> len(bfcl_tasks()), len(bfcl_tasks("train")), len(bfcl_tasks("test", "miss_func"))
        (800, 720, 20)
    """
    if split not in ("all", "train", "test"):
        raise ValueError(f"split {split!r} is not 'all', 'train' or 'test'")
    if category is not None and category not in CATEGORIES:
        raise ValueError(f"category {category!r} is not in {CATEGORIES}")
    chosen = [category] if category else CATEGORIES
    tasks = [task for name in chosen for task in _category_tasks(name)]
    if split == "all":
        return tuple(tasks)
    held_out = set(held_out_ids())
    return tuple(t for t in tasks if (task_number(t.id) in held_out) == (split == "test"))


def bfcl_task(task_id: str) -> Task:
    """One BFCL task.

    Args:
        task_id: such as "multi_turn_base_0".
    Raises:
        ValueError: if there is no such task.

    Example:
        >>> bfcl_task("multi_turn_base_0").reference[2]
        ("sort('final_report.pdf')",)
    """
    category = task_id.removeprefix("multi_turn_").rpartition("_")[0]
    if category in CATEGORIES:
        for task in _category_tasks(category):
            if task.id == task_id:
                return task
    raise ValueError(
        f"no BFCL task {task_id!r}; ids are multi_turn_CATEGORY_NUMBER with a category of "
        f"{', '.join(CATEGORIES)} and a number of 0-199"
    )


def task_number(task_id: str) -> int:
    """The number that the four variants of one task share.

    Example:
        >>> task_number("multi_turn_long_context_17")
        17
    """
    return int(task_id.rpartition("_")[2])


@cache
def held_out_ids() -> tuple[int, ...]:
    """The 20 held-out task numbers, from the committed `bfcl_split.json`.

    Example:
        >>> len(held_out_ids())
        20
    """
    text = resources.files("rc_lib.tasks").joinpath("bfcl_split.json").read_text()
    return tuple(json.loads(text)["test_ids"])


def draw_held_out_ids(seed: int) -> list[int]:
    """Draw five task numbers of each domain block; seed 0 gave the committed split.

    Example:
        >>> tuple(draw_held_out_ids(0)) == held_out_ids()
        True
    """
    chosen: list[int] = []
    for block in range(BLOCKS):
        draw = rng(seed, "bfcl-split", block)
        numbers = draw.choice(BLOCK_IDS, size=TEST_IDS_PER_BLOCK, replace=False)
        chosen += sorted(int(number) + block * BLOCK_IDS for number in numbers)
    return chosen


def function_docs(task: Task, *, turn: int | None = None) -> list[dict]:
    """The documents of the functions a task offers, in BFCL's form and order.

    Args:
        task: excluded functions are left out.
        turn: None for all of them; else those of the start (0), or only the ones withheld until
            that turn.

    Example:
        >>> task = bfcl_task("multi_turn_miss_func_0")
        >>> task.missed_function, [doc["name"] for doc in function_docs(task, turn=3)]
        ({3: ('sort',)}, ['sort'])
        >>> "sort" in [doc["name"] for doc in function_docs(task, turn=0)]
        False
    """
    docs = [doc for name in task.involved_classes for doc in _class_docs(name)]
    docs = [doc for doc in docs if doc["name"] not in task.excluded_function]
    if turn is None:
        return docs
    if turn > 0:
        return [doc for doc in docs if doc["name"] in task.missed_function.get(turn, ())]
    withheld = {name for names in task.missed_function.values() for name in names}
    return [doc for doc in docs if doc["name"] not in withheld]


def system_prompt(task: Task, *, turn: int | None = None) -> str:
    """BFCL's own system prompt for models that call functions as text.

    Args:
        turn: 0 withholds the functions that appear later (the protocol "turns"); None shows all
            (the protocol "merged", which has no later turn).

    Example:
        >>> print(system_prompt(bfcl_task("multi_turn_base_0"))[:41])
        You are an expert in composing functions.
    """
    docs = json.dumps(function_docs(task, turn=turn), indent=4)
    return _SYSTEM_PROMPT.replace("{functions}", docs)


@lru_cache(maxsize=len(CATEGORIES))
def _category_tasks(category: str) -> tuple[Task, ...]:
    name = f"BFCL_v4_multi_turn_{category}.json"
    entries = _read_lines(_data() / name)
    answers = {a["id"]: a["ground_truth"] for a in _read_lines(_data() / "possible_answer" / name)}
    return tuple(_task(entry, answers[entry["id"]], category) for entry in entries)


def _task(entry: dict, answer: list[list[str]], category: str) -> Task:
    missed = entry.get("missed_function", {}).items()
    return Task(
        id=entry["id"],
        category=category,
        turns=tuple(turn[0]["content"] if turn else "" for turn in entry["question"]),
        initial_config=entry["initial_config"],
        involved_classes=tuple(entry["involved_classes"]),
        reference=tuple(tuple(calls) for calls in answer),
        missed_function={int(turn): tuple(names) for turn, names in missed},
        excluded_function=tuple(entry.get("excluded_function", ())),
        path=tuple(entry["path"]),
    )


@cache
def _class_docs(name: str) -> list[dict]:
    hint = " Note that the provided function is in Python 3 syntax."  # as bfcl-eval adds
    docs = _read_lines(_data() / "multi_turn_func_doc" / _DOCS[name])
    return [doc | {"description": doc["description"] + hint} for doc in docs]


def _read_lines(path: Traversable) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


@cache
def _data() -> Traversable:
    try:
        version = metadata.version("bfcl-eval")
    except metadata.PackageNotFoundError:
        raise RcError(f"bfcl-eval is not installed; {INSTALL}") from None
    if version != BFCL_VERSION:
        raise RcError(
            f"bfcl-eval {version} is installed, but the recorded results are for {BFCL_VERSION}; "
            f"{INSTALL}"
        )
    return resources.files("bfcl_eval").joinpath("data")
