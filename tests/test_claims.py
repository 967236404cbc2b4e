"""Claims: each rule at its edges, what the rules file may say, and the document made of it."""

import re

import pandas as pd
import pytest

from rc_lib import claims, paths
from rc_lib.claims import Estimate, decide, document, evaluate, rules, shown, write_claims
from rc_lib.published import MODELS, published
from rc_lib.table1 import METHODS
from tests import synthetic

SETTINGS = {"margin": 7.5, "min_seeds": 3}
NAN = float("nan")
HEAD = """
[settings]
main_test_set = "power"
other_test_set = "test"
phase_share = 0.25
margin = 7.5
min_seeds = 2
"""
CLAIM = """
[[claim]]
id = "{id}"
paper = "RC-GRPO"
source = "Table 1"
claim = "Said."
published_text = "said"
unit = "points"
rule = "greater"
notebook = "12_table1_bfcl"
measure = "accuracy"
contrasts = [{contrasts}]
"""
PAIR = "{ rctp_rc_grpo = 1, rctp_grpo = -1 }"


def verdict(rule, value, low, high, published=None, seeds=5):
    claim = {"rule": rule} | ({"published": published} if published else {})
    return decide(claim, Estimate(value, low, high, tuple(range(seeds)), 80), SETTINGS)[0]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return synthetic.write_records(tmp_path_factory.mktemp("records"))


@pytest.fixture
def write_rules(tmp_path):
    def write(*parts):
        path = tmp_path / "claims.toml"
        path.write_text("".join([HEAD, *parts]), encoding="utf-8")
        return path

    return write


def claim_text(*lines, id="one", contrasts=PAIR):
    return CLAIM.format(id=id, contrasts=contrasts) + "".join(f"{line}\n" for line in lines)


@pytest.mark.parametrize(
    ("value", "low", "high", "expected"),
    [
        (5, 0.1, 10, "reproduced"),
        (5, 0.0, 10, "direction only"),  # touching 0 is holding it
        (5, -1.0, 10, "direction only"),
        (0, -5.0, 5, "not reproduced"),
        (-5, -9.0, -1, "not reproduced"),
        (5, NAN, NAN, "direction only"),
        (-5, NAN, NAN, "not reproduced"),
    ],
)
def test_greater_needs_an_interval_above_0(value, low, high, expected):
    assert verdict("greater", value, low, high) == expected


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (1, 10.0, "reproduced"),  # reaches the smallest size
        (1, 9.99, "direction only"),
        (30, 50.0, "reproduced"),  # beyond all of them
        (12, 15.0, "reproduced"),
        (-1, 15.0, "direction only"),
    ],
)
def test_greater_must_reach_the_smallest_published_size(low, high, expected):
    sizes = {"LLaMA": 20.0, "Qwen": 10.0}
    assert verdict("greater", (low + high) / 2, low, high, sizes) == expected


@pytest.mark.parametrize(
    ("value", "low", "high", "expected"),
    [
        (-20, -30, -10, "reproduced"),
        (0, -7, 7.4, "reproduced"),
        (0, -7, 7.5, "direction only"),
        (7.4, -1, 15, "direction only"),
        (7.5, -1, 15, "not reproduced"),
        (3, 0.1, 6, "not reproduced"),  # small but sure
        (3, 0.0, 6, "reproduced"),
        (3, NAN, NAN, "direction only"),
    ],
)
def test_no_gain_ends_below_the_margin_and_does_not_lie_above_0(value, low, high, expected):
    assert verdict("no_gain", value, low, high, {"Qwen": -2.5}) == expected


@pytest.mark.parametrize(
    ("value", "low", "high", "expected"),
    [
        (3, 0.1, 7.4, "reproduced"),
        (0, -7.4, 7.5, "direction only"),
        (0, -7.5, 7.4, "direction only"),
        (-7.4, -20, 5, "direction only"),
        (-7.5, -8, -7, "not reproduced"),
        (7.5, 7, 8, "not reproduced"),
        (0, NAN, NAN, "direction only"),
    ],
)
def test_no_effect_lies_inside_the_margin(value, low, high, expected):
    assert verdict("no_effect", value, low, high) == expected


@pytest.mark.parametrize("rule", claims.DECIDE)
def test_nothing_is_reproduced_with_fewer_than_min_seeds(rule):
    assert verdict(rule, 3, 0.0 if rule == "no_gain" else 1, 5, seeds=3) == "reproduced"
    assert verdict(rule, 3, 0.0 if rule == "no_gain" else 1, 5, seeds=2) == "direction only"
    assert verdict(rule, 20 if rule != "greater" else -1, -1, 30, seeds=2) == "not reproduced"


def test_a_claim_with_several_contrasts_has_the_worst_verdict_and_shows_the_smallest_value(
    write_rules, root, monkeypatch
):
    values = {
        "base": Estimate(20.0, 10.0, 30.0, (0, 1), 20),
        "sft_grpo": Estimate(9.0, -1.0, 19.0, (0, 1), 20),
        "rctp_grpo": Estimate(5.0, 1.0, 9.0, (0, 1), 20),
    }
    contrasts = ", ".join(f"{{ rctp_rc_grpo = 1, {arm} = -1 }}" for arm in values)
    monkeypatch.setattr(claims, "measure", lambda r, claim, c, s, w: values[list(c)[1]])
    path = write_rules(claim_text(contrasts=contrasts))
    row = evaluate(root, "tiny", rules_path=path).iloc[0]
    assert row["verdict"] == "direction only" and row["value"] == 5.0
    assert row["contrast"] == "rctp_rc_grpo - rctp_grpo"
    assert row["reason"] == "the interval holds 0 (rctp_rc_grpo - sft_grpo)"
    values["base"] = Estimate(-1.0, -2.0, 3.0, (0, 1), 20)
    row = evaluate(root, "tiny", rules_path=path).iloc[0]
    assert row["verdict"] == "not reproduced" and row["contrast"] == "rctp_rc_grpo - base"


def test_missing_records_are_not_tested_and_named(write_rules, tmp_path):
    root = synthetic.write_records(tmp_path / "records", arms=("base", "rctp", "rctp_grpo"))
    curve = claim_text('column = "sigma2"', 'phase = "all"', id="curve")
    curve = curve.replace('"accuracy"', '"curve"')
    path = write_rules(
        claim_text(), curve, claim_text(id="rest", contrasts="{ rctp = 1, base = -1 }")
    )
    table = evaluate(root, "tiny", [0, 1, 2], path).set_index("id", drop=False)
    assert table["verdict"].tolist()[:2] == ["not tested"] * 2
    assert table.loc["one", "reason"] == "no greedy results on power of rctp_rc_grpo/high"
    assert table.loc["one", "other_reason"] == "no greedy results on test of rctp_rc_grpo/high"
    assert table.loc["curve", "reason"] == "no curve.csv of rctp_rc_grpo"
    assert table.loc["rest", ["seeds", "missing_seeds"]].tolist() == [2, "2"]
    cells = shown(table)
    assert cells.loc["rest", "From"] == "power: 20 tasks; seeds: 2 of 3 (missing 2)"
    assert cells.loc["one", "Other set"].endswith("of rctp_rc_grpo/high, not tested")
    with pytest.raises(FileNotFoundError, match="make reproduce PROFILE=tiny"):
        evaluate(tmp_path / "nothing", "tiny", [0], path)


def test_the_other_test_set_stands_beside(write_rules, root):
    row = evaluate(root, "tiny", rules_path=write_rules(claim_text())).iloc[0]
    swapped = write_rules(claim_text())
    swapped.write_text(swapped.read_text().replace('"power"', '"x"').replace('"test"', '"power"'))
    other = evaluate(root, "tiny", rules_path=swapped).iloc[0]
    assert row["n"] == 20 and row["other_n"] == 12
    assert row["value"] == other["other_value"] and row["value"] != row["other_value"]
    assert row["verdict"] == other["other_verdict"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("decodnig = 'greedy'", "claim one: unknown or unused decodnig"),
        ("phase = 'late'", "claim one: unknown or unused phase"),
        ("column = 'kl'", "unused column"),
        ("reason = 'none'", "unused reason"),
        ("decoding = 'hot'", "decoding 'hot' is not one of greedy, sampled"),
        ("-rule", "rule None is not one of"),
        ("-source", "missing source"),
        ("-measure", "measure None is not one of"),
        ("-contrasts", "missing contrasts"),
        ("-published_text", "nothing published"),
    ],
)
def test_an_entry_that_is_missing_or_that_nothing_reads_is_refused_by_name(
    write_rules, change, message
):
    text = claim_text(*([] if change[0] == "-" else [change]))
    if change[0] == "-":
        text = re.sub(rf"^{change[1:]} = .*\n", "", text, flags=re.M)
    with pytest.raises(ValueError, match=message):
        rules(write_rules(text))


def test_settings_and_tables_are_checked_too(write_rules):
    with pytest.raises(ValueError, match="settings: unknown or unused extra"):
        rules(write_rules("extra = 1\n", claim_text()))
    with pytest.raises(ValueError, match="unknown or unused claims"):
        rules(write_rules(claim_text(), "[[claims]]\nid = 'x'\n"))
    with pytest.raises(ValueError, match="claim one: the id comes twice"):
        rules(write_rules(claim_text(), claim_text()))
    untested = claim_text('reason = "none"').replace('"greater"', '"none"')
    with pytest.raises(ValueError, match="unknown or unused contrasts, measure"):
        rules(write_rules(untested))


def test_the_papers_claims_cover_every_table_and_both_propositions():
    settings, found = rules()
    assert settings["min_seeds"] >= 2
    sources = " ".join(claim["source"] for claim in found if claim["paper"] == "RC-GRPO")
    for place in ("Table 1", "Table 2", "3A", "3B", "Table 4", "Table 5", "4.2", "4.3"):
        assert place in sources, place
    assert "ICRL" in {claim["paper"] for claim in found}
    for claim in found:
        assert (paths.NOTEBOOKS / f"{claim['notebook']}.ipynb").is_file(), claim["id"]


def test_published_sizes_of_the_accuracy_claims_follow_from_table_1():
    cells = published("rc_grpo_table1").query("metric == 'overall'")
    cells = cells.set_index(["model", "method"])["value"]
    models = {"LLaMA": MODELS["llama"], "Qwen": MODELS["qwen"]}
    checked = 0
    for claim in rules()[1]:
        if claim.get("measure") == "accuracy" and "published" in claim:
            for model, size in claim["published"].items():
                differences = [
                    sum(w * cells[models[model], METHODS[arm]] for arm, w in contrast.items())
                    for contrast in claim["contrasts"]
                ]
                assert min(differences) == pytest.approx(size), claim["id"]
                checked += 1
    assert checked == 18


def test_records_of_other_arms_and_folders_beside_change_nothing(write_rules, tmp_path):
    root = synthetic.write_records(tmp_path / "records")
    path = write_rules(claim_text())
    before = evaluate(root, "tiny", rules_path=path)
    synthetic.write_records(root, arms=("rctp_cue", "cue_rc_grpo"))
    (root / "seed0" / "variance").mkdir()
    (root / "seed0" / "variance" / "groups.csv").write_text("step\n")
    pd.testing.assert_frame_equal(evaluate(root, "tiny", rules_path=path), before)


def test_the_document_counts_every_claim_and_links_to_its_notebook(root):
    table = evaluate(root, "tiny")
    text = document(table)
    assert text.count("\n| `") == len(table) == len(rules()[1])
    counts = re.findall(r"^\| (RC-GRPO|ICRL) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", text, re.M)
    assert len(counts) == 2
    for paper, *numbers in counts:
        verdicts = table[table["paper"] == paper]["verdict"]
        assert list(map(int, numbers)) == [(verdicts == v).sum() for v in claims.VERDICTS]
    for link in re.findall(r"\]\(([^)]+)\)", text):
        assert (paths.ROOT / link).is_file(), link
    rows = [line for line in text.split("\n") if line.startswith("| `")]
    assert {line.count("|") for line in rows} == {9}


def test_a_rebuild_gives_the_same_bytes(root, tmp_path):
    first, second = (write_claims(root, "tiny", path=tmp_path / name)[0] for name in "ab")
    assert first.read_bytes() == second.read_bytes()


def test_a_bar_in_a_cell_does_not_end_it():
    assert claims.markdown(pd.DataFrame({"x": ["a|b"]})) == "| x |\n| --- |\n| a\\|b |\n"


def test_the_committed_claims_are_fresh():
    fresh = document(evaluate(paths.published_records("tiny"), "tiny"))
    assert claims.DOCUMENT.read_text(encoding="utf-8") == fresh, "stale: run make figures"
