"""Figures from records: what is drawn, what is named, and the files."""

import json

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from synthetic import curve, per_item, write_records

from rc_lib.config import ARMS
from rc_lib.figures import PANELS, SMOOTH, STYLES, save_figure, table1_figure, training_dynamics
from rc_lib.records import read_records
from rc_lib.table1 import METHODS, table1

SEEDS = [0, 1, 2]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_records(tmp_path_factory.mktemp("records"), SEEDS)


def texts(figure):
    found = [figure.get_suptitle(), figure.get_supxlabel()]
    for ax in figure.axes:
        legend = ax.get_legend()
        found += (
            [ax.get_title(loc="left"), *(t.get_text() for t in legend.get_texts())]
            if legend
            else []
        )
        found += [label.get_text() for label in ax.get_yticklabels()]
    return " ".join(found).replace("\n", " ")


def thick_lines(ax):
    return [line for line in ax.get_lines() if line.get_linewidth() > 1]


def test_the_thick_line_is_the_smoothed_mean_over_seeds(root):
    ax = training_dynamics(root, "tiny", SEEDS).axes[list(PANELS).index("reward")]
    lines = {line.get_color(): line.get_ydata() for line in thick_lines(ax)}
    assert len(lines) == len(ARMS)
    for arm in ARMS:
        mean = np.mean([curve(arm, seed)["reward"] for seed in SEEDS], axis=0)
        half = SMOOTH // 2
        expected = [mean[max(0, i - half) : i + half + 1].mean() for i in range(len(mean))]
        assert lines[STYLES[arm][0]] == pytest.approx(expected)


def test_the_gap_is_drawn_for_arms_with_tokens_only(root):
    ax = training_dynamics(root, "tiny", SEEDS).axes[list(PANELS).index("gap")]
    colors = {line.get_color() for line in thick_lines(ax)}
    assert colors == {STYLES[arm][0] for arm in ARMS if "rc_grpo" in arm}


def test_every_seed_is_drawn_and_the_interval_needs_three(root):
    full, two = (training_dynamics(root, "tiny", seeds).axes[0] for seeds in (SEEDS, [0, 1]))
    thin = [line for line in full.get_lines() if line.get_linewidth() < 1]
    assert len(thin) == len(ARMS) * len(SEEDS)
    assert len(full.collections) == len(ARMS) and not two.collections


def test_profile_seeds_and_published_statement_are_named(root):
    words = texts(training_dynamics(root, "tiny", [0, 1, 2, 7]))
    assert "profile tiny" in words and "3 of 4 seeds" in words
    assert "negatively along RC-GRPO" in words and "arXiv 2602.03025" in words


def test_a_damaged_or_unfinished_curve_is_an_error(tmp_path):
    root = write_records(tmp_path, [0, 1], ["sft_grpo"])
    path = root / "seed1" / "sft_grpo" / "curve.csv"
    pd.read_csv(path).iloc[:4].to_csv(path, index=False)
    with pytest.raises(ValueError, match="4 steps, other seeds of sft_grpo have 8"):
        training_dynamics(root, "tiny", [0, 1])
    pd.read_csv(path).drop(columns=["kl", "entropy"]).to_csv(path, index=False)
    with pytest.raises(ValueError, match=f"{path}: missing columns entropy, kl"):
        training_dynamics(root, "tiny", [0, 1])
    with pytest.raises(FileNotFoundError, match="train first"):
        training_dynamics(root, "tiny", [5])


def test_dot_plot_shows_measured_and_published_values(root):
    records = read_records(root, "tiny", SEEDS)
    table = table1(records, SEEDS)
    figure = table1_figure(records, table)
    left = figure.axes[0]
    dots = {
        line.get_ydata()[0]: line.get_xdata()[0]
        for line in left.get_lines()
        if line.get_marker() == "o"
    }
    measured = table[table["source"] == "measured"]
    assert list(dots.values()) == measured["overall"].tolist()
    hollow = [line for line in left.get_lines() if line.get_fillstyle() == "none"]
    assert [line.get_xdata().tolist() for line in hollow] == [
        [0.0, 35.0, 35.0, 46.25, 48.75], [11.25, 48.75, 46.25, 73.75, 85.0],
    ]  # fmt: skip
    ticks = [line for line in left.get_lines() if line.get_marker() == "|"]
    base = per_item("base", 0).query(
        "token == 'none' and decoding == 'greedy' and test_set == 'test'"
    )
    assert ticks[0].get_xdata()[0] == pytest.approx(100 * base["correct"].mean())
    assert len(ticks[0].get_xdata()) == len(SEEDS)
    words = texts(figure)
    assert "profile tiny" in words and all(method in words for method in METHODS.values())


def test_dot_plot_without_an_arm_says_so(root):
    records = read_records(root, "tiny", SEEDS)
    records = records[records["arm"] != "rctp_grpo"]
    assert "RCTP-FT+GRPO 0 of 3 seeds" in texts(table1_figure(records, table1(records, SEEDS)))


def test_files_repeat_to_the_byte_and_carry_no_date(tmp_path):
    about = {"profile": "tiny", "seeds": SEEDS}
    for name in "ab":
        figure = Figure(figsize=(3.25, 1), layout="constrained")
        figure.subplots().plot([1, 2, 4])
        save_figure(figure, tmp_path / name, about)
    for end in ("pdf", "png", "manifest.json"):
        assert (tmp_path / f"a.{end}").read_bytes() == (tmp_path / f"b.{end}").read_bytes()
    content = (tmp_path / "a.pdf").read_bytes() + (tmp_path / "a.png").read_bytes()
    assert b"CreationDate" not in content and b"Software" not in content
    assert json.loads((tmp_path / "a.manifest.json").read_text()) == about
    assert not list(tmp_path.glob("*.partial"))


def test_another_width_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"width 5.0 in; use one of \(3.25, 6.75\)"):
        save_figure(Figure(figsize=(5.0, 3)), tmp_path / "x", {})
