"""Patience: trying again for as long as the world is at fault and the work is still ours."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tenacity import AsyncRetrying, AttemptManager, retry_if_exception_type, wait_random_exponential

LONGEST_PAUSE = 10.0
"""Seconds between tries at the most, so that an election is noticed soon after it ends."""
FIRST_PAUSE = 0.1
NOTICE = 0.2
"""Within so many seconds a pause notices that the work is not wanted any more."""


class AbandonedError(Exception):
    """The batch no longer belongs to this worker, so its work was given up."""


def patiently(
    errors: tuple[type[Exception], ...],
    wanted: Callable[[], bool],
    on_retry: Callable[[], None],
) -> AsyncRetrying:
    """Attempts without end, with growing, jittered pauses, while they raise one of `errors`.

    An attempt may raise tenacity's TryAgain as well. A pause ends early once `wanted` says no;
    the attempt is then to raise AbandonedError.
    """

    async def pause(seconds: float) -> None:
        while seconds > 0 and wanted():
            await asyncio.sleep(min(seconds, NOTICE))
            seconds -= NOTICE

    return _Attempts(
        wait=wait_random_exponential(FIRST_PAUSE, max=LONGEST_PAUSE),
        retry=retry_if_exception_type(errors),
        before_sleep=lambda _: on_retry(),
        sleep=pause,
    )


class _Attempts(AsyncRetrying):
    """Attempts that let go of their batch at the end.

    They are part of a reference cycle. What hung on that, through the pause's `wanted`, would wait
    for the garbage collector, which seldom looks: some hundred bytes an offer, for hours.
    """

    async def __anext__(self) -> AttemptManager:
        try:
            return await super().__anext__()
        except BaseException:  # the end, of one kind or another
            self.sleep = asyncio.sleep  # type: ignore[assignment]  # typed for threads alone
            raise
