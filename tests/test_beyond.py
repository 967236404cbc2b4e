"""The arms beyond the paper, from synthetic records: pairing, Holm, what is missing, variance."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
from statsmodels.stats.multitest import multipletests
from synthetic import curve, per_item, write_records

from rc_lib import beyond_tables
from rc_lib.arms import EXTRA_ARMS, RL_ARMS, STARTS, main_token
from rc_lib.beyond import COMPARISONS, ROWS, arms_table, pairs_table
from rc_lib.beyond_figure import arms_figure, curves_figure
from rc_lib.beyond_tables import notes, power_statements, show_arms, show_pairs, write_beyond
from rc_lib.beyond_training import (
    EARLY,
    LATE,
    PANEL_ARMS,
    REFERENCE,
    early_variance,
    predicted_variance,
    settings,
    token_moments,
    training_statistics,
)
from rc_lib.config import ALL_ARMS
from rc_lib.records import read_records
from rc_lib.seeding import rng, stable_id
from rc_lib.stats import crossed_bootstrap
from rc_lib.variance import simulate_groups

SEEDS, STEPS, PROMPTS = [0, 1, 2], 14, 6
SHORT_ARM, SHORT_SEEDS = "rctp_rc_g2", [0, 1]  # an arm that has not run with all seeds


def group_rows(arm, seed):
    """Groups of a few prompts a step, with the arm's size, tokens and P(high)."""
    p_high, size = settings(RL_ARMS[arm], "tiny")
    draws = rng(seed, "test-beyond", stable_id(arm))
    rewards, is_high = simulate_groups(size, p_high, 0.7, 0.2, STEPS * PROMPTS, draws)
    tokens = np.where(is_high, "high", "low")
    tokens = tokens if RL_ARMS[arm].conditioning != "none" else np.full(tokens.shape, "none")
    table = pd.DataFrame({"step": np.arange(STEPS * PROMPTS) // PROMPTS, "category": "base"})
    table["tokens"] = [" ".join(row) for row in tokens]
    table["rewards"] = [" ".join(f"{reward:g}" for reward in row) for row in rewards]
    return table


def write(root, arms, seeds=SEEDS):
    write_records(root, seeds, arms)
    for seed, arm in product(seeds, set(arms) & set(RL_ARMS)):
        folder = root / f"seed{seed}" / arm
        table = curve(arm, seed, STEPS)
        if "dynamic" in arm:
            table.loc[::2, "grad_norm"] = np.nan
        table.to_csv(folder / "curve.csv", index=False)
        group_rows(arm, seed).to_csv(folder / "groups.csv", index=False)
    return root


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("records")
    write(root, [arm for arm in (*ALL_ARMS, *EXTRA_ARMS) if arm != SHORT_ARM])
    return write(root, [SHORT_ARM], SHORT_SEEDS)


@pytest.fixture(scope="module")
def records(root):
    return read_records(root, "tiny", SEEDS)


@pytest.fixture(scope="module")
def training(root):
    return training_statistics(root, SEEDS)


@pytest.fixture(scope="module")
def table(records, training):
    return arms_table(records, training, SEEDS)


@pytest.fixture(scope="module")
def pairs(records):
    return pairs_table(records, SEEDS)


def naive(arm, seed, test_set):
    """{item: correct} of an arm under its main token, greedy, row by row."""
    rows = per_item(arm, seed).to_dict("records")
    place = (test_set, "greedy", main_token(arm))
    found = [row for row in rows if (row["test_set"], row["decoding"], row["token"]) == place]
    return {row["item_id"]: row["correct"] for row in found}


def test_every_comparison_is_of_two_known_arms_and_declared_once():
    arms = [(c.first, c.second) for c in COMPARISONS]
    assert {arm for pair in arms for arm in pair} <= set(ROWS)
    assert len({frozenset(pair) for pair in arms}) == len(arms)
    assert {arm for pair in arms for arm in pair} >= set(EXTRA_ARMS)


def test_pairs_are_the_naive_paired_differences_whatever_the_order_of_rows(records, pairs):
    shuffled = pairs_table(records.sample(frac=1, random_state=0), SEEDS)
    assert len(pairs) == 2 * len(COMPARISONS)
    for place, row in pairs.iterrows():
        seeds = SHORT_SEEDS if SHORT_ARM in (row["first"], row["second"]) else SEEDS
        matrix = []
        for seed in seeds:
            first, second = (naive(row[arm], seed, row["test_set"]) for arm in ("first", "second"))
            matrix.append([first[item] - second[item] for item in first])
        means = [sum(differences) / len(differences) for differences in matrix]
        assert row["difference"] == pytest.approx(100 * sum(means) / len(means), abs=1e-5)
        assert row["by_seed"] == " ".join(f"{100 * mean:+.1f}" for mean in means)
        assert row["seeds"] == len(seeds) and row["n"] == len(matrix[0])
        assert shuffled.loc[place, ["difference", "by_seed"]].equals(row[["difference", "by_seed"]])
        if len(seeds) == 3:
            result = crossed_bootstrap(matrix, list(first))
            expected = [100 * result.low, 100 * result.high, result.p]
            assert row[["low", "high", "p"]].tolist() == pytest.approx(expected, abs=1e-5)


def test_two_common_seeds_give_a_difference_without_interval_or_p(records, pairs, table):
    few = pairs[(pairs["first"] == SHORT_ARM)]
    assert few["difference"].notna().all() and (few["missing_seeds"] == "2").all()
    assert few[["low", "high", "p", "p_holm", "detectable"]].isna().all(axis=None)
    assert (pairs["p"].isna() == (pairs["seeds"] < 3)).all()
    row = table.set_index("arm").loc[SHORT_ARM]
    assert row[["test", "degenerate", "sigma2"]].notna().all()
    ends = [f"{x}_{end}" for x in ("test", "power", "sigma2") for end in ("low", "high")]
    assert row[ends].isna().all() and row["missing_seeds"] == "2"


def test_holm_counts_every_declared_comparison_and_the_unmeasured_ones_as_p_1(pairs):
    for _, family in pairs.groupby("test_set"):
        p = family["p"].fillna(1.0)
        assert p.eq(1).any() and len(p) == len(COMPARISONS)
        expected = multipletests(p, method="holm")[1][family["p"].notna()]
        assert family["p_holm"].dropna().tolist() == pytest.approx(expected.tolist(), abs=1e-5)


def test_a_later_record_never_raises_the_adjusted_p_of_the_others(records, pairs):
    arms = {"sft", "sft_equal", "rctp", "rctp_success", "rctp_cue", "sft_grpo", "sft_grpo_hot"}
    part = pairs_table(records[records["arm"].isin(arms)], SEEDS)
    assert 0 < len(part) < len(pairs)
    keys = ["test_set", "first", "second"]
    both = part.merge(pairs, on=keys, suffixes=("", "_all"))
    assert len(both) == len(part) and (both["p"] == both["p_all"]).all()
    assert (both["p_holm_all"] <= both["p_holm"]).all()


def test_arms_right_on_the_same_tasks_differ_by_nothing_and_tell_no_power(records):
    same = records["arm"].isin(["sft", "sft_equal"])
    pairs = pairs_table(records.assign(correct=records["correct"].where(~same, 1)), SEEDS)
    row = pairs[pairs["first"] == "sft_equal"].iloc[0]
    assert (row["difference"], row["p"], row["p_holm"]) == (0, 1, 1)
    assert np.isnan(row["detectable"])


def test_arms_on_different_items_are_not_paired(records):
    new = records["item_id"].where(records["arm"] != "sft_equal", records["item_id"] + "_new")
    with pytest.raises(ValueError, match="sft_equal and sft were tested on different items of tes"):
        pairs_table(records.assign(item_id=new), SEEDS)


def test_an_arm_is_shown_under_the_token_it_was_trained_with_most(table):
    rows = table.set_index("arm")
    assert list(rows.index) == list(ROWS)
    for arm, seeds in (("rctp_rc_p025", SEEDS), ("rctp_rc_p100", SEEDS), (SHORT_ARM, SHORT_SEEDS)):
        values = [list(naive(arm, seed, "power").values()) for seed in seeds]
        assert rows.loc[arm, "power"] == pytest.approx(100 * np.mean(values), abs=1e-5)
        assert rows.loc[arm, f"power_under_{main_token(arm)}"] == rows.loc[arm, "power"]
    assert rows.loc["rctp_rc_p025", "token"] == "low"


def test_budgets_and_late_groups_are_those_of_the_files(root, training, table):
    rows = table.set_index("arm")
    for arm in ("sft_grpo_dynamic", "rctp_rc_g10"):
        late = np.mean([curve(arm, seed, STEPS)["degenerate"].tail(LATE).mean() for seed in SEEDS])
        assert rows.loc[arm, "degenerate"] == pytest.approx(late, abs=1e-5)
        groups = [group_rows(arm, seed)["rewards"].str.split() for seed in SEEDS]
        assert (
            rows.loc[arm, "rollouts"]
            == sum(map(len, groups[0]))
            == len(groups[0]) * len(groups[0][0])
        )
        spread = np.mean([sum(len(set(row)) > 1 for row in one) for one in groups])
        assert rows.loc[arm, "spread_groups"] == pytest.approx(spread, abs=1e-5)
    assert rows.loc["sft_grpo_dynamic", "optimizer_steps"] == STEPS / 2
    assert rows.loc["sft_grpo", "optimizer_steps"] == STEPS
    assert rows.loc[list(STARTS), "rollouts"].isna().all()
    assert (rows["stage1_steps"] == 1).all()  # a synthetic start has a curve of one row
    (root / "seed0" / "variance").mkdir(exist_ok=True)
    (root / "seed0" / "variance" / "groups.csv").write_text("policy\nsft\n")
    pd.testing.assert_frame_equal(training_statistics(root, SEEDS), training)


def test_an_arm_tested_with_other_seeds_than_trained_is_refused(records, training):
    part = training[(training["arm"] != "rctp_rc_g10") | (training["seed"] != 1)]
    with pytest.raises(ValueError, match=r"rctp_rc_g10: tested with seeds \[0, 1, 2\], trained wi"):
        arms_table(records, part, SEEDS)


def test_no_curve_at_all_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no seed<k>/<arm>/curve.csv"):
        training_statistics(tmp_path, SEEDS)


def test_what_is_not_recorded_is_named(records, training):
    left = records[~records["arm"].isin(["rctp_cue", "rctp_rc_g10"])]
    table, pairs = arms_table(left, training, SEEDS), pairs_table(left, SEEDS)
    text = notes(table, pairs, "tiny")
    assert text["arms"][0] == "Not recorded, and so in no row: rctp_cue, rctp_rc_g10."
    named = "style cue: placeholder observations; group size: 10 for 5"
    assert text["pairs"][0] == f"Not measured: {named}."
    assert "2 of 3 (missing 2)" in set(show_arms(table)["Seeds"])
    assert "2 of 3 (missing 2)" in set(show_pairs(pairs)["Seeds"])
    full = notes(arms_table(records, training, SEEDS), pairs_table(records, SEEDS), "tiny")
    assert not any("Not " in line for line in full["arms"][:1] + full["pairs"][:1])


def test_power_is_stated_for_each_set_and_number_of_seeds(pairs):
    known = pairs[pairs["test_set"] == "power"]["detectable"].dropna()
    words = power_statements(pairs)
    assert len(words) == 3  # two sets at three seeds, and the first step of Holm
    assert "power (n = 20)" in words[0] and f"{known.median():.1f} points" in words[0]
    assert f"measured so, {len(known)} in number" in words[0] and "1.4 times" in words[-1]
    assert "none has an interval" in power_statements(pairs.assign(detectable=np.nan))[0]


def test_shown_tables_have_intervals_in_brackets_and_no_blank_for_a_number(table, pairs):
    shown = show_arms(table).set_index("Arm")
    row = table.set_index("arm").loc["rctp_rc_g10"]
    cell = f"{row['power']:.1f} [{row['power_low']:.1f}, {row['power_high']:.1f}]"
    assert shown.loc[row["label"], "power (%)"] == cell
    assert shown.loc[row["label"], "Degenerate, late (%)"].startswith(
        f"{100 * row['degenerate']:.1f} ["
    )
    assert shown.loc["SFT", "Rollouts"] == "" and shown.loc["SFT+GRPO", "Rollouts"] != ""
    assert "[" not in show_pairs(pairs[pairs["seeds"] == 2])["Difference (points)"].sum()


# (mu_high, mu_low) of tasks of equal share, which differ much.
TASKS = ((0.9, 0.1), (0.6, 0.5), (0.2, 0.1), (1.0, 0.8))


def sampled(size, p_high, kind, groups=12_000):
    parts = [
        simulate_groups(size, p_high, *mu, groups, rng(0, "test-tasks", place), kind)
        for place, mu in enumerate(TASKS)
    ]
    return [np.concatenate(part) for part in zip(*parts, strict=True)]


def test_token_moments_are_those_of_the_tasks():
    moments = token_moments(*sampled(5, 0.5, "iid"))
    high, low = np.array(TASKS).T
    expected = {"mu_high": high.mean(), "mu_low": low.mean(), "gap2": ((high - low) ** 2).mean()}
    expected |= {"var_high": (high * (1 - high)).mean(), "var_low": (low * (1 - low)).mean()}
    assert moments == pytest.approx(expected, abs=0.006)


@pytest.mark.parametrize(
    ("size", "p_high", "kind"),
    [(2, 0.5, "iid"), (10, 0.5, "iid"), (5, 0.0, "iid"), (5, 0.75, "iid"), (5, 0.5, "stratified")],
)
def test_other_groups_are_predicted_from_those_of_the_reference(size, p_high, kind):
    values = predicted_variance(size, p_high, kind, token_moments(*sampled(5, 0.5, "iid")))
    rewards, _ = sampled(size, p_high, kind)
    assert rewards.var(1).mean() == pytest.approx(values["predicted"], abs=0.003)
    assert values["bound"] <= values["predicted"] < values["one_task"] - 0.02


def test_early_variance_takes_the_first_steps_and_the_seeds_of_the_reference(root):
    early = early_variance(root, "tiny", SEEDS)
    assert {tuple(row) for row in early[["arm", "seed"]].to_numpy()} == {
        (arm, seed) for arm in PANEL_ARMS for seed in (SHORT_SEEDS if arm == SHORT_ARM else SEEDS)
    }
    assert (early["groups"] == EARLY * PROMPTS).all()
    row = early[(early["arm"] == "rctp_rc_p075") & (early["seed"] == 1)].iloc[0]
    rewards = group_rows("rctp_rc_p075", 1)["rewards"].iloc[: EARLY * PROMPTS].str.split()
    q = rewards.map(lambda words: np.mean([float(word) for word in words]))
    assert row["sigma2"] == pytest.approx((q * (1 - q)).mean())
    assert (row["p_high"], row["group_size"]) == (0.75, 5)
    assert row["difference"] == row["sigma2"] - row["predicted"]


def test_groups_of_another_size_than_the_arms_are_refused(root, tmp_path):
    for arm in (REFERENCE, "rctp_rc_g10"):
        (tmp_path / "seed0" / arm).mkdir(parents=True)
        group_rows(REFERENCE, 0).to_csv(tmp_path / "seed0" / arm / "groups.csv", index=False)
    with pytest.raises(
        ValueError, match="rctp_rc_g10/groups.csv: groups of 5, profile tiny has 10"
    ):
        early_variance(tmp_path, "tiny", [0])


def marks(ax, marker="o"):
    lines = [line for line in ax.get_lines() if line.get_marker() == marker]
    return [tuple(point) for line in lines for point in line.get_xydata()]


def test_the_figure_has_a_mark_for_every_arm_recorded(records, table):
    figure = arms_figure(table, records, "tiny")
    accuracy, degenerate = figure.axes
    assert marks(accuracy) == [(x, place) for place, x in enumerate(table["power"])]
    assert len([x for x, _ in marks(degenerate) if not np.isnan(x)]) == len(RL_ARMS)
    ticks = marks(accuracy, "|")
    assert len(ticks) == table["seeds"].sum()
    labels = [label.get_text() for label in accuracy.get_yticklabels()]
    assert labels[0] == "SFT [none, 3]" and "RC-GRPO, G = 2 [high, 2]" in labels
    fewer = arms_figure(table.iloc[3:9], records, "tiny")
    assert len(marks(fewer.axes[0])) == 6


def test_the_curves_show_the_seeds_that_all_arms_of_a_panel_have(root, records):
    figure = curves_figure(early_variance(root, "tiny", SEEDS), records, "tiny")
    p_high, size = (figure.axes[i].get_title(loc="left") for i in (0, 1))
    assert p_high == "P(high), 5 arms, seeds 0 1 2" and size == "G, 3 arms, seeds 0 1"
    drawn = dict(marks(figure.axes[3]))
    expected = [early_mean(root, arm, SHORT_SEEDS) for arm in ("rctp_rc_g2", REFERENCE)]
    assert [drawn[2], drawn[5]] == pytest.approx(expected) and set(drawn) == {2, 5, 10}
    assert {x for x, _ in marks(figure.axes[2])} == {0, 0.25, 0.5, 0.75, 1}
    assert len(marks(figure.axes[0])) == 2 * 5 and len(marks(figure.axes[1])) == 2 * 3


def early_mean(root, arm, seeds):
    early = early_variance(root, "tiny", seeds)
    return early.loc[early["arm"] == arm, "sigma2"].mean()


def test_a_panel_without_a_common_seed_says_so(root, records):
    early = early_variance(root, "tiny", SEEDS)
    apart = (early["arm"] == "rctp_rc_g10") == (early["seed"] == 2)
    early = early[apart | ~early["arm"].isin(["rctp_rc_g10", "rctp_rc_g2"])]
    figure = curves_figure(early, records, "tiny")
    assert figure.axes[1].get_title(loc="left") == "G: no seed has all its arms"


STEMS = {
    "tables": {"beyond_arms", "beyond_pairs", "beyond_curves"},
    "figures": {"beyond_arms", "beyond_curves"},
}


def test_all_files_are_written_again_with_the_same_bytes(tmp_path):
    root = write(tmp_path / "records", (*ALL_ARMS, "rctp_success", "rctp_rc_g10"), [0])
    folders = tmp_path / "tables", tmp_path / "figures"
    first = write_beyond(root, *folders, "tiny")
    for folder in folders:
        assert {p.name.split(".")[0] for p in first if p.parent == folder} == STEMS[folder.name]
    bytes_of = {path: path.read_bytes() for path in first}
    assert write_beyond(root, *folders, "tiny", [0]) == first
    assert {path: path.read_bytes() for path in first} == bytes_of


def test_records_without_extra_arms_write_nothing_and_say_what_to_run(tmp_path, capsys):
    write(tmp_path / "records", ALL_ARMS, [0])
    assert write_beyond(tmp_path / "records", tmp_path, tmp_path, "tiny") == []
    assert "run notebook 42, then 11" in capsys.readouterr().out


def test_without_an_arm_to_predict_there_are_no_curves_and_a_line_says_so(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(beyond_tables, "save_figure", lambda figure, stem, about: [stem])
    write(tmp_path / "records", (*ALL_ARMS, "sft_grpo_dynamic"), [0])
    written = write_beyond(tmp_path / "records", tmp_path, tmp_path, "tiny", [0])
    assert {path.name.split(".")[0] for path in written} == {"beyond_arms", "beyond_pairs"}
    assert f"no beyond_curves without {REFERENCE} and one of" in capsys.readouterr().out
    text = (tmp_path / "beyond_pairs.md").read_text()
    assert "none has an interval" in text and "Not measured: budget" in text
