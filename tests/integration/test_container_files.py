"""Dockerfile, compose.yaml and the seccomp profile, read as files. `make test-fresh` also builds and runs the image."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from bot.settings import Settings

CHECKOUT = Path(__file__).parents[2]
PROFILE = json.loads((CHECKOUT / "docs/install/container/seccomp.json").read_text())
NEVER = (
    *("bpf", "chroot", "clock_settime", "finit_module", "init_module", "io_uring_setup", "kexec_load", "keyctl"),
    *("open_by_handle_at", "perf_event_open", "reboot", "setns", "swapon", "syslog", "userfaultfd"),
    *("fsconfig", "fsopen", "move_mount", "open_tree"),
)
"""Some that Docker's own profile refuses too, and the newer calls for mounts."""
FOR_BUBBLEWRAP = {"mount", "pivot_root", "umount", "umount2", "unshare"}


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CHECKOUT / "compose.yaml").read_text())
    return found


def test_the_image_is_made_of_what_is_there() -> None:
    text = re.sub(r"\\\n\s*", "", (CHECKOUT / "Dockerfile").read_text())
    copied = [words.split()[:-1] for words in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE)]
    sources = {name for names in copied for name in names if name != "./"}
    assert [name for name in sources if not (CHECKOUT / name).exists()] == []
    sent = {line[1:] for line in (CHECKOUT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert sent == {name.split("/")[0] for name in sources}
    assert "--require-hashes" in text
    assert re.findall(r"^USER (.+)$", text, re.MULTILINE) == ["threadtree"]
    unknown = {name for line in re.findall(r"^ENV (.+)$", text, re.MULTILINE) for name in re.findall(r"(\w+)=", line)}
    assert unknown - settings() == {*("DEBIAN_FRONTEND", "HOME", "PYTHONDONTWRITEBYTECODE"), *of_pip(unknown)}


def of_pip(names: set[str]) -> set[str]:
    return {name for name in names if name.startswith("PIP_")}


def settings() -> set[str]:
    return {name.upper() for name in Settings.model_fields}


def test_compose_names_settings_and_files(compose: dict[str, Any]) -> None:
    bot = compose["services"]["bot"]
    assert set(bot["environment"]) <= settings()
    assert {volume.split(":")[0] for one in compose["services"].values() for volume in one["volumes"]} == set(
        compose["volumes"]
    )
    profiles = [option.partition("=")[2] for option in bot["security_opt"] if option.startswith("seccomp=")]
    assert [(CHECKOUT / name).is_file() for name in profiles] == [True]
    assert bot["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in bot["security_opt"]
    assert bot["ports"] == ["127.0.0.1:8000:8000"], "nobody else's machine reaches it without the proxy"


def test_the_profile_lets_bubblewrap_work_and_refuses_what_nobody_needs() -> None:
    assert PROFILE["defaultAction"] == "SCMP_ACT_ERRNO"
    allowed = [rule for rule in PROFILE["syscalls"] if rule["action"] == "SCMP_ACT_ALLOW"]
    names = [name for rule in allowed if "args" not in rule for name in rule["names"]]
    assert len(names) == len(set(names))
    assert set(names) & set(NEVER) == set()
    assert (
        set(allowed[[rule.get("comment", "")[:10] for rule in allowed].index("bubblewrap")]["names"]) == FOR_BUBBLEWRAP
    )
    assert {"clone", "clone3", "execve", "prctl", "seccomp"} <= set(names)
    refused = {name for rule in PROFILE["syscalls"] if rule["action"] == "SCMP_ACT_ERRNO" for name in rule["names"]}
    assert set(NEVER) <= refused
    assert refused & set(names) == set()
