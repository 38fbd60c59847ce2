"""What holds for every test: none of them starts a Prefect server by accident."""

import os

os.environ["PREFECT_SERVER_ALLOW_EPHEMERAL_MODE"] = "false"
