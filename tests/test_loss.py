"""Token log-probabilities and the clipped loss: naive loops, finite differences, TRL itself."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from rc_lib.loss import LOSS_TYPES, grpo_loss, loss_normalizer, shared_prefix, token_logprobs

GOLDEN = Path(__file__).parent / "golden" / "trl_grpo.npz"


def tiny_model(vocab_size=17, **options):
    torch.manual_seed(0)
    config = dict(
        vocab_size=vocab_size,
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        initializer_range=0.4,
    )
    return Qwen2ForCausalLM(Qwen2Config(**config | options)).eval()


def make_batch(rows=4, width=9, vocab_size=17, seed=0):
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(rows, width, generator=generator) < 0.5
    mask[:, 0] = False
    ids = torch.randint(vocab_size, (rows, width), generator=generator)
    return {"input_ids": ids, "model_mask": mask}


def make_terms(dtype=torch.float64, rows=4, width=7, spread=0.3, seed=1):
    """Log-probabilities, old and reference ones, advantages and a mask with an empty row."""
    draws = np.random.default_rng(seed)
    logprobs = -draws.exponential(1.0, (rows, width))
    old, ref = logprobs + draws.normal(0, spread, (2, rows, width))
    mask = draws.random((rows, width)) < 0.6
    mask[-1] = False
    to = lambda x: torch.tensor(x, dtype=dtype)  # noqa: E731
    return to(logprobs), to(old), to(ref), to(draws.normal(size=rows)), torch.tensor(mask)


def total_loss(terms, loss_type, beta=0.1, clip=0.2, max_length=7):
    mask = terms[4]
    normalizer = loss_normalizer(
        loss_type, mask.sum(-1).tolist(), tokens_per_update=13.0, max_length=max_length
    )
    options = dict(clip_ratio=clip, beta=beta, loss_type=loss_type, normalizer=normalizer)
    return grpo_loss(*terms, **options)


def naive_loss(terms, loss_type, beta=0.1, clip=0.2, max_length=7):
    """The formulas of TRL's loss types, token by token in Python floats."""
    logprobs, old, ref, advantages, mask = (x.tolist() for x in terms)
    rows = []
    for i, row in enumerate(mask):
        rows.append([])
        for t in range(len(row)):
            if row[t]:
                ratio, d = math.exp(logprobs[i][t] - old[i][t]), ref[i][t] - logprobs[i][t]
                cut = min(max(ratio, 1 - clip), 1 + clip)
                policy = -min(ratio * advantages[i], cut * advantages[i])
                rows[-1].append(policy + beta * (math.exp(d) - d - 1))
    if loss_type == "grpo":
        return sum(sum(row) / max(1, len(row)) for row in rows) / len(rows)
    tokens = sum(len(row) for row in rows)
    divisor = {"bnpo": tokens, "dapo": 13.0, "dr_grpo": len(rows) * max_length}[loss_type]
    return sum(map(sum, rows)) / divisor


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_loss_matches_a_naive_loop(loss_type):
    terms = make_terms()
    loss, sums = total_loss(terms, loss_type)
    assert loss.item() == pytest.approx(naive_loss(terms, loss_type), rel=1e-12)
    assert 0 < sums["clipped"] < sums["tokens"] == int(terms[4].sum())


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_loss_gradient_matches_finite_differences(loss_type):
    terms = make_terms()
    logprobs = terms[0].clone().requires_grad_()
    total_loss((logprobs, *terms[1:]), loss_type)[0].backward()
    step, numeric = 1e-6, torch.zeros_like(terms[0])
    for place in np.ndindex(*logprobs.shape):
        for sign in (1, -1):
            moved = terms[0].clone()
            moved[place] += sign * step
            numeric[place] += sign * total_loss((moved, *terms[1:]), loss_type)[0] / (2 * step)
    torch.testing.assert_close(logprobs.grad, numeric, atol=1e-8, rtol=1e-6)


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_the_entropy_bonus_is_averaged_as_the_loss_is(loss_type):
    """A term -b H_t in the naive loop: its weight is that of any other term of token t."""
    terms = make_terms()
    mask = terms[4]
    entropy = torch.rand(mask.shape, dtype=torch.float64)
    normalizer = loss_normalizer(
        loss_type, mask.sum(-1).tolist(), tokens_per_update=13.0, max_length=7
    )
    options = dict(clip_ratio=0.2, beta=0.1, loss_type=loss_type, normalizer=normalizer)
    plain, _ = grpo_loss(*terms, **options)
    with_bonus, _ = grpo_loss(*terms, **options, entropy=entropy, entropy_bonus=0.3)
    weight = mask.double()
    if loss_type == "grpo":
        weight = weight / weight.sum(-1, keepdim=True).clamp(min=1)
    expected = plain - 0.3 * (weight * entropy).sum() / normalizer
    assert with_bonus.item() == pytest.approx(expected.item(), rel=1e-12)


@pytest.mark.parametrize("chunk", [None, 3])
def test_the_entropy_gradient_matches_finite_differences(chunk):
    model, batch = tiny_model().double(), make_batch()
    mask = batch["model_mask"]
    zero = torch.zeros(mask.shape, dtype=torch.float64)

    def loss(entropy_gradient):
        logprobs, entropy = token_logprobs(
            model, batch, temperature=0.8, chunk=chunk, entropy_gradient=entropy_gradient
        )
        logprobs, entropy = (zero.masked_scatter(mask, x) for x in (logprobs, entropy))
        options = dict(clip_ratio=0.2, beta=0.0, loss_type="bnpo", normalizer=5.0)
        advantages = torch.tensor([1.0, -1.0, 0.5, -0.2], dtype=torch.float64)
        terms = (logprobs, logprobs.detach(), None, advantages, mask)
        return grpo_loss(*terms, **options, entropy=entropy, entropy_bonus=0.7)[0]

    gradients = []
    for entropy_gradient in (True, False):
        model.zero_grad()
        loss(entropy_gradient).backward()
        gradients.append(model.lm_head.weight.grad.clone().view(-1))
    bonus = gradients[0] - gradients[1]
    flat = model.lm_head.weight.data.view(-1)
    for index in bonus.abs().topk(3).indices.tolist():
        values, kept = [], flat[index].item()
        for moved in (kept + 1e-6, kept - 1e-6):
            flat[index] = moved
            with torch.no_grad():
                values.append(token_logprobs(model, batch, temperature=0.8)[1].sum().item())
        flat[index] = kept
        numeric = -0.7 * (values[0] - values[1]) / 2e-6 / 5.0
        assert bonus[index].item() == pytest.approx(numeric, rel=1e-5)


def test_loss_of_a_whole_model_matches_finite_differences():
    model, batch = tiny_model().double(), make_batch()
    mask = batch["model_mask"]
    old = token_logprobs(model, batch)[0].detach()
    noise = torch.from_numpy(np.random.default_rng(0).normal(0, 0.2, (2, len(old))))
    place = torch.zeros(mask.shape, dtype=torch.float64)
    rectangle = [place.masked_scatter(mask, old + n) for n in noise]
    advantages = torch.tensor([1.0, -1.0, 0.5, -0.2], dtype=torch.float64)

    def loss():
        logprobs = place.masked_scatter(mask, token_logprobs(model, batch, temperature=0.8)[0])
        return total_loss((logprobs, *rectangle, advantages, mask), "grpo")[0]

    loss().backward()
    # Layers below the last norm are left out: transformers computes norms in fp32.
    for weight in (model.lm_head.weight, model.model.norm.weight):
        index = int(weight.grad.abs().argmax())
        flat, values = weight.data.view(-1), []
        kept = flat[index].item()
        for moved in (kept + 1e-6, kept - 1e-6):
            flat[index] = moved
            values.append(loss().item())
        flat[index] = kept
        numeric = (values[0] - values[1]) / 2e-6
        assert weight.grad.view(-1)[index].item() == pytest.approx(numeric, rel=1e-5)


def test_loss_and_gradient_equal_those_of_trl():
    """Golden values of TRL 1.16.0's GRPOTrainer; golden/make_trl_golden.py wrote them."""
    golden = {name: torch.from_numpy(value) for name, value in np.load(GOLDEN).items()}
    constant = {n.split("/")[1]: v.item() for n, v in golden.items() if n.startswith("constant/")}
    config = {n.split("/")[1]: v.item() for n, v in golden.items() if n.startswith("config/")}
    model = Qwen2ForCausalLM(Qwen2Config(**config)).eval()
    start = {n[7:]: v for n, v in golden.items() if n.startswith("weight/")}
    assert model.load_state_dict(start, strict=False).missing_keys == ["lm_head.weight"]
    model.tie_weights()
    batch, terms = golden_batch(golden)
    mask = batch["model_mask"]
    for loss_type in LOSS_TYPES:
        model.zero_grad()
        values, entropy = token_logprobs(model, batch, temperature=constant["temperature"])
        trl_mask = golden["input/completion_mask"] * golden["input/tool_mask"] > 0
        torch.testing.assert_close(values, golden["logps"][trl_mask], atol=2e-6, rtol=1e-6)
        torch.testing.assert_close(entropy, golden["entropy"][trl_mask], atol=2e-6, rtol=1e-6)
        normalizer = loss_normalizer(
            loss_type,
            mask.sum(-1).tolist(),
            tokens_per_update=golden["input/num_items_in_batch"].item() / 2,
            max_length=constant["max_completion"],
        )
        loss, sums = grpo_loss(
            torch.zeros(mask.shape).masked_scatter(mask, values),
            *terms,
            mask,
            clip_ratio=constant["clip"],
            beta=constant["beta"],
            loss_type=loss_type,
            normalizer=normalizer,
        )
        loss.backward()
        torch.testing.assert_close(loss, golden[f"{loss_type}/loss"], atol=1e-6, rtol=1e-5)
        assert sums["kl"] / sums["tokens"] == pytest.approx(golden[f"{loss_type}/kl"].item(), 1e-4)
        clip_share = sums["clipped"] / sums["tokens"]
        assert clip_share == pytest.approx(golden[f"{loss_type}/clip"].item())
        assert clip_share > 0
        for name, weight in model.named_parameters():
            expected = golden[f"{loss_type}/gradient/{name}"]
            torch.testing.assert_close(weight.grad, expected, atol=2e-6, rtol=1e-4)


def golden_batch(golden):
    """Move TRL's left-padded prompts and completions into right-padded transcripts."""
    part = {name[6:]: value for name, value in golden.items() if name.startswith("input/")}
    width = part["prompt_ids"].shape[1] + part["completion_ids"].shape[1]
    rows = len(part["prompt_ids"])
    ids, mask = torch.zeros(2, rows, width, dtype=torch.long)
    old, ref = torch.full((2, rows, width), float("nan"))
    for row in range(rows):
        prompt = part["prompt_ids"][row][part["prompt_mask"][row] > 0]
        real = part["completion_mask"][row] > 0
        ends = (len(prompt), len(prompt) + int(real.sum()))
        ids[row, : ends[0]] = prompt
        for rectangle, name in ((ids, "completion_ids"), (mask, "tool_mask")):
            rectangle[row, ends[0] : ends[1]] = part[name][row][real]
        for rectangle, name in ((old, "old_per_token_logps"), (ref, "ref_per_token_logps")):
            rectangle[row, ends[0] : ends[1]] = part[name][row][real]
    return {"input_ids": ids, "model_mask": mask > 0}, (old, ref, part["advantages"])


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_micro_batches_add_up_to_the_whole_batch(loss_type):
    """trl#5619: neither loss nor gradient depends on how the rows are cut."""
    terms = make_terms(rows=6)
    whole = terms[0].clone().requires_grad_()
    loss, sums = total_loss((whole, *terms[1:]), loss_type)
    loss.backward()
    normalizer = loss_normalizer(
        loss_type, terms[4].sum(-1).tolist(), tokens_per_update=13.0, max_length=7
    )
    cut, total, kl = terms[0].clone().requires_grad_(), 0.0, 0.0
    for rows in ([0], [1, 2, 3], [4, 5]):
        part, part_sums = grpo_loss(
            cut[rows],
            *(x[rows] for x in terms[1:]),
            clip_ratio=0.2,
            beta=0.1,
            loss_type=loss_type,
            normalizer=normalizer,
        )
        part.backward()
        total, kl = total + part.item(), kl + part_sums["kl"]
    assert total == pytest.approx(loss.item(), rel=1e-12)
    assert kl == pytest.approx(sums["kl"], rel=1e-12)
    torch.testing.assert_close(cut.grad, whole.grad, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("log_ratio", [-1e4, -800.0, -100.0, -19.9, 0.0, 19.9, 100.0, 800.0, 1e4])
@pytest.mark.parametrize("advantage", [-1.0, 0.0, 1.0])
def test_loss_and_gradient_are_finite_at_any_log_ratio(log_ratio, advantage):
    """OpenRLHF PR#1335, trl#3015: clamped before exp, in fp32, for the ratio and for the KL."""
    logprobs = torch.full((1, 3), -1.0, requires_grad=True)
    other = torch.full((1, 3), -1.0 + log_ratio)
    mask = torch.ones(1, 3, dtype=torch.bool)
    for old, ref in ((other, logprobs.detach()), (logprobs.detach(), other)):
        terms = (logprobs, old, ref, torch.tensor([advantage]), mask)
        loss, sums = total_loss(terms, "grpo")
        (gradient,) = torch.autograd.grad(loss, logprobs)
        assert loss.isfinite()
        assert gradient.isfinite().all()
        assert math.isfinite(sums["kl"])
        assert math.isfinite(sums["ratio"])


def test_kl_pulls_back_a_policy_that_is_far_above_its_reference():
    logprobs = torch.full((1, 1), -0.1, requires_grad=True)
    mask = torch.ones(1, 1, dtype=torch.bool)
    terms = (logprobs, logprobs.detach(), torch.full((1, 1), -500.0), torch.zeros(1), mask)
    total_loss(terms, "grpo", beta=0.5)[0].backward()
    assert logprobs.grad.item() == pytest.approx(0.5)


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_all_masked_is_zero_and_not_nan(loss_type):
    """trl#6369: one mask in numerator and denominator."""
    logprobs, old, ref, advantages, mask = make_terms()
    logprobs.requires_grad_()
    nothing = torch.zeros_like(mask)
    normalizer = loss_normalizer(loss_type, [0] * 4, tokens_per_update=0.0, max_length=7)
    loss, sums = grpo_loss(
        logprobs,
        old,
        ref,
        advantages,
        nothing,
        clip_ratio=0.2,
        beta=0.1,
        loss_type=loss_type,
        normalizer=normalizer,
    )
    loss.backward()
    assert loss.item() == 0.0
    assert (logprobs.grad == 0.0).all()
    assert set(sums.values()) == {0}


def test_what_stands_outside_the_mask_is_not_read():
    """RAGEN#71, verl#7278: values on observations change neither loss nor gradient."""
    terms = make_terms()
    results = []
    for filler in (0.0, 123.0, float("nan"), float("inf")):
        filled = [x.masked_fill(~terms[4], filler) for x in terms[:3]]
        logprobs = filled[0].requires_grad_()
        loss, _ = total_loss((logprobs, *filled[1:], *terms[3:]), "grpo")
        loss.backward()
        results.append((loss.item(), logprobs.grad))
    for loss, gradient in results[1:]:
        assert loss == results[0][0]
        torch.testing.assert_close(gradient, results[0][1], rtol=0, atol=0)


def test_zero_advantages_without_kl_give_exactly_no_gradient():
    """RC-GRPO Prop. 4.2: a group without spread has no policy-gradient term."""
    logprobs, old, _, advantages, mask = make_terms()
    logprobs.requires_grad_()
    loss, _ = total_loss((logprobs, old, None, 0 * advantages, mask), "grpo", beta=0.0)
    loss.backward()
    assert (logprobs.grad == 0.0).all()


def test_arguments_that_do_not_fit_are_errors():
    terms = make_terms()
    with pytest.raises(ValueError, match="unknown loss type 'ppo'"):
        total_loss(terms, "ppo")
    with pytest.raises(ValueError, match="beta is 0.1 but ref_logprobs are missing"):
        total_loss((*terms[:2], None, *terms[3:]), "grpo")
    with pytest.raises(ValueError, match="beta is 0.0 but ref_logprobs are given"):
        total_loss(terms, "grpo", beta=0.0)
    options = dict(clip_ratio=0.2, beta=0.1, loss_type="grpo", normalizer=1.0)
    with pytest.raises(ValueError, match="entropy_bonus is 0.1 but entropy is missing"):
        grpo_loss(*terms, **options, entropy_bonus=0.1)
    with pytest.raises(ValueError, match="entropy_bonus is 0.0 but entropy is given"):
        grpo_loss(*terms, **options, entropy=terms[0])


def naive_logprobs(model, batch, temperature):
    """All logits at once, a log-softmax, and a loop over the model's positions."""
    with torch.no_grad():
        logits = model(input_ids=batch["input_ids"]).logits / temperature
    logprobs = logits.log_softmax(-1)
    places = batch["model_mask"].nonzero().tolist()
    chosen = [logprobs[row, t - 1, batch["input_ids"][row, t]] for row, t in places]
    entropy = [-(logprobs[row, t - 1].exp() * logprobs[row, t - 1]).sum() for row, t in places]
    return torch.stack(chosen), torch.stack(entropy)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("chunk", [None, 1, 5, 1000])
def test_logprobs_and_entropy_match_all_logits_at_once(temperature, chunk):
    model, batch = tiny_model(), make_batch()
    logprobs, entropy = token_logprobs(model, batch, temperature=temperature, chunk=chunk)
    expected = naive_logprobs(model, batch, temperature)
    torch.testing.assert_close(logprobs, expected[0], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(entropy, expected[1], atol=1e-6, rtol=1e-5)
    assert not entropy.requires_grad


def test_chunks_change_neither_values_nor_gradients():
    """trl#4585, #3678: chunked over the tokens, the logits computed again in the backward pass."""
    model, batch = tiny_model().double(), make_batch()
    weights = torch.arange(1.0, batch["model_mask"].sum() + 1, dtype=torch.float64)
    gradients = []
    for chunk in (1000, 3):
        model.zero_grad()
        (token_logprobs(model, batch, chunk=chunk)[0] * weights).sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    for whole, cut in zip(*gradients, strict=True):
        torch.testing.assert_close(cut, whole, rtol=1e-12, atol=1e-12)


def test_chunks_bound_the_logits_that_are_kept_for_the_backward_pass():
    model, batch = tiny_model(), make_batch(rows=8, width=12)
    kept = []

    def pack(tensor):
        kept.append(tuple(tensor.shape))
        return tensor

    for chunk in (1000, 4):
        kept.clear()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            token_logprobs(model, batch, chunk=chunk)
        wide = [shape for shape in kept if len(shape) == 2 and shape[1] == 17 and shape[0] > 17]
        assert bool(wide) == (chunk == 1000)


def test_logits_are_computed_at_the_models_positions_only():
    model, batch = tiny_model(), make_batch()
    seen = []
    model.lm_head.register_forward_hook(lambda module, args, output: seen.append(output.shape))
    token_logprobs(model, batch)
    assert seen == [(int(batch["model_mask"].sum()), 17)]


def test_padding_is_never_read_whatever_its_id_is():
    """trl#4974: pad == eos works; values are those of each row alone."""
    model, batch = tiny_model(), make_batch(rows=3, width=10)
    lengths = [10, 4, 7]
    for row, length in enumerate(lengths):
        batch["model_mask"][row, length:] = False
        batch["model_mask"][row, length - 1] = True
    results = []
    for pad in (0, 5):
        for row, length in enumerate(lengths):
            batch["input_ids"][row, length:] = pad
        results.append(token_logprobs(model, batch)[0])
    assert torch.equal(results[0], results[1])
    alone = [
        token_logprobs(model, {name: x[r : r + 1, :n] for name, x in batch.items()})[0]
        for r, n in enumerate(lengths)
    ]
    torch.testing.assert_close(results[0], torch.cat(alone), atol=1e-6, rtol=1e-5)


def make_groups(vocab_size=17):
    """Three groups of four rows; two thirds of the prompt of a group are shared."""
    batch = make_batch(rows=12, width=24, vocab_size=vocab_size)
    batch["model_mask"][:, :13] = False
    batch["input_ids"][:, :12] = batch["input_ids"][:3, :12].repeat(4, 1)
    return batch


def test_what_rows_share_is_computed_once_with_the_same_values_and_gradients(monkeypatch):
    model, batch = tiny_model().double(), make_groups()
    computed, results = [], []
    model.model.embed_tokens.register_forward_hook(
        lambda module, args, output: computed.append(args[0].numel())
    )
    for share in (True, False):
        if not share:
            monkeypatch.setattr("rc_lib.loss.shared_prefix", lambda ids, mask: (0, None, None))
        model.zero_grad()
        logprobs, entropy = token_logprobs(model, batch)
        (logprobs * torch.arange(len(logprobs))).sum().backward()
        gradients = [p.grad.clone() for p in model.parameters()]
        results.append([logprobs.detach(), entropy, *gradients])
    # 3 beginnings of 12 and 12 rows of the other 12, against 12 rows of 24.
    assert computed == [3 * 12, 12 * 12, 12 * 24]
    for shared, apart in zip(*results, strict=True):
        torch.testing.assert_close(shared, apart, rtol=1e-5, atol=1e-5)


def test_the_shared_beginning_ends_before_the_first_model_token_and_takes_in_padding():
    model, batch = tiny_model(), make_groups()
    batch["model_mask"][5, 7] = True
    batch["model_mask"][8] = False  # a row without model tokens may end inside the beginning
    batch["input_ids"][8, 3:] = 0
    length, first, row = shared_prefix(batch["input_ids"].numpy(), batch["model_mask"].numpy())
    assert 0 < length <= 6
    same = batch["input_ids"][first][row, :length] == batch["input_ids"][:, :length]
    assert same.all()
    assert len(first) == 4
    expected = naive_logprobs(model, batch, 1.0)[0]
    torch.testing.assert_close(token_logprobs(model, batch)[0], expected, atol=1e-6, rtol=1e-5)


def test_a_shared_beginning_is_as_long_as_pays():
    ids = np.arange(8 * 30).reshape(8, 30)
    mask = np.zeros((8, 30), dtype=bool)
    mask[:, 20:] = True
    assert shared_prefix(ids, mask)[0] == 0  # nothing in common
    ids[:, :10] = 7
    assert shared_prefix(ids, mask)[0] == 10
    ids[:4, 10:18], ids[4:, 10:18] = 8, 9  # further on, common to the halves only
    length, first, row = shared_prefix(ids, mask)
    assert (length, len(first)) == (18, 2)
    assert len(set(row[:4])) == len(set(row[4:])) == 1
    ids[:] = 7
    assert shared_prefix(ids, mask)[0] == 19  # the state before a model token is needed by row
    assert shared_prefix(ids[:1], mask[:1])[0] == 0


def test_a_batch_without_model_tokens_gives_nothing_and_a_zero_gradient():
    model, batch = tiny_model(), make_batch()
    batch["model_mask"][:] = False
    logprobs, entropy = token_logprobs(model, batch)
    assert logprobs.shape == entropy.shape == (0,)
    logprobs.sum().backward()
    assert all((p.grad is None) or (p.grad == 0).all() for p in model.parameters())


def test_half_precision_logits_are_scored_in_fp32():
    model, batch = tiny_model().bfloat16(), make_batch()
    assert token_logprobs(model, batch)[0].dtype == torch.float32


def test_misuse_of_logprobs_is_an_error():
    model, batch = tiny_model(), make_batch()
    with pytest.raises(ValueError, match="temperature is 0.0"):
        token_logprobs(model, batch, temperature=0.0)
    with pytest.raises(ValueError, match="chunk is 0"):
        token_logprobs(model, batch, chunk=0)
    batch["model_mask"][2, 0] = True
    with pytest.raises(ValueError, match="row 2 starts with a model token"):
        token_logprobs(model, batch)
    model.config.final_logit_softcapping = 30.0
    with pytest.raises(ValueError, match="final_logit_softcapping"):
        token_logprobs(model, make_batch())


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
def test_lora_scores_through_its_adapters():
    peft = pytest.importorskip("peft")
    model, batch = tiny_model(), make_batch()
    before = token_logprobs(model, batch)[0].detach()
    adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj", "down_proj"]))
    torch.testing.assert_close(token_logprobs(adapted, batch)[0], before)
    for name, weight in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight)
    changed = token_logprobs(adapted, batch)[0]
    assert (changed - before).abs().max() > 1e-3
    changed.sum().backward()
    assert any(w.grad is not None and w.grad.any() for w in adapted.parameters())
