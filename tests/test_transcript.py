"""Transcripts: spans, masks, and rectangles made from explicit lengths."""

import numpy as np
import pytest
import torch

from rc_lib.transcript import Transcript, collate


def build(*spans):
    transcript = Transcript()
    for kind, ids in spans:
        transcript.append(kind, ids, [-0.5] * len(ids) if kind == "model" else None)
    return transcript


LONG = build(("prompt", [4, 5, 6]), ("model", [7, 0]), ("tool", [0, 8]), ("model", [9, 0]))
SHORT = build(("prompt", [4]), ("model", [0]))


def test_mask_is_true_on_model_spans_only_and_includes_the_end_id():
    assert LONG.mask().tolist() == [0, 0, 0, 1, 1, 0, 0, 1, 1]
    assert LONG.mask().dtype == bool
    assert LONG.model_tokens == LONG.mask().sum() == 4


def test_ids_logprobs_and_mask_have_one_length():
    assert len(LONG) == len(LONG.ids) == len(LONG.logprobs) == len(LONG.mask()) == 9
    assert np.isnan(np.array(LONG.logprobs)[~LONG.mask()]).all()


def test_a_transcript_changed_past_append_is_caught():
    broken = build(("prompt", [4]), ("model", [5]))
    broken.ids.append(6)
    with pytest.raises(AssertionError, match="3 ids but 2 log-probabilities"):
        broken.check()
    broken.logprobs.append(0.0)
    with pytest.raises(AssertionError, match="do not cover 3 ids"):
        collate([broken], pad_id=0)


def test_an_id_equal_to_pad_or_end_is_masked_by_its_span_alone():
    batch = collate([LONG, SHORT], pad_id=0)
    assert batch["model_mask"][0].tolist() == LONG.mask().tolist()
    assert batch["model_mask"][1].tolist() == [False, True] + [False] * 7
    assert batch["attention_mask"].sum(1).tolist() == [9, 2]


def test_the_pad_id_changes_nothing_but_the_padding():
    a, b = collate([LONG, SHORT], pad_id=0), collate([LONG, SHORT], pad_id=9)
    real = a["attention_mask"].bool()
    assert torch.equal(a["input_ids"][real], b["input_ids"][real])
    for name in ("attention_mask", "position_ids", "model_mask", "old_logprobs"):
        assert torch.equal(a[name], b[name])


def test_collate_types_and_values():
    batch = collate([SHORT, LONG], pad_id=3)
    assert batch["input_ids"].tolist() == [[4, 0] + [3] * 7, LONG.ids]
    assert batch["position_ids"].tolist() == [list(range(9))] * 2
    assert batch["old_logprobs"].tolist()[0] == [0.0, -0.5] + [0.0] * 7
    kinds = {name: tensor.dtype for name, tensor in batch.items()}
    assert kinds == {
        "input_ids": torch.int64,
        "attention_mask": torch.int64,
        "position_ids": torch.int64,
        "model_mask": torch.bool,
        "old_logprobs": torch.float32,
    }


def test_a_demonstration_has_model_spans_without_logprobs():
    transcript = Transcript()
    transcript.append("model", [1, 2])
    assert transcript.mask().all()
    assert np.isnan(transcript.logprobs).all()
    assert collate([transcript], pad_id=0)["old_logprobs"].isnan().all()


@pytest.mark.parametrize(
    ("kind", "ids", "logprobs", "message"),
    [
        ("assistant", [1], None, "unknown span kind 'assistant'"),
        ("tool", [], None, "needs at least one id"),
        ("tool", [1], [-0.1], "only model spans have"),
        ("model", [1, 2], [-0.1], "2 ids but 1 log-probabilities"),
        ("model", [1], [float("nan")], "must be finite"),
    ],
)
def test_faulty_spans_are_refused_and_leave_the_transcript_as_it_was(kind, ids, logprobs, message):
    transcript = build(("prompt", [4]))
    with pytest.raises(ValueError, match=message):
        transcript.append(kind, ids, logprobs)
    assert (transcript.ids, len(transcript.spans)) == ([4], 1)


def test_collate_refuses_nothing_and_emptiness():
    with pytest.raises(ValueError, match="got lengths"):
        collate([], pad_id=0)
    with pytest.raises(ValueError, match="got lengths"):
        collate([LONG, Transcript()], pad_id=0)
