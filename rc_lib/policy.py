"""A policy: a causal language model, its tokenizer and its chat format.

The tiny policy has the Qwen2 architecture and a small byte-level tokenizer of its own; both are
plain transformers classes and load with ``from_pretrained``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from rc_lib.envs.base import Message
from rc_lib.seeding import rng

ROLES = ("system", "user", "assistant", "tool")
END, PAD = "<|end|>", "<|endoftext|>"
REWARD_TOKENS = {"high": "<|high_reward|>", "low": "<|low_reward|>"}
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
# Words with their leading space (CamelCase apart), up to two capitals or digits, a file ending,
# runs of punctuation, white space. Digits go in pairs, so that a number is few tokens.
PRETOKEN = r" ?\p{Lu}?[\p{Ll}_]+|\p{Lu}{1,2}|\p{N}{1,2}|\.\p{Ll}+| ?[^\s\p{L}\p{N}_]+|\s"
# A class of its own: loading with trust_remote_code marks the class that it finds here.
TOKENIZATION = """from transformers import PreTrainedTokenizerFast


class Tokenizer(PreTrainedTokenizerFast):
    pass
"""
_PROBE = "\ufdd0probe\ufdd0"


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Train a lossless byte-level BPE tokenizer with the chat format of the tiny policy.

    Args:
        texts: training texts.
        vocab_size: number of tokens, bytes and special tokens included.

    >>> tokenizer = train_tokenizer(["move 'a.txt' to 'b'"] * 3, 300)
    >>> tokenizer.decode(tokenizer.encode("mové 'a.txt'"))
    "mové 'a.txt'"
    """
    specials = [PAD, END, *(f"<|{role}|>" for role in ROLES)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRETOKEN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # The trainer would read special tokens as punctuation and merge them with their neighbours.
    marks = re.compile("|".join(map(re.escape, specials)))
    tokenizer.train_from_iterator((part for text in texts for part in marks.split(text)), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def tiny_model(
    vocab_size: int, *, hidden: int, layers: int, heads: int, seed: int
) -> Qwen2ForCausalLM:
    """Build a small Qwen2 model with random weights.

    Args:
        vocab_size: V.
        hidden: width; the MLP is three times as wide.
        layers: number of blocks.
        heads: attention heads, each with keys and values of its own.
        seed: seed of the initial weights.

    >>> model = tiny_model(64, hidden=16, layers=1, heads=2, seed=0)
    >>> model.num_parameters()
    4448
    """
    config = Qwen2Config(
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=1024,
        rope_theta=10_000.0,
        tie_word_embeddings=True,
        initializer_range=0.05,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(config)


@dataclass
class Policy:
    """A model with its tokenizer; turns messages into ids and ids into text.

    Attributes:
        model: causal language model.
        tokenizer: its tokenizer, with a chat template.
        eos_ids: ids that end an assistant message; the one sampled stays in the model's span.
        pad_id: id that fills rectangles; may equal an end id, nothing reads it.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast

    def __post_init__(self):
        self._frames = {role: self._frame(role) for role in ROLES}
        probe = [Message("user", "a"), Message("assistant", "b"), Message("tool", "c")]
        whole = self._render(probe, add_generation_prompt=True)
        parts = "".join(self._render([message]) for message in probe)
        if not whole.startswith(parts):
            raise ValueError(
                f"the chat template of {self.tokenizer.name_or_path or 'the tokenizer'!r} rewrites "
                "earlier messages when later ones are appended; multi-turn rollouts need a "
                "prefix-preserving template, set tokenizer.chat_template to one"
            )
        self._opening = self._ids(whole[len(parts) :])
        generation = getattr(self.model.generation_config, "eos_token_id", None)
        ids = generation if isinstance(generation, list) else [generation]
        self.eos_ids = frozenset({self.tokenizer.eos_token_id, *ids} - {None})
        pad = self.tokenizer.pad_token_id
        self.pad_id = min(self.eos_ids) if pad is None else pad

    @classmethod
    def from_pretrained(cls, path: str | Path) -> Policy:
        """Load a policy from a folder written by `save_pretrained`, or a hub name."""
        return cls(
            AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32),
            AutoTokenizer.from_pretrained(path),
        )

    def save_pretrained(self, path: str | Path) -> None:
        """Write weights (safetensors), configuration and tokenizer; plain transformers loads it."""
        self.model.save_pretrained(path)
        self.tokenizer.save_pretrained(path)
        if type(self.tokenizer) is PreTrainedTokenizerFast:
            _name_tokenizer_class(Path(path))

    @property
    def device(self) -> torch.device:
        return self.model.device

    def _render(self, messages: Sequence[Message], **options) -> str:
        conversation = [message._asdict() for message in messages]
        return self.tokenizer.apply_chat_template(conversation, tokenize=False, **options)

    def _ids(self, text: str, **options) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False, **options)

    def _frame(self, role: str) -> tuple[list[int], list[int]]:
        before, after = self._render([Message(role, _PROBE)]).split(_PROBE)
        return self._ids(before), self._ids(after)

    def encode_messages(self, messages: Sequence[Message]) -> list[int]:
        """Return the ids of complete message blocks.

        What a tool returns may repeat text that the policy made up, so special tokens in a tool's
        message are read as plain characters.

        Raises:
            ValueError: for a role that is not system, user, assistant or tool.
        """
        ids: list[int] = []
        for role, content in messages:
            if role not in self._frames:
                raise ValueError(f"unknown role {role!r}; use one of {ROLES}")
            before, after = self._frames[role]
            ids += before + self._ids(content, split_special_tokens=role == "tool") + after
        return ids

    def encode_text(self, text: str) -> list[int]:
        """Return the ids of plain text; special tokens in it are read as plain characters."""
        return self._ids(text, split_special_tokens=True)

    def generation_prompt(self) -> list[int]:
        """Return the ids that open the assistant's block."""
        return list(self._opening)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of an assistant message without the id that ended it."""
        kept = [int(i) for i in ids if int(i) not in self.eos_ids]
        return self.tokenizer.decode(kept, skip_special_tokens=False)

    def add_reward_tokens(self, seed: int) -> None:
        """Add the two reward-goal tokens, each with an embedding of its own.

        The default initialisation of new rows (the mean of all rows) makes the two tokens
        practically equal, and a policy cannot tell them apart. Here each row is the mean plus
        normal noise of the rows' own spread. Does nothing if the tokens are there already.

        Args:
            seed: run seed of the noise.
        """
        new = [t for t in REWARD_TOKENS.values() if t not in self.tokenizer.get_vocab()]
        if not new:
            return
        self.tokenizer.add_tokens([AddedToken(t, special=True, normalized=False) for t in new])
        self.model.resize_token_embeddings(len(self.tokenizer), mean_resizing=False)
        first = len(self.tokenizer) - len(new)
        weights = {
            id(layer.weight): layer.weight
            for layer in (self.model.get_input_embeddings(), self.model.get_output_embeddings())
        }
        with torch.no_grad():
            for index, weight in enumerate(weights.values()):
                old = weight[:first].float()
                noise = rng(seed, "reward-token-embedding", index).standard_normal(
                    (len(new), old.shape[1])
                )
                rows = old.mean(0) + old.std(0) * torch.from_numpy(noise).float().to(old.device)
                weight[first : first + len(new)] = rows.to(weight.dtype)


def _name_tokenizer_class(folder: Path) -> None:
    """Make AutoTokenizer take the tokenizer as saved.

    For a Qwen2 model it would rebuild Qwen2's own pre-tokenizer around the saved vocabulary, and
    ids would differ without a word; with a class named in ``auto_map`` it does not.
    """
    (folder / "tokenization.py").write_text(TOKENIZATION)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["auto_map"] = {"AutoTokenizer": [None, "tokenization.Tokenizer"]}
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
