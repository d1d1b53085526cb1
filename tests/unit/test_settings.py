"""What a person sees who sets the bot up: defaults, what follows from what, and one clear line per mistake."""

import os
import re
from pathlib import Path

import pytest

from bot import settings
from bot.agents.presets import OPENAI, PRESETS
from bot.redaction import Redactor
from bot.settings import (
    DATABASE_ONLY,
    ON_NODE,
    SERVE,
    WEB,
    WORKER,
    Need,
    Settings,
    SettingsError,
    known_secrets,
    load,
    read,
)
from tests.support.ssh import new_key

ROOT = Path(__file__).parents[2]
GIVEN = {
    "GITHUB_WEBHOOK_SECRET": "the webhook's secret",
    "GITHUB_TOKEN": "ghp_0123456789",
    "AGENT": "custom",
    "AGENT_COMMAND": "/bin/sh -c 'speak acp'",
    "DATA_DIR": "/srv/threadtree",
    "PATH": "/usr/bin:/bin",
}
CLIENT = {"GITHUB_CLIENT_ID": "Iv1", "GITHUB_CLIENT_SECRET": "0123abcd"}
KEY = "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----\n"


def loaded(needs: frozenset[Need] = SERVE, /, **changes: str) -> Settings:
    return load({**GIVEN, **changes}, dotenv=None, needs=needs)


def complaints(needs: frozenset[Need] = SERVE, /, **changes: str) -> tuple[str, ...]:
    with pytest.raises(SettingsError) as caught:
        loaded(needs, **changes)
    assert str(caught.value) == "\n".join(caught.value.lines)
    return caught.value.lines


def the_complaint(needs: frozenset[Need] = SERVE, /, **changes: str) -> str:
    (line,) = complaints(needs, **changes)
    return line


# What a command needs


def test_listing_and_migrating_need_no_setting_at_all() -> None:
    given = load({"HOME": "/home/ada"}, dotenv=None, needs=DATABASE_ONLY)
    assert given.database_url is None
    assert given.data_dir == Path("/home/ada/.local/share/threadtree")
    assert (given.host, given.port, given.platform) == ("127.0.0.1", 8000, "github.com")


@pytest.mark.parametrize("needs", [WEB, SERVE])
def test_without_a_webhook_secret_nothing_that_listens_starts(needs: frozenset[Need]) -> None:
    for nothing in ("", "  "):
        assert "GITHUB_WEBHOOK_SECRET is not set" in the_complaint(needs, GITHUB_WEBHOOK_SECRET=nothing)


def test_web_needs_neither_credentials_nor_an_agent_and_worker_no_webhook_secret() -> None:
    assert loaded(WEB, GITHUB_TOKEN="", AGENT="", AGENT_COMMAND="").webhook_secrets == (b"the webhook's secret",)
    assert loaded(WORKER, GITHUB_WEBHOOK_SECRET="").webhook_secrets == ()


def test_all_problems_are_told_at_once_each_by_its_name() -> None:
    lines = complaints(GITHUB_WEBHOOK_SECRET="", GITHUB_TOKEN="", AGENT_COMMAND="", PORT="high", BOT_NAME="a b")
    names = ("GITHUB_WEBHOOK_SECRET ", "GITHUB_TOKEN ", "AGENT_COMMAND ", "PORT ", "BOT_NAME ")
    assert sorted(line.split()[0] + " " for line in lines) == sorted(names)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"GITHUB_APP_ID": "7"}, "GITHUB_TOKEN"),
        ({"GITHUB_PRIVATE_KEY": KEY}, "GITHUB_TOKEN"),
        ({"GITHUB_TOKEN": "", "GITHUB_APP_ID": "7"}, "GITHUB_APP_ID"),
        ({"GITHUB_TOKEN": "", "GITHUB_PRIVATE_KEY": KEY}, "GITHUB_PRIVATE_KEY"),
        ({"GITHUB_TOKEN": "", "GITHUB_APP_ID": "7", "GITHUB_PRIVATE_KEY": "MIIE"}, "GITHUB_PRIVATE_KEY"),
        (
            {"GITHUB_TOKEN": "", "GITHUB_APP_ID": "7", "GITHUB_PRIVATE_KEY": KEY, "GITHUB_PRIVATE_KEY_PATH": "/k"},
            "GITHUB_PRIVATE_KEY",
        ),
        ({"GITHUB_TOKEN": "", "GITHUB_APP_ID": "7", "GITHUB_PRIVATE_KEY_PATH": "/none"}, "GITHUB_PRIVATE_KEY_PATH"),
    ],
)
def test_credentials_are_a_token_or_an_app_and_its_key(changes: dict[str, str], name: str) -> None:
    assert the_complaint(**changes).startswith(f"{name} ")


def test_the_apps_key_may_be_a_file_or_one_line(tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_text(KEY)
    app = {"GITHUB_TOKEN": "", "GITHUB_APP_ID": "7"}
    from_file = loaded(**app, GITHUB_PRIVATE_KEY_PATH=str(tmp_path / "key.pem"))
    one_line = loaded(**app, GITHUB_PRIVATE_KEY=KEY.replace("\n", "\\n"))
    for given in (from_file, one_line):
        assert given.github_private_key is not None
        assert given.github_private_key.get_secret_value() == KEY
        assert given.github_app_id == 7


def test_a_command_on_the_node_reads_the_apps_key_and_needs_none(tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_text(KEY)
    app = {"GITHUB_TOKEN": "", "GITHUB_APP_ID": "7", "GITHUB_PRIVATE_KEY_PATH": str(tmp_path / "key.pem")}
    assert loaded(ON_NODE, **app).github_private_key is not None
    assert loaded(ON_NODE, GITHUB_TOKEN="").github_token is None


# Signatures


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"SIGN_COMMITS": "gpg"}, "SIGN_COMMITS must be one of off, ssh, github; correct or unset it."),
        ({"SIGN_COMMITS": "ssh"}, "SIGNING_KEY_PATH is not set; set it to the file of a private SSH key"),
        ({"SIGN_COMMITS": "ssh", "SIGNING_KEY_PATH": "/none"}, "SIGNING_KEY_PATH names no private SSH key"),
        ({"SIGN_COMMITS": "ssh", "SIGNING_KEY_PATH": "locked"}, "SIGNING_KEY_PATH names no private SSH key without a"),
        ({"SIGN_COMMITS": "ssh", "SIGNING_KEY_PATH": "open"}, "SIGNING_KEY_PATH names no private SSH key"),
        ({"SIGN_COMMITS": "ssh", "SIGNING_KEY_PATH": "key", "PATH": "/none"}, "install the package `openssh-client`"),
        ({"SIGN_COMMITS": "github"}, "use an App, or set SIGN_COMMITS=ssh"),
        ({"SIGNING_KEY_PATH": "key"}, "set SIGN_COMMITS=ssh, or unset SIGNING_KEY_PATH"),
        ({"SIGN_OFF": "perhaps"}, "SIGN_OFF must be true or false"),
    ],
)
def test_a_signature_that_cannot_be_made_refuses_the_start(
    changes: dict[str, str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    new_key(tmp_path / "key")
    new_key(tmp_path / "locked", "a passphrase")
    new_key(tmp_path / "open")[0].chmod(0o644)
    commands = {"AGENT_COMMAND": "/bin/true"} if "PATH" in changes else {}
    line = the_complaint(**changes, **commands)
    assert said in line
    assert loaded(WEB, **changes | {"SIGN_COMMITS": "ssh", "SIGN_OFF": ""}).signing_key_path is None, "not its own"


def test_the_key_of_signatures_is_a_secret_and_agents_get_no_way_to_it(tmp_path: Path) -> None:
    key, public = new_key(tmp_path / "key")
    signed = {"SIGN_COMMITS": "ssh", "SIGNING_KEY_PATH": str(key), "SIGN_OFF": "true"}
    given = loaded(**signed)
    assert (given.sign_commits, given.signing_key_path, given.sign_off) == ("ssh", key, True)
    redactor = Redactor(known_secrets(given))
    lines = key.read_text().splitlines()
    assert redactor.redact(f"see {lines[2]} there") == "see [redacted] there"
    assert redactor.redact(public) == public
    assert "SIGNING_KEY_PATH, one of the bot's own secrets" in the_complaint(**signed, AGENT_ENV="SIGNING_KEY_PATH")


# The agent


@pytest.mark.parametrize(
    ("agent", "key"), [("claude", "ANTHROPIC_API_KEY"), ("codex", "OPENAI_API_KEY"), ("", "ANTHROPIC")]
)
def test_a_preset_needs_the_key_of_its_model(agent: str, key: str) -> None:
    assert key in the_complaint(AGENT=agent, AGENT_COMMAND="")


def test_a_preset_is_handed_the_keys_of_its_models_and_their_addresses() -> None:
    given = loaded(
        AGENT="opencode", AGENT_COMMAND="", OPENAI_API_KEY="sk-1", OPENAI_BASE_URL="http://127.0.0.1:9", EDITOR="vi"
    )
    assert given.variables_for("opencode") == {"OPENAI_API_KEY": "sk-1", "OPENAI_BASE_URL": "http://127.0.0.1:9"}


def test_each_of_several_agents_gets_its_own_models_keys_and_all_get_those_of_agent_env() -> None:
    keys = {"ANTHROPIC_API_KEY": "sk-1", "OPENAI_API_KEY": "sk-2", "EDITOR": "vi"}
    named = "EDITOR, OPENAI_API_KEY"
    given = loaded(AGENT="claude, codex,custom,codex", AGENT_COMMAND="/bin/true", AGENT_ENV=named, **keys)
    assert given.agent == ("claude", "codex", "custom")
    assert given.variables_for("claude") == {"EDITOR": "vi", "ANTHROPIC_API_KEY": "sk-1"}
    assert given.variables_for("codex") == {"EDITOR": "vi", "OPENAI_API_KEY": "sk-2"}
    assert given.variables_for("custom") == {"EDITOR": "vi", "OPENAI_API_KEY": "sk-2"}
    assert {"sk-1", "sk-2"} <= set(known_secrets(given))


@pytest.mark.parametrize(
    ("agents", "keys", "complaint"),
    [
        ("claude,codex", {"ANTHROPIC_API_KEY": "x"}, "OPENAI_API_KEY is not set; AGENT=codex needs it."),
        ("codex,custom", {"OPENAI_API_KEY": "x"}, "AGENT_COMMAND is not set"),
        ("claude", {"AWS_BEARER_TOKEN_BEDROCK": "x"}, "ANTHROPIC_BEDROCK_BASE_URL is not set"),
        ("claude,", {"CLAUDE_CODE_OAUTH_TOKEN": "x"}, None),
        ("claude", {"ANTHROPIC_AUTH_TOKEN": "x", "ANTHROPIC_BASE_URL": "https://gateway.example/anthropic"}, None),
        (",", {}, "AGENT must be one of claude, "),
    ],
)
def test_every_agent_of_the_list_needs_its_key(agents: str, keys: dict[str, str], complaint: str | None) -> None:
    _, problems = read({**GIVEN, "AGENT": agents, "AGENT_COMMAND": "", **keys}, dotenv=None, needs=SERVE)
    assert [line[: len(complaint)] for line in problems] == [complaint] if complaint else problems == []


@pytest.mark.parametrize("given", ["https://gw.example/openai", "https://gw.example/openai/v1/"])
def test_the_path_of_a_gateways_address_is_kept(given: str) -> None:
    assert OPENAI.address({"OPENAI_BASE_URL": given}) == "https://gw.example/openai"
    assert OPENAI.address({}) == "https://api.openai.com"


def test_an_unknown_agent_is_answered_with_the_choices() -> None:
    assert "one of claude, claude-acp, codex, gemini, opencode, custom" in the_complaint(AGENT="hal")


def test_the_agents_command_is_split_as_in_a_shell_and_found_at_the_start(tmp_path: Path) -> None:
    assert loaded(AGENT_COMMAND="/bin/sh -c 'speak acp'").agent_command == ("/bin/sh", "-c", "speak acp")
    program = tmp_path / "agent"
    program.touch(mode=0o755)
    assert loaded(AGENT_COMMAND="agent --acp", PATH=str(tmp_path)).agent_command == (str(program), "--acp")


@pytest.mark.parametrize("command", ["/none/such", "no-such-program --acp", "'unbalanced", "''"])
def test_an_agents_command_that_cannot_run_is_refused(command: str) -> None:
    assert the_complaint(AGENT_COMMAND=command).startswith("AGENT_COMMAND ")


def test_the_agents_command_holds_no_secret_since_everybody_can_read_it() -> None:
    line = the_complaint(AGENT_COMMAND="/bin/sh --token=ghp_0123456789")
    assert "AGENT_COMMAND holds one of the bot's own secrets" in line
    assert "ghp_" not in line


def test_the_agent_is_handed_the_named_variables_only() -> None:
    given = loaded(AGENT_ENV="MODEL_KEY, EDITOR", MODEL_KEY="sk-1", EDITOR="vi", OTHER="x")
    assert {name: value.get_secret_value() for name, value in given.agent_env.items()} == {
        "MODEL_KEY": "sk-1",
        "EDITOR": "vi",
    }


@pytest.mark.parametrize(
    ("names", "others"),
    [
        ("GITHUB_TOKEN", {}),
        ("GITHUB_WEBHOOK_SECRET", {}),
        ("DATABASE_URL", {"DATABASE_URL": "postgresql:///bot"}),
        ("GH_TOKEN", {"GH_TOKEN": GIVEN["GITHUB_TOKEN"]}),
        ("MODEL_KEY", {}),
        ("HOME", {}),
        ("MODEL_KEY=sk-1", {}),
    ],
)
def test_names_the_agent_may_not_have_refuse_the_start(names: str, others: dict[str, str]) -> None:
    line = the_complaint(AGENT_ENV=names, **others)
    assert line.startswith("AGENT_ENV ")
    assert GIVEN["GITHUB_TOKEN"] not in line


# Addresses


@pytest.mark.parametrize(
    ("api", "graphql", "server", "platform"),
    [
        ("", "https://api.github.com/graphql", "https://github.com", "github.com"),
        ("https://ghe.test/api/v3/", "https://ghe.test/api/graphql", "https://ghe.test", "ghe.test"),
        ("https://GHE.test:8443/api/v3", "https://ghe.test:8443/api/graphql", "https://ghe.test:8443", "ghe.test:8443"),
        ("https://api.octo.ghe.com", "https://api.octo.ghe.com/graphql", "https://octo.ghe.com", "octo.ghe.com"),
        ("http://127.0.0.1:4000", "http://127.0.0.1:4000/graphql", "http://127.0.0.1:4000", "127.0.0.1:4000"),
        ("http://[::1]:4000", "http://[::1]:4000/graphql", "http://[::1]:4000", "[::1]:4000"),
    ],
)
def test_the_other_addresses_follow_from_the_api(api: str, graphql: str, server: str, platform: str) -> None:
    given = loaded(GITHUB_API_URL=api)
    assert (given.github_graphql_url, given.github_server_url, given.platform) == (graphql, server, platform)


def test_an_address_that_is_set_wins_over_what_follows() -> None:
    given = loaded(GITHUB_API_URL="https://ghe.test/api/v3", GITHUB_SERVER_URL="https://git.test")
    assert (given.github_server_url, given.platform) == ("https://git.test", "git.test")


@pytest.mark.parametrize(
    "url",
    ["http://ghe.test/api/v3", "ghe.test", "ftp://ghe.test", "https://me:pw@ghe.test", "https://h/?a=b", "https://[h"],
)
def test_addresses_that_would_leak_or_not_work_are_refused_without_repeating_them(url: str) -> None:
    line = the_complaint(GITHUB_API_URL=url)
    assert line.startswith("GITHUB_API_URL ")
    assert "me:pw" not in line


def test_a_server_without_its_api_is_contradictory() -> None:
    assert the_complaint(GITHUB_SERVER_URL="https://ghe.test").startswith("GITHUB_SERVER_URL ")
    assert loaded(GITHUB_SERVER_URL="https://github.com").platform == "github.com"


# Values


# A company's network


@pytest.mark.parametrize(
    ("given", "read_as"),
    [
        ("http://proxy.corp:3128", "http://proxy.corp:3128"),
        ("proxy.corp:3128", "http://proxy.corp:3128"),
        ("HTTP://robot:a%40b@Proxy.corp/", "http://robot:a%40b@proxy.corp:80"),
        ("http://[fd00::1]:3128", "http://[fd00::1]:3128"),
    ],
)
def test_a_proxy_is_read_as_curl_reads_it(given: str, read_as: str) -> None:
    assert loaded(HTTPS_PROXY=given).outbound[0] == loaded(https_proxy=given).outbound[0] == read_as


@pytest.mark.parametrize(
    "given",
    ["https://proxy.corp:3128", "socks5://proxy.corp", "http://:secret@", "http://proxy.corp:port", "http://a/b"],
)
def test_another_kind_of_proxy_is_refused_without_repeating_it(given: str) -> None:
    complaint = the_complaint(HTTPS_PROXY=given)
    assert complaint.startswith("HTTPS_PROXY must be the address of a proxy like http://HOST:PORT")
    assert "secret" not in complaint


def test_the_password_of_a_proxy_is_a_secret_and_its_address_is_none() -> None:
    given = loaded(HTTPS_PROXY="http://robot:pass%2Fword-1@proxy.corp:3128")
    secrets = known_secrets(given)
    assert {"pass%2Fword-1", "pass/word-1"} <= set(secrets)
    assert not any("proxy.corp" in secret for secret in secrets)
    assert "word-1" not in repr(given)
    for names in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY"):
        other = {"HTTP_PROXY": "http://robot:pass%2Fword-1@proxy.corp:3128"}
        name = "https_proxy" if names == "https_proxy" else "HTTPS_PROXY"
        assert "secrets" in the_complaint(**{name: other["HTTP_PROXY"]}, **other, AGENT_ENV=names)


def test_allowed_hosts_are_names_and_addresses_with_ports() -> None:
    given = loaded(ALLOWED_HOSTS="Mirror.corp, db:5432, 10.1.2.3:8080, [fd00::1]:443")
    assert {(str(host), port) for host, port in ((one.host, one.port) for one in given.allowed_hosts)} == {
        *(("mirror.corp", 80), ("mirror.corp", 443), ("db", 5432), ("10.1.2.3", 8080), ("fd00::1", 443)),
    }


@pytest.mark.parametrize("given", ["*.corp", "10.0.0.0/8", "https://mirror.corp", "mirror.corp:0", "2130706433", "a b"])
def test_a_host_that_is_none_is_named(given: str) -> None:
    assert the_complaint(ALLOWED_HOSTS=given).startswith(f"ALLOWED_HOSTS holds {given!r}")


def test_a_file_without_certificates_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("nothing")
    for name in ("empty.pem", "missing.pem"):
        assert the_complaint(SSL_CERT_FILE=str(tmp_path / name)).startswith("SSL_CERT_FILE names no PEM file")


def test_lists_are_separated_by_commas_and_names_ignore_case() -> None:
    given = loaded(ALLOWED_REPOS=" Octo/*, octo/Hello,", ALLOWED_USERS="@Ada,bob,Acme/Web", ALLOWED_BOTS="41898282")
    assert given.allowed_repos == ("octo/*", "octo/hello")
    assert given.allowed_users == ("ada", "bob", "acme/web")
    assert given.allowed_bots == {41898282}
    assert loaded(BOT_NAME="@tree[bot]").bot_name == "tree"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("ALLOWED_REPOS", "hello"), ("ALLOWED_BOTS", "dependabot"), ("PORT", "70000")),
        *(("DELIVERY_RETENTION_DAYS", "6"), ("HISTORY_RETENTION_DAYS", "6"), ("MAX_CONCURRENT_TURNS", "0")),
        *(("TURN_TIMEOUT_SECONDS", "inf"), ("TURN_TIMEOUT_SECONDS", "0"), ("SHUTDOWN_GRACE_SECONDS", "-1")),
        *(("DATABASE_URL", "mysql://root:hunter22@localhost/x"), ("POSTGRES_BIN_DIR", "/none")),
        *(("NODE_NAME", "my node"), ("SETUP_SCRIPT", "maybe")),
    ],
)
def test_ill_formed_values_are_named(name: str, value: str) -> None:
    line = the_complaint(**{name: value})
    assert line.startswith(f"{name} ")
    assert "hunter22" not in line


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("SETUP_SCRIPT", "maybe", "true or false"),
        ("AGENT_SANDBOX", "none", "one of auto, bwrap, off"),
        ("PORT", "1.5", "a whole number of at least 0 and at most 65535"),
        ("MAX_CONCURRENT_TURNS", "0", "a whole number of at least 1"),
        ("TURN_TIMEOUT_SECONDS", "nan", "a number above 0"),
        ("NODE_TIMEOUT_SECONDS", "9.9", "a number of at least 10"),
    ],
)
def test_a_value_out_of_bounds_is_told_what_it_may_be(name: str, value: str, expected: str) -> None:
    assert the_complaint(**{name: value}) == f"{name} must be {expected}; correct or unset it."


def test_values_are_read_from_their_texts() -> None:
    given = loaded(SETUP_SCRIPT="ON", LOG_LEVEL="Debug", TURN_TIMEOUT_SECONDS="0.5", PORT="0")
    assert (given.setup_script, given.log_level, given.turn_timeout_seconds) == (True, "debug", 0.5)
    assert given.port == 0


def test_names_that_have_no_effect_are_named(tmp_path: Path) -> None:
    dotenv = tmp_path / ".env"
    dotenv.write_text("ALLOWED_REPO=octo/*\nMODEL_KEY=1\nSOMETHING=x\nPORT=1\nAGENT_ENV=MODEL_KEY\nOPENAI_API_KEY=\n")
    environ = {"SWEEP_INTERVAL_SECOND": "1", "EDITOR": "vi", "HOSTNAME": "here"}
    assert settings.doubtful_names(environ, dotenv=dotenv) == (
        "ALLOWED_REPO is no setting and has no effect; did you mean ALLOWED_REPOS?",
        "SOMETHING in .env is no setting and has no effect; take it out.",
        "SWEEP_INTERVAL_SECOND is no setting and has no effect; did you mean SWEEP_INTERVAL_SECONDS?",
    )


def test_a_node_may_have_the_longest_host_name() -> None:
    assert loaded(NODE_NAME="n" * 64).node_name == "n" * 64


def test_the_data_directory_follows_xdg_and_is_absolute(tmp_path: Path) -> None:
    def data_dir(**variables: str) -> Path:
        return load(variables, dotenv=None).data_dir

    assert data_dir(XDG_DATA_HOME="/data", HOME="/home/ada") == Path("/data/threadtree")
    assert data_dir(XDG_DATA_HOME="relative", HOME="/home/ada") == Path("/home/ada/.local/share/threadtree")
    assert data_dir(DATA_DIR="~/trees", HOME="/home/ada") == Path("/home/ada/trees")
    assert data_dir(DATA_DIR="trees") == Path.cwd() / "trees"
    assert data_dir(HOME="").is_absolute()


def test_the_data_directory_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    given = loaded(DATA_DIR=str(tmp_path / "a" / "b")).with_data_dir()
    assert given.data_dir.stat().st_mode & 0o777 == 0o700
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match=r"^DATA_DIR "):
        loaded(DATA_DIR=str(tmp_path / "file" / "x")).with_data_dir()


@pytest.mark.parametrize(
    ("inside", "mode", "after"),
    [
        (None, 0o755, 0o700),
        ("node.json", 0o711, 0o700),
        ("lost+found", 0o777, 0o700),
        ("variables", 0o755, 0o700),
        ("of-somebody-else", 0o755, 0o755),
        ("of-somebody-else", 0o750, 0o750),
    ],
)
def test_a_data_directory_that_all_users_may_enter_is_closed_unless_it_is_also_anothers(
    tmp_path: Path, inside: str | None, mode: int, after: int
) -> None:
    if inside is not None:
        (tmp_path / inside).touch()
    tmp_path.chmod(mode)
    loaded(DATA_DIR=str(tmp_path)).with_data_dir()
    assert tmp_path.stat().st_mode & 0o777 == after


# Where values come from


def test_the_environment_wins_over_the_file_even_when_it_is_empty(tmp_path: Path) -> None:
    dotenv = tmp_path / ".env"
    dotenv.write_text("PORT=9000\nHOST=0.0.0.0\nBOT_LABEL=${HOME}\nBOT_NAME='tree'\n")
    given = load({"PORT": "9001", "HOST": "", "HOME": "/home/ada"}, dotenv=dotenv)
    assert (given.port, given.host, given.bot_name) == (9001, "127.0.0.1", "tree")
    assert given.bot_label == "${HOME}", "a secret may hold a dollar sign: nothing is expanded"


def test_by_default_the_process_environment_and_the_working_directory_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOST", "::1")
    (tmp_path / ".env").write_text("PORT=9000\n")
    given = load()
    assert (given.host, given.port, given.path) == ("::1", 9000, os.environ["PATH"])


# Secrets


def test_no_secret_shows_when_settings_are_printed() -> None:
    given = loaded(
        DATABASE_URL="postgresql://bot:hunter22@db/bot", AGENT_ENV="MODEL_KEY", MODEL_KEY="sk-1", BOT_NAME="tree"
    )
    for secret in ("hunter22", "sk-1", GIVEN["GITHUB_TOKEN"], GIVEN["GITHUB_WEBHOOK_SECRET"]):
        assert secret not in repr(given)
        assert secret not in str(given)


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"GITHUB_CLIENT_ID": "Iv1"}, "GITHUB_CLIENT_ID is set without GITHUB_CLIENT_SECRET"),
        ({"GITHUB_CLIENT_SECRET": "0123abcd"}, "GITHUB_CLIENT_SECRET is set without GITHUB_CLIENT_ID"),
        (CLIENT, "GITHUB_CLIENT_ID is set, and nobody may sign in"),
        ({"DASHBOARD_VIEWERS": "ada"}, "DASHBOARD_VIEWERS is set without GITHUB_CLIENT_ID and GITHUB_CLIENT_SECRET"),
    ],
)
def test_half_a_sign_in_is_refused_with_what_is_missing(more: dict[str, str], problem: str) -> None:
    assert the_complaint(**more).startswith(f"{problem}; set ")


def test_people_of_the_dashboard_are_logins_and_teams() -> None:
    given = loaded(**CLIENT, DASHBOARD_OPERATORS="@Ada, Acme/Web-Team", DASHBOARD_VIEWERS="bob_acme")
    assert (given.dashboard_operators, given.dashboard_viewers) == (("ada", "acme/web-team"), ("bob_acme",))
    for wrong in ("*", "acme/", "acme/web/x", "a b"):
        with pytest.raises(SettingsError, match="neither a login nor a team"):
            loaded(**CLIENT, DASHBOARD_VIEWERS=wrong)


def test_web_needs_a_credential_for_github_only_where_people_sign_in_with_it() -> None:
    alone = {"HOME": "/home/ada", "GITHUB_WEBHOOK_SECRET": "a secret of the tests"}
    assert load(alone, dotenv=None, needs=WEB).github_token is None
    with pytest.raises(SettingsError, match="GITHUB_TOKEN is not set"):
        load({**alone, **CLIENT, "DASHBOARD_OPERATORS": "ada"}, dotenv=None, needs=WEB)


def test_redaction_knows_every_secret_and_no_ordinary_word() -> None:
    given = loaded(
        DATABASE_URL="postgresql://bot:hunter%3222@db/bot",
        GITHUB_WEBHOOK_SECRET_OLD="the old one",
        AGENT_ENV="MODEL_KEY,EDITOR",
        MODEL_KEY="sk-1",
        EDITOR="vi",
    )
    assert set(known_secrets(given)) == {
        *(GIVEN["GITHUB_TOKEN"], GIVEN["GITHUB_WEBHOOK_SECRET"], "the old one", "sk-1"),
        *("postgresql://bot:hunter%3222@db/bot", "hunter%3222", "hunter222"),
    }
    weak = loaded(DATABASE_URL="postgresql://threadtree:threadtree@db/bot")
    assert "threadtree" not in known_secrets(weak), "every branch's name holds it"


# .env.example

IN_EXAMPLE = re.compile(r"^#?([A-Z_]+)=(.*)$", re.MULTILINE)
NOT_OURS = {"PATH", "LANG", "VARIABLES"}


def documented_defaults() -> dict[str, str]:
    """Of what is a plain value: the others are described in words."""
    return {
        name.upper(): str(one.default).lower() if isinstance(one.default, bool) else str(one.default)
        for name, one in Settings.model_fields.items()
        if isinstance(one.default, (str, int, float)) and name not in {"agent", "path", "lang"} and one.default != ""
    }


def test_the_example_lists_every_setting_with_its_default() -> None:
    listed = dict(IN_EXAMPLE.findall((ROOT / ".env.example").read_text()))
    keys = {api.key for preset in PRESETS.values() for api in preset.apis}
    assert set(listed) == {name.upper() for name in Settings.model_fields} - NOT_OURS | keys
    assert {name: listed[name] for name in documented_defaults()} == documented_defaults()


def test_the_example_with_its_blanks_filled_starts_the_bot(tmp_path: Path) -> None:
    example = (ROOT / ".env.example").read_text()
    filled = re.sub(r"^(GITHUB_WEBHOOK_SECRET|GITHUB_TOKEN|ANTHROPIC_API_KEY)=$", r"\1=x", example, flags=re.M)
    (tmp_path / ".env").write_text(filled)
    given = load({"HOME": "/home/ada"}, dotenv=tmp_path / ".env", needs=SERVE)
    assert (given.agent, list(given.variables_for("claude"))) == (("claude",), ["ANTHROPIC_API_KEY"])


def test_a_setting_that_is_wrong_takes_no_other_with_it() -> None:
    given, problems = read({**GIVEN, "AGENT": "hal", "PORT": "high", "HOST": "::1"}, dotenv=None, needs=SERVE)
    assert [problem.split()[0] for problem in problems] == ["PORT", "AGENT"]
    assert (given.host, given.port, given.agent) == ("::1", 8000, ("claude",))
    assert given.github_token is not None


def test_without_a_home_directory_data_dir_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: int) -> None:
        raise KeyError

    monkeypatch.setattr("pwd.getpwuid", unknown)
    for variables in ({}, {"DATA_DIR": "~/trees"}):
        _, problems = read(variables, dotenv=None)
        assert [problem.split()[0] for problem in problems] == ["DATA_DIR"]


@pytest.mark.parametrize(("name", "taken"), [("claude-opus-4-5[1m]", True), ("vendor/x:7", True), ("a b", False)])
def test_a_model_is_named_for_a_preset(name: str, taken: bool) -> None:
    named = {**GIVEN, "AGENT": "codex", "OPENAI_API_KEY": "sk-1", "AGENT_MODEL": name}
    given, problems = read(named, dotenv=None, needs=SERVE)
    assert (given.agent_model, problems == []) == (name if taken else None, taken)
    _, problems = read({**named, "AGENT": "custom"}, dotenv=None, needs=SERVE)
    assert any(problem.startswith("AGENT_MODEL") for problem in problems)


@pytest.mark.parametrize(
    "url", ["http://chat.example.org/x", "chat.example.org", "https://user:pass@chat.example.org/x"]
)
def test_messages_go_encrypted_or_to_this_machine_and_the_address_is_not_shown(url: str) -> None:
    with pytest.raises(SettingsError) as refused:
        load({"HOME": "/tmp", "NOTIFY_URL": url}, dotenv=None)
    assert refused.value.lines == (
        "NOTIFY_URL must be like https://HOST/PATH, or plain http to this machine; correct it.",
    )
    for right in ("https://hooks.slack.com/services/T0/B0/x?y=1", "http://127.0.0.1:9/x"):
        found = load({"HOME": "/tmp", "NOTIFY_URL": right}, dotenv=None)
        assert right not in repr(found)
        assert right in known_secrets(found)


def test_every_setting_stands_beside_a_task() -> None:
    listed = {name for name, _ in IN_EXAMPLE.findall((ROOT / ".env.example").read_text())}
    page = set(re.findall(r"`([A-Z][A-Z0-9_]+)(?:=[a-z]+)?`", (ROOT / "docs" / "settings.md").read_text()))
    assert page == listed
