"""What all clients of a round need is made once, whoever asks first."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event

from fedsketch.strategies.local.made_once import LastMade


def test_the_last_thing_is_kept_and_another_key_makes_another() -> None:
    kept, made = LastMade[str](), list[str]()

    def of(key: tuple[int, bytes]) -> str:
        return kept.of(key, lambda: made.append(str(key)) or str(key))  # type: ignore[func-returns-value]

    assert of((1, b"a")) == of((1, b"a")) == "(1, b'a')"
    assert of((2, b"a")) == "(2, b'a')"
    assert of((1, b"a")) == "(1, b'a')"
    assert made == ["(1, b'a')", "(2, b'a')", "(1, b'a')"]


def test_threads_that_ask_at_once_wait_for_the_first() -> None:
    kept, together, begun, made = LastMade[int](), Barrier(4), Event(), list[int]()

    def make() -> int:
        begun.wait(0.2)  # long enough for the others to ask
        made.append(1)
        return len(made)

    def ask() -> int:
        together.wait()
        return kept.of("sketch", make)

    with ThreadPoolExecutor(4) as pool:
        answers = [future.result() for future in [pool.submit(ask) for _ in range(4)]]
    assert answers == [1, 1, 1, 1]
