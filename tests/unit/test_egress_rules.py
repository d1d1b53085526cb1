"""Which addresses and names an agent may reach."""

from collections.abc import Collection
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bot.sandbox.net.rules import (
    Destination,
    IPAddress,
    NotReachableError,
    parse_target,
    require_public_name,
    require_reachable,
    require_web_port,
    require_within_reach,
)

PUBLIC = (
    *("1.1.1.1", "93.184.215.14", "172.15.255.255", "172.32.0.0", "100.63.255.255"),
    *("100.128.0.0", "223.255.255.255"),
)
PUBLIC_IPV6 = ("2606:4700:4700::1111", "2a00:1450:4001:80b::200e", "2001:4860:4860::8888")
NOT_PUBLIC = (
    *("0.0.0.1", "10.1.2.3", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.255.255.255", "169.254.169.254"),
    *("172.16.0.1", "172.31.255.255", "192.0.0.192", "192.168.1.1", "198.18.0.1", "224.0.0.1", "239.255.255.255"),
    *("240.0.0.1", "255.255.255.255", "168.63.129.16"),
    *("::", "::1", "fe80::1", "fe80::1%eth0", "febf::1", "fec0::1", "fc00::1", "fd00:ec2::254", "ff02::1", "100::1"),
    *("2001:db8::1", "2001:10::1", "3fff::1", "5f00::1", "4000::1"),
)
NAT64 = ip_network("64:ff9b::/96")
ipv4 = st.ip_addresses(v=4)


def reaches(address: IPAddress, port: int, own: Collection[IPAddress]) -> bool:
    try:
        require_web_port(port)
        require_reachable(address, own)
    except NotReachableError:
        return False
    return True


def embeddings(address: IPv4Address) -> dict[str, IPv6Address]:
    """Return the IPv6 addresses that contain an IPv4 address."""
    number = int(address)
    return {
        "mapped": IPv6Address((0xFFFF << 32) | number),
        "compatible": IPv6Address(number),
        "translated": IPv6Address((0xFFFF << 48) | number),
        "6to4": IPv6Address((0x2002 << 112) | (number << 80)),
        "Teredo": IPv6Address((0x2001_0000 << 96) | (number ^ 0xFFFF_FFFF)),
        "NAT64": IPv6Address((0x64_FF9B << 96) | number),
        "local NAT64": IPv6Address((0x64_FF9B_0001 << 80) | number),
    }


def test_public_addresses_are_reached_on_the_ports_of_the_web() -> None:
    for address in [*PUBLIC, *PUBLIC_IPV6]:
        for port in [80, 443]:
            assert reaches(ip_address(address), port, ())


def test_addresses_of_this_host_its_network_and_its_cloud_are_refused() -> None:
    for address in NOT_PUBLIC:
        assert not reaches(ip_address(address), 443, ())


@given(st.ip_addresses())
@example(ip_address("192.0.0.9"))
@example(ip_address("64:ff9b::100:0"))
def test_what_is_not_global_by_the_registries_is_refused(address: IPAddress) -> None:
    # A NAT64 address leads to an IPv4 address, whose rules apply.
    if address not in NAT64 and (not address.is_global or address.is_multicast or address.is_reserved):
        assert not reaches(address, 443, ())


@given(
    st.sampled_from(
        [
            *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
            *("192.168.0.0/16", "224.0.0.0/4", "240.0.0.0/4", "fc00::/7", "fe80::/10", "ff00::/8", "2002::/16"),
        ]
    ).flatmap(lambda network: st.ip_addresses(network=ip_network(network)))
)
def test_every_address_of_a_special_range_is_refused(address: IPAddress) -> None:
    assert not reaches(address, 443, ())


@given(ipv4)
@example(IPv4Address("127.0.0.1"))
@example(IPv4Address("169.254.169.254"))
def test_no_ipv6_form_reaches_more_than_the_ipv4_address_in_it(address: IPv4Address) -> None:
    plain = reaches(address, 443, ())
    forms = {form: reaches(embedded, 443, ()) for form, embedded in embeddings(address).items()}
    assert forms.pop("NAT64") == plain
    assert not any(forms.values()), forms


@given(st.ip_addresses(), st.integers(0, 65535))
def test_own_addresses_are_refused_whatever_they_are(address: IPAddress, port: int) -> None:
    assert not reaches(address, port, {address})


def test_an_own_address_is_refused_through_nat64_too() -> None:
    own = IPv4Address("93.184.215.14")
    assert not reaches(embeddings(own)["NAT64"], 443, {own})


@given(st.integers(0, 65535))
@example(22)
@example(25)
@example(5432)
def test_only_the_webs_ports_are_open(port: int) -> None:
    assert reaches(ip_address("1.1.1.1"), port, ()) == (port in {80, 443})


def test_a_host_and_port_are_read() -> None:
    cases: list[tuple[str, str | IPAddress]] = [
        ("example.org:443", "example.org"),
        ("Example.Org.:443", "example.org"),
        ("_acme.a-b.example.com:443", "_acme.a-b.example.com"),
        ("1.1.1.1:443", IPv4Address("1.1.1.1")),
        ("127.0.0.1:443", IPv4Address("127.0.0.1")),
        ("[2606:4700::1]:443", IPv6Address("2606:4700::1")),
    ]
    for asked, host in cases:
        assert parse_target(asked) == Destination(host, 443)


def test_what_is_no_public_host_and_port_is_refused() -> None:
    for asked in [
        # Notations of 127.0.0.1 that old resolvers accept.
        *("2130706433:443", "0x7f000001:443", "0x7f.1:443", "017700000001:443", "127.1:443", "0177.0.0.1:443"),
        *("127.0.0.01:443", "0:443", "0x:443", "1.2.3.4.5:443", "256.1.1.1:443"),
        *("localhost:443", "LOCALHOST.:443", "a.localhost:443", "metadata:443", "metadata.google.internal:443"),
        *("printer.local:443", "nas.home.arpa:443", "a..b.example:443", ".example.com:443", "-a.example.com:443"),
        *("example.com", "example.com:", "example.com:0", "example.com:65536", "example.com:443:443", ":443", ""),
        *("user@example.com:443", "exämple.com:443", "example.com:443/path", "[::1%25lo]:443", "[1.1.1.1]:443"),
        *("example.com:443\n", "exam ple.com:443", f"{'a' * 64}.com:443", f"{'a.' * 127}com:443", "example.com:٤٤٣"),
    ]:
        with pytest.raises(NotReachableError):
            require_public_name(str(parse_target(asked).host))


@pytest.mark.parametrize(
    ("address", "is_open"),
    [
        *((address, True) for address in ("10.1.2.3", "172.16.0.1", "192.168.1.1", "100.64.0.1", "fd12::1", *PUBLIC)),
        # This host, its link, multicast, and what clouds answer their machines.
        *((address, False) for address in ("127.0.0.1", "169.254.169.254", "0.0.0.1", "224.0.0.1", "255.255.255.255")),
        *((address, False) for address in ("168.63.129.16", "100.100.100.200", "fd00:ec2::254", "fd20:ce::254")),
        *((address, False) for address in ("::1", "::", "fe80::1", "fe80::1%eth0", "ff02::1", "::ffff:10.1.2.3")),
        *((address, False) for address in ("64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1")),
    ],
)
def test_a_name_that_the_operator_allowed_leads_to_private_networks_but_not_to_this_host(
    address: str, is_open: bool
) -> None:
    try:
        require_within_reach(ip_address(address), {ip_address("10.9.9.9")})
    except NotReachableError:
        assert not is_open
    else:
        assert is_open
    with pytest.raises(NotReachableError):
        require_within_reach(ip_address(address), {ip_address(address)})


@given(st.text(alphabet="0123456789abcdefxX.:[]%@/-", max_size=30))
def test_nothing_that_is_asked_for_is_a_bug(asked: str) -> None:
    with suppress(NotReachableError):
        parse_target(asked, default_port=80)
