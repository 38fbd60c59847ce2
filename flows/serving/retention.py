"""What a suite's `[retention]` says is old is forgotten after each of its runs, with no schedule of its own."""

from evalhouse.flows.display.output import print_notice, write_count
from evalhouse.flows.preparing.suites import Suite
from evalhouse.tasks.settings.retention import find_cutoff
from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.rows.runs import now_utc
from evalhouse.warehouse.store import Warehouse


def forget_old(suite: Suite, warehouse_url: str) -> None:
    """Forget the suite's runs that are older than it keeps them, and say so; what hinders it is said, and tried again
    after the next run."""
    from evalhouse.warehouse.upkeep.forget import Rule, forget  # noqa: PLC0415  # few suites have it

    for age, with_scores in suite.retention.list_ages() if suite.retention else ():
        what = "scores" if with_scores else "texts"
        rule = Rule(
            words=f'[retention] {what} = "{age}"',
            before=find_cutoff(age, now_utc()),
            suite=suite.name,
            with_scores=with_scores,
        )
        try:
            forgotten = forget(Warehouse(warehouse_url), rule)
        except WarehouseError as error:
            print_notice(f"{suite.name}: {rule.words} waits for the next run: {error}")
            continue
        if forgotten.run_ids:
            runs = write_count(len(forgotten.run_ids), "run")
            print_notice(f"{suite.name}: {what} of {runs} older than {age} were forgotten ({rule.words})")
