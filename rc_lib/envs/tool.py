"""A question, a tool behind tags, and ICRL's reward: what its environments have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rc_lib.demonstrations import Demonstration, prompt
from rc_lib.envs.base import Message
from rc_lib.envs.tags import CUT, Tags, cut, invalid_action, observation, parse_action
from rc_lib.rewards import search_reward
from rc_lib.tasks.qa import QATask

REWARD_SCOPES = ("response", "prompt+response")


class ToolEnv:
    """One episode of a question: messages that call the tool, and one that answers.

    Source: ICRL (arXiv 2603.08068): at most six turns, then a last message whose call is not made;
    observations of at most 500 tokens.

    Deviation: an observation is a tool message of its own in the policy's chat format, not a piece
    of the assistant's message between blank lines.

    A tool is a subclass with `use_tool`; ``calls`` names its number of calls among the parts of
    the reward, ``aim`` and ``content`` stand in the message about an invalid action.

    Args:
        task: the question; never changed.
        count_tokens: number of tokens of a text, e.g. ``lambda t: len(policy.encode_text(t))``.
        tags: names of the tags.
        told: instructions, "" for none.
        observation_tokens: most tokens of an observation, its tags included.
        max_turns: messages after which a call is still made.
        form: how the prompt is written, see `rc_lib.demonstrations.prompt`.
        reward_scope: "response" scores the policy's own messages; "prompt+response" scores the
            prompt and the observations as well, as the official code does by mistake.

    Attributes:
        demonstrations: shown by `reset` before the question; none unless a curriculum sets them.

    Raises:
        ValueError: for an unknown reward scope, a limit below 1, or observation_tokens that do not
            hold the tags.
    """

    calls, aim, content = "calls", "use the tool", "call"

    def __init__(
        self,
        task: QATask,
        *,
        count_tokens: Callable[[str], int],
        tags: Tags,
        told: str,
        observation_tokens: int = 500,
        max_turns: int = 6,
        form: str = "message",
        reward_scope: str = "response",
    ) -> None:
        if reward_scope not in REWARD_SCOPES:
            raise ValueError(f"unknown reward_scope {reward_scope!r}; use one of {REWARD_SCOPES}")
        if max_turns < 1:
            raise ValueError(f"{max_turns=} must be at least 1")
        observation(CUT, tags, observation_tokens, count_tokens)
        self.task, self.tags, self.told, self.form = task, tags, told, form
        self.count_tokens, self.observation_tokens = count_tokens, observation_tokens
        self.max_turns, self.reward_scope = max_turns, reward_scope
        self.demonstrations: tuple[Demonstration, ...] = ()
        self._over = True
        self._opening: list[Message] | None = None

    def use_tool(self, content: str) -> tuple[str, dict[str, Any]]:
        """Return the tool's text for the content of a call, "" included, and what goes to info."""
        raise NotImplementedError

    def score(self, texts: Sequence[str]) -> dict[str, float]:
        """Return ``reward``, ``em``, ``exact`` and ``format`` of the messages."""
        return search_reward(texts, self.task.answers, self.tags)

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
        self._calls = self._invalid = 0
        self._over = self._answered = False
        return list(self._opening), {"turn": 0}

    def step(self, action: str) -> tuple[list[Message], float, bool, bool, dict[str, Any]]:
        """Take one assistant message: call the tool, or end with an answer.

        Returns:
            Messages to append (one tool message, none after the end), the reward (0.0 before the
            end), terminated (answered), truncated (no message is left), and info: turn, action
            ("tool", "answer" or None), content, and where the tool was used what it gives.

        Raises:
            RuntimeError: before `reset` or after the end.
        """
        if self._over:
            raise RuntimeError(f"the episode of task {self.task.id} is over; call reset()")
        kind, content = parse_action(action, self.tags)
        turn = len(self._texts())
        info: dict[str, Any] = {"turn": turn, "action": kind, "content": content}
        self._said.append(Message("assistant", cut(action, self.tags)))
        self._invalid += kind is None
        self._answered = kind == "answer"
        truncated = not self._answered and turn == self.max_turns
        self._over = self._answered or truncated
        if self._over:
            return [], self.reward()["reward"], self._answered, truncated, info
        if kind == "tool":
            self._calls += 1
            text, more = self.use_tool(content)
            info |= more
            text = observation(text, self.tags, self.observation_tokens, self.count_tokens)
        else:
            text = invalid_action(self.tags, self.aim, self.content)
        self._said.append(Message("tool", text))
        return [self._said[-1]], 0.0, False, False, info

    def _texts(self) -> list[str]:
        return [message.content for message in self._said if message.role == "assistant"]

    def reward(self) -> dict[str, float]:
        """The score of the episode so far.

        Returns:
            The parts of `score`; the number of calls that were made; ``invalid`` messages; and
            ``valid``: 1.0 where the episode ended with an answer that is not empty, after a call,
            without an invalid message.

        Raises:
            RuntimeError: before `reset`.
        """
        if self._opening is None:
            raise RuntimeError(f"task {self.task.id} has no episode yet; call reset()")
        texts = self._texts()
        given = self._answered and parse_action(texts[-1], self.tags)[1]
        if self.reward_scope == "prompt+response":
            texts = [message.content for message in self._opening + self._said]
        valid = bool(given) and self._calls > 0 and self._invalid == 0
        counts = {self.calls: float(self._calls), "invalid": float(self._invalid)}
        return self.score(texts) | counts | {"valid": float(valid)}
