"""Our verdicts beside the official checker's, and the `bfcl` commands."""

import json
import subprocess
import sys

import numpy as np
import pytest

from rc_lib import verify
from rc_lib.cli import main
from rc_lib.tasks.bfcl import bfcl_task, bfcl_tasks
from rc_lib.tasks.corruptions import CORRUPTIONS, corrupted_trajectory, reference_trajectory


@pytest.fixture(scope="module")
def frame():
    return verify.verify(n_corrupt=5_200, seed=1, limit=240)


def test_verdicts_agree_with_the_official_checker(frame):
    assert len(frame) >= 240
    assert frame[frame.official != frame.theirs].empty


def test_all_references_pass_and_corruptions_are_of_both_sorts(frame):
    references = frame[frame.kind == "reference"]
    assert len(references) > 30
    assert (references[["official", "strict", "reward", "barred"]] == 1.0).all(axis=None)
    corrupted = frame[frame.kind != "reference"]
    assert 0.2 < corrupted.official.mean() < 0.8
    assert set(corrupted.kind) <= set(CORRUPTIONS)


def test_strict_is_never_more_than_official(frame):
    assert (frame.strict <= frame.official).all()
    assert (frame.reward == frame.state * frame.action).all()


def test_a_wrong_verdict_of_ours_is_reported(frame):
    wrong = frame.copy()
    wrong.loc[0, "official"] = 1.0 - wrong.loc[0, "official"]
    outcome = verify.report(wrong, seed=1)
    n = (frame.kind == "reference").sum()
    assert outcome["references"] == f"{n - 1}/{n}"
    assert outcome["disagreements"][0]["task_id"] == frame.task_id[0]


def test_the_official_checker_starts_afresh_for_each_trajectory():
    checker = verify.OfficialChecker()
    task = bfcl_task("multi_turn_base_0")
    right = reference_trajectory(task)
    before = set(checker._globals)
    assert [checker.valid(task, t) for t in ([[]] * 4, right, right)] == [False, True, True]
    assert set(checker._globals) == before


def test_corruptions_repeat_with_the_seed_and_leave_the_task_alone():
    for task in bfcl_tasks("test"):
        text = task.to_json()
        first, again = (corrupted_trajectory(task, np.random.default_rng(3)) for _ in range(2))
        assert first == again
        assert task.to_json() == text


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_every_kind_of_corruption_changes_the_reference(kind):
    draw = np.random.default_rng(0)
    changed = 0
    for task in bfcl_tasks("test"):
        turns = CORRUPTIONS[kind]([list(calls) for calls in task.reference], task, draw)
        changed += turns is not None and turns != [list(calls) for calls in task.reference]
    assert changed > 10


def test_step_shows_calls_results_and_what_changed():
    answer = verify.step_text("multi_turn_base_0", "[cd('document'), mkdir('temp'), nope()]")
    assert answer["calls"] == ["cd('document')", "mkdir('temp')", "nope()"]
    assert answer["results"][0] == '{"current_working_directory": "document"}'
    assert answer["diff"] == {"GorillaFileSystem.root/document/temp": [None, "directory"]}
    assert answer["state_changed"] is True
    assert answer["error"] == "Error during execution: name 'nope' is not defined"


def test_step_command_answers_each_line_on_a_fresh_environment(tmp_path):
    lines = ["[mkdir('new')]", "[mkdir('new')]", "__import__('os').system('touch gone')", "\ud800"]
    text = "".join(json.dumps(line) + "\n" for line in lines) + "not json\n" + "[" * 90_000 + "\n"
    done = subprocess.run(
        [sys.executable, "-m", "rc_lib", "bfcl", "step", "--task", "multi_turn_base_0", "--stdin"],
        input=text.encode() + b'"\xff"\n' + json.dumps("ls()").encode(),
        capture_output=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == 8
    assert [answer["error"] is None for answer in answers] == [True, True, *[False] * 5, True]
    assert answers[1]["results"] == ["None"]


def test_step_command_prints_one_line(capsys):
    assert main(["bfcl", "step", "--task", "multi_turn_base_0", "ls()"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["results"][0].startswith('{"current_directory_content"')


def test_a_wrong_task_is_one_line_on_stderr(capsys):
    assert main(["bfcl", "step", "--task", "base_0", "ls()"]) == 2
    assert "no BFCL task 'base_0'" in capsys.readouterr().err


@pytest.mark.parametrize(("broken", "status"), [(False, 0), (True, 1)])
def test_verify_command_prints_agreement_and_fails_on_a_difference(
    broken, status, frame, tmp_path, capsys, monkeypatch
):
    shown = frame.copy()
    if broken:
        shown.loc[0, "official"] = 0.0
    monkeypatch.setattr(verify, "verify", lambda *args, **options: shown)
    path = tmp_path / "verify.json"
    assert main(["bfcl", "verify", "--corrupt", "5", "--json", str(path)]) == status
    out = capsys.readouterr().out
    assert "agreement on corrupted trajectories" in out
    assert ("DISAGREEMENT" in out) == broken
    assert json.loads(path.read_text())["bfcl_eval"] == "2026.3.23"
