"""Stage 1: real observations, labels by measured reward, loss over model spans only."""

import numpy as np
import pytest
import torch

from rc_lib.conditioning import condition
from rc_lib.config import FineTuneConfig
from rc_lib.envs.base import Message
from rc_lib.envs.bfcl import BFCLEnv
from rc_lib.policy import Policy, tiny_model, train_tokenizer
from rc_lib.rollout import Request, Sampling, rollout
from rc_lib.sft import expert, explore, finetune, relabel
from rc_lib.tasks.generated import generated_tasks

TASKS = generated_tasks("train", 6)


def make_env(task):
    return BFCLEnv(task, protocol="merged", max_steps=3, observation_chars=60)


@pytest.fixture(scope="module")
def tokenizer():
    texts = [" ".join((*task.turns, *task.actions)) for task in generated_tasks("train", 60)]
    return train_tokenizer(texts, 500)


@pytest.fixture
def policy(tokenizer) -> Policy:
    model = tiny_model(len(tokenizer), hidden=32, layers=2, heads=2, seed=0)
    policy = Policy(model, tokenizer)
    policy.add_reward_tokens(seed=0)
    return policy


def long_env(task):
    return BFCLEnv(task, protocol="merged", max_steps=8, observation_chars=60)


def test_expert_keeps_the_real_observations_and_the_actions(policy):
    task = TASKS[0]
    trajectory = expert(policy, long_env(task), task.actions, token="high")
    transcript = trajectory.transcript
    env = long_env(task)
    messages, _ = env.reset()
    wanted = policy.encode_messages(condition(messages, "high")) + policy.generation_prompt()
    for action in task.actions:
        observation, _, terminated, _, _ = env.step(action)
        wanted += [*policy.encode_text(action), policy.tokenizer.eos_token_id]
        if not terminated:
            wanted += policy.encode_messages(observation) + policy.generation_prompt()
    assert transcript.ids == wanted and trajectory.reward == 1.0
    spans = [s for s in transcript.spans if s.kind == "model"]
    texts = [policy.decode(transcript.ids[s.start : s.end]) for s in spans]
    assert texts == list(task.actions)


def test_a_placeholder_replaces_every_observation_and_nothing_else(policy):
    task = TASKS[0]
    real = expert(policy, long_env(task), task.actions, token="high")
    cued = expert(policy, long_env(task), task.actions, "high", placeholder="done.")
    assert [s.kind for s in cued.transcript.spans] == [s.kind for s in real.transcript.spans]
    shown = policy.encode_messages([Message("tool", "done.")]) + policy.generation_prompt()
    for new, old in zip(cued.transcript.spans, real.transcript.spans, strict=True):
        ids = cued.transcript.ids[new.start : new.end]
        if new.kind == "tool":
            assert ids == shown
        else:
            assert ids == real.transcript.ids[old.start : old.end]
    assert cued.reward == 1.0


def test_expert_and_rollout_encode_a_task_alike(policy):
    """A trained policy must meet at sampling the very ids that it was fine-tuned on."""
    task = TASKS[0]
    trajectory = expert(policy, long_env(task), task.actions, token="low")
    sampling = Sampling(1.0, max_new_tokens=4, max_length=400)
    (played,) = rollout(policy, [Request(long_env(task), 0, 0, "low")], sampling, seed=0)
    end = trajectory.transcript.spans[0].end
    assert played.transcript.spans[0] == trajectory.transcript.spans[0]
    assert played.transcript.ids[:end] == trajectory.transcript.ids[:end]


def test_a_reference_that_earns_less_than_one_is_refused(policy):
    with pytest.raises(ValueError, match="must end its episode and earn 1"):
        expert(policy, long_env(TASKS[0]), ["[done()]"], token=None)


def test_explore_keeps_one_measured_failure_a_task_in_task_order(policy):
    sampling = Sampling(1.0, max_new_tokens=6, max_length=400)
    failures, rounds = explore(policy, TASKS, make_env, sampling, seed=0)
    assert [played.task_id for played in failures] == [task.id for task in TASKS]
    assert all(played.reward < 1.0 for played in failures)
    assert rounds["failures"].sum() == len(TASKS)


def test_relabel_changes_the_prompt_and_keeps_every_sampled_id(policy):
    sampling = Sampling(1.0, max_new_tokens=6, max_length=400)
    (played,) = rollout(policy, [Request(make_env(TASKS[1]), 0, 0)], sampling, seed=0)
    labelled = relabel(policy, make_env(TASKS[1]), played, "low").transcript
    low = policy.tokenizer.convert_tokens_to_ids("<|low_reward|>")
    prompt = labelled.spans[0].end
    assert labelled.ids[:prompt].count(low) == 1 and low not in played.transcript.ids
    assert labelled.ids[prompt:] == played.transcript.ids[played.transcript.spans[0].end :]
    tails = [labelled.mask()[prompt:], played.transcript.mask()[played.transcript.spans[0].end :]]
    assert np.array_equal(*tails)


def test_finetuning_lowers_the_loss_and_repeats_bit_for_bit(policy, tokenizer):
    config = FineTuneConfig(batch_size=3, learning_rate=3e-3)
    data = [expert(policy, long_env(task), task.actions, "high") for task in TASKS]
    weights = []
    for _ in range(2):
        model = tiny_model(len(tokenizer), hidden=32, layers=2, heads=2, seed=0)
        curve = finetune(Policy(model, tokenizer), data, config, epochs=20, seed=0, progress=False)
        weights.append(model.state_dict())
    assert curve["loss"].iloc[-1] < 0.8 * curve["loss"].iloc[0]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_the_step_does_not_depend_on_how_a_batch_is_cut(tokenizer):
    losses = []
    for max_tokens in (1, 300, 10_000):
        policy = Policy(tiny_model(len(tokenizer), hidden=32, layers=2, heads=2, seed=0), tokenizer)
        data = [expert(policy, long_env(task), task.actions, None) for task in TASKS]
        config = FineTuneConfig(batch_size=len(TASKS))
        curve = finetune(
            policy, data, config, epochs=4, seed=0, max_tokens=max_tokens, progress=False
        )
        losses.append(curve["loss"].to_numpy())
    assert np.ptp(losses[0]) > 0.01
    np.testing.assert_allclose(losses[1:], [losses[0]] * 2, rtol=1e-4)


def test_the_embedding_of_both_reward_tokens_is_trained(policy):
    data = [
        expert(policy, long_env(t), t.actions, token) for t in TASKS for token in ("high", "low")
    ]
    ids = policy.tokenizer.convert_tokens_to_ids(["<|high_reward|>", "<|low_reward|>"])
    before = policy.model.get_input_embeddings().weight.detach()[ids].clone()
    finetune(policy, data, FineTuneConfig(), epochs=1, seed=0, progress=False)
    after = policy.model.get_input_embeddings().weight.detach()[ids]
    assert ((after - before).abs().amax(1) > 1e-5).all()


def test_finetuning_on_nothing_is_refused(policy):
    with pytest.raises(ValueError, match="no trajectories"):
        finetune(policy, [], FineTuneConfig(), epochs=1, seed=0)
