"""Keys for signatures."""

import subprocess
from pathlib import Path


def new_key(path: Path, passphrase: str = "") -> tuple[Path, str]:
    """Make a private SSH key; return its file and the public key."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-C", "", "-f", str(path)], check=True)
    return path, path.with_name(f"{path.name}.pub").read_text().strip()
