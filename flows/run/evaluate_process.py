"""The child process of `evalhouse.flows.evaluate`: settings as JSON on standard input, how the run ended as JSON on
standard output. Whatever else is said goes to standard error."""

import os
import sys

import orjson

from evalhouse.flows.errors import explain
from evalhouse.flows.run.start_to_end import start_run
from evalhouse.tasks.settings.run import RunSettings


def main() -> None:
    """Run once."""
    output, sys.stdout = os.fdopen(os.dup(1), "wb"), sys.stderr
    try:
        outcome = start_run(RunSettings.model_validate_json(sys.stdin.read()))
        ended = {"run_id": outcome.run.run_id, "status": outcome.status, "problem": outcome.problem}
    except Exception as error:
        if explain(error) is None:
            raise  # one that should not be: its traceback is wanted
        ended = {"error": explain(error)}
    output.write(orjson.dumps(ended))
    output.close()


if __name__ == "__main__":
    main()
