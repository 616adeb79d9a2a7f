"""The command line: ``fastload COMMAND``. A command's module is imported when the command is used.

Exit status: 0 done, 1 the data or the machine is at fault, 2 the command line is, 130 Ctrl-C,
143 SIGTERM, which ends a command as Ctrl-C does: with nothing left running and no temporary files.
With ``--json`` stdout has {"error": {"type", "message", "path", "record", "offset"}} where an error
ends it.
"""

from __future__ import annotations

import difflib
import importlib
import io
import json
import os
import re
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from .._printable import printable
from .._version import __version__
from ..errors import FastloadError, UsageError

# Name -> (module, whose click command is named `command`; one line for the list).
COMMANDS = {
    "pack": ("fastload.cli.pack", "Pack a folder, a list, a dataset or a store into one file."),
    "append": ("fastload.cli.append", "Add images to a store."),
    "concat": ("fastload.cli.concat", "Copy several stores into one."),
    "verify": ("fastload.cli.verify", "Check every record against its checksum."),
    "unpack": ("fastload.cli.unpack", "Write a store's images as files."),
    "info": ("fastload.cli.info", "Show what is inside a store."),
    "show": ("fastload.cli.show", "Draw what the network will see, before and after."),
    "autotune": ("fastload.cli.autotune", "Find the fastest settings on this machine."),
    "doctor": ("fastload.cli.doctor", "Say what holds a training script up."),
    "demo": ("fastload.cli.demo", "Pack, train, and compare with torch's DataLoader."),
}


_STATUS = (
    "Exit status: 0 done, 1 the data or the machine is at fault, 2 the command line is, "
    "130 Ctrl-C, 143 SIGTERM."
)


class _Group(click.Group):
    """Commands by name, loaded when used; errors of ours are one message and a status."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does it, with the commands that a mistyped one may have meant."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0].lower(), COMMANDS, n=3)
            hint = f"did you mean {' or '.join(near)}?" if near else f"one of {', '.join(COMMANDS)}"
            ctx.fail(f"no command {args[0]!r}: {hint}")
        return super().resolve_command(ctx, args)

    def _as_typed(self, message: str, given: Sequence[str]) -> str:
        """``message`` of the library with its arguments named as this command's options are."""
        command = self.get_command(click.Context(self), given[0]) if given else None
        for option in command.params if command is not None else ():
            if not isinstance(option, click.Option) or option.name is None:
                continue
            name, typed = option.name, option.opts[-1]
            message = re.sub(rf"\b{name}=(?:'([^']*)'|(?=[\w.]))", rf"{typed} \1", message)
            # A name that is also a word, such as split, is one only where a message begins with it.
            message = re.sub(rf"\b{name}\b" if "_" in name else rf"^{name}(?=:)", typed, message)
        return message

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(COMMANDS[cmd_name][0]).command
        if "Exit status" not in (command.epilog or ""):
            command.epilog = f"{command.epilog or ''}\n\n{_STATUS}"
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list, without importing a command for its first line."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

    def main(self, *args: Any, **kwargs: Any) -> NoReturn:
        kwargs["standalone_mode"] = False
        arguments = next((one for one in (*args, kwargs.get("args")) if one is not None), None)
        given = sys.argv[1:] if arguments is None else list(arguments)
        for stream in (sys.stdout, sys.stderr):  # names of files that no terminal can show
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        terminated: list[int] = []
        handler = _as_ctrl_c(terminated)
        others = warnings.formatwarning
        warnings.formatwarning = lambda message, category, *place, **more: self._as_typed(
            _format_warning(message, category), given
        )
        try:
            status = super().main(*args, **kwargs)
            sys.exit(status if isinstance(status, int) else 0)
        except click.ClickException as error:
            error.show()
            _fail(error, error.format_message(), error.exit_code, given)
        except (click.Abort, KeyboardInterrupt) as error:
            stop = error.__cause__ or error  # click makes its own of a KeyboardInterrupt
            click.echo(": ".join(["fastload: stopped", *map(str, stop.args)]), err=True)
            sys.exit(128 + signal.SIGTERM if terminated else 130)
        except BrokenPipeError:  # the reader of our output, such as `head`, has gone
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(1)
        except (FastloadError, OSError) as error:
            message = self._as_typed(_message(error), given)
            click.echo(f"fastload: error: {message}", err=True)
            _fail(error, message, 2 if isinstance(error, UsageError) else 1, given)
        except Exception as error:  # of the user's dataset or transform, or a bug of ours
            if not _asks_for_json(given):
                raise
            traceback.print_exc()
            _fail(error, f"{type(error).__name__}: {error}", 1, given)
        finally:
            warnings.formatwarning = others
            if handler is not None:
                signal.signal(signal.SIGTERM, handler)


def _as_ctrl_c(terminated: list[int]) -> Any:
    """Let SIGTERM raise KeyboardInterrupt, and ``terminated`` say so; the handler to put back.

    None, and nothing is done, where somebody handles it or this is not the main thread.
    """

    def stop(number: int, frame: Any) -> None:
        signal.signal(number, signal.SIG_DFL)  # another one ends the process at once
        terminated.append(number)
        raise KeyboardInterrupt

    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        return None
    return signal.signal(signal.SIGTERM, stop)


def _message(error: Exception) -> str:
    """Of an error of ours, or the system's, whose number helps nobody."""
    if isinstance(error, FastloadError) or not isinstance(error, OSError) or not error.strerror:
        return printable(str(error), keep="\n")
    return f"{error.filename!r}: {error.strerror}" if error.filename else error.strerror


def _asks_for_json(given: Sequence[str]) -> bool:
    return "--json" in given and given[0] != "demo"  # there it names a file


def _fail(error: Exception, message: str, status: int, given: Sequence[str]) -> NoReturn:
    """Exit with ``status``; where JSON was asked for, the error is what stdout has."""
    if _asks_for_json(given):
        what = {"type": type(error).__name__, "message": message}
        where = {name: getattr(error, name, None) for name in ("path", "record", "offset")}
        click.echo(json.dumps({"error": what | where}, indent=1))
    sys.exit(status)


def _format_warning(message: Warning | str, category: type[Warning]) -> str:
    """A line that looks like an error's; where in our code it comes from helps nobody."""
    name = "" if category in (UserWarning, RuntimeWarning) else f" ({category.__name__})"
    return f"fastload: warning{name}: {printable(str(message), keep=chr(10))}\n"


def _version(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    from .. import _native

    core = _native.load()
    click.echo(f"fastload {__version__}")
    if core is None:
        click.echo("native core: not built; the slower Python engine is used")
    else:
        click.echo(f"native core: built (libjpeg-turbo {core.jpeg_version()}, {core.simd()})")
    ctx.exit()


@click.group(
    cls=_Group,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=f"""\b
Completion by the tab key, in ~/.bashrc (zsh, fish: zsh_source, fish_source):
  eval "$(_FASTLOAD_COMPLETE=bash_source fastload)"

{_STATUS}""",
)
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_version,
    help="Show the version, and whether the native core is there.",
)  # fmt: skip
def main() -> None:
    """Pack images and load them fast.

    \b
    fastload pack ./imgs imgs.lmdb       pack a folder
    fastload info imgs.lmdb              what is inside
    """
