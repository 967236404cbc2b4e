"""Every committed notebook: its form, and one run of all of them at the smoke profile."""

import json
import os
import re
import subprocess
import sys

import pytest

from rc_lib import notebook, paths, pipeline
from rc_lib.errors import RcError

NOTEBOOKS = sorted(paths.NOTEBOOKS.glob("*.ipynb"))
# Only smoke runs it: the base is committed.
ALSO = ("05_pretrain_tiny_base",)
SMOKE_TIMEOUT_S = 1800  # takes minutes; a notebook that hangs is to fail
every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def cells(path):
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def test_all_declared_notebooks_exist_and_all_that_exist_are_declared():
    declared = pipeline.stages("smoke", 1, "runs/smoke", ALSO)
    assert {stage.notebook for stage in declared} == {path.stem for path in NOTEBOOKS}


@every_notebook
def test_a_notebook_is_committed_without_outputs(path):
    for cell in cells(path):
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None, cell["source"]


@every_notebook
def test_no_cell_is_longer_than_25_lines(path):
    for cell in cells(path):
        assert len("".join(cell["source"]).splitlines()) <= 25, cell["source"]


@every_notebook
def test_a_notebook_opens_with_its_question_and_ends_with_what_would_change_it(path):
    prose = ["".join(c["source"]) for c in cells(path) if c["cell_type"] == "markdown"]
    assert prose[0].startswith(f"# {path.stem[:2]} ") and "**Question.**" in prose[0]
    assert "What would change this conclusion" in prose[-1]


@every_notebook
def test_every_parameter_is_annotated_and_an_unknown_one_is_an_error(path):
    for parameter in notebook.declared_parameters(path).values():
        assert notebook.fits(parameter.default, parameter.annotation), parameter
    with pytest.raises(RcError, match="unknown parameter no_such_name=1; declared: profile: str"):
        notebook.check_parameters(path, {"no_such_name": 1})


def test_nothing_captures_output_in_a_widget():
    """An Output widget sends messages while its cell runs, and papermill may miss the cell's end
    and wait for ever; a widget that holds HTML or an image sends none."""
    for path in [*NOTEBOOKS, *(paths.ROOT / "rc_lib").rglob("*.py")]:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"\binteract(ive|_manual)?\(|\bOutput\(|widgets\.Output", text), path


@pytest.mark.notebooks
def test_every_notebook_runs_at_smoke(tmp_path):
    words = ["reproduce", "--profile", "smoke", "--seeds", "1"]
    words += [word for name in ALSO for word in ("--also", name)]
    done = subprocess.run(
        [sys.executable, "-m", "rc_lib", *words, "--results-dir", str(tmp_path)],
        cwd=paths.ROOT,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=SMOKE_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    executed = {path.stem.split("-")[0] for path in (tmp_path / "notebooks").glob("*.ipynb")}
    assert executed == {path.stem for path in NOTEBOOKS}
    for name in ("table1_bfcl.csv", "table1_bfcl.tex", "table1_bfcl.md"):
        assert (tmp_path / "paper_tables" / name).stat().st_size > 0
    for name in ("training_dynamics.pdf", "training_dynamics.png"):
        assert (tmp_path / "figures" / name).stat().st_size > 0
