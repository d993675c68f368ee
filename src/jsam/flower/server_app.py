"""The server's half as Flower loads it: settings from the run's configuration, everything else in `jsam.campaign`."""

from __future__ import annotations

import os
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from jsam.campaign.server.server_campaign import run_campaign
from jsam.campaign.server.server_options import from_run_config
from jsam.campaign.server.server_store import ServerStore
from jsam.files import keep_private
from jsam.flower.messaging import FlowerTransport

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the campaign of the run's configuration, or go on with the one in its store."""
    rules, options = from_run_config(context.run_config, _parameters)
    if home := os.environ.get("FLWR_HOME"):
        keep_private(Path(home), "Flower's folder")
    # torch is loaded late: a wrong setting should not have to wait for it.
    from jsam.training.federated.server_model import InstalledModel

    model = InstalledModel(rules.model, seed=rules.rules.seed, dataset=options.dataset)
    run_campaign(FlowerTransport(grid), ServerStore(options.store), rules, options, model)


def _parameters(model: str) -> int:
    """How many parameters a model by its name has."""
    from jsam.training.models import build_model
    from jsam.training.task import num_parameters

    return num_parameters(build_model(model, 0))
