"""Intervals, paired tests and power for accuracies of few seeds on shared tasks; no model.

Seeds share their tasks, so S seeds on n tasks are never S * n independent trials: the bootstrap
resamples seeds and tasks crosswise, and McNemar's test is made seed by seed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import binom, norm
from statsmodels.stats.contingency_tables import mcnemar as statsmodels_mcnemar
from statsmodels.stats.proportion import proportion_confint

from rc_lib.seeding import rng

RESAMPLES = 10_000
ALPHA, POWER = 0.05, 0.8  # of every statement about what n tasks can show


class Interval(NamedTuple):
    """Bounds of an interval, in the unit of the estimate."""

    low: float
    high: float


class McNemar(NamedTuple):
    """Discordant pairs and the exact two-sided p: b right only first, c right only second."""

    b: int
    c: int
    p: float


class Bootstrap(NamedTuple):
    """A mean, its percentile interval, its standard error, and the two-sided p of it being 0."""

    mean: float
    low: float
    high: float
    se: float
    p: float


def wilson(k: int, n: int, level: float = 0.95) -> Interval:
    """Return the Wilson score interval of k successes in n independent trials.

    Source: Wilson (1927).

    Args:
        k: successes, 0 <= k <= n.
        n: trials, >= 1.
        level: coverage in (0, 1).

    Raises:
        ValueError: for k outside 0..n or a level outside (0, 1).

    >>> [round(100 * bound, 1) for bound in wilson(48, 80)]
    [49.0, 70.0]
    """
    _check_level(level)
    if not 0 <= k <= n or n < 1:
        raise ValueError(f"{k} successes of {n} trials; give n >= 1 and k in 0..n")
    low, high = proportion_confint(k, n, alpha=1 - level, method="wilson")
    # Rounding leaves bounds such as -1e-18 behind.
    return Interval(max(float(low), 0.0), min(float(high), 1.0))


def mcnemar(first: ArrayLike, second: ArrayLike) -> McNemar:
    """Return the exact McNemar test of two arms on the same tasks.

    Source: McNemar (1947); two-sided binomial test of b against c.

    Args:
        first: [n] 0/1, correct in the first arm.
        second: [n] 0/1, correct in the second arm, same tasks in the same order.

    Raises:
        ValueError: for lengths that differ, or values other than 0 and 1.

    >>> mcnemar([1, 1, 1, 1, 1, 1, 0], [0, 0, 0, 0, 0, 0, 0])
    McNemar(b=6, c=0, p=0.03125)
    """
    first, second = np.asarray(first), np.asarray(second)
    if first.ndim != 1 or first.shape != second.shape or not len(first):
        raise ValueError(f"arms have shapes {first.shape} and {second.shape}; give the same n >= 1")
    if not (np.isin(first, (0, 1)).all() and np.isin(second, (0, 1)).all()):
        raise ValueError("correct must be 0 or 1 in both arms")
    b = int(((first == 1) & (second == 0)).sum())
    c = int(((first == 0) & (second == 1)).sum())
    # Concordant pairs do not enter the exact test.
    p = statsmodels_mcnemar([[0, b], [c, 0]], exact=True).pvalue if b + c else 1.0
    return McNemar(b, c, min(float(p), 1.0))


def holm(pvalues: ArrayLike) -> np.ndarray:
    """Return Holm's adjusted p-values of one family of tests.

    Source: Holm (1979).

    Args:
        pvalues: [m] in [0, 1], m >= 1.

    Returns:
        float64 [m], in the order given.

    Raises:
        ValueError: for an empty family or a value outside [0, 1] (nan included).

    >>> holm([0.01, 0.04, 0.03]).round(4).tolist()
    [0.03, 0.06, 0.06]
    """
    pvalues = np.asarray(pvalues, dtype=np.float64)
    if not pvalues.size or not ((pvalues >= 0) & (pvalues <= 1)).all():
        raise ValueError(f"p-values {pvalues.tolist()} must be one or more numbers in [0, 1]")
    # statsmodels.multipletests gives the same but runs the garbage collector at every call.
    order = np.argsort(pvalues, kind="stable")
    stepped = np.minimum(pvalues[order] * np.arange(len(pvalues), 0, -1), 1.0)
    adjusted = np.empty_like(pvalues)
    adjusted[order] = np.maximum.accumulate(stepped)
    return adjusted


def cluster_of(item_id: str) -> str:
    """Return what is resampled as one: the numeric id of a BFCL task, else the item itself.

    BFCL's four categories are variants of the same 200 tasks, so multi_turn_base_7 and
    multi_turn_miss_func_7 stand or fall together. Generated tasks are drawn one by one.

    >>> cluster_of("multi_turn_miss_func_7"), cluster_of("gen_test_base_7")
    ('multi_turn_7', 'gen_test_base_7')
    """
    match = re.fullmatch(r"multi_turn_(?:base|miss_func|miss_param|long_context)_(\d+)", item_id)
    return f"multi_turn_{match[1]}" if match else item_id


def crossed_bootstrap(
    values: ArrayLike,
    clusters: Sequence[str] | None = None,
    *,
    level: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Bootstrap:
    """Return the mean of a seeds-by-tasks matrix with an interval for both sources of chance.

    Seeds and clusters of tasks are each resampled with replacement, crosswise, and the percentile
    interval is taken. Source: Owen (2007), "The pigeonhole bootstrap"; it counts the interaction of
    seeds and tasks up to three times over, so it errs on the wide side, while few seeds make
    their own part narrow by (S - 1) / S. One seed leaves the interval of its tasks alone.

    Args:
        values: [S, N] finite: 0/1 correct for an arm, or differences of two arms seed by seed and
            task by task.
        clusters: [N] labels of tasks to be resampled together; None resamples task by task.
        level: coverage in (0, 1).
        resamples: number of resamples, >= 1.
        seed: of the resamples. Equal S and number of clusters get equal resamples.

    Raises:
        ValueError: for an empty, ragged or non-finite matrix, or clusters that do not fit.

    >>> result = crossed_bootstrap([[1, 1, 0, 1], [1, 0, 0, 1]])
    >>> result.mean, result.low <= 0.625 <= result.high
    (0.625, True)
    """
    values = np.asarray(values, dtype=np.float64)
    _check_level(level)
    if values.ndim != 2 or not values.size or not np.isfinite(values).all():
        raise ValueError(
            f"values have shape {values.shape}; give finite numbers for every seed and task [S, N]"
        )
    labels = np.arange(values.shape[1]) if clusters is None else np.asarray(clusters)
    if labels.shape != values.shape[1:]:
        raise ValueError(f"{len(labels)} cluster labels for {values.shape[1]} tasks; give one each")
    _, index = np.unique(labels, return_inverse=True)
    membership = np.eye(index.max() + 1)[index]  # [N, C]
    seed_weights, cluster_weights = _weights(len(values), membership.shape[1], resamples, seed)
    # For whole numbers these sums are exact, so the result does not depend on the BLAS.
    totals = (seed_weights * (cluster_weights @ (values @ membership).T)).sum(axis=1)
    means = totals / (len(values) * (cluster_weights @ membership.sum(axis=0)))
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    tail = min((means <= 0).sum(), (means >= 0).sum()) + 1
    p = min(1.0, 2 * tail / (resamples + 1))
    return Bootstrap(float(values.mean()), float(low), float(high), float(means.std()), float(p))


def arm_interval(values: ArrayLike, clusters: Sequence[str] | None = None) -> Interval:
    """Return the interval of an arm's accuracy: `crossed_bootstrap`, Wilson where it cannot speak.

    Resampling an arm that got everything wrong (or right) can only return 0 (or 1); there the
    Wilson interval with the number of clusters as n is given, as if there were one seed.

    Args are those of `crossed_bootstrap`, with values 0 or 1.

    >>> [round(100 * bound, 1) for bound in arm_interval([[0] * 80] * 5)]
    [0.0, 4.6]
    """
    values = np.asarray(values)
    result = crossed_bootstrap(values, clusters)
    if values.min() == values.max():
        n = values.shape[1] if clusters is None else len(set(clusters))
        return wilson(round(result.mean) * n, n)
    return Interval(result.low, result.high)


def smallest_significant_difference(n: int) -> float:
    """Return the smallest difference of two arms on n tasks that exact McNemar can call at 5 %.

    It is the best case: every discordant task goes one way.

    Returns:
        The difference as a share of n; nan where even n tasks one way are not enough.

    >>> smallest_significant_difference(80)
    0.075
    """
    for b in range(1, n + 1):
        if 2 * 0.5**b <= ALPHA:
            return b / n
    return float("nan")


def mcnemar_power(difference: float, discordant: float, n: int) -> float:
    """Return the power of the exact McNemar test at 5 %, over a random number of discordant tasks.

    Args:
        difference: true difference of the two accuracies, |difference| <= discordant.
        discordant: share of tasks on which the arms differ, in (0, 1].
        n: tasks, >= 1.

    Raises:
        ValueError: for a discordant share outside (0, 1] or a larger difference.

    >>> round(mcnemar_power(0.2, 0.3, 80), 2)
    0.91
    """
    if not 0 < discordant <= 1 or abs(difference) > discordant:
        raise ValueError(
            f"difference {difference} with discordant share {discordant}; "
            "give |difference| <= discordant <= 1"
        )
    pairs = np.arange(n + 1)
    first = (discordant + difference) / (2 * discordant)
    # Largest count c with 2 P(B <= c) <= ALPHA; ppf lands on it or one above.
    critical = binom.ppf(ALPHA / 2, pairs, 0.5)
    critical -= 2 * binom.cdf(critical, pairs, 0.5) > ALPHA
    rejects = binom.cdf(critical, pairs, first) + binom.cdf(critical, pairs, 1 - first)
    return float(binom.pmf(pairs, n, discordant) @ rejects)


def detectable_difference(n: int, discordant: float) -> float:
    """Return the smallest true difference that exact McNemar on n tasks finds with power 0.8.

    Args are those of `mcnemar_power`.

    Returns:
        The difference as a share, to 1e-4; nan where not even a difference of `discordant` will do.

    >>> round(detectable_difference(80, 0.3), 2)
    0.18
    """
    low, high = 0.0, discordant
    if mcnemar_power(high, discordant, n) < POWER:
        return float("nan")
    while high - low > 1e-4:
        middle = (low + high) / 2
        if mcnemar_power(middle, discordant, n) < POWER:
            low = middle
        else:
            high = middle
    return high


def detectable_by_se(se: float) -> float:
    """Return the true difference found at 5 % with power 0.8 at a standard error, normal theory.

    >>> round(detectable_by_se(0.05), 2)
    0.14
    """
    return float((norm.ppf(1 - ALPHA / 2) + norm.ppf(POWER)) * se)


@lru_cache(maxsize=32)
def _weights(seeds: int, clusters: int, resamples: int, seed: int):
    """How often each resample takes each seed [B, S] and each cluster [B, C]."""
    draw = rng(seed, "crossed-bootstrap", seeds, clusters)
    return tuple(
        draw.multinomial(size, np.full(size, 1 / size), size=resamples).astype(np.float64)
        for size in (seeds, clusters)
    )


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"level {level} must be a share in (0, 1), e.g. 0.95")
