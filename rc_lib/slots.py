"""A key-value cache for rows that differ in length and in phase, and the forward pass that uses it.

Every row owns a slot and writes token t of its transcript at place t. A query sees the places up to
its own position, so there are neither holes nor left padding to look after, and what a former owner
left behind in a slot stays out of sight.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np
import torch
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

PREFILL_TOKENS = 8192  # padded ids of one forward pass; bounds its memory


class SlotCache(Cache):
    """Keys and values as [slot, head, place, dim], preallocated; one more place takes the padding.

    `select` says which slots the next forward pass works on and where each of its ids is written;
    `update`, called by every layer, scatters the new keys and returns those of the slots up to the
    longest row, so that the work follows the rows' lengths and not the allocation.

    Args:
        slots: number of rows.
        length: most ids of a row.
    """

    def __init__(self, slots: int, length: int):
        super().__init__(layers=[])
        self.shape = (slots, length + 1)
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []

    def select(
        self, slots: torch.Tensor, window: slice | torch.Tensor, places: torch.Tensor, length: int
    ) -> None:
        """Set what `update` does: write at (slots [N], places [N, W]), read window up to length."""
        self.slots, self.window, self.places, self.length = slots[:, None], window, places, length

    def update(self, key_states, value_states, layer_idx, *args, **kwargs):
        """Write a layer's new keys and values [N, heads, W, dim]; return those to attend to."""
        views = []
        for buffers, new in ((self.keys, key_states), (self.values, value_states)):
            if layer_idx == len(buffers):
                buffers.append(self._allocate(new))
            buffers[layer_idx][self.slots, :, self.places] = new.transpose(1, 2)
            views.append(buffers[layer_idx][self.window, :, : self.length])
        return views

    def copy(self, sources: list[int], targets: list[int], length: int) -> None:
        """Copy the first `length` places of some slots to others."""
        for buffer in (*self.keys, *self.values):
            buffer[targets, :, :length] = buffer[sources, :, :length]

    def _allocate(self, like: torch.Tensor) -> torch.Tensor:
        """Zeros, as a masked NaN of uninitialised memory would still spread."""
        (slots, length), (_, heads, _, dim) = self.shape, like.shape
        if like.device.type != "cpu":
            return like.new_zeros(slots, heads, length, dim)
        # NumPy's zeros are huge pages that cost nothing until touched; torch's fault page by page.
        # They start on a cache line as torch's do, since kernels may round by alignment.
        size = slots * heads * length * dim * like.element_size()
        zeros = torch.from_numpy(np.zeros(size + 64, dtype=np.uint8))
        start = -zeros.data_ptr() % 64
        return zeros[start : start + size].view(like.dtype).view(slots, heads, length, dim)


def compute(
    model: PreTrainedModel,
    cache: SlotCache,
    slots: Sequence[int],
    feeds: Sequence[Sequence[int]],
    starts: Sequence[int],
) -> torch.Tensor:
    """Compute new ids of some slots in one forward pass.

    Args:
        model: causal language model that `check_model` accepts.
        cache: its cache.
        slots: N slots. ``range(N)`` reads the cache in place; any other choice copies what it
            reads, which pays only when it is seldom done.
        feeds: N lists of new ids, of any lengths; an empty one rides along as padding.
        starts: N numbers of ids that the slots hold so far.

    Returns:
        Logits [N, V] behind the last id of each feed; meaningless for an empty one.

    >>> from rc_lib.policy import tiny_model
    >>> model = tiny_model(32, hidden=16, layers=1, heads=2, seed=0).eval()
    >>> cache = SlotCache(slots=2, length=8)
    >>> with torch.inference_mode():
    ...     _ = compute(model, cache, range(2), [[5, 6, 7], [8]], [0, 0])
    ...     logits = compute(model, cache, range(2), [[9], [9, 4]], [3, 1])
    ...     whole = model(torch.tensor([[5, 6, 7, 9]])).logits[0, -1]
    >>> torch.allclose(logits[0], whole, atol=1e-5)
    True
    """
    lengths, first = np.array([len(feed) for feed in feeds])[:, None], np.array(starts)[:, None]
    # Padding stands on the left, so that every row's last id is in the last column.
    offset = np.arange(lengths.max()) - lengths.max() + lengths
    real = offset >= 0
    ids = np.zeros(real.shape, dtype=np.int64)
    ids[real] = list(chain.from_iterable(feeds))
    positions = np.where(real, first + offset, 0)
    places = np.where(real, positions, cache.shape[1] - 1)
    ids, positions, places, index = (
        torch.from_numpy(array).to(model.device)
        for array in (ids, positions, places, np.array(slots))
    )
    length = int((first + lengths).max())
    window = slice(0, len(slots)) if isinstance(slots, range) else index
    cache.select(index, window, places, length)
    unseen = torch.arange(length, device=model.device) > positions[:, None, :, None]
    bias = torch.zeros(unseen.shape, dtype=model.dtype, device=model.device)
    return model(
        input_ids=ids,
        attention_mask=bias.masked_fill_(unseen, float("-inf")),
        position_ids=positions,
        cache=cache,
        use_cache=True,
        logits_to_keep=1,
    ).logits[:, -1]


def batches(feeds: dict[int, Sequence[int]]) -> Iterator[list[int]]:
    """Split slots into batches whose feeds have similar lengths and fit into one forward pass.

    Args:
        feeds: slot -> its new ids, at least one.

    >>> list(batches({0: [1] * 9, 1: [1] * 40, 2: [1] * 30}))
    [[1, 2], [0]]
    """
    batch: list[int] = []
    for slot in sorted(feeds, key=lambda slot: -len(feeds[slot])):
        longest = len(feeds[batch[0]]) if batch else 0
        too_big = longest * (len(batch) + 1) > PREFILL_TOKENS
        if batch and (too_big or 2 * len(feeds[slot]) < longest):
            yield batch
            batch = []
        batch.append(slot)
    if batch:
        yield batch


def check_model(model: PreTrainedModel, max_length: int) -> None:
    """Refuse a model whose attention does not take the masks made here, or ends too early.

    Raises:
        ValueError: for an attention implementation other than sdpa and eager, and for transcripts
            longer than the model's positions or its sliding window.

    >>> from rc_lib.policy import tiny_model
    >>> check_model(tiny_model(32, hidden=16, layers=1, heads=2, seed=0), 4096)
    Traceback (most recent call last):
        ...
    ValueError: max_length 4096 exceeds the model's max_position_embeddings 1024; lower it
    """
    attention = model.config._attn_implementation
    if attention not in ("sdpa", "eager"):
        raise ValueError(
            f"attention {attention!r} takes no mask of its own for each row; load the model with "
            "attn_implementation='sdpa' or 'eager'"
        )
    for name in ("max_position_embeddings", "sliding_window"):
        limit = getattr(model.config, name, None)
        if limit is not None and max_length > limit:
            raise ValueError(
                f"max_length {max_length} exceeds the model's {name} {limit}; lower it"
            )
