"""The code of a thread: its clone, its worktree, what is rescued of it. Other rooms know these names and no other."""

from bot.tree.clone.admin import Missing
from bot.tree.clone.checkout import Checkout, Entry
from bot.tree.clone.clone import CheckoutRefused, Clone, StoppedError
from bot.tree.clone.metadata import Metadata
from bot.tree.clone.packing import pack_new
from bot.tree.clone.shared_blocks import can_share_blocks, share_blocks
from bot.tree.commit import Committed
from bot.tree.create import Created
from bot.tree.git.credential_server import authorise, credential_server
from bot.tree.git.errors import GitError, GitProblem
from bot.tree.git.runner import Git, Identity
from bot.tree.guard import Guard
from bot.tree.moved import move_in
from bot.tree.proposal import Proposal
from bot.tree.push import Push
from bot.tree.remove import NotRemoved, Removed
from bot.tree.rescue.message import RescueLabel
from bot.tree.rescue.restore import RestoreRefusedError
from bot.tree.rescue.save import Rescued
from bot.tree.signing import Signing
from bot.tree.summary import last_change, summarize
from bot.tree.sync import Synced
from bot.tree.tree import OpenClone, OpenTree, Tree, open_clone

__all__ = [
    "Checkout",
    "CheckoutRefused",
    "Clone",
    "Committed",
    "Created",
    "Entry",
    "Git",
    "GitError",
    "GitProblem",
    "Guard",
    "Identity",
    "Metadata",
    "Missing",
    "NotRemoved",
    "OpenClone",
    "OpenTree",
    "Proposal",
    "Push",
    "Removed",
    "RescueLabel",
    "Rescued",
    "RestoreRefusedError",
    "Signing",
    "StoppedError",
    "Synced",
    "Tree",
    "authorise",
    "can_share_blocks",
    "credential_server",
    "last_change",
    "move_in",
    "open_clone",
    "pack_new",
    "share_blocks",
    "summarize",
]
