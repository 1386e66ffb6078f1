"""Names for the runs of a file: mostly the agent's, the server's where that would be ambiguous."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from gym_spark.interchange.gym.rows import Index


def label_runs(runs: Iterable[tuple[str | None, str | None]]) -> dict[str, str]:
    """Name each run key.

    Args:
        runs: (run key, agent) of each row, in file order. The first row with a key tells the key's agent. Rows without
            a key have no label.

    Returns:
        Label by run key: the agent where one key alone has that agent, else the key; labels are distinct.
    """
    agents: dict[str, str | None] = {}
    for key, agent in runs:
        if key is not None:
            agents.setdefault(key, agent)
    keys_of = Counter(agents.values())
    return _distinct(
        {key: agent if agent is not None and keys_of[agent] == 1 else key for key, agent in agents.items()}
    )


def _distinct(labels: dict[str, str]) -> dict[str, str]:
    # A server may be named like another one's agent. Each round turns labels into keys, which are distinct.
    while clashing := _clashing(labels):
        labels = labels | {key: key for key in clashing}
    return labels


def _clashing(labels: dict[str, str]) -> list[str]:
    used = Counter(labels.values())
    return [key for key, label in labels.items() if used[label] > 1 and label != key]


def label_with_masked(
    measured: Iterable[tuple[str | None, str | None]], everything: Iterable[tuple[str | None, str | None]]
) -> dict[str, str]:
    """Name each run key, those too of which every row is masked.

    Args:
        measured: (run key, agent) of each row that counts.
        everything: The same of all rows.

    Returns:
        Label by run key. A key with a row that counts is named as if the others did not exist, unless two would then
        share a name.
    """
    return _distinct(label_runs(everything) | label_runs(measured))


def is_fan_out(tasks: Iterable[tuple[Index, str | None]]) -> bool:
    """Tell whether several labels share a task, so that groups are per task and label.

    Args:
        tasks: (task, label) of each input row that counts.
    """
    pairs = set(tasks)
    return len(pairs) > len({task for task, _ in pairs})
