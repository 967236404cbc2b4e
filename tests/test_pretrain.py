"""Pretraining: documents keep to their partition, the run is resumable and repeatable."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from test_generated import slot_values

from rc_lib.pretrain import (
    PretrainConfig,
    assistant_mask,
    batch_places,
    build_corpus,
    document,
    function_manuals,
    paraphrase,
    pretrain,
    repeated_values,
)
from rc_lib.seeding import rng
from rc_lib.tasks.generated import generated_tasks

CONFIG = replace(
    PretrainConfig(), documents=60, vocab_size=600, hidden=16, layers=1, heads=2, length=64,
    batch_size=4, steps=6, checkpoint_every=2, warmup_steps=2,
)  # fmt: skip


def test_no_document_holds_a_slot_value_of_the_tasks():
    manuals = function_manuals()
    corpus = " ".join(document(i, CONFIG, manuals) for i in range(400))
    quoted = set(re.findall(r"'([^']*)'", corpus))
    assert len(quoted) > 300
    for name in ("train", "test", "power", "unseen_wording"):
        for task in generated_tasks(name):
            assert not {v for v in slot_values(task) if not v.isdigit()} & quoted, task


def test_calls_in_documents_are_answered_without_an_error():
    manuals = function_manuals()
    for index in range(200):
        text = document(index, CONFIG, manuals)
        assert '"error"' not in text and "Error during execution" not in text


def test_the_share_of_whole_tasks_is_as_configured():
    config = replace(CONFIG, task_share=0.5)
    manuals = function_manuals()
    whole = sum("[done()]" in document(i, config, manuals) for i in range(200))
    assert 70 < whole < 130
    none = replace(CONFIG, task_share=0.0)
    assert not any("[done()]" in document(i, none, manuals) for i in range(200))


def test_a_repeating_assistant_repeats_the_user():
    for index in range(30):
        user, assistant = repeated_values(rng(0, "test-repeat", index))
        values = assistant.content.removeprefix("[").removesuffix("]")
        assert user.content == f"Repeat {values}." and values.count(",") >= 2


def test_a_paraphrase_names_the_same_values_and_holds_no_call():
    for index in range(60):
        user, assistant = paraphrase(rng(0, "test-paraphrase", index))
        values = re.findall(r"'[^']*'|\d+(?:\.\d+)?", assistant.content)
        assert sorted(values) == sorted(re.findall(r"'[^']*'|\d+(?:\.\d+)?", user.content))
        assert "(" not in assistant.content


def test_assistant_mask_equals_a_loop_over_the_tokens():
    tokens = np.random.default_rng(0).integers(0, 6, size=500)
    expected, inside = [], False
    for token in tokens:
        expected.append(inside)
        inside = token == 1 or (inside and token != 2)
    assert assistant_mask(tokens, assistant=1, end=2).tolist() == expected


def test_a_stopped_run_goes_on_to_the_same_bytes(tmp_path, monkeypatch):
    whole = pretrain(CONFIG, tmp_path / "whole", progress=False)

    def stopping(config, size, step):
        if step == 5:  # one step behind the second checkpoint
            raise KeyboardInterrupt
        return batch_places(config, size, step)

    monkeypatch.setattr("rc_lib.pretrain.batch_places", stopping)
    with pytest.raises(KeyboardInterrupt):
        pretrain(CONFIG, tmp_path / "stopped", progress=False)
    monkeypatch.undo()
    resumed = pretrain(CONFIG, tmp_path / "stopped", progress=False)
    a, b = whole.model.state_dict(), resumed.model.state_dict()
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_a_corpus_is_made_once_for_a_configuration(tmp_path):
    build_corpus(CONFIG, tmp_path, progress=False)
    first = (tmp_path / "tokens.npy").stat().st_mtime_ns
    build_corpus(CONFIG, tmp_path, progress=False)
    assert (tmp_path / "tokens.npy").stat().st_mtime_ns == first
    build_corpus(replace(CONFIG, documents=61), tmp_path, progress=False)
    assert (tmp_path / "tokens.npy").stat().st_mtime_ns != first
