"""The cache keeps the most recently used entries within its bounds."""

from patchbay.cache import SizedCache


def test_least_recently_used_value_is_evicted():
    cache: SizedCache[str, int] = SizedCache(most=2, most_bytes=100)
    cache.put("a", 1, 10)
    cache.put("b", 2, 10)
    assert 1 == cache.get("a")
    cache.put("c", 3, 10)
    assert (1, None, 3) == (cache.get("a"), cache.get("b"), cache.get("c"))


def test_values_go_until_the_rest_fits():
    cache: SizedCache[str, int] = SizedCache(most=10, most_bytes=100)
    for number, key in enumerate("abc"):
        cache.put(key, number, 30)
    cache.put("d", 3, 80)
    assert (1, 3) == (len(cache), cache.get("d"))


def test_replacing_a_value_replaces_its_size():
    cache: SizedCache[str, int] = SizedCache(most=10, most_bytes=100)
    for number in range(5):
        cache.put("a", number, 60)
    cache.put("b", 7, 40)
    assert (4, 7) == (cache.get("a"), cache.get("b"))


def test_oversized_value_is_not_cached_and_removes_the_previous_one():
    cache: SizedCache[str, int] = SizedCache(most=10, most_bytes=100)
    cache.put("a", 1, 10)
    cache.put("a", 2, 101)
    assert (None, 0) == (cache.get("a"), len(cache))
