"""The network of one turn by AGENT_NETWORK: the host's servers, and what the cage needs to use them."""

import socket
import ssl
import sys
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from pathlib import Path
from typing import Literal, assert_never

from bot.network import relay
from bot.network.egress import Dialer, egress_proxy, system_dialer
from bot.network.models import ModelRoute, model_proxy, new_dummy
from bot.network.rules import IPAddress, Target
from bot.network.sockets import loopback_socket, private_socket

NetworkMode = Literal["internet", "none", "host"]

LOOPBACK = IPv4Address("127.0.0.1")
# Each turn has its own namespace, so all have the same ports. The kernel assigns none of these by itself.
EGRESS_PORT = 19501
MODEL_PORT = 19502


@dataclass(frozen=True, slots=True)
class Network:
    """What the agent's cage needs.

    `own_namespace`: a network namespace with only a loopback. `environment`: more variables for the agent; one is the
    key of the turn, so they do not belong into an argv. `binds`: files and folders to show at their own paths,
    read-only. `wrapper`: the argv in front of `--` and the command.
    """

    own_namespace: bool
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    binds: tuple[Path, ...] = ()
    wrapper: tuple[str, ...] = ()

    def wrap(self, argv: Sequence[str]) -> tuple[str, ...]:
        """Return the argv to run in the cage instead of the agent's own."""
        return (*self.wrapper, "--", *argv) if self.wrapper else tuple(argv)


@asynccontextmanager
async def open_network(
    mode: NetworkMode,
    directory: Path,
    model: ModelRoute | None,
    own_addresses: Collection[IPAddress],
    dialer: Dialer | None = None,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[Network]:
    """Serve a turn's network until the end; `directory` is empty, exists, and is the turn's and this user's alone.

    `internet`: a namespace with the egress proxy and the model route. `none`: one with the model route alone.
    `host`: the host's own network, the model proxy on its loopback. Without a route there is no model proxy.
    The egress proxy refuses `own_addresses` and the addresses of this host. All turns share `tls`
    (`httpx.create_ssl_context()`), because making one takes a tenth of a second.
    """
    served = None if model is None else _Model(model, tls)
    async with AsyncExitStack() as stack:
        match mode:
            case "host":
                yield await _host_network(stack, served)
            case "none":
                yield await _caged_network(stack, directory, served, None)
            case "internet":
                if dialer is None:
                    dialer = await stack.enter_async_context(system_dialer())
                yield await _caged_network(stack, directory, served, _Egress(dialer, own_addresses))
            case _:
                assert_never(mode)


@dataclass(frozen=True, slots=True)
class _Model:
    route: ModelRoute
    tls: ssl.SSLContext | None


@dataclass(frozen=True, slots=True)
class _Egress:
    dialer: Dialer
    own_addresses: Collection[IPAddress]


async def _host_network(stack: AsyncExitStack, model: _Model | None) -> Network:
    if model is None:
        return Network(own_namespace=False)
    listener = stack.enter_context(loopback_socket())
    variables = await _serve_model(stack, listener, model, listener.getsockname()[1])
    return Network(own_namespace=False, environment=variables)


async def _caged_network(
    stack: AsyncExitStack, directory: Path, model: _Model | None, egress: _Egress | None
) -> Network:
    variables: dict[str, str] = {}
    sockets: dict[int, Path] = {}
    local: dict[Target, Path] = {}
    if model is not None:
        path = sockets[MODEL_PORT] = local[Target(LOOPBACK, MODEL_PORT)] = directory / "model.sock"
        variables |= await _serve_model(stack, stack.enter_context(private_socket(path)), model, MODEL_PORT)
    if egress is not None:
        path = sockets[EGRESS_PORT] = directory / "egress.sock"
        listener = stack.enter_context(private_socket(path))
        await stack.enter_async_context(egress_proxy(listener, egress.dialer, egress.own_addresses, local))
        variables |= _proxy_variables(f"http://{LOOPBACK}:{EGRESS_PORT}")
    if not sockets:
        return Network(own_namespace=True)
    python, program, *others = _relay()
    forwards = (f"--forward={LOOPBACK}:{port}={path.absolute()}" for port, path in sockets.items())
    return Network(
        own_namespace=True,
        environment=variables,
        binds=(*(path.absolute() for path in sockets.values()), program, python, *others),
        wrapper=(str(python), "-I", "-S", str(program), *forwards),
    )


async def _serve_model(stack: AsyncExitStack, listener: socket.socket, model: _Model, port: int) -> Mapping[str, str]:
    """Serve the route on the listener; return the variables that point the agent to it."""
    dummy = new_dummy()
    await stack.enter_async_context(model_proxy(listener, model.route, dummy, model.tls))
    return {model.route.base_url_variable: f"http://{LOOPBACK}:{port}", model.route.key_variable: dummy}


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
