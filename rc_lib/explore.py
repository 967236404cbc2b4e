"""Logged groups of rollouts, side by side: transcripts, replayed state changes, a static page.

All that a model wrote is shown as text: the template escapes every value, control characters are
spelled out, and the page's security policy allows no script and no network at all.

    checkpoints/seed<k>/<arm>/rollouts.jsonl  ->  `LoggedRun`  ->  `html`, `export`, `browser`
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import ipywidgets as widgets
import jinja2
import numpy as np
from transformers import AutoTokenizer

from rc_lib import experiment, paths
from rc_lib.config import Profile
from rc_lib.envs.bfcl import NEW_FUNCTIONS, BFCLEnv
from rc_lib.envs.changes import changes
from rc_lib.errors import RcError
from rc_lib.policy import REWARD_TOKENS
from rc_lib.replay import Ran, differences, replay
from rc_lib.rollout_log import find_runs, load_groups, logged_transcript
from rc_lib.tasks.base import Task
from rc_lib.transcript import Transcript

LEVELS = 4  # shades of an advantage
# Line feeds may stay; the others move the cursor, hide text or turn its direction around.
_UNPRINTABLE = re.compile(
    "[\0-\x09\x0b-\x1f\x7f-\x9f\xad\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)


def pieces(tokenizer, ids: Iterable[int]) -> list[str]:
    """Return the text of each token; tokens that share a character come as one piece."""
    texts, held = [], []
    for token in ids:
        held.append(token)
        text = tokenizer.decode(held, skip_special_tokens=False)
        if not text.endswith("\ufffd"):
            texts.append(text)
            held = []
    return texts + ([tokenizer.decode(held, skip_special_tokens=False)] if held else [])


class LoggedRun:
    """The logged groups of one arm and seed, with what it takes to read and replay them.

    Args:
        root: results root of the run.
        profile: the profile that it ran with; its tasks and environments.
        seed, arm: which run.

    Attributes:
        groups: (step, group_id) -> members, see `load_groups`.

    Raises:
        RcError: if the run is not there, or no tokenizer of its seed.
    """

    def __init__(self, root: str | Path, profile: Profile, seed: int, arm: str):
        places = {(place.seed, place.arm): place for place in find_runs(root)}
        if (seed, arm) not in places:
            known = ", ".join(f"seed {s} {a}" for s, a in places)
            raise RcError(
                f"no logged rollouts of seed {seed} {arm} under {root}; there are: {known}"
            )
        self.place, self.profile = places[seed, arm], profile
        self.groups = load_groups(self.place.path)
        # Every start of a seed has the base's tokenizer with the two reward tokens.
        files = sorted(self.place.path.parents[1].glob("*/tokenizer.json"))
        if not files:
            raise RcError(f"no policy beside {self.place.path.parent}; run notebook 10 first")
        self.tokenizer = AutoTokenizer.from_pretrained(files[0].parent)
        self.make_env: Callable[[Task], BFCLEnv] = experiment.environment(profile)
        self.tasks = {task.id: task for task in experiment.training_tasks(profile)}

    @property
    def title(self) -> str:
        return f"{self.place.arm}, seed {self.place.seed}, profile {self.profile.name}"

    def view(self, step: int, group_id: int) -> dict:
        """Return all that the template shows of a group.

        Raises:
            RcError: if the group is not logged, or its task is none of the profile.
            ValueError: if a record contradicts itself.
        """
        if group_id not in (logged := self.at(step)):
            raise RcError(f"group {group_id} of step {step} is not logged; there are {logged}")
        members = self.groups[step, group_id]
        task_id = members[0]["task_id"]
        if task_id not in self.tasks:
            raise RcError(f"task {task_id} is not of profile {self.profile.name}; name its profile")
        task = self.tasks[task_id]
        calls = [call for turn in task.reference for call in turn]
        env = self.make_env(task)
        env.reset()
        env.step(f"[{', '.join(calls)}]")
        wanted = changes(env.instances)
        rewards = [one["reward"] for one in members]
        return {
            "step": step, "group_id": group_id, "task": task, "reference": calls,
            "turns": [text or NEW_FUNCTIONS for text in task.turns],
            "mean": float(np.mean(rewards)), "sigma": float(np.std(rewards)),
            "spread": max(rewards) > min(rewards), "key": f"s{step}g{group_id}",
            "members": [self._member(one, task, wanted, len(members)) for one in members],
        }  # fmt: skip

    def at(self, step: int) -> list[int]:
        """Return the groups that are logged of a step.

        Raises:
            RcError: if there is none.
        """
        steps = [s for s, _ in self.groups]
        if step not in steps:
            raise RcError(
                f"step {step} of {self.title} is not logged, but {steps[0]} to {steps[-1]}"
            )
        return [group_id for s, group_id in self.groups if s == step]

    def _member(self, record: dict, task: Task, wanted: Mapping, size: int) -> dict:
        transcript, env = logged_transcript(record), self.make_env(task)
        turns = replay(env, record["texts"])
        again, advantage = env.reward(), record["advantage"]
        share = abs(advantage) / math.sqrt(max(1, size - 1))  # of the largest in a group this big
        return record | {
            "spans": self._spans(record, transcript, turns), "share": min(1.0, share),
            "sign": "pos" if advantage > 0 else "neg" if advantage < 0 else "zero",
            "level": min(LEVELS, math.ceil(share * LEVELS - 1e-9)),
            "total": len(transcript), "trained": transcript.model_tokens,
            "missed": None if again["state"] else differences(wanted, changes(env.instances)),
            "again": {name: again[name] for name in again if again[name] != record["parts"][name]},
        }  # fmt: skip

    def _spans(self, record: dict, transcript: Transcript, turns: list[list[Ran]]) -> list[dict]:
        spans, mask = [], transcript.mask()
        for kind, start, end in transcript.spans:
            ids = transcript.ids[start:end]
            texts = self._prompt(ids, record) if kind == "prompt" else pieces(self.tokenizer, ids)
            loss = bool(mask[start:end].all())
            spans.append({"kind": kind, "count": end - start, "loss": loss, "pieces": texts})
        messages = [place for place, span in enumerate(spans) if span["kind"] == "model"]
        if len(messages) != len(turns):
            raise ValueError(f"{self._name(record)}: {len(messages)} messages, {len(turns)} texts")
        for place, ran in zip(messages, turns, strict=True):
            seen = "".join(spans[place + 1]["pieces"]) if place + 1 < len(spans) else ""
            spans[place]["calls"] = [
                call._asdict() | {"answer": None if _one_line(call.result) in seen else call.result}
                for call in ran
            ]
        return spans

    def _name(self, record: dict) -> str:
        place = f"step {record['step']}, group {record['group_id']}, member {record['member']}"
        return f"{self.place.path}: {place}"

    def _prompt(self, ids: list[int], record: dict) -> list[str]:
        """Return the prompt's text before, in and behind its reward token, and check the token."""
        names = self.tokenizer.convert_ids_to_tokens(ids)
        found = [name for name in names if name in REWARD_TOKENS.values()]
        told = record["token"]
        if found != ([REWARD_TOKENS[told]] if told else []):
            raise ValueError(f"{self._name(record)} has token {told!r}, its prompt {found}")
        at = names.index(found[0]) if found else len(ids)
        parts = [ids[:at], ids[at : at + 1], ids[at + 1 :]]
        return [self.tokenizer.decode(part, skip_special_tokens=False) for part in parts]

    def html(self, step: int, group_id: int) -> str:
        """Return one group as HTML that needs nothing around it, for a notebook's output."""
        return str(_template().module.fragment(self.view(step, group_id), self.title))

    def export(self, path: str | Path, steps: Iterable[int] = ()) -> Path:
        """Write groups as one page that opens without a kernel, a network or scripts.

        Args:
            path: file to write.
            steps: whose groups; none: of all logged steps.

        Raises:
            RcError: for a step of which no group is logged.
        """
        chosen = list(steps) or [step for step, _ in self.groups]
        keys = [(step, group) for step in sorted(set(chosen)) for group in self.at(step)]
        views = [self.view(*key) for key in keys]
        page = _template().render(views=views, title=self.title).strip() + "\n"
        path = paths.resolve(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page, encoding="utf-8")
        return path


def browser(root: str | Path, profile: Profile) -> widgets.VBox:
    """Return widgets to choose run, step and group under a results root, and the group below."""
    runs = {f"seed {r.seed}  {r.arm}": r for r in find_runs(root)}
    run = widgets.Dropdown(options=list(runs), description="run")
    step = widgets.SelectionSlider(options=[0], description="step", continuous_update=False)
    group = widgets.Dropdown(options=[0], description="group")
    shown = widgets.HTML()
    open_run = cache(lambda name: LoggedRun(root, profile, runs[name].seed, runs[name].arm))

    def on_run(*_):
        steps = list(dict.fromkeys(s for s, _ in open_run(run.value).groups))
        step.options, step.value = steps, step.value if step.value in steps else steps[0]
        on_step()

    def on_step(*_):
        group.options = open_run(run.value).at(step.value)
        on_group()

    def on_group(*_):
        if group.value is not None:
            shown.value = open_run(run.value).html(step.value, group.value)

    for widget, update in ((run, on_run), (step, on_step), (group, on_group)):
        widget.observe(update, "value")
    on_run()
    return widgets.VBox([widgets.HBox([run, step, group]), shown])


def printable(text: str) -> str:
    r"""Return text with control characters, direction marks and broken Unicode spelled out.

    >>> printable("a\x1b[2J\u202eb")
    'a\\x1b[2J\\u202eb'
    """
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _value(value: Any) -> str:
    return "none" if value is None else json.dumps(value, ensure_ascii=False)


def _advantage(value: float) -> str:
    return f"{value:+.2f}".replace("-", "\N{MINUS SIGN}") if value else "0"


def _one_line(result: str | None) -> str:
    return (result or "").replace("\n", "\\n")  # as the environment shows it


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        finalize=lambda value: printable(value) if type(value) is str else value,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"value": _value, "advantage": _advantage}
    style = Path(__file__).with_name("explore.css").read_text(encoding="utf-8")
    environment.globals["style"] = style
    return environment.get_template("explore.html")
