"""Evaluation of a policy on test tasks, item by item, and what its rollouts show in groups."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product

import pandas as pd
from tqdm.auto import tqdm

from rc_lib.advantage import group_statistics
from rc_lib.conditioning import Conditioning
from rc_lib.envs.base import Environment
from rc_lib.policy import Policy
from rc_lib.records import (
    COLUMNS,
    DECODINGS,
    PARTS,
    TOKENS,
    check_choice,
    check_per_item,
    read_per_item,
    seed_item_matrix,
    write_per_item,
)
from rc_lib.rollout import Request, Rollout, Sampling, rollout
from rc_lib.seeding import stable_id
from rc_lib.stats import cluster_of, crossed_bootstrap
from rc_lib.tasks.base import Task

__all__ = ["conditioning_gap", "evaluate", "group_share", "read_per_item", "write_per_item"]


def evaluate(
    policy: Policy,
    tasks: Sequence[Task],
    make_env: Callable[[Task], Environment],
    *,
    profile: str,
    model: str,
    arm: str,
    seed: int,
    test_set: str,
    sampling: Sampling,
    tokens: Sequence[str] = TOKENS,
    decodings: Sequence[str] = DECODINGS,
    batch_size: int = 128,
    progress: bool = False,
) -> pd.DataFrame:
    """Evaluate a policy on tasks under each reward token and decoding.

    Deviation: RC-GRPO (arXiv 2602.03025) states neither the token nor the decoding of its
    evaluation, so the high, the low and no token are recorded, greedy and sampled.

    Every arm meets the same tasks in the same order, and draws for one task and token are the same
    whichever arm, tokens or tasks stand beside it. The environment's "reward" becomes ``correct``.

    Args:
        policy: evaluated as it is.
        tasks: N tasks with different ids.
        make_env: makes a fresh environment of a task; its `reward()` has the values of `PARTS`.
        profile, model, arm, test_set: labels of the record.
        seed: run seed, recorded, and of the draws when sampling.
        sampling: of the "sampled" decoding; "greedy" is the same at temperature 0.
        tokens: of `TOKENS`.
        decodings: of `DECODINGS`.
        batch_size: rollouts side by side; keep it fixed, as sums in other orders round otherwise.
        progress: show a progress bar.

    Returns:
        One row for each decoding, token and task, in that order, with the columns `COLUMNS`.

    Raises:
        ValueError: for an unknown token or decoding, a task that comes twice, or a part of the
            reward that is missing or neither 0 nor 1.
    """
    check_choice("token", tokens, TOKENS)
    check_choice("decoding", decodings, DECODINGS)
    labels = {"profile": profile, "model": model, "arm": arm, "seed": seed}
    rows = []
    bar = tqdm(decodings, desc=f"evaluate {arm} on {test_set}", disable=not progress)
    for decoding in bar:
        requests = [
            Request(make_env(task), stable_id(task.id), TOKENS.index(token), _goal(token))
            for token, task in product(tokens, tasks)
        ]
        settings = replace(sampling, temperature=0.0) if decoding == "greedy" else sampling
        rollouts = rollout(
            policy, requests, settings, seed=seed, purpose="evaluate", batch_size=batch_size
        )
        for (token, _), done in zip(product(tokens, tasks), rollouts, strict=True):
            place = {"token": token, "decoding": decoding, "test_set": test_set}
            item = {"item_id": done.task_id, "category": done.category}
            rows.append(labels | place | item | _parts(done))
    return check_per_item(pd.DataFrame(rows, columns=COLUMNS), f"evaluation of {arm}")


def conditioning_gap(
    per_item: pd.DataFrame, *, test_set: str = "test", decoding: str = "sampled"
) -> dict[str, float]:
    """Return mu_high - mu_low of one arm, item by item and seed by seed, with its interval.

    Source: RC-GRPO, Prop. 4.3, whose epsilon bounds this gap from below.

    Args:
        per_item: rows of one arm, of one or more seeds.
        test_set, decoding: which rows to compare.

    Returns:
        ``mu_high``, ``mu_low``, ``gap``, ``gap_low``, ``gap_high`` (95 %, `crossed_bootstrap`),
        ``items`` and ``seeds``.

    Raises:
        ValueError: for more than one arm, or without rows for both tokens.
    """
    if per_item["arm"].nunique() != 1:
        raise ValueError(f"arms {sorted(per_item['arm'].unique())}; give the rows of one arm")
    chosen = per_item[(per_item["test_set"] == test_set) & (per_item["decoding"] == decoding)]
    by_token = {token: chosen[chosen["token"] == token] for token in ("high", "low")}
    for token, rows in by_token.items():
        if rows.empty:
            raise ValueError(
                f"no {decoding} rows under the {token} token on {test_set}; evaluate it"
            )
    high, low = map(seed_item_matrix, by_token.values())
    if high.shape != low.shape or not (high.index.equals(low.index)):
        raise ValueError("the high and the low token were tested on different seeds or items")
    difference = high - low[high.columns]
    gap = crossed_bootstrap(difference, [cluster_of(item) for item in difference.columns])
    return {
        "mu_high": float(high.to_numpy().mean()), "mu_low": float(low.to_numpy().mean()),
        "gap": gap.mean, "gap_low": gap.low, "gap_high": gap.high,
        "items": high.shape[1], "seeds": high.shape[0],
    }  # fmt: skip


def group_share(
    policy: Policy,
    tasks: Sequence[Task],
    make_env: Callable[[Task], Environment],
    *,
    group_size: int,
    conditioning: Conditioning,
    sampling: Sampling,
    seed: int,
    batch_size: int = 128,
) -> dict[str, float]:
    """Return the share of groups without spread, which give GRPO no gradient.

    Source: RC-GRPO, Prop. 4.2: a peaked start makes all G rollouts of a group alike.

    Args:
        policy: for instance the SFT start.
        tasks: N tasks, a group each.
        make_env: makes a fresh environment of a task.
        group_size: G, >= 1.
        conditioning: which member gets which token.
        sampling: as in training.
        seed: run seed of tokens and draws.
        batch_size: rollouts side by side.

    Returns:
        ``degenerate``, and of it ``all_fail`` and ``all_success`` apart; ``reward`` and ``sigma2``
        = E[sigma_g^2]; ``mu_high`` and ``mu_low`` where such tokens were drawn; ``groups`` and
        ``group_size``.
    """
    requests = []
    for task in tasks:
        group = stable_id(task.id)
        members = conditioning.tokens(seed, 0, group, group_size)
        requests += [Request(make_env(task), group, i, token) for i, token in enumerate(members)]
    rollouts = rollout(
        policy, requests, sampling, seed=seed, purpose="group-share", batch_size=batch_size
    )
    statistics = group_statistics(
        [r.reward for r in rollouts], [r.group_id for r in rollouts], [r.token for r in rollouts]
    )
    names = ("degenerate", "all_fail", "all_success", "reward", "sigma2", "mu_high", "mu_low")
    shares = {name: statistics[name] for name in names if not math.isnan(statistics[name])}
    return shares | {"groups": len(tasks), "group_size": group_size}


def _goal(token: str) -> str | None:
    return None if token == "none" else token


def _parts(done: Rollout) -> dict[str, int]:
    for name in PARTS.values():
        if done.parts.get(name) not in (0, 1):
            raise ValueError(
                f"task {done.task_id}: reward part {name!r} is {done.parts.get(name)!r}; "
                f"the environment's reward() must give 0 or 1 for {', '.join(PARTS.values())}"
            )
    return {column: int(done.parts[name]) for column, name in PARTS.items()}
