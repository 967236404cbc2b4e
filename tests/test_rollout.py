"""Rollouts: what is sampled, recorded, computed, and shown to the environment."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from rc_lib.conditioning import condition
from rc_lib.envs.base import Message
from rc_lib.rollout import Request, Sampling, Stats, rollout
from rc_lib.seeding import rng
from rc_lib.slots import SlotCache

END, OTHER_END, ROLES = 1, 2, {"system": 3, "user": 4, "assistant": 5, "tool": 6}
NEWLINE = 7  # written behind END by the chat format, as Qwen's does
SAMPLED = Sampling(temperature=0.8, max_new_tokens=9, max_length=240)
GREEDY = Sampling(temperature=0.0, max_new_tokens=9, max_length=240)


class ToyPolicy:
    """One id a character; decoding loses information, as real tokenizers may."""

    eos_ids, pad_id = frozenset({END, OTHER_END}), END

    def __init__(self, architecture="qwen2"):
        options = dict(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=256,
            initializer_range=0.25,
        )
        torch.manual_seed(3)
        if architecture == "qwen2":
            self.model = Qwen2ForCausalLM(Qwen2Config(**options))
        else:
            self.model = LlamaForCausalLM(LlamaConfig(**options))

    device = torch.device("cpu")

    def encode_messages(self, messages):
        ids = []
        for role, content in messages:
            ids += [ROLES[role], *(10 + ord(c) % 54 for c in content), END, NEWLINE]
        return ids

    def generation_prompt(self):
        return [ROLES["assistant"]]

    def decode(self, ids):
        return "".join("ab"[i % 2] for i in ids if i not in self.eos_ids)


@dataclass
class ToyEnv:
    """Shows its observations one by one and then terminates."""

    name: str
    prompt: str
    observations: tuple[str, ...] = ()
    actions: list[str] = field(default_factory=list)

    def __post_init__(self):
        self.task = SimpleNamespace(id=self.name, category="base")

    def reset(self):
        return [Message("system", "be brief"), Message("user", self.prompt)], {}

    def step(self, action):
        self.actions.append(action)
        if len(self.actions) > len(self.observations):
            return [], 1.0, True, False, {}
        return [Message("tool", self.observations[len(self.actions) - 1])], 0.0, False, False, {}

    def reward(self):
        return {"reward": float(len(self.actions)), "state": 1.0}


def requests(groups=3, size=3):
    """Groups whose prompts and observations differ a lot in length, members with either token."""
    made = []
    for group in range(groups):
        observations = tuple("xyz"[turn] * (1 + 17 * ((group + turn) % 3)) for turn in range(3))
        for member in range(size):
            env = ToyEnv(f"task_{group}", "pq" * (1 + 9 * group), observations)
            made.append(Request(env, group, member, "high" if member % 2 else "low"))
    return made


def fresh_logprobs(policy, ids, temperature):
    with torch.no_grad():
        logits = policy.model(torch.tensor([ids])).logits[0]
    logprobs = (logits / (temperature or 1.0)).log_softmax(-1)
    return [float("nan")] + logprobs[:-1].gather(-1, torch.tensor(ids)[1:, None])[:, 0].tolist()


def naive_rollout(policy, request, sampling, seed):
    """One rollout that recomputes everything for each id."""
    draws = rng(seed, "train", 0, request.group_id, request.member)
    ids = policy.encode_messages(condition(request.env.reset()[0], request.token))
    ids += policy.generation_prompt()
    while True:
        turn = []
        while not turn or (turn[-1] not in policy.eos_ids and len(turn) < sampling.max_new_tokens):
            with torch.no_grad():
                logits = policy.model(torch.tensor([ids + turn])).logits[0, -1].double().numpy()
            weights = np.exp((logits - logits.max()) / (sampling.temperature or 1.0))
            at = draws.random() * weights.sum()
            greedy = sampling.temperature == 0
            turn.append(int(logits.argmax() if greedy else np.argmax(weights.cumsum() > at)))
        ids += turn
        observation, _, done, _, _ = request.env.step(policy.decode(turn))
        if done:
            return ids
        ids += [NEWLINE] if turn[-1] in policy.eos_ids else [END, NEWLINE]
        ids += policy.encode_messages(observation) + policy.generation_prompt()


@pytest.mark.parametrize("architecture", ["qwen2", "llama"])
@pytest.mark.parametrize("sampling", [SAMPLED, GREEDY], ids=["sampled", "greedy"])
def test_ids_equal_those_of_a_loop_without_a_cache(architecture, sampling):
    policy = ToyPolicy(architecture)
    results = rollout(policy, requests(3, 2), sampling, seed=5, batch_size=5)
    expected = [naive_rollout(policy, request, sampling, 5) for request in requests(3, 2)]
    assert [result.transcript.ids for result in results] == expected


@pytest.mark.parametrize("architecture", ["qwen2", "llama"])
@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0])
def test_recorded_logprobs_equal_a_fresh_forward_pass(architecture, temperature):
    policy = ToyPolicy(architecture)
    sampling = Sampling(temperature, max_new_tokens=9, max_length=240)
    for result in rollout(policy, requests(), sampling, seed=1):
        transcript = result.transcript
        fresh = np.array(fresh_logprobs(policy, transcript.ids, temperature))
        mask = transcript.mask()
        np.testing.assert_allclose(np.array(transcript.logprobs)[mask], fresh[mask], atol=1e-4)
        assert np.isnan(np.array(transcript.logprobs)[~mask]).all()


@pytest.mark.parametrize("batch_size", [1, 4, 128])
def test_batch_size_and_order_change_no_sample(batch_size):
    policy = ToyPolicy()
    usual = {
        (r.group_id, r.member): r.transcript.ids
        for r in rollout(policy, requests(), SAMPLED, seed=5, batch_size=7)
    }
    mixed = [requests()[i] for i in np.random.default_rng(0).permutation(9)]
    results = rollout(policy, mixed, SAMPLED, seed=5, batch_size=batch_size)
    assert [(r.group_id, r.member) for r in results] == [(r.group_id, r.member) for r in mixed]
    assert {(r.group_id, r.member): r.transcript.ids for r in results} == usual


@pytest.mark.parametrize("share", [0.01, 1.0])
def test_how_soon_idle_rows_are_looked_after_changes_no_sample(monkeypatch, share):
    usual = rollout(ToyPolicy(), requests(), SAMPLED, seed=5)
    monkeypatch.setattr("rc_lib.rollout.IDLE_SHARE", share)
    results = rollout(ToyPolicy(), requests(), SAMPLED, seed=5)
    assert [r.transcript.ids for r in results] == [r.transcript.ids for r in usual]


def test_draws_depend_on_seed_purpose_step_group_and_member():
    policy = ToyPolicy()
    env = lambda: ToyEnv("t", "same")  # noqa: E731
    sampling = Sampling(1.0, 20, 100)

    def ids(group=0, member=0, **address):
        request = Request(env(), group, member)
        return rollout(policy, [request], sampling, **{"seed": 0, **address})[0].transcript.ids

    assert ids() == ids()
    others = [ids(seed=1), ids(step=1), ids(purpose="evaluate"), ids(group=1), ids(member=1)]
    assert all(other != ids() for other in others)


def test_samples_follow_the_distribution_at_the_temperature():
    policy = ToyPolicy()
    many = [Request(ToyEnv("t", "q"), 0, member) for member in range(2000)]
    sampling = Sampling(0.7, max_new_tokens=1, max_length=40)
    results = rollout(policy, many, sampling, seed=0, batch_size=2000)
    first = [r.transcript.ids[r.transcript.spans[0].end] for r in results]
    prompt = results[0].transcript.ids[: results[0].transcript.spans[0].end]
    with torch.no_grad():
        p = (policy.model(torch.tensor([prompt])).logits[0, -1] / 0.7).softmax(-1).numpy()
    share = np.bincount(first, minlength=64) / len(first)
    assert np.abs(share - p).max() < 4 * np.sqrt(p.max() * (1 - p.max()) / len(first))


def test_each_rollout_starts_from_its_own_prompt():
    policy = ToyPolicy()
    asked = requests()
    for request, result in zip(asked, rollout(policy, asked, SAMPLED, seed=0), strict=True):
        messages = condition(request.env.reset()[0], request.token)
        prompt = policy.encode_messages(messages) + policy.generation_prompt()
        assert result.transcript.spans[0] == ("prompt", 0, len(prompt))
        assert result.transcript.ids[: len(prompt)] == prompt
        assert (result.task_id, result.token) == (request.env.name, request.token)


@pytest.fixture
def computed(monkeypatch):
    """Places of the cache written by forward passes, in order."""
    written = []
    select = SlotCache.select

    def record(cache, slots, window, places, length):
        written.extend(places[places < cache.shape[1] - 1].tolist())
        select(cache, slots, window, places, length)

    monkeypatch.setattr(SlotCache, "select", record)
    return written


def test_every_id_is_computed_once_and_a_shared_prefix_once_a_group(computed):
    policy = ToyPolicy()
    stats = Stats()
    results = rollout(policy, requests(3, 4), SAMPLED, seed=2, batch_size=8, stats=stats)
    # The last sampled id of a rollout is never needed as an input.
    once = sum(len(result.transcript) - 1 for result in results)
    shared = 0
    for group in range(3):
        prompts = [
            r.transcript.ids[: r.transcript.spans[0].end] for r in results if r.group_id == group
        ]
        low, high = prompts[:2]
        shared += 3 * next(i for i in range(len(low)) if low[i] != high[i])
    assert shared > 100
    assert len(computed) == once - shared
    assert stats.forward_tokens == len(computed)
    model = sum(r.transcript.model_tokens for r in results)
    assert stats.model_tokens == model
    assert stats.prefill_tokens == once - shared - (model - len(results))
    assert stats.padded_tokens >= stats.forward_tokens
    assert 0 < stats.env_s < stats.wall_s


def test_one_member_is_computed_place_by_place_once(computed):
    policy = ToyPolicy()
    (result,) = rollout(policy, requests(1, 1), SAMPLED, seed=2)
    assert computed == list(range(len(result.transcript) - 1))


def test_identical_prompts_share_all_but_the_last_id(computed):
    policy = ToyPolicy()
    many = [Request(ToyEnv("t", "q" * 30), 0, member) for member in range(5)]
    results = rollout(policy, many, Sampling(1.0, 1, 80), seed=0)
    prompt = results[0].transcript.spans[0].end
    assert len(computed) == prompt - 1 + 5


def test_environments_are_stepped_once_a_turn_with_the_text_of_the_turn():
    policy = ToyPolicy()
    asked = requests()
    for request, result in zip(asked, rollout(policy, asked, SAMPLED, seed=4), strict=True):
        spans = [span for span in result.transcript.spans if span.kind == "model"]
        texts = [policy.decode(result.transcript.ids[s.start : s.end]) for s in spans]
        assert request.env.actions == result.texts == texts
        assert result.turns == len(texts) == 4
        assert (result.ended, result.reward) == ("terminated", 4.0)
        assert result.parts == {"reward": 4.0, "state": 1.0}


def test_a_turn_ends_at_any_end_id_which_stays_in_the_models_span():
    policy = ToyPolicy()
    results = rollout(policy, requests(3, 16), SAMPLED, seed=0)
    last = []
    for transcript in (result.transcript for result in results):
        for kind, start, end in transcript.spans:
            ids = transcript.ids[start:end]
            if kind == "model":
                last.append(ids[-1])
                assert not policy.eos_ids & set(ids[:-1])
                assert ids[-1] in policy.eos_ids or len(ids) == SAMPLED.max_new_tokens
    assert {END, OTHER_END} < set(last)


def test_a_turn_cut_by_its_limit_is_closed_outside_the_models_span():
    policy = ToyPolicy()
    results = rollout(policy, requests(3, 16), SAMPLED, seed=0)
    seen = set()
    for transcript in (result.transcript for result in results):
        for model, tool in zip(transcript.spans[1::2], transcript.spans[2::2], strict=False):
            assert (model.kind, tool.kind) == ("model", "tool")
            cut = transcript.ids[model.end - 1] not in policy.eos_ids
            closing = [END, NEWLINE] if cut else [NEWLINE]
            begins = transcript.ids[tool.start : tool.start + len(closing) + 1]
            assert begins == [*closing, ROLES["tool"]]
            seen.add(cut)
    assert seen == {True, False}


def test_an_observation_that_does_not_fit_ends_the_rollout_and_is_not_cut():
    policy = ToyPolicy()
    env = ToyEnv("t", "q", ("short", "long" * 30, "short"))
    (result,) = rollout(policy, [Request(env, 0, 0)], Sampling(1.0, 5, 80), seed=0)
    assert (result.ended, result.turns) == ("truncated_tokens", 2)
    assert result.transcript.spans[-1].kind == "model"
    assert len(result.transcript) < 80


def test_a_turn_that_reaches_the_length_limit_ends_the_rollout():
    policy = ToyPolicy()
    policy.eos_ids = frozenset({END})
    env = ToyEnv("t", "q", ("short",))
    prompt = len(policy.encode_messages(env.reset()[0]) + policy.generation_prompt())
    sampling = Sampling(0.0, 50, prompt + 3)
    (result,) = rollout(policy, [Request(env, 0, 0)], sampling, seed=0)
    assert len(result.transcript) == prompt + 3
    assert (result.ended, env.actions) == ("truncated_tokens", result.texts)


def test_an_environment_may_truncate():
    class Short(ToyEnv):
        def step(self, action):
            return [], 0.0, False, True, {}

    (result,) = rollout(ToyPolicy(), [Request(Short("t", "q"), 0, 0)], SAMPLED, seed=0)
    assert (result.ended, result.turns) == ("truncated_steps", 1)


def test_an_error_of_an_environment_is_not_swallowed():
    class Broken(ToyEnv):
        def step(self, action):
            raise RuntimeError("backend lost")

    asked = [*requests(), Request(Broken("t", "q"), 9, 0)]
    with pytest.raises(RuntimeError, match="backend lost"):
        rollout(ToyPolicy(), asked, SAMPLED, seed=0)


def test_the_models_mode_is_put_back_and_dropout_is_off():
    policy = ToyPolicy()
    policy.model.train()
    for layer in policy.model.model.layers:
        layer.self_attn.attention_dropout = 0.9
    noisy = rollout(policy, requests(), SAMPLED, seed=0)
    assert policy.model.training
    clean = rollout(ToyPolicy(), requests(), SAMPLED, seed=0)
    assert [r.transcript.ids for r in noisy] == [r.transcript.ids for r in clean]


def test_no_request_gives_no_rollout():
    assert rollout(ToyPolicy(), [], SAMPLED, seed=0) == []


def test_faulty_requests_and_settings_are_refused_by_name():
    policy = ToyPolicy()
    one = [Request(ToyEnv("task_7", "q" * 50), 3, 1)]
    with pytest.raises(ValueError, match="'task_7' has 65 ids"):
        rollout(policy, one, Sampling(1.0, 5, 60), seed=0)
    with pytest.raises(ValueError, match=r"\(3, 1\) is asked for 2 times"):
        rollout(policy, one * 2, SAMPLED, seed=0)
    with pytest.raises(ValueError, match="max_position_embeddings 256"):
        rollout(policy, one, Sampling(1.0, 5, 300), seed=0)
    with pytest.raises(ValueError, match="batch_size 0"):
        rollout(policy, one, SAMPLED, seed=0, batch_size=0)
    with pytest.raises(ValueError, match="temperature -1"):
        Sampling(-1.0, 5, 60)
    policy.eos_ids = frozenset({60})
    with pytest.raises(ValueError, match=r"none of the end ids \[60\]"):
        rollout(policy, one, SAMPLED, seed=0)


def test_a_sliding_window_shorter_than_the_transcript_is_refused():
    policy = ToyPolicy()
    policy.model.config.sliding_window = 64
    with pytest.raises(ValueError, match="sliding_window 64"):
        rollout(policy, requests(), SAMPLED, seed=0)
