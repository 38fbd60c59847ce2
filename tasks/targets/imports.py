"""From `module:name` to the object of that name, as the target's function or Runnable is named."""

import importlib
import os
import sys

from evalhouse.tasks.messages import redact, shorten
from evalhouse.tasks.targets.errors import TargetError


def find_object(name: str) -> object:
    """Import the module and take the object out of it; raises TargetError that says what is missing.

    The working directory is searched last, so that a file there cannot take the place of an installed module.
    """
    module_name, _, path = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        found: object = importlib.import_module(module_name)
    except ImportError as error:
        raise TargetError(
            f"cannot import {module_name!r} for {name!r}: {shorten(str(error))}; "
            "start where it is, or install it into this environment"
        ) from None
    except Exception as error:  # a module of any maker may raise anything
        raise TargetError(f"module {module_name!r} of {name!r} broke on import: {describe_error(error)}") from error
    for part in path.split("."):
        if not hasattr(found, part):
            raise TargetError(f"module {module_name!r} has no {path!r} (asked for by {name!r})")
        found = getattr(found, part)
    return found


def describe_error(error: BaseException) -> str:
    """Type and message of an error that is not ours, fit for a message."""
    text = shorten(redact(str(error)))
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
