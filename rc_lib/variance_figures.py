"""Figures of Propositions 4.2 and 4.3, and all tables and figures of the variance from records."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rc_lib import paths
from rc_lib.config import ARMS, get_profile
from rc_lib.figures import RC, WIDTHS, save_figure
from rc_lib.proposition_figures import (
    BOUND,
    GREY,
    IID,
    STRATIFIED,
    proposition_4_2_figure,
    proposition_4_3_figure,
)
from rc_lib.records import input_hashes, record_files
from rc_lib.table1 import METHODS
from rc_lib.variance import degenerate_probability, variance_parts
from rc_lib.variance_records import WINDOW, seed_summaries, training_windows
from rc_lib.variance_signal import gradient_weights
from rc_lib.variance_tables import (
    NAMES,
    gradient_shares,
    write_measured_tables,
    write_proposition_4_2_table,
    write_proposition_4_3_tables,
    write_training_table,
)

MEASURED = ("groups", "kl", "gradients")  # files of a seed's folder "variance"
TOKENS = {"none": "no tokens", "high": "high token", "iid": "i.i.d. tokens"}


def write_variance(
    records_root: Path, tables_dir: Path, figures_dir: Path, profile: str, seeds: Sequence[int]
) -> list[Path]:
    """Rebuild every table and figure of the variance from recorded results, without a model.

    What a record lacks is named in a printed line, and the files that need it are not written.

    Args:
        records_root: folder that holds ``seed<k>/<arm>/`` and ``seed<k>/variance/``.
        tables_dir, figures_dir: folders to write to.
        profile: profile of the records; its group size and P(high) are used.
        seeds: seeds to look for.

    Returns:
        The paths written.
    """
    return [
        *write_proposition_4_2(tables_dir, figures_dir),
        *write_proposition_4_3(tables_dir, figures_dir),
        *write_measured(records_root, tables_dir, figures_dir, profile, seeds),
        *write_training(records_root, tables_dir, figures_dir, profile, seeds),
    ]


def write_proposition_4_2(tables_dir: Path, figures_dir: Path) -> list[Path]:
    """Write table and figure ``proposition_4_2``; they need no records."""
    stem = paths.resolve(figures_dir) / "proposition_4_2"
    return [
        *write_proposition_4_2_table(paths.resolve(tables_dir)),
        *save_figure(proposition_4_2_figure(), stem, {"inputs": {}}),
    ]


def write_proposition_4_3(tables_dir: Path, figures_dir: Path) -> list[Path]:
    """Write tables and figure ``proposition_4_3*``; they need no records."""
    stem = paths.resolve(figures_dir) / "proposition_4_3"
    return [
        *write_proposition_4_3_tables(paths.resolve(tables_dir)),
        *save_figure(proposition_4_3_figure(), stem, {"inputs": {}}),
    ]


def write_measured(records_root, tables_dir, figures_dir, profile, seeds) -> list[Path]:
    """Write what notebook 22 measured, over the seeds that have it; args as `write_variance`."""
    root, read, used = paths.resolve(records_root), {}, []
    files = {name: record_files(root, f"{name}.csv", seeds) for name in MEASURED}
    found = [seed for seed in seeds if all(("variance", seed) in files[name] for name in MEASURED)]
    _say_missing("variance/groups.csv, kl.csv or gradients.csv", seeds, found, 22)
    if not found:
        return []
    for name in MEASURED:
        parts = {seed: files[name]["variance", seed] for seed in found}
        used += parts.values()
        read[name] = pd.concat(
            [pd.read_csv(path).assign(seed=seed) for seed, path in parts.items()]
        )
    size, p_high = get_profile(profile).rl.group_size, get_profile(profile).p_high
    summaries = seed_summaries(read, size, p_high)
    shares = gradient_shares(read["gradients"])
    about = {"profile": profile, "seeds": found, "inputs": input_hashes(root, used)}
    tables, figures = paths.resolve(tables_dir), paths.resolve(figures_dir)
    drawn = {
        "proposition_4_2_measured": collapse_figure(summaries["collapse"], profile),
        "variance_temperature": temperature_figure(summaries["sampled"], profile, size),
        "gradient_parts": gradient_figure(shares, profile, size, p_high),
    }
    written = write_measured_tables(tables, summaries, shares, about)
    for name, figure in drawn.items():
        written += save_figure(figure, figures / name, about)
    return written


def write_training(records_root, tables_dir, figures_dir, profile, seeds) -> list[Path]:
    """Write the variance along training from groups.csv; args as `write_variance`."""
    root = paths.resolve(records_root)
    files = record_files(root, "groups.csv", seeds)
    for arm in ARMS:
        _say_missing(f"{arm}/groups.csv", seeds, [s for s in seeds if (arm, s) in files], 11)
    used = [path for (arm, _), path in files.items() if arm in ARMS]
    if not used:
        return []
    windows = training_windows(root, seeds, get_profile(profile).p_high)
    about = {"profile": profile, "seeds": sorted(set(windows["seed"].tolist()))}
    about["inputs"] = input_hashes(root, used)
    stem = paths.resolve(figures_dir) / "variance_in_training"
    return [
        *write_training_table(paths.resolve(tables_dir), windows, about),
        *save_figure(training_figure(windows, profile), stem, about),
    ]


def _say_missing(what: str, seeds: Sequence[int], found: Sequence[int], notebook: int) -> None:
    if missing := [seed for seed in seeds if seed not in found]:
        print(f"variance: no {what} of seeds {missing}; run notebook {notebook} for them")


def collapse_figure(collapsed: pd.DataFrame, profile: str) -> Figure:
    """Draw predicted and observed collapse of each policy: seeds as ticks, their mean as a mark."""
    marks = {
        "bound_task": ("x", r"$e^{-GT\varepsilon}$, a task's largest step", BOUND),
        "all_reference": ("D", "all the reference, exact", IID),
        "all_reference_seen": ("s", "all the reference, seen", "#56B4E9"),
        "identical": ("o", "all identical, seen", STRATIFIED),
        "all_fail": ("v", "all fail, seen", GREY),
        "degenerate": ("^", "equal rewards, seen", "k"),
    }
    groups = collapsed.groupby(["policy", "conditioning"], sort=False)
    with mpl.rc_context(RC):
        figure = Figure(figsize=(WIDTHS[1], 0.6 + 0.38 * len(groups)), layout="constrained")
        ax = figure.subplots()
        for y, (_, rows) in enumerate(groups):
            for offset, (column, (mark, label, color)) in enumerate(marks.items()):
                at = y + 0.12 * (offset - 2.5)
                ax.plot(rows[column], [at] * len(rows), "|", color=color, markersize=3, alpha=0.6)
                label = label if y == 0 else None
                ax.plot(rows[column].mean(), at, mark, color=color, markersize=3.5, label=label)
        ax.set_yticks(range(len(groups)), [f"{NAMES[p]}\n{TOKENS[c]}" for p, c in groups.groups])
        ax.set_ylim(len(groups) - 0.5, -0.5)
        ax.set_xlabel("share of groups")
        ax.grid(axis="x", color="0.92", linewidth=0.5)
        figure.legend(loc="outside right upper", frameon=False)
        _frame(figure, f"Proposition 4.2 measured, {_of(collapsed, profile)}")
    return figure


def temperature_figure(sampled: pd.DataFrame, profile: str, group_size: int) -> Figure:
    """Draw variance and degenerate groups against mean reward: temperatures, and tokens."""
    place = sampled.set_index(["policy", "conditioning"]).sort_index()
    curve = place.loc[[("sft", "none")]]
    q = np.linspace(0, 1, 101)
    exact = {
        "sigma2": [sum(variance_parts(group_size, 0.5, x, x)) for x in q],
        "degenerate": [degenerate_probability(group_size, 0.5, x, x) for x in q],
    }
    titles = {"sigma2": r"$E[\sigma_g^2]$", "degenerate": "share of degenerate groups"}
    with mpl.rc_context(RC):
        figure = Figure(figsize=(WIDTHS[1], 2.7), layout="constrained")
        axes = figure.subplots(1, 2)
        for ax, (column, title) in zip(axes, titles.items(), strict=True):
            ax.plot(q, exact[column], color=GREY, linestyle=":", label="one q for all tasks")
            for _, rows in curve.groupby("seed"):
                ax.plot(rows["reward"], rows[column], color=IID, linewidth=0.4, alpha=0.5)
            mean = curve.groupby("temperature")[["reward", column]].mean()
            ax.plot(*mean.to_numpy().T, "o-", color=IID, markersize=3, label="SFT, no tokens")
            for temperature, row in mean.iterrows():
                ax.annotate(f"{temperature:g}", row, (3, 4), textcoords="offset points", size=5.5)
            for kind, color in {"iid": STRATIFIED, "high": BOUND}.items():
                rows, label = place.loc[[("rctp", kind)]], f"RCTP-FT, {TOKENS[kind]}"
                ax.plot(rows["reward"], rows[column], ".", color=color, markersize=2.5)
                ax.plot(*rows[["reward", column]].mean(), "D", color=color, label=label)
            ax.set_title(title, loc="left")
            ax.set_xlabel("mean reward of the groups")
            ax.set_xlim(0, 1)
        figure.legend(
            *axes[0].get_legend_handles_labels(), loc="outside right upper", frameon=False
        )
        text = "Numbers: temperature of SFT, RCTP-FT has 1. Thin lines and dots: each seed."
        _frame(figure, f"Tokens or temperature, {_of(sampled, profile)}", text)
    return figure


def gradient_figure(shares: pd.DataFrame, profile: str, group_size: int, p_high: float) -> Figure:
    """Draw which share of the expected gradient and of its noise each part carries."""
    panels = {
        ("sum", "none"): r"policy gradient, $A_j = R_j - \mu_g$",
        ("mean", "group"): r"as trained: mean over tokens, $A_j / \sigma_g$",
    }
    names = {"group": "means of the group", "others": "means of the others"}
    rows = [(means, part) for means in names for part in ("between", "within")]
    table = shares.set_index(["normalization", "scale", "means", "part"])
    with mpl.rc_context(RC):
        figure = Figure(figsize=(WIDTHS[1], 2.3), layout="constrained")
        axes = figure.subplots(1, 2, sharey=True)
        for ax, (place, title) in zip(axes, panels.items(), strict=True):
            for y, (means, part) in enumerate(rows):
                row = table.loc[(*place, means, part)]
                ax.plot(row[["share_low", "share_high"]], [y, y], color=IID)
                ax.plot(row["share"], y, "o", color=IID, markersize=4)
                ax.plot(row["noise"], y + 0.25, "s", color=GREY, markersize=3)
                if place == ("sum", "none"):
                    weights = gradient_weights(group_size, p_high, 0.5, 0.5, means=means)
                    exact = weights[part][0] / weights["full"][0]
                    ax.plot(exact, y - 0.25, "v", color="k", markersize=3)
            ax.set_title(title, loc="left")
            ax.set_xlabel("share of the full advantage's")
            for x in (0, 1):
                ax.axvline(x, color="0.85", linewidth=0.6, zorder=0)
        for mark, color, label in (("o", IID, "signal"), ("s", GREY, "noise"), ("v", "k", "exact")):
            axes[1].plot([], [], mark, color=color, markersize=3.5, label=label)
        axes[0].set_yticks(range(4), [f"{part} tokens, {names[means]}" for means, part in rows])
        axes[0].set_ylim(3.5, -0.5)
        figure.legend(loc="outside right upper", frameon=False)
        text = (
            "Signal: expected gradient of the part, along that of the full advantage. Lines: 95 % "
            "jackknife interval over seeds. Noise: squared deviation of one group's gradient. "
            "Exact: the share of the signal that any policy has."
        )
        n = f"{shares['seeds'].max()} seeds, {shares['groups'].max()} groups"
        _frame(figure, f"Parts of the gradient, RCTP-FT, profile {profile}, {n}", text)
    return figure


def training_figure(windows: pd.DataFrame, profile: str) -> Figure:
    """Draw variance with its bounds, and degenerate groups, along the training of every arm."""
    variance = {
        "ceiling": (GREY, ":", r"$\frac{G-1}{G}q(1-q)$, one q"),
        "sigma2": ("k", "-", r"$E[\sigma_g^2]$"),
        "between": (STRATIFIED, "-", "between a task's tokens"),
        "bound": (BOUND, "--", r"$\kappa(\mu_{high}-\mu_{low})^2$"),
    }
    degenerate = {
        "degenerate": ("k", "-", "degenerate, seen"),
        "degenerate_mixed": (STRATIFIED, "--", "from q by task"),
        "degenerate_one_q": (GREY, ":", "from one q"),
    }
    with mpl.rc_context(RC):
        figure = Figure(figsize=(WIDTHS[1], 3.4), layout="constrained")
        axes = figure.subplots(2, len(ARMS), sharex=True, sharey="row")
        for column, arm in enumerate(ARMS):
            rows = windows[windows["arm"] == arm]
            for ax, lines in zip(axes[:, column], (variance, degenerate), strict=True):
                for name, (color, style, _) in lines.items():
                    _draw_seeds(ax, rows, name, color, style)
            axes[0, column].set_title(METHODS[arm], loc="left")
            axes[1, column].set_xlabel("RL step")
        axes[0, 0].set_ylabel("variance in a group")
        axes[1, 0].set_ylabel("share of groups")
        for ax, lines in zip(axes[:, -1], (variance, degenerate), strict=True):
            for color, style, label in lines.values():
                ax.plot([], [], color=color, linestyle=style, label=label)
            ax.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
        text = (
            f"Windows of {WINDOW} steps at their middle. Thick: mean over seeds; thin: each seed. "
            "Only arms with tokens have a between-token part."
        )
        _frame(figure, f"Variance along training, {_of(windows, profile)}", text)
    return figure


def _draw_seeds(ax: Axes, rows: pd.DataFrame, column: str, color, style) -> None:
    rows = rows.assign(middle=(rows["first_step"] + rows["last_step"]) / 2)
    for _, one in rows.groupby("seed"):
        ax.plot(one["middle"], one[column], color=color, linewidth=0.4, alpha=0.35)
    mean = rows.groupby("middle")[column].mean()
    ax.plot(mean.index, mean, color=color, linestyle=style)


def _of(table: pd.DataFrame, profile: str) -> str:
    count = table["seed"].nunique()
    return f"profile {profile}, {count} seed" + ("s" if count > 1 else "")


def _frame(figure: Figure, title: str, text: str = "") -> None:
    figure.suptitle(title, x=0.01, ha="left", weight="bold", size=8)
    lines = textwrap.fill(text, width=int(22 * figure.get_figwidth()))
    figure.supxlabel(lines, x=0.01, ha="left", size=6, color="0.25")
