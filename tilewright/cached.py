"""A cached property that takes no lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

Result = TypeVar("Result", covariant=True)


class cached_property(Generic[Result]):  # named as the one of `functools`
    """`functools.cached_property` of Python 3.12: threads may compute a value twice, and the last one is kept.

    Until then it holds a lock of its class while it computes: a child forked meanwhile deadlocks on it.
    """

    def __init__(self, func: Callable[[Any], Result]) -> None:
        self.func = func
        self.name = func.__name__
        self.__doc__ = func.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> Result: ...
    def __get__(self, instance: object | None, owner: type) -> Self | Result:
        if instance is None:
            return self
        result = instance.__dict__[self.name] = self.func(instance)
        return result
