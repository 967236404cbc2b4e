"""Log-probabilities of the model's own tokens, and the clipped group-relative loss over them.

Position t of a rectangle [B, T] holds what belongs to ``input_ids[:, t]``; the logits behind
position t - 1 predict it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import DynamicCache

LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo")
MAX_LOG_RATIO = 20.0  # e^20 = 5e8: far beyond any clip range, and its square is finite in fp32
MAX_LOGITS = 2**24  # logits held at once, 64 MiB in fp32
# Transformations of the logits that some architectures apply behind the output layer.
_LOGIT_OPTIONS = {"final_logit_softcapping": None, "logit_scale": 1.0, "logits_scaling": 1.0}


def token_logprobs(
    model: nn.Module,
    batch: Mapping[str, Tensor],
    *,
    temperature: float = 1.0,
    chunk: int | None = None,
    entropy_gradient: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return log pi(token | before) and the entropy at the model's own tokens only.

    The output layer runs at those positions alone, `chunk` at a time; with more than one chunk the
    logits are computed again in the backward pass instead of kept (huggingface/trl#4585, #3678).

    Args:
        model: causal language model of transformers.
        batch: ``input_ids`` int64 [B, T], padded on the right, and ``model_mask`` bool [B, T], as
            `rc_lib.transcript.collate` gives them. The padding id may be any id.
        temperature: > 0; the logits are divided by it, as they were at sampling.
        chunk: positions whose logits are held at once; None chooses as many as make 64 MiB.
        entropy_gradient: give the entropies a gradient too, at the cost of a second [M, V].

    Returns:
        Log-probabilities [M] with gradient and entropies [M] in nats, of the distribution at that
        temperature, in the order of ``batch["model_mask"].nonzero()``.

    Raises:
        ValueError: for a temperature or chunk that is not positive, a model token at position 0
            (nothing predicts it), or an architecture that transforms its logits.

    >>> from transformers import Qwen2Config, Qwen2ForCausalLM
    >>> model = Qwen2ForCausalLM(Qwen2Config(vocab_size=9, hidden_size=8, intermediate_size=8,
    ...     num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1))
    >>> ids = torch.tensor([[1, 2, 3, 4]])
    >>> logprobs, entropy = token_logprobs(model, {"input_ids": ids, "model_mask": ids > 2})
    >>> logprobs.shape, bool((entropy > 0).all())
    (torch.Size([2]), True)
    """
    if not temperature > 0.0:
        raise ValueError(f"temperature is {temperature}; use the one of the sampling, > 0")
    mask = batch["model_mask"]
    if mask[:, 0].any():
        row = int(mask[:, 0].nonzero()[0])
        raise ValueError(f"row {row} starts with a model token; nothing predicts it, add a prompt")
    causal = model.get_base_model() if hasattr(model, "get_base_model") else model  # under LoRA
    for name, neutral in _LOGIT_OPTIONS.items():
        if getattr(causal.config, name, neutral) not in (neutral, None):
            raise ValueError(f"{type(causal).__name__} applies {name} to its logits: not supported")
    hidden = _predicting_states(causal.base_model, batch["input_ids"], mask)
    targets = batch["input_ids"][mask]
    head = causal.get_output_embeddings()
    if chunk is None:
        chunk = max(1, MAX_LOGITS // causal.config.vocab_size)
    if chunk < 1:
        raise ValueError(f"chunk is {chunk}; use a number of positions >= 1, or None")

    def score(part: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        return _select(head(part), target, temperature, entropy_gradient)

    if len(targets) <= chunk:
        return score(hidden, targets)
    pieces = [
        checkpoint(score, part, target, use_reentrant=False)
        for part, target in zip(hidden.split(chunk), targets.split(chunk), strict=True)
    ]
    logprobs, entropy = zip(*pieces, strict=True)
    return torch.cat(logprobs), torch.cat(entropy)


def _predicting_states(backbone: nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
    """Return the last hidden states [M, hidden] that predict the masked ids.

    Padding stands behind every real token, where causal attention cannot look: no mask is needed.
    What rows share at their beginning is computed once, with gradient.
    """
    length, first, row = shared_prefix(ids.cpu().numpy(), mask.cpu().numpy())
    if not length:
        hidden = backbone(input_ids=ids, use_cache=False).last_hidden_state
        return hidden[:, :-1][mask[:, 1:]]
    cache = DynamicCache()
    first, row = torch.as_tensor(first, device=ids.device), torch.as_tensor(row, device=ids.device)
    backbone(input_ids=ids[first, :length], cache=cache, use_cache=True)
    cache.batch_select_indices(row)
    hidden = backbone(input_ids=ids[:, length:], cache=cache, use_cache=True).last_hidden_state
    return hidden[:, :-1][mask[:, length + 1 :]]


def shared_prefix(ids: np.ndarray, mask: np.ndarray) -> tuple[int, np.ndarray, np.ndarray]:
    """Choose the length of a beginning that is computed once for all rows that share it.

    Args:
        ids: int64 [B, T].
        mask: bool [B, T], True on the model's own tokens, which are never part of it.

    Returns:
        The length, 0 if sharing saves less than a tenth; the rows [U] to compute it for; and for
        each row [B] which of those it shares.

    >>> ids = np.array([[7, 8, 9, 1, 1], [5, 5, 9, 1, 1], [7, 8, 8, 1, 1]])
    >>> length, first, row = shared_prefix(ids, np.arange(5)[None] >= [[3]] * 3)
    >>> length, first.tolist(), row.tolist()
    (2, [1, 0], [1, 0, 1])
    """
    rows, width = ids.shape
    limit = int(np.where(mask.any(1), mask.argmax(1), width).min()) - 1
    order = np.lexsort(ids[:, :limit].T[::-1]) if limit > 0 else np.arange(rows)
    same = ids[order][1:, :limit] == ids[order][:-1, :limit]
    common = np.cumprod(same, axis=1).sum(1)  # with the row before, in sorted order
    lengths = np.arange(limit + 1)
    distinct = 1 + (common[None] < lengths[:, None]).sum(1)
    cost = distinct * lengths + rows * (width - lengths)
    length = int(cost.argmin())
    if cost[length] > 0.9 * rows * width:
        return 0, order, order
    starts = np.concatenate([[True], common < length])
    row = np.empty(rows, dtype=np.int64)
    row[order] = np.cumsum(starts) - 1
    return length, order[starts], row


def _select(
    logits: Tensor, targets: Tensor, temperature: float, entropy_gradient: bool
) -> tuple[Tensor, Tensor]:
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    logprobs = (logits / temperature).log_softmax(-1)
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        entropy = -(logprobs.exp() * logprobs).sum(-1)
    return logprobs.gather(-1, targets[:, None])[:, 0], entropy


def loss_normalizer(
    loss_type: str,
    model_tokens: Sequence[int],
    *,
    tokens_per_update: float,
    max_length: int,
) -> float:
    """Return what the sum in `grpo_loss` is divided by, for one optimizer step.

    Source: TRL's ``loss_type``. ``"grpo"``: a mean over each rollout's tokens, then over rollouts;
    ``"bnpo"``: a mean over the tokens of the optimizer step; ``"dapo"``: the same, with the mean
    number of tokens of an optimizer step of this batch; ``"dr_grpo"``: a sum over the tokens,
    divided by a constant.

    Args:
        loss_type: one of `LOSS_TYPES`.
        model_tokens: [B] number of model tokens of each rollout of the optimizer step.
        tokens_per_update: model tokens of the whole batch of rollouts / its optimizer steps.
        max_length: longest transcript, the constant of ``"dr_grpo"``.

    Deviation: TRL's ``"bnpo"`` divides by the tokens of a micro-batch, which makes the gradient
    depend on the micro-batch (huggingface/trl#5619); here it is the optimizer step.

    Raises:
        ValueError: for an unknown loss type.

    >>> loss_normalizer("bnpo", [3, 5], tokens_per_update=8, max_length=64)
    8.0
    """
    normalizers = {
        "grpo": len(model_tokens),
        "bnpo": max(1, sum(model_tokens)),
        "dapo": max(1.0, tokens_per_update),
        "dr_grpo": len(model_tokens) * max_length,
    }
    if loss_type not in normalizers:
        raise ValueError(f"unknown loss type {loss_type!r}; use one of {LOSS_TYPES}")
    return float(normalizers[loss_type])


def grpo_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    ref_logprobs: Tensor | None,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_ratio: float,
    beta: float,
    loss_type: str,
    normalizer: float,
    entropy: Tensor | None = None,
    entropy_bonus: float = 0.0,
) -> tuple[Tensor, dict[str, float]]:
    """Return this micro-batch's share of the loss of one optimizer step.

    Source: RC-GRPO (arXiv 2602.03025), GRPO objective with beta 0.1 and clip ratio 0.2::

        ratio_t = pi(a_t) / pi_old(a_t)
        kl_t    = pi_ref(a_t) / pi(a_t) - log(pi_ref(a_t) / pi(a_t)) - 1            (k3)
        loss_t  = -min(ratio_t A, clip(ratio_t, 1 - c, 1 + c) A) + beta kl_t - b H_t

    The shares of the micro-batches of an optimizer step add up to the loss over all its rows, so
    the gradient does not depend on how the rows are cut.

    Args:
        logprobs, old_logprobs, ref_logprobs: float [B, T]; what stands outside the mask is not
            read and may be nan. `ref_logprobs` is None where beta is 0.
        advantages: float [B], one a rollout.
        mask: bool [B, T], True on the model's own tokens; the one mask of numerator and denominator
            (huggingface/trl#6369).
        clip_ratio: c, > 0.
        beta: weight of the KL to the reference, >= 0.
        loss_type: one of `LOSS_TYPES`.
        normalizer: `loss_normalizer` of the optimizer step.
        entropy: float [B, T], H_t in nats with gradient; None where `entropy_bonus` is 0.
        entropy_bonus: b, >= 0. PPO's (arXiv 1707.06347, Eq. 9), averaged as the other terms are;
            0 in RC-GRPO.

    Deviation: log-ratios are clamped to 20 before exp, so that loss and gradient are finite at any
    log-ratio (OpenRLHF/OpenRLHF#1335, huggingface/trl#3015); the paper and TRL do not clamp.

    The KL is GRPO's; TRL 1.16 multiplies it by the ratio unless ``use_bias_correction_kl=False``.

    Returns:
        Scalar loss, 0 if nothing is masked in; and sums over the model tokens: ``tokens``, ``kl``,
        ``clipped`` (tokens whose gradient the clip cut off), ``ratio``.

    Raises:
        ValueError: for an unknown loss type, or a reference that is missing or not wanted.

    >>> zero, mask = torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bool)
    >>> loss, sums = grpo_loss(zero, zero, None, torch.tensor([1.0, 0.0]), mask, clip_ratio=0.2,
    ...                        beta=0.0, loss_type="grpo", normalizer=2)
    >>> loss.item(), sums["tokens"]
    (-0.5, 6)
    """
    if loss_type not in LOSS_TYPES:
        raise ValueError(f"unknown loss type {loss_type!r}; use one of {LOSS_TYPES}")
    if (ref_logprobs is None) != (beta == 0.0):
        state = "missing" if ref_logprobs is None else "given"
        raise ValueError(f"beta is {beta} but ref_logprobs are {state}; give them where beta > 0")
    if (entropy is None) != (entropy_bonus == 0.0):
        state = "missing" if entropy is None else "given"
        raise ValueError(f"entropy_bonus is {entropy_bonus} but entropy is {state}")
    advantages = advantages[:, None].to(logprobs.dtype)
    ratio = _log_ratio(logprobs, old_logprobs, mask).exp()
    clipped = ratio.clamp(1.0 - clip_ratio, 1.0 + clip_ratio)
    per_token = -torch.minimum(ratio * advantages, clipped * advantages)
    kl = torch.zeros_like(ratio)
    if ref_logprobs is not None:
        log_ratio = _log_ratio(ref_logprobs, logprobs, mask)
        kl = log_ratio.exp() - log_ratio - 1.0
        per_token = per_token + beta * kl
    if entropy is not None:
        per_token = per_token - entropy_bonus * entropy
    per_row = per_token.masked_fill(~mask, 0.0).sum(-1)
    if loss_type == "grpo":
        per_row = per_row / mask.sum(-1).clamp(min=1)
    cut_off = ((ratio < 1.0 - clip_ratio) & (advantages < 0.0)) | (
        (ratio > 1.0 + clip_ratio) & (advantages > 0.0)
    )
    sums = {
        "tokens": int(mask.sum()),
        "kl": float(kl.detach()[mask].sum()),
        "clipped": int(cut_off[mask].sum()),
        "ratio": float(ratio.detach()[mask].sum()),
    }
    return per_row.sum() / normalizer, sums


def _log_ratio(above: Tensor, below: Tensor, mask: Tensor) -> Tensor:
    """Clamped log(above / below), 0 outside the mask whatever stands there."""
    above, below = above.masked_fill(~mask, 0.0), below.masked_fill(~mask, 0.0)
    return (above - below).clamp(max=MAX_LOG_RATIO)
