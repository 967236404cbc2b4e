"""Tables and figures of the variance from synthetic records: numbers, files and what is missing."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from rc_lib import paths, variance_figures, variance_tables
from rc_lib.config import ARMS
from rc_lib.proposition_figures import (
    explore,
    proposition_4_2_figure,
    proposition_4_3_figure,
    sliders,
)
from rc_lib.seeding import rng, stable_id
from rc_lib.variance import simulate_groups
from rc_lib.variance_figures import write_training, write_variance
from rc_lib.variance_records import collapse, group_arrays, matched_variance, training_windows
from rc_lib.variance_tables import gradient_shares, over_seeds

SEEDS, STEPS, PROMPTS, G = [0, 1, 2], 20, 4, 5
STEMS = {
    "proposition_4_2", "proposition_4_3", "proposition_4_2_measured", "variance_temperature",
    "gradient_parts", "variance_in_training",
}  # fmt: skip
PROPOSITIONS = {"proposition_4_2", "proposition_4_3", "proposition_4_3_weights"}


def words(rewards, is_high=None):
    """The two text columns of recorded groups."""
    tokens = [["none"] * rewards.shape[1]] * len(rewards)
    if is_high is not None:
        tokens = np.where(is_high, "high", "low")
    return {
        "tokens": [" ".join(row) for row in tokens],
        "rewards": [" ".join(f"{reward:g}" for reward in row) for row in rewards],
    }


def training_groups(arm, seed):
    draws = rng(seed, "test-groups", stable_id(arm))
    rewards, is_high = simulate_groups(G, 0.5, 0.6, 0.2, STEPS * PROMPTS, draws)
    step, group = np.divmod(np.arange(STEPS * PROMPTS), PROMPTS)
    table = pd.DataFrame({"step": step, "group_id": group, "task_id": "t", "category": "base"})
    return table.assign(**words(rewards, is_high if "rc_grpo" in arm else None))


def measured(seed, tasks=30):
    """Groups, KL and gradients as notebook 22 records them."""
    draws, groups, kl = rng(seed, "test-measured"), [], []
    samples = [("sft", "none", t, 0.9 - 0.5 * t) for t in (0.5, 1.0, 1.5)]
    samples += [
        ("rctp", "high", 1.0, 0.5),
        ("rctp", "iid", 1.0, 0.4),
        ("sft_grpo", "none", 1.0, 0.6),
    ]
    for policy, conditioning, temperature, q in samples:
        rewards, is_high = simulate_groups(G, 0.5, q + 0.1, q - 0.1, tasks, draws)
        place = {"policy": policy, "conditioning": conditioning, "temperature": temperature}
        table = pd.DataFrame({"task_id": [f"t{i}" for i in range(tasks)], "category": "base"})
        table = table.assign(**place, **words(rewards, is_high if conditioning == "iid" else None))
        as_reference = draws.integers(0, G + 1, tasks)
        groups.append(
            table.assign(distinct=G + 1 - np.maximum(as_reference, 1), as_reference=as_reference)
        )
    for policy, token in (("sft", "none"), ("rctp", "high"), ("rctp", "low"), ("sft_grpo", "none")):
        steps = [" ".join(f"{x:.3f}" for x in draws.exponential(0.2, 3)) for _ in range(tasks)]
        table = {"policy": policy, "token": token, "task_id": [f"t{i}" for i in range(tasks)]}
        kl.append(pd.DataFrame(table | {"category": "base", "kl": steps}))
    rows = []
    for normalization, scale in product(("sum", "mean"), ("none", "group")):
        labels = [("none", "full", 1.0), *((m, p, s) for m in ("group", "others")
                  for p, s in (("between", 0.2), ("within", 0.8)))]  # fmt: skip
        for means, part, share in labels:
            row = {"normalization": normalization, "scale": scale, "means": means, "part": part}
            row |= {"norm": 1.0, "cosine": share, "split_half": 0.1, "signal2": 1.0 + seed}
            rows.append(row | {"inner": share * (1 + seed), "noise2": 100 * share, "groups": tasks})
    return {"groups": pd.concat(groups), "kl": pd.concat(kl), "gradients": pd.DataFrame(rows)}


def write_records(root, seeds=SEEDS, arms=ARMS, with_measured=True):
    for seed in seeds:
        tables = {arm: {"groups": training_groups(arm, seed)} for arm in arms}
        tables |= {"variance": measured(seed)} if with_measured else {}
        for folder, parts in tables.items():
            place = root / f"seed{seed}" / folder
            place.mkdir(parents=True)
            for name, table in parts.items():
                table.to_csv(place / f"{name}.csv", index=False)
    return root


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_records(tmp_path_factory.mktemp("records"))


@pytest.fixture
def quick(monkeypatch):
    """Draw the figures without writing them, and simulate few groups."""
    monkeypatch.setattr(variance_figures, "save_figure", lambda figure, stem, about: [stem])
    monkeypatch.setattr(variance_tables, "SIMULATED", 50)


def stems(written):
    return {path.name.split(".")[0] for path in written}


def test_every_table_is_written_again_with_the_same_bytes(root, tmp_path, quick, capsys):
    folders = tmp_path / "tables", tmp_path / "figures"
    first = write_variance(root, *folders, "tiny", SEEDS)
    assert capsys.readouterr().out == "" and stems(first) == STEMS | PROPOSITIONS
    tables = [path for path in first if path.parent == folders[0]]
    assert len(tables) == 4 * 7 and len(first) - len(tables) == len(STEMS)
    bytes_of = {path: path.read_bytes() for path in tables}
    assert write_variance(root, *folders, "tiny", SEEDS) == first
    assert {path: path.read_bytes() for path in tables} == bytes_of


def test_a_figure_is_written_again_with_the_same_bytes(root, tmp_path):
    first = write_training(root, tmp_path, tmp_path, "tiny", SEEDS)
    bytes_of = {path: path.read_bytes() for path in first}
    names = {path.name.removeprefix("variance_in_training") for path in first}
    assert names == {".csv", ".md", ".tex", ".pdf", ".png", ".manifest.json"}
    assert write_training(root, tmp_path, tmp_path, "tiny", SEEDS) == first
    assert {path: path.read_bytes() for path in first} == bytes_of


def test_what_is_missing_is_named_and_the_rest_is_written(tmp_path, quick, capsys):
    part = write_records(tmp_path / "part", seeds=[0], arms=["sft_grpo"], with_measured=False)
    written = write_variance(part, tmp_path / "a", tmp_path / "b", "tiny", [0, 1])
    lines = capsys.readouterr().out.splitlines()
    assert "no variance/groups.csv, kl.csv or gradients.csv of seeds [0, 1]" in lines[0]
    assert lines[1] == "variance: no sft_grpo/groups.csv of seeds [1]; run notebook 11 for them"
    assert len(lines) == 5
    assert stems(written) == PROPOSITIONS | {"variance_in_training"}


def test_records_of_an_older_run_give_the_propositions_alone(tmp_path, quick, capsys):
    (tmp_path / "records/seed0/sft").mkdir(parents=True)
    written = write_variance(tmp_path / "records", tmp_path / "a", tmp_path / "b", "tiny", [0])
    assert stems(written) == PROPOSITIONS
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(ARMS)


def test_one_seed_is_enough(tmp_path, root, quick):
    written = write_variance(root, tmp_path / "a", tmp_path / "b", "tiny", [1])
    assert stems(written) == STEMS | PROPOSITIONS
    table = pd.read_csv(tmp_path / "a/variance_in_training.csv")
    assert table["sigma2_low"].isna().all() and (table["seeds"] == 1).all()


def test_windows_hold_the_groups_of_their_steps(root):
    windows = training_windows(root, SEEDS, 0.5)
    assert len(windows) == len(ARMS) * len(SEEDS) * STEPS // 10
    one = windows[(windows["arm"] == "rctp_rc_grpo") & (windows["seed"] == 1)].iloc[1]
    groups = training_groups("rctp_rc_grpo", 1).query("step >= 10")
    rewards, is_high = group_arrays(groups)
    assert (one["first_step"], one["last_step"], one["groups"]) == (10, 19, 10 * PROMPTS)
    assert one["sigma2"] == pytest.approx(rewards.var(1).mean())
    assert one["gap"] == pytest.approx(rewards[is_high].mean() - rewards[~is_high].mean())
    assert windows.loc[windows["arm"] == "sft_grpo", "gap"].isna().all()


def test_mixed_kinds_of_groups_are_an_error():
    table = pd.DataFrame({"tokens": ["high low", "none none"], "rewards": ["1 0", "1 0"]})
    with pytest.raises(ValueError, match="some groups have tokens"):
        group_arrays(table)
    with pytest.raises(ValueError, match="sizes"):
        group_arrays(table.assign(rewards=["1 0", "1"]))


def test_collapse_predicts_from_the_kl_of_each_task():
    rewards, is_high = (
        np.array([[1, 1, 1], [0, 1, 0]]),
        np.array([[1, 0, 1], [0, 1, 0]], dtype=bool),
    )
    place = {"policy": "p", "conditioning": "iid", "temperature": 1.0, "task_id": ["a", "b"]}
    groups = pd.DataFrame(
        place | words(rewards, is_high) | {"distinct": [1, 3], "as_reference": [3, 1]}
    )
    kl = {
        "a": {"high": [0.1, 0.2], "low": [1.0, 0.5]},
        "b": {"high": [0.0, 0.4], "low": [2.0, 2.0]},
    }
    rows = [{"policy": "p", "token": token, "task_id": task, "kl": " ".join(map(str, steps))}
            for task, by_token in kl.items() for token, steps in by_token.items()]  # fmt: skip
    (row,) = collapse(pd.DataFrame(rows), groups, 0.5).to_dict("records")
    p = [0.5 * (np.exp(-sum(kl[task]["high"])) + np.exp(-sum(kl[task]["low"]))) for task in "ab"]
    assert row["p_reference"] == pytest.approx(np.mean(p))
    assert row["all_reference"] == pytest.approx(np.mean(np.power(p, 3)))
    assert row["p_reference_seen"] == pytest.approx(4 / 6) and row["all_reference_seen"] == 0.5
    assert row["kl_max"] == 0.4 and row["steps"] == 2 and row["identical"] == 0.5
    assert row["bound"] <= row["bound_task"] <= row["all_reference"]
    assert row["degenerate"] == 0.5 and row["all_fail"] == 0


def test_matched_variance_interpolates_the_share_of_the_ceiling():
    q = np.array([0.2, 0.6])
    sampled = pd.DataFrame({
        "policy": ["sft", "sft", "rctp", "rctp"], "conditioning": ["none", "none", "iid", "high"],
        "temperature": [1.5, 1.0, 1.0, 1.0], "reward": [*q, 0.4, 0.7],
        "sigma2": [0.064, 0.096, 0.1, 0.11],
        "ceiling": [*(0.8 * q * (1 - q)), 0.192, 0.168], "mu_high": [np.nan, np.nan, 0.7, np.nan],
    })  # fmt: skip
    table = matched_variance(sampled, 5).set_index("against")
    same = table.loc["SFT, same reward"]
    assert same["temperature"] == pytest.approx(1.25)
    assert same["sigma2_other"] == pytest.approx(0.5 * 0.8 * 0.4 * 0.6)  # half of the ceiling
    assert np.isnan(table.loc["SFT, high token's reward", "sigma2_other"])  # out of reach
    assert table.loc["RCTP-FT, high token alone", "difference"] == pytest.approx(-0.01)


def test_shares_are_ratios_of_sums_over_seeds():
    gradients = pd.concat([measured(seed)["gradients"].assign(seed=seed) for seed in SEEDS])
    gradients.loc[(gradients["part"] == "within") & (gradients["seed"] == 2), "inner"] = 0.0
    shares = gradient_shares(gradients).set_index(["normalization", "scale", "means", "part"])
    row = shares.loc[("sum", "none", "group", "within")]
    assert row["share"] == pytest.approx((0.8 + 1.6 + 0.0) / (1 + 2 + 3))
    assert row["share_low"] < row["share"] < row["share_high"]
    assert row["noise"] == pytest.approx(0.8) and row["groups"] == 90


def test_over_seeds_gives_no_interval_for_two_seeds():
    table = pd.DataFrame({"arm": ["a", "a"], "seed": [0, 1], "x": [1.0, 3.0]})
    row = over_seeds(table, ["arm"]).iloc[0]
    assert row["x"] == 2.0 and np.isnan(row["x_low"]) and row["seeds"] == 2


def test_figures_take_any_setting_and_mark_it():
    for figure in (
        proposition_4_2_figure((3, 7), kl=2.4),
        proposition_4_3_figure(3, 0.2, 0.5, 0.9),
    ):
        assert isinstance(figure, Figure) and len(figure.axes) == 3
    numbers, collapse_figure, variance_figure = explore(4, 0.3, 0.8, 0.1, steps=3, kl=0.05)
    assert numbers["1 - G T eps"] == pytest.approx(0.4)
    assert numbers["E[sigma_g^2], stratified tokens"] > numbers["E[sigma_g^2], i.i.d. tokens"]
    marks = [line.get_xdata()[0] for ax in collapse_figure.axes for line in ax.get_lines()[-1:]]
    assert marks == pytest.approx([0.15, np.exp(-0.15), np.exp(-0.15)])
    curve = variance_figure.axes[0].get_lines()[0]
    at = np.interp(0.1, curve.get_xdata(), curve.get_ydata())
    assert at == pytest.approx(numbers["E[sigma_g^2], i.i.d. tokens"], abs=1e-3)


def test_the_records_of_a_measurement_have_their_place():
    assert paths.record_dir("/x", 0, "variance").name == "variance"


def test_moving_a_slider_changes_numbers_and_figures():
    setting = {"group_size": 5, "p_high": 0.5, "mu_high": 0.4, "mu_low": 0.1, "steps": 4, "kl": 0.6}
    box = sliders(**setting)
    controls, numbers, collapse, variance = box.children
    before = [numbers.value, collapse.value, variance.value]
    controls.children[0].value = 9
    assert f"{explore(**setting | {'group_size': 9})[0].iloc[-1]:.4f}" in numbers.value
    assert all(
        old != new for old, new in zip(before, (w.value for w in box.children[1:]), strict=True)
    )
