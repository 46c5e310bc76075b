"""The rules of each family, and the shared memory that its kernels take."""

from __future__ import annotations

import pytest
from kernelgen_cases import (
    ELEMENTWISE,
    SM80,
    SM90,
    Table,
    changed,
    declared,
    document,
    dtypes,
    errors,
)

from kernelgen.families import FAMILIES
from kernelgen.manifest import InvalidManifestError, parse

SM90_TILE = "[[kernel]] #1 (family sm90_warpspecialized), tiles[0]"
SM80_TILE = "[[kernel]] #1 (family sm80_multistage), tiles[0]"


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"tile": [96, 128, 64]}, "tile M = 96 is no multiple of 64, as pingpong needs"),
        ({"tile": [64, 128, 64], "schedule": "cooperative"}, "no multiple of 128, as cooperative"),
        ({"schedule": "streamk"}, "unknown schedule 'streamk'; allowed: pingpong, cooperative"),
        ({"tile": [128, 100, 64]}, "tile N = 100; wgmma takes multiples of 8 up to 256"),
        ({"tile": [64, 264, 32]}, "tile N = 264; wgmma takes"),
        ({"tile": [128, 128, 48]}, "tile K = 48 of 2-byte elements is 96 bytes"),
        ({"cluster": [1, 3, 1]}, "cluster 1x3x1; M and N are 1, 2 or 4"),
        ({"cluster": [4, 4, 1]}, "cluster 4x4x1"),
        ({"cluster": [1, 1, 2]}, "cluster 1x1x2"),
        ({"tile": [64, 8, 64]}, "tile N = 8 is multicast to cluster M = 2 threadblocks"),
        ({"schedule": "multistage"}, "unknown schedule 'multistage'; allowed: pingpong, "),
        ({"swap_ab": 1}, "swap_ab: must be true or false, not 1"),
        ({"stages": 3}, "unknown key 'stages'; allowed: tile, cluster, schedule, swap_ab, fast"),
        ({"arch": ["80"]}, "unknown architecture '80'; allowed: 90a"),
        ({"epilogue": ["silu_backward"]}, "epilogue silu_backward does not use accum; it is for"),
    ],
)
def test_rules_of_sm90_warpspecialized(values: Table, text: str) -> None:
    found = errors(changed(SM90, **values))
    assert len(found) == 1, found
    assert text in ": ".join(found[0])


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"tile": [128, 96, 32]}, "tile 128x96x32 is not divisible by warp 64x64x32"),
        ({"tile": [256, 160, 32], "warp": [32, 32, 32]}, "takes 40 warps of 32x32x32; at most 16"),
        ({"warp": [64, 64, 16]}, "16-bit operands need multiples of 16x16x32 (pairs of mma"),
        ({"tile": [48, 64, 32], "warp": [24, 32, 32]}, "warp 24x32x32; 16-bit operands"),
        ({"warp": [64, 64, 32], "tile": [128, 128, 64]}, "warp K = 32; warps share M and N of a"),
        (
            {"tile": [128, 128, 96], "warp": [64, 64, 96], "layouts": ["nnt"]},
            "rows of B's tile take 192 bytes; a power of two from 64 on",
        ),
        (
            {"tile": [128, 96, 32], "warp": [64, 96, 32], "layouts": ["ttt"]},
            "rows of B's tile take 192 bytes; a power of two from 64 on",
        ),
        (
            {"tile": [48, 64, 32], "warp": [16, 64, 32]},
            "96 threads copy 24 of the 64 rows of B's tile at once; a divisor of these",
        ),
        ({"stages": 1}, "stages = 1; 2 to 8 are supported"),
        ({"stages": 9, "tile": [64, 64, 32]}, "stages = 9"),
        ({"cluster": [1, 1, 1]}, "unknown key 'cluster'; allowed: tile, warp, stages, fast_accum"),
        ({"arch": ["90a"]}, "unknown architecture '90a'; allowed: 80, 89"),
        ({"epilogue": ["silu_backward"]}, "epilogue silu_backward does not use accum; it is for"),
        ({"epilogue": ["plain"]}, "epilogue plain adds nothing; here linear_combination serves it"),
    ],
)
def test_rules_of_sm80_multistage(values: Table, text: str) -> None:
    found = errors(changed(SM80, **values))
    assert len(found) == 1, found
    assert text in ": ".join(found[0])


def test_sm80_serves_a_row_by_a_matrix() -> None:
    data = document(changed(SM80, epilogue=["bias"]))
    bias = {"expr": "alpha * accum + bias", "operands": {"bias": "row[N]"}}
    with pytest.raises(InvalidManifestError, match="bias adds a row; here linear_combination"):
        parse(declared(data, bias=bias))
    assert parse(declared(data, bias={**bias, "expr": "bias + relu(accum)"}))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"expr": "accum * 2"}, "epilogue mine uses accum; there is no product here"),
        (
            {"expr": "c * bias", "operands": {"c": "matrix[M,N]", "bias": "row[N]"}},
            "epilogue mine reads bias, row[N]; operands are scalar, matrix[M,N] or matrix[M,2N]",
        ),
        (
            {"expr": "c", "operands": {"c": "matrix[M,N] f32"}},
            "epilogue mine reads c, matrix[M,N] f32; operands are",
        ),
        (
            {"expr": "z", "aux": {"z": "2 * c"}, "operands": {"c": "matrix[M,N]"}},
            "epilogue mine stores z; nothing but D can be stored here",
        ),
    ],
)
def test_rules_of_elementwise(body: Table, reason: str) -> None:
    data = declared(document(changed(ELEMENTWISE, epilogue=["mine"])), mine=body)
    with pytest.raises(InvalidManifestError) as caught:
        parse(data)
    assert [error.reason[: len(reason)] for error in caught.value.errors] == [reason]
    assert caught.value.errors[0].entry == "[[kernel]] #1 (family elementwise)"


SUMS = {"family": "splitk_epilogue", "arch": ["90a"], "epilogue": ["mine"]} | {
    "dtypes": [{"a": "f32", "b": "f32", "acc": "f32", "d": "bf16"}]
}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            {"expr": "c", "operands": {"c": "matrix[M,N]"}},
            "epilogue mine does not use accum; there",
        ),
        ({"expr": "alpha * accum"}, "epilogue mine is one of mm and addmm, with alpha or beta"),
    ],
)
def test_rules_of_what_follows_sums(body: Table, reason: str) -> None:
    with pytest.raises(InvalidManifestError) as caught:
        parse(declared(document(SUMS), mine=body))
    assert [error.reason[: len(reason)] for error in caught.value.errors] == [reason]


def test_sums_are_followed_by_any_other_epilogue() -> None:
    for body in (
        {"expr": "silu(even(accum)) * odd(accum)"},
        {"expr": "relu(z)", "aux": {"z": "accum + bias"}, "operands": {"bias": "row[N]"}},
        {"expr": "accum * scale", "operands": {"scale": "col[M] f32"}},
    ):
        (kernel,) = parse(declared(document(SUMS), mine=body)).kernels
        assert kernel.layout == "ttt"


def test_elementwise_chooses_an_epilogue_and_nothing_else() -> None:
    found = errors({**ELEMENTWISE, "layouts": ["tnt"]})
    assert found[0][1] == "unknown key 'layouts'; allowed: family, arch, dtypes, epilogue"
    assert (
        "combination bf16_bf16_f32_f32"
        in errors(changed(ELEMENTWISE, dtypes=[dtypes("bf16", "f32")]))[0][1]
    )
    assert errors({k: v for k, v in ELEMENTWISE.items() if k != "epilogue"}) == [
        ("[[kernel]] #1 (family elementwise)", "key 'epilogue' is missing")
    ]
    every = changed(
        ELEMENTWISE, arch=["80", "89", "90a"], dtypes=[dtypes(x, x) for x in ("bf16", "f16", "f32")]
    )
    assert {(k.layout, k.tile.shape) for k in parse(document(every)).kernels} == {
        ("ttt", (1, 1, 1))
    }


def test_tf32_has_its_own_mma_shape() -> None:
    tf32 = changed(SM80, dtypes=[dtypes("tf32", "f32")], tile=[128, 128, 24], warp=[64, 64, 24])
    assert "32-bit operands need multiples of 16x16x16 (pairs of mma 16x8x8" in errors(tf32)[0][1]
    assert parse(document(changed(tf32, tile=[128, 128, 16], warp=[64, 64, 16])))


@pytest.mark.parametrize(("layout", "swap_ab"), [("ttt", True), ("nnt", False)])
def test_tf32_of_sm90_needs_b_k_major_or_a_not(layout: str, swap_ab: bool) -> None:
    tf32 = changed(SM90, dtypes=[dtypes("tf32", "f32")], layouts=[layout], tile=[128, 128, 32])
    assert parse(document(changed(tf32, swap_ab=swap_ab)))
    found = errors(changed(tf32, swap_ab=not swap_ab))
    assert len(found) == 1
    assert found[0][1].startswith(f"layout {layout} with{'out' if swap_ab else ''} swap_ab has A")
    assert found[0][1].endswith(f"set swap_ab = {str(swap_ab).lower()}")
    assert parse(document(changed(SM90, layouts=[layout], swap_ab=not swap_ab)))


def test_shared_memory_is_that_of_the_architecture() -> None:
    entry = changed(SM80, arch=["80", "89"], tile=[128, 128, 64], warp=[64, 64, 64], stages=4)
    assert errors(entry) == [
        (
            SM80_TILE,
            "needs too much shared memory for sm89: 4 stages x (128 + 128) x 64 x 2"
            " = 131072 bytes, but a threadblock has at most 101376 bytes (99 KiB)",
        )
    ]


def test_the_epilogue_counts_in_shared_memory() -> None:
    """64 rows of C and D fit beside the mainloop of 16-bit output, 128 rows of f32 do not."""
    tile = {"tile": [256, 160, 128], "cluster": [1, 1, 1], "schedule": "cooperative"}
    entry = changed(SM90, tiles=[tile])
    assert parse(document(entry))
    entry = changed(entry, dtypes=[dtypes("bf16", "f32")], epilogue=["linear_combination"])
    assert errors(entry) == [
        (
            SM90_TILE,
            "needs too much shared memory for sm90a: 2 stages x ((256 + 160) x 128 x 2 + 16)"
            " + epilogue 4 x 128 x 32 x 4 = 278560 bytes, but a threadblock has at most"
            " 232448 bytes (227 KiB)",
        )
    ]


@pytest.mark.parametrize(
    ("body", "d", "terms"),
    [
        ({"expr": "accum * 2"}, "bf16", [(2, 32, 2)]),
        ({"expr": "accum + v", "operands": {"v": "row[N]"}}, "bf16", [(2, 32, 2)]),
        # The C tile and D share buffers.
        ({"expr": "accum * c", "operands": {"c": "matrix[M,N]"}}, "bf16", [(4, 32, 2)]),
        ({"expr": "accum * c", "operands": {"c": "matrix[M,N]"}}, "f32", [(4, 32, 4)]),
        ({"expr": "accum * c", "operands": {"c": "matrix[M,N] f32"}}, "f32", [(4, 32, 4)]),
        # Whatever is not as wide as D has buffers of its own.
        (
            {"expr": "accum * c", "operands": {"c": "matrix[M,N] f32"}},
            "bf16",
            [(2, 32, 2), (4, 32, 4)],
        ),
        (
            {"expr": "accum * even(w)", "operands": {"w": "matrix[M,2N]"}},
            "bf16",
            [(2, 32, 2), (4, 32, 4)],
        ),
        (
            {
                "expr": "e * c + accum + b2",
                "operands": {"e": "matrix[M,N]", "c": "matrix[M,N]", "b2": "matrix[M,N] f32"},
            },
            "bf16",
            [(4, 32, 2), (4, 32, 2), (4, 32, 4)],
        ),
        (
            {
                "expr": "z + y + c",
                "aux": {"z": "accum", "y": "accum"},
                "operands": {"c": "matrix[M,N]"},
            },
            "f16",
            [(4, 32, 2), (2, 32, 2), (2, 32, 2)],
        ),
        # CUTLASS takes twice the columns where an element has one byte.
        ({"expr": "even(accum)"}, "bf16", [(2, 64, 1)]),
        ({"expr": "even(accum)"}, "f32", [(2, 32, 2)]),
        ({"expr": "even(z)", "aux": {"z": "accum"}}, "bf16", [(2, 64, 1), (2, 64, 2)]),
        ({"expr": "pair(accum, 2 * accum)"}, "bf16", [(2, 32, 4)]),
        (
            {
                "expr": "pair(accum * odd(w), c * even(w))",
                "operands": {"c": "matrix[M,N]", "w": "matrix[M,2N]"},
            },
            "bf16",
            [(4, 32, 4), (4, 32, 2)],
        ),
    ],
)
def test_the_epilogue_of_sm90_takes_shared_memory(
    body: Table, d: str, terms: list[tuple[int, int, int]]
) -> None:
    data = document(
        changed(SM90, epilogue=["mine"], dtypes=[dtypes("bf16" if d == "f32" else d, d)])
    )
    (kernel,) = parse(declared(data, mine=body)).kernels
    total, arithmetic = FAMILIES[kernel.family].shared_memory(kernel)
    assert total == 2 * (256 * 64 * 2 + 16) + sum(c * 64 * n * width for c, n, width in terms)
    spelled = " + ".join(f"{count} x 64 x {columns} x {width}" for count, columns, width in terms)
    assert arithmetic.endswith(f" + epilogue {spelled} = {total} bytes")


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ({"expr": "pair(accum, 2 * accum)"}, "its result"),
        ({"expr": "accum * even(w)", "operands": {"w": "matrix[M,2N]"}}, "w"),
    ],
)
@pytest.mark.parametrize("entry", [SM90, SM80])
def test_a_doubled_width_takes_16_bit_elements(entry: Table, body: Table, what: str) -> None:
    data = changed(entry, epilogue=["mine"], dtypes=[dtypes("bf16", "f32")])
    with pytest.raises(InvalidManifestError) as raised:
        parse(declared(document(data), mine=body))
    assert f"epilogue mine: {what} has 2N columns" in str(raised.value)


def test_a_cooperative_tile_of_bytes_is_no_wider() -> None:
    data = document(changed(SM90, epilogue=["gated_aux"], schedule="cooperative"))
    (kernel,) = parse(data).kernels
    assert (
        "epilogue 2 x 128 x 32 x 1 + 2 x 128 x 32 x 2"
        in FAMILIES[kernel.family].shared_memory(kernel)[1]
    )
