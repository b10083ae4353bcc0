"""Files that exist after any number of stores, uses, releases and sweeps: the media store against a model of it."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from patchbay.media import DELETE, FORGET, MediaMeta, MediaStore, UnknownRefError
from support.repeated import examples

NAMES = ["a", "b", "c"]
MAX_REFS = 6
MAX_BYTES = 25
AGE = 100.0


class Model:
    """One ref, as it should be."""

    def __init__(self, path: Path, text: bytes, scope: str, used: int, *, own: bool, stays: bool) -> None:
        self.path = path
        self.text = text
        self.scope = scope
        self.used = used
        self.own = own
        self.stays = stays


class Counting(RuleBasedStateMachine):
    refs = Bundle("refs")

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="patchbay_test_"))
        self.now = 0.0
        self.ticks = 0
        self.store = MediaStore(
            self.folder / "store", folders=[self.folder], max_age=AGE, interval=1e6,
            max_refs=MAX_REFS, max_bytes=MAX_BYTES, clock=lambda: self.now,
        )  # fmt: skip
        self.live: dict[str, Model] = {}
        self.times: dict[str, float] = {}
        self.staying: set[Path] = set()
        self.ours: set[Path] = set()
        self.there: set[Path] = set()

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            shutil.rmtree(self.folder)

    @rule(target=refs, name=st.sampled_from(NAMES), cleanup=st.sampled_from([DELETE, FORGET, "odd"]), scope=st.sampled_from("xy"))
    def keep_a_path(self, name: str, cleanup: str, scope: str):
        path = self.folder / name
        if path not in self.there:
            path.write_bytes(name.encode())
            self.there.add(path)
        ref = self.store.store(path, MediaMeta(cleanup=cleanup), scope)
        return self._new(ref, path, name.encode(), scope, own=False, stays=cleanup == FORGET)

    @rule(target=refs, name=st.sampled_from(NAMES), scope=st.sampled_from("xy"))
    def admit_a_path_of_an_allowed_folder(self, name: str, scope: str):
        path = self.folder / name
        if path not in self.there:
            path.write_bytes(name.encode())
            self.there.add(path)
        ref = self.store.admit(str(path), scope=scope)
        return self._new(ref, path, name.encode(), scope, own=False, stays=True)

    @rule(target=refs, data=st.binary(max_size=12), scope=st.sampled_from("xy"))
    def put_bytes(self, data: bytes, scope: str):
        ref = self.store.put(data, scope=scope)
        path = self.store.resolve(ref)
        self.ours.add(path)
        self.there.add(path)
        return self._new(ref, path, data, scope, own=True, stays=False)

    @rule(target=refs, ref=refs, scope=st.sampled_from("xy"))
    def keep_the_path_of_a_ref_again(self, ref: str, scope: str):
        if ref not in self.live:
            return multiple()
        old = self.live[ref]
        self._use(ref)
        again = self.store.store(self.store.resolve(ref), scope=scope)
        return self._new(again, old.path, old.text, scope, own=old.own, stays=False)

    @rule(ref=refs)
    def read(self, ref: str) -> None:
        if ref in self.live:
            self._use(ref)
            assert self.live[ref].text == self.store.read(ref)
        else:
            try:
                self.store.read(ref)
            except UnknownRefError:
                return
            raise AssertionError("a ref that is gone was read")

    @rule(ref=consumes(refs))
    def release(self, ref: str) -> None:
        self.store.release(ref)
        self._gone([ref])

    @rule(scope=st.sampled_from("xyz"))
    def release_a_scope(self, scope: str) -> None:
        gone = [ref for ref, each in self.live.items() if each.scope == scope]
        assert len(gone) == self.store.release_all(scope)
        self._gone(gone)

    @rule(seconds=st.sampled_from([1, 30, 99, 100, 1000]))
    def time_goes_by(self, seconds: int) -> None:
        self.now += seconds
        gone = [ref for ref in self.live if self.times[ref] <= self.now - AGE]
        assert len(gone) == self.store.sweep()
        self._gone(gone)

    @rule(name=st.sampled_from(NAMES))
    def somebody_deletes_a_file(self, name: str) -> None:
        path = self.folder / name
        if path in self.there and not any(each.path == path for each in self.live.values()):
            path.unlink()
            self.there.discard(path)
            self.staying.discard(path)

    @invariant()
    def what_is_there_is_what_should_be(self) -> None:
        if not hasattr(self, "store"):
            return
        assert len(self.live) == self.store.count
        held = {each.path: len(each.text) for each in self.live.values() if each.own}
        assert sum(held.values()) == self.store.stored_bytes <= MAX_BYTES
        for path in self.there:
            assert path.exists(), path
        for path in {self.folder / name for name in NAMES} | self.ours:
            if path not in self.there:
                assert not path.exists(), path

    def _new(self, ref: str, path: Path, text: bytes, scope: str, *, own: bool, stays: bool) -> str:
        self.live[ref] = Model(path, text, scope, 0, own=own, stays=stays)
        self._use(ref)
        if stays:
            self.staying.add(path)
        while len(self.live) > MAX_REFS:
            self._gone([self._oldest()])
        while self._held() > MAX_BYTES:
            self._gone([self._oldest(own=True)])
        return ref

    def _use(self, ref: str) -> None:
        self.ticks += 1
        self.live[ref].used = self.ticks
        self.times[ref] = self.now

    def _oldest(self, *, own: bool = False) -> str:
        return min((ref for ref, each in self.live.items() if each.own or not own), key=lambda ref: self.live[ref].used)

    def _held(self) -> int:
        return sum({each.path: len(each.text) for each in self.live.values() if each.own}.values())

    def _gone(self, refs: list[str]) -> None:
        for ref in refs:
            each = self.live.pop(ref, None)
            if each is None or any(other.path == each.path for other in self.live.values()):
                continue
            if each.path in self.staying:
                self.staying.discard(each.path)
            else:
                self.there.discard(each.path)


TestCounting = Counting.TestCase
TestCounting.settings = settings(max_examples=examples(20), stateful_step_count=40)
