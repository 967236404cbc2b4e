"""What the policy and an environment say to each other, in gymnasium's words."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable


class Message(NamedTuple):
    """One chat message; `role` is "system", "user", "assistant" or "tool".

    Example:
        >>> Message("user", "Which files are here?").role
        'user'
    """

    role: str
    content: str


@runtime_checkable
class Environment(Protocol):
    """One episode: `reset`, then `step` until terminated or truncated, then `reward`."""

    def reset(self) -> tuple[list[Message], dict[str, Any]]:
        """Start afresh; returns the messages to show the policy, and info."""
        ...

    def step(self, action: str) -> tuple[list[Message], float, bool, bool, dict[str, Any]]:
        """Take one assistant message; returns (messages to append, reward, terminated, truncated,
        info). The reward is 0.0 until the episode ends."""
        ...

    def reward(self) -> dict[str, float]:
        """The parts of the score so far; the part named "reward" is what training maximises."""
        ...
