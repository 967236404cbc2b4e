"""RC-GRPO's Table 4 from the records: how policy entropy and reward go together along training."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.signal import detrend
from scipy.stats import pearsonr

from rc_lib.config import ARMS, get_profile
from rc_lib.figures import INTERVAL_SEEDS, RC, WIDTHS
from rc_lib.published import published
from rc_lib.records import record_files
from rc_lib.table1 import METHODS, missing_words
from rc_lib.tables import formatted
from rc_lib.variance_tables import over_seeds

COLUMNS = ("entropy", "reward")
# RC-GRPO less GRPO from the same start: what a difference is called, and its arms.
STARTS = {
    "SFT start": ("sft_rc_grpo", "sft_grpo"),
    "RCTP-FT start": ("rctp_rc_grpo", "rctp_grpo"),
}
MIN_STEPS = 4  # Fisher's interval needs more than 3
VALUES = [f"{name}{end}" for name in ("r", "r_detrended") for end in ("", "_low", "_high")]


def read_curves(records_root: Path, seeds: Sequence[int], columns: Sequence[str]) -> pd.DataFrame:
    """Read columns of ``curve.csv`` of Table 1's four RL arms, whatever stands beside them.

    Args:
        records_root: folder that holds ``seed<k>/<arm>/curve.csv``.
        seeds: seeds to look for.
        columns: columns to read, without blanks.

    Returns:
        One row an arm, seed and step: ``arm``, ``seed``, ``step`` and the columns.

    Raises:
        FileNotFoundError: if there is not one curve.
        ValueError: for a column that is missing or has a blank, or seeds with other steps.
    """
    files, tables = record_files(records_root, "curve.csv", seeds), []
    for arm, seed in ((arm, seed) for arm in ARMS for seed in seeds if (arm, seed) in files):
        path = files[arm, seed]
        curve = pd.read_csv(path)
        missing = [name for name in ("step", *columns) if name not in curve]
        blank = [name for name in columns if name not in missing and curve[name].isna().any()]
        if missing or blank:
            words = [f"{kind} {', '.join(names)}" for kind, names in
                     (("missing columns", missing), ("blanks in", blank)) if names]  # fmt: skip
            raise ValueError(f"{path}: {'; '.join(words)}; train the arm again")
        tables.append(curve[["step", *columns]].assign(arm=arm, seed=seed))
        if not tables[-1]["step"].equals(tables[0]["step"]):
            raise ValueError(
                f"{path}: {len(curve)} steps, {tables[0]['arm'].iloc[0]} of seed "
                f"{tables[0]['seed'].iloc[0]} has {len(tables[0])}; let the training finish"
            )
    if not tables:
        raise FileNotFoundError(
            f"no curve.csv of {', '.join(ARMS)} under {records_root} for seeds {list(seeds)}; "
            "run notebooks 10_stage1_sft_and_rctp and 11_stage2_rc_grpo first"
        )
    return pd.concat(tables, ignore_index=True)


def correlations(curves: pd.DataFrame) -> pd.DataFrame:
    """Return the Pearson correlation of entropy and reward over the steps of each arm and seed.

    Args:
        curves: `read_curves` with the columns entropy (nats a token) and reward.

    Returns:
        One row an arm and seed: ``arm``, ``seed``, ``steps``, ``r`` with Fisher's 95 % interval
        ``r_low`` to ``r_high``, which takes the steps for independent and is too narrow where they
        are not; and ``r_detrended``, of what is left of both when a straight line over the steps
        is taken out. All are nan below `MIN_STEPS` steps or where one of the two never changes.

    >>> curves = pd.DataFrame({"arm": "a", "seed": 0, "entropy": [1, 2, 3, 4, 5.0]})
    >>> correlations(curves.assign(reward=[5, 3, 4, 2, 1]))["r"].round(2).tolist()
    [-0.9]
    """
    rows = []
    for (arm, seed), curve in curves.groupby(["arm", "seed"], sort=False):
        entropy, reward = (curve[name].to_numpy(dtype=np.float64) for name in COLUMNS)
        row = {"arm": arm, "seed": seed, "steps": len(curve)} | dict.fromkeys(
            ("r", "r_low", "r_high", "r_detrended"), np.nan
        )
        if len(curve) >= MIN_STEPS and np.ptp(entropy) > 0 and np.ptp(reward) > 0:
            found = pearsonr(entropy, reward)
            row["r"], (row["r_low"], row["r_high"]) = found.statistic, found.confidence_interval()
            row["r_detrended"] = np.corrcoef(detrend(entropy), detrend(reward))[0, 1]
        rows.append(row)
    return pd.DataFrame(rows)


def table4(curves: pd.DataFrame, profile: str, seeds: Sequence[int]) -> pd.DataFrame:
    """Return RC-GRPO's Table 4: the published signs, the arms over seeds, each seed, differences.

    Source: RC-GRPO (arXiv 2602.03025), Table 4, of which the signs alone are known here.

    Deviation: how the paper pools its steps is not known here. The steps of a run are not
    independent, so a seed counts as one observation: Fisher's z is averaged over seeds, and its
    Student interval turned back into r.

    Args:
        curves: `read_curves` with entropy and reward.
        profile: of the curves.
        seeds: seeds that should be there.

    Returns:
        One row a published cell, arm (``row`` is ``arm``), arm and seed (``seed``), and start
        (``difference``: r of RC-GRPO less r of GRPO, paired by seed, with its Student interval);
        columns ``sign`` (of an arm: ``negative``, ``positive``, or ``open`` where the interval
        holds 0; of a published row what is printed), `VALUES`, ``steps`` of a seed, ``seeds``,
        ``missing_seeds``. Intervals over seeds are blank below `INTERVAL_SEEDS` seeds.
    """
    by_seed = correlations(curves)
    fisher = by_seed[["arm", "seed"]].assign(
        r=np.arctanh(by_seed["r"]), r_detrended=np.arctanh(by_seed["r_detrended"])
    )
    pooled = over_seeds(fisher, ["arm"]).set_index("arm")
    pooled[VALUES] = np.tanh(pooled[VALUES])
    labels = {"profile": profile, "model": get_profile(profile).model, "source": "measured"}
    rows = [
        {"source": "published", "row": "published", "model": cell.model, "method": cell.method,
         "sign": cell.value, "mark": cell.mark}
        for cell in published("rc_grpo_table4").itertuples()
    ]  # fmt: skip
    for arm, mine in by_seed.groupby("arm", sort=False):
        row = labels | {"method": METHODS[arm], "steps": mine["steps"].iloc[0]}
        pool = pooled.loc[arm, VALUES].to_dict()
        rows.append(row | {"row": "arm"} | _found(mine, seeds) | pool)
        rows += [row | {"row": "seed"} | one for one in mine.drop(columns="arm").to_dict("records")]
    for start, (new, old) in STARTS.items():
        pair = _difference(by_seed, new, old)
        if len(pair):
            values = over_seeds(pair.assign(row="difference"), ["row"]).iloc[0].to_dict()
            steps = {"steps": by_seed["steps"].iloc[0]}
            name = {"method": f"RC-GRPO less GRPO, {start}"}
            rows.append(labels | name | steps | values | _found(pair, seeds))
    names = ["source", "profile", "model", "method", "row", "seed", "seeds", "missing_seeds"]
    table = pd.DataFrame(rows, columns=[*names, "steps", "sign", *VALUES, "mark"])
    arms = table["row"] == "arm"
    table.loc[arms, "sign"] = [_sign(row.r_low, row.r_high) for row in table[arms].itertuples()]
    whole = dict.fromkeys(("seed", "seeds", "steps"), "Int64")
    return table.round(dict.fromkeys(VALUES, 4)).astype(whole)


def show_table4(table: pd.DataFrame) -> pd.DataFrame:
    """Return `table4` as a reader sees it."""
    shown = pd.DataFrame({"Source": sources(table), "Model": table["model"]})
    shown["Method"] = table["method"]
    shown["Seeds"] = [
        f"seed {row.seed} alone" if row.row == "seed" else seed_words(row)
        for row in table.itertuples()
    ]
    shown["Steps"] = table["steps"].astype(object).where(table["steps"].notna(), "")
    shown["Sign"] = table["sign"]
    shown["r"] = bracketed(table, "r", "{:+.2f}")
    shown["r, trend taken out"] = bracketed(table, "r_detrended", "{:+.2f}")
    return shown


def table4_notes(profile: str) -> list[str]:
    """Return the paragraphs under Table 4."""
    return [
        f"Profile {profile}. r: Pearson correlation, over the steps of RL, of the policy's entropy "
        "(nats a model token, mean of the step's rollouts) and the mean reward of the same step.",
        "A row of a seed has Fisher's 95 % interval, which takes the steps for independent. They "
        "are not (both series drift), so it is too narrow, and no interval here pools steps. A row "
        "of all seeds counts a seed as one observation: mean of Fisher's z with its 95 % Student "
        f"interval, turned back into r, from {INTERVAL_SEEDS} seeds on. It is about other seeds of "
        "the same set-up, not about other tasks or models.",
        "Sign: of the interval over seeds; open: it holds 0. Two series that drift correlate by "
        "that alone: beside r stands what is left when a straight line over the steps is taken out "
        "of both. Even that names no cause: entropy and reward are means over the same rollouts, "
        "so if failing ones are less certain the two correlate without any effect of training.",
        "Published (arXiv 2602.03025, Table 4): the signs alone are known here, and not the start "
        "of the paper's GRPO row, so both starts are shown. Blank: not known.",
    ]


def entropy_figure(curves: pd.DataFrame, table: pd.DataFrame, profile: str) -> Figure:
    """Draw entropy against reward, a dot a step, for each arm, with a line of best fit a seed.

    Args:
        curves: `read_curves` with entropy and reward.
        table: `table4` of them.
        profile: named in the title.
    """
    pooled = table[table["row"] == "arm"].set_index("method")
    fitted = correlations(curves).set_index(["arm", "seed"])["r"].notna()
    with mpl.rc_context(RC):
        figure = Figure(figsize=(WIDTHS[1], 2.5), layout="constrained")
        axes = figure.subplots(1, len(ARMS), sharey=True)
        for ax, arm in zip(axes, ARMS, strict=True):
            ax.set_xlabel("entropy (nats a token)")
            mine = curves[curves["arm"] == arm]
            ax.set_title(METHODS[arm], loc="left")
            if mine.empty:
                continue
            dots = ax.scatter(*(mine[name] for name in COLUMNS), c=mine["step"], s=4, linewidths=0)
            for seed, one in mine.groupby("seed"):
                if fitted[arm, seed]:
                    slope, start = np.polyfit(one["entropy"], one["reward"], 1)
                    ends = np.array([one["entropy"].min(), one["entropy"].max()])
                    ax.plot(ends, start + slope * ends, color="k", linewidth=0.7)
            r = bracketed(pooled.loc[[METHODS[arm]]], "r", "{:+.2f}")[0]
            ax.set_title(f"{METHODS[arm]}\nr = {r or 'not known'}", loc="left")
        axes[0].set_ylabel("mean reward of the step")
        figure.colorbar(dots, ax=axes, label="RL step", pad=0.01)
        title = f"Table 4: entropy and reward along RL, profile {profile}"
        figure.suptitle(title, x=0.01, ha="left", weight="bold", size=8)
        text = (
            f"{_seeds_of(table)}. Dots: steps; lines: least squares, one a seed. r: correlation "
            "over steps, mean over seeds (of Fisher's z) with its 95 % Student interval, from "
            f"{INTERVAL_SEEDS} seeds on. Published (arXiv 2602.03025, Table 4): negative for "
            "RC-GRPO, positive for GRPO."
        )
        lines = textwrap.fill(text, width=int(22 * figure.get_figwidth()))
        figure.supxlabel(lines, x=0.01, ha="left", size=6, color="0.25")
    return figure


def bracketed(table: pd.DataFrame, column: str, form: str) -> list[str]:
    """Return numbers with their ``_low`` and ``_high`` in brackets; what is missing is left out.

    >>> bracketed(pd.DataFrame({"x": [1.0], "x_low": [0.5], "x_high": [1.5]}), "x", "{:.1f}")
    ['1.0 [0.5, 1.5]']
    """
    means, lows, highs = (formatted(table[f"{column}{end}"], form) for end in ("", "_low", "_high"))
    return [
        f"{mean} [{low}, {high}]" if low else mean
        for mean, low, high in zip(means, lows, highs, strict=True)
    ]


def sources(table: pd.DataFrame) -> list[str]:
    """Return where each row comes from, for a reader: the profile, or the paper with its mark."""
    rows = zip(table["source"], table["profile"], table["mark"], strict=True)
    return [
        f"here, {profile}" if source == "measured" else f"paper [{mark}]".replace(" [nan]", "")
        for source, profile, mark in rows
    ]


def seed_words(row) -> str:
    """Return the number of seeds of a measured row, for a reader; nothing for a published one."""
    return missing_words(row.seeds, row.missing_seeds) if row.source == "measured" else ""


def _difference(by_seed: pd.DataFrame, new: str, old: str) -> pd.DataFrame:
    """r of one arm less r of another, on the seeds that both have."""
    names, rows = ["r", "r_detrended"], by_seed.set_index("seed")
    first, second = (rows[rows["arm"] == arm] for arm in (new, old))
    return first[names].sub(second[names]).loc[first.index.intersection(second.index)].reset_index()


def _found(rows: pd.DataFrame, seeds: Sequence[int]) -> dict:
    missing = sorted(set(seeds) - set(rows["seed"]))
    return {"seeds": len(rows), "missing_seeds": " ".join(map(str, missing))}


def _seeds_of(table: pd.DataFrame) -> str:
    """How many seeds each drawn arm has, named only where they differ."""
    arms = table[table["row"] == "arm"]
    if arms["seeds"].nunique() == 1:
        count = arms["seeds"].iloc[0]
        return f"{count} seeds an arm" if count > 1 else "1 seed an arm"
    return "Seeds: " + ", ".join(f"{row.method} {row.seeds}" for row in arms.itertuples())


def _sign(low: float, high: float) -> str:
    if np.isnan(low):
        return ""
    return "negative" if high < 0 else "positive" if low > 0 else "open"
