"""The search environment: a question, a retriever behind tags, and ICRL's reward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rc_lib.demonstrations import Demonstration, prompt
from rc_lib.envs.base import Message
from rc_lib.envs.tags import (
    CUT,
    SEARCH,
    Tags,
    cut,
    invalid_action,
    neutralise,
    observation,
    parse_action,
)
from rc_lib.retrieval import Passage, Retriever
from rc_lib.rewards import search_reward
from rc_lib.tasks.qa import QATask

REWARD_SCOPES = ("response", "prompt+response")
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


class SearchEnv:
    """One episode of a question: messages that search, and one that answers.

    Source: ICRL (arXiv 2603.08068): at most six turns, then a last message whose search is not
    made; BM25 or a web search, top 3; observations of at most 500 tokens.

    Deviation: an observation is a tool message of its own in the policy's chat format, not a piece
    of the assistant's message between blank lines. A query without words finds nothing.

    Args:
        task: the question; never changed.
        retriever: finds passages; errors of it pass through.
        count_tokens: number of tokens of a text, e.g. ``lambda t: len(policy.encode_text(t))``.
        observation_tokens: most tokens of an observation, its tags included.
        max_turns: messages after which a search is still made.
        passages: most passages of a search.
        tags: names of the tags.
        told: instructions, ``instructions(tags)`` by default, "" for none.
        form: how the prompt is written, see `rc_lib.demonstrations.prompt`.
        reward_scope: "response" scores the policy's own messages; "prompt+response" scores the
            prompt and the observations as well, as the official code does by mistake.

    Attributes:
        demonstrations: shown by `reset` before the question; none unless a curriculum sets them.

    Raises:
        ValueError: for an unknown reward scope, a limit below 1, or observation_tokens that do not
            hold the tags.

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

    def __init__(
        self,
        task: QATask,
        retriever: Retriever,
        *,
        count_tokens: Callable[[str], int],
        observation_tokens: int = 500,
        max_turns: int = 6,
        passages: int = 3,
        tags: Tags = SEARCH,
        told: str | None = None,
        form: str = "message",
        reward_scope: str = "response",
    ) -> None:
        if reward_scope not in REWARD_SCOPES:
            raise ValueError(f"unknown reward_scope {reward_scope!r}; use one of {REWARD_SCOPES}")
        if max_turns < 1 or passages < 1:
            raise ValueError(f"{max_turns=} and {passages=} must be at least 1")
        observation(CUT, tags, observation_tokens, count_tokens)
        self.task, self.retriever, self.tags, self.form = task, retriever, tags, form
        self.count_tokens, self.observation_tokens = count_tokens, observation_tokens
        self.max_turns, self.passages, self.reward_scope = max_turns, passages, reward_scope
        self.told = instructions(tags) if told is None else told
        self.demonstrations: tuple[Demonstration, ...] = ()
        self._over = True
        self._opening: list[Message] | None = None

    def reset(self) -> tuple[list[Message], dict[str, Any]]:
        """Start the episode afresh; returns the prompt.

        Raises:
            ValueError: if a demonstration solves the task's own question.
        """
        question = self.task.asked
        if question in (shown.question for shown in self.demonstrations):
            raise ValueError(
                f"a demonstration solves the question of task {self.task.id}; take demonstrations "
                "from a pool that shares no question with the tasks"
            )
        self._opening = prompt(self.told, question, self.demonstrations, self.form)
        self._said: list[Message] = []  # the policy's messages, cut, and what it read after each
        self._searches = self._invalid = 0
        self._over = self._answered = False
        return list(self._opening), {"turn": 0}

    def step(self, action: str) -> tuple[list[Message], float, bool, bool, dict[str, Any]]:
        """Take one assistant message: search, or end with an answer.

        Returns:
            Messages to append (one tool message, none after the end), the reward (0.0 before the
            end), terminated (answered), truncated (no message is left), and info: turn, action
            ("tool", "answer" or None), content, and the passages found.

        Raises:
            RuntimeError: before `reset` or after the end.
        """
        if self._over:
            raise RuntimeError(f"the episode of task {self.task.id} is over; call reset()")
        kind, content = parse_action(action, self.tags)
        turn = len(self._texts())
        info: dict[str, Any] = {"turn": turn, "action": kind, "content": content, "passages": []}
        self._said.append(Message("assistant", cut(action, self.tags)))
        self._invalid += kind is None
        self._answered = kind == "answer"
        truncated = not self._answered and turn == self.max_turns
        self._over = self._answered or truncated
        if self._over:
            return [], self.reward()["reward"], self._answered, truncated, info
        if kind == "tool":
            info["passages"] = self._search(content)
            text = results_text(info["passages"])
            text = observation(text, self.tags, self.observation_tokens, self.count_tokens)
        else:
            text = invalid_action(self.tags)
        self._said.append(Message("tool", text))
        return [self._said[-1]], 0.0, False, False, info

    def _texts(self) -> list[str]:
        return [message.content for message in self._said if message.role == "assistant"]

    def _search(self, query: str) -> list[Passage]:
        self._searches += 1
        return self.retriever.search(query, self.passages) if query else []

    def reward(self) -> dict[str, float]:
        """The score of the episode so far.

        Returns:
            ``reward``, ``em``, ``exact`` and ``format`` of `rc_lib.rewards.search_reward`;
            ``searches`` that were made, ``invalid`` messages, and ``valid``: 1.0 where the episode
            ended with an answer that is not empty, after a search, without an invalid message.

        Raises:
            RuntimeError: before `reset`.
        """
        if self._opening is None:
            raise RuntimeError(f"task {self.task.id} has no episode yet; call reset()")
        texts = self._texts()
        given = self._answered and parse_action(texts[-1], self.tags)[1]
        if self.reward_scope == "prompt+response":
            texts = [message.content for message in self._opening + self._said]
        parts = search_reward(texts, self.task.answers, self.tags)
        valid = bool(given) and self._searches > 0 and self._invalid == 0
        counts = {"searches": float(self._searches), "invalid": float(self._invalid)}
        return parts | counts | {"valid": float(valid)}
