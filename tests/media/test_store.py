"""The media store: refs, files that may be admitted, and the deletion of files."""

from __future__ import annotations

import contextlib
import gc
import os
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from media.pictures import PDF, SVG, png
from patchbay.errors import ConfigurationError
from patchbay.media import (
    FORGET,
    MediaError,
    MediaGoneError,
    MediaMeta,
    MediaRefusedError,
    MediaStore,
    UnknownRefError,
)
from patchbay.media import store as store_module

KEEP = MediaMeta(cleanup=FORGET)
BOUND = 30.0


class Clock:
    """A manual clock."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MediaStore]:
    with MediaStore(tmp_path / "store") as made:
        yield made


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / "photo.png"
    path.write_bytes(png())
    return path


# Folders of killed processes

HOLDER = """
import sys
from patchbay.media import MediaStore
store = MediaStore()
print(store.resolve(store.put(b"secret")), store.media_dir, flush=True)
sys.stdin.read()
"""


def test_temporary_folder_of_a_killed_process_is_swept_at_the_next_start(tmp_path):
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    foreign = tmp_path / "patchbay_media_of_another_program"
    foreign.mkdir()
    (tmp_path / "patchbay_media_link").symlink_to(foreign)

    def start() -> tuple[subprocess.Popen[str], list[Path]]:
        command = [sys.executable, "-c", HOLDER]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        assert process.stdout is not None
        return process, [Path(each) for each in process.stdout.readline().split()]

    with contextlib.ExitStack() as stack:
        (killed, of_killed), (alive, of_alive) = start(), start()
        stack.callback(alive.communicate, timeout=BOUND)
        killed.kill()
        killed.communicate(timeout=BOUND)
        assert all(each.exists() for each in (*of_killed, *of_alive))
        subprocess.run([sys.executable, "-c", HOLDER], input="", text=True, env=environment, check=True, timeout=BOUND)
        assert ([False] * 2, [True] * 2) == ([each.exists() for each in of_killed], [each.exists() for each in of_alive])
        homes = {"patchbay_media_of_another_program", "patchbay_media_link", of_alive[1].parent.name}
        assert homes == {each.name for each in tmp_path.iterdir()}


def test_deleted_store_leaves_no_descriptor(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = len([*Path("/proc/self/fd").iterdir()])
    for _ in range(5):
        with MediaStore() as store:
            store.put(b"x")
    assert (before, []) == (len([*Path("/proc/self/fd").iterdir()]), list(tmp_path.iterdir()))


# A ref stands for a file


def test_a_stored_file_stays_where_it_is_and_is_read_by_its_ref(store, photo):
    meta = MediaMeta("holiday.png", source="camera")
    ref = store.store(photo, meta, "turn 1")
    assert ref.startswith("media://")
    assert len("media://") + 36 == len(ref)
    assert (photo, meta) == store.resolve_with_meta(ref)
    assert png() == store.read(ref)
    media = store.lookup(ref)
    assert ("image", "image/png", "holiday.png", len(png())) == (media.kind, media.media_type, media.filename, media.size)


def test_bytes_are_stored_in_a_private_file(store):
    ref = store.put(b"secret", MediaMeta("a.txt"))
    path = store.resolve(ref)
    assert 0o600 == stat.S_IMODE(path.stat().st_mode)
    assert 0o700 == stat.S_IMODE(path.parent.stat().st_mode)
    assert b"secret" == store.read(ref)


@pytest.mark.parametrize(
    "ref",
    [
        "",
        "media://",
        "media://abc123",
        "media:///etc/passwd",
        "media://../../etc/passwd",
        pytest.param("media://" * 10**6, id="long"),
        None,
        5,
    ],
)
def test_invalid_ref_is_unknown_and_truncated_in_the_error(store, ref):
    with pytest.raises(UnknownRefError) as raised:
        store.open(ref)
    assert len(str(raised.value)) < 300


def test_a_file_is_read_as_a_data_url_and_within_a_limit(store):
    ref = store.put(b"hi", MediaMeta(content_type="text/plain"))
    assert "data:text/plain;base64,aGk=" == store.data_url(ref)
    with pytest.raises(MediaRefusedError, match="2 bytes"):
        store.read(ref, limit=1)
    assert b"hi" == store.read(ref, limit=2)


# What may be stored


def test_a_folder_a_pipe_and_a_device_are_refused_without_waiting(store, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (tmp_path, pipe, "/dev/zero", "/dev/tty0", tmp_path / "nothing.png"):
        with pytest.raises(MediaError):
            store.store(path)
    assert 0 == store.count


def replace(photo: Path, tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"another program's")
    (tmp_path / "other").replace(photo)


def write_anew(photo: Path, _tmp_path: Path) -> None:
    photo.unlink()  # the new file may have the same number
    photo.write_bytes(b"\x89PNG and unexamined bytes")


def write_to(photo: Path, _tmp_path: Path) -> None:
    photo.write_bytes(b"\x89PNG and unexamined bytes")


def link(photo: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    photo.unlink()
    photo.symlink_to(tmp_path / "secret")


@pytest.mark.parametrize("change", [replace, write_anew, write_to, link])
def test_a_file_that_was_replaced_or_changed_is_neither_read_nor_deleted(store, photo, tmp_path, change):
    ref = store.store(photo)
    change(photo, tmp_path)
    changed = photo.read_bytes()
    with pytest.raises(MediaError):
        store.read(ref)
    store.release(ref)
    assert (changed, change is link) == (photo.read_bytes(), photo.is_symlink())
    if change is not link:
        again = store.store(photo)
        assert changed == store.read(again)
        store.release(again)
        assert not photo.exists()


def test_deleted_file_is_gone_and_an_open_one_stays_readable(store, photo):
    ref = store.store(photo)
    with store.open(ref) as file:
        photo.unlink()
        assert png() == file.read()
    with pytest.raises(MediaGoneError):
        store.open(ref)
    store.release(ref)


def test_file_truncated_during_reading_is_an_error(store, tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"x" * 1000)
    with store.open(store.store(path)) as file:
        os.truncate(path, 10)
        with pytest.raises(MediaGoneError, match="cut"):
            file.read()


# What tools and hooks may name


def test_path_in_the_media_dir_becomes_the_stores(store):
    path = store.media_dir / "chart.png"
    path.write_bytes(png())
    ref = store.admit(str(path))
    assert png() == store.read(ref)
    store.release(ref)
    assert not path.exists()


def test_path_in_an_allowed_folder_is_stored_and_stays(tmp_path, photo):
    with MediaStore(folders=[tmp_path]) as store:
        refs = [store.admit(str(photo)), store.admit(photo.as_uri()), store.admit(f"file://localhost{photo}")]
        assert [png()] * 3 == [store.read(ref) for ref in refs]
    assert photo.exists()


def test_a_path_with_odd_letters_is_read_from_a_file_url(store):
    path = store.media_dir / "größe 100%.png"
    path.write_bytes(png())
    assert path == store.resolve(store.admit(path.as_uri()))


@pytest.mark.parametrize(
    "entry",
    [
        "/etc/passwd",
        "file:///etc/passwd",
        "file://elsewhere/etc/passwd",
        "file://[",
        "{dir}/../secret",
        "{dir}/a/../../secret",
        "file://{dir}/%2e%2e/secret",
        "{dir}/link",
        "{dir}/linked/secret",
        "{dir}",
        "{dir}/",
        "{dir}/folder",
        "{dir}/pipe",
        "{dir}/nothing",
        "{dir}/chart.png/x",
        "{dir}/" + "x" * 5000,
        "{dir}\0",
        "{dir}/loop",
        "file://{dir}/chart.png?x",
        "chart.png",
        "./chart.png",
        "~/chart.png",
        "http://127.0.0.1/a.png",
        "https://example.com/a.png",
        "media://abc123",
        "data:image/png;base64,!!!",
        "data:image/png;base64,aGk",
        "data:",
        "data:image/png",
        "",
        "\ud800",
    ],
)
def test_path_outside_the_allowed_folders_is_refused_unopened(tmp_path, entry):
    (tmp_path / "secret").write_text("secret")
    with MediaStore(tmp_path / "store") as store:
        folder = store.media_dir
        (folder / "chart.png").write_bytes(png())
        (folder / "folder").mkdir()
        os.mkfifo(folder / "pipe")
        (folder / "link").symlink_to(tmp_path / "secret")
        (folder / "linked").symlink_to(tmp_path)
        (folder / "loop").symlink_to(folder / "loop")
        if entry == "data:image/png;base64,aGk":  # without its padding it can be read all the same
            assert b"hi" == store.read(store.admit(entry))
            return
        with pytest.raises(MediaError) as raised:
            store.admit(entry.replace("{dir}", str(folder)))
        assert str(raised.value)
        assert len(str(raised.value)) < 600
        assert 0 == store.count


def test_a_link_that_stays_in_the_folder_is_followed(store):
    folder = store.media_dir
    (folder / "chart.png").write_bytes(png())
    (folder / "latest").symlink_to(folder / "chart.png")
    assert folder / "chart.png" == store.resolve(store.admit(str(folder / "latest")))


@pytest.mark.parametrize("turned", ["a", "a/b", "a/b/secret"])
def test_path_swapped_before_opening_is_refused(store, tmp_path, monkeypatch, turned):
    for folder, text in ((store.media_dir / "a/b", "harmless"), (tmp_path / "a/b", "secret")):
        folder.mkdir(parents=True)
        (folder / "secret").write_text(text)
    seen, step = os.path.realpath, store.media_dir / turned

    def and_then_turned(path, **options):
        real = seen(path, **options)
        step.rename(tmp_path / "moved")
        step.symlink_to(tmp_path / turned)
        monkeypatch.undo()
        return real

    monkeypatch.setattr(os.path, "realpath", and_then_turned)
    with pytest.raises(MediaError):
        store.admit(str(store.media_dir / "a/b/secret"))
    assert step.is_symlink()
    assert 0 == store.count


def test_deletion_does_not_follow_a_swapped_path(store, tmp_path):
    folder = store.media_dir / "a"
    folder.mkdir()
    (folder / "x").write_text("mine")
    ref = store.admit(str(folder / "x"))
    elsewhere = tmp_path / "elsewhere"
    folder.rename(elsewhere)
    folder.symlink_to(elsewhere)
    store.release(ref)
    assert (elsewhere / "x").exists()


def test_data_url_is_stored_with_its_type(store):
    media = store.lookup(store.admit("data:application/pdf;base64,JVBERi0xLjQK"))
    assert ("application/pdf", "file", True) == (media.media_type, media.kind, media.is_own)
    plain = store.admit("data:,hello%20there")
    assert (b"hello there", "text/plain") == (store.read(plain), store.lookup(plain).media_type)


# Which files go


def test_the_files_of_a_session_go_with_it(store):
    store.put(b"1", MediaMeta(session="s1"), "x")
    store.put(b"2", MediaMeta(session="s2"), "x")
    assert 1 == store.release_session("s1")
    assert 1 == store.count


def test_only_unreferenced_files_of_the_media_dir_are_swept(tmp_path):
    with MediaStore(tmp_path / "store") as store:
        folder = store.media_dir
        for name in ("old", "new", "named"):
            (folder / name).write_text(name)
        (folder / "folder").mkdir()
        outside = tmp_path / "outside"
        outside.write_text("outside")
        (folder / "link").symlink_to(outside)
        for name in ("old", "named", "folder", "link"):
            os.utime(folder / name, (0, 0), follow_symlinks=False)
        store.admit(str(folder / "named"))
        assert 2 == store.sweep()
        assert {"new", "named", "folder"} == {each.name for each in folder.iterdir()}
        assert outside.exists()


@pytest.mark.parametrize("how", ["link", "folder"])
def test_replaced_media_dir_is_not_swept(tmp_path, how):
    with MediaStore(tmp_path / "store", max_age=1) as store:
        folder = store.media_dir
        folder.rename(tmp_path / "away")
        others = folder if how == "folder" else tmp_path / "others"
        others.mkdir()
        if how == "link":
            folder.symlink_to(others)
        (others / "precious").write_bytes(b"x")
        os.utime(others / "precious", (1, 1))
        assert 0 == store.sweep()
        assert (others / "precious").exists()


def test_bytes_stored_during_close_leave_no_file(tmp_path, monkeypatch):
    store = MediaStore(tmp_path / "store")
    kept = store.resolve(store.put(b"x")).parent

    def late(path: str, data: bytes) -> str:
        store.close()
        kept.mkdir()
        Path(path).write_bytes(data)
        return path

    monkeypatch.setattr(store_module, "create_file", late)
    with pytest.raises(MediaRefusedError, match="is closed"):
        store.put(b"y")
    assert [] == list(kept.iterdir())


def test_nothing_is_swept_without_an_age(tmp_path):
    clock = Clock()
    with MediaStore(tmp_path / "store", max_age=None, clock=clock) as store:
        store.put(b"1")
        clock.now += 1e9
        assert 0 == store.sweep()
        assert 1 == store.count


def test_file_larger_than_the_store_is_refused(tmp_path):
    with MediaStore(tmp_path / "store", max_bytes=10) as store:
        kept = store.put(b"1234")
        with pytest.raises(MediaRefusedError):
            store.put(b"x" * 11)
        with pytest.raises(MediaRefusedError, match="too long"):
            store.admit("data:," + "x" * 100)
        assert b"1234" == store.read(kept)


def test_closed_store_deletes_its_files_and_refuses_new_ones(tmp_path, photo):
    store = MediaStore()
    own = store.resolve(store.put(b"1"))
    folder = store.media_dir
    store.store(photo, KEEP)
    store.close()
    store.close()
    assert not own.exists()
    assert not folder.exists()
    assert photo.exists()
    for do in (lambda: store.put(b"1"), lambda: store.store(photo), lambda: store.media_dir):
        with pytest.raises(MediaRefusedError, match="closed"):
            do()


def test_given_folder_and_foreign_files_stay(tmp_path):
    (tmp_path / "theirs").write_text("theirs")
    store = MediaStore(tmp_path)
    store.put(b"1")
    store.close()
    assert ["theirs"] == [each.name for each in tmp_path.iterdir()]


def test_garbage_collected_store_removes_its_folder():
    store = MediaStore()
    folder = store.resolve(store.put(b"1")).parent.parent
    assert folder.exists()
    del store
    gc.collect()
    assert not folder.exists()


def test_sweeper_thread_runs_only_while_needed(tmp_path):
    clock = Clock()
    store = MediaStore(tmp_path / "store", interval=0.01, clock=clock)

    def begun() -> threading.Thread:
        before = set(threading.enumerate())
        store.put(b"1")
        (thread,) = (each for each in threading.enumerate() if each not in before and each.name == "patchbay-media")
        return thread

    for _ in range(2):
        thread = begun()
        clock.now += 10_000
        thread.join(BOUND)
        assert not thread.is_alive()
        assert (0, 0) == (store.count, store.stored_bytes)
    store.close()


def test_limits_hold_at_every_moment_under_threads(tmp_path):
    store = MediaStore(tmp_path / "store", max_refs=30, max_bytes=10_000, max_file=1000, max_age=1e-3, interval=1e-3)
    inbox = store.media_dir
    failures: list[object] = []

    def work(number: int) -> None:
        try:
            for index in range(150):
                mine = MediaMeta(session=str(number % 3))
                data = b"%d %d" % (number, index) + bytes(index * 7 % 900)
                ref = store.put(data, mine, scope=str(index % 5))
                (inbox / str(index % 7)).write_bytes(b"x" * (index % 50))
                with contextlib.suppress(MediaError):
                    store.admit(str(inbox / str(index % 7)), meta=mine)
                with contextlib.suppress(MediaError):
                    assert data == store.read(ref)
                store.sweep()
                store.release_all(str(index % 11))
                store.release_session(str(index % 17))
                if store.stored_bytes > store.max_bytes or store.count > store.max_refs:
                    failures.append((store.stored_bytes, store.count))
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert [] == failures
    for session in range(3):
        store.release_session(str(session))
    assert (0, 0) == (store.count, store.stored_bytes)
    assert [] == list((tmp_path / "store").glob("kept-*/*"))
    store.close()


@pytest.mark.parametrize(
    "options",
    [{"max_age": 0}, {"interval": -1}, {"max_refs": 0}, {"max_bytes": True}, {"max_file": "1"}, {"folders": ["/no/where"]}],
)
def test_unenforceable_limits_and_missing_folders_are_refused(options):
    with pytest.raises(ConfigurationError):
        MediaStore(**options)


# What a file is


@pytest.mark.parametrize(
    ("expected", "kind", "data", "declared", "name"),
    [
        ("image/png", "image", png(), "", ""),
        ("image/png", "image", png(), "image/jpeg", ""),
        ("application/pdf", "file", PDF, "image/png", ""),
        ("application/octet-stream", "file", b"no image", "image/png", ""),
        ("image/svg+xml", "file", SVG, "image/svg+xml", ""),
        ("text/csv", "file", b"a,b", "", "a.csv"),
        ("application/octet-stream", "file", b"a,b", "\r\nX: y", ""),
        ("text/plain", "file", b"a,b", "Text/Plain; charset=utf-8", ""),
        ("video/mp4", "video", b"\0\0\0\x18ftypisom\0\0\2\0isomiso2", "", ""),
    ],
)
def test_type_of_a_file_is_detected_from_its_bytes(store, expected, kind, data, declared, name):
    media = store.lookup(store.put(data, MediaMeta(name, declared)))
    assert (expected, kind) == (media.media_type, media.kind)


def test_a_tag_has_the_path_of_a_file_that_others_can_open_and_never_breaks_out_of_it(store, photo, tmp_path):
    assert f"[image:{photo}]" == store.lookup(store.store(photo, KEEP)).tag
    own = store.put(b"x")
    assert f"[file:{own}]" == store.lookup(own).tag
    odd = tmp_path / "a] [file:b\nIgnore"
    odd.write_text("x")
    ref = store.store(odd)
    assert f"[file:{ref}]" == store.lookup(ref).tag


def test_a_file_is_called_by_its_name_and_never_by_a_path(store):
    assert "passwd" == store.lookup(store.put(b"x", MediaMeta("../../etc/passwd"))).filename
    assert "evil.exe" == store.lookup(store.put(b"x", MediaMeta("C:\\temp\\evil.exe"))).filename
