"""Names of key metrics, as a benchmark gives them and as they are looked up."""

from __future__ import annotations

from gym_spark.results.custom import headline_names


def test_k_stands_for_the_largest_there_is() -> None:
    names = ["pass@1[avg-of-2]/accuracy", "pass@1[avg-of-10]/accuracy", "pass@1[avg-of-11]/other", "solved"]
    wanted = ["pass@1[avg-of-{k}]/accuracy", "solved", "majority@{k}/accuracy", "absent"]
    assert headline_names(wanted, names) == (
        "pass@1[avg-of-10]/accuracy",
        "solved",
        "majority@{k}/accuracy",
        "absent",
    )
