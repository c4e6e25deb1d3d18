"""A pipeline in Airflow: every hour, in the environment `prod`.

Airflow has the schedule and the retries, `ottla pipeline run` the rest: the run goes on where the last one
has stopped, also after one that was killed, so a task that is tried again writes nothing twice. Its summary
says whether to try again at all.
"""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.exceptions import AirflowFailException
from airflow.sdk import dag, task

PROJECT = "/srv/shop"


@dag(
    schedule="@hourly",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,  # a run reads all that has come since the last one, however long ago that was
    max_active_runs=1,
    default_args={"retries": 3, "retry_delay": timedelta(minutes=5)},
)
def shop() -> None:
    @task
    def run_pipeline() -> dict[str, Any]:
        command = [sys.executable, "-m", "ottla", "pipeline", "run", "--json"]
        ended = subprocess.run(
            [*command, "--project", PROJECT, "--env", "prod"], stdout=subprocess.PIPE, text=True, check=False
        )
        summary: dict[str, Any] = json.loads(ended.stdout) if ended.stdout else {"outcome": "failed"}
        if summary["outcome"] == "refused":
            raise AirflowFailException(summary["error"])  # a person has to look: to try again does not help
        if ended.returncode != 0:
            raise RuntimeError(f"{summary['outcome']}: {summary.get('error')}")
        return summary

    run_pipeline()


shop()
