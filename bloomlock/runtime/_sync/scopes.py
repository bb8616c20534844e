# Written by tools/async_to_sync.py from bloomlock/runtime/_async/scopes.py; change that.
"""The steps of a core that no server answers: pauses, subscriptions, what goes on beside it."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from bloomlock.effects import (
    Behind,
    Call,
    Clock,
    Elsewhere,
    FanOut,
    IsCluster,
    NextMessage,
    Pause,
    Subscribe,
    Within,
)
from bloomlock.errors import ConfigurationError
from bloomlock.runtime.clock import boot_clock, sleep
from bloomlock.runtime.cluster import Again

if TYPE_CHECKING:
    from bloomlock.effects import Effect
    from bloomlock.runtime._sync.driver import Driver

logger = logging.getLogger("bloomlock.runtime")


class Scope:
    """Carries out the steps of one core that no server answers, and ends its subscription."""

    def __init__(self, runtime: Driver) -> None:
        self._runtime = runtime
        self._subscription: Any = None

    def carry_out(self, step: Effect | Again) -> Any:  # noqa: C901, PLR0911, PLR0912 - one for each step
        runtime = self._runtime
        match step:
            case Again():
                return runtime.send_again(step)
            case Pause():
                return sleep(step.seconds)
            case Clock():
                return boot_clock
            case IsCluster():
                return runtime.is_cluster
            case Subscribe():
                self._subscription = self._subscription or runtime.subscribe(step)
                return self._subscription.channel if self._subscription else b""
            case NextMessage():
                if self._subscription is None:
                    return None
                return self._subscription.wait(step.addressee, step.seconds)
            case FanOut():
                runs = [member.run for member in runtime.members]
                calls = [partial(run, core) for run, core in zip(runs, step.cores, strict=True)]
                return runtime._background.fan_out(calls, step)
            case Behind():
                call = partial(runtime.run, step.core)
                until = boot_clock() + step.seconds
                answer = runtime.call_in_line(step.line, call, until)
                if isinstance(answer, Exception):
                    text = "failed to release a lock or claim; it expires by itself"
                    logger.error(text, exc_info=answer)
                return None
            case Call():
                return step.function(*step.args)
            case Elsewhere():
                return step.run(step.core)
            case Within():
                if not hasattr(type(step.manager), "__enter__"):
                    wanted = "a context manager"
                    raise ConfigurationError(
                        f"factory must return {wanted} for each name, not {step.manager!r:.80}"
                    )
                with step.manager:
                    return runtime.run(step.core)

    def close(self) -> None:
        if self._subscription is not None:
            self._runtime.unsubscribe(self._subscription)
