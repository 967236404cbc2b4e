"""Measurements on a policy: KL of steps, alike groups, and the parts of the gradient."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from rc_lib import paths
from rc_lib.checkpoint import RunFolder
from rc_lib.conditioning import Conditioning
from rc_lib.config import RLConfig, get_profile
from rc_lib.envs.bfcl import BFCLEnv
from rc_lib.loss import token_logprobs
from rc_lib.policy import Policy, tiny_model, train_tokenizer
from rc_lib.rollout import Rollout, Sampling
from rc_lib.sft import Trajectory, expert
from rc_lib.tasks.generated import generated_tasks
from rc_lib.transcript import Transcript, collate
from rc_lib.update import PolicyUpdate
from rc_lib.variance_measured import (
    gradient_table,
    groups_table,
    kl_table,
    reference_kl,
    sample_groups,
    trained_policy,
    write_measurements,
)
from rc_lib.variance_signal import advantage_parts

TASKS = generated_tasks("train", 3)
G = 4


def make_env(task):
    return BFCLEnv(task, protocol="merged", max_steps=8, observation_chars=60)


@pytest.fixture(scope="module")
def policy() -> Policy:
    texts = [" ".join((*task.turns, *task.actions)) for task in generated_tasks("train", 40)]
    tokenizer = train_tokenizer(texts, 400)
    policy = Policy(tiny_model(len(tokenizer), hidden=16, layers=2, heads=2, seed=0), tokenizer)
    policy.add_reward_tokens(seed=0)
    return policy


def made_up(policy: Policy, rewards, tokens) -> list[Rollout]:
    """Rollouts of random ids, with the log-probabilities that the policy gives them."""
    draws, rollouts = np.random.default_rng(0), []
    for i, (reward, token) in enumerate(zip(rewards, tokens, strict=True)):
        transcript, ids = Transcript(), draws.integers(0, 300, 40).tolist()
        ends = np.cumsum(draws.integers(2, 6, 4)).tolist()
        for kind, start, end in zip(
            ("prompt", "model", "tool", "model"), [0, *ends], ends, strict=False
        ):
            transcript.append(kind, ids[start:end])
        batch = collate([transcript], 0)
        with torch.no_grad():
            values = token_logprobs(policy.model.eval(), batch)[0].tolist()
        places = np.flatnonzero(transcript.mask())
        for place, value in zip(places, values, strict=True):
            transcript.logprobs[place] = value
        place = (f"t{i // G}", "base", i // G, i % G, token)
        rollouts.append(Rollout(*place, transcript, reward, {}, 2, "terminated", []))
    return rollouts


@pytest.fixture(scope="module")
def rollouts(policy):
    rewards = [1, 0, 1, 0, 1, 1, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0]
    tokens = ["high", "high", "low", "low", "high", "low", "low", "high"] * 2
    return made_up(policy, rewards, tokens)


def naive_gradient(policy, one, weights) -> torch.Tensor:
    """The gradient of sum_t weights log pi(a_t), in float64."""
    model = policy.model.eval()
    model.zero_grad()
    batch = collate([one.transcript], 0)
    (token_logprobs(model, batch)[0] * weights).sum().backward()
    gradient = torch.cat([weight.grad.flatten() for weight in model.parameters()]).double()
    model.zero_grad()
    return gradient


def test_kl_of_a_step_is_minus_the_log_probability_of_its_message(policy):
    references = [expert(policy, make_env(task), task.actions, "high") for task in TASKS]
    measured = reference_kl(policy, references, max_tokens=300)
    for reference, kl in zip(references, measured, strict=True):
        ids, spans = torch.tensor([reference.transcript.ids]), reference.transcript.spans
        with torch.no_grad():
            logits = policy.model(ids).logits[0].double().log_softmax(-1)
        expected = [
            -sum(logits[t - 1, ids[0, t]].item() for t in range(span.start, span.end))
            for span in spans
            if span.kind == "model"
        ]
        assert kl == pytest.approx(expected, rel=1e-4) and len(kl) == len(expected)
    table = kl_table("sft", references, measured)
    assert [float(x) for x in table["kl"][0].split()] == pytest.approx(measured[0], rel=1e-3)
    assert set(table["token"]) == {"high"} and list(table["task_id"]) == [t.id for t in TASKS]


def test_groups_are_sampled_in_the_order_of_the_tasks_and_repeat(policy):
    settings = {"group_size": G, "seed": 1, "batch_size": 8}
    sampling, iid = Sampling(1.0, 4, 512), Conditioning("iid")
    first = sample_groups(policy, TASKS, make_env, iid, sampling, **settings)
    second = sample_groups(policy, TASKS, make_env, iid, sampling, **settings)
    assert [one.task_id for one in first] == [task.id for task in TASKS for _ in range(G)]
    assert [one.transcript.ids for one in first] == [one.transcript.ids for one in second]
    assert {one.token for one in first} == {"high", "low"}


def test_groups_table_counts_trajectories_by_their_own_ids(policy):
    reference = expert(policy, make_env(TASKS[0]), TASKS[0].actions, None)
    other = Transcript()
    other.append("prompt", [1, 2, 3])
    other.append("model", [4, 5])
    longer_prompt = Transcript()  # as under a reward token: another prompt, the same words
    longer_prompt.append("prompt", [9])
    for kind, start, end in reference.transcript.spans[1:]:
        longer_prompt.append(kind, reference.transcript.ids[start:end])

    def member(transcript, reward, token):
        return Rollout(TASKS[0].id, "base", 0, 0, token, transcript, reward, {}, 1, "", [])

    rollouts = [member(reference.transcript, 1.0, None), member(other, 0.0, None)]
    rollouts += [member(longer_prompt, 1.0, "low"), member(other, 0.0, "high")]
    (row,) = groups_table({"policy": "sft"}, rollouts, [reference]).to_dict("records")
    assert (row["distinct"], row["as_reference"]) == (2, 2)
    assert (row["tokens"], row["rewards"]) == ("none none low high", "1 0 1 0")
    wrong = Trajectory("another", "base", None, 1.0, reference.transcript)
    with pytest.raises(ValueError, match="group 0 is not of task another"):
        groups_table({}, rollouts, [wrong])


@pytest.mark.parametrize(("normalization", "loss_type"), [("mean", "grpo"), ("sum", "dr_grpo")])
def test_the_gradient_of_the_full_advantage_is_the_trainers(
    policy, rollouts, normalization, loss_type
):
    table = gradient_table(policy, rollouts, group_size=G, eps=1e-6, temperature=1.0)
    rewards = np.reshape([one.reward for one in rollouts], (-1, G))
    is_high = np.reshape([one.token == "high" for one in rollouts], (-1, G))
    advantages = advantage_parts(rewards, is_high, scale="group", eps=1e-6)["full"].ravel()
    config = replace(RLConfig(), beta=0.0, loss_type=loss_type, max_length=1)
    update = PolicyUpdate(policy, config, seed=0)
    policy.model.eval().zero_grad()
    update.add_gradient(0, rollouts, advantages, 1.0)
    squared = sum(float((weight.grad**2).sum()) for weight in update.weights.values())
    policy.model.zero_grad()
    row = table[(table["part"] == "full") & (table["scale"] == "group")]
    row = row.set_index("normalization").loc[normalization]
    assert row["norm"] == pytest.approx(np.sqrt(squared), rel=1e-4)


def test_signal_and_noise_are_those_of_loops_over_pairs_of_groups(policy, rollouts):
    table = gradient_table(policy, rollouts, group_size=G, eps=1e-6, temperature=1.0)
    table = table.set_index(["normalization", "scale", "means", "part"])
    rewards = np.reshape([one.reward for one in rollouts], (-1, G))
    is_high = np.reshape([one.token == "high" for one in rollouts], (-1, G))
    parts = advantage_parts(rewards, is_high, means="others")
    scores = [naive_gradient(policy, one, 1.0) for one in rollouts]

    def groups(part):
        c = parts[part].ravel() / G
        weighted = [c[i] * score for i, score in enumerate(scores)]
        return [sum(weighted[i : i + G]) for i in range(0, len(scores), G)]

    full, within = groups("full"), groups("within")
    n = len(full)
    pairs = [(i, k) for i in range(n) for k in range(n) if i != k]
    row = table.loc[("sum", "none", "others", "within")]
    signal2 = np.mean([float(within[i] @ within[k]) for i, k in pairs])
    assert row["signal2"] == pytest.approx(signal2, rel=1e-3)
    inner = np.mean([float(within[i] @ full[k]) for i, k in pairs])
    assert row["inner"] == pytest.approx(inner, rel=1e-3)
    noise2 = np.mean([float(x @ x) for x in within]) - signal2
    assert row["noise2"] == pytest.approx(noise2, rel=1e-3)
    halves = [sum(within[0::2]), sum(within[1::2])]
    cosine = float(halves[0] @ halves[1] / halves[0].norm() / halves[1].norm())
    assert row["split_half"] == pytest.approx(cosine, rel=1e-3)
    whole = [sum(within), sum(full)]
    cosine = float(whole[0] @ whole[1] / whole[0].norm() / whole[1].norm())
    assert row["cosine"] == pytest.approx(cosine, rel=1e-3)


def test_parts_add_up_and_a_batch_without_spread_has_no_gradient(policy, rollouts):
    table = gradient_table(policy, rollouts, group_size=G, eps=1e-6, temperature=1.0)
    inner = table.set_index(["normalization", "scale", "means", "part"])["inner"]
    for normalization, scale in (("sum", "none"), ("mean", "group")):
        place = (normalization, scale)
        full = inner[(*place, "none", "full")]
        for means in ("group", "others"):
            both = inner[(*place, means, "between")] + inner[(*place, means, "within")]
            assert both == pytest.approx(full, rel=1e-3)
        by_token = [inner[(*place, "others", f"within_{token}")] for token in ("high", "low")]
        assert sum(by_token) == pytest.approx(inner[(*place, "others", "within")], rel=1e-3)
    equal = [replace(one, reward=1.0) for one in rollouts]
    flat = gradient_table(policy, equal, group_size=G, eps=1e-6, temperature=1.0)
    assert (flat["norm"] == 0).all() and flat["cosine"].isna().all()


def test_a_trained_policy_has_the_weights_of_its_last_checkpoint(policy, tmp_path):
    with pytest.raises(FileNotFoundError, match="run notebook 10 for sft_grpo first"):
        trained_policy(tmp_path, 0, "sft_grpo")
    policy.save_pretrained(tmp_path / "checkpoints/seed0/sft")
    with pytest.raises(FileNotFoundError, match="run notebook 11 for sft_grpo first"):
        trained_policy(tmp_path, 0, "sft_grpo")
    weights = {name: weight + 1 for name, weight in policy.model.named_parameters()}
    optimizer = torch.optim.AdamW(policy.model.parameters())
    RunFolder(tmp_path / "checkpoints/seed0/sft_grpo", {}).save(1, weights, optimizer)
    loaded = dict(trained_policy(tmp_path, 0, "sft_grpo").model.named_parameters())
    start = dict(trained_policy(tmp_path, 0, "sft").model.named_parameters())
    for name, weight in policy.model.named_parameters():
        assert torch.equal(start[name], weight) and torch.equal(loaded[name], weight + 1)


def test_measurements_are_written_with_a_manifest(tmp_path):
    source = tmp_path / "weights"
    source.write_text("x")
    tables = {"kl": pd.DataFrame({"kl": ["0.1 0.2"]}), "gradients": pd.DataFrame({"norm": [1 / 3]})}
    folder = write_measurements(
        tmp_path, get_profile("smoke"), 2, tables, inputs=[source], started=0.0
    )
    assert folder == paths.record_dir(tmp_path, 2, "variance")
    assert {path.name for path in Path(folder).iterdir()} == {
        "kl.csv", "gradients.csv", "manifest.json",
    }  # fmt: skip
    assert pd.read_csv(folder / "gradients.csv")["norm"][0] == pytest.approx(1 / 3)
