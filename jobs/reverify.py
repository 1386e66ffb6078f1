"""Judge a run's stored rollouts once more, as a Spark job.

    spark-submit --properties-file conf/spark/local.conf jobs/reverify.py --run-id ID --lake LAKE --verifier NAME

The flags are those of `gym-spark eval reverify`; `--help` lists them.
"""

import sys

from gym_spark.cli import main

if __name__ == "__main__":
    main(["eval", "reverify", *sys.argv[1:]])
