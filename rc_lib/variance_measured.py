"""What Propositions 4.2 and 4.3 speak of, measured on a policy: KL, equal rollouts, gradient parts.

A step of a trajectory is one assistant message with the id that ends it. The reference policy is a
point mass on the reference message, so its KL to the policy is -log pi(message | what came before).
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from safetensors import safe_open
from torch.func import functional_call, grad, vmap

from rc_lib import paths
from rc_lib.checkpoint import CHECKPOINT
from rc_lib.conditioning import Conditioning
from rc_lib.config import Profile
from rc_lib.envs.base import Environment
from rc_lib.loss import token_logprobs
from rc_lib.manifest import manifest, write_json
from rc_lib.policy import Policy
from rc_lib.rollout import Request, Rollout, Sampling, rollout
from rc_lib.seeding import stable_id
from rc_lib.sft import Trajectory
from rc_lib.tasks.base import Task
from rc_lib.transcript import Transcript, collate
from rc_lib.update import micro_batches
from rc_lib.variance_signal import SCALES, advantage_parts

TEMPERATURES = (0.5, 0.8, 1.0, 1.2, 1.4)  # of the SFT policy, the other source of variance


def trained_policy(root: Path, seed: int, arm: str) -> Policy:
    """Load a policy of a run as its last training stage left it.

    Args:
        root: root folder of the run.
        seed: run seed.
        arm: ``sft`` or ``rctp``, or an RL arm, whose weights lie in its last checkpoint.

    Raises:
        FileNotFoundError: if it has not been trained, naming the notebook that does it.
    """
    start = arm.split("_")[0]
    folder, last = (paths.checkpoint_dir(root, seed, name) for name in (start, arm))
    for needed, notebook in ((folder / "config.json", 10), (last, 10 if arm == start else 11)):
        if not needed.exists():
            raise FileNotFoundError(f"{needed} is missing; run notebook {notebook} for {arm} first")
    policy = Policy.from_pretrained(folder)
    if arm != start:
        with safe_open(last / CHECKPOINT, "pt") as file:
            for name, weight in policy.model.named_parameters():
                weight.data.copy_(file.get_tensor(f"weight/{name}"))
    return policy


def reference_kl(
    policy: Policy, references: Sequence[Trajectory], *, max_tokens: int = 4096
) -> list[np.ndarray]:
    """Return KL(reference || policy) of every step along the reference trajectories, in nats.

    Source: RC-GRPO (arXiv 2602.03025), Prop. 4.2; eps_sft is the largest of them.

    Args:
        policy: evaluated at temperature 1.
        references: trajectories of `rc_lib.sft.expert`, with the token to condition on.
        max_tokens: padded tokens computed at once.

    Returns:
        For each trajectory float64 [T], T its assistant messages.
    """
    lengths = [len(reference.transcript) for reference in references]
    result: list[np.ndarray] = [np.empty(0)] * len(references)
    policy.model.eval()
    for rows in micro_batches(lengths, range(len(lengths)), max_tokens):
        batch = collate([references[i].transcript for i in rows], policy.pad_id)
        batch = {name: tensor.to(policy.device) for name, tensor in batch.items()}
        with torch.inference_mode():
            values = token_logprobs(policy.model, batch)[0].double().cpu()
        mask = batch["model_mask"].cpu()
        values = torch.zeros(mask.shape, dtype=torch.float64).masked_scatter(mask, values).numpy()
        for row, i in enumerate(rows):
            spans = _messages(references[i].transcript)
            result[i] = -np.array([values[row, s.start : s.end].sum() for s in spans])
    return result


def kl_table(policy_name: str, references: Sequence[Trajectory], kl: Sequence) -> pd.DataFrame:
    """Return one row a task: policy, token, task_id, category, and the KL of its steps in nats."""
    return pd.DataFrame(
        {
            "policy": policy_name,
            "token": reference.token or "none",
            "task_id": reference.task_id,
            "category": reference.category,
            "kl": " ".join(f"{step:.4g}" for step in steps),
        }
        for reference, steps in zip(references, kl, strict=True)
    )


def sample_groups(
    policy: Policy,
    tasks: Sequence[Task],
    make_env: Callable[[Task], Environment],
    conditioning: Conditioning,
    sampling: Sampling,
    *,
    group_size: int,
    seed: int,
    batch_size: int = 128,
) -> list[Rollout]:
    """Return a group of rollouts for each task; the draws are the same for every policy."""
    requests = [
        Request(make_env(task), stable_id(task.id), member, token)
        for task in tasks
        for member, token in enumerate(conditioning.tokens(seed, 0, stable_id(task.id), group_size))
    ]
    return rollout(policy, requests, sampling, seed=seed, purpose="variance", batch_size=batch_size)


def groups_table(
    labels: Mapping[str, str | float],
    rollouts: Sequence[Rollout],
    references: Sequence[Trajectory],
) -> pd.DataFrame:
    """Return one row a group: its tokens and rewards, and how alike its trajectories are.

    Args:
        labels: columns that say what was sampled.
        rollouts: groups one after another, in the order of the references.
        references: one a group; only the model's own ids count, not the prompt.

    Returns:
        The labels, ``task_id``, ``category``, ``tokens`` and ``rewards`` (separated by spaces),
        ``distinct`` trajectories, and ``as_reference``, members that are the reference id by id.
    """
    size, rows = len(rollouts) // len(references), []
    for place, reference in enumerate(references):
        members = rollouts[place * size : (place + 1) * size]
        if {member.task_id for member in members} != {reference.task_id}:
            raise ValueError(f"group {place} is not of task {reference.task_id}; sort the rollouts")
        spoken = [_spoken(member.transcript) for member in members]
        row = dict(labels) | {"task_id": reference.task_id, "category": reference.category}
        row["tokens"] = " ".join(member.token or "none" for member in members)
        row["rewards"] = " ".join(f"{member.reward:g}" for member in members)
        row["distinct"] = len(set(spoken))
        rows.append(row | {"as_reference": spoken.count(_spoken(reference.transcript))})
    return pd.DataFrame(rows)


def gradient_table(
    policy: Policy, rollouts: Sequence[Rollout], *, group_size: int, eps: float, temperature: float
) -> pd.DataFrame:
    """Measure which part of the advantages carries the policy gradient, on a batch of groups.

    The gradient of part c is the mean over groups of x = 1/G sum_j c_j S_j, S_j the score of a
    rollout: a ``sum`` over its tokens (the policy gradient) or their ``mean`` (GRPO's loss). Groups
    are independent, so the mean of x_i . x_k over pairs i != k is unbiased for the squared norm of
    the expected gradient; it may come out negative where there is none.

    For small policies: it holds about 50 numbers a weight. The policy is not changed.

    Args:
        policy: the policy that sampled the rollouts.
        rollouts: groups of `group_size` one after another, with i.i.d. tokens.
        group_size: G.
        eps: eps_stab of the scaled advantages.
        temperature: of the sampling.

    Returns:
        One row for each normalization, scale and kind of token means (`advantage_parts`) and part:
        ``norm`` of the batch's gradient, its ``cosine`` with that of the full advantage,
        ``split_half`` cosine of two halves of the groups; unbiased ``signal2`` = |E x|^2, ``inner``
        = E x . E x_full, and of one group ``noise2`` = E |x - E x|^2; and ``groups``. The parts
        ``within_high`` and ``within_low`` are ``within`` by token.
    """
    labels, coefficients = _coefficients(rollouts, group_size, eps)
    model = copy.deepcopy(policy.model).eval()
    model.set_attn_implementation("eager")  # the others have no batched derivative
    weights = sum(weight.numel() for weight in model.parameters())
    totals, own = torch.zeros(2, len(labels), weights), torch.zeros(2 * [len(labels)]).double()
    for place, c in enumerate(coefficients):  # c [parts, G]
        if not c.any():  # a group without spread
            continue
        members = rollouts[place * group_size : (place + 1) * group_size]
        transcripts = [member.transcript for member in members]
        scores = score_gradients(model, transcripts, policy.pad_id, temperature)
        c = torch.as_tensor(c / group_size, dtype=scores.dtype)
        own += c @ (scores @ scores.T) @ c.T
        totals[place % 2] += c @ scores
    halves = torch.einsum("apd,bqd->abpq", totals, totals).double().numpy()
    return _gradient_rows(labels, halves, own.numpy(), len(coefficients))


def score_gradients(
    model: torch.nn.Module, transcripts: Sequence[Transcript], pad_id: int, temperature: float
) -> torch.Tensor:
    """Return the gradient of log pi(model tokens of each transcript), float32 [B, weights]."""
    batch = {name: part.to(model.device) for name, part in collate(transcripts, pad_id).items()}
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    first = int(batch["model_mask"].any(0).nonzero()[0])
    kept = batch["input_ids"].shape[1] - first + 1

    def log_probability(weights, ids, mask):
        inputs = {"input_ids": ids[None], "use_cache": False, "logits_to_keep": kept}
        logits = functional_call(model, weights, (), inputs).logits[0, :-1] / temperature
        chosen = logits.log_softmax(-1).gather(-1, ids[first:, None])[:, 0]
        return (chosen * mask[first:]).sum()

    batched = vmap(grad(log_probability), in_dims=(None, 0, 0))
    gradients = batched(weights, batch["input_ids"], batch["model_mask"].float())
    return torch.cat([gradient.flatten(1) for gradient in gradients.values()], dim=1).cpu()


def write_measurements(
    root: Path,
    profile: Profile,
    seed: int,
    tables: Mapping[str, pd.DataFrame],
    *,
    inputs: Sequence[Path],
    started: float,
) -> Path:
    """Write the tables as CSV into the seed's folder ``variance``, manifest.json last."""
    folder = paths.record_dir(root, seed, "variance")
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        unfinished = folder / f"{name}.csv.tmp"
        table.to_csv(unfinished, index=False, lineterminator="\n", float_format="%.10g")
        os.replace(unfinished, folder / f"{name}.csv")
    parameters = {"profile": profile.name, "seed": seed}
    details = manifest(parameters, seed, inputs, started, batch_size=profile.rl.rollout_batch_size)
    write_json(details, folder / "manifest.json")
    return folder


def _messages(transcript: Transcript) -> list:
    return [span for span in transcript.spans if span.kind == "model"]


def _spoken(transcript: Transcript) -> tuple:
    return tuple(tuple(transcript.ids[s.start : s.end]) for s in _messages(transcript))


def _coefficients(rollouts, group_size: int, eps: float) -> tuple[list[tuple], np.ndarray]:
    """Return the parts' labels, and what each part multiplies a score by, [N, parts, G]."""
    shape = (-1, group_size)
    rewards = np.reshape([one.reward for one in rollouts], shape)
    is_high = np.reshape([one.token == "high" for one in rollouts], shape)
    tokens = np.reshape([one.transcript.model_tokens for one in rollouts], shape)
    table = {}
    for (normalization, divisor), scale in product({"sum": 1, "mean": tokens}.items(), SCALES):
        for means in ("group", "others"):
            parts = advantage_parts(rewards, is_high, scale=scale, eps=eps, means=means)
            table[normalization, scale, "none", "full"] = parts.pop("full") / divisor
            for name, part in parts.items():
                table[normalization, scale, means, name] = part / divisor
        within = table[normalization, scale, "others", "within"]
        table[normalization, scale, "others", "within_high"] = within * is_high
        table[normalization, scale, "others", "within_low"] = within * ~is_high
    return list(table), np.stack(list(table.values()), axis=1)


def _gradient_rows(labels, halves: np.ndarray, own: np.ndarray, groups: int) -> pd.DataFrame:
    """Make rows from inner products of sums over half the groups [2, 2, P, P] and of groups."""
    whole = halves.sum((0, 1))
    pairs = (whole - own) / (groups * (groups - 1))  # unbiased E x . E y
    rows = []
    for i, label in enumerate(labels):
        full = labels.index((*label[:2], "none", "full"))
        row = dict(zip(("normalization", "scale", "means", "part"), label, strict=True))
        row["norm"] = np.sqrt(whole[i, i]) / groups
        row["cosine"] = _ratio(whole[i, full], np.sqrt(whole[i, i] * whole[full, full]))
        lengths = np.sqrt(halves[0, 0, i, i] * halves[1, 1, i, i])
        row["split_half"] = _ratio(halves[0, 1, i, i], lengths)
        row |= {"signal2": pairs[i, i], "inner": pairs[i, full]}
        row["noise2"] = own[i, i] / groups - pairs[i, i]
        rows.append(row | {"groups": groups})
    return pd.DataFrame(rows)


def _ratio(above: float, below: float) -> float:
    return above / below if below > 0 else float("nan")
