"""Collect the rollouts of a run, as a Spark job; `verify.py` and `run_profile.py` follow.

    spark-submit --properties-file conf/spark/local.conf jobs/collect.py --config RUN.yaml --lake LAKE

The flags are those of `gym-spark eval collect`; `--help` lists them.
"""

import sys

from gym_spark.cli import main

if __name__ == "__main__":
    main(["eval", "collect", *sys.argv[1:]])
