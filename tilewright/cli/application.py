"""The application: verbs, flags, errors as text or JSON, exit codes."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Sequence

import cyclopts

from tilewright import __version__
from tilewright.cli.flags import given_options, refuse_unused
from tilewright.cli.report import Report, encode, make_console
from tilewright.errors import TilewrightError
from tilewright.options import Options, current, options

_TRACEBACK_LEVEL = 5
_HELP = """Tilewright compiles array programs and tile kernels to fused native code.

For example:

    tilewright doctor
    tilewright run examples/01_sentence_embeddings.py
    tilewright show examples/kernels/matmul.py::matmul --stage scheduled
    tilewright explain examples/kernels/matmul.py::matmul --machine sm_90a
    tilewright bench gemm --vs numpy,torch
"""


def make_application() -> cyclopts.App:
    """The command tree; a verb's file is imported when the verb is used, or its help."""
    application = cyclopts.App(name="tilewright", version=__version__, help=_HELP, help_format="markdown")
    for verb in ("run", "show", "explain", "check", "bench", "doctor"):
        application.command(f"tilewright.cli.{verb}:{verb}")
    application.command("tilewright.cli.cache:application", name="cache")
    return application


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (by default the process's) and return its exit code: 0, or 1 after an error."""
    try:
        return _run(list(sys.argv[1:] if arguments is None else arguments))
    except BrokenPipeError:
        # The reader, such as `head`, has left: nothing more can be said.
        _drop_stdout()
        return 1
    except OSError as error:
        # Such as a full disk under stdout, which cannot take a JSON document either.
        if _debug_level() >= _TRACEBACK_LEVEL:
            traceback.print_exc()
        _drop_stdout()
        print(f"error: {error}", file=sys.stderr)
        return 1


def _drop_stdout() -> None:
    """Lose what stdout holds and cannot write, so that Python does not try at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(tokens: Sequence[str]) -> int:
    try:
        command, bound, _ = make_application().parse_args(tokens, exit_on_error=False, print_error=False)
    except cyclopts.CycloptsError as error:
        return _refuse("usage", str(error), "see `tilewright --help`", str(error), "--json" in tokens)
    flags = bound.arguments.get("flags")
    as_json = flags is not None and flags.json
    with contextlib.ExitStack() as stack:
        try:
            given = given_options(flags)
            refuse_unused(command.__module__.rpartition(".")[2], given)
            stack.enter_context(options(Options.from_cli(given)))
            result = command(*bound.args, **bound.kwargs)
            return _present(result, as_json)
        except TilewrightError as error:
            if _debug_level() >= _TRACEBACK_LEVEL:
                traceback.print_exc()
            return _refuse(error.code, error.message, error.help, str(error), as_json)
        except KeyboardInterrupt:
            return _refuse("interrupted", "interrupted", None, "interrupted", as_json)


def _present(result: object, as_json: bool) -> int:
    if not isinstance(result, Report):
        return 0
    if as_json:
        print(encode(result.document))
    elif result.show is not None:
        result.show(make_console(current().color))
    # `>&-` starts a process without stdout, and a script may have closed it.
    if sys.stdout is not None and not sys.stdout.closed:
        sys.stdout.flush()
    return result.exit_code


def _refuse(code: str, message: str, help: str | None, text: str, as_json: bool) -> int:
    if as_json:
        print(encode({"error": {"code": code, "message": message, "help": help}}), flush=True)
    shown = text if text.startswith("error[") else f"error: {text}"
    print(shown, file=sys.stderr)
    return 1


def _debug_level() -> int:
    try:
        return current().debug
    except TilewrightError:
        return 0
