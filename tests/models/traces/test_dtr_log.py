"""DTR logs: what a problem takes from them, and what it refuses. All logs here are written by hand."""

from __future__ import annotations

import gzip
import json
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from instances import MB, PLAIN_LINK, columns

from slackswap.hardware.input_error import InputError
from slackswap.models.problem import Problem, Rebuild, Tensor
from slackswap.models.problem_file import problem_from_json, problem_to_json
from slackswap.models.traces.dtr_log import import_dtr, looks_like_dtr
from slackswap.models.traces.trace_file import open_trace_files

US = 1e-6


def line(instruction: str, **keys: Any) -> str:
    return json.dumps(
        {"INSTRUCTION": instruction} | {key.upper(): value for key, value in keys.items()}, sort_keys=True
    )


def constant(name: str, megabytes: float) -> list[str]:
    return [line("CONSTANT", name=name), line("MEMORY", name=name, memory=str(round(megabytes * MB)))]


def call(operator: str, us: float, arguments: str, **results: float | tuple[int, float]) -> list[str]:
    """Return a CALL; each result has its megabytes, or a pair of the argument that it is a view of and its megabytes."""
    lines = [line("CALL", name=operator, args=arguments.split(), result=list(results), time=str(round(us * 1000)))]
    for name, result in results.items():
        alias, megabytes = result if isinstance(result, tuple) else (-1, result)
        lines.append(line("MEMORY", name=name, memory=str(round(megabytes * MB))))
        lines.append(line("ALIAS", name=name, alias=str(alias)))
    return lines


def mutate(operator: str, us: float, arguments: str, *indices: int) -> str:
    return line("MUTATE", name=operator, args=arguments.split(), mutate=list(indices), time=str(round(us * 1000)))


def copy(destination: str, source: str) -> str:
    return line("COPY", dst=destination, src=source)


def release(*names: str) -> list[str]:
    return [line("RELEASE", name=name) for name in names]


START, BACKWARD = line("ANNOTATE", annotation="START"), line("ANNOTATE", annotation="BACKWARD")

# A convolution, a normalization with a ReLU in place, pooling that is logged under a backward name, and a linear layer.
#
#   0 a = conv(x, w)   1 b, s = batch_norm(a, g)   2 relu_(b)   3 c, i = max_pool2d_backward(b)   4 cv = view(c)
#   5 vt = t(v)        6 d = addmm(cv, vt)         7 e = sum(d)
#   8 ge = ones_like(e)  9 gv = mm(ge, cv)         10 gc = mm(ge, vt)   11 gb = pool_backward(gc, b, i)
#   12 ga = relu_backward(gb, b)  13 gn, gg = norm_backward(ga, a, g, s)  14 gw = conv_backward(gn, x, w)
STEP = [
    START,
    *constant("x", 3),
    *constant("w", 1),
    *constant("g", 0.5),
    *constant("v", 2),
    *call("conv2d", 100, "x w", a=16),
    *call("batch_norm", 30, "a g", b=16, s=0.25),
    copy("b2", "b"),
    mutate("relu_", 10, "b2", 0),
    *release("b2"),
    *call("max_pool2d_backward", 20, "b", c=4, i=8),
    *call("view", 2, "c", cv=(0, 4)),
    *release("c"),
    *call("t", 1, "v", vt=(0, 2)),
    *call("addmm", 40, "cv vt", d=1),
    *call("sum", 5, "d", e=0.001),
    *release("d"),
    BACKWARD,
    *call("ones_like", 4, "e", ge=0.001),
    *call("mm", 50, "ge cv", gv=2),
    *call("mm", 60, "ge vt", gc=4),
    *release("ge", "cv"),
    *call("pool_backward", 25, "gc b i", gb=16),
    *release("gc", "i"),
    *call("relu_backward", 12, "gb b", ga=16),
    *release("gb", "b"),
    *call("norm_backward", 35, "ga a g s", gn=16, gg=0.5),
    *release("ga", "a", "s"),
    *call("conv_backward", 150, "gn x w", gw=1),
    *release("gn", "x", "w", "g", "v", "vt", "gg", "gv", "gw", "e", "from_before_the_log"),
]


def rebuild(*us: int, inputs: tuple[int, ...] = (), mb: float = 0) -> Rebuild:
    """Return a rebuild that runs operators of so many microseconds one after the other."""
    return Rebuild(sum(1000 * time / 1e9 for time in us), inputs, round(mb * MB))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "small.log"


def imported(path: Path, lines: Iterable[str]) -> Problem:
    path.write_text("".join(f"{text}\n" for text in lines))
    return import_dtr(path, link=PLAIN_LINK)


def refusal(path: Path, lines: Iterable[str]) -> str:
    with pytest.raises(InputError) as refused:
        imported(path, lines)
    message = str(refused.value)
    assert message.startswith(f"{path}: ")
    assert len(message.splitlines()) == 1
    return message.removeprefix(f"{path}: ")


def by_name(problem: Problem) -> dict[str, Tensor]:
    return {tensor.name: tensor for tensor in problem.tensors()}


def test_operators(path: Path) -> None:
    problem = imported(path, STEP)
    assert (problem.name, problem.n_forward, problem.n_operators) == ("small", 8, 15)
    assert problem.operator_names[:5] == ("conv2d.0", "batch_norm.1", "relu_.2", "max_pool2d_backward.3", "view.4")
    kinds = [operator.kind for operator in problem.operators()]
    assert (kinds[0], kinds[1], kinds[2], kinds[6]) == ("convolution", "norm", "elementwise", "gemm")
    assert problem.forward_s == pytest.approx((100 + 30 + 10 + 20 + 2 + 1 + 40 + 5) * US)
    assert problem.backward_s == pytest.approx((4 + 50 + 60 + 25 + 12 + 35 + 150) * US)


def test_tensors(path: Path) -> None:
    # Storages, with every operator but views that reads or changes them. b is changed by 2, which is read there as well; cv and
    # vt are names of c and v, and v is a constant. gv, gg and gw are read by nothing and stay: they are weight gradients.
    assert by_name(imported(path, STEP)) == {
        "conv2d.0": Tensor("conv2d.0", 16 * MB, 0, (1, 13), None, rebuild(100)),
        # 1 and 2 again, from a, which is saved; s is made on the side
        "batch_norm.1": Tensor("batch_norm.1", 16 * MB, 1, (2, 3, 11, 12), None, rebuild(30, 10, inputs=(0,), mb=0.25)),
        "batch_norm.1:1": Tensor("batch_norm.1:1", MB // 4, 1, (13,), None, rebuild(30, inputs=(0,), mb=16)),
        "max_pool2d_backward.3": Tensor(
            "max_pool2d_backward.3", 4 * MB, 3, (6, 9), None, rebuild(20, inputs=(1,), mb=8)
        ),
        "max_pool2d_backward.3:1": Tensor(
            "max_pool2d_backward.3:1", 8 * MB, 3, (11,), None, rebuild(20, inputs=(1,), mb=4)
        ),
        "addmm.6": Tensor("addmm.6", 1 * MB, 6, (7,), None, rebuild(40, inputs=(3,))),
        # 6 and 7 again, from c: d is not kept
        "sum.7": Tensor("sum.7", 1000, 7, (8,), None, rebuild(40, 5, inputs=(3,), mb=1)),
        "ones_like.8": Tensor("ones_like.8", 1000, 8, (9, 10)),
        "mm.10": Tensor("mm.10", 4 * MB, 10, (11,)),
        "pool_backward.11": Tensor("pool_backward.11", 16 * MB, 11, (12,)),
        "relu_backward.12": Tensor("relu_backward.12", 16 * MB, 12, (13,)),
        "norm_backward.13": Tensor("norm_backward.13", 16 * MB, 13, (14,)),
    }


def test_saved_bytes_and_first_backward_use(path: Path) -> None:
    problem = imported(path, STEP)
    # a 16, b 16, s 0.25, c 4, i 8 MB and the loss; not d, and no constant
    assert problem.saved_bytes == 44.25 * MB + 1000
    first = dict(zip(problem.tensor_names, problem.first_backward_reader.tolist(), strict=True))
    assert (first["max_pool2d_backward.3"], first["batch_norm.1"], first["conv2d.0"]) == (9, 11, 13)


def test_the_annotation_decides_on_the_pass_not_the_names(path: Path) -> None:
    problem = imported(path, STEP)
    assert problem.operators()[3].name == "max_pool2d_backward.3"
    assert problem.operators()[3].phase == "forward"
    assert [operator.phase for operator in problem.operators()] == ["forward"] * 8 + ["backward"] * 7
    # Without pooling's name, nothing changes.
    renamed = [text.replace("max_pool2d_backward", "max_pool2d") for text in STEP]
    assert imported(path, renamed).first_backward_reader.tolist() == problem.first_backward_reader.tolist()


def test_views_take_time_and_are_no_reads(path: Path) -> None:
    problem = imported(path, STEP)
    assert problem.operator_names[4:6] == ("view.4", "t.5")
    assert problem.allocation_bytes[4:6].tolist() == [0, 0]
    assert problem.duration_s[4:6].tolist() == pytest.approx([2 * US, 1 * US])
    assert "but make, move and rebuild no bytes: 2 operators, 0.003 ms." in " ".join(problem.metadata["heuristics"])
    # A view after BACKWARD alone saves nothing: a1 is read by 1 and viewed by 2.
    lines = [*constant("x", 1), *call("f", 1, "x", a1=2), *call("g", 1, "a1", a2=3), BACKWARD]
    lines += [*call("view", 1, "a1", a3=(0, 2)), *call("g_backward", 1, "a2", a4=3)]
    assert imported(path, lines).saved_bytes == 3 * MB
    # What returns a view and something new has read its argument.
    lines[-6:-3] = call("topk_of_view", 1, "a1", a3=(0, 2), a5=1)
    assert imported(path, lines).saved_bytes == 5 * MB


def test_readers_of_views_are_readers_of_the_storage(path: Path) -> None:
    # The backward pass names nothing but the view of a view; and changing the view changes the storage.
    lines = [*constant("x", 1), *call("f", 1, "x", a=2), *call("view", 1, "a", b=(0, 2)), *call("t", 1, "b", c=(0, 2))]
    lines += [mutate("mul_", 1, "x c", 1), *release("a", "b"), BACKWARD, *call("g", 1, "x c", d=2)]
    [tensor] = imported(path, lines).tensors()
    assert tensor == Tensor("f.0", 2 * MB, 0, (3, 4), None, rebuild(1, 1))


def test_view_of_a_later_argument(path: Path) -> None:
    lines = [*constant("x", 1), *call("f", 1, "x", a=2), *call("expand_as", 1, "x a", b=(1, 2)), BACKWARD]
    assert imported(path, [*lines, *call("g", 1, "b", c=1)]).saved_bytes == 2 * MB


def test_calls_without_results_read(path: Path) -> None:
    lines = [
        *constant("x", 1),
        *call("f", 1, "x", a=2),
        BACKWARD,
        *call("check_finite", 1, "a"),
        *call("g", 1, "x", c=1),
    ]
    assert imported(path, lines).tensors() == [Tensor("f.0", 2 * MB, 0, (1,), None, rebuild(1))]


def test_empty_storages_are_tensors_if_they_are_saved(path: Path) -> None:
    # a is empty and read in the forward pass alone: nothing to plan, but the rebuild of c has to make it again.
    lines = [*constant("x", 1), *call("f", 1, "x", a=0, b=0), *call("g", 2, "a b", c=1), BACKWARD]
    assert imported(path, [*lines, *call("h", 1, "b c", d=1)]).tensors() == [
        Tensor("f.0", 0, 0, (1, 2), None, rebuild(1)),
        Tensor("g.1", 1 * MB, 1, (2,), None, rebuild(1, 2, inputs=(0,))),
    ]


def test_copies_name_the_same_storage(path: Path) -> None:
    # b is a; then b becomes c, and a alone stays with the first storage.
    lines = [*constant("x", 1), *call("f", 1, "x", a=2), copy("b", "a"), *call("g", 1, "b", c=4)]
    lines += [line("COPY_FROM", dst="b", src="c"), BACKWARD, *call("h", 1, "b", d=1), *call("k", 1, "d", e=1)]
    assert by_name(imported(path, lines)) == {
        "f.0": Tensor("f.0", 2 * MB, 0, (1,), None, rebuild(1)),
        "g.1": Tensor("g.1", 4 * MB, 1, (2,), None, rebuild(1, 1, mb=2)),
        "h.2": Tensor("h.2", 1 * MB, 2, (3,)),
    }


def test_writers_after_backward_are_no_part_of_a_rebuild(path: Path) -> None:
    lines = [
        *constant("x", 1),
        *call("f", 1, "x", a=2),
        mutate("relu_", 2, "a", 0),
        BACKWARD,
        mutate("mul_", 4, "a x", 0),
    ]
    assert imported(path, lines).tensors() == [Tensor("f.0", 2 * MB, 0, (1, 2), None, rebuild(1, 2))]


def test_what_is_released_early_is_workspace_and_what_stays_is_a_gradient(path: Path) -> None:
    # After BACKWARD, b is released before the last operator and c lives on as c2; nothing reads either of them.
    lines = [*constant("x", 1), *call("f", 1, "x", a=2), BACKWARD]
    lines += [*call("g", 1, "a", b=8, c=16), copy("c2", "c"), *release("b", "c")]
    lines += [*call("h", 1, "a", d=32), *release("a", "d")]
    problem = imported(path, lines)
    assert problem.tensor_names == ("f.0",)
    assert problem.workspace_bytes.tolist() == [0, 8 * MB, 0]
    assert "alive at the end: 2 storages (48.000 MB)." in problem.metadata["left_out"][-1]


def test_dead_results_lie_beside_each_other(path: Path) -> None:
    lines = [*constant("x", 1), *call("f", 1, "x", a=2, b=4, c=8), BACKWARD, *call("g", 1, "a", d=1)]
    problem = imported(path, lines)
    assert problem.workspace_bytes.tolist() == [12 * MB, 0]
    assert problem.tensors() == [Tensor("f.0", 2 * MB, 0, (1,), None, rebuild(1, mb=12))]


def test_only_the_step_after_the_last_start_counts(path: Path) -> None:
    # A warm-up step before: its operators are dropped, what it left in memory (k) is a constant then.
    warm_up = [*constant("y", 1), *call("warm", 7, "y", k=2, l=2), BACKWARD, *call("warm_backward", 8, "k", m=2)]
    lines = [*warm_up, *release("m", "l"), *STEP[:-1], BACKWARD]
    assert refusal(path, lines).startswith(f"line {len(lines)}: a second annotation BACKWARD, after that of line")
    lines = [*warm_up, *release("m", "l"), *STEP]
    at = lines.index(BACKWARD, len(warm_up))
    lines[at:at] = call("mul", 1, "k", n=1)
    problem = imported(path, lines)
    assert problem.n_operators == 16
    assert problem.operator_names[8] == "mul.8"
    [dropped] = problem.metadata["derivation"]["dropped"]
    assert dropped == {"what": "operators before the last START", "count": 2, "seconds": pytest.approx(15 * US)}
    assert "mul.8" not in by_name(problem)
    # x 3, w 1, g 0.5, v 2 are read as before, k of the warm-up as well; y is not.
    left_out = problem.metadata["left_out"]
    assert "Constants (weights, batch, what existed before): 5 storages (8.500 MB)" in left_out[1]


def test_metadata(path: Path) -> None:
    metadata = imported(path, STEP).metadata
    assert metadata["source"] == "small.log, a DTR log"
    derivation = metadata["derivation"]
    assert derivation["kind"] == "DTR log"
    assert {name: fact["exact"] for name, fact in derivation["facts"].items()} == {
        **{"order": 15, "times": 15, "sizes": 6, "producers": 6, "readers": 6},
        **{"first backward use": 6, "rebuild costs": 0},
    }
    assert derivation["facts"]["rebuild costs"]["by_rule"] == 6
    assert (derivation["dropped"], derivation["warnings"]) == ([], [])
    heuristics = " ".join(metadata["heuristics"])
    assert "launch overhead is included" in heuristics
    assert "1 saved tensors are changed in place after their producer" in heuristics
    assert "random" not in heuristics
    # w, x, g are read; v is only viewed, but its view is read
    assert "what existed before): 4 storages (6.500 MB)" in metadata["left_out"][1]


def test_random_operators_and_optimizer_steps_are_declared(path: Path) -> None:
    lines = [*constant("w", 1), *call("dropout", 1, "w", a=1, m=1), BACKWARD, *call("f", 1, "a m w", g=1)]
    # Running statistics change in the forward pass as well: that is no optimizer.
    lines[2:2] = [mutate("add_", 1, "w", 0)]
    assert "2 saved tensors are random" in " ".join(imported(path, lines).metadata["heuristics"])
    assert imported(path, lines).metadata["derivation"]["warnings"] == []
    [warning] = imported(path, [*lines, mutate("add_", 1, "w g", 0)]).metadata["derivation"]["warnings"]
    assert warning.startswith("1 operators after BACKWARD change constants in place")


def test_numbers_may_be_numbers(path: Path) -> None:
    as_strings = imported(path, STEP)
    numbers = []
    for text in STEP:
        keys = json.loads(text)
        for key in ("TIME", "MEMORY", "ALIAS"):
            if key in keys:
                keys[key] = float(keys[key]) if key == "TIME" else int(keys[key])
        if "MUTATE" in keys:
            keys["MUTATE"] = [str(index) for index in keys["MUTATE"]]
        numbers.append(json.dumps(keys))
    assert columns(imported(path, numbers)) == columns(as_strings)


def test_other_annotations_pins_and_blank_lines_change_nothing(path: Path) -> None:
    plain = columns(imported(path, STEP))
    extra = [line("ANNOTATE", annotation="EPOCH 3"), "", line("PIN", name="x"), *STEP, "  "]
    assert columns(imported(path, extra)) == plain
    path.write_text("\r\n".join(STEP))  # the last line has no end
    assert columns(import_dtr(path, link=PLAIN_LINK)) == plain


def test_lines_across_chunks(path: Path) -> None:
    # Two megabytes of annotations of growing length: lines lie across the borders of the chunks that a file is read in.
    plain = imported(path, STEP)
    padding = [line("ANNOTATE", annotation="x" * n) for n in range(2000)]
    assert columns(imported(path, [*padding, *STEP])) == columns(plain)


def test_recognized_by_content() -> None:
    for first in (START, line("CONSTANT", name="x"), line("CALL", name="f", args=["x"] * 20, result=[], time="3")):
        assert looks_like_dtr(first.encode())
    assert looks_like_dtr(b' {"INSTRUCTION" : "MUTATE"')
    for other in (
        b"",
        b'{"schemaVersion": 1',
        b'[{"INSTRUCTION":"CALL"}]',
        b'{"INSTRUCTION":"SELECT"}',
        b"CONSTANT x\n",
    ):
        assert not looks_like_dtr(other)


def test_gzip_and_archives(path: Path) -> None:
    plain = imported(path, STEP)
    gzipped = path.with_suffix(".log.gz")
    gzipped.write_bytes(gzip.compress(path.read_bytes()))
    unpacked = import_dtr(gzipped, link=PLAIN_LINK)
    assert (unpacked.name, unpacked.tensors()) == ("small", plain.tensors())
    archive = path.with_suffix(".tar")
    with tarfile.open(archive, "w") as tar:
        tar.add(path, "logs/small.log")
    [member] = open_trace_files(archive)
    assert columns(import_dtr(member, link=PLAIN_LINK)) == columns(plain)


MALFORMED: list[tuple[list[str], str]] = [
    ([line("EVICT", name="a")], "'EVICT' is no instruction of a DTR log: they are ANNOTATE, CONSTANT"),
    (call("f", 1, "a z", y=1), "names 'z', which no earlier line makes, or which one has released"),
    (call("f", 1, "freed", y=1), "names 'freed', which no earlier line makes, or which one has released"),
    ([copy("y", "z")], "names 'z', which no earlier line makes"),
    ([line("COPY_FROM", dst="z", src="a")], "names 'z', which no earlier line makes"),
    ([line("COPY_FROM", dst="a", src="z")], "names 'z', which no earlier line makes"),
    ([mutate("f", 1, "a z", 0)], "names 'z', which no earlier line makes"),
    ([copy("a", "x")], "makes 'a', which exists already and was not released"),
    ([mutate("f", 1, "a x", 2)], "an index of MUTATE is a whole number from 0 to 1, not '2'"),
    ([mutate("f", 1, "a x", -1)], "an index of MUTATE is a whole number from 0 to 1, not '-1'"),
    ([mutate("f", -1, "a", 0)], "a time in nanoseconds is a whole number from 0 to 1000000000000000000, not '-1000'"),
    ([line("CALL", name="f", args=[], result=[], time="1.5")], "a time in nanoseconds is a whole number from 0 to"),
    ([line("CALL", name="f", args=[], result=[], time="1e3")], "a time in nanoseconds is a whole number from 0 to"),
    ([line("CALL", name="f", args=[], result=[])], "CALL has no TIME"),
    ([line("CALL", name="f", result=[], time="1")], "CALL has no ARGS"),
    ([line("MUTATE", name="f", args=["a"], time="1")], "MUTATE has no MUTATE"),
    ([line("RELEASE")], "RELEASE has no NAME"),
    ([line("MEMORY", name="a", memory="1")], "MEMORY stands alone: it describes a result of the CALL before it"),
    ([line("ALIAS", name="a", alias="-1")], "ALIAS stands alone: it describes a result of the CALL before it"),
    (['{"NAME":"a"}'], "is no instruction of a DTR log: Object missing required field `INSTRUCTION`"),
    (['{"INSTRUCTION":"CALL","ARGS":"a"}'], "is no instruction of a DTR log: Expected `array | null`, got `str`"),
    (["[1]"], "is no instruction of a DTR log: Expected `object`, got `array`"),
    (['{"INSTRUCTION":"CALL",}'], "is not valid JSON: JSON is malformed"),
    (["[" * 100_000], "is no instruction of a DTR log"),
    (['{"a":' * 100_000], "is not valid JSON: maximum recursion depth exceeded"),
]


@pytest.mark.parametrize(("wrong", "message"), MALFORMED, ids=[message[:40] for _, message in MALFORMED])
def test_malformed_lines_are_named(path: Path, wrong: list[str], message: str) -> None:
    # Lines 1-2 make x, 3-5 a, 6-8 freed, 9 releases it: the wrong one is line 10.
    lines = [*constant("x", 1), *call("f", 1, "x", a=1), *call("f", 1, "x", freed=1), *release("freed")]
    assert refusal(path, [*lines, *wrong, BACKWARD, *call("g", 1, "a", b=1)]).startswith(f"line 10: {message}")


@pytest.mark.parametrize(
    ("described", "wrong_line", "message"),
    [
        ([line("ALIAS", name="a", alias="-1")], 4, "MEMORY of 'a' has to stand here, which line 3 makes"),
        ([line("MEMORY", name="b", memory="1")], 4, "MEMORY of 'a' has to stand here, which line 3 makes"),
        ([line("MEMORY", name="a", memory="1"), BACKWARD], 5, "ALIAS of 'a' has to stand here, which line 3 makes"),
        (
            [line("MEMORY", name="a", memory="-1")],
            4,
            "MEMORY is a whole number from 0 to 1152921504606846976, not '-1'",
        ),
        (
            [line("MEMORY", name="a", memory="x" * 99)],
            4,
            f"MEMORY is a whole number from 0 to {1 << 60}, not '{'x' * 40}'",
        ),
        ([line("MEMORY", name="a")], 4, "MEMORY has no MEMORY"),
        (
            [line("MEMORY", name="a", memory="1"), line("ALIAS", name="a", alias="1")],
            5,
            "ALIAS is a whole number from -1 to 0",
        ),
        (
            [line("MEMORY", name="a", memory="1"), line("ALIAS", name="a", alias="-2")],
            5,
            "ALIAS is a whole number from -1 to",
        ),
    ],
)
def test_results_are_described_in_order(path: Path, described: list[str], wrong_line: int, message: str) -> None:
    lines = [*constant("x", 1), line("CALL", name="f", args=["x"], result=["a"], time="1"), *described]
    assert refusal(path, [*lines, BACKWARD]).startswith(f"line {wrong_line}: {message}")


def test_torn_logs_are_refused(path: Path) -> None:
    text = "\n".join(STEP[:-4])
    path.write_text(text[:-10])
    with pytest.raises(InputError) as refused:
        import_dtr(path, link=PLAIN_LINK)
    assert str(refused.value) == f"{path}: line {len(STEP) - 4}: is torn: the file ends within its JSON; copy it again"
    at = next(i for i, text in enumerate(STEP) if '"conv_backward"' in text)
    assert (
        refusal(path, STEP[: at + 1])
        == f"line {at + 1}: the log ends before the MEMORY of 'gw': it is torn, copy it again"
    )
    assert (
        refusal(path, STEP[: at + 2])
        == f"line {at + 2}: the log ends before the ALIAS of 'gw': it is torn, copy it again"
    )
    assert refusal(path, STEP[:2]) == "line 2: the log ends before the MEMORY of 'x': it is torn, copy it again"


def test_logs_that_are_not_one_step_are_refused(path: Path) -> None:
    without = [text for text in STEP if text != BACKWARD]
    assert refusal(path, without).startswith("has no annotation BACKWARD, and the names of operators do not say")
    again = [*STEP, BACKWARD]
    assert refusal(path, again) == (
        f"line {len(again)}: a second annotation BACKWARD, after that of line {STEP.index(BACKWARD) + 1}: a problem has one"
        ' backward pass; record one step without gradient accumulation, or put torch.annotate_log("START") before the last one'
    )
    assert refusal(path, STEP[: STEP.index(BACKWARD) + 1]).startswith("has no operator after the annotation BACKWARD")
    assert (
        refusal(path, [START, *constant("x", 1), BACKWARD])
        == "line 4: no operator stands before the annotation BACKWARD"
    )
    # A START after the step begins another one.
    assert refusal(path, [*STEP, START]).startswith("has no annotation BACKWARD")


def test_files_that_are_no_logs(path: Path) -> None:
    path.write_bytes(b"")
    with pytest.raises(InputError, match=r"small\.log: is empty"):
        import_dtr(path, link=PLAIN_LINK)
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(InputError, match=r"small\.log: is a Git LFS pointer"):
        import_dtr(path, link=PLAIN_LINK)
    with path.open("wb") as file:
        file.write(b'{"INSTRUCTION":"' + b"A" * (5 << 20))
    with pytest.raises(InputError, match="has more than 4194304 bytes: this is no DTR log"):
        import_dtr(path, link=PLAIN_LINK)
    whole = gzip.compress("\n".join(STEP).encode())
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"small\.log: is torn gzip"):
        import_dtr(path, link=PLAIN_LINK)


@given(st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
def test_damaged_logs_are_refused_or_valid(path: Path, data: st.DataObject) -> None:
    lines = list(STEP)
    for _ in range(data.draw(st.integers(0, 2))):
        at, to = (data.draw(st.integers(0, len(lines) - 1)) for _ in range(2))
        lines[at] = lines[to]
    content = bytearray("\n".join(lines).encode())
    for at in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=2)):
        content[at] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(1, len(content)) | st.just(len(content)))]
    path.write_bytes(bytes(content))
    looks_like_dtr(bytes(content[:4096]))
    try:
        problem = import_dtr(path, link=PLAIN_LINK)
    except InputError as error:
        assert str(error).startswith(f"{path}: ")
        assert len(str(error).splitlines()) == 1
        return
    assert columns(problem_from_json(problem_to_json(problem))) == columns(problem)
