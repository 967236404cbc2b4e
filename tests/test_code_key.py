"""A notebook's code by its hash: what changes it, and what does not."""

import pytest

from rc_lib import paths
from rc_lib.code_key import code_parts, lock_hash
from rc_lib.errors import RcError

MODULES = {
    "__init__": '"""The package."""',
    "one": "from rc_lib import two\n\n\ndef f(x):\n    return two.g(x) + 1\n",
    "two": "def g(x):\n    from rc_lib.deep.three import NAME\n    return NAME, x\n",
    "deep/__init__": "",
    "deep/three": 'from . import four\nfrom .five import X\nNAME = "data.toml"\n',
    "deep/four": "import rc_lib.one\n",
    "deep/five": "X = 5\n",
    "stranger": "Y = 1\n",
}
STRANGER = "module rc_lib.stranger"
FOUND = ("deep", "deep.five", "deep.four", "deep.three", "one", "two")


@pytest.fixture
def package(tmp_path, make_notebook):
    """Return a function that (re)writes files and gives the notebook's parts."""
    for name, text in MODULES.items():
        path = tmp_path / "rc_lib" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "rc_lib" / "deep" / "data.toml").write_text("x = 1")
    (tmp_path / "rc_lib" / "deep" / "unnamed.toml").write_text("x = 1")
    make_notebook(tmp_path / "50.ipynb", "seed: int = 0", "import numpy\nfrom rc_lib.one import f")

    def parts(name="one", text=MODULES["one"]):
        (tmp_path / "rc_lib" / f"{name}.py").write_text(text)
        return code_parts(tmp_path / "50.ipynb", tmp_path)

    return parts


def changed(before, after):
    return [name for name in before | after if before.get(name) != after.get(name)]


def test_imports_are_followed_in_functions_relative_ones_and_in_circles(package):
    modules = [f"module rc_lib.{name}" for name in FOUND]
    assert list(package()) == [
        "notebook", "data rc_lib/deep/data.toml", "module rc_lib", *modules
    ]  # fmt: skip


def test_comments_docstrings_and_formatting_change_nothing(package):
    before = package()
    text = (
        '"""What it is."""\nfrom rc_lib import two  # why\n\n'
        'def f(\n    x,\n):\n    """Return it."""\n    # how\n    return (two.g(x) + 1)\n'
    )
    assert package("one", text) == before


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("one", MODULES["one"].replace("+ 1", "+ 2"), ["module rc_lib.one"]),
        ("deep/five", "X = 6\n", ["module rc_lib.deep.five"]),
        ("deep/__init__", "Z = 1", ["module rc_lib.deep"]),
        ("stranger", "Y = 2\n", []),
        ("deep/four", "import rc_lib.two", ["module rc_lib.deep.four"]),
        ("deep/five", "import rc_lib.stranger\nX = 5", ["module rc_lib.deep.five", STRANGER]),
    ],
)  # fmt: skip
def test_code_of_a_module_changes_that_module_only(package, name, text, expected):
    before = package()
    assert changed(before, package(name, text)) == expected


def test_a_data_file_counts_if_a_module_beside_it_names_it(package, tmp_path):
    before = package()
    (tmp_path / "rc_lib" / "deep" / "unnamed.toml").write_text("x = 2")
    assert package() == before
    (tmp_path / "rc_lib" / "deep" / "data.toml").write_text("x = 2")
    assert changed(before, package()) == ["data rc_lib/deep/data.toml"]


def test_a_notebooks_own_code_counts_its_prose_and_comments_do_not(
    package, tmp_path, make_notebook
):
    before = package()
    cells = ["import numpy  # arrays", "from rc_lib.one import f"]
    make_notebook(tmp_path / "50.ipynb", "seed: int = 0  # run seed", *cells)
    assert package() == before
    make_notebook(tmp_path / "50.ipynb", "seed: int = 1", *cells)
    assert changed(before, package()) == ["notebook"]


def test_a_magic_line_is_read(tmp_path, make_notebook):
    path = tmp_path / "50.ipynb"
    make_notebook(path, "x: int = 0", "%matplotlib inline\nimport rc_lib.stats")
    assert "module rc_lib.stats" in code_parts(path)


def test_code_that_is_no_python_is_named(package):
    with pytest.raises(RcError, match=r"rc_lib/two.py is no Python: "):
        package("two", "def f(:")


def test_training_reads_the_split_but_no_published_number():
    parts = code_parts(paths.NOTEBOOKS / "11_stage2_rc_grpo.ipynb")
    assert [name for name in parts if name.startswith("data ")] == [
        "data rc_lib/tasks/bfcl_split.json"
    ]
    table = code_parts(paths.NOTEBOOKS / "12_table1_bfcl.ipynb")
    assert "data paper_tables/published/rc_grpo_table1.csv" in table


def test_a_lock_counts_without_its_comments(tmp_path):
    lock = tmp_path / "requirements.lock"
    hashes = []
    for text in ("a==1\n", "# made by x\na==1  # via b\n\n", "a==2\n"):
        lock.write_text(text)
        hashes.append(lock_hash(lock))
    assert hashes[0] == hashes[1] != hashes[2]
