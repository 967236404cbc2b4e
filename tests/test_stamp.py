"""Whether a stage's work still stands, and why not; what `rc status` says of it."""

import json
import os
import subprocess
import sys

import pytest

from rc_lib import paths, stamp
from rc_lib.manifest import write_json
from rc_lib.scheduler import Run
from rc_lib.stage import Stage
from rc_lib.stamp import key_parts, look, output_hashes, read_stamp, survey
from rc_lib.status import status_lines


@pytest.fixture
def pair(make_notebook, tmp_path, monkeypatch):
    """A stage that writes two records, and one that needs it."""
    monkeypatch.setattr(paths, "NOTEBOOKS", tmp_path)
    for name in ("50_a", "51_b"):
        make_notebook(tmp_path / f"{name}.ipynb", "seed: int = 0")
    need = Stage("50_a", {"seed": 0, "results_dir": "x"}, (), 0, ("base", "sft"))
    return need, Stage("51_b", {"seed": 0}, (need,), 0, ("sft_grpo",))


@pytest.fixture
def done(tmp_path):
    """Return a function that writes a stage's files and its stamp, and returns the stamp."""

    def write(stage, stamps=(), text="x", **fields):
        for folder in stage.folders(tmp_path):
            folder.mkdir(parents=True, exist_ok=True)
            for name in ("per_item.csv", "manifest.json", "timing.csv"):
                (folder / name).write_text(text)
        made = {"state": "done", "seconds": 60.0, "finished": "2026-01-01 12:00"}
        made |= {"outputs": output_hashes(stage, tmp_path), "parts": key_parts(stage, dict(stamps))}
        return json.loads(write_json(made | fields, stage.file("stages", tmp_path)).read_text())

    return write


def states(stages, results):
    return [(state.kind, *state.why) for state in survey(stages, results).values()]


def test_finished_stages_are_cached_wherever_their_folder_lies(pair, done, tmp_path):
    first, second = pair
    done(second, {first.title: done(first)})
    assert states(pair, tmp_path) == [("cached",), ("cached",)]
    moved = Stage(first.notebook, {"seed": 0, "results_dir": "y"}, (), 0, first.arms)
    assert look(moved, tmp_path, {}).kind == "cached"
    assert states(pair, tmp_path / "elsewhere") == [("missing",), ("missing",)]


def test_a_damaged_or_missing_output_is_named_and_what_needs_it_waits(pair, done, tmp_path):
    first, second = pair
    done(second, {first.title: done(first)})
    records = tmp_path / "records" / "seed0"
    (records / "base" / "per_item.csv").write_text("")
    (tmp_path / "checkpoints" / "seed0" / "sft" / "per_item.csv").unlink()
    assert states(pair, tmp_path) == [
        (
            "stale",
            "checkpoints/seed0/sft/per_item.csv is missing",
            "records/seed0/base/per_item.csv is damaged",
        ),
        ("stale", f"it needs {first.title} first"),
    ]


def test_a_damaged_table_is_noticed_and_the_executed_copy_counts_only_alone(pair, done, tmp_path):
    table = Stage(pair[0].notebook, {}, writes=("paper_tables/table9.*",))
    for file in (tmp_path / "paper_tables" / "table9.csv", table.file("notebooks", tmp_path)):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("whole")
    done(table)
    table.file("notebooks", tmp_path).write_text("opened and saved")
    assert look(table, tmp_path, {}).kind == "cached"
    (tmp_path / "paper_tables" / "table9.csv").write_text("hal")
    assert look(table, tmp_path, {}).why == ("paper_tables/table9.csv is damaged",)
    alone = Stage(pair[1].notebook, {})
    alone.file("notebooks", tmp_path).write_text("whole")
    done(alone)
    alone.file("notebooks", tmp_path).unlink()
    assert look(alone, tmp_path, {}).why == ("notebooks/51_b.ipynb is missing",)


def test_other_outputs_of_a_need_change_the_key_but_times_and_manifests_do_not(
    pair, done, tmp_path
):
    first, second = pair
    done(second, {first.title: done(first)})
    for name in ("manifest.json", "timing.csv"):
        (paths.record_dir(tmp_path, 0, "sft") / name).write_text("another time")
    write_json(read_stamp(first.file("stages", tmp_path)) | {
        "outputs": output_hashes(first, tmp_path)
    }, first.file("stages", tmp_path))  # fmt: skip
    assert states(pair, tmp_path) == [("cached",), ("cached",)]
    done(first, text="other results")
    assert states(pair, tmp_path)[1] == ("stale", f"output of {first.title} changed")


def test_the_changed_part_of_a_key_is_the_reason(pair, done, tmp_path, make_notebook, monkeypatch):
    first, _ = pair
    made = done(first)

    def reasons():
        return look(first, tmp_path, {}).why

    for parts, reason in (
        ({"parameter seed": "1"}, "parameter seed changed"),
        ({"module rc_lib.gone": "0"}, "module rc_lib.gone is gone"),
        ({"requirements.lock": "0"}, "requirements.lock changed"),
    ):
        done(first, parts=made["parts"] | parts)
        assert reasons() == (reason,)
    done(first)
    (tmp_path / "rc_lib").mkdir()
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    for name in stamp.LOCKS:
        (tmp_path / name).write_text("a==1\n")
    assert reasons() == ("requirements.lock changed", "requirements-nodeps.lock changed")
    done(first)
    make_notebook(tmp_path / "50_a.ipynb", "seed: int = 0", "import rc_lib.one")
    (tmp_path / "rc_lib" / "one.py").write_text("X = 1")
    assert reasons() == ("notebook changed", "module rc_lib.one is new")


def test_the_base_policy_is_an_input_of_what_reads_a_policy(make_notebook, tmp_path):
    path = make_notebook(tmp_path / "50_a.ipynb", "profile: str = ''", "import rc_lib.policy")
    reads = key_parts(Stage(str(path), {"profile": "tiny"}), {})
    assert len(reads["input models/tiny-base/model.safetensors"]) == 64
    make_notebook(path, "profile: str = ''", "import rc_lib.stats")
    assert not [name for name in key_parts(Stage(str(path), {"profile": "tiny"}), {})
                if name.startswith("input")]  # fmt: skip


@pytest.mark.parametrize(
    "text", ["", "[1]", "{", '{"state": "x"}', '{"key": "0", "state": "done", "seconds": 1}']
)
def test_a_stamp_that_is_damaged_or_of_another_form_counts_as_none(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    assert read_stamp(tmp_path / "x.json") == {}


def started(stage, results, pid, **parts):
    write_json(
        {"state": "started", "pid": pid, "parts": key_parts(stage, {}) | parts},
        stage.file("stages", results),
    )


def test_a_started_stage_runs_or_was_interrupted_or_is_stale(pair, tmp_path):
    first, _ = pair
    started(first, tmp_path, os.getpid())  # lives, but is no notebook
    assert look(first, tmp_path, {}).kind == "interrupted"
    started(first, tmp_path, os.getpid(), notebook="0")
    assert look(first, tmp_path, {}).kind == "stale"
    words = [sys.executable, "-c", "input()", "run-notebook"]
    with subprocess.Popen(words, stdin=subprocess.PIPE) as process:
        started(first, tmp_path, process.pid)
        assert look(first, tmp_path, {}).kind == "running"
        process.communicate(b"\n")
    assert look(first, tmp_path, {}).kind == "interrupted"


def test_status_shows_states_reasons_times_and_what_is_left(pair, done, tmp_path):
    first, second = pair
    other = Stage(second.notebook, {"seed": 1}, (first,), 1, ("sft_grpo",))
    stages = [first, second, other]

    def status():
        return status_lines(Run(stages, tmp_path, 2, lambda notebook: 600.0))

    assert [line.split()[0] for line in status()[1:-1]] == ["missing"] * 3
    assert status()[-1] == "0 of 3 stages are cached; with 2 jobs about 15:00 left"
    stamps = {first.title: done(first)}
    done(second, stamps, seconds=90.0, parts={**key_parts(second, stamps), "notebook": "0"})
    lines = status()
    assert lines[1] == f"cached           1:00  {first.title}"
    assert lines[2] == f"stale           ~1:30  {second.title}: notebook changed"
    assert lines[3] == f"missing         ~1:30  {other.title}"
    assert lines[4] == "1 of 3 stages are cached; with 2 jobs about 1:30 left"
    done(second, stamps)
    done(other, stamps)
    assert status()[-1] == "3 of 3 stages are cached; with 2 jobs all done"


def test_status_writes_nothing(pair, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    status_lines(Run(list(pair), tmp_path, 1, lambda notebook: 1.0))
    assert sorted(tmp_path.rglob("*")) == before
