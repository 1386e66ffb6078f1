"""Start one Spark session, so that Delta's jars are in Ivy's cache and later sessions need no network."""

import sys

from gym_spark.errors import GymSparkError
from gym_spark.session import get_session

try:
    get_session().stop()
except GymSparkError as error:
    sys.exit(f"gym-spark: {error}")
