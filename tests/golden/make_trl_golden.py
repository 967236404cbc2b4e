"""Write trl_grpo.npz: inputs, losses and gradients of TRL's own GRPOTrainer on one batch.

Run in an environment with trl 1.16.0 and datasets beside the locked packages:

    python tests/golden/make_trl_golden.py

The batch has prompts and completions of different lengths, tokens of a tool inside a completion, a
completion without any token of the model, and log-ratios on both sides of the clip range.
"""

import tempfile
from pathlib import Path

import numpy as np
import torch
import trl
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer

LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo")
VOCABULARY, TEMPERATURE, BETA, CLIP, MAX_COMPLETION = 24, 0.7, 0.1, 0.2, 9
PROMPTS, COMPLETIONS = (3, 5, 2, 4), (9, 4, 6, 1)
TOOL = {0: range(3, 6), 2: range(2, 4), 3: range(0, 1)}  # row -> places that a tool wrote
MODEL = dict(
    vocab_size=VOCABULARY,
    hidden_size=8,
    intermediate_size=12,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    initializer_range=0.4,
    tie_word_embeddings=True,
)


def rectangle(rows, width, left=False):
    """Return rows and their mask as int64 [B, width], padded with 0."""
    values, mask = np.zeros((2, len(rows), width), dtype=np.int64)
    for index, row in enumerate(rows):
        place = slice(width - len(row), width) if left else slice(0, len(row))
        values[index, place], mask[index, place] = row, 1
    return torch.from_numpy(values), torch.from_numpy(mask)


def make_inputs():
    """Return TRL's batch, the old and reference log-probabilities still as noise."""
    draws = np.random.default_rng(0)
    prompts = [draws.integers(1, VOCABULARY, n) for n in PROMPTS]
    completions = [draws.integers(1, VOCABULARY, n) for n in COMPLETIONS]
    prompt_ids, prompt_mask = rectangle(prompts, max(PROMPTS), left=True)
    completion_ids, completion_mask = rectangle(completions, max(COMPLETIONS))
    tool_mask = torch.ones_like(completion_mask)
    for row, places in TOOL.items():
        tool_mask[row, list(places)] = 0
    noise = draws.normal(0.0, 0.3, (2, *completion_ids.shape)).astype(np.float32)
    return {
        "prompt_ids": prompt_ids,
        "prompt_mask": prompt_mask,
        "completion_ids": completion_ids,
        "completion_mask": completion_mask,
        "tool_mask": tool_mask,
        "advantages": torch.tensor([1.3, -0.8, 0.6, -1.1]),
        "old_per_token_logps": torch.from_numpy(noise[0]),
        "ref_per_token_logps": torch.from_numpy(noise[1]),
        "num_items_in_batch": torch.tensor(31.0),  # of two optimizer steps together
    }


def make_trainer(start, loss_type, folder):
    """Return a GRPOTrainer that is about to take its first optimizer step."""
    words = {f"w{i}": i for i in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = GRPOTrainer(
        model=start,
        reward_funcs=lambda completions, **kwargs: [0.0] * len(completions),
        args=GRPOConfig(
            output_dir=folder,
            model_init_kwargs={"dtype": "float32"},
            use_cpu=True,
            bf16=False,
            report_to="none",
            per_device_train_batch_size=4,
            num_generations=2,
            steps_per_generation=2,
            max_completion_length=MAX_COMPLETION,
            loss_type=loss_type,
            temperature=TEMPERATURE,
            beta=BETA,
            epsilon=CLIP,
            use_bias_correction_kl=False,  # TRL's default weights the KL by the ratio
        ),
        train_dataset=Dataset.from_dict({"prompt": ["w1"] * 4}),
        processing_class=PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, eos_token="w0", pad_token="w0"
        ),
    )
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    return trainer


def score(trainer, inputs):
    """Put TRL's log-probabilities under the noise of the inputs; return them and the entropy."""
    with torch.no_grad():
        logps, entropy, _ = trainer._get_per_token_logps_and_entropies(
            trainer.model,
            torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1),
            torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1),
            inputs["completion_ids"].shape[1],
            compute_entropy=True,
        )
    for name in ("old_per_token_logps", "ref_per_token_logps"):
        inputs[name] = inputs[name] + logps
    return {"logps": logps, "entropy": entropy}


def main():
    assert trl.__version__ == "1.16.0", trl.__version__
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(**MODEL))
    inputs = None
    out = {f"weight/{name}": w.detach().clone() for name, w in model.named_parameters()}
    for loss_type in LOSS_TYPES:
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(f"{folder}/start")
            trainer = make_trainer(f"{folder}/start", loss_type, folder)
            if inputs is None:
                inputs = make_inputs()
                out |= score(trainer, inputs)
            loss = trainer._compute_loss(trainer.model, inputs)
            loss.backward()
            metrics = {k: v[0] for k, v in trainer._metrics["train"].items()}
        out[f"{loss_type}/loss"] = loss.detach()
        out[f"{loss_type}/kl"] = torch.tensor(metrics["kl"])
        out[f"{loss_type}/clip"] = torch.tensor(metrics["clip_ratio/region_mean"])
        for name, weight in trainer.model.named_parameters():
            out[f"{loss_type}/gradient/{name}"] = weight.grad
    out |= {f"input/{name}": value for name, value in inputs.items()}
    constants = dict(temperature=TEMPERATURE, beta=BETA, clip=CLIP, max_completion=MAX_COMPLETION)
    out |= {f"constant/{name}": torch.tensor(value) for name, value in constants.items()}
    out |= {f"config/{name}": torch.tensor(value) for name, value in MODEL.items()}
    path = Path(__file__).with_name("trl_grpo.npz")
    np.savez_compressed(path, **{name: value.numpy() for name, value in out.items()})
    losses = {loss_type: float(out[f"{loss_type}/loss"]) for loss_type in LOSS_TYPES}
    print(path, path.stat().st_size, "bytes", losses)


if __name__ == "__main__":
    main()
