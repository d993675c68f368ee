"""The server's half as Flower loads it: settings from the run's configuration, everything else in `server_campaign`."""

from __future__ import annotations

import os
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from jsam.campaign.campaign_rules import from_run_config
from jsam.files import keep_private
from jsam.flower.messaging import Exchange

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the campaign of the run's configuration, or go on with the one in its store."""
    # torch is loaded late: a wrong setting should not have to wait for it.
    published, conduct = from_run_config(context.run_config)
    if home := os.environ.get("FLWR_HOME"):
        keep_private(Path(home), "Flower's folder")
    from jsam.campaign.server.server_campaign import run_campaign

    run_campaign(Exchange(grid), published, conduct)
