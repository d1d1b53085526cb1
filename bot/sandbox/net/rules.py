"""The hosts that an agent may reach through the egress proxy: public addresses on the web's ports, and ALLOWED_HOSTS.

The address decides. A name must only have the form of a public name. The special ranges are those of IANA's registries,
as `ipaddress` knows them.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv6Address, IPv6Network, ip_network

IPAddress = IPv4Address | IPv6Address

# Package registries, git over HTTP and APIs need no others. An agent has no key for ssh, and mail or databases
# would allow abuse in this host's name.
WEB_PORTS = frozenset({80, 443})


class NotReachableError(ValueError):
    """The address may not be connected to. The agent reads the reason."""


@dataclass(frozen=True, slots=True)
class Destination:
    """The host and port that a client asks for; the host is a name to resolve, or an address."""

    host: str | IPAddress
    port: int


# Public by the registries, but not a server on the internet.
_NOT_PUBLIC = tuple(
    map(
        ip_network,
        (
            "168.63.129.16/32",  # Azure answers its virtual machines here, as a metadata service
            "192.0.0.0/24",  # protocol assignments
            "192.88.99.0/24",  # 6to4 relays
            "2001::/23",  # Teredo, and protocol assignments
            "2001:db8::/32",  # documentation
            "2002::/16",  # 6to4: leads to any IPv4 address
            "3fff::/20",  # documentation
        ),
    )
)
# Where a name of ALLOWED_HOSTS may lead besides: the networks of a company, but for what clouds answer there.
_PRIVATE = tuple(map(ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")))
_METADATA = tuple(map(ip_network, ("100.100.100.200/32", "fd00:ec2::/32", "fd20:ce::/32")))
_IPV6_GLOBAL = IPv6Network("2000::/3")
# How a host without IPv4 reaches every IPv4 address (https://www.rfc-editor.org/rfc/rfc6052#section-2.1).
_NAT64 = IPv6Network("64:ff9b::/96")

_AUTHORITY = re.compile(r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+)\]|(?P<host>[A-Za-z0-9._-]+))(?::(?P<port>[0-9]{1,5}))?")
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
# What resolvers that take old notations read as part of an IPv4 address (https://url.spec.whatwg.org/#ends-in-a-number-checker).
_NUMERIC_LABEL = re.compile(r"[0-9]+|0x[0-9a-f]*")
_MAX_NAME_LENGTH = 253
# RFC 6761, RFC 6762, RFC 8375, and ICANN's reservation of .internal.
_PRIVATE_SUFFIXES = (".localhost", ".local", ".home.arpa", ".internal")


def require_reachable(address: IPAddress, own_addresses: Collection[IPAddress]) -> None:
    """Raise NotReachableError where an agent may not be connected to the address. `own_addresses` are this host's."""
    if address in own_addresses:
        raise NotReachableError(f"{address} is an address of this host")
    if isinstance(address, IPv6Address) and address.scope_id is None and address in _NAT64:
        require_reachable(IPv4Address(int(address) & 0xFFFF_FFFF), own_addresses)
    elif not is_public(address):
        raise NotReachableError(f"{address} is not a public address")


def require_web_port(port: int) -> None:
    """Raise NotReachableError for a port that is not open on public hosts."""
    if port not in WEB_PORTS:
        raise NotReachableError(f"port {port} is not one of {', '.join(map(str, sorted(WEB_PORTS)))}")


def require_within_reach(address: IPAddress, own_addresses: Collection[IPAddress]) -> None:
    """Raise NotReachableError where a name in ALLOWED_HOSTS may not lead to the address, on any port.

    Whoever answers for the name could choose this host or its cloud otherwise. The operator can name these by address.
    """
    is_private = any(address in network for network in _PRIVATE) and not any(address in one for one in _METADATA)
    if address in own_addresses or not (is_private or is_public(address)):
        raise NotReachableError(f"{address} is neither a public address nor one of a private network")


def is_public(address: IPAddress) -> bool:
    """Return whether the address is a server's on the internet."""
    if isinstance(address, IPv6Address) and (address.scope_id is not None or address not in _IPV6_GLOBAL):
        return False
    return address.is_global and not address.is_multicast and not any(address in network for network in _NOT_PUBLIC)


def parse_target(authority: str, default_port: int | None = None) -> Destination:
    """Return the target of `host`, `host:port` or `[ipv6]:port`. Raises NotReachableError for other forms."""
    parts = _AUTHORITY.fullmatch(authority)
    port = int(parts["port"]) if parts and parts["port"] else default_port
    if parts is None or port is None or not 0 < port < 65536:
        raise NotReachableError("not a host and a port")
    try:
        return Destination(IPv6Address(parts["ipv6"]) if parts["ipv6"] else _host(parts["host"]), port)
    except AddressValueError as error:
        raise NotReachableError("not an address in its usual notation") from error


def _host(text: str) -> str | IPv4Address:
    name = text.lower().removesuffix(".")
    labels = name.split(".")
    if _NUMERIC_LABEL.fullmatch(labels[-1]):
        return IPv4Address(name)
    if len(name) > _MAX_NAME_LENGTH or not all(_LABEL.fullmatch(label) for label in labels):
        raise NotReachableError("not a host name")
    return name


def require_public_name(name: str) -> None:
    """Raise NotReachableError for a name of a private network. Upper case, or a dot at the end, must be gone."""
    if "." not in name or name.endswith(_PRIVATE_SUFFIXES):
        raise NotReachableError(f"{name} is not a public name")
