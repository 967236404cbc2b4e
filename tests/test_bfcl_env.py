"""The BFCL environment: reward, verdicts, protocols and isolation."""

import gc
import tracemalloc

import mpmath
import pytest
from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils

from rc_lib.envs import bfcl
from rc_lib.envs.base import Environment, Message
from rc_lib.envs.bfcl import BFCLEnv
from rc_lib.envs.reference import execute_reference, run_calls
from rc_lib.tasks.base import Task
from rc_lib.tasks.bfcl import bfcl_task, system_prompt

FILE = {"type": "file", "content": "x"}
FOLDER = {"type": "directory", "contents": {}}


def files_task(*reference, turns=None, **fields):
    """A task on a folder with a.txt, b.txt and the folder `docs`."""
    contents = {"a.txt": FILE, "b.txt": FILE, "docs": FOLDER}
    config = {"GorillaFileSystem": {"root": {"home": {"type": "directory", "contents": contents}}}}
    turns = turns or tuple(f"turn {i}" for i in range(len(reference)))
    return Task("t", "base", turns, config, ("GorillaFileSystem",), reference, **fields)


def math_task(*reference, **fields):
    turns = tuple(f"turn {i}" for i in range(len(reference)))
    return Task("t", "base", turns, {}, ("MathAPI",), reference, **fields)


def played(task, *texts, **options):
    env = BFCLEnv(task, **options)
    env.reset()
    for text in texts:
        env.step(text)
    return env


def results_of(task, text, **options):
    env = BFCLEnv(task, **options)
    env.reset()
    return env.step(text)[4]["results"]


MOVE_AND_REMOVE = files_task(("mv(source='a.txt', destination='docs')", "rm(file_name='b.txt')"))


def test_it_is_an_environment():
    assert isinstance(BFCLEnv(MOVE_AND_REMOVE), Environment)


@pytest.mark.parametrize(
    ("calls", "state", "action"),
    [  # the worked cases of RC-GRPO App. D
        ("[rm('b.txt'), mv('a.txt', 'docs')]", 1.0, 1.0),
        ("[mv('a.txt', 'docs'), rm('b.txt'), touch('temp.log')]", 0.0, 1.0),
        ("[mv('a.txt', 'docs')]", 0.0, 0.0),
    ],
)
def test_reward_is_state_times_action(calls, state, action):
    parts = played(MOVE_AND_REMOVE, calls, "[done()]").reward()
    assert (parts["state"], parts["action"], parts["reward"]) == (state, action, state * action)


def test_the_same_state_by_other_calls_is_no_success():
    task = files_task(("rm(file_name='b.txt')",))
    parts = played(task, "[mv('b.txt', 'docs'), cd('docs'), rm('b.txt')]", "done()").reward()
    assert (parts["state"], parts["action"]) == (1.0, 1.0)  # the arguments alone are compared
    parts = played(files_task(("rmdir(dir_name='docs')",)), "[rm('docs')]", "done()").reward()
    assert (parts["state"], parts["action"]) == (1.0, 0.0)


def test_extra_optional_arguments_and_positional_ones_count():
    task = files_task(("ls()", "find(name='a')"))
    assert played(task, "[ls(a=True), find('.', 'a')]", "done()").reward()["action"] == 1.0


def test_a_call_with_another_value_or_a_refused_one_does_not_count():
    task = math_task(("add(a=1, b=2)",))
    for text in ("[add(1, 3)]", "[add(a=1, b=1+1)]", "[add(a=1, b=2, c=3)]", "[add(a=1)]"):
        assert played(task, text, "done()").reward()["action"] == 0.0, text


def test_reward_comes_with_the_last_step_only():
    env = BFCLEnv(math_task(("add(a=1, b=2)",)))
    env.reset()
    assert env.step("[add(1, 2)]")[1:4] == (0.0, False, False)
    assert env.step("[done()]")[1:4] == (1.0, True, False)
    with pytest.raises(RuntimeError, match="reset"):
        env.step("[done()]")


def test_before_reset_there_is_no_episode():
    with pytest.raises(RuntimeError, match="reset"):
        BFCLEnv(MOVE_AND_REMOVE).step("[ls()]")
    with pytest.raises(RuntimeError, match="reset"):
        BFCLEnv(MOVE_AND_REMOVE).reward()


def test_merged_prompt_numbers_the_steps():
    env = BFCLEnv(files_task(("ls()",), (), turns=("List the files.", "")), system_prompt="S")
    assert env.reset()[0] == [
        Message("system", "S"),
        Message(
            "user", f"Step 1: List the files.\nStep 2: {bfcl.NEW_FUNCTIONS}\n{bfcl.MERGED_END}"
        ),
    ]


def test_calls_after_done_are_not_run():
    env = BFCLEnv(math_task(("add(a=1, b=2)",)))
    env.reset()
    observation, _, terminated, _, info = env.step("[add(1, 2), done(), add(3, 4)]")
    assert (observation, terminated, info["results"]) == ([], True, ['{"result": 3}'])


def test_merged_goes_on_after_text_without_calls_until_the_limit():
    env = BFCLEnv(math_task(("add(a=1, b=2)",)), max_steps=2)
    env.reset()
    observation, _, terminated, truncated, info = env.step("I am thinking.")
    assert observation[0].content == "Error during execution: not a list of calls"
    assert (terminated, truncated, info["error"]) == (False, False, "not a list of calls")
    assert env.step("[add(1, 2)]")[1:4] == (1.0, False, True)
    assert env.reward()["official"] == 0.0  # it did not stop by itself


def test_merged_official_wants_the_reference_results():
    task = files_task(("ls()",), ("pwd()",))
    assert played(task, "[pwd(), ls()]", "done()").reward()["official"] == 1.0
    parts = played(task, "[pwd()]", "done()").reward()
    assert (parts["state"], parts["official"]) == (1.0, 0.0)


def test_in_turns_text_without_calls_brings_the_next_user_message():
    env = BFCLEnv(files_task(("ls()",), ("pwd()",)), protocol="turns")
    assert env.reset()[0] == [Message("user", "turn 0")]
    assert env.step("[ls()]")[0][0].role == "tool"
    assert env.step("There they are.")[0] == [Message("user", "turn 1")]
    env.step("[pwd()]")
    assert env.step("[]")[:4] == ([], 1.0, True, False)


def test_in_turns_each_turn_is_judged_at_its_end():
    task = files_task(("touch(file_name='new')",), ("rm(file_name='b.txt')",))
    right, early = (
        played(task, *texts, "", protocol="turns").reward()
        for texts in (
            ("[touch('new')]", "", "[rm('b.txt')]"),
            ("[touch('new'), rm('b.txt')]", "", "[ls()]"),
        )
    )
    assert (right["official"], early["official"], early["reward"]) == (1.0, 0.0, 1.0)


def test_in_turns_a_result_of_an_earlier_turn_counts_but_some_call_is_needed():
    task = files_task(("ls()",), ("ls()",))
    for texts, official in ((("[pwd()]", ""), 1.0), (("",), 0.0)):
        parts = played(task, "[ls()]", "", *texts, protocol="turns").reward()
        assert parts["official"] == official


def test_an_unfinished_episode_fails_officially():
    task = files_task(("ls()",), ())
    env = played(task, "[ls()]", "", protocol="turns")
    assert env.reward()["official"] == 0.0
    env.step("")
    assert env.reward()["official"] == 1.0


def test_only_strict_forbids_calls_where_none_is_right():
    task = files_task((), ("ls()",))
    parts = played(task, "[ls()]", "", "[ls()]", "", protocol="turns").reward()
    assert (parts["official"], parts["strict"]) == (1.0, 0.0)
    parts = played(task, "", "[ls()]", "", protocol="turns").reward()
    assert (parts["official"], parts["strict"]) == (1.0, 1.0)


def test_a_turn_may_have_twenty_steps_and_not_one_more():
    env = BFCLEnv(files_task(("ls()",)), protocol="turns")
    env.reset()
    for _ in range(20):
        assert env.step("[ls()]")[2:4] == (False, False)
    assert env.step("[ls()]")[2:4] == (False, True)


WITHHELD = files_task(
    ("ls()",), (), ("rm(file_name='b.txt')",),
    turns=("List.", "Remove b.txt.", ""),
    missed_function={2: ("rm",)}, excluded_function=("cp",),
)  # fmt: skip


def test_withheld_and_excluded_functions_do_not_exist():
    env = BFCLEnv(WITHHELD, protocol="turns")
    env.reset()
    text = "[rm('b.txt'), cp('a.txt', 'c.txt')]"
    undefined = "Error during execution: name '{}' is not defined"
    assert env.step(text)[4]["results"] == [undefined.format("rm"), undefined.format("cp")]
    env.step(""), env.step("")
    assert env.step(text)[4]["results"] == [
        '{"result": "\'b.txt\' removed"}',
        undefined.format("cp"),
    ]
    assert "is not defined" not in results_of(WITHHELD, "[rm('b.txt')]", protocol="merged")[0]
    assert "is not defined" in results_of(WITHHELD, "[cp('a.txt', 'c')]", protocol="merged")[0]
    barred = results_of(WITHHELD, text, protocol="turns", bar_functions=False)
    assert not any("is not defined" in result for result in barred)


def test_a_function_the_reference_itself_uses_is_not_barred():
    task = bfcl_task("multi_turn_miss_func_49")  # it uses `tail` two turns before its documents
    texts = [text for turn in task.reference for text in (*(f"[{c}]" for c in turn), "")]
    assert played(task, *texts, protocol="turns").reward()["official"] == 1.0


def test_new_functions_come_with_their_documents_where_there_is_a_system_prompt():
    task = bfcl_task("multi_turn_miss_func_0")
    for prompt, shown in ((None, False), (system_prompt(task, turn=0), True)):
        env = BFCLEnv(task, protocol="turns", system_prompt=prompt)
        env.reset()
        for _ in range(3):
            observation = env.step("")[0]
        assert observation[0].content.endswith(bfcl.NEW_FUNCTIONS)
        assert ("'name': 'sort'" in observation[0].content) == shown


def test_long_observations_are_cut_visibly_and_results_are_not():
    env = BFCLEnv(files_task(("ls()",)), observation_chars=40)
    env.reset()
    observation, *_, info = env.step(f"[echo({'x' * 100!r}), pwd()]")
    first, second = observation[0].content.split("\n")
    assert first == '{"terminal_output": ... [cut: 123 characters in all]'
    assert second.startswith('{"current_working_di')
    assert len(info["results"][0]) == 123


def test_a_result_stays_on_one_line():
    env = BFCLEnv(math_task(("add(a=1, b=2)",)))
    env.reset()
    observation = env.step("[mean(numbers=['a\\nb'])]")[0]
    assert "\n" not in observation[0].content


# --- isolation ---------------------------------------------------------------------------------


def test_two_rollouts_of_one_task_never_touch_each_other():
    task = bfcl_task("multi_turn_long_context_150")
    envs = [BFCLEnv(task, protocol="turns") for _ in range(3)]
    for env in envs:
        env.reset()
    travel = [env.instances._instance("TravelAPI") for env in envs[:2]]
    for card in travel[0].credit_card_list.values():
        card["balance"] = -1.0
    travel[0].booking_record.clear()
    fresh = envs[2].instances._instance("TravelAPI")
    assert vars(travel[1])["credit_card_list"] == fresh.credit_card_list
    assert all(card["balance"] != -1.0 for card in fresh.credit_card_list.values())
    assert len(fresh.booking_record) > 10
    texts = [text for turn in task.reference for text in (*(f"[{c}]" for c in turn), "")]
    assert played(task, *texts, protocol="turns").reward()["official"] == 1.0


def test_default_lists_of_a_function_are_not_shared():
    task = Task("t", "base", ("",), {"TwitterAPI": {"authenticated": True}}, ("TwitterAPI",), ((),))
    text = "[post_tweet('a'), mention(0, ['@x', '@y']), post_tweet('b')]"
    for _ in range(2):
        assert '"mentions": []' in results_of(task, text)[2]


def test_parsed_arguments_are_not_shared_between_rollouts():
    task = Task("t", "base", ("",), {"TwitterAPI": {"authenticated": True}}, ("TwitterAPI",), ((),))
    text = "[post_tweet('a', mentions=['@x']), mention(0, ['@y'])]"
    for _ in range(2):
        assert '"mentions": ["@x"]' in results_of(task, text)[0]


def test_precision_is_kept_to_the_call():
    before = mpmath.mp.prec
    texts = results_of(math_task(("add(a=1, b=2)",)), "[logarithm(8, 2, 300), square_root(2, 300)]")
    assert mpmath.mp.prec == before
    assert len(texts[1]) > 300
    assert len(results_of(math_task(()), "[square_root(2, 5)]")[0]) < 50


def test_random_numbers_repeat_in_each_rollout():
    task = Task("t", "base", ("",), {}, ("VehicleControlAPI",), (("get_current_speed()",),))
    text = "[get_current_speed(), get_current_speed()]"
    first = results_of(task, text)
    assert first == results_of(task, text) and first[0] != first[1]
    assert first[0] == execute_reference(task).turns[0].results[0]


def test_memory_stays_flat():
    task = bfcl_task("multi_turn_long_context_150")
    texts = [f"[{', '.join(turn)}]" for turn in task.reference if turn]

    def some(count):
        for _ in range(count):
            played(task, *texts, "done()", max_steps=50)
        gc.collect()

    some(20)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        some(100)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 50_000  # 500 bytes a rollout, whose instances hold far more


# --- the official executor's words -------------------------------------------------------------


@pytest.mark.parametrize(
    ("backend", "calls"),
    [
        ("MathAPI", ["add(1, 2)", "add(1)", "add(1, 2, 3)", "add(1, a=2)", "add(x=1)", "nope(1)"]),
        ("MathAPI", ["divide(1, 0)", "power(2, 60000)", "power(7, 4000)", "power(-8, 0.5)"]),
        ("MathAPI", ["square_root(2, 9)", "square_root(2, -1)", "logarithm(8, 2, 12)", "exit()"]),
        (
            "MathAPI",
            ["round_number(2.567, 1)", "round_number(5, -3)", "mean('x')", "max_value([])"],
        ),
        ("GorillaFileSystem", ["ls()", "mkdir('d')", "cd('d')", "pwd()", "cd('no')", "cat(1)"]),
        ("TicketAPI", ["get_ticket(1)", "create_ticket('x')", "get_user_tickets()"]),
        ("TravelAPI", ["get_flight_cost('A', 'B', '2024-01-01', 'first')", "list_all_airports()"]),
        ("TradingBot", ["get_watchlist()", "get_stock_info('AAPL')", "get_transaction_history()"]),
    ],
)
def test_results_are_worded_as_the_official_executor_words_them(backend, calls):
    name = "words" + "".join(filter(str.isalnum, "".join(calls)))
    theirs, _ = multi_turn_utils.execute_multi_turn_func_call(calls, {}, [backend], name, "x_0")
    task = Task("t", "base", ("",), {}, (backend,), ((),))
    assert results_of(task, f"[{', '.join(calls)}]") == theirs


def test_messages_about_a_set_do_not_depend_on_the_process():
    config = {"TicketAPI": {"ticket_queue": [{"id": 1}]}}
    task = Task("t", "base", ("",), config, ("TicketAPI",), ((),))
    text = "[edit_ticket(1, {'b': 1, 'c': 2, 'a': 3})]"
    assert results_of(task, text) == ['{"error": "Invalid fields for update: a, b, c"}']


# --- references --------------------------------------------------------------------------------


def test_a_reference_that_cannot_run_names_task_and_call():
    for call, reason in (
        ("lss()", "not defined"),
        ("ls(", "not a list"),
        ("ls(b=1)", "unexpected"),
    ):
        with pytest.raises(ValueError, match=reason) as caught:
            execute_reference(files_task((call,)))
        assert str(caught.value).startswith(f"task t: reference call {call!r}: ")


def test_run_calls_keeps_state_from_call_to_call():
    assert run_calls(files_task(), ["cd('docs')", "touch('new')", "ls()"])[2] == (
        '{"current_directory_content": ["new"]}'
    )


def test_wrong_settings_are_named():
    with pytest.raises(ValueError, match="protocol 'turn'"):
        BFCLEnv(MOVE_AND_REMOVE, protocol="turn")
    with pytest.raises(ValueError, match="max_steps=0"):
        BFCLEnv(MOVE_AND_REMOVE, max_steps=0)
