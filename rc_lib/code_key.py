"""What code a notebook runs: its cells and the modules of rc_lib they import, each by a hash.

Code counts by its syntax tree without docstrings, so comments and formatting change no hash.
"""

import ast
import hashlib
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from rc_lib import paths
from rc_lib.errors import RcError

PACKAGE = "rc_lib"
DATA = {"rc_lib.published": "paper_tables/published/*.csv"}  # committed data, by who reads it
CODE = (".py", ".pyc")


class Code(NamedTuple):
    """One module or notebook."""

    sha256: str
    imported: tuple[str, ...]  # every name it imports, e.g. rc_lib.stats.wilson
    texts: frozenset[str]  # its string constants


def code_parts(notebook: Path, root: Path | None = None) -> dict[str, str]:
    """Return the sha256 of everything committed that a notebook's code depends on.

    Imports are followed wherever they stand, also inside functions. A file beside a module that
    is no Python counts if a string in the module is its name (``"claims.toml"``); of data
    elsewhere, `DATA` says which module reads it.

    Args:
        notebook: path of the source.
        root: folder that holds ``rc_lib``; None: the repository.

    Returns:
        Hashes by name: ``notebook``, then ``module <name>`` and ``data <path>``, sorted.

    Raises:
        RcError: for code that is no Python, naming the file.

    >>> parts = code_parts(paths.NOTEBOOKS / "12_table1_bfcl.ipynb")
    >>> "module rc_lib.stats" in parts, "module rc_lib.pipeline" in parts
    (True, False)
    """
    root = paths.ROOT if root is None else root
    start = _code(notebook, _version(notebook), "")
    found: dict[str, str] = {}
    waiting = list(start.imported)
    while waiting:
        for name, path in _modules(waiting.pop(), root):
            if f"module {name}" not in found:
                code = _code(path, _version(path), _package(name, path))
                found[f"module {name}"] = code.sha256
                waiting += code.imported
                read = root.glob(DATA[name]) if name in DATA else ()
                for file in (*_named_files(path, code), *read):
                    found[f"data {file.relative_to(root).as_posix()}"] = file_hash(file)
    return {"notebook": start.sha256} | dict(sorted(found.items()))


def file_hash(path: Path) -> str:
    """Return the sha256 of a file; read again only if its size or time has changed."""
    return _file_hash(path, _version(path))


def lock_hash(path: Path) -> str:
    """Return the sha256 of a lock's lines, comments left out."""
    lines = (line.partition("#")[0].strip() for line in path.read_text("utf-8").splitlines())
    return _sha256("\n".join(line for line in lines if line))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _version(path: Path) -> tuple[int, int]:
    stat = path.stat()
    return stat.st_mtime_ns, stat.st_size


@cache
def _file_hash(path: Path, version: tuple[int, int]) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@cache
def _code(path: Path, version: tuple[int, int], package: str) -> Code:
    text = path.read_text(encoding="utf-8")
    try:
        tree = _notebook_tree(text) if path.suffix == ".ipynb" else ast.parse(text)
    except SyntaxError as error:
        raise RcError(f"{paths.portable(path)} is no Python: {error}") from error
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if ast.get_docstring(node, clean=False) is not None:
                del node.body[0]
    constants = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    texts = frozenset(value for value in constants if isinstance(value, str))
    return Code(_sha256(ast.dump(tree)), tuple(_imported(tree, package)), texts)


def _notebook_tree(text: str) -> ast.Module:
    """All code cells as one module; a line like ``%matplotlib inline`` as the call it means."""
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    source = "\n".join("".join(cell["source"]) for cell in cells)
    try:
        return ast.parse(source)
    except SyntaxError:
        from IPython.core.inputtransformer2 import TransformerManager

        return ast.parse(TransformerManager().transform_cell(source))


def _imported(tree: ast.Module, package: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level]
            base = ".".join([*(above if node.level else []), *filter(None, [node.module])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _modules(name: str, root: Path) -> Iterator[tuple[str, Path]]:
    """Modules of the package that importing a name runs: rc_lib, rc_lib.envs, rc_lib.envs.bfcl."""
    words = name.split(".")
    for n in range(1, len(words) + 1 if words[0] == PACKAGE else 1):
        place = root.joinpath(*words[:n])
        for path in (place / "__init__.py", place.with_suffix(".py")):
            if path.is_file():
                yield ".".join(words[:n]), path


def _package(name: str, path: Path) -> str:
    return name if path.name == "__init__.py" else name.rpartition(".")[0]


def _named_files(path: Path, code: Code) -> list[Path]:
    beside = (path.parent / text for text in code.texts if 0 < len(text) < 100 and "/" not in text)
    return [file for file in beside if file.suffix not in (*CODE, "") and file.is_file()]
