"""The rollouts that run side by side, row i in slot i of the cache, and what is done to them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import torch

from rc_lib.conditioning import condition
from rc_lib.envs.base import Environment, Message
from rc_lib.policy import Policy
from rc_lib.seeding import rng
from rc_lib.slots import SlotCache, batches, compute
from rc_lib.transcript import Transcript


@dataclass(frozen=True)
class Sampling:
    """How to sample.

    Attributes:
        temperature: > 0, or 0 for greedy.
        max_new_tokens: most ids of a turn. A turn cut there goes to the environment as it is, and
            the id that closes a message is appended as observed, so that the format stays whole.
        max_length: most ids of a transcript. A rollout whose next observation does not fit ends.
    """

    temperature: float
    max_new_tokens: int
    max_length: int

    def __post_init__(self):
        if not 0.0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature {self.temperature} must be 0 (greedy) or positive")
        if self.max_new_tokens < 1 or self.max_length < 2:
            raise ValueError(f"{self}: max_new_tokens must be >= 1 and max_length >= 2")


@dataclass
class Request:
    """One rollout to make: its environment, its place (group_id, member), its reward goal.

    The environment also has the `task` it plays, with `id` and `category`.
    """

    env: Environment
    group_id: int
    member: int
    token: str | None = None


@dataclass
class Stats:
    """Work done, summed over the calls it is given to.

    Attributes:
        model_tokens: ids sampled.
        prefill_tokens: prompt and observation ids computed.
        forward_tokens: all ids computed, none twice.
        padded_tokens: the same with padding and idle rows.
        env_s, wall_s: seconds in `step` of environments, and in all.
    """

    model_tokens: int = 0
    prefill_tokens: int = 0
    forward_tokens: int = 0
    padded_tokens: int = 0
    env_s: float = 0.0
    wall_s: float = 0.0


@dataclass
class Row:
    """A running rollout. `feed` holds the ids to compute next: one while the row decodes, several
    while a prompt or an observation waits to be prefilled, none once the rollout has ended."""

    index: int
    request: Request
    draws: np.random.Generator
    feed: list[int]
    transcript: Transcript = field(default_factory=Transcript)
    cached: int = 0
    turn_ids: list[int] = field(default_factory=list)
    turn_logprobs: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    ended: str = ""


class Rows:
    """The running rows, row i in slot i of the cache, and what is done to them."""

    def __init__(self, policy, sampling, slots, address, stats):
        self.policy, self.sampling, self.stats = policy, sampling, stats
        self.slots, self.address = slots, address
        self.cache = SlotCache(slots, sampling.max_length)
        self.closing = _closing(policy)
        self.active: list[Row] = []
        self.finished: list[Row] = []

    def idle(self) -> int:
        """Return how many rows do not decode."""
        return sum(len(row.feed) != 1 for row in self.active)

    def decode(self) -> None:
        """Sample one id for every decoding row."""
        feeds = [row.feed if len(row.feed) == 1 else [] for row in self.active]
        if any(feeds):
            self._advance(range(len(self.active)), feeds)

    def prefill(self) -> None:
        """Compute every waiting prompt and observation, and sample the first id after each."""
        waiting = {slot: row.feed for slot, row in enumerate(self.active) if len(row.feed) > 1}
        for slots in batches(waiting):
            self._advance(slots, [waiting[slot] for slot in slots])

    def leave(self) -> None:
        """Let finished rows go; the last rows move into their slots."""
        self.finished += [row for row in self.active if row.ended]
        live = [slot for slot, row in enumerate(self.active) if not row.ended]
        holes = [slot for slot in range(len(live)) if self.active[slot].ended]
        movers = [slot for slot in live if slot >= len(live)]
        if holes:
            self.cache.copy(movers, holes, max(self.active[slot].cached for slot in movers))
        for mover, hole in zip(movers, holes, strict=True):
            self.active[hole] = self.active[mover]
        del self.active[len(live) :]

    def admit(self, queue: deque[list[tuple[int, Request]]]) -> None:
        """Give waiting groups the free slots; what a group's prompts share is computed once."""
        shared: dict[int, list[int]] = {}
        copies: dict[int, int] = {}
        while queue and len(queue[0]) <= self.slots - len(self.active):
            leader = len(self.active)
            group = [self._open(index, request) for index, request in queue.popleft()]
            self.active += group
            prefix = _common_prefix([row.feed for row in group])
            if len(group) > 1 and prefix:
                shared[leader] = group[0].feed[:prefix]
                copies |= {slot: leader for slot in range(leader + 1, len(self.active))}
                for row in group:
                    row.feed, row.cached = row.feed[prefix:], prefix
        for slots in batches(shared):
            self._compute(slots, [shared[slot] for slot in slots], [0] * len(slots))
        if copies:
            self.cache.copy(list(copies.values()), list(copies), max(map(len, shared.values())))
        self.stats.prefill_tokens += sum(map(len, shared.values()))

    def _open(self, index: int, request: Request) -> Row:
        messages, _ = request.env.reset()
        ids = self.policy.encode_messages(condition(messages, request.token))
        ids += self.policy.generation_prompt()
        if len(ids) >= self.sampling.max_length:
            raise ValueError(
                f"the prompt of task {request.env.task.id!r} has {len(ids)} ids and leaves no room "
                f"in max_length {self.sampling.max_length}; raise max_length or drop the task"
            )
        draws = rng(*self.address, request.group_id, request.member)
        row = Row(index, request, draws, feed=ids)
        row.transcript.append("prompt", ids)
        return row

    def _compute(self, slots, feeds, starts) -> torch.Tensor:
        self.stats.forward_tokens += sum(map(len, feeds))
        self.stats.padded_tokens += len(feeds) * max(map(len, feeds))
        return compute(self.policy.model, self.cache, slots, feeds, starts)

    def _advance(self, slots: Sequence[int], feeds: list[list[int]]) -> None:
        rows = [self.active[slot] for slot in slots]
        logits = self._compute(slots, feeds, [row.cached for row in rows])
        draws = [row.draws.random() if feed else 0.0 for row, feed in zip(rows, feeds, strict=True)]
        sampled = _sample(logits, self.sampling.temperature, draws)
        for row, feed, token, logprob in zip(rows, feeds, *sampled, strict=True):
            if feed:
                # All but the id sampled last, where there is one.
                self.stats.prefill_tokens += len(feed) - bool(row.texts or row.turn_ids)
                row.cached += len(feed)
                self._push(row, token, logprob)

    def _push(self, row: Row, token: int, logprob: float) -> None:
        row.turn_ids.append(token)
        row.turn_logprobs.append(logprob)
        row.feed = [token]
        cut = len(row.turn_ids) == self.sampling.max_new_tokens
        full = len(row.transcript) + len(row.turn_ids) == self.sampling.max_length
        if token in self.policy.eos_ids or cut or full:
            self._end_turn(row)

    def _end_turn(self, row: Row) -> None:
        row.transcript.append("model", row.turn_ids, row.turn_logprobs)
        row.texts.append(self.policy.decode(row.turn_ids))
        row.turn_ids, row.turn_logprobs = [], []
        self.stats.model_tokens += row.transcript.spans[-1].end - row.transcript.spans[-1].start
        began = time.perf_counter()
        observation, _, terminated, truncated, _ = row.request.env.step(row.texts[-1])
        self.stats.env_s += time.perf_counter() - began
        closed = row.feed[0] in self.policy.eos_ids
        ids = self.closing[closed:] + self.policy.encode_messages(observation)
        ids += self.policy.generation_prompt()
        if terminated or truncated:
            row.ended = "terminated" if terminated else "truncated_steps"
        elif len(row.transcript) + len(ids) >= self.sampling.max_length:
            row.ended = "truncated_tokens"
        else:
            row.transcript.append("tool", ids)
        row.feed = [] if row.ended else row.feed + ids


def _sample(
    logits: torch.Tensor, temperature: float, draws: list[float]
) -> tuple[list[int], list[float]]:
    """Return one id a row of logits [N, V], by inverse CDF of its draw, and its log-probability."""
    logprobs = (logits.float() / (temperature or 1.0)).log_softmax(-1)
    if temperature == 0.0:
        ids = logprobs.argmax(-1, keepdim=True)
    else:
        cdf = logprobs.exp().cumsum(-1, dtype=torch.float64)
        at = torch.tensor(draws, dtype=torch.float64, device=cdf.device)[:, None] * cdf[:, -1:]
        ids = torch.searchsorted(cdf, at, right=True).clamp_(max=cdf.shape[-1] - 1)
    return ids[:, 0].tolist(), logprobs.gather(-1, ids)[:, 0].tolist()


def _common_prefix(prompts: list[list[int]]) -> int:
    """Return how many ids all prompts share, leaving each at least one of its own to compute."""
    columns = islice(zip(*prompts, strict=False), min(map(len, prompts)) - 1)
    prefix = 0
    for column in columns:
        if len(set(column)) > 1:
            break
        prefix += 1
    return prefix


def _closing(policy: Policy) -> list[int]:
    """Return what the chat format writes behind an assistant's text: the end id and the rest."""
    block = policy.encode_messages([Message("assistant", "")])
    ends = [place for place, token in enumerate(block) if token in policy.eos_ids]
    if not ends:
        raise ValueError(
            "the chat format closes an assistant message with none of the end ids "
            f"{sorted(policy.eos_ids)}; add the id that closes it to eos_ids"
        )
    return block[ends[-1] :]
