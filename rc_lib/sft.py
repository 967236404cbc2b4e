"""Stage 1: expert and exploration trajectories, supervised fine-tuning and RCTP-FT.

SFT imitates the references. RCTP-FT (reward-conditioned trajectory pre-training by fine-tuning;
arXiv 2602.03025, stage 1) imitates references and failures alike, each with the reward-goal token
that its measured reward earned, so that the policy learns to behave as the token says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from tqdm.auto import tqdm

from rc_lib.conditioning import condition
from rc_lib.config import FineTuneConfig
from rc_lib.envs.base import Environment, Message
from rc_lib.loss import token_logprobs
from rc_lib.policy import Policy
from rc_lib.rollout import Request, Rollout, Sampling, rollout
from rc_lib.seeding import rng, stable_id
from rc_lib.tasks.generated import GeneratedTask
from rc_lib.transcript import Transcript, collate
from rc_lib.update import micro_batches


@dataclass(frozen=True)
class Trajectory:
    """One trajectory of stage 1 and the reward that was measured for it."""

    task_id: str
    category: str
    token: str | None  # reward-goal token in its prompt
    reward: float
    transcript: Transcript


def expert(
    policy: Policy,
    env: Environment,
    actions: Sequence[str],
    token: str | None,
    placeholder: str | None = None,
) -> Trajectory:
    """Play an expert's messages in the environment and keep its real observations.

    Args:
        policy: its tokenizer writes the transcript.
        env: a fresh environment of the task.
        actions: the expert's assistant messages.
        token: reward-goal token of the prompt, or None.
        placeholder: text that takes the place of every observation; None keeps the real ones.

    Raises:
        ValueError: if the episode does not end with the last message or earns less than 1.
    """
    messages, _ = env.reset()
    transcript = Transcript()
    prompt = policy.encode_messages(condition(messages, token)) + policy.generation_prompt()
    transcript.append("prompt", prompt)
    end = [policy.tokenizer.eos_token_id]
    for action in actions:
        transcript.append("model", policy.encode_text(action) + end)
        observation, _, terminated, truncated, _ = env.step(action)
        if placeholder is not None:
            observation = [Message(message.role, placeholder) for message in observation]
        if not (terminated or truncated):
            block = policy.encode_messages(observation) + policy.generation_prompt()
            transcript.append("tool", block)
    reward = env.reward()["reward"]
    if not terminated or reward != 1.0:
        raise ValueError(
            f"the reference of task {env.task.id} ends {terminated=} with reward {reward}; "
            "a reference must end its episode and earn 1"
        )
    return Trajectory(env.task.id, env.task.category, token, reward, transcript)


def relabel(policy: Policy, env: Environment, played: Rollout, token: str | None) -> Trajectory:
    """Put a sampled rollout behind the prompt with another reward-goal token; ids are kept."""
    messages, _ = env.reset()
    transcript = Transcript()
    prompt = policy.encode_messages(condition(messages, token)) + policy.generation_prompt()
    transcript.append("prompt", prompt)
    old = played.transcript
    for kind, start, end in old.spans:
        if kind != "prompt":
            transcript.append(kind, old.ids[start:end])
    return Trajectory(played.task_id, played.category, token, played.reward, transcript)


def explore(
    policy: Policy,
    tasks: Sequence[GeneratedTask],
    make_env: Callable[[GeneratedTask], Environment],
    sampling: Sampling,
    *,
    seed: int,
    max_rounds: int = 8,
    batch_size: int = 256,
) -> tuple[list[Rollout], pd.DataFrame]:
    """Collect one failed rollout a task, as the paper does with the base model (Tables 6-7).

    Every task is tried until a rollout earns less than 1, at most ``max_rounds`` times; a task
    that never fails gives none. Labels come from the measured reward.

    Returns:
        The failures, one a task, in task order; and a row for each round with the number of
        rollouts and of failures.
    """
    failures: dict[str, Rollout] = {}
    rounds = []
    for attempt in range(max_rounds):
        open_tasks = [task for task in tasks if task.id not in failures]
        if not open_tasks:
            break
        requests = [Request(make_env(task), stable_id(task.id), 0) for task in open_tasks]
        played = rollout(
            policy, requests, sampling, seed=seed, purpose="explore", step=attempt,
            batch_size=batch_size,
        )  # fmt: skip
        failed = [r for r in played if r.reward < 1.0]
        failures |= {r.task_id: r for r in failed}
        rounds.append({"round": attempt, "rollouts": len(played), "failures": len(failed)})
    return [failures[t.id] for t in tasks if t.id in failures], pd.DataFrame(rounds)


def finetune(
    policy: Policy,
    trajectories: Sequence[Trajectory],
    config: FineTuneConfig,
    *,
    epochs: int,
    seed: int,
    max_tokens: int = 1024,
    progress: bool = True,
) -> pd.DataFrame:
    """Fine-tune on the model spans of trajectories: -E sum_t log pi(a_t | h_t, r).

    Deviation: a batch's loss is the mean over its model tokens, so that a long trajectory does
    not change the size of a step; the paper writes a sum over the tokens of a trajectory.

    Args:
        policy: changed in place.
        trajectories: N trajectories, shuffled anew each epoch from the seed.
        config: optimiser settings.
        epochs: passes over the trajectories.
        seed: run seed.
        max_tokens: padded tokens computed at once; the gradient does not depend on it.

    Returns:
        One row an optimiser step: step, epoch, loss (nats a token), grad_norm, learning_rate.
    """
    if not trajectories:
        raise ValueError("no trajectories to fine-tune on; collect them first")
    starts = range(0, len(trajectories), config.batch_size)
    total = epochs * len(starts)
    warmup = max(1, round(config.warmup_share * total))
    model = policy.model.train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay
    )
    curve = []
    bar = tqdm(total=total, desc="fine-tuning", disable=not progress, mininterval=2)
    for epoch in range(epochs):
        order = rng(seed, "finetune-order", epoch).permutation(len(trajectories))
        for start in starts:
            chosen = order[start : start + config.batch_size]
            loss = _add_gradient(policy, [trajectories[i].transcript for i in chosen], max_tokens)
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm)
            rate = config.learning_rate * _schedule(len(curve), warmup, total)
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            row = {"step": len(curve), "epoch": epoch, "loss": loss}
            curve.append(row | {"grad_norm": float(norm), "learning_rate": rate})
            if not np.isfinite(row["loss"]):
                raise ValueError(
                    f"fine-tuning loss is {row['loss']} at step {row['step']}; "
                    "lower FineTuneConfig.learning_rate"
                )
            bar.update()
            bar.set_postfix(loss=f"{row['loss']:.3f}", refresh=False)
    bar.close()
    model.eval()
    return pd.DataFrame(curve)


def _add_gradient(policy: Policy, batch: Sequence[Transcript], max_tokens: int) -> float:
    """Add the gradient of a batch's mean loss, rows of like length together; return the loss."""
    total = sum(transcript.model_tokens for transcript in batch)
    loss = 0.0
    for rows in micro_batches([len(t) for t in batch], range(len(batch)), max_tokens):
        part = collate([batch[i] for i in rows], policy.pad_id)
        part = {name: tensor.to(policy.device) for name, tensor in part.items()}
        value = -token_logprobs(policy.model, part)[0].sum() / total
        value.backward()
        loss += value.item()
    return loss


def _schedule(step: int, warmup: int, total: int) -> float:
    """Linear up over the warm-up, then linearly down to a tenth of the rate."""
    if step < warmup:
        return (step + 1) / warmup
    return 1.0 - 0.9 * (step - warmup) / max(1, total - warmup)
