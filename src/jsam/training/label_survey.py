"""Ask every client for its label counts, with noise, before there is a plan: charged first, then used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jsam.errors import InputError
from jsam.mechanism.noisy_labels import spread_of_noisy
from jsam.privacy import Ledger, label_noise
from jsam.runs.label_counts import LabelCounts
from jsam.runs.noise_source import NoiseSource, new_noise
from jsam.runs.run_folder import RunFolder
from jsam.runs.settings import TrainingSettings
from jsam.training.data import Dataset
from jsam.training.partition import Partition


@dataclass(frozen=True, kw_only=True)
class LabelSurvey:
    """A run's folder that was begun by asking for label counts: its noise is there, and its ledger has the charges."""

    labels: LabelCounts
    folder: RunFolder
    settings: TrainingSettings
    noise: NoiseSource
    key_check: str | None

    @classmethod
    def held(
        cls,
        output: Path | str,
        *,
        epsilon: float,
        price: float,
        dearer: float,
        ids: Sequence[str],
        split: Partition,
        data: Dataset,
        settings: TrainingSettings,
    ) -> LabelSurvey:
        """Begin the run in the folder `output`: charge `epsilon` to each client, paid with `price` a unit.

        Nothing is learned from a count before all charges are on disk. If the run ends before its first round, the
        folder keeps them.
        """
        std = label_noise(epsilon, settings.delta, settings.adjacency)
        folder = RunFolder(output)
        folder.create()
        noise, key_check = new_noise(settings, folder)
        unread = LabelCounts(
            epsilon=epsilon, price=price, dearer=dearer, num_clients=split.num_clients, heterogeneity=0.0
        )
        with Ledger(folder.ledger) as ledger:
            ledger.append(unread.releases(ids, split.sizes, settings))
        counts = split.label_counts(data.train_targets, data.num_classes)
        noisy = counts + std * noise.label_normals(counts.size).reshape(counts.shape)
        zeta2 = spread_of_noisy(noisy, split.sizes, std)
        labels = LabelCounts(**{**vars(unread), "heterogeneity": float(f"{zeta2:.6g}")})
        return cls(labels=labels, folder=folder, settings=settings, noise=noise, key_check=key_check)

    def check(self, folder: RunFolder, settings: TrainingSettings) -> None:
        """Refuse to go on in another folder, twice, or with another privacy or noise; the rest may be fitted by now."""
        if folder.path != self.folder.path:
            raise InputError(f"survey was held in {self.folder.path}; train there")
        if folder.config.exists():
            raise InputError(f"{folder.path} holds a run already; a survey is for one run")
        for name in ("delta", "adjacency", "noise_seed"):
            held, now = getattr(self.settings, name), getattr(settings, name)
            if held != now:
                raise InputError(f"survey was held with {name} {held}, and the run has {now}; give both the same")
