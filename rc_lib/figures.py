"""Figures from recorded results: how training went, and Table 1 as a dot plot."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import t as student

from rc_lib import paths
from rc_lib.config import ARMS
from rc_lib.manifest import write_json
from rc_lib.published import MODELS
from rc_lib.records import record_files, seed_item_matrix
from rc_lib.table1 import METHODS, main_rows, select

WIDTHS = (3.25, 6.75)  # inches: one or two columns of a paper
# Okabe and Ito's colour-blind-safe palette; solid with reward tokens, dashed without.
STYLES = {
    "sft_grpo": ("#E69F00", (0, (4, 1.5))),
    "sft_rc_grpo": ("#D55E00", "-"),
    "rctp_grpo": ("#56B4E9", (0, (4, 1.5))),
    "rctp_rc_grpo": ("#0072B2", "-"),
}
BASE_COLOR = "#000000"
RC = {
    "font.size": 7, "axes.titlesize": 7.5, "axes.labelsize": 7, "legend.fontsize": 7,
    "xtick.labelsize": 6.5, "ytick.labelsize": 6.5, "axes.linewidth": 0.6, "lines.linewidth": 1.2,
    "axes.spines.top": False, "axes.spines.right": False, "pdf.fonttype": 42,
    "svg.hashsalt": "rc_lib", "savefig.dpi": 200,
}  # fmt: skip
# Column of curve.csv, or their difference, and the title of its panel.
PANELS = {
    "reward": "mean reward",
    "sigma2": r"variance in groups, $E[\sigma_g^2]$",
    "degenerate": "share of degenerate groups",
    "gap": r"$\mu_{high} - \mu_{low}$",
    "entropy": "entropy (nats a token)",
    "grad_norm": "gradient norm, unclipped",
    "kl": "KL to start (nats a token)",
}
CURVE_COLUMNS = (
    "step",
    "reward",
    "mu_high",
    "mu_low",
    "sigma2",
    "degenerate",
    "entropy",
    "kl",
    "grad_norm",
)
TABLE1_CAPTION = (
    "Greedy decoding. Lines: 95 % interval, crossed bootstrap over seeds and tasks. Published: "
    "arXiv 2602.03025, other models on other tasks (80), one number each, no seeds or intervals."
)
INTERVAL_SEEDS = 3  # two would give a Student interval of 9 standard deviations
SMOOTH = 5  # steps of the centred running mean


def training_dynamics(records_root: Path, profile: str, seeds: Sequence[int]) -> Figure:
    """Draw reward, variance, conditioning gap, entropy, gradient and KL along RL, for every arm.

    Source: RC-GRPO (arXiv 2602.03025), its figure of training dynamics and Tables 4 and 5, of which
    only signs and one number are known here: they are words in the caption, not curves.

    Args:
        records_root: folder that holds ``seed<k>/<arm>/curve.csv``.
        profile: named in the title.
        seeds: seeds that should be there; the legend counts those found.

    Raises:
        FileNotFoundError: if there is no curve at all.
        ValueError: for a curve without a needed column, or seeds of one arm with other steps.
    """
    curves = {arm: _read_curves(records_root, arm, seeds) for arm in ARMS}
    if not any(curves.values()):
        raise FileNotFoundError(f"no seed<k>/<arm>/curve.csv under {records_root}; train first")
    with mpl.rc_context(RC):
        figure = Figure(figsize=(WIDTHS[1], 3.9), layout="constrained")
        axes = figure.subplots(2, 4).ravel()
        for ax, (column, title) in zip(axes, PANELS.items(), strict=False):
            for arm, by_seed in curves.items():
                _draw_arm(ax, arm, [curve[column] for curve in by_seed.values()])
            ax.set_title(title, loc="left")
            if column == "gap":
                ax.axhline(0, color="0.6", linewidth=0.6, zorder=0)
        for ax in axes[3:7]:
            ax.set_xlabel("RL step")
        _legend(axes[7], curves, seeds)
        figure.suptitle(f"RL training, profile {profile}", x=0.01, ha="left", weight="bold", size=8)
        _caption(figure, _dynamics_caption(seeds))
    return figure


def table1_figure(per_item: pd.DataFrame, table: pd.DataFrame) -> Figure:
    """Draw measured accuracies with intervals and seeds beside the published ones.

    Source: RC-GRPO (arXiv 2602.03025), Table 1.

    Args:
        per_item: `records.read_records`.
        table: `table1.table1` of it.
    """
    measured = table[table["source"] == "measured"].set_index("method")
    rows = main_rows(per_item)
    sets = {"test": "overall", "power": "power", "unseen_wording": "unseen_wording"}
    with mpl.rc_context(RC):
        figure = Figure(figsize=(WIDTHS[1], 2.7), layout="constrained")
        axes = figure.subplots(1, 3, sharey=True, width_ratios=(1.6, 1, 1))
        for ax, (test_set, column) in zip(axes, sets.items(), strict=True):
            for place, (arm, method) in enumerate(METHODS.items()):
                _draw_measured(ax, place, arm, measured.loc[method], column)
                _draw_seeds(ax, place, select(rows, arm, test_set))
            n = measured["n" if test_set == "test" else f"{test_set}_n"].max()
            ax.set_title(f"{test_set.replace('_', ' ')}, n = {n}", loc="left")
            ax.set_xlabel("accuracy (%)")
            ax.set_xlim(-3, 103)
            ax.grid(axis="x", color="0.9", linewidth=0.5)
        _draw_published(axes[0], table[table["source"] == "published"])
        labels = [
            f"{row.Index}\n{_count(row.seeds, row.seeds + len(row.missing_seeds.split()))}"
            for row in measured.itertuples()
        ]
        axes[0].set_yticks(range(len(METHODS)), labels)
        axes[0].set_ylim(len(METHODS) - 0.45, -0.55)
        legend = axes[0].get_legend_handles_labels()
        figure.legend(*legend, loc="outside upper right", ncols=2, frameon=False)
        profile, model = measured[["profile", "model"]].iloc[0]
        title = f"Table 1, profile {profile} ({model})"
        figure.suptitle(title, x=0.01, ha="left", weight="bold", size=8)
        _caption(figure, TABLE1_CAPTION)
    return figure


def save_figure(figure: Figure, stem: Path, manifest: Mapping) -> list[Path]:
    """Write a figure as ``.pdf`` and ``.png`` with ``.manifest.json``, the same bytes every time.

    Args:
        figure: 3.25 or 6.75 in wide.
        stem: path without a suffix.
        manifest: what the figure was made from.

    Returns:
        The three paths.

    Raises:
        ValueError: for another width.
    """
    if figure.get_figwidth() not in WIDTHS:
        raise ValueError(f"{stem}: width {figure.get_figwidth()} in; use one of {WIDTHS}")
    stem = paths.resolve(stem)
    stem.parent.mkdir(parents=True, exist_ok=True)
    written = []
    # Dates and versions would make the bytes differ.
    kinds = {
        "pdf": {"CreationDate": None, "Producer": None, "Creator": None},
        "png": {"Software": None},
    }
    with mpl.rc_context(RC):
        for kind, metadata in kinds.items():
            path = Path(f"{stem}.{kind}")
            partial = path.with_name(path.name + ".partial")
            figure.savefig(partial, format=kind, metadata=metadata)
            os.replace(partial, path)
            written.append(path)
    return [*written, write_json(manifest, f"{stem}.manifest.json")]


def _read_curves(records_root: Path, arm: str, seeds: Sequence[int]) -> dict[int, pd.DataFrame]:
    curves = {}
    for (name, seed), path in record_files(records_root, "curve.csv", seeds).items():
        if name != arm:
            continue
        curve = pd.read_csv(path)
        missing = [column for column in CURVE_COLUMNS if column not in curve]
        if missing:
            raise ValueError(f"{path}: missing columns {', '.join(missing)}; train the arm again")
        curves[seed] = curve.set_index("step").assign(gap=curve["mu_high"] - curve["mu_low"])
        first = next(iter(curves.values()))
        if not curves[seed].index.equals(first.index):
            raise ValueError(
                f"{path}: {len(curve)} steps, other seeds of {arm} have {len(first)}; let it finish"
            )
    return curves


def _draw_arm(ax: Axes, arm: str, curves: list[pd.Series]) -> None:
    """Thin lines for the seeds, their mean, and where there are several its Student interval."""
    if not curves or curves[0].isna().all():
        return
    color, line = STYLES[arm]
    table = pd.DataFrame(curves).T.rolling(SMOOTH, center=True, min_periods=1).mean()
    mean = table.mean(axis=1)
    ax.plot(table.index, table, color=color, linewidth=0.4, alpha=0.35)
    ax.plot(mean.index, mean, color=color, linestyle=line, zorder=3)
    count = table.shape[1]
    if count >= INTERVAL_SEEDS:
        half = student.ppf(0.975, count - 1) * table.std(axis=1) / np.sqrt(count)
        ax.fill_between(mean.index, mean - half, mean + half, color=color, alpha=0.15, linewidth=0)


def _draw_measured(ax: Axes, place: int, arm: str, row: pd.Series, column: str) -> None:
    color = STYLES.get(arm, (BASE_COLOR, "-"))[0]
    if pd.notna(row[column]):
        ax.plot(
            row[[f"{column}_low", f"{column}_high"]], [place, place], color=color, linewidth=1.5
        )
        label = "measured" if arm == "base" else None
        ax.plot(row[column], place, "o", color=color, markersize=5, label=label, zorder=4)


def _draw_seeds(ax: Axes, place: int, rows: pd.DataFrame) -> None:
    if len(rows):
        means = 100 * seed_item_matrix(rows).mean(axis=1)
        label = "each seed" if place == 0 else None
        y = np.full(len(means), place + 0.2)
        ax.plot(means, y, "|", color="0.35", markersize=4, markeredgewidth=0.8, label=label)


def _draw_published(ax: Axes, rows: pd.DataFrame) -> None:
    for model, marker in zip(MODELS.values(), "sD", strict=True):
        cells = rows[rows["model"] == model].set_index("method")["overall"]
        places = [list(METHODS.values()).index(method) - 0.22 for method in cells.index]
        label = f"{model}, published"
        ax.plot(cells, places, marker, color="0.3", markersize=4, fillstyle="none", label=label)


def _count(found: int, wanted: int) -> str:
    words = f"{found} of {wanted}" if found < wanted else f"{found}"
    return words + (" seeds" if wanted > 1 else " seed")


def _legend(ax: Axes, curves: Mapping, seeds: Sequence[int]) -> None:
    ax.axis("off")
    for arm, by_seed in curves.items():
        color, line = STYLES[arm]
        label = f"{METHODS[arm]}\n{_count(len(by_seed), len(seeds))}"
        ax.plot([], [], color=color, linestyle=line, label=label)
    ax.legend(loc="center left", frameon=False, labelspacing=1.0, borderaxespad=0)


def _dynamics_caption(seeds: Sequence[int]) -> str:
    return (
        f"Thick: mean over seeds; thin: each of up to {len(seeds)} seeds; shade: 95 % Student "
        f"interval of that mean, from {INTERVAL_SEEDS} seeds on; all are centred running means of "
        f"{SMOOTH} steps. A degenerate group has no spread of reward; only arms with reward tokens "
        "have a gap. Published (arXiv 2602.03025, Table 4): entropy and reward correlate "
        "negatively along RC-GRPO, positively along GRPO."
    )


def _caption(figure: Figure, text: str) -> None:
    lines = textwrap.fill(text, width=int(22 * figure.get_figwidth()))
    figure.supxlabel(lines, x=0.01, ha="left", size=6, color="0.25")
