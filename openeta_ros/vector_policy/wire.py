# SPDX-License-Identifier: Apache-2.0
"""One message: a JSON header frame, then one frame of raw little-endian bytes for each array it describes.

Nothing is pickled, ever. A header is checked in full before the first array is read, and what a refusal
quotes of it is an excerpt, so that a hostile message costs neither memory nor a screen full of text.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import re
import reprlib
import socket
from collections.abc import Mapping
from typing import Any, NoReturn, Protocol, TypeAlias

import numpy as np

from openeta_ros.vector_policy.blocks import Array
from openeta_ros.vector_policy.errors import WireError
from openeta_ros.vector_policy.frames import Frame, FrameSocket

PROTOCOL_VERSION = 1
CLIENT_OPS = ('hello', 'reset', 'prompt', 'act', 'close')
REPLY_OPS = ('ok', 'action', 'error')
#: Every dtype a message carries, as the header spells it.
DTYPES = frozenset(
    ['|b1', '|i1', '|u1', '<i2', '<i4', '<i8', '<u2', '<u4', '<u8', '<f2', '<f4', '<f8'],
)
MAX_HEADER_BYTES = 4 << 20
MAX_MESSAGE_BYTES = 16 << 30
#: Empty arrays cost no bytes, so their number needs a limit of its own.
MAX_ARRAYS = 1024
#: What every NumPy can build (NumPy 1 stops here).
MAX_NDIM = 32
MIN_AUTHKEY_BYTES = 16

_ENTRY_KEYS = ['dtype', 'name', 'shape']
_HEADER_KEYS = ['arrays', 'fields', 'op', 'protocol']

#: Larger headers are not remembered, nor those with fields, which seldom come twice.
_KNOWN_BYTES = 4096
_NO_FIELDS = re.compile(rb'"fields": ?\{\}')
#: Name, dtype and shape of each array sent.
_Described: TypeAlias = 'tuple[tuple[str, str, tuple[int, ...]], ...]'
#: op, fields, and dtype, shape and size in bytes of each array announced.
_Header: TypeAlias = 'tuple[str, dict[str, Any], dict[str, tuple[np.dtype[Any], list[int], int]]]'


def _refuse_constant(token: str) -> None:
    raise ValueError(f'{token} is not JSON')


_encoder = json.JSONEncoder(allow_nan=False, separators=(',', ':'))
_decoder = json.JSONDecoder(parse_constant=_refuse_constant)

_repr = reprlib.Repr()
_repr.maxlevel = 3
_repr.maxstring = _repr.maxother = _repr.maxlong = 60
_repr.maxlist = _repr.maxtuple = _repr.maxdict = _repr.maxset = 8
_excerpt = _repr.repr


class Connection(Protocol):
    """What a message travels on: a FrameSocket, or any multiprocessing.connection.Connection."""

    def send_bytes(self, frame: Any, /) -> None: ...

    def recv_bytes(self, maxlength: int, /) -> bytes: ...


def parse_address(address: str) -> tuple[str, Any]:
    """Return ('AF_INET', (host, port)) for 'host:port', ('AF_UNIX', path) for any other text.

    Raises:
        WireError: no text, or a port outside 1..65535.
    """
    if not isinstance(address, str) or not address:
        raise WireError(f'address {address!r} is neither a Unix socket path nor host:port')
    host, _, port = address.rpartition(':')
    if not (host and port.isdecimal()) or '/' in address:
        return 'AF_UNIX', address
    with contextlib.suppress(ValueError):  # more digits than int() converts
        if 1 <= int(port) <= 65535:
            return 'AF_INET', (host, int(port))
    raise WireError(f'address {address!r}: port out of range')


def socket_address(family: str, target: Any) -> tuple[socket.AddressFamily, Any]:
    """Return what socket.socket() and then bind() or connect() take for an address that was parsed.

    An IPv6 address stands in brackets: '[::1]:5555', '[fe80::1%eth0]:5555'.

    Raises:
        OSError: what is in the brackets is no IPv6 address and no name of one.
    """
    if family == 'AF_INET' and target[0].startswith('[') and target[0].endswith(']'):
        found = socket.getaddrinfo(target[0][1:-1], target[1], socket.AF_INET6, socket.SOCK_STREAM)
        return socket.AF_INET6, found[0][4]
    return getattr(socket, family), target


def encode(
    op: str,
    fields: Mapping[str, Any] | None = None,
    arrays: Mapping[str, Any] | None = None,
) -> list[Frame]:
    """Return the frames of a message: the header, then the arrays in the order of their names.

    Args:
        op: one of CLIENT_OPS or REPLY_OPS.
        fields: plain JSON, with text keys.
        arrays: ndarrays, or whatever np.asarray makes one of.

    Returns:
        Frames whose len() is their size in bytes. They share the memory of contiguous little-endian arrays.

    Raises:
        WireError: something the wire cannot carry.
    """
    fields = {} if fields is None else fields
    arrays = {} if arrays is None else arrays
    if op not in CLIENT_OPS and op not in REPLY_OPS:
        raise WireError(f'unknown op {op!r}')
    if not isinstance(fields, Mapping) or not all(isinstance(key, str) for key in fields):
        raise WireError(f'{op}: fields must be a mapping with string keys')
    if not isinstance(arrays, Mapping):
        raise WireError(f'{op}: arrays must be a mapping of names to arrays')
    if len(arrays) > MAX_ARRAYS:
        raise WireError(f'{op}: {len(arrays)} arrays; a message holds at most {MAX_ARRAYS}')
    described, bodies = [], []
    for name in sorted(arrays, key=lambda name: (not isinstance(name, str), str(name))):
        if not isinstance(name, str) or not name:
            raise WireError(f'{op}: array name {name!r} is not a non-empty string')
        array = _sendable(name, arrays[name])
        described.append((name, array.dtype.str, array.shape))
        bodies.append(array.data.cast('B') if array.size else b'')
    header = _header(op, fields, tuple(described)) if fields else _bare_header(op, tuple(described))
    return [header, *bodies]


def send(
    conn: Connection,
    op: str,
    fields: Mapping[str, Any] | None = None,
    arrays: Mapping[str, Any] | None = None,
) -> None:
    """Encode and send one message. A WireError is raised before anything is sent."""
    frames = encode(op, fields, arrays)
    if isinstance(conn, FrameSocket):
        conn.send_frames(frames)
    else:
        for frame in frames:
            conn.send_bytes(frame)


def recv(
    conn: Connection,
    *,
    max_bytes: int = MAX_MESSAGE_BYTES,
) -> tuple[str, dict[str, Any], dict[str, Array]]:
    """Receive one message of at most max_bytes of arrays.

    Returns:
        op (any text: which ops are served is the caller's matter), fields, and read-only arrays.

    Raises:
        WireError: the message breaks the format; what follows on the connection no longer lines up.
        EOFError, OSError: the connection ended or broke.
    """
    try:
        header = conn.recv_bytes(MAX_HEADER_BYTES)
    except OSError as exc:
        _raise_for(conn, exc, f'header: frame longer than {MAX_HEADER_BYTES} bytes')
    op, fields, described = _parse(header, max_bytes)
    arrays: dict[str, Array] = {}
    for name, what in described.items():
        arrays[name] = _recv_array(conn, name, *what, more=len(arrays) + 1 < len(described))
    return op, fields, arrays


def _header(op: str, fields: Mapping[str, Any], described: _Described) -> bytes:
    arrays = [{'name': name, 'dtype': dtype, 'shape': shape} for name, dtype, shape in described]
    try:
        text = _encoder.encode(
            {'protocol': PROTOCOL_VERSION, 'op': op, 'fields': dict(fields), 'arrays': arrays},
        )
    except (TypeError, ValueError, RecursionError) as exc:
        raise WireError(f'{op}: fields are not plain JSON: {exc}') from exc
    if len(text) > MAX_HEADER_BYTES:
        raise WireError(f'{op}: header of {len(text)} bytes exceeds {MAX_HEADER_BYTES}')
    return text.encode('ascii')


@functools.lru_cache(maxsize=16)
def _bare_header(op: str, described: _Described) -> bytes:
    """Return a header without fields, made once: a control loop sends the same ones over and over."""
    return _header(op, {}, described)


def _sendable(name: str, value: Any) -> Array:
    """Return value as a C-ordered little-endian array of a dtype and a rank that a message carries."""
    if (
        type(value) is np.ndarray
        and value.flags.c_contiguous
        and value.dtype.str in DTYPES
        and value.ndim <= MAX_NDIM
    ):
        return value
    try:
        array = np.asarray(value)
    except Exception as exc:  # ragged lists, tensors on a GPU or with a gradient: each has its own class
        raise WireError(f'array {name!r} cannot be sent: {type(exc).__name__}: {exc}') from exc
    dtype = array.dtype.newbyteorder('<') if array.dtype.kind in 'biuf' else array.dtype
    if dtype.str not in DTYPES:
        raise WireError(f'array {name!r}: dtype {array.dtype} cannot be sent')
    if array.ndim > MAX_NDIM:
        raise WireError(f'array {name!r}: {array.ndim} dimensions cannot be sent; at most {MAX_NDIM}')
    return np.asarray(array, dtype=dtype, order='C')


def _parse(frame: bytes, max_bytes: int) -> _Header:
    """Parse a header, or recognise it: a control loop receives the same ones over and over."""
    if len(frame) <= _KNOWN_BYTES and _NO_FIELDS.search(frame):
        op, fields, described = _parse_known(frame, max_bytes)
        if not fields:  # which are the receiver's to change
            return op, {}, described
    return _parse_header(frame, max_bytes)


def _parse_header(frame: bytes, max_bytes: int) -> _Header:
    """Return op, fields, and name -> (dtype, shape, bytes) of every array announced, in order."""
    try:
        text = frame.decode('utf-8')
        # A decoder made once does not know what json.loads says of a byte order mark.
        header = json.loads(text) if text.startswith('\ufeff') else _decoder.decode(text)
    except (ValueError, RecursionError) as exc:
        raise WireError(f'malformed header: {type(exc).__name__}: {exc}') from exc
    if not isinstance(header, dict):
        raise WireError('header is not a JSON object')
    protocol = header.get('protocol')
    if type(protocol) is not int or protocol != PROTOCOL_VERSION:  # bool is an int to isinstance
        raise WireError(f'protocol {_excerpt(protocol)}; this end speaks {PROTOCOL_VERSION}')
    if sorted(header) != _HEADER_KEYS:
        raise WireError(f'header keys {_excerpt(sorted(header))}; expected {_HEADER_KEYS}')
    op, fields, entries = header['op'], header['fields'], header['arrays']
    if not isinstance(op, str) or not op:
        raise WireError('header op is not a non-empty string')
    if not isinstance(fields, dict):
        raise WireError('header fields is not an object')
    if not isinstance(entries, list):
        raise WireError('header arrays is not a list')
    if len(entries) > MAX_ARRAYS:
        raise WireError(f'header describes {len(entries)} arrays; at most {MAX_ARRAYS}')
    described: dict[str, tuple[np.dtype[Any], list[int], int]] = {}
    total = 0
    for entry in entries:
        if not isinstance(entry, dict) or sorted(entry) != _ENTRY_KEYS:
            raise WireError(f'array description {_excerpt(entry)} is not {{name, dtype, shape}}')
        name, dtype, shape = entry['name'], entry['dtype'], entry['shape']
        if not isinstance(name, str) or not name:
            raise WireError(f'array name {_excerpt(name)} is not a non-empty string')
        if name in described:
            raise WireError(f'array {_excerpt(name)} is described twice')
        parsed = _dtype(name, dtype)
        nbytes = _nbytes(name, parsed, shape, max_bytes)
        described[name] = parsed, shape, nbytes
        total += nbytes
        if total > max_bytes:
            raise WireError(f'message arrays exceed {max_bytes} bytes at {_excerpt(name)}')
    return op, fields, described


_parse_known = functools.lru_cache(maxsize=16)(_parse_header)


def _dtype(name: str, dtype: Any) -> np.dtype[Any]:
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise WireError(f'array {_excerpt(name)}: dtype {_excerpt(dtype)} is not one this format carries')
    return np.dtype(dtype)


def _nbytes(name: str, dtype: np.dtype[Any], shape: Any, max_bytes: int) -> int:
    """Return the size of an array announced, once NumPy is sure to be able to build it."""
    if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
        raise WireError(f'array {_excerpt(name)}: shape {_excerpt(shape)} is not a shape')
    if len(shape) > MAX_NDIM:
        raise WireError(f'array {_excerpt(name)}: {len(shape)} dimensions; at most {MAX_NDIM}')
    # Zeros are left out: NumPy refuses an empty array whose other sizes overflow.
    if math.prod(size for size in shape if size) * dtype.itemsize > max_bytes:
        raise WireError(f'array {_excerpt(name)} exceeds {max_bytes} bytes')
    return math.prod(shape) * dtype.itemsize


def _recv_array(
    conn: Connection,
    name: str,
    dtype: np.dtype[Any],
    shape: list[int],
    nbytes: int,
    *,
    more: bool,
) -> Array:
    limit = max(nbytes, 1)  # with 0 a connection of the standard library would refuse the empty frame, too
    try:
        frame = conn.recv_buffer(limit, more) if isinstance(conn, FrameSocket) else conn.recv_bytes(limit)
    except OSError as exc:
        _raise_for(conn, exc, f'array {_excerpt(name)}: frame longer than {nbytes} bytes')
    if len(frame) != nbytes:
        raise WireError(f'array {_excerpt(name)}: {len(frame)} bytes for a {shape} {dtype.str}')
    array: Array = np.ndarray(shape, dtype, frame)
    array.flags.writeable = False
    return array


def _raise_for(conn: Connection, exc: OSError, refusal: str) -> NoReturn:
    """Tell a frame over the limit, after which a connection is no longer readable, from one that broke."""
    if getattr(conn, 'readable', True):
        raise exc
    raise WireError(refusal) from exc
