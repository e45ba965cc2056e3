"""Dockerfiles: how they are read, and every rule with lines that it hits and lines that it must leave alone."""

import pytest
from packaging.version import Version

from verlstack.check import dockerfile, dockerrules, installs, knowledge
from verlstack.check.against import Against
from verlstack.check.dockerfile import Command
from verlstack.errors import UsageError

DIGEST = "@sha256:" + "a" * 64
GCC = f"FROM docker.invalid/python:3.10{DIGEST}\n"
AGAINST = Against(
    name="demo",
    python="3.10",
    platform="x86_64-manylinux_2_35",
    cuda="12.1",
    cxx11_abi=False,
    versions={"torch": Version("2.3.1"), "transformers": Version("4.41.2"), "verl": Version("0.2.0.post2")},
)
FORTY = "f" * 40
COMPILE = "ENV MAX_JOBS=4 TORCH_CUDA_ARCH_LIST=9.0 FLASH_ATTENTION_FORCE_BUILD=TRUE\nRUN pip install torch==2.3.1\n"
FLASH = "pip install --no-build-isolation flash-attn==2.6.3"


def codes(text):
    return {one.code.removeprefix("DOCKER-") for one in dockerrules.check(text, "Dockerfile", AGAINST)}


def lines(text):
    return [(command.text, command.line) for stage in dockerfile.parse(text, "x") for command in stage.commands]


# -- reading


def test_continued_lines_comments_and_separators():
    text = "FROM a\nRUN apt-get update \\\n  # why\n\n  && (pip install 'a b' || true); \\\n  echo ok | cat\nRUN x\n"
    assert lines(text) == [
        ("apt-get update", 2),
        ("pip install a b", 2),
        ("true", 2),
        ("echo ok", 2),
        ("cat", 2),
        ("x", 7),
    ]


def test_options_of_run_and_the_exec_form():
    text = 'FROM a\nRUN --mount=type=cache,target=/x --network=none pip list\nRUN ["pip", "install", "x y"]\n'
    text += 'RUN ["sh", "-c", "a && b"]\nRUN [ -f x ] && c\n'
    assert [one for one, _ in lines(text)] == ["pip list", "pip install x y", "a", "b", "[ -f x ]", "c"]


def test_here_documents_are_commands_of_run_and_content_of_copy():
    text = "FROM a\nRUN <<EOT\none\ntwo three\nEOT\nCOPY <<'X' /etc/f\nRUN nothing\nX\nRUN four\n"
    assert lines(text) == [("one", 2), ("two three", 2), ("four", 9)]


def test_what_only_looks_like_a_here_document_hides_no_line():
    text = "FROM a\nRUN grep x <<<word && echo $((1<<3))\nRUN echo 'see <<EOT here'\nRUN cat <<EOT\nEOT\nRUN last\n"
    assert [one for one, _ in lines(text)][-3:] == ["echo see <<EOT here", "cat", "last"]


def test_a_tab_may_follow_the_instruction_and_onbuild_is_only_later():
    assert lines("FROM\ta\nRUN\tone\nONBUILD RUN two\n") == [("one", 2), ("two", 3)]


@pytest.mark.parametrize("shell", ["bash -lc", "/bin/sh -ec", "sudo -E bash -c", "bash -o pipefail -c"])
def test_what_a_shell_is_given_is_read(shell):
    assert lines(f'FROM a\nRUN A=1 {shell} "one && two"\n') == [("A=1 one", 2), ("A=1 two", 2)]


def test_a_script_that_a_shell_runs_is_one_command():
    assert lines("FROM a\nRUN bash build.sh -c x\n") == [("bash build.sh -c x", 2)]


def test_the_shells_own_words_are_no_commands():
    text = "FROM a\nRUN if ! x; then pip install b; else { c; }; fi; for i in 1 2; do d; done\n"
    assert {"x", "pip install b", "c", "d"} <= {one for one, _ in lines(text)}


def test_quotes_that_do_not_close_are_no_crash():
    assert lines("FROM a\nRUN echo 'x && y\n") == [("echo 'x", 2), ("y", 2)]


def test_stages_environment_and_lineage():
    text = "ARG V=3.10\nFROM --platform=linux/amd64 py:${V} AS one\nENV A=1 B='2 3'\nENV OLD form\nARG C\n"
    text += "FROM one as two\nFROM ${W:-x:1}\nFROM ${GIVEN}\n"
    stages = dockerfile.parse(text, "x")
    assert [(stage.name, stage.image) for stage in stages] == [
        ("one", "py:3.10"),
        ("two", "one"),
        ("", "x:1"),
        ("", None),
    ]
    values = {name: value for name, (value, _) in stages[0].environment.items()}
    assert values == {"A": "1", "B": "2 3", "OLD": "form", "C": ""}
    assert dockerfile.lineage(stages, stages[1]) == stages[:2]
    assert dockerfile.lineage(stages, stages[2]) == [stages[2]]


def test_a_stage_that_names_itself_ends():
    stages = dockerfile.parse("FROM a AS a\n", "x")
    assert dockerfile.lineage(stages, stages[0]) == stages


@pytest.mark.parametrize("text", ["", "# x\n", "RUN a\nFROM b\n", "FROM a\nINSTALL b\n", "hello\n"])
def test_what_is_no_dockerfile(text):
    with pytest.raises(UsageError) as caught:
        dockerfile.parse(text, "Dockerfile")
    assert caught.value.where.startswith("Dockerfile")


@pytest.mark.parametrize(
    "words",
    [
        "pip3 install a==1",
        "python3.10 -m pip install a==1",
        "/opt/verl/bin/python -I -m pip install a==1",
        "/opt/verl/bin/pip install a==1",
        "uv pip install a==1",
        "sudo X=1 pip install a==1",
        "pip --no-cache-dir install a==1",
        "pip install -i https://index.invalid/simple a==1",
        "pip install --find-links=/w a==1",
        "pip install /w/a-1-py3-none-any.whl",
    ],
)
def test_all_ways_to_write_an_install(words):
    found = installs.read(Command(words=tuple(words.split()), line=1))
    assert found.packages == {"a": Version("1")}


def test_what_an_install_says():
    words = ("A=1", "pip", "install", "-r", "x.txt", "-cpins.txt", "--no-deps", "b", "c==${V}", "$D", ".", "git+x")
    found = installs.read(Command(words=words, line=3))
    assert found.packages == {"b": None}
    assert found.options == {"-r", "-c", "--no-deps"}
    assert (found.folders, found.unknown, found.environment) == ((".", "git+x"), True, {"A"})
    assert installs.read(Command(words=("pip", "list"), line=1)) is None
    assert installs.read(Command(words=("pip",), line=1)) is None


# -- rules: (code, what hits, what does not)

HITS = [
    ("DIGEST", "FROM python:3.10"),
    ("DIGEST", "FROM python"),
    ("DIGEST", "ARG V=3\nFROM python:${V}"),
    ("DIGEST", f"FROM python{DIGEST} AS a\nFROM b"),
    ("UPGRADE", GCC + "RUN apt-get update && apt-get -y upgrade"),
    ("UPGRADE", GCC + "RUN apt full-upgrade -y"),
    ("UPGRADE", GCC + "RUN dnf -y update"),
    ("PIP-UPGRADE", GCC + "RUN pip install -U transformers==4.41.2"),
    ("PIP-UPGRADE", GCC + "RUN pip install --upgrade pip"),
    ("EXTRA-INDEX", GCC + "RUN pip install a==1 --extra-index-url=https://x.invalid"),
    ("EXTRA-INDEX", GCC + "RUN pip config set global.extra-index-url https://x.invalid"),
    ("EXTRA-INDEX-ENV", GCC + "ENV PIP_EXTRA_INDEX_URL=https://x.invalid"),
    ("EXTRA-INDEX-ENV", GCC + "ARG UV_INDEX=https://x.invalid"),
    ("PRE", GCC + "RUN pip install --pre a==1"),
    ("OPTION", GCC + "RUN pip install -no-deps ."),
    ("OPTION", GCC + "RUN pip install --no-deps -no-build-isolation ."),
    ("CONDA", GCC + "RUN mamba install -y pytorch"),
    ("CONDA", GCC + "RUN conda env update -f x.yml"),
    ("STUBS", GCC + "ENV LD_LIBRARY_PATH=/usr/local/cuda/lib64/stubs:$LD_LIBRARY_PATH"),
    ("COMPAT", GCC + "ENV LD_LIBRARY_PATH /usr/local/cuda-12.1/compat"),
    ("GIT", GCC + "RUN pip install git+https://git.invalid/x@main"),
    ("GIT", GCC + "RUN pip install 'x @ git+https://git.invalid/x'"),
    ("CLONE", GCC + "RUN git clone https://git.invalid/x && cd x && make"),
    ("CLONE", GCC + f"RUN git checkout {FORTY} && git clone https://git.invalid/x"),
    ("UNINSTALL", GCC + "RUN pip uninstall -y torch"),
    ("ADD", GCC + "ADD https://x.invalid/f /f"),
    ("ADD", GCC + "RUN curl -sSL https://x.invalid/i | bash"),
    ("ADD", GCC + "RUN wget https://x.invalid/f\nRUN sha256sum -c f.sum"),
    ("ORDER", GCC + f"RUN {FLASH}"),
    ("ORDER", GCC + f"RUN {FLASH} && pip install torch==2.3.1"),
    ("ISOLATION", GCC + COMPILE + "RUN pip install flash-attn==2.6.3"),
    ("ARCH", GCC + COMPILE.replace("TORCH_CUDA_ARCH_LIST", "X") + f"RUN {FLASH}"),
    ("JOBS", GCC + COMPILE.replace("MAX_JOBS", "X") + f"RUN {FLASH}"),
    ("PREBUILT", GCC + COMPILE.replace("FLASH_ATTENTION_FORCE_BUILD", "X") + f"RUN {FLASH}"),
    ("AFTER-PINS", GCC + "RUN pip install -r pins.txt\nRUN pip install trl==0.9"),
    ("AFTER-PINS", GCC + "RUN pip install --require-hashes -r pins.txt && pip install -r more.txt"),
    ("AFTER-PINS", GCC + "RUN uv pip sync pins.txt\nRUN pip install ."),
    ("AFTER-PINS", f"FROM r.invalid/verlstack:cu121{DIGEST}\nRUN pip install trl==0.9"),
    ("AFTER-PINS", f"FROM python{DIGEST} AS a\nRUN pip install -r p.txt\nFROM a\nRUN pip install trl==0.9"),
    ("UNPINNED", GCC + "RUN pip install torch"),
    ("UNPINNED", GCC + "RUN pip install 'vllm>=0.6'"),
    ("COMPILER", f"FROM python:3.10-slim{DIGEST}\nRUN pip install torch==2.3.1"),
    ("COMPILER", f"FROM nvidia/cuda:12.1.1-base-ubuntu22.04{DIGEST}\nRUN pip install verl==0.2.0.post2"),
    ("COMPILER", f"FROM ubuntu:22.04{DIGEST}\nRUN pip install triton==2.3.1"),
    ("INDEX-CUDA", GCC + "RUN pip install torch==2.3.1 --index-url https://x.invalid/whl/cu118"),
    ("INDEX-CUDA", GCC + "RUN pip install torch==2.3.1 --index-url https://x.invalid/whl/cpu"),
    ("NVCC", f"FROM docker.invalid/cuda:11.8.0-devel{DIGEST}\n{COMPILE}RUN {FLASH}"),
]
CLEAN = [
    f"FROM python:3.10{DIGEST}",
    f"FROM python{DIGEST} AS a\nFROM a\nFROM scratch",
    "ARG BASE\nFROM ${BASE}",
    GCC + "RUN apt-get update && apt-get install -y --no-install-recommends gcc",
    GCC + "RUN pip install --upgrade pip==25.0.1 wheel==0.45.1",
    GCC + "ENV PIP_INDEX_URL=https://mirror.invalid/simple",
    GCC + "RUN pip install --no-deps --no-build-isolation -e .",
    GCC + "ENV LD_LIBRARY_PATH=/usr/local/cuda/lib64 LIBRARY_PATH=/usr/local/cuda/lib64/stubs",
    GCC + "RUN conda info",
    GCC + f"RUN pip install --no-deps git+https://git.invalid/x@{FORTY}",
    GCC + f"RUN git clone https://git.invalid/x && git -C x checkout {FORTY}",
    GCC + "ADD --checksum=sha256:aa https://x.invalid/f /f",
    GCC + "RUN curl -O https://x.invalid/f && echo 'aa  f' | sha256sum -c",
    GCC + "ADD f /f\nCOPY https.txt /x",
    GCC + COMPILE + f"RUN {FLASH}",
    GCC
    + f"RUN pip install torch==2.3.1 && MAX_JOBS=2 TORCH_CUDA_ARCH_LIST=8.0 FLASH_ATTENTION_FORCE_BUILD=TRUE {FLASH}",
    GCC + "RUN pip install --no-deps /w/flash_attn-2.6.3-cp310-cp310-linux_x86_64.whl",
    GCC + "RUN pip install -r pins.txt\nRUN pip install -c pins.txt trl",
    GCC + "RUN pip install -r pins.txt\nRUN pip install --no-deps trl==0.9",
    GCC + "RUN pip install -r pins.txt\nRUN pip wheel x==1",
    GCC + "RUN pip install torch==${TORCH}",
    f"FROM python:3.10-slim{DIGEST}\nRUN apt-get install -y gcc libc6-dev\nRUN pip install torch==2.3.1",
    f"FROM python:3.10-slim{DIGEST}\nRUN pip install requests==2.32.3",
    GCC + "RUN pip install torch==2.3.1 --index-url https://x.invalid/whl/cu121",
]


@pytest.mark.parametrize(("code", "text"), HITS)
def test_a_rule_hits(code, text):
    assert code in codes(text)


@pytest.mark.parametrize("text", CLEAN)
def test_nothing_is_said_of_what_is_right(text):
    assert codes(text) == set()


def test_every_rule_has_a_line_that_it_hits():
    known = {code.removeprefix("DOCKER-") for code in knowledge.table("dockerfile")["rule"]}
    assert known == {code for code, _ in HITS}


def test_a_package_that_no_pin_is_about_only_warns():
    found = dockerrules.check(GCC + "RUN pip install rich torch", "Dockerfile", AGAINST)
    assert {(one.subject, one.severity) for one in found} == {("rich", "warn"), ("torch", "fail")}


def test_releases_in_a_dockerfile_are_held_against_one_another_and_the_stack():
    found = dockerrules.check(GCC + "RUN true\nRUN pip install peft==0.21.2", "Dockerfile", AGAINST)
    assert [(one.code, one.where) for one in found] == [("RELEASE-PAIR", "Dockerfile:3")]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("RUN pip install --no-deps git+https://git.invalid/volcengine/verl@v0.2.3", "VERL-TAG"),
        ("RUN git clone --depth 1 -b v0.2.3 https://git.invalid/verl-project/verl.git", "VERL-TAG"),
        ("RUN git clone --branch v0.4.1 https://git.invalid/verl-project/verl", "RELEASE-PAIR"),
        ("ARG T=2.4.0\nRUN pip install torch==$T tensordict==0.4.0 vllm==0.5.1", "RELEASE-METADATA"),
    ],
)
def test_verls_tags_and_versions_by_argument(text, code):
    assert code in {one.code for one in dockerrules.check(GCC + text, "Dockerfile", AGAINST)}


def test_an_argument_from_before_the_first_stage_has_its_value_in_a_stage():
    text = f"ARG P=0.21.2\nFROM python{DIGEST}\nARG P\nRUN pip install peft==${{P}}\n"
    assert [one.code for one in dockerrules.check(text, "Dockerfile", AGAINST)] == ["RELEASE-PAIR"]
    unset = text.replace("ARG P=0.21.2\n", "")
    assert dockerrules.check(unset, "Dockerfile", AGAINST) == []


def test_releases_of_another_stage_do_not_count():
    text = f"FROM python{DIGEST}\nRUN pip install peft==0.21.2\nFROM python{DIGEST}\n"
    assert dockerrules.check(text, "Dockerfile", AGAINST) == []


def test_a_login_in_an_argument_is_not_shown():
    text = GCC + "ARG U=https://user:secret@x.invalid\nENV UV_INDEX=https://user:secret@x.invalid\n"
    text += "RUN pip install -i $U torch --extra-index-url https://user:secret@x.invalid\n"
    found = dockerrules.check(text, "Dockerfile", AGAINST)
    assert {one.code for one in found} == {"DOCKER-EXTRA-INDEX", "DOCKER-EXTRA-INDEX-ENV", "DOCKER-UNPINNED"}
    assert "secret" not in repr(found)


@pytest.mark.parametrize(
    "option", ["COPY --from=ghcr.io/astral/uv:latest /uv /bin/", "RUN --mount=type=bind,from=x/y:1,target=/y true"]
)
def test_files_of_another_image_without_a_digest(option):
    assert codes(f"{GCC}{option}\n") == {"DIGEST"}


@pytest.mark.parametrize(
    "option",
    [
        f"COPY --from=x/y:1{DIGEST} /a /b",
        "COPY --from=0 /a /b",
        "COPY --from=context /a /b",
        "COPY --from=$GIVEN/y:1 /a /b",
        "RUN --mount=type=cache,target=/from=x/y:1 true",
    ],
)
def test_files_of_a_stage_a_context_or_an_image_by_digest(option):
    assert codes(f"{GCC}{option}\n") == set()


@pytest.mark.parametrize(
    "install",
    [
        "pip install -qU six==1.17.0",
        "pip --no-cache-dir install -U six==1.17.0",
        "uv --quiet pip install -U six==1.17.0",
    ],
)
def test_upgrade_by_whatever_spelling(install):
    assert codes(f"{GCC}RUN {install}\n") == {"PIP-UPGRADE"}


@pytest.mark.parametrize("pin", ["'torch == 2.3.1'", "$PINS", "${PINS}", "torch==${TORCH:-2.3.1}", "torch==${GIVEN}"])
def test_what_a_pin_may_look_like(pin):
    assert codes(f'{GCC}ENV PINS="torch==2.3.1 numpy==2.2.6"\nRUN pip install {pin}\n') == set()


@pytest.mark.parametrize("version", ["${FLASH}", "${FLASH:-2.6.3}", "2.6.3"])
def test_what_is_compiled_is_seen_whoever_gives_its_version(version):
    found = codes(f"{GCC}RUN pip install flash-attn=={version}\n")
    assert found == {"ORDER", "ISOLATION", "ARCH", "JOBS", "PREBUILT"}


@pytest.mark.parametrize("image", ["fedora:40", "rockylinux/rockylinux:9", "redhat/ubi9-minimal:9.4", "debian:12"])
def test_no_compiler_in_the_bare_images_of_any_distribution(image):
    assert "COMPILER" in codes(f"FROM {image}{DIGEST}\nRUN pip install torch==2.3.1\n")


@pytest.mark.parametrize("before", ["sudo ", "GIT_SSL_NO_VERIFY=1 "])
@pytest.mark.parametrize("clone", ["git clone", "git -C /opt clone", "git --no-pager clone --depth 1"])
def test_a_clone_however_it_is_called(before, clone):
    assert codes(f"{GCC}RUN {before}{clone} https://git.invalid/x\n") == {"CLONE"}


@pytest.mark.parametrize("setting", ["ENV {0}", "ARG {0}", "RUN {0} pip install six==1.17.0", "RUN export {0} && true"])
@pytest.mark.parametrize(
    ("value", "code"),
    [
        ("PIP_EXTRA_INDEX_URL=https://index.invalid/simple", "EXTRA-INDEX-ENV"),
        ("PIP_INDEX_URL=https://torch.invalid/whl/cu118", "INDEX-CUDA"),
        ("UV_DEFAULT_INDEX=https://torch.invalid/whl/cpu", "INDEX-CUDA"),
        ("PIP_INDEX_URL=https://torch.invalid/whl/cu121", None),
    ],
)
def test_indexes_by_environment_wherever_it_is_set(setting, value, code):
    assert codes(f"{GCC}{setting.format(value)}\n") == ({code} if code else set())


def test_more_stages_than_anybody_writes():
    with pytest.raises(UsageError, match="more than 200 stages"):
        dockerfile.parse("FROM a\n" * 201, "x")


@pytest.mark.parametrize("rest", ["ONBUILD " * 5000 + "RUN x", "RUN " + "[" * 100_000])
def test_nested_without_end(rest):
    assert lines(f"FROM a\n{rest}\nRUN two\n")[-1][0] == "two"


@pytest.mark.parametrize(
    ("image", "found"),
    [
        ("nvidia/cuda:11.8.0-devel-ubuntu22.04", {"NVCC"}),
        ("pytorch/pytorch:2.3.1-cuda11.8-cudnn8-devel", {"NVCC"}),
        ("nvidia/cuda:13.0.1-devel-ubuntu22.04", {"NVCC"}),
        ("nvidia/cuda:12.4.1-devel-ubuntu22.04", set()),
    ],
)
def test_a_compiler_of_another_cuda_major(image, found):
    assert codes(f"FROM {image}{DIGEST} AS one\nFROM one\n{COMPILE}RUN {FLASH}\n") == found
    assert codes(f"FROM {image}{DIGEST}\nRUN pip install six==1.17.0\n") == set()
