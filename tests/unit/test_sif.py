"""The head of a SIF, read field by field as its specification has them."""

import uuid

from verlstack import sif

IMAGE = f"sha256:{'7' * 64}"
SIZE, EPOCH = 3 * 4096, 1_741_046_400


def number(data, at, size=8):
    return int.from_bytes(data[at : at + size], "little")


def test_every_field_of_the_head():
    data = sif.head(SIZE, IMAGE, EPOCH)
    assert len(data) == sif.START == 32768
    assert data[:32] == b"#!/usr/bin/env run-singularity\n\0"
    assert data[32:48] == b"SIF_MAGIC\x0001\x0002\0"
    assert uuid.UUID(bytes=data[48:64]).version == 5
    descriptors = 4096 + 48 * 585
    assert [number(data, 64 + 8 * n) for n in range(8)] == [
        *(EPOCH, EPOCH, 47, 48, 4096, 48 * 585, descriptors),
        sif.START - descriptors + SIZE,
    ]
    one = data[4096 : 4096 + 585]
    assert (number(one, 0, 4), one[4], number(one, 5, 4), number(one, 9, 4), number(one, 13, 4)) == (
        *(0x4004, 1, 1),
        *(0xF0000001, 0),
    )
    assert [number(one, 17 + 8 * n) for n in range(5)] == [sif.START, SIZE, number(data, 120), EPOCH, EPOCH]
    assert one[73:].startswith(b"image\0")
    assert one[201:212] == b"\1\0\0\0\2\0\0\x0002\0"
    assert not any(data[4096 + 585 :])
    assert sif.head(SIZE, f"sha256:{'8' * 64}", EPOCH)[48:64] != data[48:64]
