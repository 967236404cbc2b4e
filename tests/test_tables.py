"""Table 1 from records: what is measured, what is published, what is missing, and the files."""

import json
import re

import numpy as np
import pandas as pd
import pytest
from statsmodels.stats.multitest import multipletests
from synthetic import SETS, items, per_item, write_records

from rc_lib import paths
from rc_lib.config import ALL_ARMS
from rc_lib.manifest import sha256
from rc_lib.published import PUBLISHED_COLUMNS, published
from rc_lib.records import found_seeds, read_records
from rc_lib.stats import crossed_bootstrap, mcnemar, wilson
from rc_lib.table1 import (
    COMPARISONS,
    MAIN_TOKEN,
    METHODS,
    power_statement,
    table1,
    table1_mcnemar,
    table1_pairs,
    table1_tokens,
)
from rc_lib.tables import rebuild_all, show_pairs, show_table1, write_table
from rc_lib.tasks.base import CATEGORIES

SEEDS = [0, 1]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_records(tmp_path_factory.mktemp("records"))


@pytest.fixture(scope="module")
def records(root):
    return read_records(root, "tiny", SEEDS)


def naive(records, arm, test_set, token, decoding="greedy", category=None):
    """Seeds-by-items list of correct, row by row."""
    found = {}
    for row in records.itertuples():
        place = (row.arm, row.test_set, row.token, row.decoding)
        if place == (arm, test_set, token, decoding) and category in (None, row.category):
            found.setdefault(row.seed, []).append(row.correct)
    return np.array(list(found.values()))


def test_measured_cells_are_the_means_of_the_main_token_greedy(records):
    table = table1(records, SEEDS)
    measured = table[table["source"] == "measured"].set_index("method")
    assert list(measured.index) == list(METHODS.values())
    for arm, method in METHODS.items():
        row, token = measured.loc[method], MAIN_TOKEN[arm]
        values = naive(records, arm, "test", token)
        assert row["overall"] == round(100 * values.mean(), 2)
        bounds = crossed_bootstrap(values, [item for item, _ in items("test")])
        ends = [round(100 * bounds.low, 2), round(100 * bounds.high, 2)]
        assert row[["overall_low", "overall_high"]].tolist() == ends
        assert row["power"] == round(100 * naive(records, arm, "power", token).mean(), 2)
        for category in CATEGORIES:
            mean = naive(records, arm, "test", token, category=category).mean()
            assert row[category] == round(100 * mean, 2)
        assert (row["token"], row["seeds"], row["missing_seeds"]) == (token, 2, "")
        counts = row[["n", "power_n", "unseen_wording_n"]].tolist()
        assert counts == [4 * SETS[s] for s in ("test", "power", "unseen_wording")]


def test_only_arms_whose_last_stage_used_tokens_are_shown_under_the_high_token():
    assert {arm for arm in ALL_ARMS if MAIN_TOKEN[arm] == "high"} == {
        "rctp", "sft_rc_grpo", "rctp_rc_grpo",
    }  # fmt: skip


def test_every_published_row_is_there_and_unknown_cells_are_blank(records):
    table = table1(records, SEEDS)
    rows = table[table["source"] == "published"].set_index(["model", "method"])
    assert len(rows) == 15
    assert rows.loc[("Qwen2.5-7B-Instruct", "RCTP-FT+RC-GRPO"), "overall"] == 85.0
    closed = rows.loc[("GLM-4.7", "prompted")]
    assert closed["overall"] == 58.75 and closed[list(CATEGORIES)].isna().all()
    assert closed["overall_low"] == round(100 * wilson(47, 80).low, 2)
    shown = show_table1(table)
    line = shown[shown["Model"] == "GLM-4.7"].iloc[0]
    assert line["Base (%)"] == line["Power set (%)"] == "" and line["Source"] == "paper [C]"


def test_missing_arms_and_seeds_are_named(root):
    partial = read_records(root, "tiny", SEEDS)
    gone = (partial["arm"] == "sft_grpo") | ((partial["arm"] == "base") & (partial["seed"] == 0))
    table = table1(partial[~gone], [0, 1, 2])
    rows = table[table["source"] == "measured"].set_index("method")
    assert rows.loc["base", ["seeds", "missing_seeds"]].tolist() == [1, "0 2"]
    assert rows.loc["SFT+GRPO", ["seeds", "missing_seeds"]].tolist() == [0, "0 1 2"]
    assert np.isnan(rows.loc["SFT+GRPO", "overall"])
    shown = show_table1(table).set_index("Method")["Seeds"]
    assert shown["SFT+GRPO"].iloc[0] == "0 of 3 (missing 0 1 2)"
    pairs = table1_pairs(partial[~gone], [0, 1, 2]).set_index(["test_set", "comparison"])
    absent = pairs.loc[("test", "RCTP-FT and RC together")]
    assert absent["missing_seeds"] == "0 1 2" and np.isnan(absent["difference"])
    tokens = table1_tokens(partial[~gone], [0, 1, 2])
    assert len(tokens) == len(ALL_ARMS) * 3 * 2 * 3
    assert (tokens[tokens["arm"] == "sft_grpo"]["seeds"] == 0).all()


def test_a_test_set_that_lacks_a_seed_is_an_error(records):
    gone = (records["test_set"] == "power") & (records["seed"] == 1)
    with pytest.raises(ValueError, match=r"seeds \[0, 1\] on test but \[0\] on power"):
        table1(records[~gone], SEEDS)


def test_every_token_and_decoding_is_in_the_long_table(records):
    tokens = table1_tokens(records, SEEDS).set_index(["arm", "test_set", "decoding", "token"])
    values = naive(records, "rctp_grpo", "power", "low", "sampled")
    row = tokens.loc[("rctp_grpo", "power", "sampled", "low")]
    assert row["accuracy"] == round(100 * values.mean(), 2)
    chosen = records.query("arm == 'rctp_grpo' and test_set == 'power'")
    chosen = chosen.query("decoding == 'sampled' and token == 'low'")
    assert row["strict"] == round(100 * chosen["strict"].mean(), 2)


def test_mcnemar_is_made_seed_by_seed_and_adjusted_within_a_seed(records):
    tests = table1_mcnemar(records)
    assert len(tests) == len(SETS) * len(COMPARISONS) * len(SEEDS)
    row = tests.query("test_set == 'power' and seed == 1").set_index("comparison")
    for name, (first, second) in COMPARISONS.items():
        pair = [naive(records, arm, "power", MAIN_TOKEN[arm])[1] for arm in (first, second)]
        expected = mcnemar(*pair)
        assert row.loc[name, ["b", "c"]].tolist() == [expected.b, expected.c]
        assert row.loc[name, "p"] == pytest.approx(expected.p, abs=1e-6)
        assert row.loc[name, "difference"] == pytest.approx(100 * (pair[0] - pair[1]).mean())
    assert row["p_holm"].to_numpy() == pytest.approx(
        multipletests(row["p"], method="holm")[1], abs=1e-5
    )


def test_pairs_are_paired_by_item_and_shown_beside_the_published_differences(records):
    pairs = table1_pairs(records, SEEDS).set_index(["test_set", "comparison"])
    name = "RC added at the RCTP-FT start (Table 2)"
    row = pairs.loc[("test", name)]
    arms = [naive(records, arm, "test", MAIN_TOKEN[arm]) for arm in COMPARISONS[name]]
    result = crossed_bootstrap(arms[0] - arms[1], [item for item, _ in items("test")])
    expected = [100 * result.mean, 100 * result.low, 100 * result.high]
    assert row[["difference", "low", "high"]].tolist() == pytest.approx(expected, abs=0.005)
    assert row["discordant"] == pytest.approx((arms[0] != arms[1]).mean(), abs=1e-6)
    assert row[["published_llama", "published_qwen"]].tolist() == [2.5, 11.25]
    assert pairs["p_holm"].loc["test"].to_numpy() == pytest.approx(
        multipletests(pairs["p"].loc["test"], method="holm")[1], abs=1e-5
    )


def test_pairing_survives_another_item_order(records):
    turned = records[records["arm"] == "rctp_grpo"].iloc[::-1]
    mixed = pd.concat([records[records["arm"] != "rctp_grpo"], turned])
    key = ["test_set", "comparison", "seed"]
    first, second = (
        table1_mcnemar(t).sort_values(key, ignore_index=True) for t in (records, mixed)
    )
    pd.testing.assert_frame_equal(first, second)


def test_arms_on_different_items_are_not_paired(records):
    other = records["item_id"].where(records["arm"] != "sft_grpo", records["item_id"] + "_new")
    with pytest.raises(ValueError, match="different items of test"):
        table1_mcnemar(records.assign(item_id=other))


def test_power_statement_names_the_smallest_difference(records):
    pairs = table1_pairs(records, SEEDS)
    text = power_statement(pairs, "power")
    assert "power (n = 20)" in text and "30.0 points at best" in text and "2 seeds" in text
    assert power_statement(pairs.assign(n=pd.NA), "power").startswith("No pair of arms")


def test_shown_pairs_print_b_and_c_of_every_seed(records):
    pairs, tests = table1_pairs(records, SEEDS), table1_mcnemar(records)
    shown = show_pairs(pairs, tests)
    first = tests[tests["comparison"] == pairs["comparison"][0]].query("test_set == 'test'")
    assert shown["b/c by seed"][0] == ", ".join(f"{b}/{c}" for b, c in first[["b", "c"]].to_numpy())


PUBLISHED = sorted(path.stem for path in paths.PUBLISHED.glob("*.csv"))
# How a cell's source begins; the numbers of ICRL's tables are not all known here.
SOURCES = {"rc_grpo": "arXiv 2602.03025, Table", "icrl": "arXiv 2603.08068, "}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_cells_have_a_source_and_a_mark_unless_unknown(name):
    table = published(name)
    assert list(table.columns) == PUBLISHED_COLUMNS and table["source"].notna().all()
    assert table["source"].str.startswith(SOURCES[name.rpartition("_table")[0]]).all()
    known = table["value"].notna()
    assert table.loc[known, "mark"].isin(list("ABCD")).all()
    assert table.loc[~known, ["mark", "k"]].isna().all(axis=None)
    assert not table.duplicated(["model", "method", "metric"]).any()


@pytest.mark.parametrize("name", ["rc_grpo_table1", "rc_grpo_table2", "rc_grpo_table3a"])
def test_published_counts_give_the_printed_percentages(name):
    table = published(name).dropna(subset="k")
    assert (100 * table["k"] / table["n"]).astype(float).round(2).tolist() == table[
        "value"
    ].tolist()


def test_published_cells_without_a_count_are_those_that_no_count_gives():
    table = published("rc_grpo_table1")
    cells = table[table["value"].notna() & table["k"].isna()]
    assert len(cells) == 5 and cells["note"].str.startswith("no k/").all()
    for cell in cells.itertuples():
        possible = [round(100 * k / cell.n, 2) for k in range(cell.n + 1)]
        assert cell.value not in possible


def test_published_differences_follow_from_table_1():
    cells = published("rc_grpo_table1").query("metric == 'overall'")
    overall = cells.set_index(["model", "method"])["value"]
    for name in ("rc_grpo_table2", "rc_grpo_table3a", "rc_grpo_table3b"):
        for row in published(name).itertuples():
            if row.metric == "overall":
                assert row.value == overall[row.model, row.method]
            else:
                first, second = row.method.split(" - ")
                assert row.value == overall[row.model, first] - overall[row.model, second]


def test_published_split_sizes_add_up():
    table = published("rc_grpo_tables6_7").set_index(["method", "metric"])["value"]
    for split, total in {"train": "720", "test": "80"}.items():
        parts = [int(table["RL", f"{split} tasks {category}"]) for category in CATEGORIES]
        assert sum(parts) == int(table["RL", f"{split} tasks"]) == int(total)


def test_an_unknown_published_table_lists_the_known_ones():
    with pytest.raises(FileNotFoundError, match="rc_grpo_table1, rc_grpo_table2"):
        published("rc_grpo_table99")


def test_latex_escapes_everything_and_ends_every_row(tmp_path):
    table = pd.DataFrame({"a_b (%)": [1.5, None], "c": ["x & y_z", "#1"]})
    write_table(table, tmp_path / "t", {}, notes=["50 % of {a_b} <= 1"])
    text = (tmp_path / "t.tex").read_text()
    body = re.sub(r"(?m)^% needs.*$|\{!\}\{%$", "", text)
    assert not re.search(r"(?<!\\)[%#_]", body) and "$<$" in body
    rows = re.search(r"\\toprule\n(.*)\\bottomrule", text, re.S)[1].replace("\\midrule\n", "")
    assert all(line.endswith(r"\\") for line in rows.splitlines())
    assert [len(re.findall(r"(?<!\\)&", line)) for line in rows.splitlines()] == [1, 1, 1]


def test_a_percent_sign_in_a_cell_is_refused(tmp_path):
    with pytest.raises(ValueError, match="'50%' has a percent sign"):
        write_table(pd.DataFrame({"a": ["50%"]}), tmp_path / "t", {})
    assert list(tmp_path.iterdir()) == []


def test_markdown_has_one_line_a_row_and_keeps_pipes(tmp_path):
    write_table(pd.DataFrame({"a": ["x|y", None], "b": [1, 2]}), tmp_path / "t", {}, notes=["n"])
    lines = (tmp_path / "t.md").read_text().splitlines()
    assert lines == ["| a | b |", "| --- | --- |", "| x\\|y | 1 |", "|  | 2 |", "", "n"]


def test_a_long_table_may_break_over_pages(tmp_path):
    write_table(pd.DataFrame({"a": range(60)}), tmp_path / "t", {})
    assert "\\begin{longtable}" in (tmp_path / "t.tex").read_text()


def test_rebuilding_gives_the_same_bytes_and_manifests_that_name_every_input(root, tmp_path):
    first, second = (
        rebuild_all(root, tmp_path / n / "tables", tmp_path / n / "figures", "tiny") for n in "ab"
    )
    assert [p.read_bytes() for p in first] == [p.read_bytes() for p in second]
    names = {p.relative_to(tmp_path / "a").as_posix() for p in first}
    assert {f"tables/table1_bfcl.{end}" for end in ("csv", "md", "tex", "manifest.json")} < names
    assert {"figures/training_dynamics.pdf", "figures/table1_bfcl.png"} < names
    about = json.loads((tmp_path / "a/tables/table1_bfcl.manifest.json").read_text())
    assert (about["profile"], about["seeds"], about["rows"]) == ("tiny", SEEDS, 20)
    for seed in SEEDS:
        for arm in ALL_ARMS:
            name = f"seed{seed}/{arm}/per_item.csv"
            assert about["inputs"][name] == sha256(root / name)
    assert "published/rc_grpo_table1.csv" in about["inputs"]


def test_rebuilding_from_a_part_of_the_seeds_says_so(tmp_path):
    root = write_records(tmp_path / "records", seeds=[1], arms=["base", "sft"])
    assert found_seeds(root) == [1]
    rebuild_all(root, tmp_path, tmp_path, "tiny", seeds=[0, 1])
    text = (tmp_path / "table1_bfcl.md").read_text()
    assert "1 of 2 (missing 0)" in text and "0 of 2 (missing 0 1)" in text
    assert not (tmp_path / "training_dynamics.pdf").exists()  # no arm with RL yet


def test_rebuilding_without_records_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="run `make reproduce"):
        rebuild_all(tmp_path, tmp_path, tmp_path, "tiny", seeds=[0])


def test_synthetic_items_have_all_categories():
    assert [c for _, c in items("test")] == [c for c in CATEGORIES for _ in range(3)]
    assert per_item("base", 0)["correct"].nunique() == 2
