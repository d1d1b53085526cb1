"""The network of one turn, as AGENT_NETWORK says: what the host serves for it, and what the cage needs to use that."""

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
from bot.network.egress import Outside, egress_proxy, real_outside
from bot.network.models import ModelRoute, model_proxy, new_dummy
from bot.network.rules import IPAddress, Target
from bot.network.sockets import loopback_socket, private_socket

NetworkMode = Literal["internet", "none", "host"]

LOOPBACK = IPv4Address("127.0.0.1")
# In a namespace of its own a turn can have the same ports as every other; below those the kernel gives out by itself.
EGRESS_PORT = 19501
MODEL_PORT = 19502


@dataclass(frozen=True, slots=True)
class Network:
    """What the agent's cage is given.

    `own_namespace`: whether it gets a network namespace, with nothing but a loopback that is up. `environment`: more
    variables for the agent, of which one is a key, if only a turn's: not for an argv. `binds`: files and folders to
    show inside at the paths they have outside, read-only. `wrapper`: what stands in front of `--` and the command.
    """

    own_namespace: bool
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    binds: tuple[Path, ...] = ()
    wrapper: tuple[str, ...] = ()

    def wrap(self, argv: Sequence[str]) -> tuple[str, ...]:
        """The argv to run inside the cage for the agent's own."""
        return (*self.wrapper, "--", *argv) if self.wrapper else tuple(argv)


@asynccontextmanager
async def open_network(
    mode: NetworkMode,
    directory: Path,
    model: ModelRoute | None,
    own_addresses: Collection[IPAddress],
    outside: Outside | None = None,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[Network]:
    """Serve a turn's network until the end; `directory` is empty, exists, and is the turn's and this user's alone.

    `internet`: a namespace with the egress proxy and the model route. `none`: one with the model route alone.
    `host`: the host's own network, the model proxy on its loopback. Without a route there is no model proxy.
    `own_addresses` are addresses the egress proxy refuses beside those this host's kernel takes for its own.
    `tls` (`httpx.create_ssl_context()`) is for all turns to share: to make one takes a tenth of a second.
    """
    served = None if model is None else _Model(model, tls)
    async with AsyncExitStack() as stack:
        match mode:
            case "host":
                yield await _host_network(stack, served)
            case "none":
                yield await _caged_network(stack, directory, served, None)
            case "internet":
                if outside is None:
                    outside = await stack.enter_async_context(real_outside())
                yield await _caged_network(stack, directory, served, _WayOut(outside, own_addresses))
            case _:
                assert_never(mode)


@dataclass(frozen=True, slots=True)
class _Model:
    route: ModelRoute
    tls: ssl.SSLContext | None


@dataclass(frozen=True, slots=True)
class _WayOut:
    outside: Outside
    own_addresses: Collection[IPAddress]


async def _host_network(stack: AsyncExitStack, model: _Model | None) -> Network:
    if model is None:
        return Network(own_namespace=False)
    listener = stack.enter_context(loopback_socket())
    variables = await _serve_model(stack, listener, model, listener.getsockname()[1])
    return Network(own_namespace=False, environment=variables)


async def _caged_network(
    stack: AsyncExitStack, directory: Path, model: _Model | None, egress: _WayOut | None
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
        await stack.enter_async_context(egress_proxy(listener, egress.outside, egress.own_addresses, local))
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
    """Serve the route on the listener; gives the variables that lead the agent there."""
    dummy = new_dummy()
    await stack.enter_async_context(model_proxy(listener, model.route, dummy, model.tls))
    return {model.route.base_url_variable: f"http://{LOOPBACK}:{port}", model.route.key_variable: dummy}


def _proxy_variables(url: str) -> dict[str, str]:
    """The variables by which programs find a proxy; curl, for one, reads http_proxy in lower case only."""
    variables = {"HTTP_PROXY": url, "HTTPS_PROXY": url, "NO_PROXY": "localhost,127.0.0.1,::1"}
    # https://nodejs.org/api/cli.html#node_use_env_proxy1
    return variables | {name.lower(): value for name, value in variables.items()} | {"NODE_USE_ENV_PROXY": "1"}


def _relay() -> tuple[Path, Path, Path]:
    """The Python that runs the relay, the relay, and the folder this Python is installed in, which may be outside /usr.

    Python is the one beneath a virtual environment, since all the relay needs is the standard library.
    """
    executable = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    return executable, Path(relay.__file__).resolve(), Path(sys.base_prefix).resolve()
