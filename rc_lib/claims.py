"""The papers' claims beside what was measured, each with a verdict by the rules of claims.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from rc_lib import paths
from rc_lib.claims_measured import MEASURES, Estimate, Missing, Records, check_measured, measure
from rc_lib.records import check_choice, found_seeds
from rc_lib.table1 import missing_words

RULES = Path(__file__).with_name("claims.toml")
DOCUMENT = paths.ROOT / "CLAIMS.md"
VERDICTS = ("reproduced", "direction only", "not reproduced", "not tested")  # best first
SETTINGS = {"main_test_set", "other_test_set", "phase_share", "margin", "min_seeds"}
NEEDED = {"id", "paper", "source", "claim", "unit", "rule", "notebook"}
OPTIONAL = {"published", "published_text", "note"}
JUDGED = ["contrast", "value", "low", "high", "n", "seeds", "missing_seeds", "verdict", "reason"]
COLUMNS = [
    "id", "paper", "claim", "source", "published", "unit", "profile", "test_set", "counted",
    *JUDGED, "other_test_set", *(f"other_{name}" for name in JUDGED), "notebook", "note",
]  # fmt: skip
WHOLE = {which + name: "Int64" for which in ("", "other_") for name in ("n", "seeds")}
INTRODUCTION = """# The papers' claims, and what was measured

Measured at profile `{profile}`, on models and tasks far smaller than the papers': differences,
signs and shares are judged, never levels. The rules, and what was known when they were written:
[rc_lib/claims.toml](rc_lib/claims.toml). Accuracy is judged on the set `{main_test_set}`, beside it
on `{other_test_set}`; n is that of one seed. Intervals are not adjusted for the number of claims.

- **reproduced**: the whole 95 % interval agrees with the claim, and reaches the smallest published
  size where there is one; "no gain" means that it ends below {margin:g} points, "no effect" that it
  lies within {margin:g} points of 0.
- **direction only**: the value agrees but not the whole interval, or the interval lies below every
  published size, or there are fewer than {min_seeds} seeds.
- **not reproduced**: the value contradicts the claim, or the whole interval shows a gain where none
  is claimed.
- **not tested**: nothing here decides it; the last column says what is missing.
"""


def evaluate(
    records_root: Path, profile: str, seeds: Sequence[int] | None = None, rules_path: Path = RULES
) -> pd.DataFrame:
    """Judge every claim of the rules file by the records of a run.

    Args:
        records_root: folder that holds ``seed<k>/<arm>/``.
        profile: profile of the records.
        seeds: seeds that should be there; None takes those found.
        rules_path: file that `rules` reads.

    Returns:
        One row a claim, in the file's order, columns `COLUMNS`: the published value as text; value,
        low and high in ``unit``, of the claim's ``contrast`` with the smallest value; n tasks,
        groups or steps of a seed; the number of seeds, and those missing; one of `VERDICTS` and the
        reason. Where accuracy was measured, the same on the other test set under ``other_``.
        Unknown is missing.

    Raises:
        FileNotFoundError: if there is not one per-item record.
        ValueError: for a rules file or a record that is not in order.
    """
    settings, claims = rules(rules_path)
    seeds = found_seeds(records_root) if seeds is None else sorted(seeds)
    records = Records(paths.resolve(records_root), profile, seeds)
    table = pd.DataFrame([_row(claim, records, settings) for claim in claims], columns=COLUMNS)
    return table.astype(WHOLE)


def write_claims(
    records_root: Path, profile: str, seeds: Sequence[int] | None = None, path: Path = DOCUMENT
) -> list[Path]:
    """Write CLAIMS.md: the same records give the same bytes. Args are those of `evaluate`."""
    path.write_text(document(evaluate(records_root, profile, seeds)), encoding="utf-8")
    return [path]


def document(table: pd.DataFrame) -> str:
    """Return CLAIMS.md: what the verdicts mean, their number for each paper, and every claim."""
    counts = pd.crosstab(table["paper"].rename("Paper"), table["verdict"])
    counts = counts.reindex(table["paper"].unique()).reindex(columns=VERDICTS, fill_value=0)
    head = INTRODUCTION.format(profile=table["profile"].iloc[0], **rules()[0])
    parts = [head, markdown(counts.reset_index())]
    for paper, rows in table.groupby("paper", sort=False):
        parts += [f"## {paper}\n", markdown(shown(rows))]
        noted = rows[rows["note"].notna()]
        parts.append("".join(f"- `{row.id}`: {row.note}\n" for row in noted.itertuples()))
    return "\n".join(filter(None, parts))


def shown(table: pd.DataFrame) -> pd.DataFrame:
    """Return the frame of `evaluate` as a reader sees it, in Markdown."""
    rows = []
    for row in table.astype(object).where(table.notna(), "").itertuples():
        value = _words(row.value, row.low, row.high, row.unit)
        seeds = missing_words(row.seeds, row.missing_seeds) if value else ""
        other = _words(row.other_value, row.other_low, row.other_high, row.unit)
        other = f"{row.other_test_set}: {other or row.other_reason}, {row.other_verdict}"
        rows.append({
            "Claim": f"`{row.id}` {row.claim.rstrip('.')} ({row.source})",
            "Published": row.published,
            "Measured [95 % interval]": f"{value} {row.unit}" if value else "",
            "From": f"{row.test_set}: {row.n} {row.counted}; seeds: {seeds}" if value else "",
            "Verdict": f"**{row.verdict}**",
            "Other set": other if row.other_verdict else "",
            "Notebook": f"[{row.notebook[:2]}](notebooks/{row.notebook}.ipynb)",
            "Why": row.reason,
        })  # fmt: skip
    return pd.DataFrame(rows, index=table.index)


def _words(value: float | str, low: float | str, high: float | str, unit: str) -> str:
    """A value with its interval; blanks where unknown."""
    if value == "":
        return ""
    form = "+.2f" if unit == "points" else "+.3f"
    interval = "no interval" if low == "" else f"{low:{form}}, {high:{form}}"
    return f"{value:{form}} [{interval}]"


def markdown(cells: pd.DataFrame) -> str:
    """Return a table of strings in Markdown."""
    rows = [cells.columns, ["---"] * cells.shape[1], *cells.astype(str).to_numpy()]
    return "".join("| " + " | ".join(c.replace("|", "\\|") for c in row) + " |\n" for row in rows)


def rules(path: Path = RULES) -> tuple[dict, list[dict]]:
    """Read and check a rules file.

    Args:
        path: a TOML file like ``rc_lib/claims.toml``, whose head explains it.

    Returns:
        Its settings, and the claims in their order.

    Raises:
        ValueError: naming the claim and the entry, for one that is missing, that nothing would
            read, or that has an unknown value; and for an id that comes twice.

    >>> settings, claims = rules()
    >>> settings["main_test_set"], claims[0]["id"]
    ('power', 'best-arm')
    """
    content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    _check_keys(str(path), content, {"settings", "claim"})
    _check_keys(f"{path}, settings", content["settings"], SETTINGS)
    seen: set[str] = set()
    for claim in content["claim"]:
        name = f"{path}, claim {claim.get('id', 'without id')}"
        _check_claim(name, claim)
        if claim["id"] in seen:
            raise ValueError(f"{name}: the id comes twice")
        seen.add(claim["id"])
    return content["settings"], content["claim"]


def decide(claim: Mapping, estimate: Estimate, settings: Mapping) -> tuple[str, str]:
    """Return the verdict of a claim's rule on one estimate, and why.

    >>> settings = {"margin": 7.5, "min_seeds": 3}
    >>> decide({"rule": "greater"}, Estimate(5.0, -1.0, 11.0, (0, 1, 2), 80), settings)
    ('direction only', 'the interval holds 0')
    """
    limit = settings["margin"]
    if claim["rule"] == "greater":
        limit = min(claim.get("published", {}).values(), default=None)
    verdict, why = DECIDE[claim["rule"]](estimate, limit)
    if verdict == "reproduced" and len(estimate.seeds) < settings["min_seeds"]:
        return "direction only", f"{why}, but with fewer than {settings['min_seeds']} seeds"
    return verdict, why


def _greater(estimate: Estimate, smallest: float | None) -> tuple[str, str]:
    value, low, high = estimate[:3]
    if value <= 0:
        words = "the interval lies below 0" if high < 0 else "the value is 0 or below"
        return "not reproduced", words
    if not low > 0:
        return "direction only", _open(estimate, "holds 0")
    if smallest is None:
        return "reproduced", "the interval lies above 0"
    if high < smallest:
        return "direction only", "the interval lies above 0 and below every published size"
    return "reproduced", "the interval lies above 0 and reaches a published size"


def _no_gain(estimate: Estimate, margin: float) -> tuple[str, str]:
    value, low, high = estimate[:3]
    if low > 0:
        return "not reproduced", "the interval lies above 0"
    if value >= margin:
        return "not reproduced", f"the value is not below {margin:g}"
    if high < margin:
        return "reproduced", f"the interval ends below {margin:g}"
    return "direction only", _open(estimate, f"reaches {margin:g}")


def _no_effect(estimate: Estimate, margin: float) -> tuple[str, str]:
    value, low, high = estimate[:3]
    inside = f"-{margin:g} to {margin:g}"
    if not -margin < value < margin:
        return "not reproduced", f"the value lies outside {inside}"
    if -margin < low and high < margin:
        return "reproduced", f"the interval lies inside {inside}"
    return "direction only", _open(estimate, f"leaves {inside}")


DECIDE = {"greater": _greater, "no_gain": _no_gain, "no_effect": _no_effect}


def _open(estimate: Estimate, words: str) -> str:
    """Why an interval does not decide; one seed has none."""
    return "one seed gives no interval" if estimate.low != estimate.low else f"the interval {words}"


def _row(claim: Mapping, records: Records, settings: Mapping) -> dict:
    row = {name: claim.get(name) for name in (*NEEDED, "note")}
    row |= {"published": published_words(claim), "profile": records.profile.name}
    if claim["rule"] == "none":
        return row | {"verdict": "not tested", "reason": claim["reason"]}
    row["counted"] = MEASURES[claim["measure"]].counted
    if claim["measure"] != "accuracy":
        return row | {"test_set": "training"} | _judge(claim, records, settings, "training")
    main, other = settings["main_test_set"], settings["other_test_set"]
    row |= {"test_set": main, "other_test_set": other} | _judge(claim, records, settings, main)
    judged = _judge(claim, records, settings, other)
    return row | {f"other_{name}": value for name, value in judged.items()}


def _judge(claim: Mapping, records: Records, settings: Mapping, where: str) -> dict:
    """The contrast with the smallest value, and the worst verdict of all."""
    try:
        found = [measure(records, claim, c, settings, where) for c in claim["contrasts"]]
    except Missing as error:
        return {"verdict": "not tested", "reason": str(error)}
    verdicts = [decide(claim, estimate, settings) for estimate in found]
    order = sorted(range(len(found)), key=lambda i: found[i].value)
    smallest, worst = order[0], max(order, key=lambda i: VERDICTS.index(verdicts[i][0]))
    words = [contrast_words(contrast) for contrast in claim["contrasts"]]
    verdict, reason = verdicts[worst]
    reason += f" ({words[worst]})" if len(found) > 1 else ""
    *interval, seeds, n = found[smallest]
    missing = " ".join(str(seed) for seed in records.seeds if seed not in seeds)
    judged = [words[smallest], *interval, n, len(seeds), missing, verdict, reason]
    return dict(zip(JUDGED, judged, strict=True))


def published_words(claim: Mapping) -> str:
    """Return a claim's published value for a reader.

    >>> published_words({"published": {"LLaMA": 2.5, "Qwen": 11.25}})
    'LLaMA +2.50, Qwen +11.25'
    """
    sizes = [f"{model} {value:+.2f}" for model, value in claim.get("published", {}).items()]
    text = claim.get("published_text", "")
    return ", ".join(sizes) + (f" ({text})" if sizes and text else text)


def contrast_words(contrast: Mapping[str, float]) -> str:
    """Return a contrast for a reader.

    >>> contrast_words({"rctp_grpo": 2, "sft_grpo": -1})
    '2 rctp_grpo - sft_grpo'
    """
    words = ""
    for key, weight in contrast.items():
        size = "" if abs(weight) == 1 else f"{abs(weight):g} "
        words += f" {'-' if weight < 0 else '+'} {size}{key}"
    return words.removeprefix(" + ").strip()


def _check_claim(name: str, claim: Mapping) -> None:
    """A claim has the entries that its rule and its measure read, and no others."""
    check_choice(f"{name}: rule", [claim.get("rule")], (*DECIDE, "none"))
    if claim["rule"] == "none":
        needed, optional = NEEDED | {"reason"}, OPTIONAL
    else:
        check_choice(f"{name}: measure", [claim.get("measure")], tuple(MEASURES))
        needed = NEEDED | {"measure", "contrasts", *MEASURES[claim["measure"]].needs}
        optional = OPTIONAL | {"above", *({"decoding"} if claim["measure"] == "accuracy" else ())}
    _check_keys(name, claim, needed, optional)
    if "measure" in claim:
        check_measured(name, claim)
    if not published_words(claim):
        raise ValueError(f'{name}: nothing published; write published_text = "not known"')


def _check_keys(name: str, table: Mapping, needed: set[str], optional: Sequence[str] = ()):
    missing, unknown = needed - set(table), set(table) - needed - set(optional)
    problems = {"missing": missing, "unknown or unused": unknown}
    words = [f"{kind} {', '.join(sorted(found))}" for kind, found in problems.items() if found]
    if words:
        raise ValueError(f"{name}: {'; '.join(words)}")
