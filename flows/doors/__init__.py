"""How a run is begun by a command, a suite or a call from Python."""
