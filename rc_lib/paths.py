"""Where everything lies: the one module that knows the repository's folders."""

from pathlib import Path

from rc_lib.arms import EXTRA_ARMS
from rc_lib.config import ALL_ARMS, MEASUREMENTS

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "notebooks"
TINY_BASE = ROOT / "models" / "tiny-base"  # the committed base policy
RUNS = ROOT / "runs"  # git-ignored
TABLES = ROOT / "paper_tables"
PUBLISHED = TABLES / "published"  # the papers' numbers
RECORDS = TABLES / "records"  # per-item results of each profile, committed
FIGURES = ROOT / "figures"

RECORD_FILES = (
    "per_item.csv",
    "curve.csv",
    "groups.csv",
    "kl.csv",
    "gradients.csv",
    "timing.csv",
    "metrics.json",
    "manifest.json",
)


def resolve(path: str | Path) -> Path:
    """Return an absolute path; a relative one starts at the repository's root, not at the cwd.

    A notebook runs from the root under papermill and from ``notebooks/`` in JupyterLab.

    >>> resolve("runs/tiny") == RUNS / "tiny"
    True
    """
    return ROOT / path


def portable(path: str | Path) -> str:
    """Return a path relative to the repository's root if it lies inside, else as it is.

    >>> portable(RUNS / "tiny"), portable("/elsewhere/x")
    ('runs/tiny', '/elsewhere/x')
    """
    path = Path(path)
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def results_dir(profile: str) -> Path:
    """Return the folder that a reproduction of one profile writes to.

    >>> portable(results_dir("tiny"))
    'runs/tiny'
    """
    return RUNS / profile


def record_dir(results: str | Path, seed: int, arm: str) -> Path:
    """Return the folder of one arm's recorded results; only `RECORD_FILES` are published.

    Raises:
        ValueError: for an unknown arm.

    >>> portable(record_dir("runs/tiny", 0, "sft"))
    'runs/tiny/records/seed0/sft'
    """
    return resolve(results) / "records" / f"seed{seed}" / _known(arm)


def checkpoint_dir(results: str | Path, seed: int, arm: str) -> Path:
    """Return the folder of one arm's checkpoints and rollouts, which are never published.

    Raises:
        ValueError: for an unknown arm.

    >>> portable(checkpoint_dir("runs/tiny", 0, "sft"))
    'runs/tiny/checkpoints/seed0/sft'
    """
    return resolve(results) / "checkpoints" / f"seed{seed}" / _known(arm)


def finished_record(folder: Path) -> list[Path]:
    """Return the files that the record of an arm, or of a measurement, has once it is finished.

    >>> [file.name for file in finished_record(record_dir("runs/tiny", 0, "sft"))]
    ['per_item.csv', 'manifest.json']
    """
    names = ("manifest.json",) if folder.name in MEASUREMENTS else ("per_item.csv", "manifest.json")
    return [folder / name for name in names]


def published_records(profile: str) -> Path:
    """Return the committed folder of one profile's recorded results.

    >>> portable(published_records("tiny"))
    'paper_tables/records/tiny'
    """
    return RECORDS / profile


def _known(arm: str) -> str:
    known = (*ALL_ARMS, *EXTRA_ARMS, *MEASUREMENTS)
    if arm not in known:
        raise ValueError(f"unknown arm {arm!r}; choose from {', '.join(known)}")
    return arm
