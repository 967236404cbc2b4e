"""The parts of README.md made from other files: result table, claims, file list, deviations."""

import ast
import json
import re
from collections.abc import Callable
from pathlib import Path

from rc_lib import paths

README = paths.ROOT / "README.md"
PROFILE = "tiny"  # its records are the committed ones
# For each table and proposition of RC-GRPO that can be tested, what the paper concludes from it.
MAIN_CLAIMS = (
    "best-arm", "whole-method", "rc-at-rctp", "rc-at-sft-no-gain", "rc-at-sft-no-effect",
    "rctp-under-rc", "token-after-stage-1-held-out", "sft-start-collapsed",
    "fewer-degenerate-groups", "variance-in-training", "token-late", "entropy-correlation-rc",
    "entropy-correlation-grpo", "advantage-spread-late",
)  # fmt: skip
BLOCK = re.compile(r"(<!-- begin: (\w+) -->\n).*?(<!-- end: \2 -->)", re.DOTALL)


def refresh(readme: str) -> str:
    """Return README's text with every block between markers made anew.

    Raises:
        ValueError: for a marker that names no known block.

    >>> refresh("<!-- begin: nothing --><!-- end: nothing -->")
    '<!-- begin: nothing --><!-- end: nothing -->'
    """

    def fill(match: re.Match) -> str:
        if match[2] not in BLOCKS:
            raise ValueError(f"README block {match[2]!r} is unknown; known: {', '.join(BLOCKS)}")
        return f"{match[1]}{BLOCKS[match[2]]().rstrip()}\n{match[3]}"

    return BLOCK.sub(fill, readme)


def result_table() -> str:
    """Return the committed Table 1 as Markdown."""
    return (paths.TABLES / "table1_bfcl.md").read_text(encoding="utf-8")


def main_claims() -> str:
    """Return the main claims with their verdicts, as Markdown, and how many there are in all."""
    from rc_lib.claims import VERDICTS, evaluate, markdown, shown

    table = evaluate(paths.published_records(PROFILE), PROFILE)
    cells = shown(table.set_index("id", drop=False).loc[list(MAIN_CLAIMS)])
    found = table["verdict"].value_counts()
    counts = ", ".join(f"{found.get(verdict, 0)} {verdict}" for verdict in VERDICTS)
    about = f"Profile {PROFILE}. All {len(table)} claims, with what the verdicts mean"
    columns = ["Claim", "Published", "Measured [95 % interval]", "From", "Verdict", "Other set"]
    return f"{markdown(cells[columns])}\n{about}: [CLAIMS.md](CLAIMS.md) ({counts})."


def file_list() -> str:
    """Return one line a module and a notebook: its path and what its first sentence says."""
    lines = []
    for path in sorted(paths.ROOT.glob("rc_lib/**/*.py")):
        summary = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split("\n")
        if path.name != "__init__.py":
            lines.append((paths.portable(path), summary[0]))
    for path in sorted(paths.NOTEBOOKS.glob("*.ipynb")):
        title = json.loads(path.read_text(encoding="utf-8"))["cells"][0]["source"]
        title = "".join(title).split("\n")[0].split("·")[-1].strip()
        lines.append((paths.portable(path), title))
    width = max(len(name) for name, _ in lines)
    return "```\n" + "\n".join(f"{name:<{width}}  {text}" for name, text in lines) + "\n```"


def deviations() -> str:
    """Return the `Deviation:` paragraphs of the library's docstrings as a list."""
    items = []
    for path in sorted(paths.ROOT.glob("rc_lib/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                for paragraph in re.split(r"\n\s*\n", ast.get_docstring(node) or ""):
                    if paragraph.startswith("Deviation:"):
                        text = " ".join(paragraph.removeprefix("Deviation:").split())
                        items.append(f"- `{paths.portable(path)}`: {text}")
    return "\n".join(items)


BLOCKS: dict[str, Callable[[], str]] = {
    "table": result_table,
    "claims": main_claims,
    "files": file_list,
    "deviations": deviations,
}


def write(readme: Path = README) -> Path:
    """Refresh README.md in place."""
    readme.write_text(refresh(readme.read_text(encoding="utf-8")), encoding="utf-8")
    return readme
