"""Make one result of several runs, or of the result files of several shards, as a Spark job.

    spark-submit --properties-file conf/spark/local.conf jobs/aggregate.py --run-id A --run-id B --output X.jsonl

The flags are those of `gym-spark eval aggregate`; `--help` lists them.
"""

import sys

from gym_spark.cli import main

if __name__ == "__main__":
    main(["eval", "aggregate", *sys.argv[1:]])
