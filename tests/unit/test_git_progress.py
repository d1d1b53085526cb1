"""What git tells of its progress, in short lines for people."""

from bot.tree.git.progress import Reader, short_line, without_progress


def test_a_line_of_git_is_shown_in_short() -> None:
    for said, shown in [
        ("remote: Counting objects:   8% (33/402)        ", "Counting objects 8%"),
        ("remote: Compressing objects: 100% (402/402), done.        ", "Compressing objects 100%"),
        ("Receiving objects:  43% (123/286), 1.25 GiB | 5.00 MiB/s", "Receiving objects 43%, 1.2 GiB"),
        ("Receiving objects:   7% (29/402), 812.00 KiB | 1.58 MiB/s", "Receiving objects 7%, 812 KiB"),
        ("Receiving objects: 100% (286/286), 31.70 MiB | 5.00 MiB/s, done.", "Receiving objects 100%, 32 MiB"),
        ("Unpacking objects: 100% (3/3), 215 bytes | 215.00 KiB/s, done.", "Unpacking objects 100%, 215 bytes"),
        ("Resolving deltas:  12% (4/31)", "Resolving deltas 12%"),
        ("Checking connectivity: 81234", "Checking connectivity 81234"),
        ("remote: Enumerating objects: 402, done.        ", None),
        ("fatal: unable to access 'https://example.com/'", None),
        ("", None),
    ]:
        assert short_line(said) == shown


def test_lines_are_told_once_wherever_the_pieces_break() -> None:
    said = b"Receiving objects:   1% (1/99)\rReceiving objects:   1% (2/99)\rReceiving objects:   2% (3/99)\rrest"
    for size in (1, 7, 30, len(said)):
        heard: list[str] = []
        reader = Reader(heard.append)
        for start in range(0, len(said), size):
            reader(said[start : start + size])
        assert heard[-1] == "Receiving objects 2%"
        assert heard in (["Receiving objects 1%", "Receiving objects 2%"], ["Receiving objects 2%"])


def test_what_went_wrong_is_left_when_the_progress_is_taken_away() -> None:
    said = (
        "remote: Enumerating objects: 402, done.        \n"
        "remote: Counting objects:   0% (1/402)        \rremote: Counting objects: 100% (402/402), done.        \n"
        "Receiving objects:   1% (1/402)\rReceiving objects:   2% (2/402), 1.00 MiB | 2.00 MiB/s\r"
        "From https://example.com/acme/shop\n * [new branch]      main       -> origin/main\n"
        " - [deleted]         (none)     -> origin/old\n ! [rejected]        a -> b (would clobber existing tag)\n"
        "error: RPC failed; curl 18 transfer closed\nfatal: early EOF\n"
    )
    assert without_progress(said) == (
        " ! [rejected]        a -> b (would clobber existing tag)\n"
        "error: RPC failed; curl 18 transfer closed\nfatal: early EOF\n"
    )
