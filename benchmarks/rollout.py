"""Speed of rollouts on one CPU thread: `python benchmarks/rollout.py` (about a minute).

A random policy of the default size plays a stand-in environment, so that nothing but the sampling
is timed. One id in twenty ends a turn. Rates are per second of CPU time, which a busy machine
disturbs least.
"""

import time
from types import SimpleNamespace

import numpy as np
import torch

from rc_lib import rollout as rollout_module
from rc_lib.envs.base import Message
from rc_lib.policy import Policy, tiny_model, train_tokenizer
from rc_lib.rollout import Request, Sampling, Stats, rollout
from rc_lib.seeding import rng

SAMPLING = Sampling(temperature=1.0, max_new_tokens=64, max_length=1024)


class Scripted:
    """Answers every message with 5 to 30 ids and ends after a number of turns."""

    def __init__(self, group, turns, prompt_ids):
        self.task = SimpleNamespace(id=f"task_{group}", category="base")
        self.turns, self.prompt_ids = turns, prompt_ids
        self.draws, self.taken = rng(0, "benchmark", group), 0

    def reset(self):
        return [Message("user", "0" * self.prompt_ids)], {}

    def step(self, action):
        self.taken += 1
        observation = [Message("tool", "1" * int(self.draws.integers(5, 30)))]
        return observation, 0.0, self.taken == self.turns, False, {}

    def reward(self):
        return {"reward": 0.0}


def make_policy():
    tokenizer = train_tokenizer(["0 1"], 280)
    policy = Policy(tiny_model(2048, hidden=96, layers=4, heads=4, seed=0), tokenizer)
    policy.add_reward_tokens(seed=0)
    policy.model.resize_token_embeddings(2048)
    policy.eos_ids |= frozenset(range(1900, 2000))
    return policy


def play(policy, *, groups, size=5, turns=4, prompt_ids=100, batch_size=256):
    """Return the work done and its CPU seconds."""
    requests = [
        Request(Scripted(group, turns, prompt_ids), group, member, "high")
        for group in range(groups)
        for member in range(size)
    ]
    stats, began = Stats(), time.process_time()
    rollout(policy, requests, SAMPLING, seed=0, batch_size=batch_size, stats=stats)
    return stats, time.process_time() - began


def main():
    torch.set_num_threads(1)
    policy = make_policy()
    play(policy, groups=2)

    print("batch  model tok/s  all tok/s  padding")
    for batch_size in (40, 80, 160, 255):
        stats, cpu_s = play(policy, groups=2 * batch_size // 5, batch_size=batch_size)
        padding = 1 - stats.forward_tokens / stats.padded_tokens
        print(
            f"{batch_size:5d} {stats.model_tokens / cpu_s:12.0f} "
            f"{stats.forward_tokens / cpu_s:10.0f} {padding:8.1%}"
        )

    print("\nturns  CPU s  ids computed")
    counts, seconds = (1, 2, 4, 8), []
    for turns in counts:
        stats, cpu_s = play(policy, groups=20, turns=turns)
        seconds.append(cpu_s)
        print(f"{turns:5d} {cpu_s:6.2f} {stats.forward_tokens:13d}")
    exponent = np.polyfit(np.log(counts[1:]), np.log(seconds[1:]), 1)[0]
    print(f"time grows with turns to the power {exponent:.2f}")

    print("\ngroup size  prompt ids computed for one group with a prompt of 500 characters")
    for size in (1, 4, 16):
        stats, _ = play(policy, groups=1, size=size, turns=1, prompt_ids=500)
        print(f"{size:10d} {stats.prefill_tokens:6d}")

    print("\nidle share  CPU s (255 rows)")
    for share in (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5):
        rollout_module.IDLE_SHARE = share
        print(f"{share:10.2f} {min(play(policy, groups=51)[1] for _ in range(3)):6.2f}")


if __name__ == "__main__":
    main()
