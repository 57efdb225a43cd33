"""Test which code a user's file may contain: none with which a compiler would read other files."""

import re
from pathlib import Path

import pytest

from app.cuda.compiler import INCLUDE_DIR
from app.kernels import registry
from app.lab.user_kernel.source import MAX_BYTES, blank_comments, check_source, contains_ptx, read_source
from tests.support.shell import user_error

TRICKS = {
    '#include "/etc/passwd"': r'mine.cu:2: #include "/etc/passwd" is refused: include "common.cuh"',
    "#include </etc/passwd>": "is refused: include",
    '#include "../../../../etc/passwd"': "is refused: include",
    "#include <stdio.h>": "is refused: include",
    "#define FILE </etc/passwd>\n#include FILE": "mine.cu:3: #include FILE is refused",
    '#include_next "common.cuh"': "#include_next is refused",
    '#import "/etc/passwd"': "#import is refused",
    '#embed "/etc/passwd"': "#embed is refused",
    "int bytes[] = {\n#embed </etc/passwd>\n};": "mine.cu:3: #embed is refused",
    '# 7 "/etc/passwd"': "#7 is refused",
    '/* #include "common.cuh" */ #include "/etc/passwd"': "is refused: include",
    '/**/ # /**/ include /**/ "/etc/passwd"': "is refused: include",
    '/*\n*/#include "/etc/passwd"': "mine.cu:3: .* is refused: include",
    '#inc\\\nlude "/etc/passwd"': r"a line that ends in \\",
    '#inc\\ \nlude "/etc/passwd"': r"a line that ends in \\",
    '// \\\n#include "/etc/passwd"': r"a line that ends in \\",
    '%:include "/etc/passwd"': "a digraph or trigraph",
    '??=include "/etc/passwd"': "a digraph or trigraph",
    '#inc??/\nlude "/etc/passwd"': "a digraph or trigraph",
    '#if __has_include("/etc/passwd")\n#endif': "__has_include and its like",
    '#if __has_embed("/etc/passwd")\n#endif': "__has_include and its like",
    '#pragma GCC dependency "/etc/passwd"': "#pragma GCC dependency",
    '#pragma include_alias("common.cuh", "/etc/passwd")': "#pragma include_alias",
    '_Pragma("GCC dependency \\"/etc/passwd\\"")': "_Pragma",
    '#define P(x) _Pragma(x)\nP("x")': "_Pragma",
    "#define JOIN(a, b) a ## b\n": "##, which builds names",
    'int a __attribute__((section(".text; .incbin 1")));': "__attribute__",
    'int a [[gnu::section("x")]];': "gnu::",
    'int a [[ using gnu : section("x")]];': "gnu::",
    'const char *s = R"(\n#include "/etc/passwd"\n)";': "a raw string",
    "int n = 1'000; /* ' */": "a ' behind a letter or digit",
    "int m = 1'0; asm(\"\"); int n = 2'0;": "a ' behind a letter or digit",
    "/* no end": "a comment that has no end",
    "int a = host::current->place;": "the namespace host",
    "int a;\f\n": "has the character",
    "int a;\x00": "has the character",
    "int a;\u2028": "has the character",
}


@pytest.mark.parametrize("code", TRICKS)
def test_a_trick_is_refused_in_one_line(code: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(f"int first;\n{code}\n")
    assert re.search(TRICKS[code], user_error(lambda: read_source(path)))


@pytest.mark.parametrize(
    "code",
    [
        '#include "common.cuh"  // sums',
        '  #  include "mma.cuh"',
        "#pragma unroll(COPIES <= 16 ? COPIES : 4)",
        '#pragma once\n#ifdef X\n#undef X\n#else\n#error "no"\n#endif\n#',
        "const char c = '\"', d = '\\'', e = '/'; /* #embed */ // asm \"",
        'void f() { printf("%d\\n \\" #include", 1); }',
        'static_assert(1 % 2 == 1, "// #include <x> /* %: ##");',
        "int e[2] = {1, 2}; auto f = [&] { return e[e[0]]; };",
        "#define ASM(x) (x)\nint my_asm;",
    ],
)
def test_usual_code_is_accepted(code: str) -> None:
    check_source("mine.cu", code + "\n")
    assert not contains_ptx(blank_comments("mine.cu", code))


def test_the_projects_kernels_are_accepted() -> None:
    paths = [row.path for kind in ("conv", "gemm", "pool") for row in registry.variants(kind)]
    for path in {*paths, *INCLUDE_DIR.glob("*.cuh")}:
        text = path.read_text()
        if "##" not in text:  # which headers use to build functions
            check_source(path.name, text)


def test_inline_ptx_is_found() -> None:
    for code in ('asm volatile("");', '__asm__("");', '__asm ("");', "#define P asm\n"):
        assert contains_ptx(blank_comments("mine.cu", code))


@pytest.mark.parametrize(
    ("name", "content", "pattern"),
    [
        ("my kernel.cu", b"", r"name the file with letters, digits, '_', '\.', '-' alone"),
        ("kernel.txt", b"", "the ending .cu: mine.cu"),
        ("-x.cu", b"", "name the file with letters"),
        ("k\u00e9.cu", b"", "name the file with letters"),
        ("large.cu", b"/" * (10 << 20), f"10,485,760 bytes, more than the {MAX_BYTES:,}"),
        ("binary.cu", b"\xff\xfe\x00", "is no text in UTF-8"),
    ],
)
def test_files_that_are_no_kernels_are_refused(name: str, content: bytes, pattern: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    assert re.search(pattern, user_error(lambda: read_source(tmp_path / name)))


def test_paths_that_are_no_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.cu").mkdir()
    assert "is a directory" in user_error(lambda: read_source(tmp_path / "folder.cu"))
    assert "does not exist" in user_error(lambda: read_source(tmp_path / "none.cu"))
    (tmp_path / "zero.cu").symlink_to("/dev/zero")
    assert "is not a regular file" in user_error(lambda: read_source(tmp_path / "zero.cu"))


def test_line_ends_of_windows_are_accepted(tmp_path: Path) -> None:
    (tmp_path / "a.cu").write_bytes(b"int a;\r\n// b\r\n")
    assert read_source(tmp_path / "a.cu") == "int a;\n// b\n"
