"""Generate distinct one-digit sums, differences and products with their answers."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator

from gym_spark.config import digest
from gym_spark.errors import ConfigError
from gym_spark.prepare.script import Row
from gym_spark.prepare.sources import Source

SUM = "State the final answer to the following arithmetic problem: {} ="
PRODUCT = "Solve the following multiplication: {}. Give only the result as your final answer."
OPERATORS: dict[str, Callable[[int, int], int]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}


def rows(source: Source) -> Iterator[Row]:
    """Yield `sums` sums and differences, then `products` products, picked by `seed`."""
    yield from _problems(source, "sums", "+-", SUM)
    yield from _problems(source, "products", "*", PRODUCT)


def _problems(source: Source, kind: str, signs: str, wording: str) -> Iterator[Row]:
    count, seed = source.params[kind], source.params["seed"]
    known = [(a, sign, b) for a in range(10) for sign in signs for b in range(10)]
    if not 0 <= count <= len(known):
        raise ConfigError(f"arithmetic: source.params.{kind} is {count}; there are 0 to {len(known)} to pick from.")
    # Ranked by hash, not shuffled: the pick is the same under every version of Python.
    known.sort(key=lambda problem: digest([seed, *problem]))
    for a, sign, b in known[:count]:
        expression = f"{a} {sign} {b}"
        question, answer = wording.format(expression), str(OPERATORS[sign](a, b))
        yield Row(
            raw={"question": question, "expected_answer": answer},
            fields={"question": question},
            verifier_inputs={"expected_answer": answer},
            metadata={"kind": kind, "expression": expression},
            shot_answer=answer,
        )
