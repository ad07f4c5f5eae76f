"""The prediction cache: bounded, the least recently used goes first, safe between threads."""

from __future__ import annotations

import threading
from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from classifier.cache import PredictionCache
from classifier.scores import Prediction


def prediction(name: object) -> Prediction:
    return Prediction(str(name), 1.0, (), "classified")


A, B, C, D = (prediction(name) for name in "abcd")


def test_what_was_put_is_found_and_nothing_else() -> None:
    cache = PredictionCache(10)
    cache.put_many([(b"a", A), (b"b", B)])
    assert cache.get_many([b"b", b"x", b"a", b"b"]) == [B, None, A, B]
    assert cache.get_many([]) == []
    assert len(cache) == 2


def test_least_recently_used_goes_first() -> None:
    cache = PredictionCache(2)
    cache.put_many([(b"a", A), (b"b", B)])
    cache.get_many([b"a"])
    cache.put_many([(b"c", C)])
    assert cache.get_many([b"a", b"b", b"c"]) == [A, None, C]


def test_putting_again_counts_as_a_use_and_replaces() -> None:
    cache = PredictionCache(2)
    cache.put_many([(b"a", A), (b"b", B), (b"a", D)])
    cache.put_many([(b"c", C)])
    assert cache.get_many([b"a", b"b", b"c"]) == [D, None, C]


def test_batch_larger_than_the_capacity_leaves_its_end() -> None:
    cache = PredictionCache(2)
    cache.put_many((key, A) for key in (b"1", b"2", b"3", b"4"))
    assert cache.get_many([b"1", b"2", b"3", b"4"]) == [None, None, A, A]


def test_no_capacity_keeps_nothing() -> None:
    cache = PredictionCache(0)
    cache.put_many([(b"a", A)])
    assert len(cache) == 0
    assert cache.get_many([b"a"]) == [None]


KEYS = st.sampled_from([b"1", b"2", b"3", b"4", b"5"])


@given(
    st.integers(0, 4),
    st.lists(st.tuples(st.booleans(), st.lists(KEYS, max_size=6)), max_size=20),
)
def test_cache_does_what_a_plain_lru_does(
    capacity: int, steps: list[tuple[bool, list[bytes]]]
) -> None:
    cache = PredictionCache(capacity)
    model: OrderedDict[bytes, Prediction] = OrderedDict()
    for number, (is_put, keys) in enumerate(steps):
        if is_put:
            cache.put_many((key, prediction(number)) for key in keys)
            for key in keys:
                model[key] = prediction(number)
                model.move_to_end(key)
            while len(model) > capacity:
                model.popitem(last=False)
        else:
            assert cache.get_many(keys) == [model.get(key) for key in keys]
            for key in keys:
                if key in model:
                    model.move_to_end(key)
        assert len(cache) == len(model) <= capacity


def test_threads_never_see_a_wrong_answer_nor_a_cache_too_large() -> None:
    cache = PredictionCache(50)
    keys = [number.to_bytes(2, "big") for number in range(200)]
    wrong: list[object] = []
    start = threading.Barrier(4)

    def work(seed: int) -> None:
        start.wait()
        for turn in range(150):
            mine = [keys[(seed * 31 + turn * 7 + step) % 200] for step in range(40)]
            found = cache.get_many(mine)
            for key, answer in zip(mine, found, strict=True):
                if answer is not None and answer.category_id != str(key):
                    wrong.append(answer)
            cache.put_many((key, prediction(key)) for key in mine)
            if len(cache) > 90:  # another thread may be within its own batch of 40
                wrong.append(len(cache))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(cache) == 50
