"""Batched multi-turn sampling that keeps its key-value cache and never tokenises twice.

A turn that ends steps its environment at once, and the observation is all that is prefilled for the
next turn. What the prompts of a group share is prefilled once and copied to its members. Finished
rollouts leave and waiting groups take their place.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from rc_lib.policy import Policy
from rc_lib.rows import Request, Row, Rows, Sampling, Stats
from rc_lib.slots import check_model
from rc_lib.transcript import Transcript

IDLE_SHARE = 0.15  # of the rows; chosen by benchmarks/rollout.py, any value gives the same ids


@dataclass
class Rollout:
    """A finished rollout.

    Attributes:
        transcript: its ids, spans and log-probabilities.
        parts, reward: what the environment's `reward` returned, and its "reward".
        turns: assistant messages, each stepped once.
        ended: "terminated" or "truncated_steps" by the environment, or "truncated_tokens".
        texts: the assistant messages as the environment got them.
    """

    task_id: str
    category: str
    group_id: int
    member: int
    token: str | None
    transcript: Transcript
    reward: float
    parts: dict[str, float]
    turns: int
    ended: str
    texts: list[str]


def rollout(
    policy: Policy,
    requests: Sequence[Request],
    sampling: Sampling,
    *,
    seed: int,
    purpose: str = "train",
    step: int = 0,
    batch_size: int = 128,
    stats: Stats | None = None,
) -> list[Rollout]:
    """Play the requests to their ends, many side by side.

    Source: RC-GRPO (arXiv 2602.03025), a_t ~ pi(. | h_t, r_j): the reward goal stands at the end of
    the first user message, so a group shares its prompt up to it.

    The k-th id of a rollout is drawn by inverse CDF from the k-th uniform number of
    ``rng(seed, purpose, step, group_id, member)``: neither the batch nor the order of the requests
    changes a draw. Sums of floats do depend on the batch in their last digits, so a draw within
    about 1e-6 of a boundary may fall differently; the same call on the same machine repeats.

    The log-probability recorded with an id is that of the distribution it was drawn from, at the
    sampling temperature; for greedy decoding, at temperature 1.

    Args:
        policy: model and tokenizer; the model is put to eval mode for the call.
        requests: rollouts to make; members of a group may stand anywhere.
        sampling: temperature and limits.
        seed: run seed.
        purpose: what the rollouts are for; part of the address of the draws.
        step: training step; part of the address of the draws.
        batch_size: rollouts side by side. A group is admitted as a whole; one that is larger is
            split, and each piece computes the shared prompt anew.
        stats: adds up the work done.

    Returns:
        Rollouts in the order of the requests.

    Raises:
        ValueError: if a (group_id, member) comes twice, a prompt fills max_length, or the model or
            the chat format does not fit (see `check_model`). Errors of environments pass through.

    >>> from types import SimpleNamespace
    >>> from rc_lib.envs.base import Message
    >>> from rc_lib.policy import tiny_model, train_tokenizer
    >>> tokenizer = train_tokenizer(["add 1 and 2"], 280)
    >>> policy = Policy(tiny_model(280, hidden=16, layers=1, heads=2, seed=0), tokenizer)
    >>> env = SimpleNamespace(
    ...     task=SimpleNamespace(id="sum", category="base"),
    ...     reset=lambda: ([Message("user", "add 1 and 2")], {}),
    ...     step=lambda text: ([], 1.0, True, False, {}),
    ...     reward=lambda: {"reward": 1.0},
    ... )
    >>> (done,) = rollout(policy, [Request(env, 0, 0)], Sampling(1.0, 5, 64), seed=0)
    >>> done.ended, done.turns, [span.kind for span in done.transcript.spans]
    ('terminated', 1, ['prompt', 'model'])
    """
    began = time.perf_counter()
    stats = Stats() if stats is None else stats
    check_model(policy.model, sampling.max_length)
    _check_requests(requests, batch_size)
    queue = _groups(requests, batch_size)
    slots = min(batch_size, len(requests))
    rows = Rows(policy, sampling, slots, (seed, purpose, step), stats)
    with _inference(policy.model):
        while queue or rows.active:
            # Idle rows ride along while decoding; once they are many, they are looked after.
            if rows.idle() >= IDLE_SHARE * len(rows.active):
                rows.leave()
                rows.admit(queue)
                rows.prefill()
            rows.decode()
    finished = sorted(rows.finished, key=lambda row: row.index)
    rollouts = [_result(row) for row in finished]
    stats.wall_s += time.perf_counter() - began
    return rollouts


def _groups(requests: Sequence[Request], size: int) -> deque[list[tuple[int, Request]]]:
    """Return the requests with their places, by group, in pieces of at most `size`."""
    groups: dict[int, list[tuple[int, Request]]] = {}
    for index, request in enumerate(requests):
        groups.setdefault(request.group_id, []).append((index, request))
    return deque(
        group[start : start + size]
        for group in groups.values()
        for start in range(0, len(group), size)
    )


def _check_requests(requests: Sequence[Request], batch_size: int) -> None:
    if batch_size < 1:
        raise ValueError(f"batch_size {batch_size} must be at least 1")
    places = Counter((request.group_id, request.member) for request in requests)
    for place, count in places.items():
        if count > 1:
            raise ValueError(
                f"(group_id, member) {place} is asked for {count} times; these rollouts would "
                "draw the same numbers, give each a member of its own"
            )


def _result(row: Row) -> Rollout:
    request, parts = row.request, row.request.env.reward()
    return Rollout(
        task_id=request.env.task.id,
        category=request.env.task.category,
        group_id=request.group_id,
        member=request.member,
        token=request.token,
        transcript=row.transcript,
        reward=float(parts["reward"]),
        parts=parts,
        turns=len(row.texts),
        ended=row.ended,
        texts=row.texts,
    )


@contextmanager
def _inference(model: torch.nn.Module) -> Iterator[None]:
    """Without gradients or dropout; the model's mode is put back afterwards."""
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        model.train(training)
