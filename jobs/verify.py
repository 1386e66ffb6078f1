"""Judge the stored rollouts of a run, as a Spark job.

    spark-submit --properties-file conf/spark/local.conf jobs/verify.py --run-id ID --lake LAKE

The flags are those of `gym-spark eval verify`; `--help` lists them.
"""

import sys

from gym_spark.cli import main

if __name__ == "__main__":
    main(["eval", "verify", *sys.argv[1:]])
