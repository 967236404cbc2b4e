"""Logged rollouts made readable: right numbers and replays, and no way for a text to be markup."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from rc_lib import experiment, explore
from rc_lib.conditioning import condition
from rc_lib.config import get_profile
from rc_lib.errors import RcError
from rc_lib.explore import LoggedRun, browser, pieces, printable
from rc_lib.paths import TINY_BASE
from rc_lib.policy import Policy
from rc_lib.rollout_log import find_runs, load_groups
from rc_lib.transcript import Transcript

SMOKE = get_profile("smoke")
TASKS = experiment.training_tasks(SMOKE)
VOID = {"meta", "br", "img", "link", "input", "base", "wbr"}
HOSTILE = [
    "<script>alert(1)</script>",
    "\"'><img src=x onerror=alert(2)></code></div></style><style>*{display:none}",
    "{{ 7 * 7 }} {% raw %} <!-- &amp; &#60;b&#62;",
    "\x1b[2J\x00\u202ereversed\u2028\x07",
]


@pytest.fixture(scope="module")
def policy():
    policy = Policy.from_pretrained(TINY_BASE)
    policy.add_reward_tokens(seed=0)
    return policy


def record(policy, task, member, texts, token="high", advantage=0.0, **place):
    """What the trainer would log of a rollout with these messages."""
    env, transcript = experiment.environment(SMOKE)(task), Transcript()
    messages, _ = env.reset()
    prompt = policy.encode_messages(condition(messages, token)) + policy.generation_prompt()
    transcript.append("prompt", prompt)
    for text in texts:
        transcript.append("model", [*policy.encode_text(text), policy.tokenizer.eos_token_id])
        observation, _, terminated, truncated, _ = env.step(text)
        if not (terminated or truncated):
            ids = policy.encode_messages(observation) + policy.generation_prompt()
            transcript.append("tool", ids)
    parts = env.reward()
    return {
        "step": 0, "group_id": 0, "member": member, "token": token, "task_id": task.id,
        "category": task.category, "reward": parts["reward"], "parts": parts,
        "ended": "terminated" if terminated else "truncated_steps", "advantage": advantage,
        "texts": texts, "ids": transcript.ids, "spans": transcript.spans,
    } | place  # fmt: skip


def write_run(policy, root, records, seed=0, arm="rctp_rc_grpo"):
    folder = root / "checkpoints" / f"seed{seed}"
    (folder / arm).mkdir(parents=True)
    policy.tokenizer.save_pretrained(folder / "rctp")
    lines = "".join(json.dumps(one) + "\n" for one in records)
    (folder / arm / "rollouts.jsonl").write_text(lines, encoding="utf-8")
    return root


def group(policy, task, **place):
    """Two members: the reference's own messages, and one that gives up at once."""
    return [
        record(policy, task, 0, list(task.actions), "high", 1.0, **place),
        record(policy, task, 1, ["[done()]"], "low", -1.0, **place),
    ]


@pytest.fixture
def root(policy, tmp_path):
    records = group(policy, TASKS[0]) + group(policy, TASKS[1], group_id=7)
    records += group(policy, TASKS[2], step=3, group_id=2)
    return write_run(policy, tmp_path, records)


@pytest.fixture
def run(root):
    return LoggedRun(root, SMOKE, 0, "rctp_rc_grpo")


# --- the log -----------------------------------------------------------------------------------


def test_runs_are_found_by_seed_and_arm(policy, root):
    lines = (find_runs(root)[0].path).read_text().splitlines()
    write_run(policy, root, map(json.loads, lines), seed=11, arm="sft_grpo")
    assert [place[:2] for place in find_runs(root)] == [(0, "rctp_rc_grpo"), (11, "sft_grpo")]
    with pytest.raises(RcError, match="no logged rollouts of seed 1 sft_grpo .* seed 11 sft_grpo"):
        LoggedRun(root, SMOKE, 1, "sft_grpo")
    with pytest.raises(RcError, match="run notebooks 10 and 11"):
        find_runs(root / "nowhere")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: [lines[0], lines[1][:50]], "line 2, is no record"),
        (lambda lines: ["[1]"], "line 1, is no record"),
        (lambda lines: ['{"step": 0}'], "line 1, lacks advantage, category"),
        (lambda lines: lines[1:], r"step 0, group 0, has members \[1\]"),
        (lambda lines: [], "holds no rollouts yet"),
    ],
)
def test_a_broken_log_is_an_error_that_names_the_place(root, change, message):
    path = find_runs(root)[0].path
    lines = path.read_text().splitlines()
    path.write_text("".join(f"{line}\n" for line in change(lines)))
    with pytest.raises(ValueError, match=message):
        load_groups(path)


# --- replay ------------------------------------------------------------------------------------


def test_a_replay_earns_what_the_log_says(run):
    for key in run.groups:
        assert [one["again"] for one in run.view(*key)["members"]] == [{}, {}]
    run.groups[0, 0][1]["parts"]["state"] = 1.0
    assert run.view(0, 0)["members"][1]["again"] == {"state": 0.0}
    assert "Replayed now, state is 0, not as logged" in run.html(0, 0)


# --- the view ----------------------------------------------------------------------------------


def test_a_view_has_the_groups_numbers_and_what_a_failure_missed(run):
    view = run.view(0, 0)
    good, bad = view["members"]
    assert (view["mean"], view["sigma"], view["spread"]) == (0.5, 0.5, True)
    assert (good["reward"], good["sign"], good["level"], good["share"]) == (1.0, "pos", 4, 1.0)
    assert (bad["reward"], bad["sign"]) == (0.0, "neg")
    assert good["missed"] is None and bad["missed"]
    for path, reference, here in bad["missed"]:
        changed = [row for s in good["spans"] for c in s.get("calls", ()) for row in c["changed"]]
        assert (path, here, reference) in changed  # what the reference did was left undone
    trained = sum(len(policy_ids) for policy_ids in model_ids(run.groups[0, 0][0]))
    assert good["trained"] == trained == sum(s["count"] for s in good["spans"] if s["loss"])
    assert [s["loss"] for s in good["spans"]] == [s["kind"] == "model" for s in good["spans"]]


def model_ids(one):
    return [one["ids"][start:end] for kind, start, end in one["spans"] if kind == "model"]


@pytest.mark.parametrize(("advantage", "level"), [(0.0, 0), (0.25, 1), (-0.5, 2), (0.6, 3), (2, 4)])
def test_shades_grow_with_the_advantage(run, advantage, level):
    run.groups[0, 0][0]["advantage"] = advantage  # at most 1 in a group of two
    assert run.view(0, 0)["members"][0]["level"] == level


def test_pieces_are_tokens_and_their_text_is_the_whole(policy):
    tokenizer, text = policy.tokenizer, "[mv('é✓.txt')] 99 \ufffd"
    ids = policy.encode_text(text)
    parts = pieces(tokenizer, ids)
    assert "".join(parts) == text
    assert len(parts) < len(ids)  # a character of several tokens is one piece
    plain = policy.encode_text("[done()]")
    assert len(pieces(tokenizer, plain)) == len(plain)


def test_a_record_that_contradicts_itself_is_an_error(run):
    one = run.groups[0, 0][0]
    one["token"] = "low"
    with pytest.raises(ValueError, match=r"member 0 has token 'low', its prompt .*high_reward"):
        run.view(0, 0)
    one["token"], texts = "high", one["texts"]
    one["texts"] = texts[:-1]
    with pytest.raises(ValueError, match=f"{len(texts)} messages, {len(texts) - 1} texts"):
        run.view(0, 0)
    one["texts"], one["spans"] = texts, one["spans"][:-1]
    with pytest.raises(ValueError, match="do not cover"):
        run.view(0, 0)


def test_what_is_not_there_is_an_error_that_lists_what_is(run, tmp_path):
    with pytest.raises(RcError, match=r"group 1 of step 0 is not logged; there are \[0, 7\]"):
        run.view(0, 1)
    with pytest.raises(
        RcError, match="step 2 of rctp_rc_grpo, seed 0, .* is not logged, but 0 to 3"
    ):
        run.export(tmp_path / "page.html", [0, 2])
    run.tasks = {}
    with pytest.raises(RcError, match="is not of profile smoke"):
        run.view(0, 0)


# --- the page ----------------------------------------------------------------------------------


class Page(HTMLParser):
    """Elements, attributes and text of a page whose elements are all closed in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.text = [], [], ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        if tag in ("dt", "dd"):
            self.text += " "

    def handle_data(self, data):
        if "style" not in self.open:
            self.text += data

    def attributes(self, name):
        return [attributes[name] for _, attributes in self.elements if name in attributes]


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_no_text_of_a_model_becomes_markup(policy, tmp_path, text):
    task = next(t for t in TASKS if "GorillaFileSystem" in t.involved_classes)
    write = f"[touch('n'), echo({text!r}, 'n'), cat('n')]"
    texts = [text, write, "[done()]"]
    records = [record(policy, task, 0, texts, None), record(policy, task, 1, ["[done()]"], None)]
    records[0]["ended"] = text
    run = LoggedRun(write_run(policy, tmp_path, records), SMOKE, 0, "rctp_rc_grpo")
    plain = Page(run.export(tmp_path / "plain.html").read_text(encoding="utf-8"))
    for html in ((tmp_path / "plain.html").read_text(encoding="utf-8"), run.html(0, 0)):
        page = Page(html)
        assert {tag for tag, _ in page.elements} <= ELEMENTS
        assert not [name for _, names in page.elements for name in names if name.startswith("on")]
        assert page.attributes("src") == []
        assert page.text.count(printable(text)) >= 2  # how it ended, and the message
        assert printable(json.dumps(text, ensure_ascii=False)) in page.text  # the state
        assert page.text.replace("\n", "").replace("\xa0", "").isprintable()
    assert all(re.fullmatch(r"width:\d+\.\d%", style) for style in plain.attributes("style"))


ELEMENTS = set(
    "html head meta title style body nav main section article div p h1 h2 h3 h4 ul ol li dl dt dd "
    "a span code i b mark details summary wbr".split()
)


def test_half_a_surrogate_pair_is_spelled_out(run, tmp_path):
    run.groups[0, 0][0]["ended"] = "\ud800"
    assert "\\ud800" in run.export(tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_page_holds_the_groups_asked_for_and_needs_nothing_from_outside(run, tmp_path):
    whole = run.export(tmp_path / "whole.html")
    assert run.export(tmp_path / "again.html").read_bytes() == whole.read_bytes()
    text = whole.read_text(encoding="utf-8")
    page = Page(text)
    links = page.attributes("href")
    sections = [names["id"] for tag, names in page.elements if tag == "section"]
    assert sections == ["s0g0", "s0g7", "s3g2"]
    assert set(links) == {f"#{name}" for name in sections}
    assert page.attributes("content")[-1] == "default-src 'none'; style-src 'unsafe-inline'"
    assert "http" not in text.replace("http-equiv", "") and "url(" not in text
    part = run.export(tmp_path / "part.html", [3]).read_text(encoding="utf-8")
    assert re.findall('<section id="(.*)">', part) == ["s3g2"]


def test_a_card_names_token_reward_parts_advantage_and_loss(run):
    text = " ".join(Page(run.html(0, 0)).text.split())
    good = run.view(0, 0)["members"][0]
    for shown in (
        "member 0 token high reward 1 parts state 1 action 1 official 1 strict 1 advantage +1.00",
        "member 1 token low reward 0",
        "advantage −1.00",
        f"loss on {good['trained']} of {good['total']} tokens",
        "<|high_reward|>",
        "final state: not the reference's",
    ):
        assert shown in text, shown


def luminance(color):
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_every_text_has_contrast_in_light_and_dark():
    """WCAG 2.2, success criterion 1.4.3: 4.5 to 1."""
    css = Path(explore.__file__).with_name("explore.css").read_text(encoding="utf-8")
    light, dark = css.split("prefers-color-scheme: dark")
    shades = [f"{sign}{level}" for sign in ("pos", "neg") for level in range(1, 5)]
    pairs = [("ink", name) for name in ("paper", "prompt", "tool", "plain", *shades)]
    pairs += [("dim", name) for name in ("paper", "prompt", "tool")] + [("link", "paper")]
    for scheme in (light, dark):
        colors = dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", scheme))
        for text, ground in pairs:
            darker, lighter = sorted(luminance(colors[name]) for name in (text, ground))
            assert (lighter + 0.05) / (darker + 0.05) >= 4.5, (text, ground)


# --- widgets -----------------------------------------------------------------------------------


def test_the_browser_shows_what_is_chosen_without_a_front_end(policy, root):
    other = [one | {"step": 5} for one in group(policy, TASKS[3])]
    write_run(policy, root, other, seed=1, arm="sft_rc_grpo")
    box = browser(root, SMOKE)
    (run, step, chosen), shown = box.children[0].children, box.children[1]
    assert run.options == ("seed 0  rctp_rc_grpo", "seed 1  sft_rc_grpo")
    assert "step 0, group 0" in shown.value
    chosen.value = 7
    assert "step 0, group 7" in shown.value
    step.value = 3
    assert chosen.options == (2,) and "step 3, group 2" in shown.value
    run.value = "seed 1  sft_rc_grpo"
    assert step.options == (5,) and "sft_rc_grpo, seed 1" in shown.value
