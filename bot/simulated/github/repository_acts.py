"""Acts on branches, pull requests and repositories other than pushing and merging."""

from bot.simulated.github.git import Files, NewCommit
from bot.simulated.github.model import Account, Pull, Repository, User
from bot.simulated.github.pull_acts import Acts


async def amend(acts: Acts, user: User, repository: Repository, branch: str, files: Files, message: str) -> str:
    """Replace the branch's last commit, push with force and return the new commit."""
    async with repository.git_lock:
        before = await repository.git.branches()
        parents = (await repository.git.run("rev-parse", f"{before[branch]}^@")).split()
        tree = await repository.git.run("rev-parse", f"{before[branch]}^{{tree}}")
        # fast-import only moves a branch forward.
        await repository.git.run("update-ref", "-d", f"refs/heads/{branch}")
        new = NewCommit(branch, message, user.login, acts.now, tuple(parents), tree=tree, files=files)
        commit = await repository.git.commit(new)
        await acts.branches_moved(user, repository, before)
    return commit


async def update_from_base(acts: Acts, user: User, pull: Pull) -> str:
    """Merge the base into the head, as the button "Update branch" does, and return the merge commit."""
    source = pull.head_repository
    async with source.git_lock:
        before = await source.git.branches()
        base, head = (await pull.repository.git.branches())[pull.base_ref], before[pull.head_ref]
        tree = await source.git.merge_tree(base, head)
        message = f"Merge branch '{pull.base_ref}' into {pull.head_ref}"
        commit = await source.git.commit(NewCommit(pull.head_ref, message, user.login, acts.now, (head, base), tree))
        await acts.branches_moved(user, source, before)
    return commit


async def retarget(acts: Acts, user: User, pull: Pull, base: str) -> None:
    """Send pull_request.edited with the new base."""
    before, pull.base_ref = {"ref": {"from": pull.base_ref}, "sha": {"from": pull.base_sha}}, base
    pull.base_sha, pull.updated_at = (await pull.repository.git.branches())[base], acts.now
    acts.emit_thread("edited", pull, user, changes={"base": before})


def convert_to_draft(acts: Acts, user: User, pull: Pull) -> None:
    """Send pull_request.converted_to_draft."""
    pull.draft, pull.updated_at = True, acts.now
    acts.emit_thread("converted_to_draft", pull, user)


def ready_for_review(acts: Acts, user: User, pull: Pull) -> None:
    """Send pull_request.ready_for_review."""
    pull.draft, pull.updated_at = False, acts.now
    acts.emit_thread("ready_for_review", pull, user)


async def rename_branch(acts: Acts, user: User, repository: Repository, branch: str, name: str) -> None:
    """Rename a branch; its pull requests follow. For the default branch, send repository.edited.

    https://docs.github.com/repositories/configuring-branches-and-merges-in-your-repository/managing-branches-in-your-repository/renaming-a-branch
    """
    async with repository.git_lock:
        await repository.git.run("branch", "-m", branch, name)
        for pull in repository.pulls:
            if pull.state == "open":
                pull.base_ref = name if pull.base_ref == branch else pull.base_ref
                if pull.head_repository is repository and pull.head_ref == branch:
                    pull.head_ref = name
        if repository.default_branch == branch:
            repository.default_branch = name
            await repository.git.run("symbolic-ref", "HEAD", f"refs/heads/{name}")
            acts.emit("repository", repository, user, action="edited", changes={"default_branch": {"from": branch}})


def rename(acts: Acts, repository: Repository, name: str) -> None:
    """Send repository.renamed; the old name redirects."""
    before = repository.name
    acts.world.rename(repository, repository.owner, name)
    changes = {"repository": {"name": {"from": before}}}
    acts.emit("repository", repository, repository.owner, action="renamed", changes=changes)


def delete(acts: Acts, repository: Repository) -> None:
    """Send repository.deleted, as GitHub does to Apps and to webhooks of organizations."""
    acts.emit("repository", repository, repository.owner, action="deleted")
    del acts.world.repositories[repository.id]


def transfer(acts: Acts, repository: Repository, owner: Account) -> None:
    """Send repository.transferred; the old name redirects."""
    before = acts.payloads.user(repository.owner)
    acts.world.rename(repository, acts.world.user_of(owner), repository.name)
    changes = {"owner": {"from": {"user": before}}}
    acts.emit("repository", repository, repository.owner, action="transferred", changes=changes)
