"""RC-GRPO's Tables 2 to 5: from synthetic records, and the committed ones against the claims."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
from scipy.stats import pearsonr, ttest_rel
from synthetic import per_item, write_records

from rc_lib import paths
from rc_lib.advantage import group_statistics
from rc_lib.arms import EXTRA_ARMS
from rc_lib.claims import evaluate
from rc_lib.config import ALL_ARMS, ARMS
from rc_lib.entropy_reward import (
    COLUMNS,
    correlations,
    entropy_figure,
    read_curves,
    show_table4,
    table4,
)
from rc_lib.late_phase import (
    EXPECTED,
    QUANTITIES,
    expected_spread,
    late_values,
    show_table5,
    spread_bounds,
    step_spreads,
    table5,
)
from rc_lib.rc_contrasts import CONTRASTS, contrast_table, show_contrast
from rc_lib.rc_tables import write_contrasts, write_rc_tables, write_table4, write_table5
from rc_lib.records import read_records
from rc_lib.seeding import rng, stable_id
from rc_lib.table1 import COMPARISONS, table1_pairs

SEEDS, STEPS, PROMPTS = [0, 1, 2], 12, 4
COMMITTED = paths.published_records("tiny")
FOUND = [0, 1, 2, 3, 4]


def training(arm, seed, steps=STEPS):
    """curve.csv and groups.csv of a made-up run that agree with each other."""
    draw = rng(seed, "test-rc-tables", stable_id(arm))
    rewards = (draw.random((steps, PROMPTS, 5)) < 0.4).astype(int)
    rows = [
        {"step": step}
        | group_statistics(r.ravel(), np.repeat(range(PROMPTS), 5), [None] * r.size, eps=0.0)
        for step, r in enumerate(rewards)
    ]
    curve = pd.DataFrame(rows)
    for name in ("kl", "grad_norm"):
        curve[name] = draw.random(steps)
    curve["entropy"] = 1 - curve["reward"] + 0.2 * draw.random(steps)
    groups = [
        {"step": step, "group_id": g, "tokens": "none none none none none"}
        | {"rewards": " ".join(map(str, rewards[step, g]))}
        for step, g in product(range(steps), range(PROMPTS))
    ]
    return curve, pd.DataFrame(groups)


def write(root, seeds=SEEDS, arms=ALL_ARMS, steps=STEPS):
    write_records(root, seeds, arms)
    for seed, arm in product(seeds, [arm for arm in arms if arm in ARMS]):
        for name, table in zip(("curve", "groups"), training(arm, seed, steps), strict=True):
            table.to_csv(root / f"seed{seed}" / arm / f"{name}.csv", index=False)
    return root


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write(tmp_path_factory.mktemp("records"))


@pytest.fixture(scope="module")
def claims():
    return evaluate(COMMITTED, "tiny", FOUND).set_index("id")


# --- Tables 2, 3A and 3B


@pytest.fixture(scope="module")
def results(root):
    return read_records(root, "tiny", SEEDS)


@pytest.fixture(scope="module")
def pairs(results):
    return table1_pairs(results, SEEDS)


@pytest.fixture(scope="module")
def tables(results, pairs):
    return {name: contrast_table(c, results, pairs, SEEDS) for name, c in CONTRASTS.items()}


def test_rows_of_the_token_of_table_1_are_those_of_its_pairs(tables, pairs):
    seen = set()
    for table in tables.values():
        for row in table[table["p_holm"].notna()].itertuples():
            pair = pairs.set_index(["test_set", "comparison"]).loc[row.test_set, row.comparison]
            names = {"low": "difference_low", "high": "difference_high"}
            for name in ("difference", "low", "high", "p", "p_holm", "detectable"):
                assert getattr(row, names.get(name, name)) == pytest.approx(pair[name], abs=1e-9)
            seen.add((row.test_set, row.comparison))
    assert len(seen) == 3 * 4


def test_a_difference_is_the_new_arm_less_the_old_one_item_by_item(tables):
    table = tables["table3b_rctp_start"]
    row = table[(table["token"] == "low") & (table["test_set"] == "power")].iloc[0]

    def right(arm, seed):
        rows = per_item(arm, seed).query(
            "token == 'low' and decoding == 'greedy' and test_set == 'power'"
        )
        return rows["correct"].to_numpy()

    new, old = (
        np.array([right(arm, seed) for seed in SEEDS])
        for arm in COMPARISONS[next(iter(CONTRASTS["table3b_rctp_start"].comparisons))]
    )
    assert row["new"] == pytest.approx(100 * new.mean(), abs=0.005)
    assert row["difference"] == pytest.approx(100 * (new - old).mean(), abs=0.005)
    counts = [f"{(n > o).sum()}/{(n < o).sum()}" for n, o in zip(new, old, strict=True)]
    assert row["discordant"] == ", ".join(counts)


def test_an_arm_trained_without_tokens_is_tested_without_one(tables):
    table = tables["table2_rc_at_rctp_start"].query("test_set == 'test'")
    assert sorted(table["token"]) == ["high", "low", "none"]
    assert table["old"].nunique() == 1 and table["new"].nunique() > 1
    under_grpo = tables["table3b_rctp_start"].query("comparison.str.endswith('under GRPO')")
    assert set(under_grpo["token"].dropna()) == {"none"}


def test_published_rows_are_those_of_the_paper(tables):
    found = {
        name: table.query("source == 'published'")["difference"].tolist()
        for name, table in tables.items()
    }
    assert found == {
        "table2_rc_at_rctp_start": [2.5, 11.25],
        "table3a_rc_at_sft_start": [0.0, -2.5],
        "table3b_rctp_start": [13.75, 38.75, 11.25, 25.0],
    }


def test_a_seed_that_one_arm_lacks_is_left_out_of_both_and_named(results, pairs):
    contrast = CONTRASTS["table2_rc_at_rctp_start"]
    without = results[~((results["arm"] == "rctp_grpo") & (results["seed"] == 1))]
    table = contrast_table(contrast, without, pairs, SEEDS)
    shown = show_contrast(contrast, table)
    assert set(table.query("source == 'measured'")["missing_seeds"]) == {"1"}
    assert shown["Seeds"].iloc[-1] == "2 of 3 (missing 1)"


# --- Table 4


def test_correlations_are_those_of_scipy_and_do_not_see_a_common_trend_twice():
    steps = np.arange(40.0)
    noise = rng(0, "test-trend").standard_normal((2, 40))
    curves = pd.DataFrame({"arm": "a", "seed": 0, "entropy": 5 - steps + noise[0]})
    curves["reward"] = steps + noise[1]
    row = correlations(curves).iloc[0]
    naive = pearsonr(curves["entropy"], curves["reward"])
    assert row["r"] == pytest.approx(naive.statistic)
    assert (row["r_low"], row["r_high"]) == pytest.approx(tuple(naive.confidence_interval()))
    left = [y - np.polyval(np.polyfit(steps, y, 1), steps) for y in curves[list(COLUMNS)].T.values]
    assert row["r_detrended"] == pytest.approx(np.corrcoef(left)[0, 1])
    assert row["r"] < -0.9 < row["r_detrended"]


def test_a_seed_counts_once_however_many_steps_it_has():
    """Ten copies of every step leave the interval over seeds as it is; Fisher's shrinks."""
    curves = pd.concat(
        training(arm, seed)[0].assign(arm=arm, seed=seed) for arm in ARMS for seed in SEEDS
    )
    many = pd.concat([curves] * 10)
    one, ten = (table4(table, "tiny", SEEDS).set_index("row") for table in (curves, many))
    width = {name: t["r_high"] - t["r_low"] for name, t in (("one", one), ("ten", ten))}
    assert np.allclose(width["one"].loc["arm"], width["ten"].loc["arm"])
    assert (width["ten"].loc["seed"] < 0.5 * width["one"].loc["seed"]).all()


def test_table4_agrees_with_the_claims_and_shows_no_interval_of_one_seed(claims):
    table = table4(read_curves(COMMITTED, FOUND, COLUMNS), "tiny", FOUND)
    arms = table[table["row"] == "arm"].set_index("method")
    for method, claim, sign in (
        ("RCTP-FT+RC-GRPO", "entropy-correlation-rc", -1),
        ("RCTP-FT+GRPO", "entropy-correlation-grpo", 1),
        ("SFT+GRPO", "entropy-correlation-sft-grpo", 1),
    ):
        ends = sorted(sign * claims.loc[claim, ["low", "high"]].astype(float))
        assert arms.loc[method, ["r_low", "r_high"]].tolist() == pytest.approx(ends, abs=6e-5)
    alone = table4(read_curves(COMMITTED, [0], COLUMNS), "tiny", [0])
    assert alone.loc[alone["row"] == "arm", "r"].notna().all()
    assert alone.loc[alone["row"].isin(["arm", "difference"]), "r_low"].isna().all()


def test_signs_are_those_of_intervals_over_seeds(root):
    table = table4(read_curves(root, SEEDS, COLUMNS), "tiny", SEEDS)
    arms = table[table["row"] == "arm"]
    for row in arms.itertuples():
        both = row.r_low < 0 < row.r_high
        assert row.sign == ("open" if both else "negative" if row.r < 0 else "positive")
    assert set(table.loc[table["row"].isin(["seed", "difference"]), "sign"].dropna()) == set()
    assert len(entropy_figure(read_curves(root, SEEDS, COLUMNS), table, "tiny").axes) == 5
    assert show_table4(table)["Seeds"].tolist().count("seed 1 alone") == len(ARMS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.drop(columns="entropy"), "missing columns entropy"),
        (lambda c: c.assign(entropy=c["entropy"].where(c["step"] > 0)), "blanks in entropy"),
        (lambda c: c[:-1], "11 steps, sft_grpo of seed 0 has 12"),
    ],
)
def test_a_damaged_curve_is_an_error_that_names_it(tmp_path, change, message):
    write(tmp_path, [0])
    path = tmp_path / "seed0" / "rctp_grpo" / "curve.csv"
    change(pd.read_csv(path)).to_csv(path, index=False)
    with pytest.raises(ValueError, match=message):
        read_curves(tmp_path, [0], COLUMNS)


# --- Table 5


def advantages(rewards):
    rewards = np.asarray(rewards, dtype=float)
    sigma = rewards.std()
    return (rewards - rewards.mean()) / sigma if sigma else 0 * rewards


@pytest.mark.parametrize("size", [2, 3, 5, 6])
def test_bounds_hold_and_binary_ones_are_reached(size):
    bounds = spread_bounds(size)
    groups = [advantages(rewards) for rewards in product((0, 1), repeat=size)]
    largest = max(np.abs(a).max() for a in groups)
    assert largest == pytest.approx(bounds["one"])
    assert max(np.ptp(a) for a in groups) == pytest.approx(bounds["group_binary"])
    steps = {round(np.ptp([*a, *b]), 9) for a in groups for b in groups}
    assert np.allclose(sorted(steps), step_spreads(size))
    assert max(steps) == pytest.approx(bounds["batch"])
    assert np.ptp(advantages([0, 1] + [0.5] * (size - 2))) == pytest.approx(bounds["group"])
    draws = rng(0, "test-bounds", size).standard_normal((500, size)) ** 3
    assert max(np.ptp(advantages(rewards)) for rewards in draws) <= bounds["group"] + 1e-9


def test_the_published_spread_fits_no_group_and_no_single_step():
    bounds = spread_bounds(5)
    assert bounds["group"] < 3.58 < bounds["batch"]
    assert min(abs(3.58 - spread) for spread in step_spreads(5)) > 0.3


def test_expected_spread_is_that_of_simulated_steps():
    draw = rng(0, "test-expected")
    successes = draw.binomial(5, 0.3, size=60)
    steps = draw.choice(successes, size=(4000, 3))
    spreads = []
    for counts in steps:
        a = [advantages([1] * k + [0] * (5 - k)) for k in counts]
        spreads.append(np.ptp(np.concatenate(a)))
    error = np.std(spreads) / np.sqrt(len(spreads))
    assert abs(expected_spread(successes, 5, 3) - np.mean(spreads)) < 4 * error


def test_late_values_are_means_over_the_last_quarter(root):
    values, steps = late_values(root, "tiny", SEEDS)
    assert list(steps) == [9, 10, 11]
    row = values.query("arm == 'sft_grpo' and seed == 2").iloc[0]
    curve, groups = training("sft_grpo", 2)
    for name in QUANTITIES:
        assert row[name] == pytest.approx(curve[name][-3:].mean())
    late = groups.query("step >= 9")["rewards"].str.count("1").to_numpy()
    assert row["spread_of_13"] == pytest.approx(expected_spread(late, 5, 13))


def test_table5_pairs_seeds_and_adjusts_over_both_starts(root):
    values, _ = late_values(root, "tiny", SEEDS)
    table = table5(values, "tiny", SEEDS)
    row = table.query("start == 'RCTP-FT start'").set_index("quantity").loc[QUANTITIES["kl"]]
    by_arm = values.pivot(index="seed", columns="arm", values="kl")
    test = ttest_rel(by_arm["rctp_rc_grpo"], by_arm["rctp_grpo"])
    assert row["p"] == pytest.approx(test.pvalue, abs=1e-6)
    ends = test.confidence_interval()
    assert (row["difference_low"], row["difference_high"]) == pytest.approx(tuple(ends), abs=1e-6)
    tested = table[table["p"].notna()]
    assert len(tested) == 2 * len(QUANTITIES)
    assert tested["p_holm"].min() == pytest.approx(min(1, 10 * tested["p"].min()), abs=2e-5)


def test_table5_agrees_with_the_claim_and_keeps_unknown_cells_blank(claims):
    values, _ = late_values(COMMITTED, "tiny", FOUND)
    table = table5(values, "tiny", FOUND)
    claim = claims.loc["advantage-spread-late"]
    row = table.query("start == 'RCTP-FT start'").iloc[0]
    ends = row[["difference", "difference_low", "difference_high"]].tolist()
    assert ends == pytest.approx(claim[["value", "low", "high"]].tolist(), abs=1e-6)
    published = table.query("source == 'published'")
    cells = published[["old", "new"]].to_numpy(dtype=float)
    assert cells[~np.isnan(cells)].tolist() == [3.58]
    assert (show_table5(published)[["GRPO", "RC-GRPO"]].to_numpy() == "").sum() == 7


def test_groups_that_are_missing_or_of_another_size_are_errors(tmp_path):
    write(tmp_path, [0])
    path = tmp_path / "seed0" / "rctp_grpo" / "groups.csv"
    groups = pd.read_csv(path)
    groups.assign(rewards="1 0", tokens="none none").to_csv(path, index=False)
    with pytest.raises(ValueError, match="groups of 2 rewards"):
        late_values(tmp_path, "tiny", [0])
    path.unlink()
    with pytest.raises(FileNotFoundError, match="no groups.csv of rctp_grpo of seed 0"):
        late_values(tmp_path, "tiny", [0])


# --- what is written


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_committed_files_are_those_of_the_committed_records(tmp_path):
    folders = tmp_path / "paper_tables", tmp_path / "figures"
    written = write_rc_tables(COMMITTED, *folders, "tiny", FOUND)
    assert len(written) == 5 * 4 + 3
    for path in written:
        home = paths.FIGURES if path.parent.name == "figures" else paths.TABLES
        assert (home / path.name).read_bytes() == path.read_bytes(), path


def test_extra_arms_and_measurements_do_not_matter(tmp_path, root):
    tables = tmp_path / "tables"
    alone = write_rc_tables(root, tables, tmp_path, "tiny", SEEDS)
    before = content(tables)
    beside = write(tmp_path / "beside", arms=(*ALL_ARMS, EXTRA_ARMS[0], EXTRA_ARMS[-1]))
    (beside / "seed0" / "variance").mkdir()
    (beside / "seed0" / "variance" / "groups.csv").write_text("step,rewards\n0,1\n")
    assert write_rc_tables(beside, tables, tmp_path, "tiny", SEEDS) == alone
    assert content(tables) == before


def test_one_seed_of_two_steps_gives_blanks_and_no_error(tmp_path):
    write(tmp_path / "records", [0], steps=2)
    write_rc_tables(tmp_path / "records", tmp_path, tmp_path, "tiny", [0])
    table = pd.read_csv(tmp_path / "table4_entropy_reward.csv")
    assert table[["r", "r_low", "r_detrended"]].isna().all(axis=None)
    late = pd.read_csv(tmp_path / "table5_late_phase.csv").query("source == 'measured'")
    assert late["old"].notna().all() and late[["old_low", "p"]].isna().all(axis=None)
    assert set(EXPECTED.values()) <= set(late["quantity"])


def test_without_records_the_error_names_the_notebooks(tmp_path):
    place = (tmp_path, tmp_path, "tiny", [0])
    for call in (
        lambda: write_contrasts(tuple(CONTRASTS), *place),
        lambda: write_table4(tmp_path, *place),
        lambda: write_table5(*place),
    ):
        with pytest.raises(FileNotFoundError, match="11_stage2_rc_grpo"):
            call()
