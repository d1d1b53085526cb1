"""The hosts that an agent may reach through the egress proxy: public addresses on the web's ports.

The address decides. A name must only have the form of a public name. The special ranges are those of
https://www.iana.org/assignments/iana-ipv4-special-registry and …/iana-ipv6-special-registry.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv4Network, IPv6Address, IPv6Network

IPAddress = IPv4Address | IPv6Address

# Package registries, git over HTTP and APIs need no others. An agent has no key for ssh, and mail or databases
# would allow abuse in this host's name.
WEB_PORTS = frozenset({80, 443})


@dataclass(frozen=True, slots=True)
class Refused:
    """The address may not be connected to. The agent reads the reason."""

    why: str


@dataclass(frozen=True, slots=True)
class Target:
    """The host and port that a client asks for; the host is a name to resolve, or an address."""

    host: str | IPAddress
    port: int


_IPV4_SPECIAL = tuple(
    (IPv4Network(network), kind)
    for network, kind in (
        ("0.0.0.0/8", "an unspecified"),
        ("10.0.0.0/8", "a private"),
        ("100.64.0.0/10", "a carrier's shared"),
        ("127.0.0.0/8", "a loopback"),
        # Azure answers its virtual machines here: a public address by the registry, a metadata service in fact.
        ("168.63.129.16/32", "a cloud platform's"),
        ("169.254.0.0/16", "a link-local"),
        ("172.16.0.0/12", "a private"),
        ("192.0.0.0/24", "a reserved"),
        ("192.0.2.0/24", "a documentation"),
        ("192.88.99.0/24", "a 6to4 relay's"),
        ("192.168.0.0/16", "a private"),
        ("198.18.0.0/15", "a benchmarking"),
        ("198.51.100.0/24", "a documentation"),
        ("203.0.113.0/24", "a documentation"),
        ("224.0.0.0/4", "a multicast"),
        ("240.0.0.0/4", "a reserved"),
    )
)
_IPV6_SPECIAL = tuple(
    (IPv6Network(network), kind)
    for network, kind in (
        ("::1/128", "a loopback"),
        ("::/128", "an unspecified"),
        ("::ffff:0:0/96", "an IPv4-mapped"),
        ("fc00::/7", "a private"),
        ("fe80::/10", "a link-local"),
        ("ff00::/8", "a multicast"),
        ("2001::/32", "a Teredo"),
        ("2001::/23", "a reserved"),
        ("2001:db8::/32", "a documentation"),
        ("2002::/16", "a 6to4"),
        ("3fff::/20", "a documentation"),
    )
)
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


def may_reach(address: IPAddress, port: int, own_addresses: Collection[IPAddress]) -> Refused | None:
    """Return why an agent may not be connected to the address; None if it may. `own_addresses` are this host's."""
    if port not in WEB_PORTS:
        return Refused(f"port {port} is not one of {', '.join(map(str, sorted(WEB_PORTS)))}")
    if address in own_addresses:
        return Refused(f"{address} is an address of this host")
    match address:
        case IPv4Address():
            for network, kind in _IPV4_SPECIAL:
                if address in network:
                    return Refused(f"{address} is {kind} address")
            return None
        case IPv6Address():
            if address.scope_id is not None:
                return Refused(f"{address} names an interface")
            if address in _NAT64:
                return may_reach(IPv4Address(int(address) & 0xFFFF_FFFF), port, own_addresses)
            for network6, kind in _IPV6_SPECIAL:
                if address in network6:
                    return Refused(f"{address} is {kind} address")
            return None if address in _IPV6_GLOBAL else Refused(f"{address} is not a public address")


def parse_target(authority: str, default_port: int | None = None) -> Target | Refused:
    """Return the target of `host`, `host:port` or `[ipv6]:port`; refuse other forms and names of private networks."""
    parts = _AUTHORITY.fullmatch(authority)
    if parts is None:
        return Refused("not a host and a port")
    port = int(parts["port"]) if parts["port"] else default_port
    if port is None or not 0 < port < 65536:
        return Refused("not a host and a port")
    host = _literal_ipv6(parts["ipv6"]) if parts["ipv6"] else _host(parts["host"])
    return host if isinstance(host, Refused) else Target(host, port)


def _literal_ipv6(text: str) -> IPv6Address | Refused:
    try:
        return IPv6Address(text)
    except AddressValueError:
        return Refused("not an IPv6 address")


def _host(text: str) -> str | IPv4Address | Refused:
    name = text.lower().removesuffix(".")
    labels = name.split(".")
    if _NUMERIC_LABEL.fullmatch(labels[-1]):
        try:
            return IPv4Address(name)
        except AddressValueError:
            return Refused("not an IPv4 address in its usual notation")
    if len(name) > _MAX_NAME_LENGTH or not all(_LABEL.fullmatch(label) for label in labels):
        return Refused("not a host name")
    if len(labels) == 1 or name.endswith(_PRIVATE_SUFFIXES):
        return Refused(f"{name} is not a public name")
    return name
