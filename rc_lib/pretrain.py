"""Pretraining of the tiny base: documents, tokens and the training loop, done once.

The documents teach words, copying and single requests; whole tasks of the protocol that the
other stages use are a small share (``PretrainConfig.task_share``), which sets how often the base
solves a test task. All slot values come from the ``pretrain`` partition, which shares none with
the training and test tasks.
"""

import json
import math
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerFast

from rc_lib.envs.base import Message
from rc_lib.envs.bfcl import BFCLEnv
from rc_lib.manifest import manifest, write_json
from rc_lib.policy import CHAT_TEMPLATE, PAD, Policy, tiny_model, train_tokenizer
from rc_lib.seeding import rng
from rc_lib.tasks.base import CATEGORIES
from rc_lib.tasks.bfcl import function_docs
from rc_lib.tasks.generated import (
    GeneratedTask,
    choose_intents,
    make_request,
    make_task,
    spell,
)
from rc_lib.tasks.intents import INTENTS
from rc_lib.tasks.world import World

# Slot kinds whose values documents repeat.
VALUE_SLOTS = (
    *("file", "dir", "text", "phrase", "int", "small", "price", "person", "user_id", "title"),
    *("ticket", "stock", "tag", "handle", "city"),
)


@dataclass(frozen=True)
class PretrainConfig:
    """Size of the base and of its pretraining; values chosen by measurement on two CPU cores."""

    vocab_size: int = 1536
    hidden: int = 128
    layers: int = 3
    heads: int = 2
    documents: int = 40_000  # generated once, then repeated
    task_share: float = 0.02  # documents that are whole tasks; sets the base's accuracy
    repeat_share: float = 0.25  # documents that repeat values: where copying is learnt
    paraphrase_share: float = 0.15  # documents that put a request in other words
    context_weight: float = 0.1  # loss weight of tokens that no assistant wrote
    length: int = 256  # tokens a row
    batch_size: int = 16  # rows an optimizer step
    steps: int = 3000
    learning_rate: float = 3e-3
    warmup_steps: int = 100
    weight_decay: float = 0.1
    checkpoint_every: int = 200
    observation_chars: int = 100
    seed: int = 0


# What the corpus depends on.
CORPUS_FIELDS = (
    "vocab_size documents task_share repeat_share paraphrase_share observation_chars seed".split()
)


def _chat(messages: list[Message]) -> str:
    import jinja2

    template = jinja2.Template(CHAT_TEMPLATE)
    return template.render(messages=[m._asdict() for m in messages])


def played(task: GeneratedTask, observation_chars: int) -> list[Message]:
    """Return the merged prompt and the expert's messages with the real observations."""
    env = BFCLEnv(task, protocol="merged", observation_chars=observation_chars)
    messages, _ = env.reset()
    for action in task.actions:
        observation, *_ = env.step(action)
        messages = [*messages, Message("assistant", action), *observation]
    return messages


def single_requests(draw: np.random.Generator, observation_chars: int) -> list[Message]:
    """Return a chat of one to three requests, each its own user message, nothing merged."""
    world = World(draw, "pretrain")
    intents = choose_intents(draw, int(draw.integers(1, 4)), reads_long=False)
    requests = [make_request(world, intent, first_wording=True) for intent in intents]
    classes = tuple(dict.fromkeys(intent.backend for intent in intents))
    env = BFCLEnv(
        GeneratedTask(
            id="chat", category="base", turns=("",), reference=((),), involved_classes=classes,
            initial_config={name: world.config[name] for name in classes},
        ),
        protocol="merged", observation_chars=observation_chars, max_steps=10,
    )  # fmt: skip
    env.reset()
    messages: list[Message] = []
    for request in requests:
        messages.append(Message("user", request.text + "."))
        for calls in request.messages:
            action = f"[{', '.join(calls)}]"
            observation, *_ = env.step(action)
            messages += [Message("assistant", action), *observation]
    return messages


def repeated_values(draw: np.random.Generator) -> list[Message]:
    """Return a chat in which the assistant repeats three to eight values that the user names."""
    world = World(draw, "pretrain")
    kinds = draw.choice(len(VALUE_SLOTS), size=draw.integers(3, 9))
    values = [world.slots([VALUE_SLOTS[kind]])[VALUE_SLOTS[kind]] for kind in kinds]
    text = ", ".join(spell("value", value) for value in values)
    return [Message("user", f"Repeat {text}."), Message("assistant", f"[{text}]")]


def paraphrase(draw: np.random.Generator) -> list[Message]:
    """Return a chat in which the assistant puts a request of any wording in the plainest one."""
    world = World(draw, "pretrain")
    intent = INTENTS[draw.integers(len(INTENTS))]
    request = make_request(world, intent, unseen=bool(draw.integers(2)))
    values = {name: spell(name, value) for name, value in request.values.items()}
    plain = intent.wordings[0].format(**values)
    asked = f"In other words: {request.text}."
    return [Message("user", asked), Message("assistant", f"[{plain}]")]


def document(index: int, config: PretrainConfig, manuals: list[str]) -> str:
    """Return document ``index`` of the corpus; it depends on the seed and the index alone."""
    draw = rng(config.seed, "pretrain-document", index)
    kind = draw.random()
    if (kind := kind - config.task_share) < 0:
        category = CATEGORIES[draw.integers(4)]
        task = make_task(f"gen_pretrain_{category}_{index}", category, "pretrain")
        return _chat(played(task, config.observation_chars))
    if (kind := kind - config.repeat_share) < 0:
        return _chat(repeated_values(draw))
    if (kind := kind - config.paraphrase_share) < 0:
        return _chat(paraphrase(draw))
    if kind < 0.03:
        return manuals[draw.integers(len(manuals))]
    return _chat(single_requests(draw, config.observation_chars))


def function_manuals() -> list[str]:
    """Return one line a function of the backends that the generated tasks use."""
    task = make_task("gen_manual_base_0", "base", "pretrain")
    backends = tuple(dict.fromkeys(intent.backend for intent in INTENTS))
    docs = function_docs(GeneratedTask(**{**task.__dict__, "involved_classes": backends}))
    return [
        f"{doc['name']}({', '.join(doc['parameters']['properties'])}): "
        + doc["description"].split("Tool description:")[-1].split(".")[0].strip()
        for doc in docs
    ]


def build_corpus(config: PretrainConfig, folder: Path, progress: bool = True) -> None:
    """Write ``tokenizer/`` and ``tokens.npy`` (uint16, documents joined by the pad id).

    Does nothing where the corpus of the same documents lies already.
    """
    stamp = folder / "corpus.json"
    wanted = json.dumps({name: getattr(config, name) for name in CORPUS_FIELDS})
    if stamp.exists() and stamp.read_text() == wanted:
        return
    folder.mkdir(parents=True, exist_ok=True)
    manuals = function_manuals()
    texts = [
        document(i, config, manuals)
        for i in tqdm(range(config.documents), desc="documents", disable=not progress)
    ]
    tokenizer = train_tokenizer(texts[: max(2000, config.documents // 4)], config.vocab_size)
    tokenizer.save_pretrained(folder / "tokenizer")
    pad = tokenizer.convert_tokens_to_ids(PAD)
    encoded = tokenizer(texts, add_special_tokens=False)["input_ids"]
    tokens = np.concatenate([np.array([*ids, pad], dtype=np.uint16) for ids in encoded])
    np.save(folder / "tokens.npy", tokens)
    stamp.write_text(wanted)


def assistant_mask(tokens: np.ndarray, assistant: int, end: int) -> np.ndarray:
    """Return bool [n], True on tokens that an assistant wrote, its end token included.

    >>> assistant_mask(np.array([5, 1, 7, 8, 2, 5]), assistant=1, end=2).tolist()
    [False, False, True, True, True, False]
    """
    places = np.arange(len(tokens))
    opened = np.maximum.accumulate(np.where(tokens == assistant, places, -1))
    closed = np.maximum.accumulate(np.where(tokens == end, places, -1))
    mask = np.zeros(len(tokens), dtype=bool)
    mask[1:] = (opened > closed)[:-1]
    return mask


def batch_places(config: PretrainConfig, size: int, step: int) -> np.ndarray:
    """Return the corpus places of one step's rows, int64 [batch_size, length + 1]."""
    draw = rng(config.seed, "pretrain-batch", step)
    starts = draw.integers(0, size - config.length - 1, size=config.batch_size)
    return starts[:, None] + np.arange(config.length + 1)


def learning_rate(config: PretrainConfig, step: int) -> float:
    """Linear warm-up, then a cosine down to a tenth.

    >>> round(learning_rate(PretrainConfig(), 3000) / PretrainConfig().learning_rate, 3)
    0.1
    """
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    done = (step - config.warmup_steps) / max(1, config.steps - config.warmup_steps)
    return config.learning_rate * (0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, done))))


def pretrain(config: PretrainConfig, folder: Path, progress: bool = True) -> Policy:
    """Pretrain the base in ``folder``; a killed run goes on from its last checkpoint.

    Returns:
        The policy; also saved to ``folder/model`` with the curve in ``folder/curve.csv``.
    """
    build_corpus(config, folder, progress)
    tokens = np.load(folder / "tokens.npy").astype(np.int64)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder / "tokenizer")
    written = assistant_mask(
        tokens, *tokenizer.convert_tokens_to_ids(["<|assistant|>", tokenizer.eos_token])
    )
    model = tiny_model(
        len(tokenizer), hidden=config.hidden, layers=config.layers, heads=config.heads,
        seed=config.seed,
    )  # fmt: skip
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=0.0, betas=(0.9, 0.95), weight_decay=config.weight_decay
    )
    curve: list[dict] = []
    checkpoint = folder / "checkpoint.pt"
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        curve = state["curve"]
    model.train()
    bar = tqdm(
        range(len(curve), config.steps), initial=len(curve), total=config.steps,
        desc="pretraining", disable=not progress, mininterval=5,
    )  # fmt: skip
    for step in bar:
        started = time.perf_counter()
        places = batch_places(config, len(tokens), step)
        rows, own = torch.from_numpy(tokens[places]), torch.from_numpy(written[places[:, 1:]])
        logits = model(input_ids=rows[:, :-1]).logits
        losses = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), rows[:, 1:].flatten(), reduction="none"
        ).view(own.shape)
        weights = torch.where(own, 1.0, config.context_weight)
        ((losses * weights).sum() / weights.sum()).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(config, step)
        optimizer.step()
        optimizer.zero_grad()
        wall = time.perf_counter() - started
        assistant, context = losses[own].mean().item(), losses[~own].mean().item()
        curve.append(
            {"step": step, "assistant_loss": assistant, "context_loss": context}
            | {"grad_norm": float(norm), "tokens_per_s": own.numel() / wall, "wall_s": wall}
        )
        bar.set_postfix(assistant=f"{assistant:.3f}", context=f"{context:.3f}", refresh=False)
        if (step + 1) % config.checkpoint_every == 0 or step + 1 == config.steps:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state | {"curve": curve}, checkpoint.with_suffix(".tmp"))
            os.replace(checkpoint.with_suffix(".tmp"), checkpoint)
    policy = Policy(model.eval(), tokenizer)
    policy.save_pretrained(folder / "model")
    pd.DataFrame(curve).to_csv(folder / "curve.csv", index=False)
    made = manifest(
        asdict(config), config.seed, [folder / "tokens.npy"], batch_size=config.batch_size
    )
    last = pd.DataFrame(curve).tail(20)
    made["threads"] = torch.get_num_threads()
    made["wall_s"] = round(sum(row["wall_s"] for row in curve), 1)
    made["parameters_total"] = model.num_parameters()
    made["last_losses"] = last[["assistant_loss", "context_loss"]].mean().round(4).to_dict()
    write_json(made, folder / "model" / "manifest.json")
    return policy
