"""Figures of the arms beyond the paper: all arms in a line each, and what P(high) and G change."""

from __future__ import annotations

import textwrap

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rc_lib.arms import RL_ARMS
from rc_lib.beyond_training import EARLY, LATE, PANELS, REFERENCE, settings
from rc_lib.figures import INTERVAL_SEEDS, RC, WIDTHS
from rc_lib.records import seed_item_matrix
from rc_lib.stats import arm_interval, cluster_of
from rc_lib.variance_tables import over_seeds

SFT_COLOR, RCTP_COLOR = "#D55E00", "#0072B2"  # by the start of an arm
TOKEN_COLORS = {"high": "#009E73", "low": "#CC79A7"}
AXES = {"P(high)": "p_high", "G": "group_size"}  # drawn panels and their column
POWER = "power"  # the larger test set


def arms_figure(table: pd.DataFrame, per_item: pd.DataFrame, profile: str) -> Figure:
    """Draw accuracy on the power set and the late degenerate share, a line an arm.

    Args:
        table: `beyond.arms_table`.
        per_item: the records that it was made from, for the seeds.
        profile: named in the title.
    """
    greedy = _power_rows(per_item)
    with mpl.rc_context(RC):
        figure = Figure(figsize=(WIDTHS[1], 1.1 + 0.19 * len(table)), layout="constrained")
        axes = figure.subplots(1, 2, sharey=True, width_ratios=(1.4, 1))
        for place, row in enumerate(table.itertuples()):
            arm = RL_ARMS.get(row.arm)
            color = SFT_COLOR if (arm.start if arm else row.arm).startswith("sft") else RCTP_COLOR
            mine = greedy[(greedy["arm"] == row.arm) & (greedy["token"] == row.token)]
            by_seed = 100 * mine.groupby("seed")["correct"].mean()
            axes[0].plot(by_seed, [place + 0.27] * len(by_seed), "|", color="0.4", markersize=3.5)
            for ax, column in zip(axes, (POWER, "degenerate"), strict=True):
                ends = [getattr(row, f"{column}_{end}") for end in ("low", "high")]
                ax.plot(ends, [place, place], color=color, linewidth=1.3)
                fill = "full" if arm else "none"
                ax.plot(getattr(row, column), place, "o", color=color, markersize=4, fillstyle=fill)
                ax.axhline(place, color="0.92", linewidth=0.5, zorder=0)
        labels = [f"{row.label} [{row.token}, {row.seeds}]" for row in table.itertuples()]
        axes[0].set_yticks(range(len(table)), labels)
        axes[0].set_ylim(len(table) - 0.5, -0.7)
        axes[0].set_xlabel(f"accuracy (%), power set, n = {greedy['item_id'].nunique()}")
        axes[1].set_xlabel(f"degenerate share, last {LATE} rounds")
        axes[1].set_xlim(-0.02, 1.02)
        text = (
            "Orange: from an SFT start, blue: from an RCTP-FT start; open: the start, without RL. "
            "In brackets the token of the evaluation and the number of seeds. Lines: 95 % "
            "intervals, left a crossed bootstrap over seeds and tasks, right Student over seeds, "
            f"from {INTERVAL_SEEDS} seeds on; ticks: seeds. Groups of another "
            "size are more or less often degenerate by that alone; a quarter of the prompts makes "
            "a quarter of the rollouts."
        )
        _frame(figure, f"Arms beyond the paper, profile {profile}", text)
    return figure


def curves_figure(early: pd.DataFrame, per_item: pd.DataFrame, profile: str) -> Figure:
    """Draw accuracy and early variance against P(high) and against G.

    A panel shows the seeds that all of its recorded arms have.

    Args:
        early: `beyond_training.early_variance`.
        per_item: the records of the same run.
        profile: named in the title.
    """
    greedy, (p_high, size) = _power_rows(per_item), settings(RL_ARMS[REFERENCE], profile)
    with mpl.rc_context(RC):
        figure = Figure(figsize=(WIDTHS[1], 4.2), layout="constrained")
        axes = figure.subplots(2, 2, sharex="col", sharey="row", width_ratios=(1.3, 1))
        for (above, below), (panel, column) in zip(axes.T, AXES.items(), strict=True):
            rows = _common_seeds(early[early["arm"].isin(PANELS[panel])])
            seeds = sorted(rows["seed"].unique())
            if not seeds:
                above.set_title(f"{panel}: no seed has all its arms", loc="left")
                continue
            place = rows.drop_duplicates("arm").set_index("arm")[column].sort_values()
            _draw_accuracy(above, greedy[greedy["seed"].isin(seeds)], place)
            _draw_variance(below, rows, column)
            title = f"{panel}, {len(place)} arms, seeds {' '.join(map(str, seeds))}"
            above.set_title(title, loc="left")
            words = (f"P(high), G = {size}", f"group size G, P(high) {p_high}")
            below.set_xlabel(words[panel == "G"])
            below.set_xticks(place)
        axes[0, 0].set_ylabel(f"accuracy (%), power set, n = {greedy['item_id'].nunique()}")
        axes[1, 0].set_ylabel(rf"$E[\sigma_g^2]$, first {EARLY} steps")
        for left, right in axes:
            legend = left.get_legend_handles_labels()
            right.legend(*legend, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
        text = (
            "Marks: means over the seeds named; ticks: seeds; lines through marks: 95 % intervals, "
            "above a crossed bootstrap over seeds and tasks, below Student over seeds, from "
            f"{INTERVAL_SEEDS} seeds on. Equal rollouts a step in all arms. Predicted: Prop. 4.3's "
            f"arithmetic from the first {EARLY} steps of the arm at P(high) {p_high}, G = {size}, "
            "whose own prediction is therefore no test; equal tasks: from mu_high and mu_low alone."
        )
        _frame(figure, f"P(high) and group size of RC-GRPO, profile {profile}", text)
    return figure


def _draw_accuracy(ax: Axes, greedy: pd.DataFrame, place: pd.Series) -> None:
    """Accuracy under the high and the low token at each place."""
    width = 0.012 * (place.max() - place.min())
    for (token, color), side in zip(TOKEN_COLORS.items(), (-width, width), strict=True):
        means = []
        for arm, x in place.items():
            mine = greedy[(greedy["arm"] == arm) & (greedy["token"] == token)]
            values = seed_item_matrix(mine)
            means.append(100 * values.to_numpy().mean())
            by_seed = 100 * values.mean(axis=1)
            ax.plot(
                [x + 2.2 * side] * len(by_seed), by_seed, "_", color=color, markersize=4, alpha=0.6
            )
            if len(values) >= INTERVAL_SEEDS:
                ends = arm_interval(values, [cluster_of(item) for item in values.columns])
                ax.plot([x + side] * 2, [100 * end for end in ends], color=color)
        ax.plot(place + side, means, "o-", color=color, markersize=4, linewidth=0.7,
                label=f"{token} token")  # fmt: skip


def _draw_variance(ax: Axes, rows: pd.DataFrame, column: str) -> None:
    """Measured variance of the first steps at each place, and what is predicted."""
    means = over_seeds(rows, ["arm"]).sort_values(column)
    ax.plot(rows[column], rows["sigma2"], "_", color="0.5", markersize=5, label="each seed")
    ends = [means["sigma2_low"], means["sigma2_high"]]
    ax.vlines(means[column], *ends, color="k", linewidth=1.2)
    ax.plot(means[column], means["sigma2"], "o", color="k", markersize=4, label="measured")
    styles = {
        "predicted": ("D-", RCTP_COLOR, "predicted"),
        "one_task": ("x:", SFT_COLOR, "predicted, equal tasks"),
        "bound": ("^--", "0.5", "bound of Prop. 4.3"),
    }
    for name, (style, color, label) in styles.items():
        ax.plot(means[column], means[name], style, color=color, markersize=4.5, fillstyle="none",
                linewidth=0.7, label=label)  # fmt: skip
    ax.set_ylim(bottom=0)


def _common_seeds(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep the seeds that every arm has."""
    counts = rows.groupby("seed")["arm"].nunique()
    return rows[rows["seed"].isin(counts.index[counts == rows["arm"].nunique()])]


def _power_rows(per_item: pd.DataFrame) -> pd.DataFrame:
    return per_item[(per_item["decoding"] == "greedy") & (per_item["test_set"] == POWER)]


def _frame(figure: Figure, title: str, text: str) -> None:
    figure.suptitle(title, x=0.01, ha="left", weight="bold", size=8)
    lines = textwrap.fill(text, width=int(22 * figure.get_figwidth()))
    figure.supxlabel(lines, x=0.01, ha="left", size=6, color="0.25")
