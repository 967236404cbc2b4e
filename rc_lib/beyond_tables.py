"""Tables and figures of the arms beyond the paper, rebuilt from the records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
from scipy.stats import norm

from rc_lib import paths
from rc_lib.arms import EXTRA_ARMS, RL_ARMS, SHORT
from rc_lib.beyond import COMPARISONS, ROWS, arms_table, pairs_table
from rc_lib.beyond_figure import arms_figure, curves_figure
from rc_lib.beyond_training import (
    EARLY,
    LATE,
    LATE_COLUMNS,
    PANEL_ARMS,
    REFERENCE,
    early_variance,
    training_statistics,
)
from rc_lib.figures import INTERVAL_SEEDS, save_figure
from rc_lib.records import TOKENS, found_seeds, input_hashes, read_records, record_files
from rc_lib.stats import ALPHA, POWER
from rc_lib.table1 import missing_words
from rc_lib.tables import formatted, with_brackets, write_table
from rc_lib.variance_tables import over_seeds


def notes(table: pd.DataFrame, pairs: pd.DataFrame, profile: str) -> dict[str, list[str]]:
    """Return the paragraphs under the table of arms (``arms``) and of comparisons (``pairs``)."""
    absent = [name for name in ROWS if name not in set(table["arm"])]
    measured = set(zip(pairs["first"], pairs["second"], strict=True))
    unmeasured = [
        f"{c.question}: {c.words}" for c in COMPARISONS if (c.first, c.second) not in measured
    ]
    about = [
        f"Profile {profile}, greedy decoding. Accuracy under the token that the arm was trained "
        "with most, with the 95 % interval of a crossed bootstrap over seeds and tasks; behind it "
        "the accuracy under the high, the low and no token.",
        f"Late: the last {LATE} rounds of sampling, over all groups rolled, those that dynamic "
        "sampling left out too; mean over seeds with its 95 % Student interval. A larger group is "
        "less often degenerate and has a larger E[sigma_g^2] by itself, so these two do not "
        f"compare across G. Intervals: from {INTERVAL_SEEDS} seeds on.",
        "Steps are optimizer steps. Every arm draws the same number of rollouts unless it has a "
        "quarter of the prompts; with dynamic sampling they make fewer, fuller steps.",
    ]
    family = (
        "Difference: first minus second arm on the seeds that both have, each under the token it "
        "was trained with most. Interval and two-sided p: crossed bootstrap of paired differences, "
        f"from {INTERVAL_SEEDS} common seeds on. Holm over the {len(COMPARISONS)} declared "
        "comparisons of a test set; one without p counts as p = 1. Of S seeds the bootstrap sees "
        "(S - 1) / S of the variance that they have of their own, and it counts their interaction "
        "with the tasks more than once: read the differences by seed too."
    )
    missing = [f"Not recorded, and so in no row: {', '.join(absent)}."] if absent else []
    left_out = [f"Not measured: {'; '.join(unmeasured)}."] if unmeasured else []
    return {"arms": [*missing, *about], "pairs": [*left_out, family, *power_statements(pairs)]}


def power_statements(pairs: pd.DataFrame) -> list[str]:
    """Return a sentence a test set and number of seeds: the differences found with power 0.8."""
    known = pairs.dropna(subset="detectable")
    if known.empty:
        return [f"No comparison has {INTERVAL_SEEDS} common seeds, so none has an interval."]
    words = [
        f"Smallest true difference that {test_set} (n = {rows['n'].iloc[0]}) finds at the 5 % "
        f"level with power 0.8 over {seeds} seeds: {rows['detectable'].median():.1f} points, "
        f"median of the comparisons measured so, {len(rows)} in number "
        f"({rows['detectable'].min():.1f} to {rows['detectable'].max():.1f})."
        for (test_set, seeds), rows in known.groupby(["test_set", "seeds"])
    ]
    alone, first = norm.ppf([1 - ALPHA / 2, 1 - ALPHA / 2 / len(COMPARISONS)]) + norm.ppf(POWER)
    return [
        *words,
        f"The first step of Holm's procedure asks for {first / alone:.1f} times as much.",
    ]


def show_arms(table: pd.DataFrame) -> pd.DataFrame:
    """Return `arms_table` as a reader sees it."""
    shown = pd.DataFrame({"Arm": table["label"], "Token": table["token"]})
    shown["Seeds"] = _seed_words(table)
    for test_set in SHORT.test_sets:
        shown[f"{test_set} (%)"] = with_brackets(table, test_set, "{:.1f}", True)
        under = [formatted(table[f"{test_set}_under_{token}"], "{:.1f}") for token in TOKENS]
        cells = [" / ".join(row) for row in zip(*under, strict=True)]
        shown[f"{test_set}: high / low / none (%)"] = cells
    shares = {c: 100 * table[c] for c in table if c.startswith(LATE_COLUMNS)}
    late = table.assign(**shares)
    shown["Degenerate, late (%)"] = with_brackets(late, "degenerate", "{:.1f}", True)
    shown["100 E[sigma_g^2], late"] = with_brackets(late, "sigma2", "{:.1f}", True)
    headings = {
        "stage1_steps": "Stage-1 steps", "optimizer_steps": "RL steps", "rollouts": "Rollouts",
        "spread_groups": "Groups with spread",
    }  # fmt: skip
    for column, heading in headings.items():
        shown[heading] = formatted(table[column], "{:.0f}")
    return shown


def show_pairs(pairs: pd.DataFrame) -> pd.DataFrame:
    """Return `pairs_table` as a reader sees it."""
    shown = pairs[["test_set", "question", "words", "first", "second"]].copy()
    shown.columns = ["Test set", "Question", "Comparison", "First", "Second"]
    shown["Seeds"] = _seed_words(pairs)
    table = pairs.rename(columns={"low": "difference_low", "high": "difference_high"})
    shown["Difference (points)"] = with_brackets(table, "difference", "{:+.1f}", True)
    shown["By seed (points)"] = pairs["by_seed"]
    shown["p"], shown["p (Holm)"] = (formatted(pairs[name], "{:.4f}") for name in ("p", "p_holm"))
    shown["Detectable (points)"] = formatted(pairs["detectable"], "{:.1f}")
    return shown


def write_beyond(
    records_root: Path,
    tables_dir: Path,
    figures_dir: Path,
    profile: str,
    seeds: Sequence[int] | None = None,
) -> list[Path]:
    """Write ``beyond_arms``, ``beyond_pairs`` and ``beyond_curves``, tables and figures.

    Args:
        records_root: folder that holds ``seed<k>/<arm>/``.
        tables_dir, figures_dir: folders to write to.
        profile: profile of the records.
        seeds: seeds that should be there; None takes those found.

    Returns:
        The paths written; what cannot be written for want of an arm is printed.
    """
    root, tables, figures = (paths.resolve(x) for x in (records_root, tables_dir, figures_dir))
    seeds = found_seeds(root) if seeds is None else sorted(seeds)
    found = {arm for arm, _ in record_files(root, "per_item.csv", seeds)}
    if not found & set(EXTRA_ARMS):
        where = paths.portable(root)
        print(f"beyond the paper: no extra arm in {where}; run notebook 42, then 11 with arm=...")
        return []
    per_item = read_records(root, profile, seeds)
    per_item = per_item[per_item["arm"].isin(ROWS)]
    table = arms_table(per_item, training_statistics(root, seeds), seeds)
    pairs = pairs_table(per_item, seeds)
    about = _about(root, profile, seeds, ("per_item.csv", "curve.csv", "groups.csv"), ROWS)
    text, stem = notes(table, pairs, profile), "beyond_arms"
    written = [
        *write_table(table, tables / stem, about, shown=show_arms(table), notes=text["arms"]),
        *write_table(
            pairs, tables / "beyond_pairs", about, shown=show_pairs(pairs), notes=text["pairs"]
        ),
        *save_figure(arms_figure(table, per_item, profile), figures / stem, about),
    ]
    early = early_variance(root, profile, seeds)
    if early.empty or early["arm"].nunique() == 1:
        others = ", ".join(arm for arm in PANEL_ARMS if arm != REFERENCE)
        print(f"beyond the paper: no beyond_curves without {REFERENCE} and one of {others}")
        return written
    about = _about(root, profile, seeds, ("per_item.csv", "groups.csv"), PANEL_ARMS)
    figure = curves_figure(early, per_item, profile)
    return [
        *written,
        *_write_early(early, tables / "beyond_curves", about),
        *save_figure(figure, figures / "beyond_curves", about),
    ]


def _write_early(early: pd.DataFrame, stem: Path, about: Mapping) -> list[Path]:
    """Write the measured and the predicted variance of the first steps, means over seeds."""
    table = over_seeds(early, ["arm", "p_high", "group_size"]).round(6)
    shown = pd.DataFrame({"Arm": table["arm"].map(lambda name: RL_ARMS[name].label)})
    shown["P(high)"], shown["G"] = table["p_high"], table["group_size"]
    shown["Seeds"] = table["seeds"]
    headings = {
        "sigma2": "Measured", "predicted": "Predicted", "difference": "Measured - predicted",
        "one_task": "If tasks were equally hard", "bound": "Bound",
    }  # fmt: skip
    for column, heading in headings.items():
        ends = {f"{column}_{end}": 100 * table[f"{column}_{end}"] for end in ("low", "high")}
        scaled = table.assign(**{column: 100 * table[column]}, **ends)
        interval = column in ("sigma2", "difference")
        shown[heading] = with_brackets(scaled, column, "{:.2f}", interval)
    text = (
        f"Profile {about['profile']}. 100 E[sigma_g^2] over the first {EARLY} steps, mean over "
        "seeds with its 95 % Student interval. Predicted: Prop. 4.3's arithmetic at the arm's "
        "P(high), G and kind of tokens, from the first steps of the reference arm "
        f"({RL_ARMS[REFERENCE].label}), whose own row is therefore no test. If tasks were equally "
        "hard: from mu_high and mu_low alone. Bound: kappa (mu_high - mu_low)^2. The rows of a "
        "seed share the error of its prediction, and the policy is trained during these steps."
    )
    return write_table(table, stem, about, shown=shown, notes=[text])


def _about(root: Path, profile: str, seeds, names: Sequence[str], arms) -> dict:
    used = [
        path
        for name in names
        for (arm, _), path in record_files(root, name, seeds).items()
        if arm in arms
    ]
    return {"profile": profile, "seeds": list(seeds), "inputs": input_hashes(root, used)}


def _seed_words(table: pd.DataFrame) -> list[str]:
    return [missing_words(*row) for row in zip(table["seeds"], table["missing_seeds"], strict=True)]
