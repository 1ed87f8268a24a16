"""Changes of several files, all or none, as the worker makes them. The suite of tests of `patch` runs on it as well."""

import os
import time

import pytest
from target_side import load


@pytest.fixture
def changes():
    return load("changes")


def fetched(changes, path):
    return changes.fetch(os.fsencode(path))


def edit(changes, path, new, version=None):
    _, place, _, _, content, found = fetched(changes, path)
    return [b"edit", place, version or found, b"1", b"0 %d" % len(content), new]


def create(path, like=b""):
    return [b"create", os.fsencode(path), like, b"1", b"new"]


def remove(changes, path):
    return [b"remove", os.fsencode(path), fetched(changes, path)[5], b"0"]


def files(folder, count):
    paths = [folder / str(number) for number in range(count)]
    for path in paths:
        path.write_text("old " + path.name)
    return paths


def test_what_there_is(changes, tmp_path):
    (path,) = files(tmp_path, 1)
    (tmp_path / "link").symlink_to("0")
    kind, place, behind, link, content, version = fetched(changes, tmp_path / "link")
    assert (kind, place, link, content) == (b"file", os.fsencode(tmp_path / "link"), b"0", b"old 0")
    assert (behind, version) == (fetched(changes, path)[2], fetched(changes, path)[5])
    kind, _, behind, link, sentence, _ = fetched(changes, tmp_path / "none")
    assert (kind, behind, link) == (b"missing", os.fsencode(tmp_path / "none"), b"")
    assert b"does not exist" in sentence


@pytest.mark.parametrize("meanwhile", [None, "other", "gone", "file"])
def test_a_link_goes_unless_it_has_changed_meanwhile(changes, tmp_path, meanwhile):
    link = tmp_path / "link"
    link.symlink_to("no/where")
    kind, place, _, to, _, _ = fetched(changes, link)
    assert (kind, to) == (b"missing", b"no/where")
    fields = [b"unlink", place, to, b"0"]
    if meanwhile:
        link.unlink()
    if meanwhile == "other":
        link.symlink_to("elsewhere")
    elif meanwhile == "file":
        link.write_text("x")
    before = os.path.lexists(link)
    assert changes.change(fields)[0] == (b"conflict" if meanwhile else b"done")
    assert os.path.lexists(link) == (before and meanwhile is not None)


def test_a_link_that_went_comes_back_when_another_change_fails(changes, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(".")
    kind, place, _, to, _, _ = fetched(changes, link)
    assert (kind, to) == (b"link", b".")
    other = tmp_path / "other"
    other.symlink_to("..")
    broken = [b"unlink", os.fsencode(other), b"..", b"0"]
    real = changes.os.unlink
    changes.os.unlink = lambda path: (_ for _ in ()).throw(PermissionError(1, "no")) if b"other" in path else real(path)
    try:
        with pytest.raises(load("workspace").WorkspaceError):
            changes.change([b"unlink", place, to, b"0", *broken])
    finally:
        changes.os.unlink = real
    assert os.readlink(link) == "." and os.readlink(other) == ".."


@pytest.mark.parametrize(
    "meanwhile",
    [
        lambda path: path.write_text("xxxxx"),
        lambda path: path.write_text("longer than before"),
        lambda path: path.unlink(),
        lambda path: (path.unlink(), path.mkdir()),
    ],
)
@pytest.mark.parametrize("removes", [False, True])
def test_what_has_changed_meanwhile_is_a_conflict_and_stays(changes, tmp_path, meanwhile, removes):
    one, other = files(tmp_path, 2)
    second = remove(changes, other) if removes else edit(changes, other, b"new")
    fields = edit(changes, one, b"new") + second
    meanwhile(other)
    before = other.read_bytes() if other.is_file() else None
    kind, sentence = changes.change(fields)
    assert kind == b"conflict" and b"meanwhile" in sentence
    assert one.read_text() == "old 0"
    assert before is None or other.read_bytes() == before
    assert len(os.listdir(tmp_path)) <= 2


def test_when_one_fails_at_the_end_the_others_are_put_back(changes, tmp_path):
    paths = files(tmp_path, 3)
    paths[0].chmod(0o640)
    twice = tmp_path / "zz" / "twice"
    fields = edit(changes, paths[0], b"new") + remove(changes, paths[1]) + create(tmp_path / "made" / "there")
    fields += create(twice) + create(twice) + edit(changes, paths[2], b"new")
    assert changes.change(fields)[0] == b"conflict"
    assert sorted(os.listdir(tmp_path)) == ["0", "1", "2"]
    assert [path.read_text() for path in paths] == ["old 0", "old 1", "old 2"]
    assert paths[0].stat().st_mode & 0o7777 == 0o640


def test_where_no_links_can_be_made(changes, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(1, "no links here")

    monkeypatch.setattr(changes.os, "link", refuse)
    paths = files(tmp_path, 2)
    twice = edit(changes, paths[0], b"1") + remove(changes, paths[1]) + create(tmp_path / "made")
    assert changes.change(twice) == [b"done"]
    assert sorted(os.listdir(tmp_path)) == ["0", "made"] and paths[0].read_text() == "1"
    broken = edit(changes, paths[0], b"2") + create(tmp_path / "z") + create(tmp_path / "z")
    assert changes.change(broken)[0] == b"conflict"
    assert sorted(os.listdir(tmp_path)) == ["0", "made"] and paths[0].read_text() == "1"


def test_where_no_file_can_be_put_beside(changes, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "no new file here")

    paths = files(tmp_path, 2)
    both = edit(changes, paths[0], b"new") + edit(changes, paths[1], b"new")
    monkeypatch.setattr(changes.aside, "create", refuse)
    monkeypatch.setattr(changes.os, "link", refuse)
    assert changes.change(both) == [b"done"]
    assert [path.read_text() for path in paths] == ["new", "new"]
    broken = edit(changes, paths[0], b"x") + edit(changes, paths[1], b"y", b"another version")
    assert changes.change(broken)[0] == b"conflict"
    assert [path.read_text() for path in paths] == ["new", "new"]


def test_a_file_with_other_names_is_not_written_in_place(changes, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "no new file here")

    (path,) = files(tmp_path, 1)
    os.link(path, tmp_path / "other")
    monkeypatch.setattr(changes.aside, "create", refuse)
    error = load("workspace").WorkspaceError
    with pytest.raises(error, match="2 names"):
        changes.change(edit(changes, path, b"new"))
    with pytest.raises(error, match="2 names"):
        load("whole_file").write(os.fsencode(path), b"new", [])
    assert path.read_text() == "old 0"


def test_what_was_left_is_removed_and_what_is_held_is_not(changes, tmp_path):
    (path,) = files(tmp_path, 1)
    held, fd = changes.aside.create(os.fsencode(tmp_path), 0o600)
    for name in (".talaria-patch-left", ".talaria-patch-young", "other"):
        (tmp_path / name).write_text("")
    old = time.time() - 600
    for name in (held, tmp_path / ".talaria-patch-left", tmp_path / "other"):
        os.utime(name, (old, old))
    assert changes.change(edit(changes, path, b"new")) == [b"done"]
    assert sorted(os.listdir(tmp_path)) == sorted(
        ["0", "other", ".talaria-patch-young", os.path.basename(os.fsdecode(held))]
    )
    os.close(fd)


def test_many_splices(changes, tmp_path):
    (path,) = files(tmp_path, 1)
    path.write_bytes(b"0123456789" * 100)
    _, place, _, _, _, version = fetched(changes, path)
    fields = [b"edit", place, version, b"100"]
    for number in range(100):
        fields += [b"%d %d" % (10 * number, 10 * number + 9), b"x"]
    assert changes.change(fields) == [b"done"]
    assert path.read_bytes() == b"x9" * 100


def test_who_reads_meanwhile_reads_on_in_what_was(changes, tmp_path):
    paths = files(tmp_path, 2)
    with paths[0].open() as one, paths[1].open() as other:
        fields = edit(changes, paths[0], b"new") + edit(changes, paths[1], b"new")
        assert changes.change(fields) == [b"done"]
        assert (one.read(), other.read()) == ("old 0", "old 1")
    assert changes.change(edit(changes, paths[0], b"newer")) == [b"done"]
    assert [path.read_text() for path in paths] == ["newer", "new"]
