"""What made a result: code version, parameters, inputs and cost, as one JSON file."""

import hashlib
import importlib.metadata
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rc_lib import paths

PACKAGES = (
    "bfcl-eval",
    "numpy",
    "pandas",
    "peft",
    "scipy",
    "statsmodels",
    "tokenizers",
    "torch",
    "transformers",
)


def manifest(
    parameters: Mapping,
    seed: int | None,
    inputs: Sequence[str | Path] = (),
    started: float | None = None,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    batch_size: int | None = None,
) -> dict:
    """Describe what made a result, ready for `write_json`.

    Args:
        parameters: name -> value; paths inside the repository are made relative to its root.
        seed: run seed; None where nothing is drawn.
        inputs: files or folders that the result was made from; a folder stands for its files.
        started: ``time.time()`` at the start of the work; None leaves ``wall_s`` null.
        device: where the policy ran.
        dtype: type of its weights.
        batch_size: rollouts or examples side by side.

    Raises:
        FileNotFoundError: if an input does not exist.

    >>> made = manifest({"profile": "tiny"}, seed=0, started=time.time())
    >>> made["parameters"], made["seed"], made["dtype"]
    ({'profile': 'tiny'}, 0, 'float32')
    """
    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {
        "git": git_state(),
        "parameters": {name: _plain(value) for name, value in parameters.items()},
        "seed": seed,
        "versions": {"python": platform.python_version(), **versions},
        "device": device,
        "dtype": dtype,
        "batch_size": batch_size,
        "data_sha256": {paths.portable(path): sha256(path) for path in inputs},
        "wall_s": None if started is None else round(time.time() - started, 3),
        "peak_mib": peak_mib(),
    }


def git_state() -> dict:
    """Return the commit and whether tracked files differ from it; nulls outside a clone.

    >>> sorted(git_state())
    ['dirty', 'sha']
    """

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(paths.ROOT), *arguments], capture_output=True, text=True
            )
        except FileNotFoundError:  # git is not installed
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    # Without the second look a copy inside somebody else's clone would report their commit.
    if not (paths.ROOT / ".git").exists() or (sha := git("rev-parse", "HEAD")) is None:
        return {"sha": None, "dirty": None}
    return {"sha": sha, "dirty": git("status", "--porcelain", "--untracked-files=no") != ""}


def sha256(path: str | Path) -> str:
    """Return the hex digest of a file, or of a folder's file names and contents.

    Raises:
        FileNotFoundError: if the path does not exist.

    >>> sha256(paths.ROOT / "LICENSE")[:12]
    'cfc7749b96f6'
    """
    path = paths.resolve(path)
    if not path.exists():
        raise FileNotFoundError(f"cannot hash {path}: it does not exist")
    if path.is_file():
        return hashlib.sha256(path.read_bytes()).hexdigest()
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*")):
        if file.is_file():
            digest.update(f"{file.relative_to(path).as_posix()} {sha256(file)}\n".encode())
    return digest.hexdigest()


def peak_mib() -> float:
    """Return the largest memory that this process, or one that it waited for, has held, in MiB.

    >>> peak_mib() > 1
    True
    """
    whose = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)  # a notebook's kernel is a child
    peak = max(resource.getrusage(who).ru_maxrss for who in whose)
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10), 1)  # bytes, else KiB


def write_json(content: Mapping, path: str | Path) -> Path:
    """Write JSON so that a reader sees the old file or the whole new one, never a part.

    Returns:
        The absolute path of the file.

    Raises:
        ValueError: for a NaN or infinity, which JSON lacks.
        TypeError: for a value that is no JSON, such as a NumPy array.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_json({"seed": 0}, f"{folder}/manifest.json").read_text()
    '{\\n "seed": 0\\n}\\n'
    """
    path = paths.resolve(path)
    text = json.dumps(content, indent=1, allow_nan=False) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with open(unfinished, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path)
    return path


def _plain(value):
    """Make a parameter JSON and free of this machine's folders."""
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, (str, Path)) and str(value).startswith(f"{paths.ROOT}{os.sep}"):
        return paths.portable(value)
    return str(value) if isinstance(value, Path) else value
