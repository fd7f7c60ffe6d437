"""The command, run by vLLM's own entry point up to the point where it would start engine processes."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import io
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from .failures import HarnessLimit
from .simulated_device import Inert

PARSER_MODULES = (
    "vllm.entrypoints.common.cli_args",
    "vllm.entrypoints.launchers.cli_args",
    "vllm.entrypoints.openai.cli_args",
)
"""Where ``make_arg_parser`` lives: from 0.33 on, from 0.29 on, and before."""
_SERVER_MODULES = ("vllm.entrypoints.launchers.api_server.entry", "vllm.entrypoints.openai.api_server")


class Stop(BaseException):
    """The entry point has got to where processes or sockets would be started."""


class ParserExit(Exception):
    """vLLM's parser printed an error and left; the message is what it printed after ``error:``."""


class Command:
    """One launch, from words to engine config."""

    def __init__(self, entrypoint: str, argv: Sequence[str]) -> None:
        self._entrypoint = entrypoint
        self._argv = list(argv)
        self._namespace: Any = None
        self._serve: Any = None
        self.reached = ""
        """The function of vLLM that would have started the engine."""

    def parse(self) -> None:
        """Parse and validate. Raises ParserExit, or whatever vLLM raises."""
        from vllm.utils.argparse_utils import FlexibleArgumentParser

        if self._entrypoint == "api_server":
            make, validate = (
                first(PARSER_MODULES, "make_arg_parser"),
                first(PARSER_MODULES, "validate_parsed_serve_args"),
            )
            parser = make(FlexibleArgumentParser(description="vLLM OpenAI-Compatible RESTful API server."))
            words = self._argv
        else:
            parser, self._serve = _serve_parser(FlexibleArgumentParser)
            words, validate = ["serve", *self._argv], self._serve.validate
        printed = io.StringIO()
        try:
            with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(printed):
                self._namespace = parser.parse_args(words)
        except SystemExit as leaving:
            text = printed.getvalue()
            said = text.rpartition("error: ")[2].strip() if "error: " in text else text.strip()[-600:]
            raise ParserExit(said or f"exit status {leaving.code}") from None
        if any(word.startswith("--log-level") for word in self._argv):
            self._configure_logging()
        validate(self._namespace)

    def _configure_logging(self) -> None:
        """From 0.31 on the main function checks ``--log-level`` between parsing and validating."""
        configure = getattr(sys.modules.get("vllm.logger"), "configure_logging_from_args", None)
        if configure is not None:
            configure(self._namespace)

    def engine_config(self) -> Any:
        """The VllmConfig that the entry point creates. Raises what it raises on the way."""
        from vllm.engine.arg_utils import AsyncEngineArgs

        created: list[Any] = []
        original = AsyncEngineArgs.create_engine_config

        def create(arguments: Any, *args: Any, **kwargs: Any) -> Any:
            config = original(arguments, *args, **kwargs)
            created.append(config)
            return config

        AsyncEngineArgs.create_engine_config = create
        try:
            with _no_processes(self):
                if self._entrypoint == "api_server":
                    asyncio.run(first(_SERVER_MODULES, "run_server")(self._namespace))
                else:
                    self._serve.cmd(self._namespace)
        except Stop as stop:
            self.reached = str(stop)
        finally:
            AsyncEngineArgs.create_engine_config = original
        if not created:
            raise HarnessLimit(f"the entry point stopped at {self.reached or 'its end'} without an engine config")
        return created[-1]


def first(modules: Sequence[str], name: str) -> Any:
    """The attribute from the first of the modules that this release has."""
    for module in modules:
        try:
            found = getattr(importlib.import_module(module), name, None)
        except ModuleNotFoundError as missing:
            if (missing.name or "").startswith("vllm"):
                continue
            raise
        if found is not None:
            return found
    raise HarnessLimit(f"this vLLM has no {name} in {' or '.join(modules)}")


def _serve_parser(parser_class: Any) -> tuple[Any, Any]:
    """The parser of ``vllm`` with its serve sub-command, as the main function puts it together."""
    serve = importlib.import_module("vllm.entrypoints.cli.serve")
    parser = parser_class(description="vLLM CLI", prog="vllm")
    parser.add_argument("-v", "--version", action="version", version="")
    commands = parser.add_subparsers(required=False, dest="subparser")
    command = serve.cmd_init()[0]
    command.subparser_init(commands).set_defaults(dispatch_function=command.cmd)
    return parser, command


_STARTERS = (
    "launch_core_engines",
    "CoreEngineProcManager",
    "MultiprocExecutor",
    "bind_engine_zmq_listeners",
    "get_engine_zmq_addresses",
    "APIServerProcessManager",
)
"""What the entry points call once the config exists. Absent names are passed over: no release has all of them."""
_SILENT = ("set_ulimit", "log_non_default_args", "log_version_and_model", "setup_multiprocess_prometheus")
_SOCKETS = ("create_server_socket", "create_server_unix_socket")


class _Uvloop:
    """``uvloop.run`` without uvloop."""

    @staticmethod
    def run(coroutine: Any) -> Any:
        return asyncio.run(coroutine)


@contextlib.contextmanager
def _no_processes(command: Command) -> Iterator[None]:
    """Entry points open no socket and start no process; signal handlers are put back afterwards.

    The process ends after this launch, so patched modules need no cleaning up.
    """
    engine_utils = importlib.import_module("vllm.v1.engine.utils")
    async_llm = importlib.import_module("vllm.v1.engine.async_llm")
    serve = importlib.import_module("vllm.entrypoints.cli.serve")

    def stop(name: str) -> Any:
        def reached(*_args: Any, **_kwargs: Any) -> Any:
            raise Stop(name)

        return reached

    async_llm.AsyncLLM.from_vllm_config = classmethod(stop("AsyncLLM"))
    for module in (serve, engine_utils):
        for name in _STARTERS:
            if hasattr(module, name):
                setattr(module, name, stop(name))
    for name, module in list(sys.modules.items()):
        if not name.startswith("vllm.entrypoints") or module is None:
            continue
        members = vars(module)
        for quiet in _SILENT:
            if quiet in members:
                setattr(module, quiet, lambda *_args, **_kwargs: None)
        for socket in _SOCKETS:
            if socket in members:
                setattr(module, socket, lambda *_args, **_kwargs: Inert())
        if "uvloop" in members:
            module.uvloop = _Uvloop  # type: ignore[attr-defined]
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
