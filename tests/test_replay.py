"""Messages played again: each call with its own change, and errors that change nothing."""

from test_bfcl_env import files_task, math_task

from rc_lib.envs.bfcl import BFCLEnv
from rc_lib.replay import differences, replay


def test_every_call_of_a_message_has_its_own_change():
    env = BFCLEnv(files_task(("ls()",)))
    texts = ["[mv('a.txt', 'docs'), ls(), rm('b.txt')]", "[touch('n'), rm('n'), done(), ls()]"]
    first, second = replay(env, texts)
    assert [call.call for call in first] == ["mv('a.txt', 'docs')", "ls()", "rm('b.txt')"]
    here = "GorillaFileSystem.root"
    assert first[0].changed == [(f"{here}/a.txt", "x", None), (f"{here}/docs/a.txt", None, "x")]
    assert first[1].changed == []
    assert first[2].changed == [(f"{here}/b.txt", "x", None)]
    assert second[0].changed[0][0] == second[1].changed[0][0] == f"{here}/n"
    assert [(call.call, call.result) for call in second[2:]] == [("done()", None), ("ls()", None)]


def test_what_is_not_run_changes_nothing_and_says_why():
    env = BFCLEnv(math_task(("add(a=1, b=2)",), excluded_function=("mean",)))
    (prose,), (refused, barred) = replay(env, ["I think.", "[add(1, b=x), mean([1])]"])
    assert (prose.call, prose.changed) == ("I think.", [])
    assert prose.result == "Error during execution: not a list of calls"
    assert refused.call == "add(...)" and "bare name 'x'" in refused.result
    assert barred.result == "Error during execution: name 'mean' is not defined"


def test_differences_leave_out_containers_whose_entries_are_there():
    before = {"A.orders": ["dict", "dict"], "A.n": [1, 1]}
    after = {"A.orders": ["dict", None], "A.orders/5/id": [None, 5], "A.n": [1, 1]}
    assert differences(before, after) == [("A.orders/5/id", None, 5)]
