"""Run one numbered notebook by papermill, with parameters that are checked before it starts."""

import ast
import hashlib
import json
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rc_lib import paths
from rc_lib.errors import RcError
from rc_lib.manifest import manifest, write_json

TYPES = {
    "int": int,
    "float": (int, float),
    "str": str,
    "bool": bool,
    "list": list,
    "dict": dict,
}


@dataclass(frozen=True)
class Parameter:
    """One line ``name: annotation = default`` of a notebook's parameters cell."""

    name: str
    annotation: str
    default: object


def find_notebook(name: str | Path) -> Path:
    """Return a notebook's path from a path, or from its name or number in ``notebooks/``.

    Raises:
        RcError: if none, or more than one, fits; the message lists what there is.

    >>> find_notebook("12").name
    '12_table1_bfcl.ipynb'
    """
    if Path(name).suffix == ".ipynb" and paths.resolve(name).is_file():
        return paths.resolve(name)
    known = sorted(paths.NOTEBOOKS.glob("*.ipynb"))
    stem = Path(name).name.removesuffix(".ipynb")
    fitting = [path for path in known if path.stem == stem or path.stem.startswith(f"{stem}_")]
    if len(fitting) != 1:
        names = ", ".join(path.stem for path in known) or "(none)"
        raise RcError(f"{len(fitting)} notebooks fit {str(name)!r}; choose from {names}")
    return fitting[0]


def code_hash(notebook: Path) -> str:
    """Return the sha256 of a notebook's code cells; prose, ids and outputs do not count.

    >>> len(code_hash(find_notebook("12")))
    64
    """
    sources = [source for _, source in _code_cells(notebook)]
    return hashlib.sha256(json.dumps(sources).encode()).hexdigest()


def declared_parameters(notebook: Path) -> dict[str, Parameter]:
    """Read the names, annotations and defaults of a notebook's one parameters cell.

    Raises:
        RcError: if the cell is missing, doubled, or holds anything but annotated literals.

    >>> declared_parameters(find_notebook("12"))["profile"].annotation
    'str'
    """
    tagged = [source for tags, source in _code_cells(notebook) if "parameters" in tags]
    if len(tagged) != 1:
        raise RcError(f"{notebook.name} has {len(tagged)} cells tagged 'parameters', needs one")
    declared = {}
    for node in ast.parse(tagged[0]).body:
        try:
            name, annotation = node.target.id, ast.unparse(node.annotation)
            declared[name] = Parameter(name, annotation, ast.literal_eval(node.value))
        except (AttributeError, ValueError, TypeError):
            raise RcError(
                f"{notebook.name}: parameters cell has {ast.unparse(node)!r}; "
                "write name: type = literal"
            ) from None
    return declared


def check_parameters(notebook: Path, parameters: Mapping) -> dict:
    """Return the parameters unchanged if each is declared and fits its annotation.

    papermill only warns about an unknown name and goes on with the default.

    Raises:
        RcError: for an unknown name or a wrong type; the message lists the declared ones.

    >>> check_parameters(find_notebook("12"), {"profile": "tiny"})
    {'profile': 'tiny'}
    """
    declared = declared_parameters(notebook)
    for name, value in parameters.items():
        if name not in declared or not fits(value, declared[name].annotation):
            problem = "unknown parameter" if name not in declared else "wrong type for parameter"
            known = ", ".join(f"{p.name}: {p.annotation}" for p in declared.values()) or "none"
            raise RcError(f"{notebook.stem}: {problem} {name}={value!r}; declared: {known}")
    return dict(parameters)


def fits(value, annotation: str) -> bool:
    """Tell whether a value has the annotated type: scalars, None, list, dict and unions of them.

    Raises:
        RcError: for an annotation of another form.

    >>> fits([0, 1], "list[int]"), fits(True, "int"), fits(None, "int | None"), fits("3", "int")
    (True, False, True, False)
    """
    return _fits(value, ast.parse(annotation, mode="eval").body)


def _fits(value, node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=None):
            return value is None
        case ast.Name(id=name) if name in TYPES:
            is_stray_bool = isinstance(value, bool) and name != "bool"
            return isinstance(value, TYPES[name]) and not is_stray_bool
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _fits(value, left) or _fits(value, right)
        case ast.Subscript(value=ast.Name(id="list"), slice=element):
            return isinstance(value, list) and all(_fits(part, element) for part in value)
    known = ", ".join([*TYPES, "list[...]", "None", "|"])
    raise RcError(f"unsupported annotation {ast.unparse(node)!r}; use {known}")


def parse_assignments(notebook: Path, assignments: list[str]) -> dict:
    """Turn ``name=text`` from a command line into checked parameters.

    A text is taken as it is where the annotation allows a ``str``, and read as JSON elsewhere.

    Raises:
        RcError: for a text without ``=``, an unknown name, or a value of the wrong type.

    >>> parse_assignments(find_notebook("12"), ["profile=tiny", "seeds=[0, 1]"])
    {'profile': 'tiny', 'seeds': [0, 1]}
    """
    declared = declared_parameters(notebook)
    parameters = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise RcError(f"{assignment!r} is no parameter; write name=value")
        parameters[name] = text
        takes_text = name not in declared or fits(text, declared[name].annotation)
        if not takes_text or text == "null":
            try:
                parameters[name] = json.loads(text)
            except json.JSONDecodeError:
                pass  # stays text, which the check refuses
    return check_parameters(notebook, parameters)


def run_notebook(
    notebook: Path, output: Path, parameters: Mapping, *, progress: bool = False
) -> Path:
    """Execute a notebook into a copy, with a manifest beside it.

    Args:
        notebook: path of the source.
        output: path of the executed copy; ``<output stem>.manifest.json`` is written beside it.
        parameters: values for declared names; the others keep their defaults.
        progress: show papermill's bar.

    Raises:
        RcError: for wrong parameters, a failed cell, or a kernel that died.
    """
    import papermill
    from nbclient.exceptions import DeadKernelError

    parameters = check_parameters(notebook, parameters)
    output.parent.mkdir(parents=True, exist_ok=True)
    started = time.time()
    try:
        papermill.execute_notebook(
            str(notebook),
            str(output),
            parameters=parameters,
            kernel_name="python3",
            language="python",
            cwd=str(paths.ROOT),
            log_output=True,
            progress_bar=progress,
        )
    except papermill.PapermillExecutionError as error:
        print(error, flush=True)  # the whole traceback, for the log
        line = error.source.strip().splitlines()[-1]
        message = " ".join(str(error.evalue).split())[:300]
        where = f"{notebook.stem}: cell In [{error.exec_count}], ending in {line!r}"
        raise RcError(f"{where}, failed with {error.ename}: {message}") from error
    except DeadKernelError as error:
        raise RcError(f"{notebook.stem}: its kernel died, perhaps for lack of memory") from error
    full = {p.name: p.default for p in declared_parameters(notebook).values()} | parameters
    about = manifest(full, full.get("seed"), [notebook], started)
    about["code_sha256"] = code_hash(notebook)
    write_json(about, output.with_suffix(".manifest.json"))
    return output


def end_with_parent() -> None:
    """End this process and its kernel when stdin closes.

    The pipeline holds the other end of the pipe. Even if it is killed outright no orphan goes
    on writing records beside a second run.
    """

    def wait() -> None:
        while os.read(0, 1024):  # not sys.stdin: its lock, held here, breaks Python's own exit
            pass
        import psutil

        for child in psutil.Process().children(recursive=True):
            child.kill()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _code_cells(notebook: Path) -> list[tuple[list[str], str]]:
    """Return (tags, source) of each code cell."""
    try:
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    except (OSError, ValueError, KeyError) as error:
        raise RcError(f"cannot read notebook {notebook}: {error!r}") from error
    return [
        (cell.get("metadata", {}).get("tags", []), "".join(cell["source"]))
        for cell in cells
        if cell["cell_type"] == "code"
    ]
