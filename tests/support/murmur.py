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
    h1 = h2 = seed
    for start in range(0, blocks, 16):
        k1 = int.from_bytes(data[start : start + 8], "little")
        k2 = int.from_bytes(data[start + 8 : start + 16], "little")
        h1 ^= rotl(k1 * c1 & mask, 31) * c2 & mask
        h1 = ((rotl(h1, 27) + h2) * 5 + 0x52DCE729) & mask
        h2 ^= rotl(k2 * c2 & mask, 33) * c1 & mask
        h2 = ((rotl(h2, 31) + h1) * 5 + 0x38495AB5) & mask
    tail = data[blocks:]
    h2 ^= rotl(int.from_bytes(tail[8:], "little") * c2 & mask, 33) * c1 & mask
    h1 ^= rotl(int.from_bytes(tail[:8], "little") * c1 & mask, 31) * c2 & mask
    h1, h2 = h1 ^ len(data), h2 ^ len(data)
    h1 = (h1 + h2) & mask
    h2 = (h2 + h1) & mask
    h1, h2 = fmix(h1), fmix(h2)
    h1 = (h1 + h2) & mask
    return h1, (h2 + h1) & mask
