"""Store a benchmark's tasks in the lake, as a Spark job.

    spark-submit --properties-file conf/spark/local.conf jobs/prepare.py --benchmark gsm8k --lake LAKE

The flags are those of `gym-spark eval prepare`; `--help` lists them.
"""

import sys

from gym_spark.cli import main

if __name__ == "__main__":
    main(["eval", "prepare", *sys.argv[1:]])
