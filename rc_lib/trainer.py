"""The conditioned group-relative trainer: one algorithm for both papers.

`ConditionedGRPOTrainer.train_step` is the algorithm. An arm differs from another only in the
strategy object that says what a rollout's prompt carries.

A run writes to its folder:

- ``curve.csv``, one row a step, the same bytes in every run of the same settings;
- ``timing.csv``, one row a step, what differs from run to run;
- ``groups.csv``, one row a group of every step: its tokens and rewards;
- ``rollouts.jsonl``, all rollouts of a few groups of every step;
- ``checkpoint.safetensors``, from which a killed run goes on and ends with the same bytes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from tqdm.auto import tqdm

from rc_lib.advantage import group_advantages, group_statistics
from rc_lib.checkpoint import RunFolder, checksum
from rc_lib.conditioning import Conditioning
from rc_lib.config import RLConfig
from rc_lib.envs.base import Environment
from rc_lib.policy import Policy
from rc_lib.rollout import Request, Rollout, Sampling, rollout
from rc_lib.seeding import rng, stable_id
from rc_lib.tasks.base import Task
from rc_lib.update import UPDATE_COLUMNS, PolicyUpdate

# Settings that say how far a run goes, not what it does: a resumed run may change them.
_LENGTH = ("steps", "checkpoint_every")
# Options: one that is off is no part of a run, so that older checkpoints can be gone on from.
_OPTIONS = ("entropy_bonus", "dynamic_rounds")


class ConditionedGRPOTrainer:
    """Train a policy by GRPO whose rollouts carry reward-goal tokens.

    Source: RC-GRPO (arXiv 2602.03025), stage 2.

    Args:
        policy: the stage-1 policy, in fp32; its model is trained in place, without dropout.
        tasks: training tasks; their order in the run depends on the seed alone.
        make_env: makes a fresh environment of a task, one for each rollout.
        config: hyperparameters.
        conditioning: which member of a group gets which token.
        seed: run seed of every draw.
        output_dir: folder of the run; a checkpoint there is gone on from.
        reference: pi_ref of the KL; by default a frozen copy of the policy as given.

    Raises:
        ValueError: for no tasks, more minibatches than rollouts, or trainable weights below fp32.
    """

    def __init__(
        self,
        policy: Policy,
        tasks: Sequence[Task],
        make_env: Callable[[Task], Environment],
        config: RLConfig,
        conditioning: Conditioning,
        *,
        seed: int,
        output_dir: Path,
        reference: torch.nn.Module | None = None,
    ):
        self.policy, self.tasks, self.make_env = policy, list(tasks), make_env
        self.config, self.conditioning, self.seed = config, conditioning, seed
        self.output_dir = Path(output_dir)
        self.sampling = Sampling(config.temperature, config.max_new_tokens, config.max_length)
        _check(self.tasks, config)
        self.optimize = PolicyUpdate(policy, config, seed=seed, reference=reference)
        self._settings = self._identity()
        # Dynamic sampling: rollouts and advantages of the rounds since the last optimizer step.
        self._gathered: list[tuple[list[Rollout], np.ndarray]] = []

    def train(self, progress: bool = True) -> pd.DataFrame:
        """Run the steps that are not done yet, and return the curve.

        Args:
            progress: show a progress bar with the time left.

        Returns:
            ``curve.csv``, one row a step: ``step``; `group_statistics` of the rewards (``reward``,
            ``mu_high``, ``mu_low``, ``sigma2``, ``degenerate``, ``all_fail``, ``all_success``,
            ``advantage_spread``, ``advantage_spread_group``); over the model tokens ``entropy``
            (nats), ``kl`` (k3, to the reference), ``clip_share`` and ``ratio``; ``loss``;
            ``grad_norm`` before clipping; ``learning_rate``; ``truncated``, a share of the
            rollouts; ``turns`` and ``model_tokens``, means a rollout. What does not exist is blank.
            Beside it ``groups.csv``: ``step``, ``group_id``, ``task_id``, ``category``, and the
            ``tokens`` and ``rewards`` of its members, separated by spaces; and ``timing.csv``:
            ``rollout_s``, ``update_s``, ``wall_s`` and ``tokens_per_s`` (tokens of all transcripts
            in a second of the step).

            With dynamic sampling a row is a round of sampling, which is as many rollouts as a step
            of any other arm; what describes an optimizer step is blank in rounds without one.

        Raises:
            FloatingPointError: if a loss or a gradient norm is not finite.
            ValueError: if the folder holds a checkpoint of another run, or of a longer one.
        """
        total, every = self.config.steps, self.config.checkpoint_every
        folder = RunFolder(self.output_dir, self._settings)
        prompts = self.config.prompts_per_step
        logged = min(self.config.groups_logged, prompts) * self.config.group_size
        logs = {"curve.csv": (1, 1), "timing.csv": (1, 1), "groups.csv": (1, prompts)}
        logs["rollouts.jsonl"] = (0, logged)
        done = saved = folder.resume(self.optimize.weights, self.optimize.optimizer, logs)
        self._gathered = []
        if done > total:
            raise ValueError(f"{self.output_dir} is at step {done}, past the {total} asked for")
        bar = tqdm(initial=done, total=total, desc="RL", disable=not progress, mininterval=2)
        for step in range(done, total):
            curve, timing, groups, records = self.train_step(step)
            folder.append_json("rollouts.jsonl", records)
            folder.append_csv("groups.csv", *groups)
            folder.append_csv("timing.csv", timing)
            folder.append_csv("curve.csv", curve)
            due = (step + 1) // every > saved // every or step + 1 == total
            if due and not self._gathered:
                folder.save(step + 1, self.optimize.weights, self.optimize.optimizer)
                saved = step + 1
            bar.set_postfix(reward=f"{curve['reward']:.3f}", refresh=False)
            bar.update()
        bar.close()
        return pd.read_csv(self.output_dir / "curve.csv")

    def train_step(self, step: int) -> tuple[dict, dict, list[dict], list[dict]]:
        """Take one step of RC-GRPO; return its rows of curve, timing and groups, and rollouts."""
        config, began = self.config, time.perf_counter()
        # 1. Prompts: the next tasks in the seed's order.
        tasks = self.prompts(step)
        # 2. Tokens: r_j ~ P_sample(r), one for each of the G members of a group.
        requests = self.requests(step, tasks)
        # 3. Rollouts: a_t ~ pi(. | h_t, r_j); log pi_old(a_t) is recorded as sampled.
        rollouts = rollout(
            self.policy, requests, self.sampling,
            seed=self.seed, step=step, batch_size=config.rollout_batch_size,
        )  # fmt: skip
        rolled = time.perf_counter()
        # 4. Rewards: R_j, from the environment.
        rewards, group_ids, tokens = zip(
            *((r.reward, r.group_id, r.token) for r in rollouts), strict=True
        )
        # 5. Advantages: A_j = (R_j - mu_g) / (sigma_g + eps).
        advantages = group_advantages(rewards, group_ids, eps=config.advantage_eps)
        # 6. Loss: -min(ratio_t A_j, clip(ratio_t, 1 - c, 1 + c) A_j) + beta KL(pi || pi_ref) over
        #    the model's own tokens; `minibatches` steps of AdamW.
        update = self._update(step, rollouts, advantages)
        # 7. What happened.
        ended = time.perf_counter()
        statistics = group_statistics(rewards, group_ids, tokens, eps=config.advantage_eps)
        curve = {"step": step} | statistics | update | _lengths(rollouts)
        timing = {
            "step": step,
            "rollout_s": rolled - began,
            "update_s": ended - rolled,
            "wall_s": ended - began,
            "tokens_per_s": sum(len(r.transcript) for r in rollouts) / (ended - began),
        }
        return curve, timing, _group_rows(step, rollouts), self._logged(step, rollouts, advantages)

    def _update(self, step: int, rollouts: list[Rollout], advantages: np.ndarray) -> dict:
        """Train on the rollouts, or with dynamic sampling gather groups with spread first.

        Source: DAPO (arXiv 2503.14476), dynamic sampling: prompts are drawn until the batch is full
        of groups with spread.

        Deviation: at an equal budget of rollouts. A round draws what a step of any other arm draws,
        the budget is ``steps`` rounds. Rounds go on until they gave ``prompts_per_step`` groups
        with spread, or ``dynamic_rounds`` are over, or the budget is; one optimizer step then takes
        all these groups, none is thrown away. So the optimizer steps are fewer and fuller. Rounds
        that gave no such group make no step, not even one on the KL.
        """
        config = self.config
        if not config.dynamic_rounds:
            return self.optimize(step, rollouts, advantages)
        spread = {one.group_id for one, a in zip(rollouts, advantages, strict=True) if a != 0.0}
        kept = [i for i, one in enumerate(rollouts) if one.group_id in spread]
        self._gathered.append(([rollouts[i] for i in kept], advantages[kept]))
        batch = [one for part, _ in self._gathered for one in part]
        full = len(batch) >= _rollouts(config)
        over = len(self._gathered) == config.dynamic_rounds or step + 1 == config.steps
        if not (full or over):
            return dict.fromkeys(UPDATE_COLUMNS, math.nan)
        gathered = np.concatenate([values for _, values in self._gathered])
        self._gathered = []
        if not batch:
            return dict.fromkeys(UPDATE_COLUMNS, math.nan)
        return self.optimize(step, batch, gathered)

    def prompts(self, step: int) -> list[Task]:
        """Return the tasks of a step: one shuffled pass after another, from the seed alone."""
        count = self.config.prompts_per_step
        passes, places = np.divmod(np.arange(step * count, (step + 1) * count), len(self.tasks))
        orders = {
            n: rng(self.seed, "task-order", n).permutation(len(self.tasks)) for n in set(passes)
        }
        return [self.tasks[orders[n][place]] for n, place in zip(passes, places, strict=True)]

    def requests(self, step: int, tasks: Sequence[Task]) -> list[Request]:
        """Return the rollouts to make in a step; all that a prompt carries is decided here."""
        return [
            Request(self.make_env(task), group_id, member, token)
            for group_id, task in enumerate(tasks)
            for member, token in enumerate(
                self.conditioning.tokens(self.seed, step, group_id, self.config.group_size)
            )
        ]

    def _logged(self, step, rollouts, advantages) -> list[dict]:
        groups = self.config.prompts_per_step
        count = min(self.config.groups_logged, groups)
        chosen = rng(self.seed, "groups-logged", step).choice(groups, count, replace=False)
        kept = ("task_id", "category", "group_id", "member", "token", "reward", "parts", "ended")
        return [
            {"step": step}
            | {name: getattr(rollouts[i], name) for name in kept}
            | {"advantage": float(advantages[i]), "texts": rollouts[i].texts}
            | {"ids": rollouts[i].transcript.ids, "spans": rollouts[i].transcript.spans}
            for i in range(len(rollouts))
            if rollouts[i].group_id in chosen
        ]

    def _identity(self) -> dict:
        config = {k: v for k, v in asdict(self.config).items() if k not in _LENGTH}
        config = {k: v for k, v in config.items() if v or k not in _OPTIONS}
        if self.config.dynamic_rounds:  # the last round ends a batch that is not full
            config["steps"] = self.config.steps
        reference = self.optimize.reference
        return config | {
            "conditioning": asdict(self.conditioning),
            "seed": self.seed,
            "tasks": stable_id("\n".join(task.id for task in self.tasks)),
            "start": checksum(self.policy.model.state_dict()),
            "reference": checksum(reference.state_dict() if reference else {}),
        }


def _rollouts(config: RLConfig) -> int:
    return config.prompts_per_step * config.group_size


def _group_rows(step: int, rollouts: Sequence[Rollout]) -> list[dict]:
    groups: dict[int, list[Rollout]] = {}
    for one in rollouts:
        groups.setdefault(one.group_id, []).append(one)
    return [
        {"step": step, "group_id": group_id, "task_id": members[0].task_id}
        | {"category": members[0].category}
        | {"tokens": " ".join(one.token or "none" for one in members)}
        | {"rewards": " ".join(f"{one.reward:g}" for one in members)}
        for group_id, members in groups.items()
    ]


def _lengths(rollouts: Sequence[Rollout]) -> dict[str, float]:
    return {
        "truncated": float(np.mean([r.ended != "terminated" for r in rollouts])),
        "turns": float(np.mean([r.turns for r in rollouts])),
        "model_tokens": float(np.mean([r.transcript.model_tokens for r in rollouts])),
    }


def _check(tasks: Sequence[Task], config: RLConfig) -> None:
    if not tasks:
        raise ValueError("no training tasks; give at least one")
    fewest = config.group_size if config.dynamic_rounds else _rollouts(config)
    if not 1 <= config.minibatches <= fewest:
        raise ValueError(
            f"{config.minibatches} minibatches of {fewest} rollouts; "
            "use 1 or more, at most one a rollout"
        )
    if not config.temperature > 0.0:
        raise ValueError(f"temperature is {config.temperature}; training samples, use one > 0")
    for name in _OPTIONS:
        if getattr(config, name) < 0:
            raise ValueError(f"{name} is {getattr(config, name)}; use 0 (off) or more")
