"""Whether a warehouse can take what a run will write, found out by writing before anything is asked and paid for."""

import os
import tempfile

from evalhouse.warehouse.errors import WarehouseUnwritable
from evalhouse.warehouse.location import Location
from evalhouse.warehouse.store import Warehouse

# About what the journal holds before it is moved into the warehouse: 2,000 calls of 8 KB.
_ROOM_MB = 16
_BLOCK_BYTES = 2**20


def check_room(warehouse: Warehouse) -> None:
    """Open the file for writing and fill some room beside it for a moment.

    Raises WarehouseUnwritable for a full disk, a quota, or a place that is read-only, and WarehouseBusy.
    """
    with warehouse.writing():
        pass
    _fill_room(warehouse.location)


def _fill_room(location: Location) -> None:
    # Noise, because a file system may pack zeros to nothing.
    block = os.urandom(_BLOCK_BYTES)
    try:
        location.journal_path.mkdir(parents=True, exist_ok=True)
        # A file without a name, or one that the system removes: nothing stays of it, however this process ends.
        with tempfile.TemporaryFile(dir=location.journal_path, buffering=0) as file:
            for _ in range(_ROOM_MB):
                if file.write(block) != len(block):
                    raise OSError("no space left")
            os.fsync(file.fileno())
    except OSError as error:
        raise WarehouseUnwritable(
            f"there is no room for replies beside {location.journal_path}, {_ROOM_MB} MB at least are needed "
            f"({error.strerror or error}); make room, or name another place with --warehouse"
        ) from None
