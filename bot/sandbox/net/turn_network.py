"""The network of one turn by AGENT_NETWORK: the host's servers, and what the sandbox needs to use them."""

import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from pathlib import Path
from socket import socket
from typing import Literal

from bot.sandbox.bwrap import Bind
from bot.sandbox.net import relay
from bot.sandbox.net.egress import Dialer, Outside, egress_proxy, system_dialer
from bot.sandbox.net.models import ModelRoute, model_proxy, new_dummy
from bot.sandbox.net.rules import Destination
from bot.sandbox.net.sockets import loopback_socket, private_socket

NetworkMode = Literal["internet", "none", "host"]

LOOPBACK = IPv4Address("127.0.0.1")
# Each turn has its own namespace, so all have the same ports. The kernel assigns none of these by itself.
EGRESS_PORT = 19501
MODEL_PORT = 19502
# Where the namespace listens for the names in ALLOWED_HOSTS, one address each: for programs that know no proxy.
_FIRST_OF_ALLOWED = IPv4Address("127.88.0.1")
_FIRST_FREE_PORT = 1024  # the kernel gives nobody in the sandbox the others
_HOSTS = Path("/etc/hosts")


@dataclass(frozen=True, slots=True)
class Network:
    """The network settings of the agent's sandbox.

    `own_namespace`: a network namespace with only a loopback. `environment`: more variables for the agent; one is the
    key of the turn, so they do not belong into an argv. `binds`: files and folders to show, read-only.
    `wrapper`: the argv in front of `--` and the command.
    """

    own_namespace: bool
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    binds: tuple[Bind, ...] = ()
    wrapper: tuple[str, ...] = ()


@asynccontextmanager
async def open_network(
    mode: NetworkMode,
    directory: Path,
    model: ModelRoute | None,
    dialer: Dialer | None = None,
    outside: Outside | None = None,
) -> AsyncIterator[Network]:
    """Serve a turn's network until the end; `directory`, an absolute path, is empty and this turn's and user's alone.

    `internet`: a namespace with the egress proxy and the model route. `none`: one with the model route, and the egress
    proxy for ALLOWED_HOSTS alone. `host`: the host's own network, the model proxy on its loopback. Without a route
    there is no model proxy.
    """
    outside = outside or Outside()
    outbound = outside.outbound
    variables = outbound.for_programs(direct=mode == "host")
    binds = [Bind(outbound.bundle)] if outbound.bundle else []
    sockets: dict[str, Path] = {}
    async with AsyncExitStack() as stack:
        if model is not None:
            if mode == "host":
                listener = stack.enter_context(loopback_socket())
                port = listener.getsockname()[1]
            else:
                port = MODEL_PORT
                sockets[f"{LOOPBACK}:{port}"] = path = directory / "model.sock"
                listener = stack.enter_context(private_socket(path))
            dummy = new_dummy()
            served = model_proxy(listener, model, dummy, outbound, offline=mode == "none")
            await stack.enter_async_context(served)
            variables |= {model.base_url_variable: f"http://{LOOPBACK}:{port}", model.key_variable: dummy}
        if mode == "internet" or (mode == "none" and outside.allowed):
            local = {Destination(LOOPBACK, MODEL_PORT): path for path in sockets.values()}
            names: dict[str, IPv4Address] = {}
            tunnels: list[tuple[socket, Destination]] = []
            further = outside.further if mode == "internet" else frozenset()
            # A program can reach them by their name, without the proxy.
            named = (one for one in outside.allowed | further if isinstance(one.host, str))
            by_tunnel = (one for one in named if one.port >= _FIRST_FREE_PORT)
            for number, target in enumerate(sorted(by_tunnel, key=lambda one: (str(one.host), one.port))):
                place = names.setdefault(str(target.host), _FIRST_OF_ALLOWED + len(names))
                sockets[f"{place}:{target.port}"] = path = directory / f"allowed-{number}.sock"
                tunnels.append((stack.enter_context(private_socket(path)), target))
            if names:
                binds.append(Bind(_hosts_file(directory, names), at=_HOSTS))
            sockets[f"{LOOPBACK}:{EGRESS_PORT}"] = path = directory / "egress.sock"
            listener = stack.enter_context(private_socket(path))
            if dialer is None:
                dialer = await stack.enter_async_context(system_dialer())
            only_allowed = mode == "none"
            proxy = egress_proxy(listener, dialer, local, outside, only_allowed=only_allowed, tunnels=tunnels)
            await stack.enter_async_context(proxy)
            variables |= _proxy_variables(f"http://{LOOPBACK}:{EGRESS_PORT}")
        if not sockets:
            yield Network(own_namespace=mode != "host", environment=variables, binds=tuple(binds))
            return
        python, program, *others = _relay()
        forwards = (f"--forward={address}={path}" for address, path in sockets.items())
        yield Network(
            own_namespace=True,
            environment=variables,
            binds=(*binds, *map(Bind, (*sockets.values(), program, python, *others))),
            wrapper=(str(python), "-I", "-S", str(program), *forwards),
        )


def _hosts_file(directory: Path, names: Mapping[str, IPv4Address]) -> Path:
    """Write the names, before those that this machine knows, of which the first counts."""
    known = _HOSTS.read_text() if _HOSTS.is_file() else ""
    written = directory / "hosts"
    written.write_text("".join(f"{address} {name}\n" for name, address in names.items()) + known)
    return written


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
