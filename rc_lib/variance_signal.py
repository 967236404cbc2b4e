"""Which part of a group's advantages moves the policy: the contrast between tokens, or within them.

Write S_j for the score, the gradient of log pi(rollout j | token j), and g_r = E[R S | r] for the
gradient of the mean reward under token r. Given its token E[S_j] = 0, so an advantage that does not
depend on rollout j adds noise and no signal. Every part of an advantage thus has an expected
gradient of the form ``weight_high * g_high + weight_low * g_low``; the weights are exact here.
"""

from __future__ import annotations

from itertools import product

import numpy as np
from numpy.typing import ArrayLike

from rc_lib.variance import binomial, token_count_pmf

SCALES = ("group", "none")
PARTS = ("full", "between", "within")


def advantage_parts(
    rewards: ArrayLike,
    is_high: ArrayLike,
    *,
    scale: str = "none",
    eps: float = 0.0,
    means: str | tuple[float, float] = "group",
) -> dict[str, np.ndarray]:
    """Split the advantages of groups into what lies between tokens and what lies within them.

    ``full`` = A_j = R_j - mu_g, ``within`` = (G - 1) / G (R_j - m) and ``between`` the rest, which
    does not depend on rollout j. Here m, the mean reward under rollout j's token, is by `means`:

    - (mu_high, mu_low): given numbers, best the true ones;
    - ``"others"``: the mean of the group's other rollouts of that token; where there are none, all
      of the advantage is ``within``;
    - ``"group"``: the same with rollout j and without the factor; ``between`` depends on j then.

    Args:
        rewards: [N, G] floats.
        is_high: bool [N, G].
        scale: ``"group"`` divides all parts by sigma_g + eps, ``"none"`` does not.
        eps: eps_stab.
        means: see above.

    Returns:
        ``full``, ``between`` and ``within``, float64 [N, G]; the last two add up to the first.

    Raises:
        ValueError: for an unknown scale or `means`, or shapes that differ.

    >>> {k: v.round(2).tolist() for k, v in advantage_parts([[1, 0, 0]], [[1, 1, 0]]).items()}
    {'full': [[0.67, -0.33, -0.33]], 'between': [[0.17, 0.17, -0.33]], 'within': [[0.5, -0.5, 0.0]]}
    """
    rewards, is_high = np.asarray(rewards, dtype=np.float64), np.asarray(is_high, dtype=bool)
    if scale not in SCALES or rewards.shape != is_high.shape or rewards.ndim != 2:
        raise ValueError(
            f"scale {scale!r}, rewards {rewards.shape}, is_high {is_high.shape}; use one of "
            f"{SCALES} and two arrays [N, G]"
        )
    size = rewards.shape[1]
    full = rewards - rewards.mean(1, keepdims=True)
    token_means, known = _token_means(rewards, is_high, means)
    shrink = 1.0 if means == "group" else (size - 1) / size
    within = np.where(known, shrink * (rewards - token_means), full)
    parts = {"full": full, "between": full - within, "within": within}
    if scale == "group":
        sigma = rewards.std(1, keepdims=True) + eps
        spread = np.ptp(rewards, axis=1, keepdims=True) > 0
        parts = {k: np.where(spread, v / np.where(spread, sigma, 1), 0) for k, v in parts.items()}
    return parts


def _token_means(rewards, is_high, means) -> tuple[np.ndarray, np.ndarray]:
    """Return for every rollout the mean reward of its token, and whether there is one."""
    if not isinstance(means, str):
        return np.where(is_high, *means), np.ones_like(is_high)
    if means not in ("group", "others"):
        raise ValueError(f"means {means!r}; use 'group', 'others' or (mu_high, mu_low)")
    same = is_high[:, :, None] == is_high[:, None, :]
    if means == "others":
        same = same & ~np.eye(rewards.shape[1], dtype=bool)
    peers = same.sum(2)
    return (same @ rewards[:, :, None])[:, :, 0] / np.maximum(peers, 1), peers > 0


def gradient_weights(
    group_size: int,
    p_high: float,
    mu_high: float,
    mu_low: float,
    *,
    kind: str = "iid",
    scale: str = "none",
    means: str | tuple[float, float] = "group",
) -> dict[str, tuple[float, float]]:
    """Return the weights of g_high and g_low in E[1/G sum_j part_j S_j], for binary rewards.

    E[S_j R_j] = g and E[S_j (1 - R_j)] = -g, so the weight is the expected difference of part_j
    between a success and a failure of rollout j, the others given. Unscaled, the whole has
    (G - 1) / G P(r). Scaled by sigma_g with i.i.d. tokens, the whole has P(r) times one function of
    q for both tokens: the gap between them does not appear.

    Args:
        group_size, p_high, kind: as `rc_lib.variance.token_count_pmf`.
        mu_high, mu_low: P(reward 1) under each token.
        scale, means: as `advantage_parts`.

    Returns:
        (weight_high, weight_low) for each of `PARTS`.

    >>> weights = gradient_weights(5, 0.5, 1.0, 0.0)
    >>> [round(weights[part][0], 5) for part in PARTS]
    [0.4, 0.09375, 0.30625]
    >>> round(gradient_weights(5, 0.5, 1.0, 0.0, means="others")["within"][0], 5)
    0.4
    """
    pmf = token_count_pmf(group_size, p_high, kind)
    weights = {part: [] for part in PARTS}
    for own_high in (True, False):
        mu_own, mu_other = (mu_high, mu_low) if own_high else (mu_low, mu_high)
        chances, rewards, is_high = [], [], []
        for count in np.flatnonzero(pmf):
            own = count if own_high else group_size - count
            if not own:
                continue
            tokens = np.repeat([own_high, not own_high], [own, group_size - own])
            ahead, others = binomial(own - 1, mu_own), binomial(group_size - own, mu_other)
            for a, b in product(range(own), range(len(others))):  # successes among the others
                chances.append(pmf[count] * own / group_size * ahead[a] * others[b])
                rest = np.repeat([1, 0, 1, 0], [a, own - 1 - a, b, len(others) - 1 - b])
                rewards += [[1, *rest], [0, *rest]]
                is_high += [tokens, tokens]
        shape = (-1, group_size)  # also of no rows, for a token that never occurs
        rewards, is_high = np.reshape(rewards, shape), np.reshape(is_high, shape)
        parts = advantage_parts(rewards, is_high, scale=scale, means=means)
        for part in PARTS:
            difference = parts[part][0::2, 0] - parts[part][1::2, 0]
            weights[part].append(float(np.dot(chances, difference)))
    return {part: tuple(pair) for part, pair in weights.items()}


def bandit_gradients(
    logits: ArrayLike,
    rewards: ArrayLike,
    p_high: float,
    group_size: int,
    *,
    kind: str = "iid",
    scale: str = "none",
    means: str | tuple[float, float] = "group",
    lengths: ArrayLike | None = None,
) -> dict[str, tuple[np.ndarray, float]]:
    """Return E[g] and E[|g|^2] of each part's gradient g over all outcomes of a bandit's group.

    The bandit has two tokens and A actions, pi(a | r) = softmax(logits[r])[a]. Its (2 A)^G outcomes
    are enumerated: nothing is sampled, and no formula of `gradient_weights` is used.

    Args:
        logits: [2, A]; row 0 under the high token, row 1 under the low one.
        rewards: [A] floats.
        p_high, group_size, kind: as `rc_lib.variance.token_count_pmf`.
        scale, means: as `advantage_parts`.
        lengths: [A] tokens of an action, for GRPO's mean over a rollout's tokens, which divides the
            score by them; None: the score itself.

    Returns:
        For each of `PARTS` the mean, float64 [2, A] like the logits, and the mean squared norm.

    Raises:
        ValueError: for more than a million outcomes.

    >>> parts = bandit_gradients([[2.0, 0.0], [0.0, 0.0]], [1, 0], 0.5, 3, means="others")
    >>> mean, square = parts["between"]
    >>> round(float(abs(mean).max()), 12), round(square, 4)  # no signal, only noise
    (0.0, 0.0046)
    """
    logits, rewards = np.asarray(logits, dtype=np.float64), np.asarray(rewards, dtype=np.float64)
    actions = logits.shape[1]
    if (2 * actions) ** group_size > 1_000_000:
        raise ValueError(f"{2 * actions} ** {group_size} outcomes; use fewer actions or members")
    policy = np.exp(logits - logits.max(1, keepdims=True))
    policy /= policy.sum(1, keepdims=True)
    outcomes = np.indices((2 * actions,) * group_size).reshape(group_size, -1).T  # [N, G]
    token, action = outcomes // actions, outcomes % actions
    pmf, high = token_count_pmf(group_size, p_high, kind), (token == 0).sum(1)
    arrangements = binomial(group_size, 0.5) * 2**group_size
    chance = (pmf / arrangements)[high] * policy[token, action].prod(1)
    own = np.kron(np.eye(2), np.ones(actions)) * policy.ravel()  # [2, 2 A], 0 off its own actions
    score = np.eye(2 * actions) - np.repeat(own, actions, axis=0)
    if lengths is not None:
        score /= np.tile(lengths, 2)[:, None]
    parts = advantage_parts(rewards[action], token == 0, scale=scale, means=means)
    result = {}
    for name, part in parts.items():
        gradient = np.einsum("ng,ngd->nd", part, score[outcomes]) / group_size
        mean = (chance @ gradient).reshape(2, actions)
        result[name] = mean, float(chance @ (gradient**2).sum(1))
    return result
