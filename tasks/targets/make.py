"""The application under test, as everything else here sees it: a question goes in, a response comes out.

A question that fails is a response with an error, so that one bad answer never ends a night's work; what no question
can get past is raised. What is asked, and how, is in `over_http` (an address) and `callables` (a function, a LangChain
Runnable); their common patience, pace and clock are in `attempts`.
"""

from evalhouse.tasks.settings.target import TargetSettings
from evalhouse.tasks.targets.protocol import Response, Target, TargetError, TargetQuestion

__all__ = ["Response", "Target", "TargetError", "TargetQuestion", "make_target"]


def make_target(settings: TargetSettings) -> Target:
    """The target of the settings; raises TargetError for what would make every question fail."""
    if settings.url is not None:
        from evalhouse.tasks.targets.over_http import HttpTarget  # noqa: PLC0415  # each target imports only what it needs

        return HttpTarget(settings)
    if settings.runnable is not None:
        from evalhouse.tasks.targets.callables import RunnableTarget  # noqa: PLC0415

        return RunnableTarget(settings)
    from evalhouse.tasks.targets.callables import CallableTarget  # noqa: PLC0415

    return CallableTarget(settings)
