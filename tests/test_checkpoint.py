"""The run folder: logs, atomic checkpoints, and what may go on from them."""

import json

import pytest
import torch

from rc_lib.checkpoint import CHECKPOINT, RunFolder, checksum

LINES = {"curve.csv": (1, 1), "rollouts.jsonl": (0, 2)}


def make_state(value=0.0):
    weights = {"a": torch.full((2, 3), value, requires_grad=True), "b": torch.zeros(2)}
    weights["b"].requires_grad_()
    return weights, torch.optim.AdamW(weights.values(), lr=0.1)


def train(weights, optimizer):
    sum((w - 1.0).square().sum() for w in weights.values()).backward()
    optimizer.step()
    optimizer.zero_grad()


def log(folder, step):
    folder.append_csv("curve.csv", {"step": step, "reward": 0.1 * step})
    folder.append_json("rollouts.jsonl", [{"step": step}] * 2)


def test_weights_optimizer_and_logs_come_back(tmp_path):
    folder, (weights, optimizer) = RunFolder(tmp_path, {"seed": 1}), make_state()
    for step in range(3):
        train(weights, optimizer)
        log(folder, step)
        if step == 1:
            folder.save(2, weights, optimizer)
            kept = {name: (tmp_path / name).read_bytes() for name in LINES}
    folder._append("curve.csv", "3,0.")  # killed in the middle of a line
    again, optimizer_again = make_state(5.0)
    done = RunFolder(tmp_path, {"seed": 1}).resume(again, optimizer_again, LINES)
    assert done == 2
    assert kept == {name: (tmp_path / name).read_bytes() for name in LINES}
    train(again, optimizer_again)
    for name, weight in weights.items():
        assert torch.equal(weight, again[name])


def test_a_new_folder_starts_at_zero_and_forgets_logs_without_a_checkpoint(tmp_path):
    folder, state = RunFolder(tmp_path / "new", {}), make_state()
    log(folder, 0)
    assert folder.resume(*state, LINES) == 0
    assert [path.name for path in (tmp_path / "new").iterdir()] == [CHECKPOINT]
    train(*state)
    assert folder.resume(*state, LINES) == 0
    assert not state[0]["a"].any()
    assert not state[1].state


def test_saving_the_same_state_writes_the_same_bytes(tmp_path):
    written = []
    for name in ("x", "y"):
        folder, state = RunFolder(tmp_path / name, {"seed": 1, "list": (1, 2)}), make_state()
        train(*state)
        folder.save(1, *state)
        written.append((folder.path / CHECKPOINT).read_bytes())
    again = make_state()
    folder.resume(*again, {})
    folder.save(1, *again)
    assert written == [(folder.path / CHECKPOINT).read_bytes()] * 2


def test_a_save_that_fails_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    folder, state = RunFolder(tmp_path, {}), make_state()
    folder.save(1, *state)
    before = (tmp_path / CHECKPOINT).read_bytes()

    def full_disk(tensors, path, metadata):
        path.write_bytes(b"half")
        raise OSError("No space left on device")

    monkeypatch.setattr("rc_lib.checkpoint.save_file", full_disk)
    with pytest.raises(OSError, match="No space"):
        folder.save(2, *state)
    assert (tmp_path / CHECKPOINT).read_bytes() == before


def test_a_checkpoint_of_another_run_is_refused_by_name(tmp_path):
    state = make_state()
    RunFolder(tmp_path, {"seed": 1, "beta": 0.1}).save(1, *state)
    with pytest.raises(ValueError, match=r"beta = 0\.1, this one has 0\.2"):
        RunFolder(tmp_path, {"seed": 1, "beta": 0.2}).resume(*state, {})
    with pytest.raises(ValueError, match="new = None, this one has 3"):
        RunFolder(tmp_path, {"seed": 1, "beta": 0.1, "new": 3}).resume(*state, {})


def test_a_log_shorter_than_its_checkpoint_is_an_error(tmp_path):
    folder, state = RunFolder(tmp_path, {}), make_state()
    log(folder, 0)
    folder.save(2, *state)
    with pytest.raises(ValueError, match=r"curve\.csv has 2 lines, its checkpoint needs 3"):
        folder.resume(*state, LINES)


def test_rows_are_csv_with_blanks_for_nan_and_records_are_json(tmp_path):
    folder = RunFolder(tmp_path, {})
    folder.append_csv("curve.csv", {"step": 0, "mu": float("nan"), "kl": 1e-300})
    folder.append_csv("curve.csv", {"step": 1, "mu": 0.1 + 0.2, "kl": 0.0})
    assert (tmp_path / "curve.csv").read_text() == (
        "step,mu,kl\n0,,1e-300\n1,0.30000000000000004,0.0\n"
    )
    folder.append_json("rollouts.jsonl", [{"text": "a\nb\u2028"}, {"ids": [1]}])
    lines = (tmp_path / "rollouts.jsonl").read_bytes().split(b"\n")
    assert [json.loads(line) for line in lines[:-1]] == [{"text": "a\nb\u2028"}, {"ids": [1]}]


def test_the_checksum_tells_names_values_and_types_apart():
    one = torch.ones(3)
    sums = {
        checksum({"a": one}),
        checksum({"b": one}),
        checksum({"a": one * 2}),
        checksum({"a": one.bfloat16()}),
        checksum({"a": one, "b": one}),
    }
    assert len(sums) == 5
