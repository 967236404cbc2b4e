"""From a batch of rollouts and their advantages to optimizer steps of the policy."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rc_lib.config import RLConfig
from rc_lib.loss import grpo_loss, loss_normalizer, token_logprobs
from rc_lib.policy import Policy
from rc_lib.rollout import Rollout
from rc_lib.seeding import rng
from rc_lib.transcript import collate

# What `PolicyUpdate` returns.
UPDATE_COLUMNS = (
    "entropy", "kl", "clip_share", "ratio", "loss", "grad_norm", "learning_rate",
)  # fmt: skip


class PolicyUpdate:
    """AdamW on the clipped loss, with the reference policy that the KL is taken to.

    Source: RC-GRPO (arXiv 2602.03025), Tables 10-12; the learning rate rises linearly over
    ``warmup_steps`` training steps and then stays.

    Args:
        policy: trained in place, in fp32 and without dropout.
        config: hyperparameters.
        seed: run seed; decides which rollouts share an optimizer step.
        reference: pi_ref; by default a frozen copy of the policy as given, if beta > 0.

    Attributes:
        weights: the trained parameters by name.
        optimizer: AdamW over them.
        reference: the frozen model, None if beta is 0.

    Raises:
        ValueError: if a trained weight is narrower than fp32.
    """

    def __init__(
        self,
        policy: Policy,
        config: RLConfig,
        *,
        seed: int,
        reference: torch.nn.Module | None = None,
    ):
        self.policy, self.config, self.seed = policy, config, seed
        self.weights = {n: p for n, p in policy.model.named_parameters() if p.requires_grad}
        for name, weight in self.weights.items():
            if weight.dtype in (torch.float16, torch.bfloat16):
                raise ValueError(
                    f"weight {name} is {weight.dtype}: small updates would be rounded away; "
                    "load the policy in float32"
                )
        self.reference = None
        if config.beta > 0.0:
            self.reference = copy.deepcopy(policy.model) if reference is None else reference
            self.reference.eval().requires_grad_(False)
        self.optimizer = torch.optim.AdamW(
            self.weights.values(), lr=config.learning_rate, weight_decay=config.weight_decay
        )

    def __call__(
        self, step: int, rollouts: Sequence[Rollout], advantages: np.ndarray
    ) -> dict[str, float]:
        """Take ``minibatches`` optimizer steps; every rollout is in one of them.

        Args:
            step: training step; decides the learning rate and which rollouts go together.
            rollouts: N rollouts.
            advantages: float64 [N].

        Returns:
            Means over the model tokens, before the step that they are used in: ``entropy`` (nats),
            ``kl`` (k3, nan without a reference), ``clip_share``, ``ratio``; means over the
            optimizer steps: ``loss``, ``grad_norm`` before clipping; and ``learning_rate``.

        Raises:
            FloatingPointError: if a loss or a gradient norm is not finite; the weights are then as
                before that optimizer step.
        """
        config = self.config
        rate = config.learning_rate * min(1.0, (step + 1) / max(1, config.warmup_steps))
        self.optimizer.param_groups[0]["lr"] = rate
        self.policy.model.eval()  # no dropout: the policy that sampled is the one that is trained
        per_update = sum(r.transcript.model_tokens for r in rollouts) / config.minibatches
        order = rng(self.seed, "minibatches", step).permutation(len(rollouts))
        sums, norms = [], []
        for rows in np.array_split(order, config.minibatches):
            chosen = [rollouts[i] for i in rows]
            self.optimizer.zero_grad(set_to_none=True)
            sums += self.add_gradient(step, chosen, advantages[rows], per_update)
            norm = torch.nn.utils.clip_grad_norm_(self.weights.values(), config.max_grad_norm)
            norms.append(_finite(step, "gradient norm", norm.item()))
            self.optimizer.step()
        total = {name: sum(part[name] for part in sums) for name in sums[0]}
        tokens = max(1, total["tokens"])
        return {
            "entropy": total["entropy"] / tokens,
            "kl": total["kl"] / tokens if self.reference is not None else math.nan,
            "clip_share": total["clipped"] / tokens,
            "ratio": total["ratio"] / tokens,
            "loss": total["loss"] / config.minibatches,
            "grad_norm": float(np.mean(norms)),
            "learning_rate": rate,
        }

    def add_gradient(
        self,
        step: int,
        rollouts: Sequence[Rollout],
        advantages: np.ndarray,
        tokens_per_update: float,
    ) -> list[dict[str, float]]:
        """Add the gradient of one optimizer step to the weights, micro-batch by micro-batch.

        The gradient does not depend on how the rollouts are cut (huggingface/trl#5619). The
        reference sees every rollout once; log pi_old is the one recorded at sampling.

        Returns:
            For each micro-batch the sums of `grpo_loss`, its ``loss``, and the sum ``entropy``.
        """
        config, sums = self.config, []
        normalizer = loss_normalizer(
            config.loss_type,
            [r.transcript.model_tokens for r in rollouts],
            tokens_per_update=tokens_per_update,
            max_length=config.max_length,
        )
        lengths, group_ids = zip(*((len(r.transcript), r.group_id) for r in rollouts), strict=True)
        for rows in micro_batches(lengths, group_ids, config.micro_batch_tokens):
            batch = collate([rollouts[i].transcript for i in rows], self.policy.pad_id)
            batch = {name: tensor.to(self.policy.device) for name, tensor in batch.items()}
            logprobs, entropy = self._logprobs(self.policy.model, batch)
            total_entropy = float(entropy.detach().sum())
            reference = None
            if self.reference is not None:
                with torch.no_grad():
                    reference, _ = self._logprobs(self.reference, batch)
            bonus = {}
            if config.entropy_bonus:
                entropy = _rectangle(entropy, batch["model_mask"])
                bonus = {"entropy": entropy, "entropy_bonus": config.entropy_bonus}
            loss, part = grpo_loss(
                logprobs,
                batch["old_logprobs"],
                reference,
                torch.as_tensor(advantages[rows], device=logprobs.device),
                batch["model_mask"],
                clip_ratio=config.clip_ratio,
                beta=config.beta,
                loss_type=config.loss_type,
                normalizer=normalizer,
                **bonus,
            )
            value = _finite(step, "loss", loss.item())
            loss.backward()
            sums.append(part | {"loss": value, "entropy": total_entropy})
        return sums

    def _logprobs(self, model, batch) -> tuple[Tensor, Tensor]:
        values, entropy = token_logprobs(
            model,
            batch,
            temperature=self.config.temperature,
            entropy_gradient=self.config.entropy_bonus > 0.0,
        )
        return _rectangle(values, batch["model_mask"]), entropy


def _rectangle(values: Tensor, mask: Tensor) -> Tensor:
    """Put the values [M] of the model's tokens to their places [B, T], 0 elsewhere."""
    return values.new_zeros(mask.shape).masked_scatter(mask, values)


def micro_batches(
    lengths: Sequence[int], group_ids: Sequence[int], max_tokens: int
) -> list[np.ndarray]:
    """Cut rows into rectangles of at most `max_tokens` tokens with padding.

    Groups are sorted by their longest row, and stay together as they share their prompt.

    Args:
        lengths: [N] tokens of each row, >= 1.
        group_ids: [N] group of each row.
        max_tokens: padded tokens of a rectangle; a row longer than that stands alone.

    Returns:
        Arrays of row numbers; each row is in one of them.

    >>> [rows.tolist() for rows in micro_batches([5, 9, 4, 8], [0, 1, 1, 0], 18)]
    [[1, 2], [3, 0]]
    """
    lengths, group_ids = np.asarray(lengths), np.asarray(group_ids)
    _, group = np.unique(group_ids, return_inverse=True)
    longest = np.zeros(group.max() + 1, dtype=lengths.dtype)
    np.maximum.at(longest, group, lengths)
    order = np.lexsort((-lengths, group, -longest[group]))
    batches, start = [], 0
    while start < len(order):
        widths = np.maximum.accumulate(lengths[order[start:]])
        fits = widths * np.arange(1, len(widths) + 1) <= max_tokens
        rows = max(1, int(fits.sum()))
        batches.append(order[start : start + rows])
        start += rows
    return batches


def _finite(step: int, name: str, value: float) -> float:
    if not math.isfinite(value):
        raise FloatingPointError(
            f"step {step}: the {name} is {value}; lower learning_rate or max_grad_norm, or raise "
            "warmup_steps, and start again in another output_dir"
        )
    return value
