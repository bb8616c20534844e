"""Murmur3 without a library."""

from __future__ import annotations


def murmur3_x64_128(data: bytes, seed: int) -> tuple[int, int]:
    """Murmur3 as its author wrote it, in plain Python: an oracle that shares no code with mmh3."""
    mask = 2**64 - 1

    def rotl(x: int, r: int) -> int:
        return ((x << r) | (x >> (64 - r))) & mask

    def fmix(k: int) -> int:
        k = ((k ^ (k >> 33)) * 0xFF51AFD7ED558CCD) & mask
        k = ((k ^ (k >> 33)) * 0xC4CEB9FE1A85EC53) & mask
        return k ^ (k >> 33)

    c1, c2 = 0x87C37B91114253D5, 0x4CF5AD432745937F
    blocks = len(data) // 16 * 16
    h1, h2 = _state_after(data[:blocks], seed)
    tail = data[blocks:]
    h2 ^= rotl(int.from_bytes(tail[8:], "little") * c2 & mask, 33) * c1 & mask
    h1 ^= rotl(int.from_bytes(tail[:8], "little") * c1 & mask, 31) * c2 & mask
    h1, h2 = h1 ^ len(data), h2 ^ len(data)
    h1 = (h1 + h2) & mask
    h2 = (h2 + h1) & mask
    h1, h2 = fmix(h1), fmix(h2)
    h1 = (h1 + h2) & mask
    return h1, (h2 + h1) & mask


def _state_after(blocks: bytes, seed: int = 0) -> tuple[int, int]:
    """The two words of state after whole blocks of 16 bytes."""
    mask = 2**64 - 1

    def rotl(x: int, r: int) -> int:
        return ((x << r) | (x >> (64 - r))) & mask

    c1, c2 = 0x87C37B91114253D5, 0x4CF5AD432745937F
    h1 = h2 = seed
    for start in range(0, len(blocks), 16):
        k1 = int.from_bytes(blocks[start : start + 8], "little")
        k2 = int.from_bytes(blocks[start + 8 : start + 16], "little")
        h1 ^= rotl(k1 * c1 & mask, 31) * c2 & mask
        h1 = ((rotl(h1, 27) + h2) * 5 + 0x52DCE729) & mask
        h2 ^= rotl(k2 * c2 & mask, 33) * c1 & mask
        h2 = ((rotl(h2, 31) + h1) * 5 + 0x38495AB5) & mask
    return h1, h2


def item_with_digest(halves: tuple[int, int], prefix: bytes = b"") -> bytes:
    """The item of prefix and 16 bytes more whose digest with seed 0 these are the halves of.

    Every step of Murmur3 can be undone, so the last block follows from the state before it and the
    state after it.
    """
    mask = 2**64 - 1
    length = len(prefix) + 16

    def inverse(odd: int) -> int:
        return pow(odd, -1, 2**64)

    def rotr(x: int, r: int) -> int:
        return ((x >> r) | (x << (64 - r))) & mask

    def unmix(k: int) -> int:
        k ^= k >> 33
        k = k * inverse(0xC4CEB9FE1A85EC53) & mask
        k ^= k >> 33
        k = k * inverse(0xFF51AFD7ED558CCD) & mask
        return k ^ (k >> 33)

    c1, c2 = 0x87C37B91114253D5, 0x4CF5AD432745937F
    before1, before2 = _state_after(prefix)
    h2 = (halves[1] - halves[0]) & mask
    h1 = unmix((halves[0] - h2) & mask)
    h2 = (unmix(h2) - h1) & mask
    h1 = (h1 - h2) & mask
    h1, h2 = h1 ^ length, h2 ^ length
    mixed1 = rotr(((h1 - 0x52DCE729) * inverse(5) - before2) & mask, 27) ^ before1
    mixed2 = rotr(((h2 - 0x38495AB5) * inverse(5) - h1) & mask, 31) ^ before2
    k1 = rotr(mixed1 * inverse(c2) & mask, 31) * inverse(c1) & mask
    k2 = rotr(mixed2 * inverse(c1) & mask, 33) * inverse(c2) & mask
    return prefix + k1.to_bytes(8, "little") + k2.to_bytes(8, "little")
