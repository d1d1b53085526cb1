"""A scripted agent: it speaks the Agent Client Protocol on stdio and obeys the lines of a request.

`python -m bot.simulated.agent [--resume] [--no-load] [--steering] [--models]` stands in for an AI agent in the demo
and the tests. The request is the last block of the prompt, without a leading `@name`. Each line can be a command:

    write PATH: TEXT     append PATH: TEXT     commit MESSAGE     switch BRANCH
    say TEXT             long BYTES            plan A | B | C     cost AMOUNT (in USD)
    remember WORD        recall                env (names only)   echo prompt
    describe TEXT        out NAME: TEXT            mend COMMANDS
    save prompt FILE     look PATH             wait FILE          permission
    hang                 hang deaf
    fail TEXT            crash STATUS          stop REASON        empty
    junk                 stderr TEXT             busy STATUS

`out` writes a file for the host, `describe` the description of the pull request, in which a backslash and an `n` end a
line. Told that a check fails, here or on GitHub, it obeys the COMMANDS of `mend`, with such ends of lines. `look` says
how large a file is. `wait` ends when it exists; `hang` ends when cancelled, `hang deaf` only when killed; `junk` goes
to stdout; `busy` is a model that answers with this HTTP status. With `--steering`, it obeys what it is told meanwhile
after the line at hand. Lines of plain English that `plain` knows mean such commands; others are ignored. A request
without an answer is acknowledged with its first line. Sessions are kept in `$HOME/.scripted-agent/<session id>.json`.
The agent runs git, and no program of its working directory.

The protocol is implemented on the standard library, and on those of its modules that load quickly (no argparse,
dataclasses or uuid; subprocess only for git): tests start this program often, so it must start fast.
"""
