"""The `rc` command; each subcommand imports what it needs when it runs, so `rc` starts fast."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rc_lib.errors import RcError

if TYPE_CHECKING:
    from rc_lib.scheduler import Run


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `rc` and return its exit status; a wrong input gives one line and 2, never a traceback.

    Set ``RC_DEBUG=1`` to see tracebacks.

    Args:
        arguments: words of the command line; None: ``sys.argv``.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    parsed = _parser(words).parse_args(words)
    try:
        return parsed.run(parsed) or 0
    except (RcError, ValueError, OSError) as error:
        if os.environ.get("RC_DEBUG") == "1":
            raise
        print(f"rc: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nrc: interrupted; run the same again to go on", file=sys.stderr)
        return 130


def _parser(words: list[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="rc", description="Reproduce RC-GRPO and ICRL.")
    commands = parser.add_subparsers(dest="command", required=True)

    for name, run, about in (
        ("reproduce", _reproduce, "run all notebooks of a profile"),
        ("status", _status, "say of each notebook whether it would run, why, and how long"),
    ):
        command = commands.add_parser(name, help=about)
        command.add_argument("--profile", default="tiny")
        command.add_argument("--seeds", type=int, default=5, help="number of seeds")
        command.add_argument("--jobs", type=int, default=os.cpu_count(), help="side by side")
        command.add_argument("--only", help="part of a notebook's name; it and what it needs")
        command.add_argument("--extra-arms", action="store_true", help="arms the paper lacks, too")
        command.add_argument("--also", action="append", default=[], help="a further notebook")
        command.add_argument("--results-dir", help="default: runs/PROFILE")
        command.set_defaults(run=run)

    command = commands.add_parser("run-notebook", help="run one notebook with checked parameters")
    command.add_argument("notebook", help="name, number or path")
    command.add_argument("-p", action="append", default=[], metavar="NAME=VALUE", dest="parameters")
    command.add_argument("--output", help="executed copy; default: runs/by_hand/NOTEBOOK.ipynb")
    command.add_argument("--end-with-parent", action="store_true", help=argparse.SUPPRESS)
    command.set_defaults(run=_run_notebook)

    command = commands.add_parser("figures", help="rebuild committed tables and figures")
    command.add_argument("--profile", default="tiny")
    command.set_defaults(run=_figures)

    command = commands.add_parser("publish", help="commit a run's records, tables and figures")
    command.add_argument("--profile", default="tiny")
    command.add_argument("--results-dir", help="default: runs/PROFILE")
    command.set_defaults(run=_publish)

    command = commands.add_parser("bfcl", help="check and try the BFCL environment")
    if words[:1] == ["bfcl"]:  # the only subcommand whose arguments live elsewhere
        from rc_lib.verify import add_arguments

        add_arguments(command)
    return parser


def _planned(parsed: argparse.Namespace) -> Run:
    from rc_lib.pipeline import plan

    return plan(
        parsed.profile,
        parsed.seeds,
        parsed.jobs,
        parsed.only,
        extra_arms=parsed.extra_arms,
        also=parsed.also,
        results=parsed.results_dir,
    )


def _reproduce(parsed: argparse.Namespace) -> None:
    from rc_lib import paths
    from rc_lib.pipeline import reproduce

    results = reproduce(_planned(parsed))
    print(f"all done: tables, figures and executed notebooks are in {paths.portable(results)}")


def _status(parsed: argparse.Namespace) -> None:
    from rc_lib.status import status_lines

    print(*status_lines(_planned(parsed)), sep="\n")


def _run_notebook(parsed: argparse.Namespace) -> None:
    import logging

    from rc_lib import notebook, paths

    if parsed.end_with_parent:
        notebook.end_with_parent()
    # papermill logs what the cells print
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    path = notebook.find_notebook(parsed.notebook)
    output = paths.resolve(parsed.output or paths.RUNS / "by_hand" / path.name)
    parameters = notebook.parse_assignments(path, parsed.parameters)
    notebook.run_notebook(path, output, parameters, progress=sys.stderr.isatty())
    print(f"executed copy: {paths.portable(output)}")


def _figures(parsed: argparse.Namespace) -> None:
    from rc_lib import paths
    from rc_lib.pipeline import figures

    for path in figures(parsed.profile):
        print(paths.portable(Path(path).resolve()))


def _publish(parsed: argparse.Namespace) -> None:
    from rc_lib.pipeline import publish

    print(f"published {', '.join(publish(parsed.profile, parsed.results_dir))}")
    _figures(parsed)
