"""``python -m gym_spark.cli``: the command line, where the script is not on the path."""

from gym_spark.cli import main

main()
