"""Tables of Propositions 4.2 and 4.3: exact values, measurements, and what training did to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import t as student

from rc_lib.table1 import METHODS
from rc_lib.tables import write_table
from rc_lib.variance import (
    GRID,
    KINDS,
    all_equal_bounds,
    degenerate_probability,
    kappa,
    monte_carlo,
    variance_parts,
)
from rc_lib.variance_signal import SCALES, gradient_weights

INTERVAL_SEEDS = 3  # two would give a Student interval of 9 standard deviations
SIMULATED = 20_000  # groups a setting
NAMES = {"sft": "SFT", "rctp": "RCTP-FT"} | METHODS
WEIGHTED = ((0.95, 0.95), (0.95, 0.5), (0.95, 0.05), (0.5, 0.05), (1.0, 0.0))  # mu_high, mu_low
# Columns of `over_seeds` that are shown with their interval; the CSV has those of all.
INTERVALS = {
    "p_reference_seen", "identical", "degenerate", "all_fail", "reward", "sigma2", "task_spread",
    "share", "split_half", "gap", "between",
}  # fmt: skip
SEEDS_NOTE = (
    "Mean over seeds, in brackets its 95 % Student interval (from 3 seeds on); the tasks are the "
    "same for all seeds, so it does not count the choice of tasks."
)


def over_seeds(table: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Return mean and 95 % Student interval over seeds of every number, one row a place in `by`.

    Args:
        table: one row a seed and place; ``seed`` and numbers.
        by: columns that name the place.

    Returns:
        `by`, ``seeds``, and every other column with its ``_low`` and ``_high``; these are nan with
        fewer than `INTERVAL_SEEDS` seeds.

    >>> frame = pd.DataFrame({"arm": "a", "seed": [0, 1, 2], "x": [1.0, 2.0, 3.0]})
    >>> over_seeds(frame, ["arm"]).round(2).to_dict("records")
    [{'arm': 'a', 'seeds': 3, 'x': 2.0, 'x_low': -0.48, 'x_high': 4.48}]
    """
    rows = []
    for place, part in table.groupby(list(by), sort=False):
        row = dict(zip(by, place, strict=True)) | {"seeds": len(part)}
        for column in part.columns.drop([*by, "seed"]):
            mean, half = _student(part[column].to_numpy(dtype=np.float64))
            row |= {column: mean, f"{column}_low": mean - half, f"{column}_high": mean + half}
        rows.append(row)
    return pd.DataFrame(rows)


@np.errstate(divide="ignore", invalid="ignore")  # nan where no group has spread
def gradient_shares(gradients: pd.DataFrame) -> pd.DataFrame:
    """Return each part's share of the expected gradient and of its noise, over seeds.

    ``share`` = sum over seeds of E x . E x_full / sum of |E x_full|^2, as that of one seed is too
    noisy to divide by. Its interval is a jackknife over seeds.

    Args:
        gradients: ``gradients.csv`` of all seeds, with ``seed``.

    Returns:
        A row a normalization, scale, kind of means and part: ``seeds``, ``groups`` in all,
        ``share`` with ``share_low`` and ``share_high``, ``noise`` = noise2 / noise2 of the full
        advantage, and the means of ``cosine`` and ``split_half`` with their intervals.
    """
    keys = ["normalization", "scale"]
    full = gradients[gradients["part"] == "full"].set_index([*keys, "seed"]).sort_index()
    rows = []
    for label, part in gradients.groupby([*keys, "means", "part"], sort=False):
        part = part.set_index("seed")
        whole = full.loc[label[:2]].loc[part.index]
        row = dict(zip([*keys, "means", "part"], label, strict=True)) | {"seeds": len(part)}
        row |= {"groups": int(part["groups"].sum())}
        mean, half = _jackknife(part["inner"].to_numpy(), whole["signal2"].to_numpy())
        row |= {"share": mean, "share_low": mean - half, "share_high": mean + half}
        row["noise"] = part["noise2"].sum() / whole["noise2"].sum()
        for column in ("cosine", "split_half"):
            mean, half = _student(part[column].to_numpy())
            row |= {column: mean, f"{column}_low": mean - half, f"{column}_high": mean + half}
        rows.append(row)
    return pd.DataFrame(rows)


def proposition_4_2_table() -> pd.DataFrame:
    """Return bounds by group size and KL of a trajectory, and the near collapse beside them.

    ``all_reference`` = exp(-G T eps) is P(all G the reference) where T eps is the sum of the steps'
    KL; ``linear`` = 1 - G T eps; ``degenerate`` and ``sigma2`` are those of a group in which the
    reference is the only success, q = ``p_reference``.
    """
    rows = []
    for size, kl in product((2, 5, 8, 16), (0.01, 0.05, 0.1, 0.2, 0.5, 1.0)):
        bounds, q = all_equal_bounds(size, 1, kl), float(np.exp(-kl))
        row = {"group_size": size, "kl": kl, "p_reference": q, "all_reference": bounds.exponential}
        row |= {"linear": bounds.linear, "degenerate": degenerate_probability(size, 0.5, q, q)}
        rows.append(row | {"sigma2": sum(variance_parts(size, 0.5, q, q))})
    return pd.DataFrame(rows)


def proposition_4_3_table() -> pd.DataFrame:
    """Return bound, exact and simulated values of all settings of `GRID`, for both kinds."""
    table = pd.DataFrame(GRID, columns=["group_size", "p_high", "mu_high", "mu_low"])
    table["q"] = table["p_high"] * table["mu_high"] + (1 - table["p_high"]) * table["mu_low"]
    for kind in KINDS:
        factors = [kappa(size, p, kind) for size, p, *_ in GRID]
        table[f"bound_{kind}"] = factors * (table["mu_high"] - table["mu_low"]) ** 2
        check = monte_carlo(GRID, kind, SIMULATED, seed=0)
        table = table.assign(**{f"{name}_{kind}": values for name, values in check.items()})
    return table


def weights_table(group_size: int = 5, p_high: float = 0.5) -> pd.DataFrame:
    """Return what multiplies the gradient of mu_high in the expected update, by setting and kind.

    ``high_only``: all G members carry the high token; ``none``: a policy without tokens whose mean
    reward is q; ``full``: RC-GRPO; ``between``: the share of ``full`` that the between-token part
    carries, for token means of the group and of its other members. Binary rewards.
    """
    rows = []
    for (mu_high, mu_low), kind, scale in product(WEIGHTED, KINDS, SCALES):
        q = p_high * mu_high + (1 - p_high) * mu_low
        row = {"mu_high": mu_high, "mu_low": mu_low, "kind": kind, "scale": scale}
        for name, mu in (("high_only", mu_high), ("none", q)):
            row[name] = gradient_weights(group_size, 1.0, mu, mu, scale=scale)["full"][0]
        for means in ("group", "others"):
            weights = gradient_weights(
                group_size, p_high, mu_high, mu_low, kind=kind, scale=scale, means=means
            )
            row["full"] = weights["full"][0]
            row[f"between_{means}"] = weights["between"][0] / weights["full"][0]
        rows.append(row)
    return pd.DataFrame(rows)


def write_proposition_4_2_table(folder: Path) -> list[Path]:
    """Write ``proposition_4_2``."""
    columns = {"group_size": "G", "kl": "T eps (nats)", "p_reference": "P(reference)",
               "all_reference": "exp(-G T eps)", "linear": "1 - G T eps",
               "degenerate": "P(degenerate)", "sigma2": "E[sigma_g^2]"}  # fmt: skip
    note = (
        "exp(-G T eps) is P(all G the reference) where T eps is the sum of the steps' KL. 1 - G T "
        "eps says nothing where it is not positive. Last columns: the reference alone succeeds."
    )
    table, about = proposition_4_2_table(), {"inputs": {}}
    return _write(table, columns, folder / "proposition_4_2", about, [note])


def write_proposition_4_3_tables(folder: Path) -> list[Path]:
    """Write ``proposition_4_3``, exact beside simulated, and ``proposition_4_3_weights``."""
    table, weights = proposition_4_3_table(), weights_table()
    columns = {"mu_high": "mu_high", "mu_low": "mu_low", "q": "q"}
    for kind in KINDS:
        columns |= {f"bound_{kind}": f"bound, {kind}", f"sigma2_{kind}": f"E[sigma_g^2], {kind}",
                    f"sigma2_mean_{kind}": f"simulated, {kind}",
                    f"degenerate_{kind}": f"P(degenerate), {kind}"}  # fmt: skip
    z = table.filter(regex="_z_").abs().to_numpy()
    note = (
        f"Shown: G = 5, P(high) = 0.5; the CSV has all {len(table)} settings. Of {z.size} "
        f"simulated values ({SIMULATED} groups each) {int((z > 3).sum())} lie beyond 3 standard "
        f"errors (by chance alone {0.0027 * z.size:.1f}); the largest distance is {z.max():.2f}."
    )
    about = {"inputs": {}, "seed": 0, "simulated_groups": SIMULATED}
    main = table[(table["group_size"] == 5) & (table["p_high"] == 0.5)]
    weight_columns = {
        "mu_high": "mu_high", "mu_low": "mu_low", "kind": "tokens", "scale": "divided by sigma_g",
        "high_only": "high token only", "none": "no tokens, mean q", "full": "RC-GRPO",
        "between_group": "between part, group's means", "between_others": "others' means",
    }  # fmt: skip
    weight_note = (
        "G = 5, P(high) = 0.5, binary rewards: what multiplies the gradient of mu_high (of q: no "
        "tokens) in the expected update of a group, and which share of it the between-token part "
        "carries."
    )
    return [
        *_write(table, columns, folder / "proposition_4_3", about, [note], rows=main.index),
        *_write(
            weights.assign(scale=weights["scale"].map({"group": "yes", "none": "no"})),
            weight_columns, folder / "proposition_4_3_weights", {"inputs": {}}, [weight_note],
        ),
    ]  # fmt: skip


def write_measured_tables(
    folder: Path, summaries: Mapping[str, pd.DataFrame], shares: pd.DataFrame, about: Mapping
) -> list[Path]:
    """Write ``proposition_4_2_measured``, ``variance_temperature`` and ``gradient_parts``."""
    place = {"policy": "policy", "conditioning": "tokens"}
    collapse_columns = place | {
        "steps": "T", "kl_task": "KL of a task", "kl_max": "eps", "p_reference": "P(reference)",
        "p_reference_seen": "seen", "all_reference": "P(all the reference)",
        "all_reference_seen": "all seen", "bound_task": "exp(-G T eps), eps by task",
        "vacuous": "1 - G T eps <= 0", "identical": "identical", "degenerate": "equal reward",
        "all_fail": "of it all fail",
    }  # fmt: skip
    collapse_note = (
        "Temperature 1; KL in nats, for i.i.d. tokens under the high one. T: mean number of steps; "
        "eps: largest KL of a step. P(..): predicted from each task's KL. '1 - G T eps <= 0': "
        "share of tasks of which the linear bound says nothing, with the task's own eps."
    )
    sampled_columns = place | {
        "temperature": "temperature", "reward": "q", "sigma2": "E[sigma_g^2]",
        "ceiling": "(G - 1)/G q(1 - q)", "task_spread": "variance of q over tasks",
        "degenerate": "degenerate", "identical": "identical",
    }  # fmt: skip
    words = [
        f"E[sigma_g^2] of RCTP-FT with i.i.d. tokens minus that of {row.against} (reward "
        f"{row.reward:.3f}, temperature {row.temperature:.2f}): "
        f"{_cell(row.difference, row.difference_low, row.difference_high, '{:+.3f}')}."
        for row in over_seeds(summaries["matched"], ["against"]).itertuples()
    ]
    part_columns = {
        "normalization": "over tokens", "scale": "scale", "means": "token means", "part": "part",
        "share": "share of signal", "noise": "noise (full = 1)", "cosine": "cosine",
        "split_half": "split-half cosine",
    }  # fmt: skip
    part_note = (
        "RCTP-FT, i.i.d. tokens. Share: E x . E x_full / |E x_full|^2, unbiased, all seeds "
        "together, jackknife interval. Over tokens: sum is the policy gradient, mean GRPO's loss. "
        "Token means: of the group's rollouts of that token, or of the others of them."
    )
    collapsed = over_seeds(summaries["collapse"], list(place))
    sampled = over_seeds(summaries["sampled"], [*place, "temperature"])
    return [
        *_write(collapsed, collapse_columns, folder / "proposition_4_2_measured", about,
                [collapse_note, SEEDS_NOTE]),
        *_write(sampled, sampled_columns, folder / "variance_temperature", about,
                [*words, SEEDS_NOTE]),
        *_write(shares, part_columns, folder / "gradient_parts", about, [part_note]),
    ]  # fmt: skip


def write_training_table(folder: Path, windows: pd.DataFrame, about: Mapping) -> list[Path]:
    """Write ``variance_in_training``: first and last window shown, all of them in the CSV."""
    table = over_seeds(windows, ["arm", "first_step", "last_step"])
    columns = {
        "arm": "arm", "first_step": "from step", "last_step": "to", "seeds": "seeds", "reward": "q",
        "gap": "gap of the tokens", "bound": "kappa gap^2", "between": "between a task's tokens",
        "sigma2": "E[sigma_g^2]", "ceiling": "(G - 1)/G q(1 - q)", "degenerate": "degenerate",
        "degenerate_one_q": "from one q", "degenerate_mixed": "from q by task",
    }  # fmt: skip
    note = (
        "Identity in any sample: E[sigma_g^2] = (G - 1)/G (q(1 - q) - variance of q over tasks). "
        "Approximation: 'from q by task' takes q as beta-distributed over tasks."
    )
    steps = table.groupby("arm")["first_step"]
    ends = table["first_step"].isin([*steps.min(), *steps.max()])
    notes, stem = [note, SEEDS_NOTE], folder / "variance_in_training"
    return _write(table, columns, stem, about, notes, rows=table.index[ends])


def _write(table, columns: Mapping[str, str], stem: Path, about, notes, rows=None) -> list[Path]:
    """Write all of a table, and show some columns and rows, with intervals where it has them."""
    part = table if rows is None else table.loc[rows]
    shown = part[list(columns)].replace(NAMES)
    for column in shown.select_dtypes("float"):
        bounds = [f"{column}_low", f"{column}_high"] if column in INTERVALS else []
        cells = part[[column, *part.columns.intersection(bounds)]].itertuples(index=False)
        shown[column] = [_cell(*cell) for cell in cells]
    return write_table(table, stem, about, shown=shown.rename(columns=columns), notes=notes)


def _cell(mean: float, low: float = np.nan, high: float = np.nan, form: str = "{:.3f}") -> str:
    if pd.isna(mean):
        return ""
    return form.format(round(mean, 3) + 0.0) + ("" if pd.isna(low) else f" [{low:.3f}, {high:.3f}]")


def _student(values: np.ndarray) -> tuple[float, float]:
    """Return the mean and half the width of its 95 % interval, nan for too few values."""
    count = len(values)
    if count < INTERVAL_SEEDS:
        return float(values.mean()), float("nan")
    half = student.ppf(0.975, count - 1) * values.std(ddof=1) / np.sqrt(count)
    return float(values.mean()), float(half)


def _jackknife(above: np.ndarray, below: np.ndarray) -> tuple[float, float]:
    """Return sum(above) / sum(below) and half the width of its jackknife interval over seeds."""
    ratio, count = above.sum() / below.sum(), len(above)
    if count < INTERVAL_SEEDS:
        return float(ratio), float("nan")
    left_out = (above.sum() - above) / (below.sum() - below)
    return float(ratio), _student(count * ratio - (count - 1) * left_out)[1]
