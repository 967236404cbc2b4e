"""Group-relative advantages and the statistics of a step's groups; no model, no torch.

A group is the set of rollouts with one group id. Order and group size do not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

SCALES = ("group", "none")


class _Groups(NamedTuple):
    index: np.ndarray  # [N] which group a rollout belongs to, 0 .. groups - 1
    mean: np.ndarray  # [groups] mu_g
    variance: np.ndarray  # [groups] sigma_g^2, population; exactly 0 without spread
    low: np.ndarray  # [groups] smallest reward
    high: np.ndarray  # [groups] largest reward


def _groups(rewards: ArrayLike, group_ids: ArrayLike) -> tuple[np.ndarray, _Groups]:
    rewards = np.asarray(rewards, dtype=np.float64)
    group_ids = np.asarray(group_ids)
    if rewards.ndim != 1 or rewards.shape != group_ids.shape or not len(rewards):
        raise ValueError(
            f"rewards have shape {rewards.shape} and group_ids {group_ids.shape}; "
            "give one group id for each of N >= 1 rewards"
        )
    for position in np.flatnonzero(~np.isfinite(rewards))[:1]:
        raise ValueError(
            f"reward {position} (group {group_ids[position]}) is {rewards[position]}; "
            "a reward must be finite, check the environment's reward()"
        )
    _, index = np.unique(group_ids, return_inverse=True)
    size = np.bincount(index)
    low, high = np.full(len(size), np.inf), np.full(len(size), -np.inf)
    np.minimum.at(low, index, rewards)
    np.maximum.at(high, index, rewards)
    mean = np.bincount(index, rewards) / size
    variance = np.bincount(index, (rewards - mean[index]) ** 2) / size
    # Rounding in the mean leaves a constant group a tiny variance (NVIDIA-NeMo/RL#4161), so
    # whether there is spread is decided on max - min.
    variance[high == low] = 0.0
    return rewards, _Groups(index, mean, variance, low, high)


def group_advantages(
    rewards: ArrayLike, group_ids: ArrayLike, *, eps: float = 1e-6, scale: str = "group"
) -> np.ndarray:
    """Return A_j = (R_j - mu_g) / (sigma_g + eps) with the population standard deviation.

    Source: RC-GRPO (arXiv 2602.03025), group advantage; exactly 0 where sigma_g = 0 (Prop. 4.2).

    Args:
        rewards: [N] finite floats.
        group_ids: [N] ids; rows with the same id form a group, in any order and of any size.
        eps: eps_stab, >= 0; the paper does not give it.
        scale: ``"group"`` divides by sigma_g + eps, ``"none"`` does not divide.

    Returns:
        float64 [N].

    Raises:
        ValueError: for lengths that differ, no rewards, a reward that is not finite, eps < 0 or an
            unknown scale.

    >>> group_advantages([1, 0, 0, 0], [7, 7, 7, 7], eps=0.0).round(3).tolist()
    [1.732, -0.577, -0.577, -0.577]
    >>> group_advantages([0.7, 0.0, 0.7, 1.0], [0, 1, 0, 1], scale="none").tolist()
    [0.0, -0.5, 0.0, 0.5]
    """
    if scale not in SCALES:
        raise ValueError(f"unknown scale {scale!r}; use one of {SCALES}")
    if not eps >= 0.0:
        raise ValueError(f"eps is {eps}; use a number >= 0")
    rewards, groups = _groups(rewards, group_ids)
    spread = (groups.high > groups.low)[groups.index]
    advantages = np.where(spread, rewards - groups.mean[groups.index], 0.0)
    if scale == "group":
        sigma = np.sqrt(groups.variance[groups.index])
        advantages[spread] /= sigma[spread] + eps
    return advantages


def group_statistics(
    rewards: ArrayLike,
    group_ids: ArrayLike,
    tokens: Sequence[str | None],
    *,
    eps: float = 1e-6,
) -> dict[str, float]:
    """Return what a step's groups look like, in the terms of Prop. 4.2 and 4.3.

    Source: RC-GRPO, Prop. 4.3 (mu_high, mu_low, E[sigma_g^2]), Prop. 4.2 (groups without spread)
    and Table 5 (advantage spread).

    Args:
        rewards: [N] finite floats.
        group_ids: [N] ids.
        tokens: [N] ``"high"``, ``"low"`` or None.
        eps: eps_stab of the advantages whose spread is taken.

    Returns:
        ``reward``: mean; ``mu_high``, ``mu_low``: mean by token (nan without such rollouts);
        ``sigma2``: E[sigma_g^2], the mean over groups of the population variance; ``degenerate``:
        share of groups without spread, and of it apart ``all_fail`` (every reward 0) and
        ``all_success`` (every reward 1); ``advantage_spread``: max - min over the step;
        ``advantage_spread_group``: the mean over groups of max - min inside the group.

    Raises:
        ValueError: as `group_advantages`, or if there is not one token for each reward.

    >>> stats = group_statistics([1, 0, 1, 1], [0, 0, 1, 1], ["high", "low", "high", "low"])
    >>> stats["mu_high"], stats["mu_low"], stats["sigma2"], stats["all_success"]
    (1.0, 0.5, 0.125, 0.5)
    """
    advantages = group_advantages(rewards, group_ids, eps=eps)
    rewards, groups = _groups(rewards, group_ids)
    if len(tokens) != len(rewards):
        raise ValueError(f"{len(tokens)} tokens for {len(rewards)} rewards; give one for each")
    degenerate = groups.high == groups.low
    inside = np.full((2, len(groups.mean)), -np.inf)
    np.maximum.at(inside[0], groups.index, advantages)
    np.maximum.at(inside[1], groups.index, -advantages)

    def mean_of(token: str) -> float:
        chosen = rewards[[t == token for t in tokens]]
        return float(chosen.mean()) if len(chosen) else float("nan")

    return {
        "reward": float(rewards.mean()),
        "mu_high": mean_of("high"),
        "mu_low": mean_of("low"),
        "sigma2": float(groups.variance.mean()),
        "degenerate": float(degenerate.mean()),
        "all_fail": float((degenerate & (groups.high == 0.0)).mean()),
        "all_success": float((degenerate & (groups.low == 1.0)).mean()),
        "advantage_spread": float(advantages.max() - advantages.min()),
        "advantage_spread_group": float(inside.sum(axis=0).mean()),
    }
