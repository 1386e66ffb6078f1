"""Write a run's rollouts and verdicts as JSON Lines, as a Spark job.

    spark-submit --properties-file conf/spark/local.conf jobs/export.py --run-id ID --lake LAKE --output FILE

The flags are those of `gym-spark eval export`; `--help` lists them.
"""

import sys

from gym_spark.cli import main

if __name__ == "__main__":
    main(["eval", "export", *sys.argv[1:]])
