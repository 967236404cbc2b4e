"""One group-relative trainer for two papers on reinforcement learning of tool use.

RC-GRPO (arXiv 2602.03025) varies a reward-goal token inside a group of rollouts; ICRL
(arXiv 2603.08068) varies the number of demonstrations over training. Both change only what
a rollout's prompt says.
"""

__version__ = "0.1.0"
