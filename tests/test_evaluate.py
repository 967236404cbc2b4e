"""Evaluation item by item, its record on disk, and what rollouts show in groups."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from rc_lib import evaluate as evaluation
from rc_lib.advantage import group_statistics
from rc_lib.conditioning import Conditioning
from rc_lib.envs.base import Message
from rc_lib.policy import Policy, tiny_model, train_tokenizer
from rc_lib.records import (
    COLUMNS,
    INTEGERS,
    check_per_item,
    found_seeds,
    read_per_item,
    read_records,
    record_files,
    seed_item_matrix,
    write_per_item,
)
from rc_lib.rollout import Sampling
from rc_lib.seeding import rng, stable_id
from rc_lib.tasks.base import Task

SAMPLED = Sampling(temperature=1.0, max_new_tokens=6, max_length=96)
LABELS = {"profile": "tiny", "model": "toy", "arm": "sft", "seed": 3, "test_set": "test"}
TASKS = [
    Task(f"gen_test_{category}_{i}", category, (f"do {i}",), {}, (), ((),))
    for i, category in enumerate(["base", "miss_func", "base", "long_context"])
]


@dataclasses.dataclass
class ToyEnv:
    """One turn; each part of the reward is a coin that the model's text decides."""

    task: Task
    text: str = ""

    def reset(self):
        return [Message("user", self.task.turns[0])], {}

    def step(self, action):
        self.text = action
        return [], 0.0, True, False, {}

    def reward(self):
        names = ("reward", "state", "action", "official", "strict")
        return {name: float(stable_id(name + self.text) % 2) for name in names}


@pytest.fixture(scope="module")
def policy():
    tokenizer = train_tokenizer(["do 0 do 1 do 2 do 3"], 300)
    model = tiny_model(len(tokenizer), hidden=16, layers=1, heads=2, seed=0)
    made = Policy(model, tokenizer)
    made.add_reward_tokens(seed=0)
    return made


def run(policy, tasks=TASKS, make_env=ToyEnv, **changes):
    return evaluation.evaluate(policy, tasks, make_env, sampling=SAMPLED, **(LABELS | changes))


@pytest.fixture(scope="module")
def per_item(policy):
    return run(policy)


def test_every_item_is_there_in_a_fixed_order(per_item):
    assert tuple(per_item.columns) == COLUMNS
    order = per_item[["decoding", "token", "item_id"]].to_numpy().tolist()
    decodings, tokens = ("greedy", "sampled"), ("high", "low", "none")
    assert order == [[d, t, task.id] for d in decodings for t in tokens for task in TASKS]
    assert per_item["category"].tolist() == [task.category for task in TASKS] * 6
    assert all(per_item[column].dtype == "int64" for column in INTEGERS)
    assert per_item["correct"].nunique() == 2  # else the tests below compare constants


def test_a_draw_does_not_depend_on_its_company(policy, per_item):
    alone = run(policy, TASKS[2:3], tokens=["none"], decodings=["sampled"])
    places = (per_item["item_id"] == TASKS[2].id) & (per_item["token"] == "none")
    same = per_item[places & (per_item["decoding"] == "sampled")]
    assert alone.to_numpy().tolist() == same.to_numpy().tolist()


def test_other_arms_meet_the_same_draws_and_other_seeds_others(policy, per_item):
    sampled = per_item[per_item["decoding"] == "sampled"].drop(columns=["arm", "seed"])
    twin = run(policy, arm="rctp", decodings=["sampled"]).drop(columns=["arm", "seed"])
    other = run(policy, seed=4, decodings=["sampled"]).drop(columns=["arm", "seed"])
    assert twin.to_numpy().tolist() == sampled.to_numpy().tolist()
    assert other.to_numpy().tolist() != sampled.to_numpy().tolist()


def test_greedy_does_not_depend_on_the_seed(policy, per_item):
    other = run(policy, seed=4, decodings=["greedy"]).drop(columns="seed")
    greedy = per_item[per_item["decoding"] == "greedy"].drop(columns="seed")
    assert other.to_numpy().tolist() == greedy.to_numpy().tolist()


def test_the_token_reaches_the_prompt_and_the_reward_its_columns(policy, monkeypatch):
    seen = []

    def spy(policy, requests, sampling, **options):
        rollouts = evaluation_rollout(policy, requests, sampling, **options)
        seen.extend((r.token, sampling.temperature, r.parts) for r in rollouts)
        return rollouts

    evaluation_rollout = evaluation.rollout
    monkeypatch.setattr(evaluation, "rollout", spy)
    table = run(policy, TASKS[:1])
    assert [(token, temperature) for token, temperature, _ in seen] == [
        (token, temperature) for temperature in (0.0, 1.0) for token in ("high", "low", None)
    ]
    names = ["correct", "r_state", "r_action", "official", "strict"]
    parts = ["reward", "state", "action", "official", "strict"]
    assert table[names].to_numpy().tolist() == [[p[name] for name in parts] for *_, p in seen]


class HalfEnv(ToyEnv):
    def reward(self):
        return super().reward() | {"state": 0.5}


class PartlessEnv(ToyEnv):
    def reward(self):
        return {"reward": 1.0}


@pytest.mark.parametrize(("env", "found"), [(HalfEnv, "'state' is 0.5"), (PartlessEnv, "is None")])
def test_a_part_that_is_not_0_or_1_is_an_error(policy, env, found):
    with pytest.raises(ValueError, match=found):
        run(policy, TASKS[:1], env, decodings=["greedy"])


@pytest.mark.parametrize("changes", [{"tokens": ["medium"]}, {"decodings": ["beam"]}])
def test_unknown_choices_are_errors(policy, changes):
    with pytest.raises(ValueError, match=r"'(medium|beam)' is not one of"):
        run(policy, **changes)


def test_a_task_that_comes_twice_is_an_error(policy):
    with pytest.raises(ValueError, match="2 times|comes twice"):
        run(policy, [TASKS[0], TASKS[0]])


def test_record_is_read_back_equal_and_repeats_to_the_byte(per_item, tmp_path):
    path = write_per_item(per_item, tmp_path / "a" / "per_item.csv")
    shuffled_columns = per_item[list(reversed(COLUMNS))].astype({"correct": float})
    other = write_per_item(shuffled_columns, tmp_path / "b.csv")
    pd.testing.assert_frame_equal(read_per_item(path), per_item)
    assert path.read_bytes() == other.read_bytes()
    assert [p.name for p in path.parent.iterdir()] == ["per_item.csv"]


BREAKS = {
    "missing columns strict": lambda t: t.drop(columns="strict"),
    "unknown columns score": lambda t: t.assign(score=1),
    "blank category in row 2": lambda t: t.assign(category=["a", "b", None] + ["c"] * (len(t) - 3)),
    "correct 2 is not one of": lambda t: t.assign(correct=2),
    "r_state is 0.5": lambda t: t.assign(r_state=0.5),
    "token 'None'": lambda t: t.assign(token="None"),
    "comes twice": lambda t: pd.concat([t, t.iloc[:1]]),
    "no rows": lambda t: t.iloc[:0],
}


@pytest.mark.parametrize("problem", BREAKS)
def test_a_broken_record_is_named_and_not_written(per_item, tmp_path, problem):
    path = tmp_path / "per_item.csv"
    with pytest.raises(ValueError, match=f"{path}: .*{problem}"):
        write_per_item(BREAKS[problem](per_item), path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("cut", [0, 10, 400, -1, -3])
def test_a_cut_off_record_is_an_error(per_item, tmp_path, cut):
    path = write_per_item(per_item, tmp_path / "per_item.csv")
    path.write_bytes(path.read_bytes()[:cut].rstrip(b"01"))
    with pytest.raises(ValueError, match=str(path)):
        read_per_item(path)


def test_records_are_found_by_arm_and_seed(per_item, tmp_path):
    for seed in (10, 2):
        write_per_item(
            per_item.assign(seed=seed), tmp_path / f"seed{seed}" / "sft" / "per_item.csv"
        )
    assert found_seeds(tmp_path) == [2, 10]
    assert list(record_files(tmp_path, "per_item.csv", [2, 5, 10])) == [("sft", 2), ("sft", 10)]
    assert sorted(read_records(tmp_path, "tiny", [2, 5, 10])["seed"].unique()) == [2, 10]


def test_a_record_in_the_wrong_folder_is_an_error(per_item, tmp_path):
    write_per_item(per_item, tmp_path / "seed3" / "rctp" / "per_item.csv")
    with pytest.raises(ValueError, match=r"arm is \['sft'\], expected 'rctp'"):
        read_records(tmp_path, "tiny", [3])
    with pytest.raises(FileNotFoundError, match="make reproduce PROFILE=tiny"):
        read_records(tmp_path, "tiny", [0])


def test_seeds_on_different_items_are_an_error(per_item):
    one = per_item[(per_item["token"] == "high") & (per_item["decoding"] == "greedy")]
    both = pd.concat([one, one.iloc[1:].assign(seed=4)])
    with pytest.raises(ValueError, match=r"different items \(rows a seed: {3: 4, 4: 3}\)"):
        seed_item_matrix(both)


def gap_rows(high, low):
    """Per-item rows of seeds-by-items matrices for the two tokens."""
    rows = []
    for token, matrix in {"high": high, "low": low}.items():
        for seed, values in enumerate(matrix):
            for item, value in enumerate(values):
                labels = [
                    "tiny",
                    "toy",
                    "rctp",
                    seed,
                    token,
                    "sampled",
                    "test",
                    f"gen_{item}",
                    "base",
                ]
                rows.append([*labels, *[value] * 5])
    return check_per_item(pd.DataFrame(rows, columns=COLUMNS), "test")


def test_conditioning_gap_is_the_paired_difference_of_means():
    draw = rng(0, "test")
    high, low = draw.random((2, 3, 40)) < np.array([0.7, 0.4])[:, None, None]
    gap = evaluation.conditioning_gap(gap_rows(high.astype(int), low.astype(int)))
    assert gap["mu_high"] == pytest.approx(high.mean()) and gap["mu_low"] == pytest.approx(
        low.mean()
    )
    assert gap["gap"] == pytest.approx(high.mean() - low.mean())
    assert 0 < gap["gap_low"] < gap["gap"] < gap["gap_high"] < 1
    assert (gap["items"], gap["seeds"]) == (40, 3)


def test_equal_tokens_have_a_gap_of_exactly_zero():
    values = [[1, 0, 1, 0]]
    gap = evaluation.conditioning_gap(gap_rows(values, values))
    assert gap["gap"] == gap["gap_low"] == gap["gap_high"] == 0.0


def test_conditioning_gap_needs_both_tokens_of_one_arm():
    rows = gap_rows([[1, 0]], [[0, 0]])
    with pytest.raises(ValueError, match="under the low token"):
        evaluation.conditioning_gap(rows[rows["token"] == "high"])
    with pytest.raises(ValueError, match="one arm"):
        evaluation.conditioning_gap(pd.concat([rows, rows.assign(arm="sft")]))


def test_group_share_describes_the_groups_that_training_would_see(policy, monkeypatch):
    seen = []

    def spy(policy, requests, sampling, **options):
        rollouts = evaluation_rollout(policy, requests, sampling, **options)
        seen.extend(rollouts)
        return rollouts

    evaluation_rollout = evaluation.rollout
    monkeypatch.setattr(evaluation, "rollout", spy)
    options = dict(group_size=4, conditioning=Conditioning("iid"), sampling=SAMPLED, seed=0)
    share = evaluation.group_share(policy, TASKS, ToyEnv, **options)
    by_group = {}
    for r in seen:
        by_group.setdefault(r.task_id, []).append(r.reward)
    assert [len(rewards) for rewards in by_group.values()] == [4] * len(TASKS)
    assert share["all_fail"] == np.mean([max(rewards) == 0 for rewards in by_group.values()])
    assert share["all_success"] == np.mean([min(rewards) == 1 for rewards in by_group.values()])
    assert share["degenerate"] == share["all_fail"] + share["all_success"]
    everything = [[r.reward for r in seen], [r.group_id for r in seen], [r.token for r in seen]]
    assert share["sigma2"] == group_statistics(*everything)["sigma2"]
    assert (share["groups"], share["group_size"]) == (len(TASKS), 4)


def test_group_share_without_tokens_has_no_token_means(policy):
    options = dict(group_size=2, conditioning=Conditioning("none"), sampling=SAMPLED, seed=0)
    share = evaluation.group_share(policy, TASKS[:1], ToyEnv, **options)
    assert "mu_high" not in share and not any(np.isnan(value) for value in share.values())
