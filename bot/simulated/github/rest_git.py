"""REST: commits, those that GitHub makes itself, and the keys that sign them."""

from base64 import b64encode
from typing import Any

from starlette.responses import Response

from bot.simulated.github.errors import RefusedError, not_found
from bot.simulated.github.git import BareRepository, GitFailedError
from bot.simulated.github.model import Repository
from bot.simulated.github.rest_call import Call, answer, required_text
from bot.simulated.github.rules import VERDICT
from bot.simulated.github.signatures import GITHUB, address_of


async def list_signing_keys(call: Call) -> Response:
    """https://docs.github.com/rest/users/ssh-signing-keys#list-ssh-signing-keys-for-a-user"""
    user = call.world.find_user(call.text("login"))
    keys = list(enumerate(call.world.signatures.keys.get(user.id, []), 1))
    return call.paginate(keys, lambda one: {"id": one[0], "key": one[1], "title": f"Key {one[0]}"})


async def list_addresses(call: Call) -> Response:
    """https://docs.github.com/rest/users/emails#list-email-addresses-for-the-authenticated-user"""
    if call.caller.is_installation:
        raise RefusedError(403, "Resource not accessible by integration")
    return call.paginate([address_of(call.user)], lambda one: {"email": one, "primary": True, "verified": True})


async def get_commit(call: Call) -> Response:
    """https://docs.github.com/rest/commits/commits#get-a-commit"""
    repository = call.repository()
    found = await commit_as_told(repository, call.text("sha"))
    return answer({"sha": found["sha"], "commit": found})


async def list_commits(call: Call) -> Response:
    """https://docs.github.com/rest/commits/commits#list-commits: of the default branch, newest first"""
    repository, path = call.repository(), call.request.query_params.get("path", "")
    told = await repository.git.run("log", "--format=%H", repository.default_branch, "--", path)
    return call.paginate(told.split(), lambda sha: {"sha": sha})


async def get_content(call: Call) -> Response:
    """https://docs.github.com/rest/repos/contents#get-repository-content: a file or a symbolic link to one"""
    repository, path = call.repository(), call.text("path")
    if repository.default_branch not in await repository.git.branches():
        raise not_found()  # a repository without a commit
    mode, _, rest = (await repository.git.run("ls-tree", repository.default_branch, "--", path)).partition(" ")
    if not mode:
        raise not_found()
    sha = rest.split()[1]
    raw = (await repository.git.run("cat-file", "blob", sha)).encode() + b"\n"
    file = {"type": "file" if mode == "100644" else "symlink", "sha": sha, "size": len(raw)}
    return answer({**file, "encoding": "base64", "content": b64encode(raw).decode()})


async def create_commit(call: Call) -> Response:
    """https://docs.github.com/rest/git/commits#create-a-commit

    GitHub signs what an App makes, unless that says who the author or the committer is.
    """
    repository, body = call.repository(), await call.json()
    call.world.demand(repository, call.user, "write", "Resource not accessible by integration")
    message, tree, parents = required_text(body, "message"), required_text(body, "tree"), body.get("parents", [])
    await _demand(repository.git, f"{tree}^{{tree}}", "Tree SHA does not exist")
    for parent in parents:
        await _demand(repository.git, f"{parent}^{{commit}}", "Parent SHA does not exist or is not a commit object")
    caller = (call.user.login, address_of(call.user))
    is_signed = call.caller.is_installation and not {"author", "committer"} & body.keys()
    people = {"author": _named(body, "author") or caller, "committer": _named(body, "committer") or caller}
    people |= {"committer": GITHUB} if is_signed else {}
    settings = [
        f"{role}.{key}={value}"
        for role, person in people.items()
        for key, value in zip(("name", "email"), person, strict=True)
    ]
    settings += ["gpg.format=ssh", f"user.signingKey={call.world.signatures.key_of_github()}"] if is_signed else []
    given = [word for one in settings for word in ("-c", one)]
    named = [word for parent in parents for word in ("-p", parent)]
    making = ("commit-tree", *(["-S"] if is_signed else []), tree, *named)
    commit = await repository.git.run(*given, *making, stdin=message.encode())
    return answer(await commit_as_told(repository, commit), 201)


def _named(body: dict[str, object], role: str) -> tuple[str, str] | None:
    named = body.get(role)
    return (str(named["name"]), str(named["email"])) if isinstance(named, dict) else None


async def _demand(git: BareRepository, name: str, refusal: str) -> None:
    try:
        await git.run("rev-parse", "--verify", "--quiet", name)
    except GitFailedError as error:
        raise RefusedError(422, refusal) from error


async def commit_as_told(repository: Repository, name: str) -> dict[str, Any]:
    """Return a commit as GitHub tells it, with what it thinks of its signature."""
    try:
        raw = await repository.git.run("cat-file", "commit", name)
    except GitFailedError as error:
        raise not_found() from error
    sha, tree, parents, *people = (
        await repository.git.run("log", "-1", "--format=%H%n%T%n%P%n%an%n%ae%n%cn%n%ce", name)
    ).split("\n")
    headers, _, message = raw.partition("\n\n")
    before, signed, after = headers.partition("\ngpgsig ")
    lines = after.split("\n")
    own = next((number for number, line in enumerate(lines) if number and not line.startswith(" ")), len(lines))
    signature = "\n".join([lines[0], *(line.removeprefix(" ") for line in lines[1:own])]) if signed else None
    reason = await _judged(repository.git, sha)
    return {
        "sha": sha,
        "tree": {"sha": tree},
        "parents": [{"sha": parent} for parent in parents.split()],
        "author": {"name": people[0], "email": people[1]},
        "committer": {"name": people[2], "email": people[3]},
        "message": message.rstrip("\n"),
        "verification": {
            "verified": reason == "valid",
            "reason": reason,
            "signature": signature,
            "payload": "\n".join([before, *lines[own:]]) + f"\n\n{message}" if signed else None,
        },
    }


async def _judged(git: BareRepository, commit: str) -> str:
    """https://docs.github.com/rest/commits/commits#signature-verification-object"""
    letter, signer, committer = (await git.run(*VERDICT, commit)).split(" ")
    if letter == "N":
        return "unsigned"
    if letter != "G":
        return "unknown_key"
    return "valid" if signer == committer else "bad_email"
