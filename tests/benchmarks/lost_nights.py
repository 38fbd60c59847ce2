"""Kill the nights of a suite in a work pool, and count how each of them ended.

A Prefect server, a process worker that a supervisor starts again, and a suite that `flows/prefect.yaml` deploys with a
schedule of one night a minute. SIGTERM and SIGKILL go at random to the process of a night, to the worker, and to both,
as when a machine dies. Then the schedule stops, and the queue is drained. A night has ended well if its run has
completed, at once or by a resumption, if a later one made up for it, if it was queued again, or if its end was posted.
The status is 1 if one was lost, or still waits after a quarter of an hour.

    python tests/benchmarks/lost_nights.py [--minutes 20] [--seed 7]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "helpers"))

from prefect_holder import close_session, list_family, open_session  # noqa: E402
from serve_house import ServeHouse, open_serve_house, start_prefect_server  # noqa: E402
from webhook import Webhook, serve_webhook  # noqa: E402

SUITE, POOL = "nightly", "evalhouse"
PAUSE_S = (20.0, 90.0)  # between two blows
SUPERVISED_S = (1.0, 20.0)  # after so long a supervisor starts the worker again
# A machine may take 5 minutes to start a night before that is given up, and then another one has to come.
DRAINED_S = 900.0
# Prefect orders events of a state by the state before it if that is less than 5 minutes old, and keeps them back for 15
# minutes where that one has no event, as in what its scheduler has made. The nights of a real schedule are made hours
# before they are due, so these are struck when they are older too.
OLDER_S = 310.0
LOOK_S = 10.0
LOST, WAITING = "LOST", "still waiting"
PREFECT = (sys.executable, "-m", "prefect", "--no-prompt")


@dataclass(kw_only=True)
class Drill:
    """A suite in a work pool; `blows` are the signals by the flow run that they met."""

    house: ServeHouse
    webhook: Webhook
    dice: random.Random
    worker: subprocess.Popen[bytes] | None = None
    blows: dict[str, list[str]] = field(default_factory=dict)

    def deploy(self) -> None:
        """Deploy the suite and the recovery by the file that ships with evalhouse."""
        text = (ROOT / "flows" / "prefect.yaml").read_text(encoding="utf-8")
        text = text.replace("/srv/suites", str(self.house.folder)).replace('"0 3 * * *"', '"* * * * *"')
        path = self.house.folder / "prefect.yaml"
        path.write_text(text, encoding="utf-8")
        names = ["--name", SUITE, "--name", "recovery"]
        for command in (["work-pool", "create", POOL, "--type", "process"],
                        ["deploy", *names, "--prefect-file", str(path)]):  # fmt: skip
            environment = self.house.client.environment()
            subprocess.run([*PREFECT, *command], cwd=self.house.folder, env=environment, check=True)

    def start_worker(self) -> None:
        place = self.house.client.with_variables(PREFECT_WORKER_QUERY_SECONDS="2")
        with (self.house.folder / "worker.log").open("ab") as log:
            self.worker = subprocess.Popen(
                [*PREFECT, "worker", "start", "--pool", POOL],
                cwd=self.house.folder,
                env=place.environment(),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait(self, seconds: float) -> None:
        """Wait, and be the supervisor of the worker meanwhile."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.worker is None or self.worker.poll() is not None:
                time.sleep(self.dice.uniform(*SUPERVISED_S))
                self.start_worker()
            time.sleep(0.5)

    def strike(self) -> None:
        """Send a signal to the process of a night, to the worker, or to both."""
        assert self.worker is not None
        whom, number = self.dice.choice(("flow", "worker", "both")), self.dice.choice((signal.SIGTERM, signal.SIGKILL))
        nights = {}
        for pid in list_family(self.worker.pid)[1:]:
            with contextlib.suppress(OSError):
                variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                named = dict(variable.split(b"=", 1) for variable in variables if b"=" in variable)
                if flow_run_id := named.get(b"PREFECT__FLOW_RUN_ID"):
                    nights[pid] = flow_run_id.decode()
        pids = [*(nights if whom != "worker" else []), *([self.worker.pid] if whom != "flow" else [])]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        for flow_run_id in set(nights.values()):
            self.blows.setdefault(flow_run_id, []).append(f"{number.name} {whom}")

    def list_flow_runs(self) -> list[dict[str, Any]]:
        body = {"deployments": {"name": {"any_": [SUITE]}}, "sort": "EXPECTED_START_TIME_DESC", "limit": 200}
        found: list[dict[str, Any]] = self.house.post("/flow_runs/filter", body)
        return sorted(found, key=lambda row: str(row["expected_start_time"]))

    def run(self, minutes: float) -> None:
        """Strike for so many minutes, stop the schedule, and let everything that is due come to its end."""
        self.deploy()
        self.wait(OLDER_S)
        end = time.monotonic() + 60 * minutes
        while time.monotonic() < end:
            self.wait(self.dice.uniform(*PAUSE_S))
            self.strike()
        (deployment,) = self.house.post("/deployments/filter", {"deployments": {"name": {"any_": [SUITE]}}})
        for schedule in deployment["schedules"]:
            path = f"/deployments/{deployment['id']}/schedules/{schedule['id']}"
            self.house.api.patch(path, {"active": False})
        began, printed_at = time.monotonic(), float("-inf")
        while time.monotonic() - began < DRAINED_S:
            nights = list(self.judge())
            open_nights = [f"{due} {state}" for due, _, state, ending in nights if ending in (LOST, WAITING)]
            if not open_nights:
                break
            if time.monotonic() - printed_at > 60:
                printed_at = time.monotonic()
                print(f"drained in {printed_at - began:.0f} s up to: {', '.join(open_nights)}", flush=True)
            self.wait(LOOK_S)
        print(f"the queue was drained for {time.monotonic() - began:.0f} s", flush=True)

    def judge(self) -> Iterator[tuple[str, str, str, str]]:
        """Yield for each night its time, what met it, its state in Prefect, and how it ended."""
        runs = {run["run_id"]: run["status"] for run in self.house.list_runs(SUITE)}
        posted = [str(body["run_id"]) for body in self.webhook.bodies]
        for row in self.list_flow_runs():
            run_id = row["name"].removeprefix(f"{SUITE} ")
            ending = LOST
            if row["state_type"] in ("SCHEDULED", "PENDING", "RUNNING"):
                ending = WAITING
            elif runs.get(run_id) == "completed":
                ending = "completed" if row["state_type"] == "COMPLETED" else "completed by resumption"
            elif row["state_type"] == "COMPLETED":
                ending = row["state_name"]  # Superseded, NothingNew
            elif "queued again" in row["tags"]:
                ending = "queued again"
            elif run_id in posted:
                ending = "notified"
            at = datetime.fromisoformat(row["expected_start_time"])
            yield f"{at:%H:%M:%S}", ", ".join(self.blows.get(row["id"], [])), row["state_name"], ending


def main() -> None:
    """Run the drill and print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    open_session()
    try:
        with tempfile.TemporaryDirectory() as name, serve_webhook() as webhook, open_serve_house(Path(name)) as house:
            endings = '["failed", "incomplete", "completed"]'
            house.write_suite(SUITE, more=f'[notify]\nwebhook = "{webhook.url}"\non = {endings}\n')
            house.bot.configure(slow_s=2.0)
            drill = Drill(house=house, webhook=webhook, dice=random.Random(options.seed))
            with start_prefect_server(house):
                try:
                    drill.run(options.minutes)
                    nights = list(drill.judge())
                finally:
                    for pid in list_family(drill.worker.pid) if drill.worker is not None else []:
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
            if any(night[3] in (LOST, WAITING) for night in nights):
                print((house.folder / "worker.log").read_text(errors="replace")[-20_000:])
    finally:
        close_session()
    print(f"{'due':10}{'signals':40}{'in Prefect':22}ended as")
    for due, signals, state, ending in nights:
        print(f"{due:10}{signals:40}{state:22}{ending}")
    counts = Counter(ending for *_, ending in nights)
    posts = Counter(body["status"] for body in webhook.bodies)
    print(f"{len(nights)} nights: {dict(counts)}; notifications: {dict(posts)}")
    raise SystemExit(bool(counts[LOST] + counts[WAITING]))


if __name__ == "__main__":
    main()
