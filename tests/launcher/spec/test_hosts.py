from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.errors import SpecError
from launcher.spec.hosts import MAX_HOSTS, Host, expand_nodelist, parse_hostfile, parse_hosts, read_hostfile


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node1", "node1"),
        ("n[1-3,07-09],gpu-a[1,2]x", "n1 n2 n3 n07 n08 n09 gpu-a1x gpu-a2x"),
        ("n[08-11]", "n08 n09 n10 n11"),
        ("r[1-2]n[1-2]", "r1n1 r1n2 r2n1 r2n2"),
        ("a.b.c, d_e", "a.b.c d_e"),
        ("n[5]", "n5"),
    ],
)
def test_node_lists(text: str, names: str) -> None:
    assert expand_nodelist(text) == names.split()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is no host"),
        ("a,,b", "is no host"),
        ("n[1-", "a bracket is not closed"),
        ("n1]", "brackets do not match"),
        ("n[[1]]", "brackets do not match"),
        ("n[]", "is no number and no range"),
        ("n[a-b]", "is no number and no range"),
        ("n[3-1]", "runs backwards"),
        ("n[1-5000]", f"names more than {MAX_HOSTS} hosts"),
        ("n[1-999999999]", f"names more than {MAX_HOSTS} hosts"),
        ("a[1-99]b[1-99]", f"names more than {MAX_HOSTS} hosts"),
        ("-oProxyCommand=id", "starts with a letter or digit"),
        ("me@host", "write the user under resources.ssh.user"),
        ("a b", "is no host"),
        ("a;id", "is no host"),
        ("$(id)", "is no host"),
    ],
)
def test_malformed_node_lists_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=".") as caught:
        expand_nodelist(text)
    assert message in str(caught.value)


def test_slots_behind_a_colon() -> None:
    assert parse_hosts("n[1-2]:4") == [Host("n1", 4), Host("n2", 4)]
    assert parse_hosts("a:2,b") == [Host("a", 2), Host("b", None)]
    for wrong in ("a:", "a:0", "a:x", "a:-1", "a:99999", "a:1:2", "fe80::1"):
        with pytest.raises(ValueError, match="slots must be|addresses with colons"):
            parse_hosts(wrong)


def test_a_host_file_of_every_dialect() -> None:
    text = "# the cluster\nnode1 slots=4 max_slots=8  # Open MPI\nnode2:2\n\nn[3-4] slots = 1\nnode1 slots=1\nplain\r\n"
    found = parse_hostfile(text, "hosts")
    assert [str(host) for host in found] == ["node1:5", "node2:2", "n3:1", "n4:1", "plain"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# nothing\n", "hosts: names no host"),
        ("a\nb slots=x\n", "hosts:2: slots must be a whole number"),
        ("a\nb port=3\n", "hosts:2: 'port=3' is not understood: after a host comes slots=N"),
        ("a\n\nb:2 slots=2\n", "hosts:3: slots are given twice in this line"),
        ("a\na slots=2\n", "hosts: a is named twice"),
        ("n[1-4000]\nm[1-4000]\n", "hosts:2: names more than 4096 hosts"),
    ],
)
def test_errors_of_a_host_file_name_its_line(text: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_hostfile(text, "hosts")
    assert message in str(caught.value)


def test_only_a_regular_file_of_reasonable_size_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "big").write_bytes(b"#" * (1 << 21))
    (tmp_path / "bad").write_bytes(b"\xff\n")
    found = []
    for name in ("pipe", "big", "bad", "none", "."):
        with pytest.raises(SpecError) as caught:
            read_hostfile(tmp_path / name, name)
        found.append(str(caught.value))
    assert found == [
        "pipe: is not a regular file",
        "big: is larger than 1 MiB; this is not a host file",
        "bad: is not UTF-8 text",
        "none: cannot be read: No such file or directory",
        ".: cannot be read: Is a directory",
    ]


@given(st.text(alphabet="n1[]-,:= #slot0@.\n", max_size=60))
def test_any_text_is_hosts_or_an_error_with_its_place(text: str) -> None:
    try:
        hosts = parse_hostfile(text, "hosts")
    except SpecError as error:
        assert str(error).startswith("hosts:")
    else:
        assert 1 <= len(hosts) <= MAX_HOSTS
        assert len({host.name for host in hosts}) == len(hosts)
