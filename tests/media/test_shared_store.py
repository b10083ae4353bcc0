"""Stores of several servers with one shared folder: each has the files of the others."""

from __future__ import annotations

import base64
import os
import time

import pytest

from media.pictures import png
from patchbay.media import MediaMeta, SharedMediaStore, UnknownRefError
from realtime.server.rig import serving
from tools_server.rig import calling_back, json_response


def test_each_store_has_the_files_of_the_others(tmp_path):
    shared = tmp_path / "shared"
    with SharedMediaStore(shared) as first, SharedMediaStore(shared) as second:
        ref = first.put(png(), MediaMeta("sales.png", session="monday"), "turn")
        first.close()
        with second.open(ref) as file:
            assert (png(), "image/png") == (file.read(), file.media.media_type)
            assert ("sales.png", "monday", "turn") == (file.media.filename, file.media.meta.session, file.media.scope)
        for unknown in (ref[:-1] + "g", ref + ".json", "media://../shared", "media://"):
            with pytest.raises(UnknownRefError):
                second.open(unknown)


def test_old_copies_and_the_oldest_of_too_many_are_deleted_and_nothing_else(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    os.utime(tmp_path / "mine.txt", (0, 0))
    with SharedMediaStore(tmp_path, max_bytes=3000) as store:
        refs = [store.put(bytes(1000)) for _ in range(4)]
        for age, ref in zip((90_000, 3, 2, 1), refs, strict=True):
            for path in tmp_path.glob(f"{ref.removeprefix('media://')}*"):
                os.utime(path, (time.time() - age,) * 2)
        store.sweep()
        left = {path.name for path in tmp_path.iterdir() if path.suffix != ".json"}
    assert {"mine.txt", *(ref.removeprefix("media://") for ref in refs[2:])} == left


def test_a_file_of_one_server_is_served_by_another(new_postgres, tmp_path):
    token = tmp_path / "token"
    token.write_text("secret-token-of-both")
    token.chmod(0o600)
    flags = ("--store", new_postgres, "--media-folder", str(tmp_path / "media"), "--token-file", str(token))
    result = {"output": "drawn", "images": [base64.b64encode(png()).decode()]}
    with (
        calling_back(json_response(result)) as callback,
        serving(None, *flags) as first,
        serving(None, *flags) as second,
    ):
        known = {"authorization": "Bearer secret-token-of-both"}
        tool = {"name": "draw", "callback_url": callback.url}
        assert 200 == first.http.ask("POST", "/api/tools/register", tool, **known).status
        (file,) = first.http.ask("POST", "/api/tools/call", {"name": "draw"}, **known).json["files"]
        assert 401 == second.http.ask("GET", file["url"]).status
        assert png() == second.http.ask("GET", file["url"], **known).body
