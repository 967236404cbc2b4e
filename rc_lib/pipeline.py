"""What a profile runs: notebooks as stages with needs; and how its records get published."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from rc_lib import paths, readme
from rc_lib.arms import EXTRA_ARMS
from rc_lib.config import ALL_ARMS, ARMS, MEASUREMENTS, get_profile
from rc_lib.errors import RcError
from rc_lib.notebook import check_parameters, find_notebook
from rc_lib.scheduler import Run, locked
from rc_lib.stage import Stage

ONCE = ("00_start_here", "01_bfcl_tasks_and_reward", "02_paper_audit")
STAGE1, STAGE2, TABLE = "10_stage1_sft_and_rctp", "11_stage2_rc_grpo", "12_table1_bfcl"
EXACT = ("20_proposition_4_2", "21_proposition_4_3")  # need no run
EXPLORE = ("91_explore_variance",)
VARIANCE, TRAINING = "22_measured_variance", "23_variance_in_training"
CLAIMS = "43_claims"
STAGE1_ARMS = ("base", "sft", "rctp")
# Seconds of a stage, used until a run has measured its own. Two cores, one thread a stage.
DEFAULT_SECONDS = {
    "smoke": {STAGE1: 30, STAGE2: 20, VARIANCE: 30},
    "tiny": {STAGE1: 390, STAGE2: 370, VARIANCE: 250, ONCE[1]: 30},
}
OTHER_SECONDS = 20


def stages(profile: str, seeds: int, results: str, also: Sequence[str] = ()) -> list[Stage]:
    """Declare what a profile runs, most urgent first: seed by seed, a table after each seed.

    Args:
        profile: name of a profile.
        seeds: number of seeds, 0 to seeds-1.
        results: folder of the results, relative to the repository or absolute.
        also: further notebooks to run once, with ``profile`` and ``results_dir``.

    >>> [stage.title for stage in stages("tiny", 1, "runs/tiny")][-2:]
    ['23_variance_in_training seeds=[0]', '43_claims seeds=[0]']
    """
    everywhere = {"profile": profile, "results_dir": results}
    declared, arms, measured = [], (), ()
    for seed in range(seeds):
        first = Stage(STAGE1, everywhere | {"seed": seed}, (), seed, STAGE1_ARMS)
        declared.append(first)
        if seed == 0:
            declared += [Stage(name, {"profile": profile}) for name in (*ONCE, *EXPLORE)]
            declared += [Stage(name, everywhere) for name in (*EXACT, *also)]
        for arm in ARMS:
            parameters = everywhere | {"seed": seed, "arm": arm}
            declared.append(Stage(STAGE2, parameters, (first,), seed, (arm,)))
        arms += tuple(declared[-len(ARMS) :])
        parameters = everywhere | {"seeds": list(range(seed + 1))}
        declared.append(Stage(TABLE, parameters, arms, slot=TABLE))
        needs = (first, *arms[-len(ARMS) :])
        own = everywhere | {"seed": seed}
        measured += (Stage(VARIANCE, own, needs, seed, MEASUREMENTS),)
        declared.append(measured[-1])
        declared.append(Stage(TRAINING, parameters, (*arms, *measured), slot=TRAINING))
        declared.append(Stage(CLAIMS, parameters, arms, slot=CLAIMS))
    return declared


def select(declared: list[Stage], only: str | None) -> list[Stage]:
    """Keep the stages whose notebook's name contains `only`, and all that they need.

    Raises:
        RcError: if no notebook fits; the message lists them.

    >>> len(select(stages("tiny", 1, "runs/tiny"), "stage2"))
    5
    """
    if only is None:
        return declared
    wanted = [stage for stage in declared if only in stage.notebook]
    if not wanted:
        names = ", ".join(sorted({stage.notebook for stage in declared}))
        raise RcError(f"no notebook's name contains {only!r}; choose from {names}")
    titles = {title for stage in wanted for title in _closure(stage)}
    return [stage for stage in declared if stage.title in titles]


def _closure(stage: Stage) -> set[str]:
    return {stage.title}.union(*(_closure(need) for need in stage.needs))


def reproduce(
    profile: str,
    seeds: int,
    jobs: int,
    only: str | None = None,
    *,
    also: Sequence[str] = (),
    results: str | Path | None = None,
) -> Path:
    """Run all stages of a profile that are not done yet, `jobs` one-thread processes side by side.

    Args:
        profile: name of a profile.
        seeds: number of seeds, >= 1.
        jobs: number of processes, >= 1.
        only: run only notebooks whose name contains this, and what they need.
        also: further notebooks to run once.
        results: folder to write to; None: ``runs/<profile>``.

    Returns:
        The folder of the results.

    Raises:
        RcError: if a stage failed, a parameter does not fit, or another run uses the folder.
        ValueError: for an unknown profile.
    """
    if seeds < 1 or jobs < 1:
        raise RcError(f"seeds={seeds} and jobs={jobs} must be at least 1")
    folder = paths.resolve(results or paths.results_dir(get_profile(profile).name))
    declared = select(stages(profile, seeds, paths.portable(folder), also), only)
    for stage in declared:  # now, not after an hour
        check_parameters(find_notebook(stage.notebook), stage.parameters)
    with locked(folder):
        expected = DEFAULT_SECONDS.get(profile, {})
        run = Run(declared, folder, jobs, lambda notebook: expected.get(notebook, OTHER_SECONDS))
        run.skip_done()
        run.execute()
    return folder


def publish(profile: str, results: str | Path | None = None) -> list[str]:
    """Replace the committed records of a profile by those of its last run.

    Args:
        profile: name of a profile.
        results: folder of the run; None: ``runs/<profile>``.

    Returns:
        The names of the seeds published; a seed that lacks an arm is left out and said so.

    Raises:
        RcError: if no seed is complete; nothing is changed then.
    """
    source = paths.resolve(results or paths.results_dir(get_profile(profile).name)) / "records"
    complete = []
    for seed in sorted(source.glob("seed*"), key=lambda folder: int(folder.name[4:])):
        lacking = [arm for arm in ALL_ARMS if not (seed / arm / "per_item.csv").is_file()]
        if lacking:
            print(f"{seed.name} left out: no per_item.csv of {', '.join(lacking)}")
        else:
            complete.append(seed)
    if not complete:
        raise RcError(f"no complete seed in {paths.portable(source)}; run rc reproduce first")
    target = paths.published_records(profile)
    shutil.rmtree(target, ignore_errors=True)
    for seed in complete:
        for arm in (*ALL_ARMS, *EXTRA_ARMS, *MEASUREMENTS):
            if not (seed / arm / "manifest.json").is_file():
                continue
            (target / seed.name / arm).mkdir(parents=True)
            for name in paths.RECORD_FILES:
                if (file := seed / arm / name).is_file():  # arms without training have no curve
                    shutil.copyfile(file, target / seed.name / arm / name)
    return [seed.name for seed in complete]


def figures(profile: str) -> list[Path]:
    """Rebuild every committed table and figure, and README's parts, without training.

    Raises:
        RcError: if the profile has no published records.
    """
    from rc_lib.audit import write_audit
    from rc_lib.claims import write_claims
    from rc_lib.records import found_seeds
    from rc_lib.tables import rebuild_all
    from rc_lib.variance_figures import write_variance

    records = paths.published_records(get_profile(profile).name)
    if not records.is_dir():
        raise RcError(f"no records in {paths.portable(records)}; run rc publish first")
    written = rebuild_all(records, paths.TABLES, paths.FIGURES, profile)
    written += write_variance(records, paths.TABLES, paths.FIGURES, profile, found_seeds(records))
    return [*written, *write_audit(), *write_claims(records, profile), readme.write()]
