"""`--shards i/n`: the part of a run that one of several parallel jobs takes. No pyspark."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gym_spark.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Share:
    """The shards whose number leaves `index` - 1 when divided by `of`; 1/1 is the whole run."""

    index: int = 1
    of: int = 1

    def __str__(self) -> str:
        return f"{self.index}/{self.of}"

    def overlaps(self, other: Share) -> bool:
        """Tell whether some shard could belong to both."""
        return self.of != other.of or self.index == other.index

    def covers(self, other: Share) -> bool:
        """Tell whether every shard of `other` belongs to this share."""
        return self.of == 1 or self == other


WHOLE = Share()


def parse_share(text: str) -> Share:
    """Read ``i/n``.

    Raises:
        ConfigError: it is not of that form, or i is not from 1 to n.
    """
    match = re.fullmatch(r"(\d+)/(\d+)", text.strip())
    share = Share(int(match[1]), int(match[2])) if match else None
    if share is None or not 1 <= share.index <= share.of:
        raise ConfigError(f"--shards takes i/n with i from 1 to n, such as 2/4, not '{text}'.")
    return share


def check_share(share: Share, shards: int, benchmark: str) -> None:
    """Raise a `ConfigError` if there are too few shards for every job to get one."""
    if share.of > shards:
        raise ConfigError(
            f"The benchmark '{benchmark}' has {shards} shards, too few for --shards {share}; "
            f"prepare it with --num-shards {share.of} or more."
        )
