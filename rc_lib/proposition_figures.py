"""Figures of Propositions 4.2 and 4.3 from their exact formulas, at any setting."""

from __future__ import annotations

import io
from collections.abc import Sequence

import ipywidgets as widgets
import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from rc_lib.figures import RC, WIDTHS
from rc_lib.variance import all_equal_bounds, degenerate_probability, kappa, variance_parts
from rc_lib.variance_signal import gradient_weights

SHADES = {2: "#56B4E9", 5: "#0072B2", 16: "#000000"}  # by group size
SLIDERS = {  # argument of `explore` -> label, range and step
    "group_size": ("G", 2, 16, 1),
    "p_high": ("P(high)", 0.05, 0.95, 0.05),
    "mu_high": ("mu_high", 0.0, 1.0, 0.05),
    "mu_low": ("mu_low", 0.0, 1.0, 0.05),
    "steps": ("T", 1, 20, 1),
    "kl": ("KL a step", 0.0, 2.0, 0.01),
}
IID, STRATIFIED, BOUND, GREY = "#0072B2", "#D55E00", "#E69F00", "0.55"


def proposition_4_2_figure(
    group_sizes: Sequence[int] = tuple(SHADES), kl: float | None = None
) -> Figure:
    """Draw P(all G the reference) with its linear bound, and the near collapse beside it.

    Source: RC-GRPO (arXiv 2602.03025), Prop. 4.2.

    Args:
        group_sizes: G of each curve.
        kl: T eps in nats to mark; in the right panels, the success rate exp(-kl) that belongs to it
            if the reference is the only success.
    """
    grid, q = np.linspace(0, max(1.0, kl or 0.0), 201), np.linspace(0, 1, 201)
    with mpl.rc_context(RC):
        figure = Figure(figsize=(WIDTHS[1], 2.3), layout="constrained")
        axes = figure.subplots(1, 3)
        for size in group_sizes:
            color = SHADES.get(size, IID)
            axes[0].plot(grid, np.exp(-size * grid), color=color, label=f"G = {size}")
            positive = grid[size * grid <= 1]
            axes[0].plot(positive, 1 - size * positive, color=color, linestyle=":")
            equal = [degenerate_probability(size, 0.5, x, x) for x in q]
            axes[1].plot(q, equal, color=color)
            axes[2].plot(q, [sum(variance_parts(size, 0.5, x, x)) for x in q], color=color)
        axes[0].plot([], [], color="0.3", linestyle=":", label=r"$1-GT\varepsilon$, while positive")
        axes[0].set_xlabel(r"$T\varepsilon$, KL of the trajectory (nats)")
        axes[0].set_title("P(all G rollouts are the reference)", loc="left")
        axes[0].legend(frameon=False)
        axes[1].set_title("P(all G rewards are equal)", loc="left")
        axes[2].set_title(r"$E[\sigma_g^2]$, binary rewards", loc="left")
        for ax in axes[1:]:
            ax.set_xlabel("q, success rate of the task")
        if kl is not None:
            for ax, place in zip(axes, (kl, np.exp(-kl), np.exp(-kl)), strict=True):
                ax.axvline(place, color=GREY, linewidth=0.8, zorder=0)
    return figure


def proposition_4_3_figure(
    group_size: int = 5, p_high: float = 0.5, mu_high: float = 0.95, mu_low: float | None = None
) -> Figure:
    """Draw variance, degenerate groups and the weight of the high token's gradient.

    Source: RC-GRPO (arXiv 2602.03025), Prop. 4.3.

    Args:
        group_size, p_high: G >= 2, and P(high) in (0, 1).
        mu_high: mean reward under the high token; the curves run over mu_low from 0 to it.
        mu_low: value to mark; may be above `mu_high`.
    """
    low = np.linspace(0, max(mu_high, mu_low or 0.0), 81)
    few = low[::8]
    mean = p_high * mu_high + (1 - p_high) * few
    kinds = {"iid": ("i.i.d. tokens", IID), "stratified": ("stratified tokens", STRATIFIED)}
    with mpl.rc_context(RC):
        figure = Figure(figsize=(WIDTHS[1], 2.5), layout="constrained")
        axes = figure.subplots(1, 3)
        for kind, (label, color) in kinds.items():
            parts = [variance_parts(group_size, p_high, mu_high, x, kind=kind) for x in low]
            axes[0].plot(low, [sum(part) for part in parts], color=color, label=label)
            equal = [degenerate_probability(group_size, p_high, mu_high, x, kind) for x in low]
            axes[1].plot(low, equal, color=color)
        bound = kappa(group_size, p_high) * (mu_high - low) ** 2
        axes[0].plot(low, bound, color=BOUND, linestyle="--", label="bound of Prop. 4.3")
        alone = [
            [sum(variance_parts(group_size, 0.5, x, x)) for x in mean],
            [degenerate_probability(group_size, 0.5, x, x) for x in mean],
        ]
        for ax, values in zip(axes, alone, strict=False):
            ax.plot(few, values, "o", markersize=2.5, color="k", label="no tokens, same mean")
        only = gradient_weights(group_size, 1.0, mu_high, mu_high, scale="group")["full"][0]
        weights = [gradient_weights(group_size, p_high, mu_high, x, scale="group") for x in few]
        axes[2].axhline(only, color="k", linewidth=1, label="high token only")
        axes[2].plot(few, [w["full"][0] for w in weights], color=IID, label="i.i.d. tokens")
        between = [w["between"][0] for w in weights]
        axes[2].plot(few, between, color=BOUND, linestyle="--", label="of it between tokens")
        titles = (r"$E[\sigma_g^2]$", "P(all G rewards are equal)",
                  r"weight of $\nabla\mu_{high}$ in the update")  # fmt: skip
        for ax, title in zip(axes, titles, strict=True):
            ax.set_title(title, loc="left")
            ax.set_xlabel(r"$\mu_{low}$")
            if mu_low is not None:
                ax.axvline(mu_low, color=GREY, linewidth=0.8, zorder=0)
        axes[0].set_ylim(-0.005, 0.38)
        axes[0].legend(frameon=False, loc="upper right")
        axes[2].set_ylim(0, 1.6 * only)
        axes[2].legend(frameon=False, loc="upper left")
        title = rf"G = {group_size}, P(high) = {p_high:g}, $\mu_{{high}}$ = {mu_high:g}"
        figure.suptitle(title, x=0.01, ha="left", weight="bold", size=8)
    return figure


def explore(
    group_size: int, p_high: float, mu_high: float, mu_low: float, steps: int, kl: float
) -> tuple[pd.Series, Figure, Figure]:
    """Return both propositions' numbers at one setting, and their figures with the setting marked.

    Args:
        group_size: G >= 2.
        p_high: P(high) in (0, 1).
        mu_high, mu_low: mean rewards in [0, 1].
        steps: T >= 1.
        kl: KL of each step in nats, >= 0.

    >>> numbers, _, _ = explore(5, 0.5, 1.0, 0.0, steps=4, kl=0.05)
    >>> numbers.round(3)[["E[sigma_g^2], i.i.d. tokens", "1 - G T eps"]].tolist()
    [0.2, 0.0]
    """
    bounds = all_equal_bounds(group_size, steps, kl)
    numbers = {"exp(-G T eps)": bounds.exponential, "1 - G T eps": bounds.linear}
    numbers["bound of Prop. 4.3"] = kappa(group_size, p_high) * (mu_high - mu_low) ** 2
    for kind, label in {"iid": "i.i.d.", "stratified": "stratified"}.items():
        setting = (group_size, p_high, mu_high, mu_low)
        numbers[f"E[sigma_g^2], {label} tokens"] = sum(variance_parts(*setting, kind=kind))
        numbers[f"P(degenerate), {label} tokens"] = degenerate_probability(*setting, kind)
    return (
        pd.Series(numbers),
        proposition_4_2_figure((group_size,), steps * kl),
        proposition_4_3_figure(group_size, p_high, mu_high, mu_low),
    )


def sliders(**setting: float) -> widgets.VBox:
    """Return a slider for each argument of `explore`, above its numbers and figures.

    Args:
        setting: where the sliders stand at first; one that lies outside its range widens it.

    >>> box = sliders(group_size=32, p_high=0.5, mu_high=0.4, mu_low=0.1, steps=4, kl=0.6)
    >>> {slider.description: slider.value for slider in box.children[0].children}
    {'G': 32, 'P(high)': 0.5, 'mu_high': 0.4, 'mu_low': 0.1, 'T': 4, 'KL a step': 0.6}
    """
    controls = {}
    for name, (label, low, high, step) in SLIDERS.items():
        value = setting[name]
        kind = widgets.IntSlider if step == 1 else widgets.FloatSlider
        controls[name] = kind(
            value, min=min(low, value), max=max(high, value), step=step, description=label,
            continuous_update=False,
        )  # fmt: skip
    numbers, collapse, variance = widgets.HTML(), widgets.Image(), widgets.Image()

    def update(*_) -> None:
        found, *drawn = explore(**{name: control.value for name, control in controls.items()})
        numbers.value = found.round(4).to_frame("value").to_html()
        collapse.value, variance.value = map(_png, drawn)

    for control in controls.values():
        control.observe(update, "value")
    update()
    return widgets.VBox([widgets.VBox(list(controls.values())), numbers, collapse, variance])


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110, bbox_inches="tight")
    return buffer.getvalue()
