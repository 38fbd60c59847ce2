"""`evalhouse kb-updated`: tell that a knowledge base has changed."""

import click

from evalhouse.flows.commands.options import JSON_OPTION
from evalhouse.flows.display.output import print_json, print_line
from evalhouse.flows.server.api import find_api
from evalhouse.flows.serving.flow_runs import announce_update


@click.command("kb-updated")
@click.argument("name")
@click.option("--version", metavar="V", help="What the knowledge base is now, such as a date or a commit.")
@click.option("--changed", multiple=True, metavar="ID", help="A changed document; may be given several times.")
@JSON_OPTION
def kb_updated(name: str, version: str | None, changed: tuple[str, ...], as_json: bool) -> int:
    """Tell that knowledge base NAME was updated.

    Every served suite with a trigger on NAME runs when no further update has come for a while, its `debounce_s`. The
    Prefect server is the one that PREFECT_API_URL or Prefect's own profile names.
    """
    api = find_api("the update cannot be announced")
    event_id = announce_update(api, name, version=version, changed=changed)
    if as_json:
        print_json({"event_id": event_id, "knowledge_base": name, "version": version, "changed": list(changed)})
        return 0
    told = f" to version {version}" if version is not None else ""
    documents = f", {len(changed)} changed document{'s' if len(changed) != 1 else ''}" if changed else ""
    print_line(f"announced: {name} was updated{told}{documents}; event {event_id}")
    return 0
