"""What a profile runs: notebooks as stages with needs; and how its records get published."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rc_lib import paths, readme
from rc_lib.arms import EXTRA_ARMS, EXTRA_RL, EXTRA_STARTS, RL_ARMS
from rc_lib.config import ALL_ARMS, ARMS, MEASUREMENTS, get_profile
from rc_lib.errors import RcError
from rc_lib.notebook import check_parameters, find_notebook
from rc_lib.scheduler import Run, locked
from rc_lib.stage import Stage

# Notebooks that need no other, with the profile alone, or with the results folder too.
ONCE = (
    "00_start_here",
    "01_bfcl_tasks_and_reward",
    "02_paper_audit",
    "91_explore_variance",
)
EXACT = ("20_proposition_4_2", "21_proposition_4_3")
STAGE1, STAGE2, TABLE = "10_stage1_sft_and_rctp", "11_stage2_rc_grpo", "12_table1_bfcl"
MEASURE, STARTS, EXPLORE = "22_measured_variance", "42_stage1_variants", "90_explore_rollouts"
EXPLORED = {"seed": 0, "arm": "rctp_rc_grpo"}
STAGE1_ARMS = ("base", "sft", "rctp")
# Notebooks that show all seeds and the tables and figures they write: of Table 1's arms and the
# measurements, and of every arm that is recorded.
TABLES: dict[str, tuple[str, ...]] = {
    "13_table2_rc_at_rctp_start": ("table2_rc_at_rctp_start.*",),
    "14_table3_starts": ("table3a_rc_at_sft_start.*", "table3b_rctp_start.*"),
    "15_table4_entropy_reward": ("table4_entropy_reward.*",),
    "16_table5_late_phase": ("table5_late_phase.*",),
    "23_variance_in_training": (
        "proposition_4_2_measured.*",
        "variance_temperature.*",
        "gradient_parts.*",
        "variance_in_training.*",
    ),
}
MEASURED = "23_variance_in_training"  # of TABLES, the one that reads more than the arms
EXTRA_TABLE = "40_beyond_the_paper"
BEYOND: dict[str, tuple[str, ...]] = {EXTRA_TABLE: ("beyond_*",), "43_claims": ()}
# Of a notebook without files here the executed copy counts as its result.
WRITES = (
    TABLES
    | BEYOND
    | {
        TABLE: ("table1_bfcl*", "training_dynamics.*"),
        EXPLORE: ("seed0_rctp_rc_grpo.html",),
        "20_proposition_4_2": ("proposition_4_2.*",),
        "21_proposition_4_3": ("proposition_4_3.*", "proposition_4_3_weights.*"),
    }
)
# Extra arms that run with the others, so that a smoke run covers their code.
SAMPLE = {"smoke": ("sft_equal", "sft_equal_rc_grpo", "sft_grpo_dynamic")}
# Seconds of a stage, used until a run has measured its own. Two cores, one thread a stage.
DEFAULT_SECONDS = {
    "smoke": {STAGE1: 30, STAGE2: 20, MEASURE: 30},
    "tiny": {STAGE1: 390, STAGE2: 370, ONCE[1]: 30, MEASURE: 165, STARTS: 250},
}
OTHER_SECONDS = 20


def stages(profile: str, seeds: int, results: str, also: Sequence[str] = ()) -> list[Stage]:
    """Declare what a profile can run, most urgent first: seed by seed, Table 1 after each seed.

    The other tables come after the last seed, then the extra arms and what shows them.

    Args:
        profile: name of a profile.
        seeds: number of seeds, 0 to seeds-1.
        results: folder of the results, relative to the repository or absolute.
        also: further notebooks to run once, with ``profile`` and ``results_dir``.

    >>> declared = stages("tiny", 1, "runs/tiny")
    >>> [stage.title for stage in declared if stage.notebook == TABLE]
    ['12_table1_bfcl seeds=[0]']
    """
    everywhere = {"profile": profile, "results_dir": results}
    once = [Stage(name, {"profile": profile}) for name in ONCE]
    once += [_writer(name, everywhere) for name in (*EXACT, *also)]
    declared, trained, measured, extra = [], [], [], []
    for seed in range(seeds):
        here = everywhere | {"seed": seed}
        first = Stage(STAGE1, here, (), seed, STAGE1_ARMS)
        arms = [Stage(STAGE2, here | {"arm": arm}, (first,), seed, (arm,)) for arm in ARMS]
        trained += [first, *arms]
        measured.append(Stage(MEASURE, here, (first, *arms), seed, MEASUREMENTS))
        extra += _extra_arms(profile, seed, here, first)
        declared += [first, *(once if seed == 0 else ()), *arms]
        shown = everywhere | {"seeds": list(range(seed + 1))}
        declared += [_writer(TABLE, shown, trained, TABLE), measured[-1]]
    recorded = [*trained, *measured]
    for name in TABLES:
        declared.append(_writer(name, shown, recorded if name == MEASURED else trained, name))
    declared.append(_writer(EXPLORE, everywhere | EXPLORED, trained[: 1 + len(ARMS)]))
    shows = [_writer(name, shown, recorded + extra, name) for name in BEYOND]
    if profile not in SAMPLE:  # without extra arms this one has nothing to show
        shows = [replace(one, extra=one.notebook == EXTRA_TABLE) for one in shows]
    return [*declared, *extra, *shows]


def _writer(notebook: str, parameters: dict, needs: Sequence[Stage] = (), slot: str = "") -> Stage:
    stems = WRITES.get(notebook, ())
    folders = ("paper_tables", "figures", "explore")
    files = tuple(f"{folder}/{stem}" for folder in folders for stem in stems)
    return Stage(notebook, parameters, tuple(needs), writes=files, slot=slot)


def _extra_arms(profile: str, seed: int, here: dict, first: Stage) -> list[Stage]:
    """Stages of the arms that the paper lacks; each needs the stage that trains its start."""
    usual, starts, arms = SAMPLE.get(profile, ()), {}, []
    for name in EXTRA_STARTS:
        extra = name not in usual
        starts[name] = Stage(STARTS, here | {"start": name}, (), seed, (name,), extra=extra)
    for arm in EXTRA_RL:
        needs, extra = (starts.get(RL_ARMS[arm].start, first),), arm not in usual
        arms.append(Stage(STAGE2, here | {"arm": arm}, needs, seed, (arm,), extra=extra))
    return [*starts.values(), *arms]


def select(declared: list[Stage], only: str | None, extra_arms: bool = False) -> list[Stage]:
    """Keep the stages that are asked for, and all that they need.

    Args:
        declared: what can run.
        only: keep notebooks whose name contains this; None keeps all.
        extra_arms: keep the extra arms too. Without it they run only if `only` names a notebook
            that has no other stages, and whatever shows all arms shows those that are there.

    Raises:
        RcError: if no notebook fits; the message lists them.

    >>> len(select(stages("tiny", 1, "runs/tiny"), "stage2"))
    5
    """
    usual = {stage.notebook for stage in declared if not stage.extra}
    wanted = [
        stage
        for stage in declared
        if (only or "") in stage.notebook
        and (extra_arms or not stage.extra or (only and stage.notebook not in usual))
    ]
    if not wanted:
        names = ", ".join(sorted({stage.notebook for stage in declared}))
        raise RcError(f"no notebook's name contains {only!r}; choose from {names}")
    titles = {title for stage in wanted for title in _closure(stage, extra_arms)}
    return [
        replace(stage, needs=tuple(need for need in stage.needs if need.title in titles))
        for stage in declared
        if stage.title in titles
    ]


def _closure(stage: Stage, extra_arms: bool) -> set[str]:
    needs = [need for need in stage.needs if extra_arms or stage.extra or not need.extra]
    return {stage.title}.union(*(_closure(need, extra_arms) for need in needs))


def plan(
    profile: str,
    seeds: int,
    jobs: int,
    only: str | None = None,
    *,
    extra_arms: bool = False,
    also: Sequence[str] = (),
    results: str | Path | None = None,
) -> Run:
    """Return the run that `reproduce` would make, with its parameters checked.

    Args:
        profile: name of a profile.
        seeds: number of seeds, >= 1.
        jobs: number of processes, >= 1.
        only, extra_arms: as `select`.
        also: further notebooks to run once.
        results: folder to write to; None: ``runs/<profile>``.

    Raises:
        RcError: for a number below 1, or a parameter that does not fit its notebook.
        ValueError: for an unknown profile.
    """
    if seeds < 1 or jobs < 1:
        raise RcError(f"seeds={seeds} and jobs={jobs} must be at least 1")
    folder = paths.resolve(results or paths.results_dir(get_profile(profile).name))
    declared = stages(profile, seeds, paths.portable(folder), also)
    declared = select(declared, only, extra_arms)
    for stage in declared:  # now, not after an hour
        check_parameters(find_notebook(stage.notebook), stage.parameters)
    expected = DEFAULT_SECONDS.get(profile, {})
    return Run(declared, folder, jobs, lambda notebook: expected.get(notebook, OTHER_SECONDS))


def reproduce(run: Run) -> Path:
    """Run all stages of a plan that are not done yet, `jobs` one-thread processes side by side.

    Returns:
        The folder of the results.

    Raises:
        RcError: if a stage failed, or another run uses the folder.
    """
    with locked(run.results):
        run.skip_done()
        run.execute()
    return run.results


def publish(profile: str, results: str | Path | None = None) -> list[str]:
    """Replace the committed records of a profile by those of its last run, or change nothing.

    Args:
        profile: name of a profile.
        results: folder of the run; None: ``runs/<profile>``.

    Returns:
        The names of the seeds published. A seed that lacks one of Table 1's arms is left out, and
        so is an extra arm or a measurement that is not finished; printed lines say what was found.

    Raises:
        RcError: if no seed is complete.
    """
    source = paths.resolve(results or paths.results_dir(get_profile(profile).name)) / "records"
    complete = []
    for seed in sorted(source.glob("seed*"), key=lambda folder: int(folder.name[4:])):
        lacking = [arm for arm in ALL_ARMS if not _is_finished(seed / arm)]
        if lacking:
            print(f"{seed.name} left out: no finished record of {', '.join(lacking)}")
        else:
            complete.append(seed)
    if not complete:
        raise RcError(f"no complete seed in {paths.portable(source)}; run rc reproduce first")
    folders = [seed / arm for seed in complete for arm in ALL_ARMS]
    for arm in (*MEASUREMENTS, *EXTRA_ARMS):
        found = [seed / arm for seed in complete if _is_finished(seed / arm)]
        folders += found
        if found:
            print(f"{arm}: {', '.join(folder.parent.name for folder in found)}")
    _replace_records(paths.published_records(profile), folders)
    return [seed.name for seed in complete]


def _is_finished(record: Path) -> bool:
    return all(file.is_file() for file in paths.finished_record(record))


def _replace_records(target: Path, folders: Sequence[Path]) -> None:
    """Copy the records ``seed<k>/<arm>`` beside the target, and swap only when all are there."""
    fresh, old = (target.with_name(f"{target.name}.{word}.tmp") for word in ("new", "old"))
    for stale in (fresh, old):
        shutil.rmtree(stale, ignore_errors=True)
    try:
        for folder in folders:
            copy = fresh / folder.parent.name / folder.name
            copy.mkdir(parents=True)
            for name in paths.RECORD_FILES:
                if (folder / name).is_file():  # arms without training have no curve
                    shutil.copyfile(folder / name, copy / name)
        if target.exists():
            target.rename(old)
        fresh.rename(target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)


def figures(profile: str) -> list[Path]:
    """Rebuild every committed table and figure, and README's parts, without training.

    Raises:
        RcError: if the profile has no published records.
    """
    from rc_lib.audit import write_audit
    from rc_lib.beyond_tables import write_beyond
    from rc_lib.claims import write_claims
    from rc_lib.rc_tables import write_rc_tables
    from rc_lib.records import found_seeds
    from rc_lib.tables import rebuild_all
    from rc_lib.variance_figures import write_variance

    records = paths.published_records(get_profile(profile).name)
    if not records.is_dir():
        raise RcError(f"no records in {paths.portable(records)}; run rc publish first")
    written = rebuild_all(records, paths.TABLES, paths.FIGURES, profile)
    for write in (write_rc_tables, write_variance):
        written += write(records, paths.TABLES, paths.FIGURES, profile, found_seeds(records))
    written += write_beyond(records, paths.TABLES, paths.FIGURES, profile)
    return [*written, *write_audit(), *write_claims(records, profile), readme.write()]
