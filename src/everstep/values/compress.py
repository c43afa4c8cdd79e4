"""Object bodies, smaller: zstd with a small built-in dictionary, or as they are where that does not pay.

The first byte of what is stored says which. Addresses are computed over the plain body, so a later dictionary or
level changes no address. One zstd context used by two threads at once crashes, so each use takes one from a pool.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from importlib import resources

import zstandard

from everstep.errors import CheckpointCorrupted
from everstep.values import costs

PLAIN = b"\x00"
ZSTD = b"\x01"
ZSTD_DICTIONARY = b"\x02"

_MAGIC = b"\x28\xb5\x2f\xfd"  # begins every frame, so small bodies are kept without it
_SMALL_FRAMES = frozenset((ZSTD_DICTIONARY + b"\x20", ZSTD_DICTIONARY + b"\x60"))  # claim a size of at most 65,791
_MIDDLE_FRAME = ZSTD + _MAGIC + b"\x60"  # claims no more, either
_HEADER_BYTES = 18  # of a frame, at most
_WORTH_BYTES = 48
_FEW = 32
_LARGE_BYTES = 8 << 10
_SAMPLE_BYTES = 2048
_SMALL_BYTES = 1 << 16
_DICTIONARY_BYTES = 2048
_OUTPUT_FREE = 1 << 20
_RATIO_MAX = 256
"""A body may grow to 1 MiB, or to 256 times its stored size: what `squeeze` never exceeds, `expand` never allows."""
_TOGETHER_FREE = 64 << 20
_TOGETHER_RATIO = 1024
_ROW_BYTES = 64  # what an object takes besides its body: its address and more
"""Many bodies together may grow to 64 MiB and 1,024 times what is stored: many small bombs are a large one."""
_HIDDEN_RATIO = 64
_WEIGHT_RATIO = 8192
_WEIGHT_FREE = 32 << 20
"""A body that grows more than 64 times is weighed (see `costs`): half a million empty dicts are as small as nothing.

It may weigh 8,192 times what is stored. Together they may weigh 32 Mi more, for those of before there was this limit.
"""
_SMALL_ENOUGH = _HIDDEN_RATIO * _ROW_BYTES  # any row may grow to this size


class _Contexts:
    """Each is made when it is first used: a reader needs no compressor."""

    @functools.cached_property
    def compress(self) -> Callable[[bytes], bytes]:
        return zstandard.ZstdCompressor(level=1, write_checksum=False).compress

    # With the dictionary level 1 is as small as level 3, in less than half the time; level 6 saves a tenth more and
    # takes five times as long; for what is shorter than the dictionary's own pieces level 4 is nearly as good.
    @functools.cached_property
    def compress_small(self) -> Callable[[bytes], bytes]:
        return _small_compressor(1)

    @functools.cached_property
    def compress_few(self) -> Callable[[bytes], bytes]:
        return _small_compressor(6)

    @functools.cached_property
    def compress_quick(self) -> Callable[[bytes], bytes]:
        return _small_compressor(4)

    @functools.cached_property
    def decompress(self) -> Callable[..., bytes]:
        return zstandard.ZstdDecompressor().decompress

    @functools.cached_property
    def decompress_small(self) -> Callable[..., bytes]:
        dictionary = zstandard.ZstdCompressionDict(_dictionary_bytes())
        return zstandard.ZstdDecompressor(dict_data=dictionary, format=zstandard.FORMAT_ZSTD1_MAGICLESS).decompress


def _small_compressor(level: int) -> Callable[[bytes], bytes]:
    parameters = zstandard.ZstdCompressionParameters.from_level(
        level, write_checksum=False, write_dict_id=False, format=zstandard.FORMAT_ZSTD1_MAGICLESS
    )
    return zstandard.ZstdCompressor(compression_params=parameters, dict_data=_dictionary(level)).compress


_idle: deque[_Contexts] = deque(maxlen=16)  # its operations are atomic; those that do not fit are dropped


def _take_contexts() -> _Contexts:
    """Return some that nobody uses. Who has done with them puts them back, but not after an error."""
    try:
        return _idle.pop()
    except IndexError:
        return _Contexts()


@functools.cache
def _dictionary(level: int) -> zstandard.ZstdCompressionDict:
    dictionary = zstandard.ZstdCompressionDict(_dictionary_bytes())
    dictionary.precompute_compress(level=level)
    return dictionary


@functools.cache
def _dictionary_bytes() -> bytes:
    return resources.files("everstep.values").joinpath("dictionary-1.zdict").read_bytes()


def squeeze(body: bytes) -> bytes:
    """Return the stored form of `body`: compressed if that saves at least a tenth."""
    return squeeze_all([body])[0]


def squeeze_fast(body: bytes) -> bytes:
    """Return the stored form of a small body that is not worth an effort."""
    if len(body) >= _DICTIONARY_BYTES:  # it finds its own repetitions, in no more time
        return squeeze(body)
    contexts = _take_contexts()
    packed = contexts.compress_quick(body)
    _idle.append(contexts)
    return ZSTD_DICTIONARY + packed if len(packed) < len(body) else PLAIN + body


def squeeze_all(bodies: Sequence[bytes], *, thorough: bool = False) -> list[bytes]:
    """Return `squeeze` of each; `thorough` takes longer over a few, to save a tenth more."""
    found = []
    contexts = _take_contexts()
    compress_small = contexts.compress_few if thorough and len(bodies) <= _FEW else contexts.compress_small
    is_doubtful = False
    for body in bodies:
        size = len(body)
        # What comes after numbers, or an image, is likely to be more of it. A sample of it tells that.
        if size < _WORTH_BYTES or (is_doubtful and size >= _LARGE_BYTES and not _is_sample_worth_it(body, contexts)):
            found.append(PLAIN + body)
            continue
        # The dictionary helps small bodies; a large one finds its own repetitions.
        small = size < _DICTIONARY_BYTES
        packed = compress_small(body) if small else contexts.compress(body)
        stored_bytes = len(packed)
        is_doubtful = not _is_worth_it(size, stored_bytes)
        if is_doubtful or (size > _HIDDEN_RATIO * stored_bytes and _grows_too_much(body, stored_bytes)):
            found.append(PLAIN + body)
        else:
            found.append((ZSTD_DICTIONARY if small else ZSTD) + packed)
    _idle.append(contexts)  # not after an error: its state is not known
    return found


def _is_worth_it(size: int, stored_bytes: int) -> bool:
    """Whether a body is stored compressed.

    To read one MB back that was compressed takes as long as reading it three times. So much is paid for text, which
    becomes a third of what it was, and not for numbers and images, which would save a quarter at most.
    """
    saved_bytes = size - stored_bytes
    return saved_bytes > size // 10 if size < _LARGE_BYTES else saved_bytes > size * 3 // 10


def _is_sample_worth_it(body: bytes, contexts: _Contexts) -> bool:
    """Whether a few bytes in the middle of a large body are worth to be compressed."""
    start = len(body) // 2
    sample = body[start : start + _SAMPLE_BYTES]
    return len(contexts.compress(sample)) < len(sample) * 7 // 10


def _grows_too_much(body: bytes, stored_bytes: int) -> bool:
    """Whether a body would grow from so few bytes to more than `expand` allows, or to something heavier."""
    return len(body) > max(_SMALL_BYTES, _RATIO_MAX * stored_bytes) or _hidden_weight(body, stored_bytes) > 0


def _hidden_weight(body: bytes, stored_bytes: int) -> int:
    """Return what a body weighs beyond what may be stored in so few bytes."""
    stored_bytes += _ROW_BYTES
    if len(body) <= _HIDDEN_RATIO * stored_bytes:
        return 0
    return max(costs.weight_at_most(body) - _WEIGHT_RATIO * stored_bytes, 0)


def expand(stored: bytes) -> bytes:
    """Return the body that `squeeze` stored. Refuses to grow beyond what `squeeze` could have made."""
    mark = stored[:1]
    if mark == PLAIN:
        return stored[1:]
    if mark not in (ZSTD, ZSTD_DICTIONARY):
        raise CheckpointCorrupted(f"an object is stored in the unknown form {mark!r}")
    packed = stored[1:]
    try:
        size = zstandard.frame_content_size(_MAGIC + packed[:_HEADER_BYTES] if mark == ZSTD_DICTIONARY else packed)
        if not 0 <= size <= max(_OUTPUT_FREE, _RATIO_MAX * len(packed)):
            raise CheckpointCorrupted(f"an object claims an impossible size ({size} bytes from {len(packed)})")
        contexts = _take_contexts()
        decompress = contexts.decompress_small if mark == ZSTD_DICTIONARY else contexts.decompress
        body = decompress(packed, allow_extra_data=False)
        _idle.append(contexts)  # not after an error: its state is not known
        return body
    except zstandard.ZstdError as exc:
        raise CheckpointCorrupted(f"an object cannot be decompressed: {exc}") from exc


def expand_all(stored: Iterable[bytes]) -> list[bytes]:
    """Return `expand` of each; a tree has a thousand small bodies, so the usual kind is done in place."""
    bodies = list[bytes]()
    allowed = _TOGETHER_FREE
    weight_allowed = _WEIGHT_FREE
    contexts = _take_contexts()
    decompress = contexts.decompress
    decompress_small = contexts.decompress_small
    for data in stored:
        allowed += _TOGETHER_RATIO * (len(data) + _ROW_BYTES)
        if data[:1] == PLAIN:
            body = data[1:]
        elif data[:2] in _SMALL_FRAMES or data[:6] == _MIDDLE_FRAME:
            try:
                body = decompress(data[1:]) if data[:1] == ZSTD else decompress_small(data[1:])
            except zstandard.ZstdError:
                body = expand(data)  # says it properly
        else:
            body = expand(data)
        bodies.append(body)
        if len(body) <= _SMALL_ENOUGH:
            continue
        allowed -= len(body)
        weight_allowed -= _hidden_weight(body, len(data))
        if allowed < 0 or weight_allowed < 0:
            raise CheckpointCorrupted("stored objects claim an impossible size together")
    _idle.append(contexts)
    return bodies
