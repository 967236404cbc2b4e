"""A rollout as token ids with spans; the loss mask comes from the spans alone.

Sampled ids are kept as sampled: nothing here decodes or encodes text, because decoding and encoding
again can change ids (huggingface/trl#5224).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

KINDS = ("prompt", "model", "tool")


class Span(NamedTuple):
    """Half-open range of ids of one kind: prompt, model (sampled, trained) or tool (observed)."""

    kind: str
    start: int
    end: int


class Transcript:
    """Token ids, their spans, and the log-probability recorded for each sampled id.

    Attributes:
        ids: T token ids.
        spans: spans that cover the ids without gap or overlap, in order.
        logprobs: T floats, nan outside model spans and where a model id was not sampled.

    >>> transcript = Transcript()
    >>> transcript.append("prompt", [5, 6])
    >>> transcript.append("model", [7, 0], logprobs=[-0.5, -0.1])
    >>> transcript.mask().tolist(), len(transcript), transcript.model_tokens
    ([False, False, True, True], 4, 2)
    """

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.spans: list[Span] = []
        self.logprobs: list[float] = []

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def model_tokens(self) -> int:
        """Number of ids in model spans."""
        return sum(span.end - span.start for span in self.spans if span.kind == "model")

    def append(
        self, kind: str, ids: Sequence[int], logprobs: Sequence[float] | None = None
    ) -> None:
        """Append one span.

        Args:
            kind: "prompt", "model" or "tool".
            ids: its token ids, at least one.
            logprobs: one finite number an id; only for sampled model spans. A model span without
                them (a demonstration) records nan.

        Raises:
            ValueError: for an unknown kind, no ids, or log-probabilities that do not fit the ids.

        >>> Transcript().append("model", [1, 2], logprobs=[-0.5])
        Traceback (most recent call last):
            ...
        ValueError: 2 ids but 1 log-probabilities in a model span; give one for each id
        """
        ids = [int(i) for i in ids]
        if kind not in KINDS:
            raise ValueError(f"unknown span kind {kind!r}; use one of {KINDS}")
        if not ids:
            raise ValueError(f"a {kind} span needs at least one id; got none")
        if logprobs is None:
            logprobs = [float("nan")] * len(ids)
        elif kind != "model":
            raise ValueError(f"a {kind} span has no log-probabilities; only model spans have")
        elif len(logprobs) != len(ids):
            raise ValueError(
                f"{len(ids)} ids but {len(logprobs)} log-probabilities in a model span; "
                "give one for each id"
            )
        elif not np.isfinite(logprobs).all():
            raise ValueError(f"log-probabilities of a model span must be finite; got {logprobs}")
        self.spans.append(Span(kind, len(self.ids), len(self.ids) + len(ids)))
        self.ids += ids
        self.logprobs += [float(x) for x in logprobs]
        self.check()

    def mask(self) -> np.ndarray:
        """Return bool [T], True on the ids of model spans."""
        mask = np.zeros(len(self.ids), dtype=bool)
        for kind, start, end in self.spans:
            mask[start:end] = kind == "model"
        return mask

    def check(self) -> None:
        """Assert that ids, log-probabilities and spans agree in length (huggingface/trl#5144).

        Raises:
            AssertionError: if they do not.
        """
        ends = [0, *(span.end for span in self.spans)]
        starts = [*(span.start for span in self.spans), len(self.ids)]
        assert len(self.ids) == len(self.logprobs), (
            f"{len(self.ids)} ids but {len(self.logprobs)} log-probabilities; use append only"
        )
        assert starts == ends, f"spans {self.spans} do not cover {len(self.ids)} ids exactly"


def collate(transcripts: Sequence[Transcript], pad_id: int) -> dict[str, torch.Tensor]:
    """Put transcripts into one rectangle, padded on the right from their explicit lengths.

    The pad id is never compared with anything, so it may equal an end id (huggingface/trl#4974).

    Args:
        transcripts: B transcripts, none empty.
        pad_id: id written behind the end of the shorter ones.

    Returns:
        input_ids, attention_mask, position_ids (int64 [B, T]), model_mask (bool [B, T]) and
        old_logprobs (float32 [B, T], 0 outside model spans).

    Raises:
        ValueError: if there is no transcript, or one is empty.

    >>> a, b = Transcript(), Transcript()
    >>> a.append("prompt", [5])
    >>> b.append("prompt", [5, 6])
    >>> collate([a, b], pad_id=0)["attention_mask"].tolist()
    [[1, 0], [1, 1]]
    """
    lengths = [len(transcript) for transcript in transcripts]
    if not lengths or min(lengths) == 0:
        raise ValueError(f"collate needs transcripts of at least one id; got lengths {lengths}")
    shape = (len(lengths), max(lengths))
    ids = np.full(shape, pad_id, dtype=np.int64)
    model = np.zeros(shape, dtype=bool)
    logprobs = np.zeros(shape, dtype=np.float32)
    for row, (transcript, length) in enumerate(zip(transcripts, lengths, strict=True)):
        transcript.check()
        ids[row, :length] = transcript.ids
        model[row, :length] = transcript.mask()
        logprobs[row, :length] = np.where(model[row, :length], transcript.logprobs, 0.0)
    positions = np.broadcast_to(np.arange(shape[1]), shape)
    attention = positions < np.array(lengths)[:, None]
    return {
        "input_ids": torch.from_numpy(ids),
        "attention_mask": torch.from_numpy(attention.astype(np.int64)),
        "position_ids": torch.from_numpy(positions.copy()),
        "model_mask": torch.from_numpy(model),
        "old_logprobs": torch.from_numpy(logprobs),
    }
