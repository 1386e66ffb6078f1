"""Run one evaluation from end to end, as a Spark job.

    spark-submit --properties-file conf/spark/local.conf jobs/run.py --config RUN.yaml --lake LAKE

The flags are those of `gym-spark eval run`; `--help` lists them.
"""

import sys

from gym_spark.cli import main

if __name__ == "__main__":
    main(["eval", "run", *sys.argv[1:]])
