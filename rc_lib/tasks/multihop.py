"""A generated world of people, places, companies and films for multi-hop search, tiny profile.

Every partition has a world of its own over the same names: a fact (subject, relation, object)
belongs to the partition that its checksum names, and so does a question. So ``pretrain``, ``train``
and ``test`` share no fact, hence no answer path, and no question.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from rc_lib.demonstrations import Demonstration, demonstrate
from rc_lib.envs.base import Environment
from rc_lib.envs.tags import SEARCH, Tags
from rc_lib.retrieval import Passage
from rc_lib.seeding import rng
from rc_lib.tasks.qa import QATask
from rc_lib.tasks.world import PARTITIONS, partition_of

KINDS = {"person": 80, "company": 30, "city": 30, "film": 40}  # how many there are of each
RELATIONS = {  # subject's kind -> relation -> object's kind
    "person": {"teacher": "person", "rival": "person", "employer": "company", "birthplace": "city"},
    "company": {"founder": "person", "location": "city"},
    "city": {"mayor": "person", "twin": "city"},
    "film": {"director": "person", "studio": "company"},
}
HOPS = (1, 2, 3)
# Set -> number of tasks of one, two and three hops.
SET_SIZES = {"pretrain": (120, 240, 240), "train": (120, 240, 240), "test": (40, 80, 80)}
FORMER_SHARE = 0.25  # of the facts that have a passage about a former, hence wrong, object
# Names are a consonant, vowel, consonant twice; no stemmer shortens them.
STARTS = tuple("bo da fe gu ki lo mu ne pa ri so ta ve wu zi".split())
ENDINGS = tuple("bak dop fim gur kal lum mon nep rit som tov vax".split())


@dataclass(frozen=True)
class MultiHopTask(QATask):
    """A question that several facts answer together.

    Attributes:
        path: entity, relation, entity, ..., entity; the last one is the answer.
    """

    path: tuple[str, ...] = ()

    @property
    def hops(self) -> int:
        """Number of facts."""
        return len(self.path) // 2


@cache
def names() -> dict[str, tuple[str, ...]]:
    """Return the names of each kind, the same in every partition.

    >>> {kind: len(some) for kind, some in names().items()}
    {'person': 80, 'company': 30, 'city': 30, 'film': 40}
    """
    every = [(start + ending).capitalize() for start in STARTS for ending in ENDINGS]
    order = iter(rng(0, "multihop-names").permutation(len(every)))
    return {kind: tuple(every[next(order)] for _ in range(n)) for kind, n in KINDS.items()}


@cache
def world(partition: str) -> dict[tuple[str, str], str]:
    """Return the facts of a partition, (subject, relation) -> object.

    Args:
        partition: "pretrain", "train" or "test".

    Raises:
        ValueError: for another partition.

    >>> len(world("train")), set(world("train").items()) & set(world("test").items())
    (520, set())
    """
    if partition not in PARTITIONS:
        raise ValueError(f"unknown partition {partition!r}; choose from {', '.join(PARTITIONS)}")
    draw = rng(0, f"multihop-world-{partition}")
    facts = {}
    for kind, relations in RELATIONS.items():
        for subject in names()[kind]:
            for relation, target in relations.items():
                own = [
                    name
                    for name in names()[target]
                    if name != subject
                    and partition_of(fact_text(subject, relation, name)) == partition
                ]
                facts[subject, relation] = draw.choice(own).item()
    return facts


def fact_text(subject: str, relation: str, value: str) -> str:
    """Return a fact as a sentence.

    >>> fact_text("Gubak", "mayor", "Sotov")
    'The mayor of Gubak is Sotov.'
    """
    return f"The {relation} of {subject} is {value}."


@cache
def corpus(partition: str) -> tuple[Passage, ...]:
    """Return the passages of a partition: a fact each, and distractors.

    Every other fact is a distractor. A share `FORMER_SHARE` of the facts has a passage that names a
    former, wrong object and ranks before it, and every entity has one that says what it is.

    >>> corpus("test")[0].text
    'The teacher of Padop is Lodop.'
    """
    facts = world(partition)
    draw = rng(0, f"multihop-former-{partition}")
    passages = [Passage(key[0], fact_text(*key, value)) for key, value in facts.items()]
    for (subject, relation), value in facts.items():
        kind = next(kind for kind, some in names().items() if value in some)
        others = [name for name in names()[kind] if name not in (value, subject)]
        former = draw.choice(others).item()
        if draw.random() < FORMER_SHARE:
            text = (
                f"The former {relation} of {subject} is {former}, no {relation} of {subject} now."
            )
            passages.append(Passage(subject, text))
    for kind, some in names().items():
        passages += [Passage(name, f"{name} is a {kind}.") for name in some]
    return tuple(passages)


def question(subject: str, relations: Sequence[str]) -> str:
    """Return the question for what the relations, taken in order from a subject, lead to.

    >>> question("Gubak", ["mayor", "birthplace"])
    'What is the birthplace of the mayor of Gubak?'
    """
    targets = {name: target for some in RELATIONS.values() for name, target in some.items()}
    who = "Who" if targets[relations[-1]] == "person" else "What"
    return f"{who} is {' of '.join([*(f'the {name}' for name in reversed(relations)), subject])}?"


def _paths(partition: str, hops: int) -> Iterator[tuple[str, ...]]:
    """Yield all paths of so many facts that meet no entity twice."""
    facts = world(partition)
    kinds = {name: kind for kind, some in names().items() for name in some}
    paths = [(name,) for name in kinds]
    for _ in range(hops):
        paths = [
            (*path, relation, facts[path[-1], relation])
            for path in paths
            for relation in RELATIONS[kinds[path[-1]]]
            if facts[path[-1], relation] not in path[::2]
        ]
    yield from paths


@cache
def multihop_tasks(name: str, limit: int | None = None) -> tuple[MultiHopTask, ...]:
    """Return a task set: ``pretrain`` (600), ``train`` (600) or ``test`` (200).

    Args:
        name: set name, also the partition.
        limit: take only the first tasks, numbers of hops interleaved (the `smoke` profile).

    Raises:
        ValueError: for an unknown set.

    >>> [task.category for task in multihop_tasks("test", 3)]
    ['1-hop', '2-hop', '3-hop']
    """
    if name not in SET_SIZES:
        raise ValueError(f"unknown task set {name!r}; choose from {', '.join(SET_SIZES)}")
    tasks = []
    for hops, size in zip(HOPS, SET_SIZES[name], strict=True):
        own = [p for p in _paths(name, hops) if partition_of(question(p[0], p[1::2])) == name]
        order = rng(0, f"multihop-{name}", hops).permutation(len(own))[:size]
        tasks += [(i, _task(f"multihop_{name}_{hops}hop_{i}", own[j])) for i, j in enumerate(order)]
    tasks.sort(key=lambda pair: pair[0])
    return tuple(task for _, task in tasks[:limit])


def _task(task_id: str, path: tuple[str, ...]) -> MultiHopTask:
    facts = zip(path[0:-1:2], path[1::2], path[2::2], strict=True)
    return MultiHopTask(
        id=task_id,
        category=f"{len(path) // 2}-hop",
        question=question(path[0], path[1::2]),
        answers=(path[-1],),
        supporting=tuple(Passage(fact[0], fact_text(*fact)) for fact in facts),
        path=path,
    )


def expert_messages(task: MultiHopTask, tags: Tags = SEARCH) -> list[str]:
    """Return the assistant messages that solve a task, one search for each hop.

    Every word of a search stands in the thought right before it, and every answer in the sentence
    that repeats its fact, so that a small model needs to copy over short distances only.

    >>> for message in expert_messages(multihop_tasks("test", 1)[0]):
    ...     print(message)
    <think> I need the teacher of Pagur. </think> <search> teacher of Pagur </search>
    <think> The teacher of Pagur is Mumon. </think> <answer> Mumon </answer>
    """
    path, known, messages = task.path, "", []
    for subject, relation, value in zip(path[0:-1:2], path[1::2], path[2::2], strict=True):
        need = f"{relation} of {subject}"
        thought = tags.wrap("think", f"{known}I need the {need}.")
        messages.append(f"{thought} {tags.wrap('tool', need)}")
        known = fact_text(subject, relation, value) + " "
    thought = tags.wrap("think", known.strip())
    return [*messages, f"{thought} {tags.wrap('answer', path[-1])}"]


def demonstration(env: Environment, tags: Tags = SEARCH) -> Demonstration:
    """Return the expert's solution of an environment's task, with what the environment returned.

    Source: ICRL (arXiv 2603.08068) shows a search, a three-search and a search question; give
    ``pretrain`` tasks of one, three and one hops for the same.
    """
    return demonstrate(env, expert_messages(env.task, tags))
