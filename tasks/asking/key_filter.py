"""A filter over request keys: is a request surely not on record?

Opening the warehouse to look a request up takes some 20 ms of CPU, ten times what the call itself costs, and most
requests of a night with new answers have never been asked. A Bloom filter of fixed size says so for nearly all of
them; it never denies a key that was added, and what it affirms by mistake costs one look-up.
"""

from collections.abc import Iterable

# Eight megabytes: a million keys are mistaken for known in 1 of 1,000 cases, ten millions in 1 of 15.
_BITS = 26
_MASK = (1 << _BITS) - 1


class KeyFilter:
    """A set of 64-bit hashes that may affirm by mistake and never denies by mistake."""

    def __init__(self) -> None:
        self._bits = bytearray(1 << (_BITS - 3))

    def add(self, key: int) -> None:
        """Affirm this key from now on."""
        bits = self._bits
        # The key is a hash already, so two stretches of it are as good as two hashes of it.
        for place in (key & _MASK, (key >> _BITS) & _MASK):
            bits[place >> 3] |= 1 << (place & 7)

    def update(self, keys: Iterable[int]) -> None:
        """Affirm these keys from now on."""
        for key in keys:
            self.add(key)

    def __contains__(self, key: int) -> bool:
        one, other = key & _MASK, (key >> _BITS) & _MASK
        return bool(self._bits[one >> 3] >> (one & 7) & self._bits[other >> 3] >> (other & 7) & 1)
