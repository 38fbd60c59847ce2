"""The one error for a setting given wrongly, and the exit statuses of `evalhouse`."""


class SettingsError(Exception):
    """A setting has a value that is not allowed; says which one, where it came from, and what is."""


GATE_FAILED, BAD_INPUT, INCOMPLETE, INTERRUPTED = 1, 2, 3, 130
