"""Compute a run's pass@k and coverage, as a Spark job.

    spark-submit --properties-file conf/spark/local.conf jobs/run_profile.py --run-id ID --lake LAKE --json

The flags are those of `gym-spark eval profile`; `--help` lists them.
"""

import sys

from gym_spark.cli import main

if __name__ == "__main__":
    main(["eval", "profile", *sys.argv[1:]])
