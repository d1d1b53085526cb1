"""Which names a repository's variables may have."""

import pytest

from bot.cli.env import refused_name


@pytest.mark.parametrize("name", ["DATABASE_PASSWORD", "npm_token", "_A1", "SENTRY_DSN", "LDAP_URL", "GITLAB_TOKEN"])
def test_names_of_the_repositorys_own_are_taken(name: str) -> None:
    assert refused_name(name) is None


def test_names_of_the_bot_and_of_what_programs_obey_are_refused() -> None:
    for name in [
        *(
            *("GITHUB_TOKEN", "github_token", "DATABASE_URL", "ADMIN_TOKEN", "HTTPS_PROXY", "SSL_CERT_FILE"),
            *("PATH", "LANG"),
        ),
        *("ANTHROPIC_API_KEY", "OPENAI_BASE_URL", "BARE_COMMANDS"),
        *("HOME", "LD_PRELOAD", "LD_LIBRARY_PATH", "GIT_SSH_COMMAND", "http_proxy", "ALL_PROXY", "NODE_OPTIONS"),
        *("BASH_ENV", "PYTHONPATH", "THREADTREE_OUT", "NODE_EXTRA_CA_CERTS"),
        *("", "1A", "A-B", "A=B", "../A", "A/B", "Ä", "A" * 101),
    ]:
        assert refused_name(name) is not None
