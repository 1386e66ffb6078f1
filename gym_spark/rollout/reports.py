"""A worker's side of the staging folder: it tells how things stand and hears the driver's orders, in its own thread.

So the status stays fresh while a large part is written, calls go on while a slow storage answers, and a storage that
fails for a moment loses a report and no rollout. Runs on workers; no pyspark.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import replace
from typing import Final

from gym_spark.errors import StorageError
from gym_spark.rollout.retake import GONE_AFTER_S, Silence
from gym_spark.rollout.staging import Staging, Stop, WorkerStatus

REPORT_SECONDS: Final = 1.0


class Reports:
    """Keeps the status of one try of a Spark task fresh, from its making until it is closed.

    Args:
        staging: The job's folder.
        status: Where the worker stands.

    Attributes:
        order: Why the worker shall start nothing more, once there is a reason.
    """

    def __init__(self, staging: Staging, status: WorkerStatus) -> None:
        self._staging = staging
        self._latest = status
        self._silence = Silence()
        self._over = threading.Event()
        self.order: Stop | None = staging.ordered_stop()  # a task that starts late, or again, may find the job stopped
        self._thread = threading.Thread(target=self._keep_reporting, name="gym-spark-report", daemon=True)
        self._thread.start()

    def tell(self, status: WorkerStatus) -> None:
        """Take note of where the worker stands now; the object is kept as it is."""
        self._latest = status

    def close(self, status: WorkerStatus) -> None:
        """End with a last report."""
        self._over.set()
        self._thread.join()
        self._latest = status
        self._look()

    def _keep_reporting(self) -> None:
        while not self._over.wait(REPORT_SECONDS):
            self._look()

    def _look(self) -> None:
        with contextlib.suppress(StorageError):
            self.order = self._exchange() or self.order

    def _exchange(self) -> Stop | None:
        latest = self._latest
        beat = self._staging.last_beat()
        if beat is not None:  # otherwise another job has taken over, and removed the folder
            stored = self._staging.status_of(latest.partition)
            if stored is not None and stored.tries > latest.tries:
                return Stop("overtaken", "Spark has started the task again")
            self._staging.put_status(replace(latest, updated_at=time.time()))
        if self._silence.seconds(beat and beat.updated_at) >= GONE_AFTER_S:
            return Stop("driver_gone", f"the process that collects was not heard of for {GONE_AFTER_S:g} s")
        return self._staging.ordered_stop()
