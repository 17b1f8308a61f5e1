"""`from_jax`: functions of JAX, lowered to StableHLO and compiled here."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.api.array import located
from tilewright.api.stages import Lowered
from tilewright.errors import ArgumentError, ResourceUnavailable
from tilewright.interop.arguments import checked, is_number
from tilewright.interop.stablehlo.model import StableHloModel, from_stablehlo
from tilewright.runtime.cpu.native import MISMATCH

# JAX's own modules and objects carry types that differ from version to version.
Jax = Any


@functools.cache
def jax() -> Jax:
    """The package `jax`.

    Raises:
        ResourceUnavailable: it is not installed.
    """
    try:
        return importlib.import_module("jax")
    except ImportError:
        message = "the package `jax` is not installed"
        raise located(ResourceUnavailable(message, help="pip install 'tilewright[jax]'")) from None


class JaxFunction:
    """A function of JAX, compiled here for the shapes and types that it was lowered for.

    Arguments and results are the containers that the function takes and gives. `program` is the same over flat lists of
    arrays.
    """

    def __init__(
        self, program: StableHloModel, trees: tuple[Any, Any], kept: Sequence[int], keys: Sequence[object]
    ) -> None:
        self.program = program
        self._in_tree, self._out_tree = trees
        self._kept = tuple(kept)
        self._keys = tuple(keys)
        tree_structure = jax().tree_util.tree_structure
        # Whether arguments are arrays by position that the program has, all, and the result is one array and no key.
        self._is_flat = trees[0] == tree_structure(((0,) * len(self._kept), {}))
        self._gives_keys = any(key is not None for key in self._keys)
        self._gives_one = trees[1] == tree_structure(0) and not self._gives_keys

    def __call__(self, *args: Any, **kwargs: object) -> Any:
        """Call the function; inside a function under `tw.jit`, trace it into that.

        Raises:
            ArgumentError, ShapeError, DTypeError: the arguments are not those that it was lowered for.
            TilewrightError: an operation cannot be compiled; the message names it.
        """
        if self._is_flat and not kwargs:
            result = self.program.again(args)
            if result is not MISMATCH:
                return self._rebuilt(result)
        leaves = self._leaves(args, kwargs)
        result = self.program.again(leaves)
        if result is MISMATCH and any(map(is_number, leaves)):
            leaves = self._with_arrays(leaves)
            result = self.program.again(leaves)
        return self._rebuilt(self.program(*self._plain(leaves)) if result is MISMATCH else result)

    def lower(self, *args: object, **kwargs: object) -> Lowered:
        """The traced program for arguments, as `tw.jit` functions have it.

        Raises:
            TilewrightError: as a call does.
        """
        return self.program.lower(*self._plain(self._leaves(args, kwargs)))

    def __repr__(self) -> str:
        return f"JaxFunction({', '.join(map(str, self.program.inputs))} -> {', '.join(map(str, self.program.outputs))})"

    def _leaves(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> list[Any]:
        """The arguments that the program has."""
        leaves, structure = jax().tree_util.tree_flatten((args, kwargs))
        if structure != self._in_tree:
            message = f"the arguments are {structure}, but the function was lowered for {self._in_tree}"
            raise located(ArgumentError(message, help="call it as it was lowered, or lower it again"))
        return [leaves[n] for n in self._kept]

    def _plain(self, leaves: Sequence[object]) -> list[Any]:
        return [_plain(leaf, spec.dtype) for leaf, spec in zip(leaves, self.program.inputs, strict=True)]

    def _with_arrays(self, leaves: Sequence[object]) -> list[Any]:
        """The arguments with arrays in place of numbers."""
        found = list(leaves)
        for n, (leaf, spec) in enumerate(zip(leaves, self.program.inputs, strict=False)):
            if is_number(leaf):
                found[n] = checked(spec, _plain(leaf, spec.dtype), {})
        return found

    def _rebuilt(self, results: Any) -> Any:
        """The results in the containers of the function."""
        if self._gives_one:
            return results
        flat = list(results) if len(self._keys) != 1 else [results]
        if self._gives_keys:
            flat = [r if key is None else _as_key(r, key) for r, key in zip(flat, self._keys, strict=True)]
        return self._out_tree.unflatten(flat)


def _plain(leaf: Any, dtype: object) -> Any:
    """An argument as JAX takes it: keys as their words, 64-bit numbers in 32 bits where the program has these, and
    arrays of several devices whole."""
    found = getattr(leaf, "dtype", None)
    if found is None or _is_array_of(leaf, dtype):
        return leaf
    if _is_key(found):
        return jax().random.key_data(leaf)
    if isinstance(leaf, jax().Array) and len(leaf.sharding.device_set) > 1:
        leaf = np.asarray(leaf)
    narrow = str(getattr(dtype, "numpy", dtype))
    halves = {"float64": "float32", "int64": "int32", "uint64": "uint32", "complex128": "complex64"}
    is_wide = str(found) in halves and narrow == halves[str(found)]
    return leaf.astype(narrow) if is_wide and hasattr(leaf, "astype") else leaf


def _is_array_of(leaf: object, dtype: object) -> bool:
    return type(leaf) is np.ndarray and leaf.dtype == getattr(dtype, "numpy", dtype)


def _as_key(words: object, dtype: object) -> Any:
    found = jax().numpy.asarray(words)
    implementations = ("threefry2x32", "rbg", "unsafe_rbg")
    keys = [jax().random.wrap_key_data(found, impl=name) for name in implementations if _fits(found, name)]
    return next(key for key in keys if key.dtype == dtype)


def _fits(words: Any, implementation: str) -> bool:
    return words.shape[-1] == (2 if implementation == "threefry2x32" else 4)


def from_jax(fn: object, *args: object, target: str | None = None, **kwargs: object) -> JaxFunction:
    """Compile a function of JAX here.

    `fn` is a function over arrays, plain or under `jax.jit`, with the arguments to lower it for: arrays, or
    `jax.ShapeDtypeStruct`s. Or it is what JAX has lowered already, a `jax.stages.Lowered` or a `jax.export.Exported`,
    and no arguments follow. The function that is returned takes the same containers of arrays. `target` is as `tw.jit`
    has it. Fixed values are bound by `functools.partial`.

    Raises:
        UnsupportedOperatorError: the function uses operations that are not supported; the message lists all of them.
        ArgumentError: `fn` is something else, or arguments were lost when it was lowered.
        ResourceUnavailable: the package `jax` is not installed.
    """
    if isinstance(fn, jax().export.Exported):
        _without_arguments(args, kwargs)
        return _from_exported(fn, target)
    if isinstance(fn, jax().stages.Lowered):
        _without_arguments(args, kwargs)
        return _from_lowered(fn, target)
    if not callable(fn):
        message = f"`from_jax` of a {type(fn).__name__}"
        raise located(ArgumentError(message, help="give a function, a `Lowered` or an `Exported`"))
    staged: Callable[..., Any] = fn if hasattr(fn, "lower") else jax().jit(fn, keep_unused=True)
    return _from_lowered(staged.lower(*args, **kwargs), target)  # pyright: ignore[reportFunctionMemberAccess]


def _without_arguments(args: Sequence[object], kwargs: Mapping[str, object]) -> None:
    if args or kwargs:
        raise located(ArgumentError("a program that is lowered takes no arguments here", help="pass them at the call"))


def _from_lowered(lowered: Any, target: str | None) -> JaxFunction:
    program = from_stablehlo(lowered.as_text(), target=target)
    count = lowered.in_tree.num_leaves
    results = jax().tree_util.tree_leaves(lowered.out_info)
    return JaxFunction(program, (lowered.in_tree, lowered.out_tree), _kept(lowered, program, count), _keys(results))


def _kept(lowered: object, program: StableHloModel, count: int) -> Sequence[int]:
    """Which arguments the program has: JAX drops those that are not used."""
    if len(program.inputs) == count:
        return range(count)
    # No public name tells; where this one goes away, such functions are refused.
    arguments = getattr(getattr(lowered, "_lowering", None), "compile_args", {})
    kept = sorted(arguments.get("kept_var_idx", ()))
    if len(kept) != len(program.inputs):
        message = f"of {count} arguments the lowered program has {len(program.inputs)}"
        raise located(ArgumentError(message, help="lower it with `jax.jit(fn, keep_unused=True)`"))
    return kept


def _from_exported(exported: Any, target: str | None) -> JaxFunction:
    program = from_stablehlo(exported.mlir_module(), target=target)
    trees = (exported.in_tree, exported.out_tree)
    kept = exported.module_kept_var_idx
    return JaxFunction(program, trees, kept, _keys(exported.out_avals))


def _keys(results: Sequence[Any]) -> list[Any]:
    """For results that are keys of random numbers their types, else None."""
    found = [getattr(result, "dtype", None) for result in results]
    return [d if _is_key(d) else None for d in found]


def _is_key(dtype: object) -> bool:
    """Whether it is the type of keys, which JAX alone has; types of other libraries it does not know."""
    return str(dtype).startswith("key<") and bool(jax().dtypes.issubdtype(dtype, jax().dtypes.prng_key))
