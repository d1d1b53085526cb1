"""The network of one turn by AGENT_NETWORK: the host's servers, and what the cage needs to use them."""

import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from pathlib import Path
from typing import Literal

from bot.network import relay
from bot.network.egress import Dialer, egress_proxy, system_dialer
from bot.network.models import ModelRoute, model_proxy, new_dummy
from bot.network.rules import Destination
from bot.network.sockets import loopback_socket, private_socket

NetworkMode = Literal["internet", "none", "host"]

LOOPBACK = IPv4Address("127.0.0.1")
# Each turn has its own namespace, so all have the same ports. The kernel assigns none of these by itself.
EGRESS_PORT = 19501
MODEL_PORT = 19502


@dataclass(frozen=True, slots=True)
class Network:
    """The network settings of the agent's cage.

    `own_namespace`: a network namespace with only a loopback. `environment`: more variables for the agent; one is the
    key of the turn, so they do not belong into an argv. `binds`: files and folders to show at their own paths,
    read-only. `wrapper`: the argv in front of `--` and the command.
    """

    own_namespace: bool
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    binds: tuple[Path, ...] = ()
    wrapper: tuple[str, ...] = ()


@asynccontextmanager
async def open_network(
    mode: NetworkMode, directory: Path, model: ModelRoute | None, dialer: Dialer | None = None
) -> AsyncIterator[Network]:
    """Serve a turn's network until the end; `directory`, an absolute path, is empty and this turn's and user's alone.

    `internet`: a namespace with the egress proxy and the model route. `none`: one with the model route alone.
    `host`: the host's own network, the model proxy on its loopback. Without a route there is no model proxy.
    """
    variables: dict[str, str] = {}
    sockets: dict[int, Path] = {}
    async with AsyncExitStack() as stack:
        if model is not None:
            if mode == "host":
                listener = stack.enter_context(loopback_socket())
                port = listener.getsockname()[1]
            else:
                port = MODEL_PORT
                sockets[port] = directory / "model.sock"
                listener = stack.enter_context(private_socket(sockets[port]))
            dummy = new_dummy()
            await stack.enter_async_context(model_proxy(listener, model, dummy, offline=mode == "none"))
            variables |= {model.base_url_variable: f"http://{LOOPBACK}:{port}", model.key_variable: dummy}
        if mode == "internet":
            local = {Destination(LOOPBACK, port): path for port, path in sockets.items()}
            sockets[EGRESS_PORT] = directory / "egress.sock"
            listener = stack.enter_context(private_socket(sockets[EGRESS_PORT]))
            if dialer is None:
                dialer = await stack.enter_async_context(system_dialer())
            await stack.enter_async_context(egress_proxy(listener, dialer, local))
            variables |= _proxy_variables(f"http://{LOOPBACK}:{EGRESS_PORT}")
        if not sockets:
            yield Network(own_namespace=mode != "host", environment=variables)
            return
        python, program, *others = _relay()
        forwards = (f"--forward={LOOPBACK}:{port}={path}" for port, path in sockets.items())
        yield Network(
            own_namespace=True,
            environment=variables,
            binds=(*sockets.values(), program, python, *others),
            wrapper=(str(python), "-I", "-S", str(program), *forwards),
        )


def _proxy_variables(url: str) -> dict[str, str]:
    """Return the variables by which programs find a proxy. curl reads http_proxy in lower case only."""
    variables = {"HTTP_PROXY": url, "HTTPS_PROXY": url, "NO_PROXY": "localhost,127.0.0.1,::1"}
    # https://nodejs.org/api/cli.html#node_use_env_proxy1
    return variables | {name.lower(): value for name, value in variables.items()} | {"NODE_USE_ENV_PROXY": "1"}


def _relay() -> tuple[Path, Path, Path]:
    """Return the Python that runs the relay, the relay, and the folder of this Python, which may be outside /usr.

    It is the Python below a virtual environment: the relay needs only the standard library.
    """
    executable = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    return executable, Path(relay.__file__).resolve(), Path(sys.base_prefix).resolve()
