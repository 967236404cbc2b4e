"""The locks, pyproject.toml and environment.yml agree; scripts/setup.sh says what is wrong."""

import ast
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tomllib

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from rc_lib.paths import ROOT

LOCKS = ("requirements.lock", "requirements-nodeps.lock")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]


def requirements(lines):
    lines = (line.partition("#")[0].strip() for line in lines)
    return {canonicalize_name(r.name): r for r in map(Requirement, filter(None, lines))}


def pins(*names):
    return requirements(line for name in names for line in (ROOT / name).read_text().splitlines())


def direct():
    return requirements(PROJECT["dependencies"] + PROJECT["optional-dependencies"]["dev"])


def only_version(pin):
    (specifier,) = pin.specifier
    assert specifier.operator == "==", f"{pin} is no exact pin"
    return Version(specifier.version)


# --- one set of packages


def test_the_lock_satisfies_every_range_of_pyproject():
    locked = pins(*LOCKS)
    for name, requirement in direct().items():
        assert name in locked, f"{name} is not locked"
        assert only_version(locked[name]) in requirement.specifier, f"{name}: {requirement}"


def test_the_installed_packages_are_the_locked_ones():
    for name, pin in pins(*LOCKS).items():
        if pin.marker is None or pin.marker.evaluate():
            installed = Version(importlib.metadata.version(name))
            assert installed.public == only_version(pin).public, f"{name} {installed}: make setup"


def test_the_lock_holds_all_that_the_locked_packages_need():
    locked = pins("requirements.lock")
    for name, pin in locked.items():
        if pin.marker is not None and not pin.marker.evaluate():
            continue
        for text in importlib.metadata.requires(name) or ():
            need = Requirement(text)
            if need.marker is None or need.marker.evaluate({"extra": ""}):
                if canonicalize_name(need.name).startswith(("nvidia-", "cuda-", "triton")):
                    continue  # torch pins what its GPU builds need
                assert canonicalize_name(need.name) in locked, f"{name} needs {need}"


def test_conda_gives_the_same_set():
    text = (ROOT / "environment.yml").read_text()
    python, pip, section = yaml.safe_load(text)["dependencies"]
    assert python.removeprefix("python ") == PROJECT["requires-python"] and pip == "pip"
    from_pip = [line.removeprefix("-r ") for line in section["pip"]]
    # A list of requirements cannot say --no-deps, so that lock is the second command at its head.
    second = next(line for line in text.splitlines() if "pip install --no-deps" in line)
    from_command = second.split("-r ")[1].split()[0]
    assert pins(*from_pip, from_command) == pins(*LOCKS)


def test_bfcl_eval_is_installed_without_its_dependencies():
    assert list(pins("requirements-nodeps.lock")) == ["bfcl-eval"]
    assert "bfcl-eval" not in pins("requirements.lock") and "bfcl-eval" not in direct()


def imported_packages():
    for folder in ("rc_lib", "tests", "benchmarks"):
        for path in (ROOT / folder).rglob("*.py"):
            if "golden" in path.parts:  # run by hand, elsewhere
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom) and node.level == 0:
                    names = [node.module]
                yield from ((name.partition(".")[0], path) for name in names)


def test_every_imported_package_is_declared():
    known = set(direct()) | set(requirements(PROJECT["optional-dependencies"]["qa"]))
    known |= {"bfcl-eval", "rc-lib"}
    distributions = importlib.metadata.packages_distributions()
    own = {path.stem for path in (ROOT / "tests").iterdir()} | {"rc_lib", "scripts", "tests"}
    for module, path in set(imported_packages()):
        if module not in sys.stdlib_module_names and module not in own:
            names = {canonicalize_name(name) for name in distributions.get(module, [module])}
            assert names & known, f"{path.name} imports {module}, missing in pyproject.toml"


# --- licences


def test_licence_citation_and_attribution_agree():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["license"] == PROJECT["license"] == "Apache-2.0"
    assert citation["version"] == PROJECT["version"]
    assert "Apache License" in (ROOT / "LICENSE").read_text().splitlines()[1]
    notice = (ROOT / "NOTICE").read_text()
    bfcl = only_version(pins(*LOCKS)["bfcl-eval"])
    assert f"bfcl-eval {bfcl}" in notice and "ShishirPatil/gorilla" in notice


# --- scripts/setup.sh, with a stand-in for Python that records what it is asked

STAND_IN = """#!/bin/bash
case "$*" in
  *version_info*) [ -n "$FAKE_VERSION" ] && echo "$FAKE_VERSION" ;;
  "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  *) echo "$*" >>calls.txt; printf '%b' "$FAKE_SAYS"; exit "${FAKE_STATUS:-0}" ;;
esac
"""


@pytest.fixture
def setup(tmp_path):
    """Return a function that runs setup.sh in a copy of the repository's set-up files."""
    (tmp_path / "tree" / "scripts").mkdir(parents=True)
    for name in (*LOCKS, "pyproject.toml", "scripts/setup.sh"):
        shutil.copy(ROOT / name, tmp_path / "tree" / name)
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()

    def executable(name, text):
        (bin_folder / name).write_text(text)
        (bin_folder / name).chmod(0o755)

    for name in ("python3", "python3.11", "python3.12"):
        executable(name, STAND_IN)
    executable("df", '#!/bin/bash\nprintf "head\\nx 1 1 ${FAKE_FREE_KB:-90000000} 1%% /\\n"\n')

    def run(**settings):
        environment = {"PATH": f"{bin_folder}:{os.environ['PATH']}", "FAKE_VERSION": "3.11"}
        return subprocess.run(
            ["bash", str(tmp_path / "tree" / "scripts" / "setup.sh")],
            env=environment | settings,
            capture_output=True,
            text=True,
        )

    return run


def calls(tmp_path):
    path = tmp_path / "tree" / "calls.txt"
    return path.read_text().splitlines() if path.exists() else []


def test_setup_installs_the_locks_then_the_project_and_then_does_nothing(setup, tmp_path):
    done = setup()
    assert done.returncode == 0 and done.stderr == ""
    asked = calls(tmp_path)
    assert len(asked) == 3 and asked[0].endswith("install -q -r requirements.lock")
    assert "--no-deps" in asked[1] and "-r requirements-nodeps.lock -e ." in asked[1]
    assert "ipykernel install --sys-prefix" in asked[2]
    assert setup().stdout == "setup: up to date\n"
    assert calls(tmp_path) == asked


def test_a_changed_lock_brings_the_environment_up_to_date_without_rebuilding_it(setup, tmp_path):
    setup()
    kept = tmp_path / "tree" / ".venv" / "kept"
    kept.touch()
    with open(tmp_path / "tree" / "requirements.lock", "a") as lock:
        lock.write("new==1\n")
    assert setup().returncode == 0
    assert len(calls(tmp_path)) == 6 and kept.exists()


def test_an_interrupted_setup_starts_again(setup, tmp_path):
    setup(FAKE_STATUS="1")
    assert setup().stdout.endswith("setup: done\n")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"FAKE_VERSION": "3.9"}, "needs Python 3.11 or 3.12, but python3 is 3.9; install one"),
        ({"FAKE_VERSION": ""}, "needs Python 3.11 or 3.12, but python3 is missing; install one"),
        ({"PYTHON": "no-such-python"}, "but no-such-python is missing"),
        ({"FAKE_FREE_KB": "1048576"}, "only 1 GB free in"),
        (
            {"FAKE_STATUS": "1", "FAKE_SAYS": "OSError: [Errno 28] No space left on device\n"},
            "the disk got full; free 3 GB here",
        ),
        (
            {
                "FAKE_STATUS": "1",
                "FAKE_SAYS": "WARNING: Retrying after connection broken by 'x'\n"
                "ERROR: No matching distribution found for torch==2.13.0\n",
            },
            "cannot reach the package registry; check network, proxy",
        ),
        (
            {"FAKE_STATUS": "1", "FAKE_SAYS": "ERROR: No matching distribution for x==1\nmore\n"},
            "ERROR: No matching distribution for x==1 (details: .venv/setup.log)",
        ),
        ({"FAKE_STATUS": "1", "FAKE_SAYS": "odd words\n"}, "odd words (details: .venv/setup.log)"),
    ],
)
def test_what_is_wrong_is_said_in_one_line_with_the_fix(setup, settings, said):
    done = setup(**settings)
    assert done.returncode == 1
    assert done.stderr.startswith("setup: error: ") and done.stderr.count("\n") == 1
    assert said in done.stderr


def test_an_environment_of_a_wrong_python_is_named(setup):
    setup()
    done = setup(FAKE_VERSION="3.13")
    assert ".venv holds Python 3.13, needs 3.11 or 3.12; rm -r .venv" in done.stderr


# --- make


def test_make_alone_lists_the_targets():
    shown = subprocess.run(["make", "-C", str(ROOT)], capture_output=True, text=True).stdout
    for target in ("setup", "reproduce", "smoke", "test", "figures", "lab", "clean"):
        assert f"make {target} " in shown


def test_ci_runs_make_test():
    assert (ROOT / ".ci" / "run").read_text().splitlines()[-1] == "make test"
