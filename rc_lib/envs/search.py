"""The search environment: a question, a retriever behind tags, and ICRL's reward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rc_lib.envs.tags import SEARCH, Tags, neutralise
from rc_lib.envs.tool import ToolEnv
from rc_lib.retrieval import Passage, Retriever
from rc_lib.tasks.qa import QATask

NOTHING_FOUND = "No passage matches."


def instructions(tags: Tags = SEARCH) -> str:
    """Return what the policy is told to do.

    Source: ICRL (arXiv 2603.08068), prompt; after Search-R1's.

    Deviation: the wording is ours.

    >>> "<search> query </search>" in instructions()
    True
    """
    return (
        f"Solve the problem step by step. Each time you get new information, reason inside "
        f"<{tags.think}> and </{tags.think}>. If you lack some knowledge, search for it with "
        f"{tags.wrap('tool', 'query')}; the best passages come back between <{tags.result}> and "
        f"</{tags.result}>. You can search as often as you want. At the end, give the answer "
        f"alone inside <{tags.answer}> and </{tags.answer}>, for example "
        f"{tags.wrap('answer', 'Beijing')}."
    )


def results_text(passages: list[Passage]) -> str:
    """Return passages as one text, a line each.

    Source: ICRL's official code, ``Doc 1(Title: T) text``.

    >>> results_text([Passage("Lima", "Lima is\\n in Peru.")])
    'Doc 1(Title: Lima) Lima is in Peru.'
    """
    lines = [
        f"Doc {number}(Title: {_one_line(title)}) {_one_line(text)}"
        for number, (title, text) in enumerate(passages, 1)
    ]
    return "\n".join(lines) or NOTHING_FOUND


def _one_line(text: str) -> str:
    return " ".join(neutralise(text).split())  # an entity may stand for a new line


class SearchEnv(ToolEnv):
    """One episode of a question: messages that search, and one that answers.

    Source: ICRL (arXiv 2603.08068): BM25 or a web search, top 3; for turns and observations see
    `rc_lib.envs.tool.ToolEnv`.

    Deviation: a query without words finds nothing.

    Args:
        task: the question; never changed.
        retriever: finds passages; errors of it pass through.
        count_tokens: number of tokens of a text.
        passages: most passages of a search.
        tags: names of the tags.
        told: instructions, ``instructions(tags)`` by default, "" for none.
        options: the other arguments of `ToolEnv`.

    Raises:
        ValueError: for fewer than 1 passages, and as `ToolEnv`.

    >>> from rc_lib.retrieval import BM25Retriever
    >>> retriever = BM25Retriever([Passage("Lima", "Capital of Peru."), Passage("Oslo", "Cold.")])
    >>> task = QATask("q", "1-hop", "What is the capital of Peru", ("Lima",))
    >>> env = SearchEnv(task, retriever, count_tokens=len)
    >>> messages, info = env.reset()
    >>> env.step("<think> I search. </think> <search> Peru </search>")[0][0].content
    '<information>Doc 1(Title: Lima) Capital of Peru.</information>'
    >>> env.step("<answer> lima </answer>")[1:4]
    (1.0, True, False)
    """

    calls, aim, content = "searches", "search", "query"

    def __init__(
        self,
        task: QATask,
        retriever: Retriever,
        *,
        count_tokens: Callable[[str], int],
        passages: int = 3,
        tags: Tags = SEARCH,
        told: str | None = None,
        **options: Any,
    ) -> None:
        if passages < 1:
            raise ValueError(f"{passages=} must be at least 1")
        told = instructions(tags) if told is None else told
        super().__init__(task, count_tokens=count_tokens, tags=tags, told=told, **options)
        self.retriever, self.passages = retriever, passages

    def use_tool(self, content: str) -> tuple[str, dict[str, Any]]:
        """Search; info gets the ``passages`` found."""
        found = self.retriever.search(content, self.passages) if content else []
        return results_text(found), {"passages": found}
