"""`tracking=mlflow`: one MLflow run for every run, which a resumed run continues.

The id of the MLflow run is kept in the run's folder. MLflow is called through its client, so that nothing depends on an
"active" run of this process. MLflow's telemetry, which is on by default, is switched off.
"""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any

from fedsketch.conf import Config, to_json
from fedsketch.conf.tracking.mlflow import MLflowSettings
from fedsketch.errors import ConfigError
from fedsketch.server.nested_values import leaves, numeric_values
from fedsketch.server.run_folder import RunFolder

PACKAGE = "mlflow"
_BATCH = 100  # settings that MLflow accepts in one call
_LONGEST = 6000  # characters that MLflow accepts in a setting


class MLflow:
    """An `Observer` that writes to an MLflow store."""

    def __init__(self, settings: MLflowSettings, folder: Path) -> None:
        # Must be set before MLflow is imported.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException

        self._settings = settings
        self._files = RunFolder(folder)
        try:
            self._client = MlflowClient(tracking_uri=settings.uri)
            found = self._client.get_experiment_by_name(settings.experiment)
            made = found is None and self._client.create_experiment(settings.experiment)
        except MlflowException as error:
            raise ConfigError(
                f"MLflow at {settings.uri or 'its default place'} does not answer as it should "
                f"({str(error).splitlines()[0]}): check it, or set tracking.uri."
            ) from error
        self._experiment = found.experiment_id if found is not None else made

    def began(self, config: Config, done: int, guarantee: str) -> None:
        self._config, self._guarantee = config, guarantee

    def round_done(self, row: dict[str, Any]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        values = numeric_values({key: value for key, value in row.items() if key != "round"})
        metrics = [Metric(_allowed(key), value, now, row["round"]) for key, value in values.items()]
        self._client.log_batch(self._run(), metrics=metrics)

    def ended(self, summary: dict[str, Any], report: Path) -> None:
        run = self._files.read_mlflow_run()
        if run is None:  # no round was executed
            return
        if self._settings.artifacts:
            for path in (report, self._files.card, self._files.model, self._files.best):
                if path.is_file():
                    self._client.log_artifact(run, str(path))
        self._client.set_terminated(run)

    def _run(self) -> str:
        """Return the id of the MLflow run: the one in the folder, or a new one."""
        run = self._files.read_mlflow_run()
        if run is None:
            name = self._files.path.absolute().name
            run = str(self._client.create_run(self._experiment, run_name=name).info.run_id)
            self._describe(run)
            self._files.write_mlflow_run(run)
        return run

    def _describe(self, run: str) -> None:
        from mlflow.entities import Param

        settings = leaves(json.loads(to_json(self._config)), ".")
        params = [Param(_allowed(key), str(value)[:_LONGEST]) for key, value in settings]
        for start in range(0, len(params), _BATCH):
            self._client.log_batch(run, params=params[start : start + _BATCH])
        self._client.set_tag(run, "guarantee", self._guarantee)


def _allowed(key: str) -> str:
    """Return the key without the characters that MLflow does not allow in names."""
    return re.sub(r"[^\w./ :-]", "_", key)
