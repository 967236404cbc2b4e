"""Arms as data: equal budgets, known names, and what each start and run of stage 2 is made of."""

from dataclasses import asdict, replace
from fractions import Fraction

import pandas as pd
import pytest

from rc_lib import arms, experiment, paths
from rc_lib.arms import EXTRA_ARMS, RL_ARMS, STARTS
from rc_lib.conditioning import Conditioning
from rc_lib.config import ALL_ARMS, ARMS, PROFILES, get_profile
from rc_lib.policy import Policy
from rc_lib.rollout import Rollout

SMOKE = get_profile("smoke")
every_arm = pytest.mark.parametrize("arm", RL_ARMS.values(), ids=RL_ARMS)


def test_names_are_known_and_labels_are_different():
    names = [*STARTS, *RL_ARMS]
    assert len(set(names)) == len(names) == len(ALL_ARMS) - 1 + len(EXTRA_ARMS)
    assert tuple(RL_ARMS)[:4] == ARMS
    labels = [row.label for row in (*STARTS.values(), *RL_ARMS.values())]
    assert len(set(labels)) == len(labels)
    for name in names:
        assert paths.record_dir("x", 0, name).name == name
    assert {arm.start for arm in RL_ARMS.values()} == set(STARTS)


@pytest.mark.parametrize("name", ARMS)
def test_the_arms_of_table_1_take_the_settings_of_the_profile(name):
    start, conditioning, config = experiment.stage2(SMOKE, name)
    kind = "iid" if "rc_grpo" in name else "none"
    assert (start, conditioning) == (name.split("_")[0], Conditioning(kind, p_high=SMOKE.p_high))
    assert config == SMOKE.rl


@every_arm
@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_every_arm_has_the_budget_that_its_row_says(arm, profile):
    config, usual = arm.config(profile), profile.rl
    rollouts = config.prompts_per_step * config.group_size
    share = Fraction(1, 4) if arm.name.endswith("quarter") else 1
    assert rollouts == share * usual.prompts_per_step * usual.group_size
    assert config.steps == usual.steps
    changed = {k for k, v in asdict(config).items() if v != asdict(usual)[k]}
    assert changed - {"prompts_per_step"} == set(arm.rl)


def test_rollouts_that_are_no_whole_number_of_groups_are_an_error():
    odd = replace(SMOKE, rl=replace(SMOKE.rl, prompts_per_step=3))
    with pytest.raises(ValueError, match="rctp_rc_g2: 15 rollouts .* groups of 2"):
        RL_ARMS["rctp_rc_g2"].config(odd)


def test_p_high_of_a_row_reaches_the_conditioning():
    assert experiment.stage2(SMOKE, "rctp_rc_p025")[1] == Conditioning("iid", p_high=0.25)
    assert experiment.stage2(SMOKE, "rctp_rc_p000")[1].tokens(0, 0, 0, 4) == ["low"] * 4
    assert experiment.stage2(SMOKE, "rctp_rc_stratified")[1].kind == "stratified"


def test_every_start_but_sft_makes_the_row_updates_of_rctp():
    config = get_profile("tiny").fine_tune
    updates = {
        name: start.epochs(config) * (2 if start.failures else 1) for name, start in STARTS.items()
    }
    assert updates.pop("sft") == config.sft_epochs
    assert set(updates.values()) == {2 * config.rctp_epochs}


def test_unknown_arms_and_starts_are_errors():
    with pytest.raises(ValueError, match="arm 'sft' has no RL stage; choose from sft_grpo, "):
        arms.rl_arm("sft")
    with pytest.raises(ValueError, match="start 'rctp' is not one of sft_equal, "):
        arms.extra_start("rctp")


def test_the_main_token_is_the_one_trained_with_most():
    token = {name: arms.main_token(name) for name in ("base", *STARTS, *RL_ARMS)}
    assert {token[name] for name in ("base", "sft", "sft_equal", "sft_grpo_hot")} == {"none"}
    assert {name for name in token if token[name] == "low"} == {"rctp_rc_p000", "rctp_rc_p025"}
    assert all(token[name] == "high" for name in ("rctp", "rctp_success", "rctp_rc_p100"))


@pytest.fixture(scope="module")
def policy():
    policy = Policy.from_pretrained(paths.TINY_BASE)
    policy.add_reward_tokens(0)
    return policy


@pytest.fixture(scope="module")
def failures(policy):
    """Failures made of the references, with a reward of 0."""
    rows = experiment.stage1_trajectories(policy, SMOKE, STARTS["sft"])
    return [
        Rollout(r.task_id, r.category, 0, 0, None, r.transcript, 0.0, {}, 1, "terminated", [])
        for r in rows[:5]
    ]


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_a_start_imitates_what_its_row_says(policy, failures, start):
    rows = experiment.stage1_trajectories(policy, SMOKE, start, failures if start.failures else ())
    references, failed = rows[: SMOKE.train_tasks], rows[SMOKE.train_tasks :]
    assert {row.token for row in references} == {start.token}
    assert {row.reward for row in references} == {1.0}
    assert [row.task_id for row in failed] == [f.task_id for f in failures[: len(failed)]]
    assert {(row.token, row.reward) for row in failed} <= {("low", 0.0)}
    assert bool(failed) == start.failures

    def observations(row):
        spans = [s for s in row.transcript.spans if s.kind == "tool"]
        return [policy.decode(row.transcript.ids[s.start : s.end]) for s in spans]

    real = experiment.stage1_trajectories(policy, SMOKE, STARTS["sft"])
    if start.placeholder is None:
        assert [observations(row) for row in references] == [observations(row) for row in real]
    else:
        shown = {text for row in references for text in observations(row)}
        assert len(shown) == 1 and start.placeholder in shown.pop()
    for row, played in zip(failed, failures, strict=False):
        assert observations(row) == observations(played)


def test_failures_that_are_missing_or_not_wanted_are_errors(policy, failures):
    with pytest.raises(ValueError, match="rctp_cue got 0 failures; explore the tasks first"):
        experiment.stage1_trajectories(policy, SMOKE, STARTS["rctp_cue"])
    with pytest.raises(ValueError, match="sft got 5 failures; it imitates successes only"):
        experiment.stage1_trajectories(policy, SMOKE, STARTS["sft"], failures)


@pytest.mark.parametrize("arm", ["sft_grpo", "sft_equal", "rctp_rc_g2"])
def test_extra_arms_are_tested_on_two_sets_and_greedily(monkeypatch, arm):
    seen = []

    def spy(*args, test_set, decodings, **others):
        seen.append((test_set, decodings))
        return pd.DataFrame({"test_set": [test_set]})

    monkeypatch.setattr(experiment, "evaluate", spy)
    experiment.evaluate_sets(None, SMOKE, arm=arm, seed=0)
    full = [(name, ("greedy", "sampled")) for name in ("test", "power", "unseen_wording")]
    short = [(name, ("greedy",)) for name in ("test", "power")]
    assert seen == (full if arm in ALL_ARMS else short)
