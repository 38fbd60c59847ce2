"""Task runners as a team names them after `--task-runner`."""

from prefect.task_runners import ProcessPoolTaskRunner


def make_two_processes() -> ProcessPoolTaskRunner:
    return ProcessPoolTaskRunner(max_workers=2)
