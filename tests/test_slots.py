"""The slot cache: ragged forward passes equal plain ones, whatever a slot held before."""

import pytest
import torch

from rc_lib.policy import tiny_model
from rc_lib.slots import SlotCache, batches, check_model, compute

MODEL = tiny_model(64, hidden=32, layers=2, heads=4, seed=0).eval()
A, B, C = list(range(10, 30)), [40, 41, 42], list(range(5, 50, 4))


@pytest.fixture(autouse=True)
def inference():
    with torch.inference_mode():
        yield


def plain(ids):
    return MODEL(torch.tensor([ids])).logits[0, -1]


def assert_rows(logits, *sequences):
    expected = torch.stack([plain(ids) for ids in sequences])
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


def test_rows_of_different_lengths_and_phases_equal_plain_passes():
    cache = SlotCache(3, 40)
    assert_rows(compute(MODEL, cache, range(3), [A, B, C[:2]], [0, 0, 0]), A, B, C[:2])
    logits = compute(MODEL, cache, range(3), [[7], [], C[2:]], [len(A), len(B), 2])
    assert_rows(logits[[0, 2]], [*A, 7], C)
    assert_rows(compute(MODEL, cache, [1], [[9, 8]], [len(B)]), [*B, 9, 8])


def test_a_slot_shows_nothing_of_its_former_owner():
    cache = SlotCache(2, 40)
    compute(MODEL, cache, range(2), [A, C], [0, 0])
    assert_rows(compute(MODEL, cache, range(2), [B, [6]], [0, len(C)]), B, [*C, 6])


def test_a_copied_prefix_serves_several_rows():
    cache = SlotCache(3, 40)
    compute(MODEL, cache, [0], [A], [0])
    cache.copy([0, 0], [1, 2], len(A))
    logits = compute(MODEL, cache, [2, 1, 0], [[7, 9], [8], B], [len(A)] * 3)
    assert_rows(logits, [*A, 7, 9], [*A, 8], A + B)


def test_nothing_beyond_the_longest_row_is_read():
    cache = SlotCache(2, 40)
    compute(MODEL, cache, range(2), [A, B], [0, 0])
    for buffer in (*cache.keys, *cache.values):
        buffer[:, :, len(A) + 1 :] = float("nan")
    logits = compute(MODEL, cache, range(2), [[7], [7]], [len(A), len(B)])
    assert_rows(logits, [*A, 7], [*B, 7])


def test_batches_bound_padding_and_size():
    feeds = {slot: [0] * length for slot, length in enumerate([3000, 9000, 1, 4000, 2, 3500])}
    made = list(batches(feeds))
    assert sorted(slot for batch in made for slot in batch) == list(range(6))
    assert made == [[1], [3, 5], [0], [4, 2]]


def test_attention_without_own_masks_is_refused():
    model = tiny_model(64, hidden=32, layers=1, heads=2, seed=0)
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ValueError, match="attention 'flash_attention_2'"):
        check_model(model, 100)
