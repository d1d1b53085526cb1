"""A simulated GitHub in a process of its own: `python -m bench.installation DIRECTORY` prints how to reach it.

One line of JSON: the address of its API, the bot's token, the repository, and the people and issues of the load.
"""

import asyncio
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path

import orjson

from bot.simulated.github.server import SimulatedGitHub

ISSUES, COMMENTS = 20, 97


async def main(directory: Path) -> None:
    """Run until the process is asked to end."""
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    async with SimulatedGitHub.running(directory, lambda: datetime.now(UTC)) as github:
        repository = await github.create_repository("acme/shop", {"README.md": "# shop\n"})
        maria = github.person("maria")
        repository.allow(maria, "write")
        issues = [await maria.open_issue(repository, f"Issue {number}") for number in range(ISSUES)]
        # The bot reads a comment at GitHub before it runs: what the deliveries say of it must be there.
        asks = f"@{github.bot.login} say hello"
        comments = [await maria.comment(issues[number % ISSUES], asks) for number in range(COMMENTS)]
        told = {
            "api_url": github.api_url,
            "token": github.bot_token,
            "login": github.bot.login,
            "repository": {"id": repository.id, "name": "shop", "owner": {"login": "acme"}},
            "sender": {"id": maria.id, "login": "maria", "type": "User"},
            "comments": [
                {"issue": issues[number % ISSUES].number, "id": comment.id, "node_id": comment.node_id}
                for number, comment in enumerate(comments)
            ],
        }
        print(orjson.dumps(told).decode(), flush=True)
        await stopping.wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
