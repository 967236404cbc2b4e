"""Question answering: the task, and the question sets of ICRL from the hub or from JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rc_lib.retrieval import Passage, unique
from rc_lib.seeding import rng

HUB = "RUC-NLPIR/FlashRAG_datasets"
# Name -> its configuration on the hub and the split that ICRL's kind of evaluation uses.
SETS = {
    "nq": ("nq", "test"),
    "triviaqa": ("triviaqa", "test"),
    "hotpotqa": ("hotpotqa", "dev"),
    "2wiki": ("2wikimultihopqa", "dev"),
    "musique": ("musique", "dev"),
    "bamboogle": ("bamboogle", "test"),
}


@dataclass(frozen=True)
class QATask:
    """A question with its gold answers.

    Attributes:
        id: unique in its set.
        category: the set's name, or the number of hops, e.g. "2-hop".
        question: as in the set.
        answers: gold answers, any of which is right; the first is the canonical one.
        supporting: the passages that hold the evidence, where the set names them.

    Raises:
        ValueError: for an empty question or no answer.

    >>> QATask("q", "nq", "capital of peru", ("Lima",)).asked
    'capital of peru?'
    """

    id: str
    category: str
    question: str
    answers: tuple[str, ...]
    supporting: tuple[Passage, ...] = ()

    def __post_init__(self) -> None:
        if not self.question.strip():
            raise ValueError(f"task {self.id} has no question")
        if not self.answers or not all(isinstance(a, str) and a.strip() for a in self.answers):
            raise ValueError(f"task {self.id} has answers {self.answers!r}; each must be a text")

    @property
    def asked(self) -> str:
        """The question as prompts ask it, ending with a question mark (as in ICRL)."""
        question = self.question.strip()
        return question if question.endswith("?") else f"{question}?"


def read_tasks(path: str | Path) -> list[QATask]:
    """Read a question set from JSON lines.

    A line is an object with

    - ``question``: a text;
    - ``answers``: a list of texts, the canonical one first;
    - ``dataset``: the set's name;
    - ``id``: optional, by default the dataset's name and the line's number;
    - ``paragraphs``: optional, a list of ``{"title", "text", "is_supporting"}``.

    Other keys are not read.

    Raises:
        ValueError: for a line that is not so, naming file and line, an id that comes twice, or a
            file without lines. An unanswerable question (``"answerable": false``) is refused too.
        FileNotFoundError: if there is no such file.
    """
    tasks = []
    for place, row in _rows(path):
        try:
            if row.get("answerable") is False:
                raise ValueError("the question is marked as unanswerable; leave it out of the file")
            if not isinstance(row["answers"], list):
                raise TypeError(f"answers are {row['answers']!r}; give a list of texts")
            tasks.append(
                QATask(
                    id=str(row.get("id", f"{row['dataset']}_{place.rpartition(':')[2]}")),
                    category=row["dataset"],
                    question=row["question"],
                    answers=tuple(row["answers"]),
                    supporting=tuple(
                        Passage(p["title"], p["text"])
                        for p in row.get("paragraphs", ())
                        if p["is_supporting"]
                    ),
                )
            )
        except KeyError as error:
            raise ValueError(f"{place} lacks {error}; see rc_lib.tasks.qa.read_tasks") from None
        except (TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"{place}: {error}") from error
    return _checked(tasks, str(path))


def read_passages(paths: Iterable[str | Path]) -> list[Passage]:
    """Read a corpus from JSON lines: question sets with ``paragraphs``, or one passage a line.

    Returns:
        All passages in the order of the files, each once.

    Raises:
        ValueError: for a line with neither ``paragraphs`` nor ``title`` and ``text``.
        FileNotFoundError: if there is no such file.
    """
    passages = []
    for path in paths:
        for place, row in _rows(path):
            try:
                for item in row.get("paragraphs", [row]):
                    passages.append(Passage(item["title"], item["text"]))
            except (KeyError, TypeError, AttributeError):
                raise ValueError(
                    f"{place} has neither paragraphs nor a passage's title and text; "
                    "see rc_lib.tasks.qa.read_tasks"
                ) from None
    return unique(passages)


def load_hub(name: str, split: str | None = None) -> list[QATask]:
    """Load a question set from the Hugging Face hub by `datasets`, which is imported only here.

    Source: ICRL (arXiv 2603.08068), training on NQ, evaluation on the others; the official code
    reads the same collection, RUC-NLPIR/FlashRAG_datasets.

    Args:
        name: one of `SETS`.
        split: e.g. "train"; by default the set's evaluation split.

    Raises:
        ValueError: for an unknown name.
        RuntimeError: if `datasets` is not installed or the set cannot be loaded.

    >>> load_hub("squad")
    Traceback (most recent call last):
        ...
    ValueError: unknown question set 'squad'; choose from nq, triviaqa, hotpotqa, 2wiki, musique, \
bamboogle
    """
    if name not in SETS:
        raise ValueError(f"unknown question set {name!r}; choose from {', '.join(SETS)}")
    try:
        import datasets
    except ImportError as error:
        raise RuntimeError(
            f"question set {name!r} is read by the package datasets: pip install 'rc_lib[qa]', or "
            "read a file with rc_lib.tasks.qa.read_tasks"
        ) from error
    config, default = SETS[name]
    split = split or default
    try:
        rows = datasets.load_dataset(HUB, config, split=split)
    except (OSError, ValueError) as error:
        raise RuntimeError(
            f"{HUB}/{config} ({split}) could not be loaded ({error}); check the connection and "
            "HF_HUB_OFFLINE, or read a file with rc_lib.tasks.qa.read_tasks"
        ) from error
    tasks = [
        QATask(f"{name}_{row['id']}", name, row["question"], tuple(row["golden_answers"]))
        for row in rows
    ]
    return _checked(tasks, f"{HUB}/{config}")


def subset(tasks: Sequence[QATask], size: int, seed: int) -> list[QATask]:
    """Return `size` tasks drawn by the seed, in their old order; all if there are not more.

    Source: ICRL evaluates at most 500 questions of a set; which ones is not stated.

    Raises:
        ValueError: if the size is below 1.

    >>> tasks = [QATask(str(i), "nq", "?", ("a",)) for i in range(9)]
    >>> subset(tasks, 3, 0) == subset(tasks, 3, 0), len(subset(tasks, 20, 0))
    (True, 9)
    """
    if size < 1:
        raise ValueError(f"a subset of size {size} is empty; use at least 1")
    order = rng(seed, "qa-subset").permutation(len(tasks))
    return [tasks[place] for place in sorted(order[:size])]


def _rows(path: str | Path) -> Iterable[tuple[str, dict[str, Any]]]:
    """Yield ("file:line", object) of the lines that are not blank."""
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    yield f"{path}:{number}", json.loads(line)
                except json.JSONDecodeError as error:
                    raise ValueError(f"{path}:{number} is not JSON: {error}") from None


def _checked(tasks: list[QATask], source: str) -> list[QATask]:
    seen: set[str] = set()
    for task in tasks:
        if task.id in seen:
            raise ValueError(f"{source}: the id {task.id!r} comes twice; ids must differ")
        seen.add(task.id)
    if not tasks:
        raise ValueError(f"{source} holds no question")
    return tasks
