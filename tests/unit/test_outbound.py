"""Which hosts are reached through the proxy."""

from bot.sandbox.outbound import Outbound


def test_no_proxy_takes_names_suffixes_ports_addresses_and_networks() -> None:
    for no_proxy, host, is_direct in [
        *(("", "ghe.corp", False), ("", "localhost", True), ("", "127.0.0.1", True), ("", "::1", True)),
        *(("corp", "ghe.corp", True), (".corp", "ghe.corp", True), ("other, ghe.corp", "ghe.corp", True)),
        *(("ghe.corp", "api.ghe.corp", True), ("ghe.corp", "notghe.corp", False)),
        *(("ghe.corp:443", "ghe.corp", True), ("ghe.corp:8443", "ghe.corp", False), ("GHE.corp", "ghe.corp", True)),
        *(("10.0.0.0/8", "10.1.2.3", True), ("10.0.0.0/8", "11.1.2.3", False), ("10.1.2.3", "10.1.2.3", True)),
        *(("fd00::/8", "fd12::1", True), ("fd00::/8", "ghe.corp", False), ("a, *", "ghe.corp", True)),
    ]:
        proxy = Outbound("http://proxy.corp:3128", no_proxy).proxy_for(host, 443)
        assert (proxy is None) == is_direct
        assert Outbound(None, no_proxy).proxy_for(host, 443) is None
