"""The command line ``asterism``. What a command needs is imported when that command runs."""

import importlib
import os
import sys
from collections.abc import Sequence

from asterism.cli import output

PROGRAM = "asterism"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; its exit code. Whatever goes wrong is one line on standard error."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    output.prepare()
    try:
        return _run(given)
    except output.CommandError as error:
        output.warn(f"{PROGRAM}: {error}")
        return error.code
    except KeyboardInterrupt:
        return output.INTERRUPTED
    except output.ReaderGone:
        return output.DONE


def _run(given: list[str]) -> int:
    if given[:1] == ["bench"]:
        return _bench(given[1:])
    if _is_bare_snapshot(given):
        given.insert(1, "create")
    from asterism.cli.arguments import parser

    options = parser(with_doors="up" in given).parse_args(given)
    from asterism.config import ConfigError, warning_of
    from asterism.errors import PeerError
    from asterism.sdk.arguments import ARGUMENT_ERRORS, refusal_of

    try:
        if "config" in options and (warning := warning_of(os.environ)):
            output.warn(f"{PROGRAM}: {warning}")
        module = importlib.import_module(f"asterism.cli.{options.module}")
        return int(getattr(module, options.function)(options))
    except (PeerError, *ARGUMENT_ERRORS) as error:
        refusal = refusal_of(error)
        raise output.CommandError(output.refusal(refusal.code, refusal.detail)) from error
    except ConfigError as error:
        raise output.CommandError(str(error), output.WRONG_USE) from error
    except ConnectionError as error:
        raise output.CommandError(
            f"{error}. Start a broker with `asterism up`, or name another with --data, "
            "--address or ASTERISM_ADDRESS; `asterism doctor` looks closer.",
            output.UNREACHABLE,
        ) from error
    except TimeoutError as error:
        raise output.CommandError(output.late(error), output.UNREACHABLE) from error
    except ModuleNotFoundError as error:
        if error.name != "rocksdict":
            raise
        message = "this needs RocksDB: python -m pip install 'asterism[broker]'"
        raise output.CommandError(message, output.WRONG_USE) from error


def _is_bare_snapshot(given: list[str]) -> bool:
    """``asterism snapshot`` by itself takes one."""
    rest = given[1:]
    is_bare = not rest or (rest[0].startswith("-") and rest[0] not in ("-h", "--help"))
    return given[:1] == ["snapshot"] and is_bare


def _bench(given: list[str]) -> int:
    """The benchmark reads its own arguments."""
    try:
        bench = importlib.import_module("asterism.cli.bench")
    except ModuleNotFoundError as error:
        if error.name != "asterism.cli.bench":
            raise
        message = "this version has no benchmark; see asterism --help"
        raise output.CommandError(message, output.WRONG_USE) from None
    return int(bench.main(given))
