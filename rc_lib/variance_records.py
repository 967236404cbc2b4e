"""What recorded groups say about Propositions 4.2 and 4.3: from records to tables, without a model.

``groups.csv`` of an arm has a row for each group of every training step; ``variance/groups.csv``,
``kl.csv`` and ``gradients.csv`` are those of `rc_lib.variance_measured`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from rc_lib.config import ARMS
from rc_lib.records import record_files
from rc_lib.variance import kappa, mixed_degenerate_probability

WINDOW = 10  # training steps that are taken together
TOKEN_VALUES = ("mu_high", "mu_low", "gap", "bound", "between", "within")  # of groups with tokens


def group_arrays(groups: pd.DataFrame) -> tuple[np.ndarray, np.ndarray | None]:
    """Return rewards [N, G] and is_high bool [N, G] of recorded groups; None where no tokens are.

    Raises:
        ValueError: for groups of different sizes, or where some have tokens and some have none.

    >>> group_arrays(pd.DataFrame({"tokens": ["high low"], "rewards": ["1 0"]}))
    (array([[1., 0.]]), array([[ True, False]]))
    """
    sizes = groups["rewards"].str.split().str.len()
    if sizes.nunique() != 1:
        raise ValueError(f"groups of sizes {sorted(sizes.unique())}; give one size at a time")
    rewards = np.array([row.split() for row in groups["rewards"]], dtype=np.float64)
    tokens = np.array([row.split() for row in groups["tokens"]])
    if (tokens == "none").all():
        return rewards, None
    if (tokens == "none").any():
        raise ValueError("some groups have tokens and some have none; give one kind at a time")
    return rewards, tokens == "high"


def decompose_groups(
    rewards: ArrayLike, is_high: ArrayLike | None = None, p_high: float = 0.5
) -> dict[str, float]:
    """Return what sampled groups, a task each, say about every quantity of Prop. 4.2 and 4.3.

    Exact in any sample: ``sigma2`` = (G - 1) / G (q (1 - q) - ``task_spread``), so ``ceiling``
    exceeds it by the spread of q over tasks. ``between`` is unbiased for the part that lies between
    the tokens of one task, and comes from groups with two or more rollouts of each token;
    ``within`` is the rest of ``sigma2``. The gap of the pooled means cannot exceed the tasks' own:
    ``bound`` <= ``between`` in expectation, up to the noise of ``gap``.

    Args:
        rewards: [N, G] of 0 and 1, one row a group.
        is_high: bool [N, G], i.i.d. tokens; None where there are none.
        p_high: P(high) that they were drawn with.

    Returns:
        ``reward`` q, ``sigma2`` E[sigma_g^2], ``ceiling`` (G - 1) / G q (1 - q), ``task_spread``;
        ``degenerate``, and of it ``all_fail`` and ``all_success``; ``degenerate_one_q`` and
        ``degenerate_mixed``, as predicted from q and from q and ``sigma2``. ``mu_high``,
        ``mu_low``, ``gap``, ``bound`` = kappa gap^2, ``between`` and ``within``, nan where there
        are no tokens or no group tells.

    Raises:
        ValueError: for rewards that are no [N, G >= 2] of 0 and 1, or tokens of another shape.

    >>> tokens = [[1, 0, 1, 0], [1, 1, 0, 0]]
    >>> parts = decompose_groups(tokens, tokens)  # the token decides the reward
    >>> parts["gap"], parts["bound"], parts["between"], parts["sigma2"]
    (1.0, 0.1875, 0.1875, 0.25)
    """
    rewards = np.asarray(rewards, dtype=np.float64)
    if rewards.ndim != 2 or rewards.shape[1] < 2 or not np.isin(rewards, (0, 1)).all():
        raise ValueError(f"rewards {rewards.shape} must be [N, G >= 2], each 0 or 1")
    size, successes = rewards.shape[1], rewards.sum(1)
    q, pairs = rewards.mean(), successes * (successes - 1) / (size * (size - 1))
    sigma2 = float(rewards.var(1).mean())
    parts = {
        "reward": float(q),
        "sigma2": sigma2,
        "ceiling": float((size - 1) / size * q * (1 - q)),
        "task_spread": float(pairs.mean() - q**2),
        "degenerate": float(np.isin(successes, (0, size)).mean()),
        "all_fail": float((successes == 0).mean()),
        "all_success": float((successes == size).mean()),
        "degenerate_one_q": float(q**size + (1 - q) ** size),
        "degenerate_mixed": mixed_degenerate_probability(size, float(q), sigma2),
    }
    if is_high is None:
        return parts | dict.fromkeys(TOKEN_VALUES, float("nan"))
    is_high = np.asarray(is_high, dtype=bool)
    if is_high.shape != rewards.shape:
        raise ValueError(f"is_high {is_high.shape}, rewards {rewards.shape}; give one for each")
    means = [_mean(rewards[is_high]), _mean(rewards[~is_high])]
    gap = means[0] - means[1]
    between = kappa(size, p_high) * _squared_gap(rewards, is_high)
    bound = kappa(size, p_high) * gap**2
    parts |= {"mu_high": means[0], "mu_low": means[1], "gap": gap, "bound": bound}
    return parts | {"between": between, "within": sigma2 - between}


def _squared_gap(rewards: np.ndarray, is_high: np.ndarray) -> float:
    """Return the mean over tasks of (mu_high - mu_low)^2, without the bias of sampled means."""
    correction, means = 0.0, []
    count = np.stack([is_high.sum(1), (~is_high).sum(1)])
    usable = (count >= 2).all(0)
    for mask, n in zip((is_high[usable], ~is_high[usable]), count[:, usable], strict=True):
        mean = (rewards[usable] * mask).sum(1) / n
        correction = correction + mean * (1 - mean) / (n - 1)
        means.append(mean)
    return _mean((means[0] - means[1]) ** 2 - correction)


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if values.size else float("nan")


def training_windows(
    records_root: Path, seeds: Sequence[int], p_high: float, window: int = WINDOW
) -> pd.DataFrame:
    """Return `decompose_groups` of every RL arm, seed and window of training steps.

    Args:
        records_root: folder that holds ``seed<k>/<arm>/groups.csv``.
        seeds: seeds to look for; what is missing gives no rows.
        p_high: P(high) of the arms with tokens.
        window: steps taken together; the tasks of a window are all different.

    Returns:
        ``arm``, ``seed``, ``first_step``, ``last_step``, ``groups``, and the values.
    """
    rows = []
    for (arm, seed), path in record_files(records_root, "groups.csv", seeds).items():
        if arm not in ARMS:
            continue
        groups = pd.read_csv(path)
        for _, part in groups.groupby(groups["step"] // window):
            steps = {"first_step": part["step"].min(), "last_step": part["step"].max()}
            values = decompose_groups(*group_arrays(part), p_high)
            rows.append({"arm": arm, "seed": seed} | steps | {"groups": len(part)} | values)
    return pd.DataFrame(rows)


def sampled_groups(groups: pd.DataFrame, p_high: float) -> pd.DataFrame:
    """Return `decompose_groups` of every policy, conditioning and temperature that was sampled.

    Beside it ``identical``, the share of groups whose rollouts are all one trajectory, and
    ``distinct``, the mean number of trajectories in a group.
    """
    rows = []
    for label, part in groups.groupby(["policy", "conditioning", "temperature"], sort=False):
        rewards, is_high = group_arrays(part)
        values = decompose_groups(rewards, is_high if label[1] == "iid" else None, p_high)
        alike = {"identical": (part["distinct"] == 1).mean(), "distinct": part["distinct"].mean()}
        row = dict(zip(("policy", "conditioning", "temperature"), label, strict=True))
        rows.append(row | {"groups": len(part)} | values | alike)
    return pd.DataFrame(rows)


def collapse(kl: pd.DataFrame, groups: pd.DataFrame, p_high: float) -> pd.DataFrame:
    """Compare what Prop. 4.2 says of each policy with the groups that it sampled at temperature 1.

    With KL_x the sum over the steps of task x, a rollout is the reference with probability
    exp(-KL_x), and all G are with exp(-G KL_x), which is exact; under i.i.d. tokens the rollout's
    probability is the mean over tokens. The proposition puts T times the largest step in KL_x's
    place.

    Returns:
        One row a policy and conditioning: ``steps`` (mean T), ``kl_step`` (mean over steps, nats),
        ``kl_max`` (eps_sft), ``kl_task`` (mean KL_x); ``p_reference`` and ``all_reference``, means
        over tasks as predicted, with ``.._seen`` as observed; ``bound`` and ``bound_task``, means
        of exp(-G T eps) with eps the largest step of all tasks, and of the task; ``vacuous``,
        the share of tasks whose 1 - G T eps, eps of the task, is not positive; and of the sampled
        groups ``identical``, ``degenerate``, ``all_fail`` and ``reward``.
    """
    steps = kl["kl"].str.split().map(lambda row: np.array(row, dtype=np.float64))
    kl = kl.assign(T=steps.map(len), total=steps.map(np.sum), largest=steps.map(np.max))
    rows = []
    sampled = groups[groups["temperature"] == 1.0]
    for (policy, kind), part in sampled.groupby(["policy", "conditioning"], sort=False):
        weights = {"high": p_high, "low": 1 - p_high} if kind == "iid" else {kind: 1.0}
        own = kl[kl["policy"] == policy].set_index(["token", "task_id"])
        steps, worst = own["T"], own["T"] * own["largest"]
        chances = {
            "p": np.exp(-own["total"]), "task": np.exp(-worst), "exponent": worst,
            "all": np.exp(-steps * own["largest"].loc[list(weights)].max()),
        }  # fmt: skip
        mean = {
            name: sum(weight * values.loc[token] for token, weight in weights.items())
            for name, values in chances.items()
        }
        aim = own.loc[next(iter(weights))]  # under the token that asks for success
        rewards, _ = group_arrays(part)
        size, as_reference = rewards.shape[1], part["as_reference"]
        row = {
            "policy": policy, "conditioning": kind, "steps": aim["T"].mean(),
            "kl_step": aim["total"].sum() / aim["T"].sum(), "kl_max": aim["largest"].max(),
            "kl_task": aim["total"].mean(), "p_reference": mean["p"].mean(),
            "p_reference_seen": as_reference.mean() / size,
            "all_reference": (mean["p"] ** size).mean(),
            "all_reference_seen": (as_reference == size).mean(),
            "bound": (mean["all"] ** size).mean(), "bound_task": (mean["task"] ** size).mean(),
            "vacuous": (size * mean["exponent"] >= 1).mean(),
            "identical": (part["distinct"] == 1).mean(),
        }  # fmt: skip
        seen = decompose_groups(rewards)
        rows.append(row | {name: seen[name] for name in ("degenerate", "all_fail", "reward")})
    return pd.DataFrame(rows)


def matched_variance(sampled: pd.DataFrame, group_size: int) -> pd.DataFrame:
    """Set the variance that i.i.d. tokens give RCTP-FT beside that of other sources of variance.

    The SFT policy without tokens is sampled at several temperatures. Its ``sigma2`` at the reward
    in question is interpolated as a share of the ceiling (G - 1) / G q (1 - q).

    Args:
        sampled: `sampled_groups` of one seed.
        group_size: G.

    Returns:
        A row for each of what it is set ``against``: the SFT policy at the mean reward of the
        groups and at their reward under the high token, and the RCTP-FT policy under the high token
        alone. ``reward`` and ``temperature`` of it, ``sigma2_tokens``, ``sigma2_other`` and their
        ``difference``; nan where no temperature reaches the reward.
    """
    place = sampled.set_index(["policy", "conditioning"]).sort_values("reward")
    curve, tokens = place.loc[[("sft", "none")]], place.loc[[("rctp", "iid")]].iloc[0]
    alone = place.loc[[("rctp", "high")]].iloc[0]
    share, rows = curve["sigma2"] / curve["ceiling"], []
    compared = {"SFT, same reward": "reward", "SFT, high token's reward": "mu_high"}
    for against, column in compared.items():
        q = tokens[column]
        temperature, ratio = (
            np.interp(q, curve["reward"], values, np.nan, np.nan)
            for values in (curve["temperature"], share)
        )
        rows.append([against, q, temperature, ratio * (group_size - 1) / group_size * q * (1 - q)])
    rows.append(["RCTP-FT, high token alone", alone["reward"], 1.0, alone["sigma2"]])
    table = pd.DataFrame(rows, columns=["against", "reward", "temperature", "sigma2_other"])
    table["sigma2_tokens"] = tokens["sigma2"]
    return table.assign(difference=table["sigma2_tokens"] - table["sigma2_other"])


def seed_summaries(
    measured: Mapping[str, pd.DataFrame], group_size: int, p_high: float
) -> dict[str, pd.DataFrame]:
    """Return `collapse`, `sampled_groups` and `matched_variance` seed by seed, with ``seed``.

    Args:
        measured: ``kl``, ``groups`` and ``gradients`` of all seeds, with ``seed``.
        group_size, p_high: G, and P(high) of i.i.d. tokens.
    """
    parts: dict[str, list] = {"collapse": [], "sampled": [], "matched": []}
    for seed, groups in measured["groups"].groupby("seed"):
        kl = measured["kl"][measured["kl"]["seed"] == seed]
        sampled = sampled_groups(groups, p_high)
        made = [collapse(kl, groups, p_high), sampled, matched_variance(sampled, group_size)]
        for tables, table in zip(parts.values(), made, strict=True):
            tables.append(table.assign(seed=seed))
    return {name: pd.concat(tables, ignore_index=True) for name, tables in parts.items()}
