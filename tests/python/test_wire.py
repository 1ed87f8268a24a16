"""Messages: what one side packs the other reads, however the stream is cut."""

import random

import pytest
from target_side import load

wire = load("wire")
kernel_pack = load("kernel").pack
kernel_unpack = load("kernel").unpack

MESSAGES = [
    (b"Z", []),
    (b"C", [b"1", b"", b"\0" * 70_000, "é→😀".encode()]),
    (b"O", [b"7", b"1", bytes(range(256))]),
    (b"K", [b"x" * (1 << 20)]),
]


@pytest.mark.parametrize("seed", range(5))
def test_a_stream_cut_anywhere_gives_the_same_messages(seed):
    stream = b"".join(wire.pack(kind, *fields) for kind, fields in MESSAGES)
    cuts = sorted(random.Random(seed).sample(range(len(stream)), 40))
    reader = wire.Reader()
    got = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)]):
        got += list(reader.feed(stream[start:end]))
    assert got == MESSAGES


def test_the_kernel_packs_and_reads_the_same_form():
    for kind, fields in MESSAGES:
        packed = wire.pack(kind, *fields)
        assert kernel_pack(kind, *fields) == packed
        assert kernel_unpack(packed[4:]) == (kind, fields)


@pytest.mark.parametrize("head", [b"\0\0\0\0", b"\xff\xff\xff\xff"])
def test_an_impossible_length_is_refused(head):
    with pytest.raises(ValueError):
        list(wire.Reader().feed(head + b"x" * 10))


def test_variables_keep_everything_but_what_is_no_variable():
    field = b"A=1\0B=\0C=x=y\0nothing\0=odd\0D=\n\xff"
    assert wire.unpack_variables(field) == {b"A": b"1", b"B": b"", b"C": b"x=y", b"D": b"\n\xff"}
