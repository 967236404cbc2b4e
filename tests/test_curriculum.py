"""Which demonstrations a prompt carries at which step, and runs that go through several stages."""

import dataclasses

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from rc_lib.conditioning import Conditioning
from rc_lib.config import RLConfig
from rc_lib.curriculum import Curriculum, Place, stages
from rc_lib.demonstrations import Demonstration, demonstrate, prompt
from rc_lib.envs.base import Message
from rc_lib.envs.search import SearchEnv
from rc_lib.retrieval import BM25Retriever
from rc_lib.rollout import Request
from rc_lib.tasks.multihop import corpus, demonstration, multihop_tasks
from rc_lib.tasks.qa import QATask
from rc_lib.trainer import ConditionedGRPOTrainer

torch.set_num_threads(1)


def solved(number):
    call = Message("assistant", f"<think> t{number} </think> <search> q{number} </search>")
    found = Message("tool", f"<information>i{number}</information>")
    end = Message("assistant", f"<think> e{number} </think> <answer> a{number} </answer>")
    return Demonstration(f"Who is {number}?", (call, found, end))


POOL = tuple(map(solved, range(5)))


def curriculum(name="3-2-0", steps=100, **options):
    return Curriculum(stages(name, steps), POOL, **options)


@pytest.mark.parametrize(
    ("name", "lengths"), [("3-2-0", 100), ("3-2-1-0", 7), ("3-0", [60, 30]), ("0", 5), ("2", 3)]
)
def test_a_stage_of_n_steps_has_n_steps(name, lengths):
    plan = curriculum(name, lengths)
    shown = [plan.place(step).shots for step in range(plan.steps)]
    sizes = [lengths] * len(plan.stages) if isinstance(lengths, int) else lengths
    wanted = [int(n) for n, size in zip(name.split("-"), sizes, strict=True) for _ in range(size)]
    assert shown == wanted
    assert plan.place(plan.steps + 50).shots == int(name[-1])  # the last stage has no end
    for step in range(plan.steps):
        stage, _, start = plan.place(step)
        assert start == sum(sizes[:stage])


def test_restarts_come_at_the_first_step_of_later_stages_and_only_if_asked_for():
    plan = curriculum("3-2-0", 4, stage_restart=True)
    assert [step for step in range(20) if plan.restarts(step)] == [4, 8]
    assert not any(curriculum("3-2-0", 4).restarts(step) for step in range(20))


def test_a_measured_validity_ends_a_stage_at_the_step_of_its_measurement():
    plan = curriculum("3-2-0", 50, threshold=0.5, measure_every=10)
    validity = {10: 0.1, 20: 0.5, 30: 0.9}
    assert plan.place(19, validity) == Place(0, 3, 0)
    assert plan.place(20, validity) == Place(1, 2, 20)
    assert plan.place(29, validity) == Place(1, 2, 20)  # one measurement ends one stage
    assert plan.place(30, validity) == Place(2, 0, 30)


def test_a_stage_ends_by_its_steps_where_no_validity_suffices():
    plan = curriculum("3-2-0", 15, threshold=0.5, measure_every=10)
    low = {10: 0.0, 20: 0.0}
    assert [plan.place(step, low).stage for step in (14, 15, 29, 30)] == [0, 1, 1, 2]


@pytest.mark.parametrize("every", [1, 3, 10])
def test_the_places_of_a_run_are_those_of_a_resumed_one(every):
    plan = curriculum("3-2-1-0", 12, threshold=0.7, measure_every=every)
    measured, places = {}, []
    for step in range(60):
        if plan.measures(step, measured):
            measured[step] = (step * 37 % 11) / 10
        places.append(plan.place(step, dict(measured)))
    assert len({place.stage for place in places}) == 4
    # Later measurements change nothing, and a missing one is not passed over.
    assert [plan.place(step, measured) for step in range(60)] == places
    assert all(step % every == 0 and places[step - 1].stage < 3 for step in measured)
    with pytest.raises(ValueError, match=f"no zero-shot validity recorded for step {every}"):
        plan.place(every, {})


def test_validity_is_not_measured_without_a_threshold_or_in_the_last_stage():
    assert not any(curriculum().measures(step) for step in range(300))
    plan = curriculum("3-0", 20, threshold=0.5, measure_every=10)
    assert [step for step in range(60) if plan.measures(step, {10: 0.0})] == [10]


def test_first_shows_the_first_k():
    plan = curriculum("3-2-0", 1)
    assert [plan.demonstrations(0, step, 9) for step in range(3)] == [POOL[:3], POOL[:2], ()]


def test_random_demonstrations_depend_on_seed_step_and_group_alone():
    plan = curriculum("3-0", 100, pick="random")
    first = plan.demonstrations(0, 4, 2)
    assert plan.demonstrations(0, 4, 2) == first
    assert len(set(POOL) & set(first)) == len(first) == 3
    others = [plan.demonstrations(*address) for address in ((1, 4, 2), (0, 5, 2), (0, 4, 3))]
    assert all(other != first for other in others)
    counts = [sum(one in plan.demonstrations(0, 7, g) for g in range(400)) for one in POOL]
    assert min(counts) > 180  # of an expected 240


def test_show_gives_an_environment_its_demonstrations_or_refuses():
    class Bare:
        pass

    task = QATask("q", "nq", "Why", ("so",))
    env = SearchEnv(task, None, count_tokens=len)
    assert curriculum().show(env, 0, 0, 0) is env
    assert env.demonstrations == POOL[:3]
    bare = Bare()
    assert curriculum("0").show(bare, 0, 0, 0) is bare
    with pytest.raises(ValueError, match="Bare shows no demonstrations"):
        curriculum().show(bare, 0, 0, 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stages": ()}, "stages"),
        ({"stages": ((3, 0),)}, "steps >= 1"),
        ({"stages": ((-1, 5),)}, "shots >= 0"),
        ({"stages": ((6, 5),)}, "shows 6 demonstrations but the pool has 5"),
        ({"pick": "best"}, "'best'"),
        ({"threshold": 0.0}, "threshold 0.0"),
        ({"measure_every": 0}, "measure_every 0"),
    ],
)
def test_faulty_schedules_are_refused_by_name(changes, message):
    with pytest.raises(ValueError, match=message):
        Curriculum(**({"stages": ((0, 1),), "pool": POOL} | changes))


def test_faulty_names_and_steps_are_refused():
    with pytest.raises(ValueError, match="'3-x'"):
        stages("3-x", 5)
    with pytest.raises(ValueError, match="2 stages but steps are \\[5\\]"):
        stages("3-0", [5])
    with pytest.raises(ValueError, match="step -1"):
        curriculum().place(-1)


def test_the_papers_prompt_is_one_user_message_with_numbered_examples():
    (message,) = prompt("Rules.", "Why?", POOL[:2])
    assert message.role == "user"
    places = [
        message.content.index(part)
        for part in (
            "Rules.",
            "===============Example 1===============\nExample Problem: Who is 0?",
            "Example Solution: <think> t0 </think> <search> q0 </search>\n<information>i0",
            "<answer> a0 </answer>",
            "===============Example 2===============\nExample Problem: Who is 1?",
            "not a problem from the examples",
            "Actual Problem: Why?",
        )
    ]
    assert places == sorted(places)
    assert message.content.endswith("Actual Problem: Why?")
    assert "Example 3" not in message.content


def test_a_prompt_of_turns_shows_each_demonstration_as_a_conversation():
    messages = prompt("Rules.", "Why?", POOL[:2], "turns")
    roles = ["system", *["user", "assistant", "tool", "assistant"] * 2, "user"]
    assert [message.role for message in messages] == roles
    assert messages[-1].content == "Why?"
    with pytest.raises(ValueError, match="'xml'"):
        prompt("", "Why?", (), "xml")


def test_a_demonstration_alternates_and_solves_its_task():
    with pytest.raises(ValueError, match="must alternate"):
        Demonstration("Who?", (Message("tool", "x"),))
    env = SearchEnv(multihop_tasks("pretrain", 1)[0], BM25Retriever(corpus("pretrain")),
                    count_tokens=len, observation_tokens=900)  # fmt: skip
    assert env.task.path[-1] in demonstration(env).messages[-1].content
    with pytest.raises(ValueError, match="do not solve task multihop_pretrain_1hop_0"):
        demonstrate(env, ["<answer> nobody </answer>"])


class CharacterPolicy:
    """One id a character."""

    eos_ids, pad_id, device = frozenset({1}), 1, torch.device("cpu")

    def __init__(self):
        torch.manual_seed(0)
        self.model = Qwen2ForCausalLM(
            Qwen2Config(
                vocab_size=128, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
                num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=1024,
            )
        )  # fmt: skip

    def encode_messages(self, messages):
        return [i for m in messages for i in (2, *(ord(c) % 128 for c in m.content), 1)]

    def generation_prompt(self):
        return [3]

    def decode(self, ids):
        return "".join(map(chr, ids))


class CurriculumTrainer(ConditionedGRPOTrainer):
    """The one call that a trainer needs."""

    curriculum = Curriculum(((2, 2), (1, 1), (0, 1)), POOL, "random")

    def requests(self, step, tasks):
        return [
            Request(
                self.curriculum.show(request.env, self.seed, step, request.group_id),
                request.group_id, request.member, request.token,
            )
            for request in super().requests(step, tasks)
        ]  # fmt: skip


def make_trainer(folder, steps):
    retriever = BM25Retriever(corpus("train"))
    config = RLConfig(
        steps=steps, prompts_per_step=2, group_size=2, warmup_steps=1, max_new_tokens=6,
        max_length=1000, checkpoint_every=1,
    )  # fmt: skip
    make_env = lambda task: SearchEnv(  # noqa: E731
        task, retriever, count_tokens=len, observation_tokens=100, max_turns=1, told=""
    )
    return CurriculumTrainer(
        CharacterPolicy(), multihop_tasks("train", 6), make_env, config, Conditioning("iid"),
        seed=0, output_dir=folder,
    )  # fmt: skip


def test_stages_in_one_run_resume_exactly_and_members_share_their_demonstrations(tmp_path):
    make_trainer(tmp_path / "whole", 4).train(progress=False)
    for steps in (1, 3, 4):
        make_trainer(tmp_path / "cut", steps).train(progress=False)
    for name in ("curve.csv", "groups.csv", "rollouts.jsonl", "checkpoint.safetensors"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    trainer = make_trainer(tmp_path / "look", 4)
    shown = []
    for step in range(4):
        for request in trainer.requests(step, trainer.prompts(step)):
            text = request.env.reset()[0][0].content
            used = [d.question for d in POOL if d.question in text]
            shown.append((step, request.group_id, tuple(used), text))
    assert [len(used) for _, _, used, _ in shown] == [2] * 8 + [1] * 4 + [0] * 4
    by_group = {}
    for step, group, _, text in shown:
        by_group.setdefault((step, group), set()).add(text)
    assert all(len(texts) == 1 for texts in by_group.values())
    assert len({used for _, _, used, _ in shown[:8]}) > 1


def test_a_curriculum_is_plain_data():
    plan = curriculum("3-0", 5, threshold=0.5, stage_restart=True)
    data = dataclasses.asdict(plan)
    assert data["stages"] == ((3, 5), (0, 5))
    assert data["pool"][0]["question"] == "Who is 0?"
    assert plan == curriculum("3-0", 5, threshold=0.5, stage_restart=True)
