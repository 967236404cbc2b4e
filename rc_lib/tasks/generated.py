"""Generated multi-turn tasks on the real BFCL backends, for the `tiny` profile.

Every task has two or three turns, one of BFCL's four categories, an initial state for the real
backend classes and reference calls that run on them without an error. The partitions
``pretrain``, ``train`` and ``test`` share no slot value: a value belongs to the partition that
its own checksum names.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from rc_lib.seeding import rng, stable_id
from rc_lib.tasks.base import CATEGORIES, Task
from rc_lib.tasks.intents import INTENTS, Intent
from rc_lib.tasks.world import PARTITIONS, World

# Tasks of each set, in the proportions of RC-GRPO's Tables 6-7 (720 train, 80 test).
SET_SIZES = {
    "train": {"base": 182, "miss_func": 183, "miss_param": 178, "long_context": 177},
    "test": {"base": 18, "miss_func": 17, "miss_param": 22, "long_context": 23},
    "power": {"base": 54, "miss_func": 51, "miss_param": 66, "long_context": 69},
    "unseen_wording": {"base": 18, "miss_func": 17, "miss_param": 22, "long_context": 23},
}
PREFIXES = ("", "", "please ", "next, ", "now ", "could you ", "I need you to ")
UNSEEN_PREFIXES = ("", "kindly ", "my next wish: ", "after that, ")

# Values that come with another slot.
DERIVED = ("person_id", "stock_price", "sum")
# fmt: off
# What a user calls a value that is still to be named (category miss_param).
NOUNS = {"file": "a file", "file2": "another file", "dir": "a folder", "new_dir": "a folder",
         "new_file": "a file", "text": "a text", "phrase": "a phrase", "person": "somebody",
         "new_person": "somebody", "user_id": "somebody", "receiver_id": "somebody",
         "title": "something", "stock": "a stock", "watched": "a stock", "tag": "a tag",
         "handle": "somebody", "followed": "somebody", "city": "a city"}
# fmt: on


@dataclass(frozen=True, eq=False)
class GeneratedTask(Task):
    """A task with the expert's assistant messages and the intents it was made from.

    Attributes:
        actions: assistant messages of the expert in BFCL's bracket form, ending with ``done()``.
        intents: names of the intents, one a request.
    """

    actions: tuple[str, ...] = ()
    intents: tuple[str, ...] = ()


def expand(wording: str, draw: np.random.Generator) -> str:
    """Replace each ``(a|b)`` of a wording by one of its choices.

    >>> expand("put it (in|in) the box", rng(0, "doc"))
    'put it in the box'
    """
    return re.sub(
        r"\(([^()]*\|[^()]*)\)", lambda m: str(draw.choice(m.group(1).split("|"))), wording
    )


@dataclass(frozen=True)
class Request:
    """One intent with its values: the wording, the expert's messages and what may be withheld."""

    intent: Intent
    text: str
    messages: tuple[tuple[str, ...], ...]  # assistant messages, each a tuple of calls
    values: dict[str, object]
    named: tuple[str, ...]  # slots that the wording names in quotes


def spell(name: str, value: object) -> str:
    """Write a value as the user writes it: strings in quotes, numbers and car parts bare."""
    return repr(value) if isinstance(value, str) and name != "part" else str(value)


def make_request(
    world: World, intent: Intent, *, unseen: bool = False, first_wording: bool = False
) -> Request:
    """Draw the wording and the values of one intent; adds what it refers to to the world."""
    draw = world.draw
    if unseen:
        wording, prefixes = intent.unseen, UNSEEN_PREFIXES
    else:
        choices = intent.wordings[:1] if first_wording else intent.wordings
        wording, prefixes = world.pick(choices), PREFIXES
    wording = expand(wording, draw)
    names = re.findall(r"(?<!\{)\{(\w+)\}", wording + intent.calls)
    values = world.slots([n for n in names if n not in DERIVED])
    world.tickets_made += "create_ticket" in intent.calls
    text = world.pick(prefixes) + wording.format(**{k: spell(k, v) for k, v in values.items()})
    shown = {k: repr(v) for k, v in values.items()}
    messages = tuple(
        tuple(call.strip().format(**shown) for call in message.split(";"))
        for message in intent.calls.split(">>")
    )
    named = tuple(n for n in re.findall(r"\{(\w+)\}", wording) if n in NOUNS)
    return Request(intent, text[0].upper() + text[1:], messages, values, named)


def choose_intents(draw: np.random.Generator, count: int, reads_long: bool) -> list[Intent]:
    """Choose distinct intents of one or two backends, none after one that ends its backend."""
    while True:
        chosen = [INTENTS[i] for i in draw.choice(len(INTENTS), size=count, replace=False)]
        backends = [intent.backend for intent in chosen]
        if len(set(backends)) > 2:
            continue
        ends = [i for i, intent in enumerate(chosen) if intent.final]
        if any(chosen[i].backend in backends[i + 1 :] for i in ends):
            continue
        if reads_long and not any(b in ("GorillaFileSystem", "TradingBot") for b in backends):
            continue
        return chosen


def _turns(requests: list[Request], category: str, world: World):
    """Lay requests out as turns; returns (turns, reference, missed_function)."""
    turns: list[str] = []
    reference: list[tuple[str, ...]] = []
    missed: dict[int, tuple[str, ...]] = {}
    candidates = [i for i, r in enumerate(requests) if category != "miss_param" or r.named]
    special = int(world.draw.choice(candidates)) if category.startswith("miss") else -1
    for i, request in enumerate(requests):
        calls = tuple(call for message in request.messages for call in message)
        if i != special:
            turns.append(request.text + ".")
            reference.append(calls)
        elif category == "miss_func":
            names = tuple(dict.fromkeys(call.split("(")[0] for call in calls))
            turns += [request.text + ".", ""]
            reference += [(), calls]
            missed[len(turns) - 1] = names
        else:
            slot = world.pick(request.named)
            value = repr(request.values[slot])
            noun = NOUNS[slot]
            turns.append(request.text.replace(value, noun) + ".")
            turns.append(f"With {noun} I meant {value}.")
            reference += [(), calls]
    return tuple(turns), tuple(reference), missed


def make_task(
    task_id: str, category: str, partition: str, *, unseen: bool = False
) -> GeneratedTask:
    """Make one task; everything in it depends on the id alone.

    Args:
        task_id: id, also the address of its randomness.
        category: one of ``CATEGORIES``.
        partition: owner of all slot values.
        unseen: use the wordings kept from training.

    Raises:
        ValueError: for an unknown category or partition.

    >>> task = make_task("gen_doc_base_0", "base", "train")
    >>> task.actions[-1], 2 <= len(task.turns) <= 3
    ('[done()]', True)
    """
    if category not in CATEGORIES or partition not in PARTITIONS:
        raise ValueError(
            f"category {category!r} / partition {partition!r} unknown; "
            f"choose from {CATEGORIES} and {tuple(PARTITIONS)}"
        )
    draw = rng(0, "generated-task", stable_id(task_id))
    count = 2 if category.startswith("miss") else int(draw.integers(2, 4))
    while True:
        world = World(draw, partition)
        intents = choose_intents(draw, count, category == "long_context")
        requests = [make_request(world, intent, unseen=unseen) for intent in intents]
        if category != "miss_param" or any(r.named for r in requests):
            break
    for _ in range(2):
        world.add_file()
    turns, reference, missed = _turns(requests, category, world)
    classes = tuple(dict.fromkeys(intent.backend for intent in intents))
    actions = [f"[{', '.join(message)}]" for r in requests for message in r.messages]
    return GeneratedTask(
        id=task_id,
        category=category,
        turns=turns,
        initial_config={name: world.config[name] for name in classes},
        involved_classes=classes,
        reference=reference,
        missed_function=missed,
        actions=(*actions, "[done()]"),
        intents=tuple(intent.name for intent in intents),
    )


@lru_cache(maxsize=8)
def generated_tasks(name: str, limit: int | None = None) -> tuple[GeneratedTask, ...]:
    """Return a task set: ``train`` (720), ``test`` (80), ``power`` (240), ``unseen_wording`` (80).

    Args:
        name: set name.
        limit: take only the first tasks, categories interleaved (the `smoke` profile).

    Raises:
        ValueError: for an unknown set.

    >>> [task.category for task in generated_tasks("test", 4)]
    ['base', 'miss_func', 'miss_param', 'long_context']
    """
    if name not in SET_SIZES:
        raise ValueError(f"unknown task set {name!r}; choose from {tuple(SET_SIZES)}")
    partition = "train" if name == "train" else "test"
    ids = [(i, category) for category, size in SET_SIZES[name].items() for i in range(size)]
    ids.sort(key=lambda pair: pair[0])
    return tuple(
        make_task(f"gen_{name}_{c}_{i}", c, partition, unseen=name == "unseen_wording")
        for i, c in ids[:limit]
    )
