"""The examples in docs/install/proxy, run by nginx and Caddy in front of a bot; skipped where a program is missing."""

import asyncio
import os
import re
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from secrets import randbelow
from tempfile import TemporaryDirectory

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.end_to_end.conftest import Worlds
from tests.support.patience import PATIENCE_SECONDS, eventually
from tests.support.webhook_sender import Sender, comment

EXAMPLES = Path(__file__).parents[2] / "docs/install/proxy"
PUBLIC, PRIVATE = "threadtree.example.com", "threadtree.internal.example.com"
UPSTREAM = "127.0.0.1:8000"
TOKEN = "a-token-of-the-dashboard"
SECRET = b"a secret of the webhook"
PEOPLE, ONE_OF_THEM, STRANGER = "10.0.0.0/8", "127.0.0.2", "127.0.0.3"
PORT = 8443
BEHIND_IT = (
    *("/", "/login", "/metrics", "/healthz", "/readyz", "/api/turns", "/api/events", "/events", "/webhooks"),
    *("/webhooks/github", "/webhooks/github/", "/webhooks//github"),
    *("/webhooks/github/../../login", "/webhooks/github/.."),
)
LARGEST = b'{"zen": "' + b"z" * (25 * 1024 * 1024 - 11) + b'"}'
"""As large as GitHub's payloads become."""
OF_METRICS = ("/metrics", "/%6detrics", "/static/../metrics", "/metrics?x")

Prepare = Callable[[Path, "Certificate", str, str], tuple[str, ...]]


class Certificate:
    """A certificate for both names, and what a client needs to believe it."""

    def __init__(self, folder: Path) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, PUBLIC)])
        names = x509.SubjectAlternativeName([x509.DNSName(PUBLIC), x509.DNSName(PRIVATE)])
        made = (
            x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
            .not_valid_before(datetime.now(UTC) - timedelta(days=1))
            .not_valid_after(datetime.now(UTC) + timedelta(days=1))
            .add_extension(names, critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(key, hashes.SHA256())
        )
        self.chain, self.key = folder / "fullchain.pem", folder / "privkey.pem"
        self.chain.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        self.key.write_bytes(key.private_bytes(*form))


def nginx(folder: Path, certificate: Certificate, address: str, upstream: str) -> tuple[str, ...]:
    """Write the example for this folder; return the command that serves it at this address."""
    site = (EXAMPLES / "nginx.conf").read_text().replace(UPSTREAM, upstream)
    site = site.replace("listen 443 ssl;", f"listen {address}:{PORT} ssl;").replace(PEOPLE, ONE_OF_THEM)
    site = re.sub(r"ssl_certificate .*;", f"ssl_certificate {certificate.chain};", site)
    site = re.sub(r"ssl_certificate_key .*;", f"ssl_certificate_key {certificate.key};", site)
    kept = [f"{name}_temp_path {folder}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")]
    kept += ["access_log off;", site]
    main = ["daemon off;", f"pid {folder}/pid;", "error_log stderr;", "events {}", f"http {{ {chr(10).join(kept)} }}"]
    if os.geteuid() == 0:
        main.insert(0, "user root;")  # it must reach the folder
    (folder / "nginx.conf").write_text("\n".join(main))
    command = ("nginx", "-e", "stderr", "-p", str(folder), "-c", str(folder / "nginx.conf"))
    checked = subprocess.run((*command, "-t"), capture_output=True, text=True, check=False)
    assert "test is successful" in checked.stderr, checked.stderr
    return command


def caddy(folder: Path, certificate: Certificate, address: str, upstream: str) -> tuple[str, ...]:
    """Write the example for this folder; return the command that serves it at this address."""
    site = (EXAMPLES / "Caddyfile").read_text().replace(UPSTREAM, upstream).replace(PEOPLE, ONE_OF_THEM)
    for name in (PUBLIC, PRIVATE):
        ours = f"bind {address}\n\ttls {certificate.chain} {certificate.key}"
        site = site.replace(f"\n{name} {{", f"\n{name} {{\n\t{ours}")
    of_this_test = f"admin off\n\tauto_https disable_redirects\n\thttps_port {PORT}"
    (folder / "Caddyfile").write_text(f"{{\n\t{of_this_test}\n}}\n{site}")
    return ("caddy", "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile")


class Site(httpx.AsyncHTTPTransport):
    """What a client needs to reach names at this address, from another address of this machine."""

    def __init__(self, address: str, folder: Path, client: str) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(folder / "fullchain.pem")
        super().__init__(verify=context, local_address=client)
        self._address = address

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send the request to the proxy."""
        url = request.url.copy_with(host=self._address, port=PORT)
        extensions = {**request.extensions, "sni_hostname": request.url.host}
        return await super().handle_async_request(
            httpx.Request(request.method, url, headers=request.headers, stream=request.stream, extensions=extensions)
        )


@dataclass(frozen=True, slots=True)
class Proxy:
    """A running proxy, and what belongs to it."""

    address: str
    folder: Path

    def client(self, name: str, address: str = STRANGER) -> httpx.AsyncClient:
        """Return a client, at this address, of the site with this name."""
        site = Site(self.address, self.folder, address)
        return httpx.AsyncClient(transport=site, base_url=f"https://{name}", timeout=PATIENCE_SECONDS)


@asynccontextmanager
async def running(prepare: Prepare, upstream: str) -> AsyncIterator[Proxy]:
    """Run the proxy in front of a bot at `upstream`."""
    address = f"127.{randbelow(250) + 2}.{randbelow(250)}.{randbelow(250) + 1}"  # nobody else has it
    with TemporaryDirectory() as name:
        folder = Path(name)
        argv = prepare(folder, Certificate(folder), address, upstream)
        with (folder / "log").open("wb") as log:
            environment = {"PATH": os.environ["PATH"], "HOME": name}
            process = await asyncio.create_subprocess_exec(*argv, env=environment, stdout=log, stderr=log)

        async def listens() -> bool:
            assert process.returncode is None, (folder / "log").read_text()
            with suppress(OSError):
                _, writer = await asyncio.open_connection(address, PORT)
                writer.close()
                return True
            return False

        try:
            await eventually(listens)
            yield Proxy(address, folder)
        finally:
            process.terminate()
            await process.wait()


@pytest.mark.parametrize("prepare", [nginx, caddy])
async def test_strangers_reach_the_webhook_alone_and_people_the_dashboard(a_world: Worlds, prepare: Prepare) -> None:
    if shutil.which(prepare.__name__) is None:
        pytest.skip(f"{prepare.__name__} is not installed")
    async with (
        a_world({"ADMIN_TOKEN": TOKEN, "GITHUB_WEBHOOK_SECRET": SECRET.decode()}) as world,
        running(prepare, world.pair.url.removeprefix("http://")) as proxy,
        proxy.client(PUBLIC) as internet,
        proxy.client(PRIVATE, ONE_OF_THEM) as people,
        proxy.client(PRIVATE) as strangers,
    ):
        for body in (comment(), LARGEST):
            assert (await Sender(internet).send(body, event="ping", secret=SECRET)).status_code == 202
        with suppress(httpx.TransportError):  # some close the connection before all was sent
            assert (await Sender(internet).send(LARGEST + b" ", event="ping", secret=SECRET)).status_code == 413
        assert await world.database.fetchval("select count(*) from deliveries") == 2
        assert (await Sender(internet).send(comment(), secret=b"a wrong one")).status_code == 401
        for path in BEHIND_IT:
            assert (await internet.get(path)).status_code in (404, 405), path
            assert (await internet.post(path)).status_code in (400, 404), path
            assert (await strangers.get(path)).status_code in (403, 404), path

        for path in OF_METRICS:
            assert (await people.get(path)).status_code == 404, path
        signed_in = await people.post("/login", data={"token": TOKEN})
        assert signed_in.status_code == 303
        assert "Secure" in signed_in.headers["set-cookie"]
        assert "Sign out" in (await people.get("/")).text

        # Nothing ends these streams: what a proxy held back would never arrive.
        guarded = {"Authorization": f"Bearer {TOKEN}"}
        async with (
            people.stream("GET", "/api/events", headers=guarded) as for_scripts,
            people.stream("GET", "/events") as for_pages,
        ):
            streams = for_scripts.aiter_lines(), for_pages.aiter_lines()
            for lines in streams:
                await until(lines, ": listening")
            issue = await world.maria.opens_issue("Find out")
            await issue.says("@threadtree-bot say Hello.")
            for lines in streams:
                await until(lines, "event: turn-ended")
            await issue.hears("Hello.")


async def until(lines: AsyncIterator[str], wanted: str) -> None:
    """Wait for this line."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await anext(lines) != wanted:
            pass
