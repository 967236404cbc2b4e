"""The comparison that the kill check makes, and what it does to processes."""

import json
import subprocess
import sys
import time

import psutil
import pytest

from scripts import kill_check


@pytest.fixture
def results(tmp_path):
    """Return a function that writes a results folder."""

    def write(name, reward="1", loss=0.5, **times):
        folder = tmp_path / name
        record = folder / "records" / "seed0" / "sft"
        record.mkdir(parents=True)
        (record / "per_item.csv").write_text(reward)
        (record / "timing.csv").write_text(f"{times}")
        (record / "metrics.json").write_text(json.dumps({"loss": loss} | times))
        (record / "manifest.json").write_text(json.dumps({"wall_s": str(times)}))
        return folder

    return write


def test_times_may_differ_and_nothing_else(results):
    one = results("one", rl_seconds=1)
    assert kill_check.differences(one, results("two", rl_seconds=2)) == []
    other = results("three", reward="0", loss=0.4)
    (other / "figures").mkdir()
    (other / "figures" / "x.png").touch()
    changed = ["figures/x.png", "records/seed0/sft/metrics.json", "records/seed0/sft/per_item.csv"]
    assert kill_check.differences(one, other) == changed
    assert kill_check.differences(other, one) == changed


CHILD = "import time; time.sleep(60)"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {CHILD!r}])"


def pipeline():
    process = subprocess.Popen([sys.executable, "-c", PARENT])
    while not psutil.Process(process.pid).children():
        time.sleep(0.02)
    return process


def test_a_process_that_outlives_the_pipeline_is_counted(tmp_path, monkeypatch):
    process = pipeline()
    [child] = psutil.Process(process.pid).children()
    with monkeypatch.context() as patch:
        patch.setattr(kill_check, "PATIENCE_S", 0.2)
        assert kill_check.kill(process, tmp_path, 1.0, everything=False).survivors == 1
    child.kill()
    assert kill_check.kill(pipeline(), tmp_path, 1.0, everything=True) == (
        1.0, "all", "(between stages)", 0
    )  # fmt: skip


def test_a_failed_run_is_a_problem(tmp_path):
    assert kill_check._compared(tmp_path, tmp_path, 2) == [
        f"a re-run failed with status 2; see {tmp_path}.log"
    ]
