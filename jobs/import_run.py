"""Store a run that NeMo Gym made, as a Spark job.

    spark-submit --properties-file conf/spark/local.conf jobs/import_run.py --rollouts X.jsonl --run-id ID --lake LAKE

The flags are those of `gym-spark eval import`; `--help` lists them.
"""

import sys

from gym_spark.cli import main

if __name__ == "__main__":
    main(["eval", "import", *sys.argv[1:]])
