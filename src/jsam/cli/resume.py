"""`jsam resume`: go on with a run that was interrupted."""

from __future__ import annotations

from jsam.cli.options import RunFolderArgument, TensorBoardFlag, examples, with_options
from jsam.cli.output import require_torch, say
from jsam.cli.running import (
    FEATURES_LABEL,
    RoundProgress,
    counting,
    finish,
    resumable,
    say_noise,
    tracking,
    warnings_as_lines,
)

EXAMPLES = examples("jsam resume runs/a")


@with_options
def resume(*, folder: RunFolderArgument, tensorboard: TensorBoardFlag = False) -> None:
    """Finish an interrupted run: bit for bit what it would have been without the interruption.

    FOLDER is what --output of jsam simulate named.

    Exit codes: 0 done, 1 a client is over its contract, 2 bad input (one line on standard error).
    """
    require_torch()
    from jsam.mechanism.contract_files import load_contract
    from jsam.runs.run_folder import RunFolder
    from jsam.runs.settings import TrainingSettings
    from jsam.training.recorded_run import resume as go_on

    run = RunFolder(folder)
    settings = TrainingSettings.of_run(run.read_config())
    say_noise(settings)
    if run.summary.exists():
        say(f"{folder} is complete; nothing is left to train")
    bar = RoundProgress(f"Training ({load_contract(run.contract).mechanism})", settings.rounds)
    # The bar of rounds is there already, and a terminal shows one bar at a time.
    preparing = counting(FEATURES_LABEL, bar=False)
    recorded = tracking(folder, tensorboard)
    with warnings_as_lines(), resumable(folder), recorded as tracker, bar as progress, preparing as counted:
        go_on(folder, preparing=counted, progress=progress, tracker=tracker)
    finish(folder, strict=settings.rule_of_noise.keeps_contracts)
