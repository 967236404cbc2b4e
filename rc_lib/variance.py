"""Propositions 4.2 and 4.3 of RC-GRPO as exact formulas: collapse and variance of a group.

Two tokens, high and low; a rollout of a group carries the high one with probability p. Formulas
that need only the rewards of a group take ``mu_high`` and ``mu_low``, the mean reward under each
token. Where rewards are binary these two numbers say everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import comb
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from rc_lib.seeding import rng

KINDS = ("iid", "stratified")
# (G, p_high, mu_high, mu_low) at which the formulas are compared with simulated groups.
GRID = tuple(product((2, 3, 5, 8), (0.25, 0.5, 0.8), (0.2, 0.5, 0.8, 0.95, 1), (0, 0.05, 0.5, 0.8)))


class Bounds(NamedTuple):
    """Lower bounds of Prop. 4.2 on P(all rollouts of a group are the reference)."""

    exponential: float
    linear: float


def trajectory_probabilities(steps: Sequence[ArrayLike]) -> np.ndarray:
    """Return the probability of every trajectory of a policy given step by step.

    Args:
        steps: T arrays; array t is pi(a_t | a_1 .. a_t-1) with t axes (A_1, .., A_t), or only the
            last axis where the history does not matter. Sums to 1 over its last axis.

    Returns:
        float64 (A_1, .., A_T).

    Raises:
        ValueError: for no steps, or probabilities that are negative or do not sum to 1.

    >>> trajectory_probabilities([[0.5, 0.5], [[0.9, 0.1], [0.2, 0.8]]]).round(2).tolist()
    [[0.45, 0.05], [0.1, 0.4]]
    """
    if not len(steps):
        raise ValueError("no steps; a trajectory has at least one")
    joint = np.ones(())
    for place, step in enumerate(steps):
        step = np.asarray(step, dtype=np.float64)
        if (step < 0).any() or not np.allclose(step.sum(-1), 1.0):
            raise ValueError(f"step {place}: {step.tolist()} is no distribution over its last axis")
        joint = joint[..., None] * step
    return joint


def all_equal_probability(
    steps: Sequence[ArrayLike], group_size: int, trajectory: Sequence[int] | None = None
) -> float:
    """Return P(all G rollouts are one trajectory): a given one, or any.

    Source: RC-GRPO, Prop. 4.2, where it is bounded from below; here it is exact.

    Args:
        steps: as `trajectory_probabilities`.
        group_size: G, >= 1.
        trajectory: T actions; None sums over all trajectories.

    >>> round(all_equal_probability([[0.9, 0.1]], 2, [0]), 6)
    0.81
    >>> round(all_equal_probability([[0.9, 0.1]], 2), 6)
    0.82
    """
    joint = trajectory_probabilities(steps)
    chosen = joint if trajectory is None else joint[tuple(trajectory)]
    return float(np.sum(chosen**group_size))


def all_equal_bounds(group_size: int, steps: float, eps: float) -> Bounds:
    """Return exp(-G T eps) and 1 - G T eps; the linear one says nothing where it is not positive.

    Source: RC-GRPO, Prop. 4.2. With `eps` the mean KL of the T steps to the reference action
    instead of a bound on each, the exponential one is P(all equal the reference) itself, as
    KL(point mass || pi) = -log pi(a*).

    Args:
        group_size: G, >= 1.
        steps: T, steps of the reference trajectory.
        eps: KL of a step in nats, >= 0.

    Raises:
        ValueError: for a negative argument.

    >>> all_equal_bounds(5, 4, 0.01)
    Bounds(exponential=0.8187307530779818, linear=0.8)
    """
    if min(group_size, steps, eps) < 0:
        raise ValueError(f"G {group_size}, T {steps} and eps {eps} must not be negative")
    exponent = group_size * steps * eps
    return Bounds(float(np.exp(-exponent)), 1.0 - exponent)


def token_count_pmf(group_size: int, p_high: float, kind: str = "iid") -> np.ndarray:
    """Return the distribution of the number of high tokens in a group.

    Stratified tokens have ``floor(p G)`` of them, and one more with the probability of the rest.
    Of all laws on whole numbers with mean p G it is the smallest in convex order, so no other
    exchangeable scheme has a larger E[sigma_g^2] or fewer degenerate groups.

    Args:
        group_size: G, >= 1.
        p_high: P(high) in [0, 1].
        kind: ``"iid"`` or ``"stratified"``.

    Returns:
        float64 [G + 1].

    Raises:
        ValueError: for an unknown kind, or a number out of range.

    >>> token_count_pmf(5, 0.5, "stratified").tolist()
    [0.0, 0.0, 0.5, 0.5, 0.0, 0.0]
    """
    _check_range(p_high=p_high)
    if kind not in KINDS or group_size < 1:
        raise ValueError(f"kind {kind!r}, group_size {group_size}; use one of {KINDS} and G >= 1")
    if kind == "iid":
        return binomial(group_size, p_high)
    expected = round(p_high * group_size, 9)
    pmf = np.zeros(group_size + 2)
    pmf[int(expected) : int(expected) + 2] = 1 - expected % 1, expected % 1
    return pmf[:-1]


def kappa(group_size: int, p_high: float, kind: str = "iid") -> float:
    """Return the factor of (mu_high - mu_low)^2 in E[sigma_g^2]: E[w (1 - w)], w the high share.

    Source: RC-GRPO, Prop. 4.3, kappa = (G - 1) / G p (1 - p) for i.i.d. tokens.

    >>> round(kappa(5, 0.5), 6), round(kappa(5, 0.5, "stratified"), 6)
    (0.2, 0.24)
    """
    pmf = token_count_pmf(group_size, p_high, kind)
    share = np.arange(group_size + 1) / group_size
    return float(pmf @ (share * (1 - share)))


def variance_parts(
    group_size: int,
    p_high: float,
    mu_high: float,
    mu_low: float,
    *,
    kind: str = "iid",
    var_high: float | None = None,
    var_low: float | None = None,
) -> tuple[float, float]:
    """Return the between-token and the within-token part of E[sigma_g^2]; their sum is exact.

    Source: RC-GRPO, Lemmas A.3 and A.4 (total variance; (G - 1) / G). Between tokens
    kappa (mu_high - mu_low)^2, the bound of Prop. 4.3 with eps the gap itself; within tokens
    (G - 1) / G (p var_high + (1 - p) var_low), whatever the kind.

    Args:
        group_size, p_high, kind: as `token_count_pmf`.
        mu_high, mu_low: mean reward under each token, in [0, 1].
        var_high, var_low: variance of the reward under each token; None: binary, mu (1 - mu).

    >>> parts = variance_parts(5, 0.5, 0.95, 0.95)
    >>> parts[0], round(parts[1], 6)
    (0.0, 0.038)
    """
    _check_range(mu_high=mu_high, mu_low=mu_low)
    high = mu_high * (1 - mu_high) if var_high is None else var_high
    low = mu_low * (1 - mu_low) if var_low is None else var_low
    within = (group_size - 1) / group_size * (p_high * high + (1 - p_high) * low)
    return kappa(group_size, p_high, kind) * (mu_high - mu_low) ** 2, within


def degenerate_probability(
    group_size: int, p_high: float, mu_high: float, mu_low: float, kind: str = "iid"
) -> float:
    """Return P(all G binary rewards are equal).

    For i.i.d. tokens this is q^G + (1 - q)^G, q = p mu_high + (1 - p) mu_low, as without tokens.

    Source: RC-GRPO, Prop. 4.2, extended from equal trajectories to equal rewards.

    >>> degenerate_probability(5, 0.5, 1, 0), degenerate_probability(5, 0.5, 1, 0, "stratified")
    (0.0625, 0.0)
    """
    _check_range(mu_high=mu_high, mu_low=mu_low)
    high = np.arange(group_size + 1)
    low = group_size - high
    equal = mu_high**high * mu_low**low + (1 - mu_high) ** high * (1 - mu_low) ** low
    return float(token_count_pmf(group_size, p_high, kind) @ equal)


def mixed_degenerate_probability(group_size: int, q: float, sigma2: float) -> float:
    """Return P(degenerate) where q differs from task to task, with its mean and E[sigma_g^2] given.

    q is taken to be beta-distributed over tasks, with the spread that makes the expected variance
    ``sigma2``: (G - 1) / G q (1 - q) (1 - rho). An assumption about the shape, not an identity.

    Args:
        group_size: G, >= 2.
        q: mean reward in [0, 1].
        sigma2: E[sigma_g^2].

    >>> round(mixed_degenerate_probability(5, 0.5, 0.2), 6)  # no spread: q^G + (1 - q)^G
    0.0625
    >>> mixed_degenerate_probability(5, 0.5, 0.0)  # every q is 0 or 1
    1.0
    """
    ceiling = (group_size - 1) / group_size * q * (1 - q)
    if sigma2 >= ceiling:
        return q**group_size + (1 - q) ** group_size
    if sigma2 <= 0.0:
        return 1.0
    total = sigma2 / (ceiling - sigma2)  # alpha + beta = (1 - rho) / rho
    i = np.arange(group_size)
    return float(sum(np.prod((m * total + i) / (total + i)) for m in (q, 1 - q)))


def simulate_groups(
    group_size: int,
    p_high: float,
    mu_high: float,
    mu_low: float,
    groups: int,
    draws: np.random.Generator,
    kind: str = "iid",
) -> tuple[np.ndarray, np.ndarray]:
    """Draw groups of binary rewards; return rewards (float64) and is_high (bool), [groups, G].

    >>> simulate_groups(3, 0.5, 1.0, 0.0, 1, np.random.default_rng(0))[0].shape
    (1, 3)
    """
    counts = draws.choice(group_size + 1, groups, p=token_count_pmf(group_size, p_high, kind))
    is_high = np.arange(group_size) < counts[:, None]
    rewards = draws.random(is_high.shape) < np.where(is_high, mu_high, mu_low)
    return rewards.astype(np.float64), is_high


def monte_carlo(
    settings: Sequence[tuple[int, float, float, float]], kind: str, groups: int, seed: int
) -> dict[str, np.ndarray]:
    """Set the exact E[sigma_g^2] and P(degenerate) of binary rewards beside simulated groups.

    Args:
        settings: N tuples (G, p_high, mu_high, mu_low).
        kind: as `token_count_pmf`.
        groups: groups to draw for each setting.
        seed: run seed of the draws.

    Returns:
        float64 [N] each: ``sigma2`` and ``degenerate``, and with ``_mean``, ``_se`` and ``_z`` the
        simulated mean, its standard error, and (mean - exact) / standard error, 0 for 0 / 0.

    >>> monte_carlo([(5, 0.5, 1.0, 1.0)], "iid", 10, seed=0)["degenerate_z"].tolist()
    [0.0]
    """
    rows = []
    for place, (size, p_high, mu_high, mu_low) in enumerate(settings):
        draws = rng(seed, f"monte-carlo-{kind}", place)
        rewards, _ = simulate_groups(size, p_high, mu_high, mu_low, groups, draws, kind)
        sigma2 = rewards.var(1)
        exact = sum(variance_parts(size, p_high, mu_high, mu_low, kind=kind))
        equal = degenerate_probability(size, p_high, mu_high, mu_low, kind)
        compared = {
            "sigma2": (exact, sigma2.mean(), sigma2.std()),
            "degenerate": (equal, (sigma2 == 0).mean(), np.sqrt(equal * (1 - equal))),
        }
        row = {}
        for name, (truth, mean, deviation) in compared.items():
            se, off = deviation / np.sqrt(groups), mean - truth
            z = off / max(se, 1e-12) if abs(off) > 1e-12 else 0.0
            row |= {name: truth, f"{name}_mean": mean, f"{name}_se": se, f"{name}_z": z}
        rows.append(row)
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def binomial(n: int, p: float) -> np.ndarray:
    """Return the binomial distribution, float64 [n + 1].

    Exact where the powers of p are, which scipy's is not: it gives 0.031249999999999976 for 1/32.

    >>> binomial(2, 0.5).tolist()
    [0.25, 0.5, 0.25]
    """
    return np.array([comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)])


def _check_range(**values: float) -> None:
    for name, value in values.items():
        if not 0.0 <= value <= 1.0:
            raise ValueError(f"{name} is {value}; use a number in [0, 1]")
