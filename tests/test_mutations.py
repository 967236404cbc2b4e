"""What scripts/mutation_check.py showed to be tested by nothing, or by accident only."""

import json
import math

import numpy as np
import pytest
from test_bfcl_env import files_task, played, results_of
from test_trainer import CONFIG, ToyPolicy, make_trainer, play

from rc_lib.envs.changes import changes
from rc_lib.update import PolicyUpdate


def test_logged_advantages_are_those_of_each_group_alone(tmp_path):
    make_trainer(tmp_path).train(progress=False)
    lines = [json.loads(x) for x in (tmp_path / "rollouts.jsonl").read_text().splitlines()]
    means = set()
    for start in range(0, len(lines), CONFIG.group_size):
        group = lines[start : start + CONFIG.group_size]
        rewards = np.array([line["reward"] for line in group])
        expected = (rewards - rewards.mean()) / (rewards.std() + CONFIG.advantage_eps)
        assert [line["advantage"] for line in group] == pytest.approx(expected)
        means.add(rewards.mean())
    assert len(means - {0.0, 1.0}) > 1  # groups with spread, of different means


def test_the_ratio_is_taken_to_the_recorded_logprobs(tmp_path):
    rollouts = play(make_trainer(tmp_path))
    for one in rollouts:
        one.transcript.logprobs = [value - math.log(2.0) for value in one.transcript.logprobs]
    optimize = PolicyUpdate(ToyPolicy(), CONFIG, seed=0)
    sums = optimize.add_gradient(0, rollouts, np.ones(len(rollouts)), 50.0)
    ratio = sum(part["ratio"] for part in sums) / sum(part["tokens"] for part in sums)
    assert ratio == pytest.approx(2.0, rel=1e-4)


def test_the_first_ratio_is_one_at_any_temperature(tmp_path):
    curve = make_trainer(tmp_path, temperature=0.5, steps=1).train(progress=False)
    assert curve["ratio"][0] == pytest.approx(1.0, abs=1e-4)


def test_the_right_state_without_the_required_call_earns_nothing():
    task = files_task(("rmdir(dir_name='docs')",))
    parts = played(task, "[rm('docs')]", "[done()]").reward()
    assert (parts["state"], parts["reward"]) == (1.0, 0.0)


@pytest.mark.parametrize("name", ["_load_scenario", "__init__", "add", "getattr", "vars", "eval"])
def test_only_listed_functions_exist_for_the_model(name):
    task = files_task(("ls()",))
    undefined = [f"Error during execution: name '{name}' is not defined"]
    for text in (f"[{name}()]", f"[{name}({{}})]"):
        assert results_of(task, text) == undefined
        assert changes(played(task, text).instances) == {}
