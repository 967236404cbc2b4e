"""What a claim's quantity is: each measure against a naive version on synthetic records."""

import json

import numpy as np
import pandas as pd
import pytest
from scipy.stats import pearsonr, ttest_1samp

from rc_lib.claims_measured import Missing, Records, check_measured, measure, student_interval
from rc_lib.stats import crossed_bootstrap
from tests import synthetic

SETTINGS = {"phase_share": 0.25}
SEEDS = (0, 1, 2)


def groups(seed, steps=8, size=5):
    draw = np.random.default_rng(seed)
    rows = []
    for step in range(steps):
        for group in range(6):
            tokens = draw.choice(["high", "low"], size)
            if group == 0:
                tokens[:] = "high"  # tells nothing about the gap
            rewards = (draw.random(size) < np.where(tokens == "high", 0.7, 0.4)).astype(int)
            rows.append([step, group, " ".join(tokens), " ".join(map(str, rewards))])
    return pd.DataFrame(rows, columns=["step", "group_id", "tokens", "rewards"])


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = synthetic.write_records(tmp_path_factory.mktemp("records"), SEEDS)
    for seed in SEEDS:
        table = groups(seed)
        table.to_csv(root / f"seed{seed}" / "rctp_rc_grpo" / "groups.csv", index=False)
        start = {"groups_iid": {"mu_high": 0.4 + seed / 10, "mu_low": 0.1, "groups": 160 - seed}}
        (root / f"seed{seed}" / "rctp" / "metrics.json").write_text(json.dumps(start))
    return root


@pytest.fixture(scope="module")
def records(root):
    return Records(root, "tiny", SEEDS)


def curve(root, arm, seed):
    return pd.read_csv(root / f"seed{seed}" / arm / "curve.csv")


def check_against_student(estimate, values):
    interval = ttest_1samp(values, 0).confidence_interval(0.95)
    assert estimate[:3] == pytest.approx((np.mean(values), interval.low, interval.high))


def naive_accuracy(records, arm, token, decoding, test_set, item):
    """Correct of one item, seed by seed, one row at a time."""
    found = {}
    for row in records.per_item.to_dict("records"):
        place = (row["arm"], row["token"], row["decoding"], row["test_set"], row["item_id"])
        if place == (arm, token, decoding, test_set, item):
            found[row["seed"]] = row["correct"]
    return [found[seed] for seed in SEEDS]


def test_accuracy_is_the_paired_weighted_difference_in_points(records):
    weights = {"rctp_rc_grpo": 1, "rctp_grpo": -1, "sft_rc_grpo": -1, "sft_grpo": 1}
    tokens = {"rctp_rc_grpo": "high", "rctp_grpo": "none", "sft_rc_grpo": "high"}
    names = [item for item, _ in synthetic.items("test")]
    expected = np.zeros((len(SEEDS), len(names)))
    for arm, weight in weights.items():
        for place, item in enumerate(names):
            token = tokens.get(arm, "none")
            found = naive_accuracy(records, arm, token, "greedy", "test", item)
            expected[:, place] += weight * np.array(found)
    estimate = measure(records, {"measure": "accuracy"}, weights, SETTINGS, "test")
    assert estimate.value == pytest.approx(100 * expected.mean())
    draws = crossed_bootstrap(expected, names)
    assert estimate[1:3] == pytest.approx((100 * draws.low, 100 * draws.high))
    assert estimate.seeds == SEEDS and estimate.n == 12


def test_a_bar_names_the_token_and_decoding_is_read(records):
    claim = {"measure": "accuracy", "decoding": "sampled"}
    estimate = measure(records, claim, {"rctp/high": 1, "rctp/low": -1}, SETTINGS, "power")
    rows = records.per_item.query("arm == 'rctp' and decoding == 'sampled' and test_set == 'power'")
    means = rows.groupby("token")["correct"].mean()
    assert estimate.value == pytest.approx(100 * (means["high"] - means["low"]))


def test_a_seed_that_one_arm_lacks_is_left_out_of_the_pair(root, records):
    some = Records(root, "tiny", SEEDS)
    some.per_item = records.per_item.query("not (arm == 'rctp_grpo' and seed == 1)")
    weights = {"rctp_rc_grpo": 1, "rctp_grpo": -1}
    estimate = measure(some, {"measure": "accuracy"}, weights, SETTINGS, "power")
    assert estimate.seeds == (0, 2)
    only = Records(root, "tiny", SEEDS)
    only.per_item = some.per_item.query("arm != 'rctp_rc_grpo' or seed == 1")
    with pytest.raises(Missing, match="no seed has all of rctp_rc_grpo, rctp_grpo"):
        measure(only, {"measure": "accuracy"}, weights, SETTINGS, "power")


def test_arms_on_different_items_are_an_error(root, records):
    other = Records(root, "tiny", SEEDS)
    table = records.per_item
    other.per_item = table.assign(
        item_id=table["item_id"].where(table["arm"] != "rctp_grpo", table["item_id"] + "_new")
    )
    with pytest.raises(ValueError, match="different items of power"):
        measure(other, {"measure": "accuracy"}, {"rctp": 1, "rctp_grpo": -1}, SETTINGS, "power")


@pytest.mark.parametrize(
    ("phase", "steps"), [("all", range(8)), ("early", (0, 1)), ("late", (6, 7))]
)
def test_a_curve_is_averaged_over_its_phase_and_paired_by_seed(root, records, phase, steps):
    claim = {"measure": "curve", "column": "sigma2", "phase": phase}
    weights = {"rctp_rc_grpo": 1, "rctp_grpo": -1}
    estimate = measure(records, claim, weights, SETTINGS, "training")
    values = []
    for seed in SEEDS:
        tables = [curve(root, arm, seed).set_index("step")["sigma2"] for arm in weights]
        means = [np.mean([table[step] for step in steps]) for table in tables]
        values.append(means[0] - means[1])
    check_against_student(estimate, values)
    assert estimate.n == len(steps) and estimate.seeds == SEEDS


def test_a_correlation_is_averaged_as_fishers_z_with_the_claimed_sign(root, records):
    claim = {"measure": "correlation", "columns": ["entropy", "reward"]}
    estimate = measure(records, claim, {"rctp_rc_grpo": -1}, SETTINGS, "training")
    values = []
    for seed in SEEDS:
        table = curve(root, "rctp_rc_grpo", seed)
        values.append(-np.arctanh(pearsonr(table["entropy"], table["reward"])[0]))
    check_against_student([*map(np.arctanh, estimate[:3])], values)


def test_the_start_is_read_from_nested_metrics(records):
    claim = {"measure": "start", "above": 0.25}
    weights = {"rctp:groups_iid.mu_high": 1, "rctp:groups_iid.mu_low": -1}
    estimate = measure(records, claim, weights, SETTINGS, "training")
    check_against_student(estimate, np.array([0.3, 0.4, 0.5]) - 0.25)
    assert estimate.n == 158
    with pytest.raises(Missing, match="metrics.json of rctp has no groups_none.sigma2"):
        measure(records, claim, {"rctp:groups_none.sigma2": 1}, SETTINGS, "training")
    with pytest.raises(Missing, match="no metrics.json of sft"):
        measure(records, claim, {"sft:groups_none.sigma2": 1}, SETTINGS, "training")


def naive_groups(table):
    for row in table.itertuples():
        rewards = [float(x) for x in row.rewards.split()]
        yield list(zip(row.tokens.split(), rewards, strict=True))


def test_the_paired_gap_uses_groups_with_both_tokens_only(records):
    claim = {"measure": "groups", "quantity": "paired_gap", "phase": "late"}
    estimate = measure(records, claim, {"rctp_rc_grpo": 1}, SETTINGS, "training")
    values, counts = [], []
    for seed in SEEDS:
        gaps = []
        for group in naive_groups(groups(seed).query("step >= 6")):
            high = [reward for token, reward in group if token == "high"]
            low = [reward for token, reward in group if token == "low"]
            if high and low:
                gaps.append(np.mean(high) - np.mean(low))
        values.append(np.mean(gaps))
        counts.append(len(gaps))
    check_against_student(estimate, values)
    assert estimate.n == min(counts) < 12


def test_the_bounds_slack_is_variance_less_kappa_gap_squared(records):
    claim = {"measure": "groups", "quantity": "bound_slack", "phase": "all"}
    estimate = measure(records, claim, {"rctp_rc_grpo": 1}, SETTINGS, "training")
    values = []
    for seed in SEEDS:
        found = list(naive_groups(groups(seed)))
        variances = [np.var([reward for _, reward in group]) for group in found]
        pooled = [
            np.mean([reward for group in found for token, reward in group if token == name])
            for name in ("high", "low")
        ]
        values.append(np.mean(variances) - 4 / 5 * 0.25 * (pooled[0] - pooled[1]) ** 2)
    check_against_student(estimate, values)
    assert estimate.n == 48


def test_a_value_that_is_not_there_is_missing_and_never_skipped(root, records):
    claim, arm = {"measure": "curve", "column": "mu_high", "phase": "all"}, {"rctp_grpo": 1}
    with pytest.raises(Missing, match="curve.csv gives no finite value for rctp_grpo"):
        measure(records, claim, arm, SETTINGS, "training")
    with pytest.raises(Missing, match="curve.csv of rctp_grpo has no advantage_spread"):
        measure(records, claim | {"column": "advantage_spread"}, arm, SETTINGS, "training")
    with pytest.raises(Missing, match="no groups.csv of sft_rc_grpo"):
        gap = {"measure": "groups", "quantity": "paired_gap", "phase": "all"}
        measure(records, gap, {"sft_rc_grpo": 1}, SETTINGS, "training")


def test_one_hole_in_a_column_is_not_averaged_over(tmp_path):
    root = synthetic.write_records(tmp_path, (0,), ("base", "rctp_grpo"))
    path = root / "seed0" / "rctp_grpo" / "curve.csv"
    table = pd.read_csv(path)
    table.loc[3, "kl"] = np.nan
    table["entropy"] = 1.0
    table.to_csv(path, index=False)
    records = Records(root, "tiny", [0])
    claim = {"measure": "curve", "column": "kl", "phase": "all"}
    with pytest.raises(Missing, match="no finite value"):
        measure(records, claim, {"rctp_grpo": 1}, SETTINGS, "training")
    constant = {"measure": "correlation", "columns": ["entropy", "reward"]}
    with pytest.raises(Missing, match="no finite value"):
        measure(records, constant, {"rctp_grpo": 1}, SETTINGS, "training")


def test_one_seed_has_a_value_but_no_student_interval():
    assert student_interval([0.5])[0] == 0.5 and np.isnan(student_interval([0.5])[1:]).all()


@pytest.mark.parametrize(
    ("claim", "contrast", "message"),
    [
        ({"measure": "accuracy"}, {"rctp_gpo": 1}, "arm 'rctp_gpo' is not one of"),
        ({"measure": "accuracy"}, {"rctp/hi": 1}, "token of rctp 'hi' is not one of"),
        ({"measure": "accuracy"}, {}, "empty contrast"),
        ({"measure": "curve", "phase": "end"}, {"rctp_grpo": 1}, "phase 'end'"),
        ({"measure": "curve", "phase": "all"}, {"rctp_grpo/low": 1}, "arm 'rctp_grpo/low'"),
        ({"measure": "groups", "quantity": "gap"}, {"rctp_grpo": 1}, "quantity 'gap'"),
        ({"measure": "groups"}, {"sft": 1}, "'sft' has no RL stage"),
        ({"measure": "start"}, {"sft": 1}, "'sft' names no entry"),
        ({"measure": "correlation"}, {"sft_grpo": 2}, "weight 1 or -1"),
        ({"measure": "correlation"}, {"sft_grpo": 1, "rctp_grpo": -1}, "one arm"),
    ],
)
def test_an_unknown_choice_arm_or_token_is_refused_by_name(claim, contrast, message):
    with pytest.raises(ValueError, match=message):
        check_measured("claim x", claim | {"contrasts": [contrast]})
