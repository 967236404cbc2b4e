"""The trainer end to end on a toy task, with a random tiny model and the real rollouts."""

import dataclasses
import json
import math
import os
import pkgutil
import signal
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors import safe_open
from transformers import Qwen2Config, Qwen2ForCausalLM

import rc_lib.update
from rc_lib.checkpoint import RunFolder
from rc_lib.conditioning import Conditioning
from rc_lib.config import RLConfig
from rc_lib.envs.base import Message
from rc_lib.rollout import rollout
from rc_lib.trainer import ConditionedGRPOTrainer
from rc_lib.transcript import Transcript
from rc_lib.update import UPDATE_COLUMNS, PolicyUpdate, micro_batches

torch.set_num_threads(1)
END, ROLES = 1, {"system": 2, "user": 3, "assistant": 4, "tool": 5}
LUCKY = set("ABCDEF")  # the reward is 1 if the first message has one of these
TASKS = [SimpleNamespace(id=f"toy_{i}", category="base") for i in range(6)]
CONFIG = RLConfig(
    steps=4,
    prompts_per_step=4,
    group_size=4,
    learning_rate=3e-3,
    warmup_steps=2,
    beta=0.05,
    micro_batch_tokens=256,
    max_new_tokens=4,
    max_length=120,
    rollout_batch_size=16,
    checkpoint_every=2,
    groups_logged=2,
)
RC = Conditioning("stratified")


class ToyPolicy:
    """One id a character; the padding id is the end id."""

    eos_ids, pad_id, device = frozenset({END}), END, torch.device("cpu")

    def __init__(self, seed=0):
        torch.manual_seed(seed)
        self.model = Qwen2ForCausalLM(
            Qwen2Config(
                vocab_size=64,
                hidden_size=32,
                intermediate_size=48,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                max_position_embeddings=128,
                tie_word_embeddings=True,
                initializer_range=0.1,
            )
        )

    def encode_messages(self, messages):
        ids = []
        for role, content in messages:
            ids += [ROLES[role], *(6 + ord(c) % 58 for c in content), END]
        return ids

    def generation_prompt(self):
        return [ROLES["assistant"]]

    def decode(self, ids):
        return "".join(chr(59 + i) for i in ids if i != END)


class ToyEnv:
    """Two turns; the reward is 1 if the first message has a lucky character."""

    def __init__(self, task):
        self.task, self.actions = task, []

    def reset(self):
        return [Message("user", f"go {self.task.id}")], {}

    def step(self, action):
        self.actions.append(action)
        if len(self.actions) == 2:
            return [], 0.0, True, False, {}
        return [Message("tool", "ok")], 0.0, False, False, {}

    def reward(self):
        lucky = float(bool(LUCKY & set(self.actions[0])))
        return {"reward": lucky, "state": lucky, "action": 1.0}


def make_trainer(folder, conditioning=RC, policy=None, seed=0, **changes):
    return ConditionedGRPOTrainer(
        policy or ToyPolicy(),
        TASKS,
        ToyEnv,
        dataclasses.replace(CONFIG, **changes),
        conditioning,
        seed=seed,
        output_dir=folder,
    )


def files_of(folder):
    names = ("curve.csv", "groups.csv", "rollouts.jsonl", "checkpoint.safetensors")
    return {name: (folder / name).read_bytes() for name in names}


def play(trainer, step=0):
    """Rollouts of a step of this trainer, without training."""
    requests = trainer.requests(step, trainer.prompts(step))
    return rollout(trainer.policy, requests, trainer.sampling, seed=0, step=step)


@pytest.mark.parametrize("conditioning", [Conditioning("none"), Conditioning("iid")])
def test_reward_rises(tmp_path, conditioning):
    trainer = make_trainer(
        tmp_path, conditioning, steps=20, prompts_per_step=8, learning_rate=1e-2, minibatches=2
    )
    reward = trainer.train(progress=False)["reward"]
    assert reward[:3].mean() < 0.5
    assert reward[-5:].mean() > 0.9


def test_curve_has_a_row_a_step_and_its_statistics_agree(tmp_path):
    curve = make_trainer(tmp_path).train(progress=False)
    assert curve["step"].tolist() == [0, 1, 2, 3]
    assert np.isfinite(curve.to_numpy()).all()
    np.testing.assert_allclose(curve["reward"], (curve["mu_high"] + curve["mu_low"]) / 2)
    np.testing.assert_allclose(curve["degenerate"], curve["all_fail"] + curve["all_success"])
    assert curve["learning_rate"].tolist() == [1.5e-3, 3e-3, 3e-3, 3e-3]
    assert (curve["turns"] == 2.0).all()
    assert curve["model_tokens"].between(2, 8).all()
    assert (curve["entropy"] > 1.0).all()
    assert curve["kl"][0] == pytest.approx(0.0, abs=1e-6)  # the policy is its own reference
    assert (curve["kl"][1:] > 0.0).all()
    np.testing.assert_allclose(curve["ratio"], 1.0, atol=1e-5)  # one update a batch: on-policy
    assert (curve["clip_share"] == 0.0).all()
    timing = pd.read_csv(tmp_path / "timing.csv")
    assert timing["step"].tolist() == [0, 1, 2, 3]
    assert (timing[["rollout_s", "update_s", "wall_s", "tokens_per_s"]] > 0).all(axis=None)
    pd.testing.assert_frame_equal(curve, pd.read_csv(tmp_path / "curve.csv"))


def test_logged_rollouts_can_be_recomputed_from_their_line(tmp_path):
    make_trainer(tmp_path).train(progress=False)
    lines = [json.loads(x) for x in (tmp_path / "rollouts.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [step for step in range(4) for _ in range(2 * 4)]
    for group in (lines[i : i + 4] for i in range(0, len(lines), 4)):  # whole groups
        assert len({(line["group_id"], line["task_id"]) for line in group}) == 1
        assert [line["member"] for line in group] == [0, 1, 2, 3]
    policy = ToyPolicy()
    for line in lines:
        spans = [line["ids"][start:end] for kind, start, end in line["spans"] if kind == "model"]
        assert [policy.decode(ids) for ids in spans] == line["texts"]
        assert (
            line["reward"] == line["parts"]["state"] == float(bool(LUCKY & set(line["texts"][0])))
        )
        assert line["token"] in ("high", "low")
        assert line["task_id"].startswith("toy_")
        assert line["reward"] or line["advantage"] <= 0.0


def test_every_group_is_recorded_with_its_tokens_and_rewards(tmp_path):
    trainer = make_trainer(tmp_path)
    curve = trainer.train(progress=False)
    groups = pd.read_csv(tmp_path / "groups.csv")
    lines = [json.loads(x) for x in (tmp_path / "rollouts.jsonl").read_text().splitlines()]
    assert groups["step"].tolist() == [step for step in range(4) for _ in range(4)]
    rows = groups.set_index(["step", "group_id"])
    for line in lines:
        row = rows.loc[(line["step"], line["group_id"])]
        assert row["tokens"].split()[line["member"]] == line["token"]
        assert float(row["rewards"].split()[line["member"]]) == line["reward"]
    for step, chosen in groups.groupby("step"):
        names = [task.id for task in trainer.prompts(step)]
        assert chosen["task_id"].tolist() == names
        rewards = np.array([row.split() for row in chosen["rewards"]], float)
        assert rewards.mean() == pytest.approx(curve["reward"][step])
        assert rewards.var(axis=1).mean() == pytest.approx(curve["sigma2"][step])


def test_beta_zero_needs_no_reference_and_leaves_kl_blank(tmp_path):
    trainer = make_trainer(tmp_path, Conditioning("none"), beta=0.0, steps=1)
    assert trainer.optimize.reference is None
    curve = trainer.train(progress=False)
    assert curve[["kl", "mu_high", "mu_low"]].isna().all(axis=None)
    assert ",," in (tmp_path / "curve.csv").read_text()


def test_reference_is_a_frozen_copy_of_the_start(tmp_path):
    trainer = make_trainer(tmp_path)
    trainer.train(progress=False)
    for trained, frozen, start in zip(
        trainer.policy.model.parameters(),
        trainer.optimize.reference.parameters(),
        ToyPolicy().model.parameters(),
        strict=True,
    ):
        assert torch.equal(frozen, start)
        assert not frozen.requires_grad
        assert not torch.equal(trained, frozen)


class Killed(BaseException):
    """Stands for a signal."""


def kill_at(monkeypatch, place, call):
    """Make the numbered call of a function the last thing that happens."""
    module, name = place.rsplit(".", 1)
    original, calls = pkgutil.resolve_name(module).__dict__[name], iter(range(1000))

    def killed(*args, **kwargs):
        if next(calls) == call:
            raise Killed
        return original(*args, **kwargs)

    monkeypatch.setattr(place, killed)


@pytest.mark.parametrize(
    ("place", "call"),
    [
        ("rc_lib.trainer.rollout", 1),  # before the first checkpoint
        ("rc_lib.trainer.rollout", 3),  # in the middle between two
        ("rc_lib.update.grpo_loss", 9),  # in the middle of a step
        ("rc_lib.checkpoint.RunFolder.append_csv", 5),  # timing written, curve not
        ("rc_lib.checkpoint.os.replace", 1),  # checkpoint written, not in place
        ("rc_lib.checkpoint.os.replace", 2),
        ("rc_lib.checkpoint.save_file", 2),  # logs written, checkpoint not
    ],
)
def test_a_killed_run_ends_with_the_same_bytes(tmp_path, monkeypatch, untouched, place, call):
    """trl#3148: resume is exact, wherever the run was stopped."""
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_at(patch, place, call)
        make_trainer(tmp_path, minibatches=2).train(progress=False)
    make_trainer(tmp_path, minibatches=2).train(progress=False)
    assert files_of(tmp_path) == untouched


@pytest.fixture(scope="module")
def untouched(tmp_path_factory):
    folder = tmp_path_factory.mktemp("untouched")
    make_trainer(folder, minibatches=2).train(progress=False)
    return files_of(folder)


def die_halfway(append, folder, name, text):
    """Write a row of step 3 to the curve up to its middle, and take the process down."""
    if name == "curve.csv" and text.startswith("3,"):
        append(folder, name, text[:9])
        os.kill(os.getpid(), signal.SIGKILL)
    append(folder, name, text)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_run_killed_by_the_system_ends_with_the_same_bytes(tmp_path, untouched):
    child = os.fork()
    if child == 0:
        append = RunFolder._append
        RunFolder._append = lambda self, name, text: die_halfway(append, self, name, text)
        try:
            make_trainer(tmp_path, minibatches=2).train(progress=False)
        finally:
            os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    make_trainer(tmp_path, minibatches=2).train(progress=False)
    assert files_of(tmp_path) == untouched


@pytest.mark.parametrize(
    ("place", "calls"), [("rc_lib.trainer.rollout", (1, 3)), ("rc_lib.update.grpo_loss", (1, 9))]
)
def test_a_run_stopped_and_started_in_one_process_ends_with_the_same_bytes(
    tmp_path, monkeypatch, untouched, place, calls
):
    trainer = make_trainer(tmp_path, minibatches=2)
    for call in calls:  # before and after the checkpoint of step 2
        with monkeypatch.context() as patch, pytest.raises(Killed):
            kill_at(patch, place, call)
            trainer.train(progress=False)
    trainer.train(progress=False)
    assert files_of(tmp_path) == untouched


def test_a_finished_run_is_not_run_again(tmp_path):
    trainer = make_trainer(tmp_path, steps=2)
    curve = trainer.train(progress=False)
    before = files_of(tmp_path)
    pd.testing.assert_frame_equal(trainer.train(progress=False), curve)
    assert files_of(tmp_path) == before


def test_a_longer_run_goes_on_from_a_shorter_one(tmp_path):
    make_trainer(tmp_path / "two", steps=2).train(progress=False)
    make_trainer(tmp_path / "two", steps=4).train(progress=False)
    make_trainer(tmp_path / "four", steps=4).train(progress=False)
    assert files_of(tmp_path / "two") == files_of(tmp_path / "four")
    with pytest.raises(ValueError, match="at step 4, past the 2 asked for"):
        make_trainer(tmp_path / "two", steps=2).train(progress=False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 1}, "seed = 0, this one has 1"),
        ({"conditioning": Conditioning("none")}, "conditioning = "),
        ({"learning_rate": 1e-4}, "learning_rate = 0.003, this one has 0.0001"),
        ({"policy": ToyPolicy(seed=9)}, "(start|reference) = "),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(tmp_path, changes, message):
    make_trainer(tmp_path, steps=1).train(progress=False)
    with pytest.raises(ValueError, match=message):
        make_trainer(tmp_path, **changes).train(progress=False)


def test_the_task_order_depends_on_the_seed_and_not_on_the_arm(tmp_path):
    def order(**options):
        trainer = make_trainer(tmp_path, **options)
        return [task.id for step in range(9) for task in trainer.prompts(step)]

    plain = order(conditioning=Conditioning("none"))
    assert plain == order(conditioning=RC) == order(policy=ToyPolicy(seed=4), group_size=2)
    assert plain == order(prompts_per_step=4, beta=0.0, learning_rate=1.0)
    assert plain != order(seed=1)
    # One pass after another, each in an order of its own.
    passes = [plain[i : i + 6] for i in range(0, 36, 6)]
    assert all(sorted(one) == [task.id for task in TASKS] for one in passes)
    assert len(set(map(tuple, passes))) > 3


def test_a_step_may_have_more_prompts_than_there_are_tasks(tmp_path):
    trainer = make_trainer(tmp_path, prompts_per_step=15)
    requests = trainer.requests(0, trainer.prompts(0))
    assert len({(r.group_id, r.member) for r in requests}) == 15 * 4
    assert len({id(r.env) for r in requests}) == 15 * 4  # no two share an environment


def test_tokens_vary_inside_a_group_and_reach_the_prompt(tmp_path):
    trainer = make_trainer(tmp_path)
    rollouts = play(trainer)
    high, low = (
        next(r for r in rollouts if r.group_id == 0 and r.token == token)
        for token in ("high", "low")
    )
    ends = [r.transcript.ids[: r.transcript.spans[0].end] for r in (high, low)]
    assert ends[0] != ends[1]
    assert [r.token for r in rollouts].count("high") == len(rollouts) / 2


@pytest.mark.parametrize("loss_type", ["grpo", "bnpo", "dapo", "dr_grpo"])
def test_the_gradient_does_not_depend_on_the_micro_batch(tmp_path, loss_type):
    """trl#5619."""
    rollouts = play(make_trainer(tmp_path))
    advantages = np.random.default_rng(0).normal(size=len(rollouts))
    results = []
    for tokens in (1, 100, 10**6):
        config = dataclasses.replace(CONFIG, micro_batch_tokens=tokens, loss_type=loss_type)
        optimize = PolicyUpdate(ToyPolicy(), config, seed=0)
        sums = optimize.add_gradient(0, rollouts, advantages, 50.0)
        gradient = torch.cat([w.grad.flatten() for w in optimize.weights.values()])
        results.append((gradient, sum(s["loss"] for s in sums), len(sums)))
    assert results[0][2] == len(rollouts)
    assert results[2][2] == 1
    for gradient, loss, _ in results[1:]:
        torch.testing.assert_close(gradient, results[0][0], rtol=1e-4, atol=1e-7)
        assert loss == pytest.approx(results[0][1], rel=1e-5, abs=1e-7)


def test_a_rollout_without_model_tokens_changes_no_gradient():
    lone = Transcript()
    lone.append("prompt", [3, 7, 8])
    real = Transcript()
    real.append("prompt", [3, 7, 8, 4])
    real.append("model", [9, END], logprobs=[-4.0, -4.0])
    config = dataclasses.replace(CONFIG, loss_type="bnpo", beta=0.0)
    gradients = []
    for transcripts in ([real], [real, lone], [lone]):
        optimize = PolicyUpdate(ToyPolicy(), config, seed=0)
        rollouts = [SimpleNamespace(transcript=t, group_id=0) for t in transcripts]
        sums = optimize.add_gradient(0, rollouts, np.ones(len(rollouts)), 2.0)
        assert all(math.isfinite(s["loss"]) for s in sums)
        grads = [w.grad for w in optimize.weights.values() if w.grad is not None]
        gradients.append(torch.cat([g.flatten() for g in grads]))
    torch.testing.assert_close(gradients[1], gradients[0])
    assert not gradients[2].any()


def test_constant_rewards_without_kl_leave_the_weights_alone(tmp_path, monkeypatch):
    """RC-GRPO, Prop. 4.2: when every group has collapsed nothing is learnt."""
    monkeypatch.setattr(ToyEnv, "reward", lambda self: {"reward": 0.7})
    trainer = make_trainer(tmp_path, beta=0.0, steps=2)
    curve = trainer.train(progress=False)
    assert (curve["grad_norm"] == 0.0).all()
    assert (curve["degenerate"] == 1.0).all()
    assert (curve[["all_fail", "all_success"]] == 0.0).all(axis=None)
    for weight, start in zip(
        trainer.policy.model.parameters(), ToyPolicy().model.parameters(), strict=True
    ):
        assert torch.equal(weight, start)


def test_minibatches_are_steps_that_use_every_rollout_once(tmp_path, monkeypatch):
    trainer = make_trainer(tmp_path, minibatches=3, steps=1)
    seen = []
    add_gradient = trainer.optimize.add_gradient
    monkeypatch.setattr(
        trainer.optimize,
        "add_gradient",
        lambda step, chosen, *rest: seen.append(chosen) or add_gradient(step, chosen, *rest),
    )
    trainer.train(progress=False)
    assert [len(chosen) for chosen in seen] == [6, 5, 5]
    assert len({(r.group_id, r.member) for chosen in seen for r in chosen}) == 16
    steps = {int(state["step"]) for state in trainer.optimize.optimizer.state.values()}
    assert steps == {3}


def test_gradients_are_clipped_and_the_norm_before_is_reported(tmp_path):
    norms = []
    for limit in (1e9, 1e-3):
        trainer = make_trainer(tmp_path / str(limit), steps=1, max_grad_norm=limit, beta=0.0)
        norms.append(trainer.train(progress=False)["grad_norm"][0])
        moments = [s["exp_avg"] / 0.1 for s in trainer.optimize.optimizer.state.values()]
        norm = torch.cat([m.flatten() for m in moments]).norm().item()
        assert norm == pytest.approx(min(limit, norms[0]), rel=1e-3)
    assert norms[0] == norms[1] > 1e-3


@pytest.mark.parametrize("name", ["loss", "gradient norm"])
def test_what_is_not_finite_stops_the_run_and_names_the_step(tmp_path, monkeypatch, name):
    trainer = make_trainer(tmp_path, steps=3)
    trainer.train_step(0)
    before = [w.detach().clone() for w in trainer.optimize.weights.values()]
    if name == "loss":
        original = rc_lib.update.grpo_loss
        monkeypatch.setattr(
            "rc_lib.update.grpo_loss", lambda *a, **k: (original(*a, **k)[0] * math.nan, {})
        )
    else:
        trainer.policy.model.lm_head.weight.register_hook(lambda gradient: gradient * math.inf)
    with pytest.raises(FloatingPointError, match=f"step 1: the {name} is (nan|inf)"):
        trainer.train_step(1)
    after = trainer.optimize.weights.values()
    assert all(torch.equal(x, y) for x, y in zip(before, after, strict=True))


def test_a_reward_that_is_not_finite_stops_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(ToyEnv, "reward", lambda self: {"reward": math.nan})
    with pytest.raises(ValueError, match=r"reward 0 \(group 0\) is nan"):
        make_trainer(tmp_path).train(progress=False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"minibatches": 0}, "0 minibatches of 16 rollouts"),
        ({"minibatches": 17}, "17 minibatches of 16 rollouts"),
        ({"minibatches": 5, "dynamic_rounds": 2}, "5 minibatches of 4 rollouts"),
        ({"temperature": 0.0}, "temperature is 0.0"),
        ({"dynamic_rounds": -1}, "dynamic_rounds is -1"),
        ({"entropy_bonus": -0.1}, "entropy_bonus is -0.1"),
    ],
)
def test_settings_that_make_no_sense_are_errors(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        make_trainer(tmp_path, **changes)


DYNAMIC = {"steps": 8, "dynamic_rounds": 3}
UPDATE = list(UPDATE_COLUMNS)


def spread_of(groups):
    """Whether each recorded group has spread."""
    return groups["rewards"].map(lambda rewards: len(set(rewards.split())) > 1)


def test_dynamic_sampling_trains_on_exactly_the_groups_with_spread(tmp_path, monkeypatch):
    trainer = make_trainer(tmp_path, **DYNAMIC)
    batches, optimize = {}, trainer.optimize.__call__

    def spy(step, rollouts, advantages):
        batches[step] = [
            (r.task_id, r.member, r.reward, a) for r, a in zip(rollouts, advantages, strict=True)
        ]
        return optimize(step, rollouts, advantages)

    monkeypatch.setattr(type(trainer.optimize), "__call__", lambda self, *args: spy(*args))
    curve = trainer.train(progress=False)
    groups = pd.read_csv(tmp_path / "groups.csv")
    assert groups["step"].tolist() == [round_ for round_ in range(8) for _ in range(4)]
    assert list(batches) == curve.index[curve["loss"].notna()].tolist()
    assert 1 < len(batches) < 8
    waiting, rounds = [], 0
    for step in range(8):  # the rule, once more
        chosen, rounds = groups[groups["step"] == step], rounds + 1
        for row in chosen[spread_of(chosen)].itertuples():
            rewards = np.array(row.rewards.split(), float)
            advantages = (rewards - rewards.mean()) / (rewards.std() + CONFIG.advantage_eps)
            members = zip(rewards, advantages, strict=True)
            waiting += [(row.task_id, j, r, pytest.approx(a)) for j, (r, a) in enumerate(members)]
        if len(waiting) >= 4 * 4 or rounds == 3 or step == 7:
            assert batches.get(step, []) == waiting
            waiting, rounds = [], 0
        else:
            assert step not in batches and curve.loc[step, UPDATE].isna().all()


def test_a_round_of_dynamic_sampling_is_a_step_of_the_plain_arm(tmp_path):
    plain = make_trainer(tmp_path / "plain", steps=8).train(progress=False)
    dynamic = make_trainer(tmp_path / "dynamic", **DYNAMIC).train(progress=False)
    assert list(dynamic) == list(plain) and len(dynamic) == len(plain)
    reward_columns = slice("reward", "advantage_spread_group")
    assert dynamic.loc[0, reward_columns].equals(plain.loc[0, reward_columns])
    columns = ["step", "group_id", "task_id", "tokens"]
    files = [pd.read_csv(tmp_path / name / "groups.csv") for name in ("plain", "dynamic")]
    assert files[0][columns].equals(files[1][columns])


@pytest.fixture(scope="module")
def dynamic_untouched(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dynamic")
    make_trainer(folder, **DYNAMIC).train(progress=False)
    return files_of(folder)


@pytest.mark.parametrize("call", range(1, 8))
def test_a_killed_run_of_dynamic_sampling_ends_with_the_same_bytes(
    tmp_path, monkeypatch, dynamic_untouched, call
):
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_at(patch, "rc_lib.trainer.rollout", call)
        make_trainer(tmp_path, **DYNAMIC).train(progress=False)
    make_trainer(tmp_path, **DYNAMIC).train(progress=False)
    assert files_of(tmp_path) == dynamic_untouched


def test_dynamic_sampling_without_spread_takes_no_step(tmp_path, monkeypatch):
    monkeypatch.setattr(ToyEnv, "reward", lambda self: {"reward": 0.0})
    trainer = make_trainer(tmp_path, **DYNAMIC)
    curve = trainer.train(progress=False)
    assert curve[UPDATE].isna().all(axis=None) and len(curve) == 8
    assert not trainer.optimize.optimizer.state


def test_a_run_of_dynamic_sampling_has_a_fixed_length(tmp_path):
    make_trainer(tmp_path, steps=2, dynamic_rounds=3).train(progress=False)
    with pytest.raises(ValueError, match="steps = 2, this one has 8"):
        make_trainer(tmp_path, **DYNAMIC).train(progress=False)


def test_the_entropy_bonus_keeps_entropy_up(tmp_path):
    entropy = [
        make_trainer(tmp_path / str(bonus), entropy_bonus=bonus, steps=12).train(progress=False)
        for bonus in (0.0, 1.0)
    ]
    assert entropy[0]["entropy"][0] == entropy[1]["entropy"][0]
    assert entropy[1]["entropy"].iloc[-1] > entropy[0]["entropy"].iloc[-1] + 0.1


def test_options_that_are_off_are_no_part_of_a_run(tmp_path):
    """Checkpoints from before an option existed can be gone on from."""
    make_trainer(tmp_path, steps=1).train(progress=False)
    with safe_open(tmp_path / "checkpoint.safetensors", "pt") as file:
        settings = json.loads(file.metadata()["run"])["settings"]
    assert not {"entropy_bonus", "dynamic_rounds", "steps"} & set(settings)
    with pytest.raises(ValueError, match="entropy_bonus = None, this one has 0.1"):
        make_trainer(tmp_path, entropy_bonus=0.1).train(progress=False)


def test_weights_narrower_than_fp32_and_no_tasks_are_errors(tmp_path):
    policy = ToyPolicy()
    policy.model.bfloat16()
    with pytest.raises(ValueError, match="is torch.bfloat16"):
        make_trainer(tmp_path, policy=policy)
    with pytest.raises(ValueError, match="no training tasks"):
        ConditionedGRPOTrainer(ToyPolicy(), [], ToyEnv, CONFIG, RC, seed=0, output_dir=tmp_path)


@pytest.mark.parametrize("max_tokens", [1, 10, 37, 10_000])
def test_micro_batches_hold_every_row_once_within_the_limit(max_tokens):
    draws = np.random.default_rng(0)
    lengths, groups = draws.integers(1, 30, 50), draws.integers(0, 12, 50)
    batches = micro_batches(lengths.tolist(), groups.tolist(), max_tokens)
    order = np.concatenate(batches)
    assert sorted(order) == list(range(50))
    for rows in batches:
        assert len(rows) == 1 or len(rows) * lengths[rows].max() <= max_tokens
    # A group stays together, and long groups come before short ones.
    assert 1 + np.count_nonzero(np.diff(groups[order])) == len(set(groups))
    longest = [lengths[groups == g].max() for g in groups[order]]
    assert longest == sorted(longest, reverse=True)


def test_micro_batches_waste_little_on_padding():
    lengths = np.random.default_rng(0).integers(50, 250, 32).repeat(5)
    batches = micro_batches(lengths, np.arange(32).repeat(5), 4096)
    padded = sum(len(rows) * lengths[rows].max() for rows in batches)
    assert padded < 1.15 * lengths.sum()
