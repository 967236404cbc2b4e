"""Notebook parameters, stages, the scheduler, manifests and the command line."""

import json
import os
import subprocess
import sys
import time

import psutil
import pytest

from rc_lib import cli, manifest, notebook, paths, pipeline, scheduler
from rc_lib.arms import EXTRA_ARMS, EXTRA_STARTS
from rc_lib.config import ALL_ARMS, MEASUREMENTS
from rc_lib.errors import RcError
from rc_lib.stage import Stage, command

PARAMETERS = "seed: int = 0\nname: str = 'a'\nrate: float = 0.1\nseeds: list[int] = [0]"


@pytest.fixture
def declared(make_notebook, tmp_path):
    return make_notebook(tmp_path / "50_test.ipynb", PARAMETERS, "print(seed, name)")


# --- strict parameters


def test_an_unknown_parameter_is_an_error_that_lists_the_declared_ones(declared):
    with pytest.raises(RcError, match="unknown parameter sed=1; declared: seed: int, name: str"):
        notebook.check_parameters(declared, {"sed": 1})


@pytest.mark.parametrize(
    "wrong", [{"seed": "1"}, {"seed": True}, {"seed": 1.0}, {"name": 1}, {"seeds": ["0"]}]
)
def test_a_value_that_does_not_fit_its_annotation_is_an_error(declared, wrong):
    with pytest.raises(RcError, match="wrong type for parameter"):
        notebook.check_parameters(declared, wrong)


def test_fitting_parameters_pass_unchanged(declared):
    good = {"seed": 3, "rate": 1, "seeds": []}
    assert notebook.check_parameters(declared, good) == good


def test_command_line_texts_become_values_of_the_declared_types(declared):
    texts = ["seed=3", "name=7", "rate=0.5", "seeds=[0, 1]"]
    assert notebook.parse_assignments(declared, texts) == {
        "seed": 3, "name": "7", "rate": 0.5, "seeds": [0, 1]
    }  # fmt: skip
    with pytest.raises(RcError, match="wrong type for parameter seed='x'"):
        notebook.parse_assignments(declared, ["seed=x"])
    with pytest.raises(RcError, match="write name=value"):
        notebook.parse_assignments(declared, ["seed"])


@pytest.mark.parametrize("cell", ["seed = 0", "seed: int", "seed: int = len('a')", "print(1)"])
def test_a_parameters_cell_holds_annotated_literals_only(make_notebook, tmp_path, cell):
    path = make_notebook(tmp_path / "50_test.ipynb", cell)
    with pytest.raises(RcError, match="write name: type = literal"):
        notebook.declared_parameters(path)


def test_only_code_changes_a_notebooks_hash(declared):
    before = notebook.code_hash(declared)
    content = json.loads(declared.read_text())
    content["cells"][1]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": "x"}]
    content["cells"].append({"cell_type": "markdown", "metadata": {}, "source": "prose"})
    declared.write_text(json.dumps(content))
    assert notebook.code_hash(declared) == before
    content["cells"][1]["source"] = "print(seed)"
    declared.write_text(json.dumps(content))
    assert notebook.code_hash(declared) != before


# --- one notebook


def test_run_notebook_leaves_a_copy_with_outputs_and_a_manifest(declared, tmp_path):
    source = declared.read_bytes()
    notebook.run_notebook(declared, tmp_path / "out" / "x.ipynb", {"seed": 7})
    cells = json.loads((tmp_path / "out" / "x.ipynb").read_text())["cells"]
    assert cells[-1]["outputs"][0]["text"] == ["7 a\n"]
    about = json.loads((tmp_path / "out" / "x.manifest.json").read_text())
    assert about["seed"] == 7 and about["parameters"]["name"] == "a"
    assert about["code_sha256"] == notebook.code_hash(declared)
    assert declared.read_bytes() == source


def test_a_failed_cell_is_named_with_its_error(make_notebook, tmp_path, capsys):
    path = make_notebook(tmp_path / "50_test.ipynb", "seed: int = 0", "x = 1\nx / seed")
    with pytest.raises(RcError, match=r"50_test: .*'x / seed', failed with ZeroDivisionError"):
        notebook.run_notebook(path, tmp_path / "x.ipynb", {})
    assert "Traceback" in capsys.readouterr().out
    assert not (tmp_path / "x.manifest.json").exists()


def test_a_notebook_process_ends_when_its_parent_is_gone():
    code = "import time; from rc_lib.notebook import end_with_parent as e; e(); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, cwd=paths.ROOT)
    process.stdin.close()
    assert process.wait(timeout=30) == 1


# --- stages


def test_seeds_come_in_order_and_each_is_followed_by_a_table_of_the_seeds_so_far():
    declared = pipeline.stages("tiny", 2, "runs/tiny")
    tables = [stage for stage in declared if stage.notebook == pipeline.TABLE]
    assert [table.parameters["seeds"] for table in tables] == [[0], [0, 1]]
    assert [len(table.needs) for table in tables] == [5, 10]
    seeds = [stage.seed for stage in declared if stage.seed is not None and not stage.extra]
    assert seeds == [0] * 6 + [1] * 6
    assert len({stage.title for stage in declared}) == len(declared)


def test_every_arm_is_written_by_one_stage_of_each_seed():
    arms = [arm for stage in pipeline.stages("tiny", 1, "r") for arm in stage.arms]
    assert sorted(arms) == sorted((*ALL_ARMS, *MEASUREMENTS, *EXTRA_ARMS))


def test_no_two_stages_write_the_same_file_unless_they_share_a_slot():
    declared = {(stage.slot or stage.title): stage for stage in pipeline.stages("tiny", 2, "r")}
    stems = [pattern.removesuffix("*") for stage in declared.values() for pattern in stage.writes]
    pairs = [(a, b) for a in stems for b in stems if a is not b]
    assert stems and not [pair for pair in pairs if pair[0].startswith(pair[1])]


def test_measurements_and_tables_need_the_stages_whose_records_they_read():
    declared = {stage.title: stage for stage in pipeline.stages("tiny", 2, "r")}
    arms = {arm for need in declared[f"{pipeline.MEASURE} seed=1"].needs for arm in need.arms}
    assert arms == set(ALL_ARMS)
    table = declared["23_variance_in_training seeds=[0,1]"]
    read = {(need.seed, arm) for need in table.needs for arm in need.arms}
    assert read == {(seed, arm) for seed in (0, 1) for arm in (*ALL_ARMS, *MEASUREMENTS)}
    table = declared["16_table5_late_phase seeds=[0,1]"]
    read = {(need.seed, arm) for need in table.needs for arm in need.arms}
    assert read == {(seed, arm) for seed in (0, 1) for arm in ALL_ARMS}


def test_an_extra_arm_needs_the_stage_of_its_start():
    declared = {stage.title: stage for stage in pipeline.stages("tiny", 1, "r")}
    needs = {
        arm: declared[f"{pipeline.STAGE2} seed=0 arm={arm}"].needs[0].title
        for arm in ("cue_rc_grpo", "rctp_rc_g2")
    }
    assert needs == {
        "cue_rc_grpo": f"{pipeline.STARTS} seed=0 start=rctp_cue",
        "rctp_rc_g2": f"{pipeline.STAGE1} seed=0",
    }


def test_extra_arms_run_only_when_asked_for(monkeypatch):
    monkeypatch.setattr(pipeline, "BEYOND", {"40_beyond": ()})  # shows all arms that are there
    declared = pipeline.stages("tiny", 1, "r")
    usual = pipeline.select(declared, None)
    assert not any(stage.extra for stage in usual)
    beyond = next(stage for stage in usual if stage.notebook == "40_beyond")
    assert {arm for need in beyond.needs for arm in need.arms} == {*ALL_ARMS, *MEASUREMENTS}
    assert pipeline.select(declared, None, extra_arms=True) == declared
    assert pipeline.select(declared, "stage2") == [
        stage for stage in usual if stage.notebook in (pipeline.STAGE1, pipeline.STAGE2)
    ]
    variants = pipeline.select(declared, "42")
    assert [stage.arms for stage in variants] == [(start,) for start in EXTRA_STARTS]


def test_a_smoke_run_covers_the_code_of_extra_arms():
    usual = pipeline.select(pipeline.stages("smoke", 1, "r"), None)
    assert {arm for stage in usual for arm in stage.arms} >= {*pipeline.SAMPLE["smoke"]}


def test_only_one_table_is_selected_with_what_it_needs_for_all_seeds():
    chosen = pipeline.select(pipeline.stages("tiny", 2, "r"), "variance_in")
    assert [stage.title for stage in chosen if stage.slot] == [
        "23_variance_in_training seeds=[0,1]"
    ]
    assert {stage.notebook for stage in chosen} == {
        pipeline.STAGE1, pipeline.STAGE2, pipeline.MEASURE, pipeline.MEASURED,
    }  # fmt: skip


def test_only_takes_what_it_needs_along_and_refuses_an_unknown_name():
    declared = pipeline.stages("tiny", 1, "r")
    chosen = pipeline.select(declared, "table1")
    assert {stage.notebook for stage in chosen} == {
        pipeline.STAGE1, pipeline.STAGE2, pipeline.TABLE
    }  # fmt: skip
    with pytest.raises(RcError, match="no notebook's name contains 'table9'; choose from 00_"):
        pipeline.select(declared, "table9")


def test_the_command_of_a_stage_gives_its_parameters_back(declared, tmp_path):
    parameters = {"seed": 3, "name": "x y", "seeds": [0, 1]}
    words = command(Stage(str(declared), parameters), tmp_path)
    texts = [text for flag, text in zip(words, words[1:], strict=False) if flag == "-p"]
    assert notebook.parse_assignments(declared, texts) == parameters


# --- the scheduler, with small scripts in place of notebooks

SCRIPT = """
import pathlib, sys, time
root, name, arms = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3:-2]
with open(root / "order.txt", "a") as file:
    file.write(name + "\\n")
if (root / "fail").exists() and (root / "fail").read_text() == name:
    sys.exit("rc: error: " + name + ": cell In [3] failed with ValueError: no")
for arm in arms:
    folder = root / "records" / "seed0" / arm
    folder.mkdir(parents=True)
    for file in ("per_item.csv", "manifest.json"):
        (folder / file).write_text(name + (root / "text").read_text())
(root / "notebooks").mkdir(exist_ok=True)
(root / "notebooks" / sys.argv[-2]).touch()
while (root / "wait").exists():
    time.sleep(0.05)
"""


@pytest.fixture
def graph(make_notebook, tmp_path, monkeypatch):
    """Stages a -> b, c -> t (a table), their commands replaced by a script that notes its name."""
    for name in ("50_a", "51_b", "52_c", "53_t"):
        make_notebook(tmp_path / "sources" / f"{name}.ipynb", "seed: int = 0")
    monkeypatch.setattr(paths, "NOTEBOOKS", tmp_path / "sources")
    (tmp_path / "text").write_text("{}")  # what every record holds

    def script(stage, results):
        words = [str(results), stage.notebook, *stage.arms, f"{stage.name}.ipynb"]
        return [sys.executable, "-c", SCRIPT, *words]

    monkeypatch.setattr(scheduler, "command", script)
    a = Stage("50_a", {"seed": 0}, (), 0, ("base", "sft"))
    b = Stage("51_b", {"seed": 0}, (a,), 0, ("sft_grpo",))
    c = Stage("52_c", {"seed": 0}, (a,), 0, ("rctp_grpo",))
    return [a, b, c, Stage("53_t", {"seed": 0}, (b, c), slot="53_t")]


def run(graph, results, jobs=2):
    one = scheduler.Run(graph, results, jobs, lambda notebook: 1.0)
    one.skip_done()
    one.execute()


def order(results):
    return (results / "order.txt").read_text().split()


def test_stages_run_after_what_they_need_and_are_skipped_next_time(graph, tmp_path, capsys):
    run(graph, tmp_path)
    started = order(tmp_path)
    assert started[0] == "50_a" and sorted(started[1:3]) == ["51_b", "52_c"]
    assert started[3:] == ["53_t"]
    assert "[4/4] 53_t seed=0" in capsys.readouterr().out
    run(graph, tmp_path)
    assert order(tmp_path) == started
    assert "50_a seed=0: done before in 0:0" in capsys.readouterr().out


def test_a_changed_notebook_and_all_that_needs_it_run_again_from_scratch(
    graph, tmp_path, make_notebook
):
    run(graph, tmp_path)
    (tmp_path / "order.txt").unlink()
    make_notebook(tmp_path / "sources" / "51_b.ipynb", "seed: int = 0", "new = 1")
    (tmp_path / "text").write_text("new")
    checkpoint = paths.checkpoint_dir(tmp_path, 0, "sft_grpo") / "state"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.touch()
    run(graph, tmp_path)
    assert order(tmp_path) == ["51_b", "53_t"]
    assert not checkpoint.exists()


@pytest.mark.parametrize("damage", [b"", b"[1]", b'{"state": "done", "ke'])
def test_a_damaged_stamp_or_a_missing_record_runs_the_stage_again(graph, tmp_path, damage):
    run(graph, tmp_path)
    (tmp_path / "stages" / "52_c-0.json").write_bytes(damage)
    (tmp_path / "records" / "seed0" / "sft_grpo" / "per_item.csv").unlink()
    (tmp_path / "order.txt").unlink()
    (tmp_path / "text").write_text("new")
    run(graph, tmp_path)
    assert sorted(order(tmp_path)) == ["51_b", "52_c", "53_t"]


def test_a_damaged_output_is_said_and_made_again_and_what_needs_it_only_if_it_changed(
    graph, tmp_path, capsys
):
    run(graph, tmp_path)
    record = tmp_path / "records" / "seed0" / "sft" / "per_item.csv"
    whole = record.read_text()
    record.write_text(whole[:-1])
    (tmp_path / "order.txt").unlink()
    capsys.readouterr()
    run(graph, tmp_path)
    said = capsys.readouterr().out
    assert "50_a seed=0: stale: records/seed0/sft/per_item.csv is damaged\n" in said
    assert "51_b seed=0: stale: it needs 50_a seed=0 first\n" in said
    assert "51_b seed=0: done before in 0:0" in said and record.read_text() == whole
    assert order(tmp_path) == ["50_a"]
    record.unlink()
    (tmp_path / "text").write_text("other")
    run(graph, tmp_path)
    assert sorted(order(tmp_path)[1:]) == ["50_a", "51_b", "52_c", "53_t"]


def test_a_record_is_never_used_before_its_stage_has_ended(graph, tmp_path):
    run(graph, tmp_path)
    (tmp_path / "records" / "seed0" / "base" / "manifest.json").unlink()
    (tmp_path / "order.txt").unlink()
    (tmp_path / "fail").write_text("50_a")
    with pytest.raises(RcError, match="50_a: cell"):
        run(graph, tmp_path)
    assert order(tmp_path) == ["50_a"]  # and nothing that needs it
    assert not (tmp_path / "records" / "seed0" / "base").exists()


def test_a_failed_stage_stops_new_work_and_says_how_to_see_it(graph, tmp_path):
    (tmp_path / "fail").write_text("51_b")
    with pytest.raises(RcError) as error:
        run(graph, tmp_path, jobs=1)
    assert order(tmp_path) == ["50_a", "51_b"]
    message = str(error.value)
    assert message.startswith("51_b: cell In [3] failed with ValueError: no\n")
    assert f"log    {tmp_path}/logs/51_b-0.log" in message and "\n  alone  " in message
    (tmp_path / "fail").unlink()
    run(graph, tmp_path, jobs=1)
    assert order(tmp_path) == ["50_a", "51_b", "51_b", "52_c", "53_t"]


def test_a_stage_that_writes_no_record_has_failed(graph, tmp_path, monkeypatch):
    monkeypatch.setattr(scheduler, "command", lambda *_: [sys.executable, "-c", ""])
    with pytest.raises(RcError, match="ended without writing .*base/per_item.csv"):
        run(graph, tmp_path)


def test_an_interrupt_ends_the_children_and_keeps_the_checkpoints(graph, tmp_path, monkeypatch):
    (tmp_path / "wait").touch()
    processes = []

    def interrupt(one, bar):
        processes.extend(running.process for running in one.running)
        if (tmp_path / "order.txt").exists():
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(scheduler.Run, "_tell", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run(graph, tmp_path)
    assert processes and not any(psutil.pid_exists(process.pid) for process in processes)
    checkpoint = paths.checkpoint_dir(tmp_path, 0, "sft") / "state"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.touch()
    (tmp_path / "wait").unlink()
    for arm in ("base", "sft"):
        for file in paths.record_dir(tmp_path, 0, arm).glob("*"):
            file.unlink()
        paths.record_dir(tmp_path, 0, arm).rmdir()
    run(graph, tmp_path)
    assert checkpoint.exists() and order(tmp_path)[:2] == ["50_a", "50_a"]


def test_tables_that_the_next_table_replaces_at_once_are_left_out(graph, tmp_path):
    a, b, c, _ = graph
    early, late = (
        Stage("53_t", {"seeds": seeds}, needs, slot="53_t")
        for seeds, needs in (([0], (b,)), ([0, 1], (b, c)))
    )
    run([a, b, early, c, late], tmp_path, jobs=1)
    assert order(tmp_path) == ["50_a", "51_b", "53_t", "52_c", "53_t"]
    run([a, b, early, c, late], tmp_path, jobs=1)
    assert len(order(tmp_path)) == 5


def test_a_second_run_in_the_same_folder_is_refused(tmp_path):
    with scheduler.locked(tmp_path):
        with pytest.raises(RcError, match="another run uses"):
            with scheduler.locked(tmp_path):
                pass
    with scheduler.locked(tmp_path):
        pass


def test_time_left_uses_measured_durations_and_the_number_of_jobs(graph, tmp_path):
    one = scheduler.Run(graph, tmp_path, 2, lambda notebook: 10.0)
    assert one.seconds_left() == 20.0
    one.done = {graph[0].title: {}}
    one.measured = {"51_b": [30.0, 50.0]}
    assert one.seconds_left() == 40.0  # the longest stage, as 60 s of work fit beside each other


def test_kill_tree_ends_a_process_that_ignores_the_first_request(tmp_path):
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        f"open({str(tmp_path / 'up')!r}, 'w').close(); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    while not (tmp_path / "up").exists():
        time.sleep(0.02)
    scheduler.kill_tree(process, patience_s=0.2)
    assert not psutil.pid_exists(process.pid)


def test_the_last_line_of_a_log_is_the_last_state_of_a_progress_bar(tmp_path):
    log = tmp_path / "log"
    log.write_bytes(b"start\n 10%|#\r 20%|##\r\n\n")
    assert scheduler.last_line(log) == "20%|##"
    log.write_bytes(b"")
    assert scheduler.last_line(log) == ""


# --- publishing


def write_seed(root, seed, arms):
    for arm in arms:
        folder = root / "records" / f"seed{seed}" / arm
        folder.mkdir(parents=True)
        for name in ("per_item.csv", "manifest.json", "rollouts.jsonl"):
            (folder / name).write_text(f"{seed} {arm}")


def test_publish_copies_complete_seeds_and_only_record_files(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(paths, "RECORDS", tmp_path / "published")
    write_seed(tmp_path, 0, ALL_ARMS)
    write_seed(tmp_path, 1, ALL_ARMS[:-1])
    stale = tmp_path / "published" / "tiny" / "seed9"
    stale.mkdir(parents=True)
    assert pipeline.publish("tiny", tmp_path) == ["seed0"]
    assert f"seed1 left out: no finished record of {ALL_ARMS[-1]}" in capsys.readouterr().out
    published = tmp_path / "published" / "tiny"
    assert [folder.name for folder in published.iterdir()] == ["seed0"]
    names = {file.name for file in published.rglob("*") if file.is_file()}
    assert names == {"per_item.csv", "manifest.json"}


def test_publish_takes_the_extra_arms_and_measurements_that_are_finished(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(paths, "RECORDS", tmp_path / "published")
    extra, measured = EXTRA_ARMS[0], MEASUREMENTS[0]
    for seed in (0, 1):
        write_seed(tmp_path, seed, (*ALL_ARMS, extra, "not_an_arm"))
    write_seed(tmp_path, 0, MEASUREMENTS)
    records = tmp_path / "records"
    (records / "seed0" / measured / "kl.csv").touch()
    (records / "seed0" / measured / "per_item.csv").unlink()
    (records / "seed1" / extra / "manifest.json").unlink()
    assert pipeline.publish("tiny", tmp_path) == ["seed0", "seed1"]
    assert capsys.readouterr().out == f"{measured}: seed0\n{extra}: seed0\n"
    published = tmp_path / "published" / "tiny"
    folders = {seed: {p.name for p in (published / seed).iterdir()} for seed in ("seed0", "seed1")}
    assert folders == {"seed0": {*ALL_ARMS, extra, measured}, "seed1": {*ALL_ARMS}}
    assert (published / "seed0" / measured / "kl.csv").is_file()


def test_publish_leaves_the_old_records_whole_if_a_copy_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "RECORDS", tmp_path / "published")
    old = tmp_path / "published" / "tiny" / "seed9" / "base" / "per_item.csv"
    old.parent.mkdir(parents=True)
    old.write_text("old")
    write_seed(tmp_path, 0, ALL_ARMS)
    copied = []

    def copyfile(source, target):
        copied.append(target)
        if len(copied) == 3:
            raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(pipeline.shutil, "copyfile", copyfile)
        with pytest.raises(OSError, match="no space"):
            pipeline.publish("tiny", tmp_path)
    assert [p.name for p in (tmp_path / "published").iterdir()] == ["tiny"]
    assert old.read_text() == "old"


def test_publish_without_a_complete_seed_changes_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "RECORDS", tmp_path / "published")
    (tmp_path / "published" / "tiny").mkdir(parents=True)
    with pytest.raises(RcError, match="no complete seed"):
        pipeline.publish("tiny", tmp_path)
    assert (tmp_path / "published" / "tiny").is_dir()


# --- manifests


def test_a_manifest_tells_what_made_a_result_without_naming_this_machine(tmp_path):
    data = tmp_path / "data.csv"
    data.write_text("x")
    parameters = {"folder": paths.ROOT / "runs" / "tiny", "seeds": (0, 1)}
    made = manifest.manifest(parameters, 3, [data], time.time(), batch_size=8)
    assert made["parameters"] == {"folder": "runs/tiny", "seeds": [0, 1]}
    assert made["data_sha256"][str(data)].startswith("2d711642b726b04401627ca9fbac32f5")
    assert set(made) == {
        "git", "parameters", "seed", "versions", "device", "dtype", "batch_size", "data_sha256",
        "wall_s", "peak_mib",
    }  # fmt: skip
    assert 0 <= made["wall_s"] < 60 and made["versions"]["torch"]
    assert json.loads(json.dumps(made)) == made


def test_the_hash_of_a_folder_covers_names_and_contents(tmp_path):
    hashes = []
    for name, text in (("a", "x"), ("a", "y"), ("b", "y")):
        for file in tmp_path.iterdir():
            file.unlink()
        (tmp_path / name).write_text(text)
        hashes.append(manifest.sha256(tmp_path))
    assert len(set(hashes)) == 3
    with pytest.raises(FileNotFoundError, match="cannot hash"):
        manifest.sha256(tmp_path / "none")


def test_a_failed_json_write_leaves_the_old_file(tmp_path):
    path = manifest.write_json({"x": 1}, tmp_path / "x.json")
    with pytest.raises(ValueError):
        manifest.write_json({"x": float("nan")}, path)
    assert json.loads(path.read_text()) == {"x": 1}
    assert os.listdir(tmp_path) == ["x.json"]


# --- the command line


def test_help_and_bfcl_start_without_torch():
    code = (
        "import sys; from rc_lib.cli import _parser; _parser([]); sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=paths.ROOT)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["reproduce", "--profile", "nope"], "unknown profile 'nope'; choose from smoke, tiny"),
        (["reproduce", "--seeds", "0"], "seeds=0"),
        (["status", "--profile", "nope"], "unknown profile 'nope'; choose from smoke, tiny"),
        (["status", "--only", "table9"], "no notebook's name contains 'table9'"),
        (["run-notebook", "77"], "0 notebooks fit '77'; choose from"),
    ],
)
def test_a_wrong_input_gives_one_line_and_exit_status_2(words, said, capsys, monkeypatch):
    monkeypatch.delenv("RC_DEBUG", raising=False)
    assert cli.main(words) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1 and error.startswith("rc: error: ")


def test_rc_debug_shows_the_traceback(monkeypatch):
    monkeypatch.setenv("RC_DEBUG", "1")
    with pytest.raises(ValueError, match="unknown profile"):
        cli.main(["reproduce", "--profile", "nope"])
