"""Flower's simulation engine in the place of SuperNodes, with the apps and the client folders of a deployment."""

from __future__ import annotations

import os
from pathlib import Path

from jsam.campaign.client.client_files import SIMULATED_CLIENTS
from jsam.flower.launch.federation import LocalFederation


class SimulatedFederation(LocalFederation):
    """One virtual client for each folder in `clients`, in a few worker processes."""

    def __init__(self, folder: Path, clients: Path) -> None:
        super().__init__(folder)
        self.environment[SIMULATED_CLIENTS] = str(clients.absolute())
        count = len(list(clients.glob("client-*")))
        # A worker a core, one message at a time in each.
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        values = f"num-supernodes={count} client-resources-num-cpus=1 init-args-num-cpus={cores}"
        self.run_options = ("--federation-config", values)

    def superlink_command(self) -> list[str]:
        return [*super().superlink_command(), "--simulation"]
