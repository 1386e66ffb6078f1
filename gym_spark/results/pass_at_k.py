"""pass@k and pass^k as column expressions: that one of k samples passes, and that all of them do.

With c passes among n samples, pass@k = 1 - C(n-c, k) / C(n, k) (Chen et al. 2021, "Evaluating Large Language Models
Trained on Code", §2.1) and pass^k = C(c, k) / C(n, k) (Yao et al. 2024, "τ-bench", §3), both unbiased. k above n is
undefined: null, never 0 or 1.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F


def pass_at_k(n: Column, c: Column, k: Column) -> Column:
    """Return pass@k of a task with `c` passes among `n` samples."""
    return F.lit(1.0) - _all_of_k(n, n - c, k)


def _all_of_k(n: Column, c: Column, k: Column) -> Column:
    """Return C(c, k) / C(n, k), the chance that k of n samples are all among c, as a product without factorials."""
    chance = F.aggregate(
        F.sequence(F.lit(0), k.cast("int") - F.lit(1)),
        F.lit(1.0),
        lambda product, j: product * F.greatest(c - j, F.lit(0)) / (n - j),
    )
    return F.when(k <= n, chance)


def pass_curve(n: Column, c: Column, max_k: int) -> Column:
    """Return the array of pass@1 ... pass@max_k, null from the first k above n."""
    return F.transform(F.sequence(F.lit(1), F.lit(max_k)), lambda k: pass_at_k(n, c, k))


def all_pass_curve(n: Column, c: Column, max_k: int) -> Column:
    """Return the array of pass^1 ... pass^max_k, null from the first k above n."""
    return F.transform(F.sequence(F.lit(1), F.lit(max_k)), lambda k: _all_of_k(n, c, k))
