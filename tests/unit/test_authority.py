"""The people whom the bot serves (DESIGN.md §4, authority)."""

from dataclasses import replace
from typing import get_args

import pytest

from bot.github.answers import Permission
from bot.model import Actor, Repository
from bot.thread.authority import Allowed, Denied, Policy, before_asking_github, by_permission

ADA = Actor("Ada", 7)
RENOVATE = Actor("renovate[bot]", 2740337, is_bot=True)
OPEN = Policy(bot_id=99, bot_login="tree-bot[bot]", bot_name="tree-bot", label="threadtree")
HELLO = Repository("github.com", 1, "Octo", "Hello")


def verdict(policy: Policy, sender: Actor = ADA) -> Allowed | Denied | None:
    return before_asking_github(policy, sender, HELLO)


@pytest.mark.parametrize("permission", get_args(Permission))
def test_only_write_maintain_and_admin_may_ask(permission: Permission) -> None:
    answer = by_permission(permission)

    if permission in ("admin", "maintain", "write"):
        assert answer == Allowed(permission)
    else:
        assert isinstance(answer, Denied)
        assert answer.visible
        assert permission in answer.why


def test_without_lists_the_live_permission_decides_for_everybody() -> None:
    assert verdict(OPEN) is None


@pytest.mark.parametrize("glob", ["octo/hello", "OCTO/HELLO", "octo/*", "*/hello", "octo/h?llo", "*"])
def test_people_may_ask_in_a_listed_repository(glob: str) -> None:
    assert verdict(replace(OPEN, allowed_repositories=("other/one", glob))) is None


@pytest.mark.parametrize("glob", ["octo/hell", "hello", "octo", "octo/hello-world", "cto/*", ""])
def test_nobody_may_ask_in_a_repository_that_is_not_listed(glob: str) -> None:
    denied = verdict(replace(OPEN, allowed_repositories=(glob,)))

    assert isinstance(denied, Denied)
    assert denied.visible


def test_a_listed_person_still_needs_the_permission() -> None:
    assert verdict(replace(OPEN, allowed_users=("bob", "ada"))) is None


def test_a_person_who_is_not_listed_gets_a_reaction() -> None:
    denied = verdict(replace(OPEN, allowed_users=("ad", "adaa")))

    assert isinstance(denied, Denied)
    assert denied.visible


def test_whether_somebody_is_in_a_listed_team_is_asked_of_github() -> None:
    assert verdict(replace(OPEN, allowed_users=("bob", "acme/web"))) is None


def test_a_bot_is_trusted_by_its_number_only() -> None:
    assert verdict(replace(OPEN, allowed_bots=frozenset({RENOVATE.id})), RENOVATE) == Allowed()
    assert verdict(replace(OPEN, allowed_users=(RENOVATE.login,)), RENOVATE) == Denied(
        "the bot is not one of ALLOWED_BOTS", visible=False
    )


def test_a_person_with_a_trusted_bots_number_is_no_bot() -> None:
    assert verdict(replace(OPEN, allowed_bots=frozenset({ADA.id}))) is None


def test_a_bot_that_may_not_ask_gets_nothing() -> None:
    for policy in (OPEN, replace(OPEN, allowed_repositories=("other/one",), allowed_bots=frozenset({RENOVATE.id}))):
        denied = verdict(policy, RENOVATE)
        assert isinstance(denied, Denied)
        assert not denied.visible
