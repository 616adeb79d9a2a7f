"""The command line: ``fastload COMMAND``. A command's module is imported when the command is used.

Exit status: 0 success, 1 an error in the data or on the machine, such as nothing at a path or a
folder that cannot be written, 2 an error in the command line, 130 Ctrl-C, 143 SIGTERM. SIGTERM
stops a command as Ctrl-C does: nothing is left running, and no temporary files remain. With
``--json``, stdout gets
{"error": {"type", "message", "path", "record", "offset"}} if the command fails.
"""

from __future__ import annotations

import difflib
import importlib
import io
import json
import os
import re
import shlex
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, NoReturn, TypeAlias

import click

from .._printable import printable
from .._version import __version__
from ..errors import FastloadError, StoreNotFoundError, UsageError, type_next
from ._text import wrapped

# Name -> (module with a click command named `command`, one line for the list).
COMMANDS = {
    "pack": ("fastload.cli.pack", "Pack a folder, a list, a dataset or a store into one file."),
    "append": ("fastload.cli.append", "Add images to a store."),
    "concat": ("fastload.cli.concat", "Copy several stores into one."),
    "verify": ("fastload.cli.verify", "Check every record against its checksum."),
    "unpack": ("fastload.cli.unpack", "Write a store's images as files."),
    "info": ("fastload.cli.info", "Show the contents of a store."),
    "show": ("fastload.cli.show", "Draw images before and after the transform."),
    "autotune": ("fastload.cli.autotune", "Find the fastest settings on this machine."),
    "doctor": ("fastload.cli.doctor", "Find what slows a training script down."),
    "cache": ("fastload.cli.cache", "Show or delete what was fetched from URLs."),
}


_STATUS = (
    "Exit status: 0 success, 1 an error in the data or on the machine, 2 an error in the command "
    "line, 130 Ctrl-C, 143 SIGTERM."
)


# A group without a command is answered with its help; since click 8.2 that is an error.
_HELP: tuple[type[click.UsageError], ...] = tuple(
    filter(None, [getattr(click.exceptions, "NoArgsIsHelpError", None)])
)


class _Group(click.Group):
    """Loads commands when they are used, and prints fastload's errors as one message."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As in click, but suggests similar commands for a mistyped one."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0].lower(), COMMANDS, n=3, cutoff=0.7)
            hint = f"did you mean {' or '.join(near)}?" if near else f"one of {', '.join(COMMANDS)}"
            ctx.fail(f"no command {args[0]!r}: {hint}")
        return super().resolve_command(ctx, args)

    def _as_typed(self, message: str, given: Sequence[str]) -> str:
        """``message`` with the library's argument names replaced by the command's options."""
        command = self.get_command(click.Context(self), given[0]) if given else None
        for option in command.params if command is not None else ():
            if not isinstance(option, click.Option) or option.name is None:
                continue
            name, typed = option.name, option.opts[-1]
            if option.is_flag:
                message = re.sub(rf"\b{name}=True\b", typed, message)
            message = re.sub(rf"\b{name}=(?:'([^']*)'|(?=[\w.]))", rf"{typed} \1", message)
            # A name that is also a word, such as split, is replaced only at the message's start.
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
        """The list of commands, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

    def main(self, *args: Any, **kwargs: Any) -> NoReturn:
        kwargs["standalone_mode"] = False
        arguments = next((one for one in (*args, kwargs.get("args")) if one is not None), None)
        given = sys.argv[1:] if arguments is None else list(arguments)
        for stream in (sys.stdout, sys.stderr):  # file names may have undecodable bytes
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        terminated: list[int] = []
        handler = _as_ctrl_c(terminated)
        others = warnings.formatwarning
        warnings.formatwarning = lambda message, category, *place, **more: _shown(
            self._as_typed(_format_warning(message, category), given)
        )
        try:
            status = super().main(*args, **kwargs)
            sys.exit(status if isinstance(status, int) else 0)
        except click.ClickException as error:
            if isinstance(error, _HELP):
                error.show()
            else:
                _tell(_message(error))
            self._fail(error, error.format_message(), error.exit_code, given)
        except (click.Abort, KeyboardInterrupt) as error:
            stop = error.__cause__ or error  # click converts a KeyboardInterrupt to Abort
            click.echo(": ".join(["fastload: stopped", *map(str, stop.args)]), err=True)
            sys.exit(128 + signal.SIGTERM if terminated else 130)
        except BrokenPipeError:  # the reader of the output, such as `head`, has ended
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(1)
        except (FastloadError, OSError) as error:
            message = _retyped(error, self._as_typed(_message(error), given), given)
            _tell(message)
            self._fail(error, message, 2 if isinstance(error, UsageError) else 1, given)
        except Exception as error:  # from the user's dataset or transform, or a bug in fastload
            if not self._asks_for_json(given):
                raise
            traceback.print_exc()
            self._fail(error, f"{type(error).__name__}: {error}", 1, given)
        finally:
            warnings.formatwarning = others
            if handler is not None:
                signal.signal(signal.SIGTERM, handler)

    def _fail(self, error: Exception, message: str, status: int, given: Sequence[str]) -> NoReturn:
        """Exit with ``status``. With ``--json``, print the error as JSON first."""
        if self._asks_for_json(given):
            what = {"type": type(error).__name__, "message": message}
            where = {name: getattr(error, name, None) for name in ("path", "record", "offset")}
            click.echo(json.dumps({"error": what | where}, indent=1))
        sys.exit(status)

    def _asks_for_json(self, given: Sequence[str]) -> bool:
        """Whether the command is asked for JSON, and not the script that doctor passes words to."""
        if given[:1] == ["doctor"]:
            command = self.get_command(click.Context(self), "doctor")
            assert command is not None, "it is one of COMMANDS"
            parsed = command.make_context("doctor", [*given[1:]], resilient_parsing=True)
            given = given[: len(given) - len(parsed.params["arguments"] or ())]
        return "--json" in given


_Handler: TypeAlias = "Callable[[int, FrameType | None], Any] | int | None"


def _as_ctrl_c(terminated: list[int]) -> _Handler:
    """Make SIGTERM raise KeyboardInterrupt and append to ``terminated``.

    Returns the previous handler, to be restored. Does nothing and returns None if SIGTERM is
    handled already, or if this is not the main thread.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)  # a second one ends the process at once
        terminated.append(number)
        raise KeyboardInterrupt

    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        return None
    return signal.signal(signal.SIGTERM, stop)


def _tell(message: str) -> None:
    """Print an error: what is wrong, and what to type next."""
    text = wrapped(f"fastload: error: {message}", sys.stderr)
    click.echo(_coloured(text, "error", "red"), err=True)


def _message(error: Exception) -> str:
    """The message of an error; for errors of the system without their number."""
    if isinstance(error, click.UsageError) and error.ctx is not None:
        return f"{error.format_message()}{type_next(f'{error.ctx.command_path} --help')}"
    if isinstance(error, click.ClickException):
        return error.format_message()
    if isinstance(error, FastloadError) or not isinstance(error, OSError) or not error.strerror:
        return printable(str(error), keep="\n")
    return f"{error.filename!r}: {error.strerror}" if error.filename else error.strerror


def _retyped(error: Exception, message: str, given: Sequence[str]) -> str:
    """``message``; of a mistyped path, it ends with the command over what it may stand for.

    But not where the command has that already, as the other store or as what it writes.
    """
    if not isinstance(error, StoreNotFoundError) or error.path is None:
        return message
    from ..storage._nearby import nearest  # here, because --help does not need it

    near = None if os.path.exists(error.path) else nearest(error.path)
    paths = [os.path.abspath(word) for word in given]
    if near is None or paths.count(error.path) != 1 or near in paths:
        return message
    words = [near if path == error.path else word for word, path in zip(given, paths, strict=True)]
    typed = printable(shlex.join(["fastload", *words]))
    return message.partition("\ntype next: ")[0] + type_next(typed)


def _format_warning(message: Warning | str, category: type[Warning]) -> str:
    """A warning in one line, like an error, without its place in the code."""
    name = "" if category in (UserWarning, RuntimeWarning) else f" ({category.__name__})"
    return f"fastload: warning{name}: {printable(str(message), keep=chr(10))}\n"


def _shown(warning: str) -> str:
    """A warning with colours, if stderr is a terminal: Python writes it there itself."""
    if not sys.stderr.isatty():
        return warning
    return _coloured(wrapped(warning, sys.stderr), "warning", "yellow")


def _coloured(message: str, word: str, colour: str) -> str:
    """``message`` with colours for ``word`` and for the line to type next.

    click takes them away where the output is no terminal. NO_COLOR, if it is set and not empty,
    asks for none at all (no-color.org).
    """
    if os.environ.get("NO_COLOR"):
        return message
    message = message.replace(word, click.style(word, fg=colour, bold=True), 1)
    head, mark, line = message.partition("\ntype next: ")
    return f"{head}{mark}{click.style(line, fg='cyan')}" if mark else message


def _version(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    from .. import _native

    core = _native.load()
    click.echo(f"fastload {__version__}")
    if core is None:
        click.echo("native core: not built; FastLoader does what torch's DataLoader does")
    else:
        click.echo(f"native core: built ({_native.libraries()})")
        for format, library, version in (
            ("PNG", "libdeflate", core.png_version()),
            ("WebP", "libwebp", core.webp_version()),
        ):
            if version is None:
                click.echo(
                    f"{format}: left to Pillow, which is slower; the core was built without "
                    f"{library} (Debian, Ubuntu: apt install {library}-dev, and reinstall fastload)"
                )
    import PIL
    from PIL import features

    # Whose pixels the core's are, whichever libjpeg-turbo each has inside.
    jpeg = features.version("libjpeg_turbo")
    click.echo(f"Pillow {PIL.__version__} (libjpeg{f'-turbo {jpeg}' if jpeg else ''})")
    ctx.exit()


@click.group(
    cls=_Group,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=f"""\b
Tab completion, in ~/.bashrc (for zsh and fish: zsh_source, fish_source):
  eval "$(_FASTLOAD_COMPLETE=bash_source fastload)"

{_STATUS}""",
)
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_version,
    help="Show the version, and whether the native core is built.",
)  # fmt: skip
def main() -> None:
    """Pack images and load them fast.

    \b
    fastload pack ./imgs imgs.lmdb       pack a folder
    fastload info imgs.lmdb              show its contents
    """
