"""What a measurement was: one JSON line as soon as it is over, and a table of all of them at the end."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Measured:
    """One measurement.

    Attributes:
        what: The way that was measured.
        rollouts: How many it completed.
        wall_s: From its start to its end.
        cpu_s: CPU time of all its processes, the stub's not included.
        mean_in_flight: Requests at the stub, over the whole of `wall_s`.
        more: What else is worth knowing, by name.
    """

    what: str
    rollouts: int
    wall_s: float
    cpu_s: float
    mean_in_flight: float
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def per_s(self) -> float:
        """Rollouts per second."""
        return self.rollouts / self.wall_s

    @property
    def cpu_ms(self) -> float:
        """CPU milliseconds per rollout."""
        return self.cpu_s / self.rollouts * 1000


def tell(measured: Measured) -> Measured:
    """Print a measurement as one JSON line."""
    told = {name: value for name, value in asdict(measured).items() if name != "more"} | measured.more
    told |= {"per_s": measured.per_s, "cpu_ms": measured.cpu_ms}
    tell_values(told)
    return measured


def tell_values(values: dict[str, Any]) -> None:
    """Print values as one JSON line, numbers with three decimals."""
    rounded = {name: round(value, 3) if isinstance(value, float) else value for name, value in values.items()}
    print(json.dumps(rounded), flush=True)  # noqa: T201


def best(measured: Iterable[Measured], what: str) -> Measured:
    """Return the fastest measurement of one way: what disturbs a machine only ever slows it down."""
    return max((one for one in measured if one.what == what), key=lambda one: one.per_s)


def table(measured: list[Measured], *, base: str) -> str:
    """Return all ways as a table: best and median of the rounds, and the best beside the best of `base`."""
    lines = ["| way | rollouts/s, best | median | beside " + base + " | CPU ms per rollout | mean in flight |"]
    lines.append("|---|---|---|---|---|---|")
    for what in dict.fromkeys(one.what for one in measured):
        top = best(measured, what)
        median = statistics.median(one.per_s for one in measured if one.what == what)
        ratio = top.per_s / best(measured, base).per_s
        shown = f"| {what} | {top.per_s:,.0f} | {median:,.0f} | {ratio:.2f} |"
        lines.append(f"{shown} {top.cpu_ms:.2f} | {top.mean_in_flight:.0f} |")
    return "\n".join(lines)
