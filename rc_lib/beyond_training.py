"""What the training of the arms beyond the paper used, and the variance in its groups."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from rc_lib.arms import RL_ARMS, STARTS, Arm
from rc_lib.config import get_profile
from rc_lib.records import record_files
from rc_lib.variance import kappa, variance_parts
from rc_lib.variance_records import decompose_groups, group_arrays

LATE = 10  # last rounds of sampling that the late statistics are means over
EARLY = 5  # first steps, in which the policy is still close to its start
LATE_COLUMNS = ("degenerate", "sigma2")  # of curve.csv
REFERENCE = "rctp_rc_grpo"  # P(high) 0.5, G = 5: the arm that predictions come from
# Arms that differ from the reference in one number; "tokens" in how the tokens are drawn.
PANELS = {
    "P(high)": ("rctp_rc_p000", "rctp_rc_p025", REFERENCE, "rctp_rc_p075", "rctp_rc_p100"),
    "G": ("rctp_rc_g2", REFERENCE, "rctp_rc_g10"),
    "tokens": (REFERENCE, "rctp_rc_stratified"),
}
PANEL_ARMS = tuple(dict.fromkeys(arm for arms in PANELS.values() for arm in arms))


def training_statistics(records_root: Path, seeds: Sequence[int]) -> pd.DataFrame:
    """Return what the training of every start and arm used, and its groups at the end.

    Args:
        records_root: folder that holds ``seed<k>/<arm>/curve.csv`` and ``groups.csv``.
        seeds: seeds to look for.

    Returns:
        A row a start or arm and seed: ``stage1_steps``, the optimizer steps of its start. Of RL
        means over the last `LATE` rounds of sampling of ``degenerate``, a share, and ``sigma2`` =
        E[sigma_g^2], over all groups that were rolled; ``optimizer_steps``; ``rollouts``; and
        ``spread_groups``, the groups with spread in all rounds. Blank where there is no such file.

    Raises:
        FileNotFoundError: if there is no curve at all.
    """
    rows, groups = [], record_files(records_root, "groups.csv", seeds)
    curves = record_files(records_root, "curve.csv", seeds)
    for (arm, seed), path in curves.items():
        if arm not in STARTS and arm not in RL_ARMS:
            continue
        start = RL_ARMS[arm].start if arm in RL_ARMS else arm
        row = {"arm": arm, "seed": seed}
        if (start, seed) in curves:
            row["stage1_steps"] = len(pd.read_csv(curves[start, seed]))
        if arm in RL_ARMS:
            curve = pd.read_csv(path)
            row |= curve[list(LATE_COLUMNS)].tail(LATE).mean().to_dict()
            row["optimizer_steps"] = int(curve["grad_norm"].notna().sum())
        if arm in RL_ARMS and (arm, seed) in groups:
            rewards = pd.read_csv(groups[arm, seed], dtype=str)["rewards"].str.split()
            row["rollouts"] = int(rewards.str.len().sum())
            row["spread_groups"] = int((rewards.map(set).map(len) > 1).sum())
        rows.append(row)
    if not rows:
        raise FileNotFoundError(f"no seed<k>/<arm>/curve.csv under {records_root}; train first")
    names = ["arm", "seed", "stage1_steps", *LATE_COLUMNS, "optimizer_steps", "rollouts"]
    return pd.DataFrame(rows, columns=[*names, "spread_groups"])


def token_moments(rewards: ArrayLike, is_high: ArrayLike) -> dict[str, float]:
    """Return what the variance of any group of the same policy on the same tasks follows from.

    Args:
        rewards: [N, G] of 0 and 1, one row a group, a task each.
        is_high: bool [N, G], i.i.d. tokens, each high with probability 0.5.

    Returns:
        ``mu_high``, ``mu_low``: mean reward under each token. Unbiased, from groups with two or
        more rollouts of the tokens in question: ``gap2``, the mean over tasks of
        (mu_high - mu_low)^2; ``var_high``, ``var_low``, the mean over tasks of mu (1 - mu).

    >>> token_moments([[1, 1, 0, 0]], [[True, True, False, False]])
    {'mu_high': 1.0, 'mu_low': 0.0, 'gap2': 1.0, 'var_high': 0.0, 'var_low': 0.0}
    """
    rewards, is_high = np.asarray(rewards, dtype=np.float64), np.asarray(is_high, dtype=bool)
    size = rewards.shape[1]
    moments = {"mu_high": rewards[is_high].mean(), "mu_low": rewards[~is_high].mean()}
    moments["gap2"] = decompose_groups(rewards, is_high, 0.5)["between"] / kappa(size, 0.5)
    for name, mask in (("var_high", is_high), ("var_low", ~is_high)):
        count = mask.sum(1)
        usable = count >= 2
        mean = (rewards * mask)[usable].sum(1) / count[usable]
        moments[name] = (mean * (1 - mean) * count[usable] / (count[usable] - 1)).mean()
    return {name: float(value) for name, value in moments.items()}


def predicted_variance(
    group_size: int, p_high: float, kind: str, moments: dict[str, float]
) -> dict[str, float]:
    """Return E[sigma_g^2] of groups of another size, P(high) or kind of tokens.

    Source: RC-GRPO (arXiv 2602.03025), Prop. 4.3 and Lemmas A.3 and A.4.

    Args:
        group_size, p_high, kind: as `rc_lib.variance.token_count_pmf`.
        moments: `token_moments` of the policy.

    Returns:
        ``predicted``: exact where the moments are. ``one_task``: from mu_high and mu_low as if all
        tasks were equally hard; the spread of the tasks makes the true value smaller. ``bound``:
        kappa (mu_high - mu_low)^2.

    >>> moments = {"mu_high": 1.0, "mu_low": 0.0, "gap2": 1.0, "var_high": 0.0, "var_low": 0.0}
    >>> values = predicted_variance(5, 0.5, "iid", moments)
    >>> [round(value, 6) for value in values.values()]
    [0.2, 0.2, 0.2]
    """
    mu = {name: moments[name] for name in ("mu_high", "mu_low")}
    variances = {name: moments[name] for name in ("var_high", "var_low")}
    bound, spread = variance_parts(group_size, p_high, **mu, kind=kind)
    within = variance_parts(group_size, p_high, **mu, kind=kind, **variances)[1]
    predicted = kappa(group_size, p_high, kind) * moments["gap2"] + within
    return {"predicted": predicted, "one_task": bound + spread, "bound": bound}


def early_variance(records_root: Path, profile: str, seeds: Sequence[int]) -> pd.DataFrame:
    """Set the variance in the groups of the first steps beside what the reference arm predicts.

    Every arm of `PANELS` starts from the same policy, so that the first `EARLY` steps of
    `REFERENCE` say what the groups of the others should look like.

    Args:
        records_root: folder that holds ``seed<k>/<arm>/groups.csv``.
        profile: profile of the records.
        seeds: seeds to look for; a seed without the reference gives no rows.

    Returns:
        A row an arm and seed: ``arm``, ``seed``, ``p_high``, ``group_size``, ``groups``, the mean
        of sigma_g^2 as ``sigma2``, `predicted_variance` and ``difference`` = sigma2 - predicted.
    """
    rows, files = [], record_files(records_root, "groups.csv", seeds)
    for seed in sorted({seed for arm, seed in files if arm == REFERENCE}):
        moments = token_moments(*_early_groups(files[REFERENCE, seed]))
        for arm in PANEL_ARMS:
            if (arm, seed) not in files:
                continue
            rewards, _ = _early_groups(files[arm, seed])
            p_high, size = settings(RL_ARMS[arm], profile)
            if rewards.shape[1] != size:
                found = f"{files[arm, seed]}: groups of {rewards.shape[1]}"
                raise ValueError(f"{found}, profile {profile} has {size}; train the arm again")
            row = {"arm": arm, "seed": seed, "p_high": p_high, "group_size": size}
            row |= {"groups": len(rewards), "sigma2": float(rewards.var(1).mean())}
            row |= predicted_variance(size, p_high, RL_ARMS[arm].conditioning, moments)
            rows.append(row | {"difference": row["sigma2"] - row["predicted"]})
    return pd.DataFrame(rows)


def settings(arm: Arm, profile: str) -> tuple[float, int]:
    """Return P(high) and G of an arm at a profile.

    >>> settings(RL_ARMS["rctp_rc_g10"], "tiny")
    (0.5, 10)
    """
    setup = get_profile(profile)
    return setup.p_high if arm.p_high is None else arm.p_high, arm.config(setup).group_size


def _early_groups(path: Path) -> tuple[np.ndarray, np.ndarray | None]:
    groups = pd.read_csv(path)
    return group_arrays(groups[groups["step"] < EARLY])
