"""Pictures that a request brings along: nothing it says is a file of this machine."""

from __future__ import annotations

import base64
import binascii
import io
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from regard.data.files import in_a_line
from regard.errors import UserError, shown
from regard.tasks.captioning.picture import Array, Picture, decoded

MAGIC = b"\x93NUMPY"
MOST = 16_000_000  # pixels: a small body can claim to be a large image
FORM = '{"image": "data:image/png;base64,…"}, with a .npy file as data:application/octet-stream'


def picture(given: Any) -> Array:
    """The pixels or features that a JSON object holds as a data address."""
    address = given.get("image") if isinstance(given, Mapping) else None
    if not isinstance(address, str) or not address.startswith("data:"):
        raise UserError(f"a picture is {FORM}, not {shown(given)}")
    head, _, body = address.partition(",")
    if not head.endswith(";base64"):
        raise UserError(f"a picture is {FORM}, not one that begins with {shown(head)}")
    try:
        content = base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError) as error:
        raise UserError(f"the picture is no base64: {in_a_line(error)}") from error
    if content.startswith(MAGIC):
        return array(content)
    found: Array = decoded(io.BytesIO(content), Picture(Path("the picture")), True, MOST)
    return found


def array(content: bytes) -> Array:
    """NumPy's array in a file's bytes, if they are as many as it says."""
    file = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(file)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, by_columns, kind = header(file)
    except Exception as error:  # NumPy's reader of headers lets through whatever a damaged one makes it stumble on
        raise UserError(f"the picture cannot be read as an array of numbers: {in_a_line(error)}") from error
    if kind.hasobject or math.prod(shape) * kind.itemsize != len(content) - file.tell():
        raise UserError(f"the picture is not the array of {shape} {kind} that it says it is")
    return np.frombuffer(content, kind, offset=file.tell()).reshape(shape, order="F" if by_columns else "C")
