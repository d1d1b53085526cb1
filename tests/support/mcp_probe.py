"""An MCP server on stdio with one tool, `word`, which answers with the variable WORD. Standard library only.

https://modelcontextprotocol.io/specification/2025-06-18/basic/lifecycle
"""

import json
import os
import sys
from typing import Any

TOOL = {"name": "word", "description": "Tells a word", "inputSchema": {"type": "object", "properties": {}}}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a request."""
    match method:
        case "initialize":
            about = {"name": "probe", "version": "1"}
            return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": about}
        case "tools/list":
            return {"tools": [TOOL]}
        case "tools/call":
            return {"content": [{"type": "text", "text": f"The word is {os.environ['WORD']}."}]}
        case _:
            return {}


if __name__ == "__main__":
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message and "method" in message:
            result = answer(message["method"], message.get("params") or {})
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}) + "\n")
            sys.stdout.flush()
