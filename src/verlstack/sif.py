"""The head of a SIF, Apptainer's one-file format: what stands before the squashfs in it, a function of the image."""

from __future__ import annotations

import struct
import uuid

# Layout of version 01 (apptainer/sif v2, pkg/sif/sif.go and descriptor.go; little-endian, no padding between fields).
_GLOBAL = struct.Struct("<32s10s3s3s16s8q")
_DESCRIPTOR = struct.Struct("<iB3I7q128s384s")
_LAUNCH = b"#!/usr/bin/env run-singularity\n"  # so that the file can be executed where Apptainer is installed
_MAGIC, _VERSION, _AMD64 = b"SIF_MAGIC", b"01", b"02"
_TABLE = 4096  # where the descriptors begin
_PLACES = 48  # descriptors that fit; Apptainer adds its signatures there
_PARTITION, _SQUASHFS, _SYSTEM = 0x4004, 1, 2  # type of data, of filesystem, of partition: the one that is started
_GROUP = 0xF0000001  # the first group, marked as one
_DATA = _TABLE + _PLACES * _DESCRIPTOR.size
START = 32768  # of the squashfs: the next multiple of 4096, by which it can be mounted without a copy


def head(size: int, image: str, epoch: int) -> bytes:
    """The first START bytes of a SIF.

    Args:
        size: bytes of the squashfs that follows.
        image: `sha256:…`; the file's UUID follows from it.
        epoch: seconds; the only date in it.
    """
    stored = START - _DATA + size
    known = uuid.uuid5(uuid.NAMESPACE_URL, image).bytes
    numbers = (epoch, epoch, _PLACES - 1, _PLACES, _TABLE, _PLACES * _DESCRIPTOR.size, _DATA, stored)
    extra = struct.pack("<2i3s", _SQUASHFS, _SYSTEM, _AMD64)
    # type, whether it is used, its number, group, none that it belongs to, place, size, dates, owner, name
    one = _DESCRIPTOR.pack(_PARTITION, 1, 1, _GROUP, 0, START, size, stored, epoch, epoch, 0, 0, b"image", extra)
    text = _GLOBAL.pack(_LAUNCH, _MAGIC, _VERSION, _AMD64, known, *numbers)
    return (text.ljust(_TABLE, b"\0") + one).ljust(START, b"\0")
