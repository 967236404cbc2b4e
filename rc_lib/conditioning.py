"""Reward-goal tokens: which member of a group is told to aim high, and how it is told.

Source: RC-GRPO (arXiv 2602.03025): every rollout of a group carries its own token
r_j ~ P_sample(r), and a_t ~ pi(. | h_t, r_j).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rc_lib.envs.base import Message
from rc_lib.policy import REWARD_TOKENS
from rc_lib.seeding import rng

HIGH, LOW = "high", "low"
KINDS = ("none", "constant", "iid", "stratified")


def condition(messages: Sequence[Message], token: str | None) -> list[Message]:
    r"""Append the reward goal to the first user message.

    Source: RC-GRPO, reward-goal string ``\n\n[Reward Goal: <|high_reward|>]``.

    Args:
        messages: conversation so far; not changed.
        token: ``"high"``, ``"low"``, or None, which leaves the messages as they are.

    Returns:
        A new list of messages.

    Raises:
        ValueError: for an unknown token, or if there is no user message to carry it.

    >>> condition([Message("user", "Step 1: ...")], "low")[0].content
    'Step 1: ...\n\n[Reward Goal: <|low_reward|>]'
    """
    conditioned = list(messages)
    if token is None:
        return conditioned
    if token not in REWARD_TOKENS:
        raise ValueError(f"unknown reward token {token!r}; use {HIGH!r}, {LOW!r} or None")
    for index, message in enumerate(conditioned):
        if message.role == "user":
            content = f"{message.content}\n\n[Reward Goal: {REWARD_TOKENS[token]}]"
            conditioned[index] = Message("user", content)
            return conditioned
    roles = [message.role for message in messages]
    raise ValueError(f"no user message to carry the reward goal among the roles {roles}")


@dataclass(frozen=True)
class Conditioning:
    """How the members of a group get their reward tokens.

    Source: RC-GRPO, Tables 10-12: i.i.d. tokens with P_sample(high) = 0.5.

    Attributes:
        kind: ``"none"`` (plain GRPO), ``"constant"`` (all members `token`), ``"iid"`` (each member
            high with probability `p_high`), or ``"stratified"`` (``p_high * group_size`` members
            high, which ones is random).
        p_high: P_sample(high), in [0, 1]; read by ``"iid"`` and ``"stratified"``.
        token: ``"high"`` or ``"low"`` with ``"constant"``, otherwise None.

    Deviation: stratified tokens are not in the paper. Where ``p_high * group_size`` is not whole,
    its fraction is the probability of one more high member, so P(high) stays `p_high`.

    Raises:
        ValueError: for an unknown kind, a `p_high` outside [0, 1], or a token that does not fit.

    >>> Conditioning("stratified", p_high=0.5).tokens(0, 0, 0, 4).count("high")
    2
    >>> Conditioning("none").tokens(seed=0, step=0, group_id=0, group_size=2)
    [None, None]
    """

    kind: str
    p_high: float = 0.5
    token: str | None = None

    def __post_init__(self):
        if self.kind not in KINDS:
            raise ValueError(f"unknown conditioning {self.kind!r}; use one of {KINDS}")
        if not 0.0 <= self.p_high <= 1.0:
            raise ValueError(f"p_high is {self.p_high}; it is a probability, use one in [0, 1]")
        if self.kind == "constant" and self.token not in REWARD_TOKENS:
            raise ValueError(f"constant conditioning has token {self.token!r}; use 'high' or 'low'")
        if self.kind != "constant" and self.token is not None:
            raise ValueError(f"{self.kind!r} conditioning takes no token, got {self.token!r}")

    def tokens(self, seed: int, step: int, group_id: int, group_size: int) -> list[str | None]:
        """Return the token of every member of one group; depends on nothing but the arguments.

        Args:
            seed: run seed.
            step: training step, >= 0.
            group_id: group within the step, >= 0.
            group_size: G, >= 1.

        >>> Conditioning("constant", token="high").tokens(0, 0, 0, 2)
        ['high', 'high']
        """
        if self.kind in ("none", "constant"):
            return [self.token] * group_size
        draws = rng(seed, "reward-tokens", step, group_id)
        if self.kind == "iid":
            is_high = draws.random(group_size) < self.p_high
        else:
            expected = round(self.p_high * group_size, 9)
            count = int(expected) + (draws.random() < expected - int(expected))
            is_high = draws.permutation(np.arange(group_size) < count)
        return [HIGH if high else LOW for high in is_high]
