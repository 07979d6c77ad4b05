import json

from fewtune.runtime.target import resolve_target, unlike_its_name
from fewtune.runtime.tvm import has_feature

_ICE_LAKE = (
    "fma f16c avx avx2 avx512f avx512dq avx512ifma avx512cd avx512bw avx512vl avx512vbmi "
    "avx512_vbmi2 avx512_vnni avx512_bitalg avx512_vpopcntdq"
)


def test_what_a_cpu_has_beyond_its_name_is_added():
    cpuinfo = f"flags\t: {_ICE_LAKE} avx512_bf16 avx_vnni amx_tile\n"

    assert unlike_its_name("rocketlake", cpuinfo) == ["+avxvnni", "+avx512bf16"]


def test_what_a_machine_hides_of_its_cpu_is_left_out():
    hidden = unlike_its_name("sapphirerapids", "flags : fma f16c avx avx2 avx_vnni\n")

    assert hidden[0] == "-avx512f"
    assert all(each.startswith("-avx512") for each in hidden)
    target = resolve_target(
        json.dumps({"kind": "llvm", "mcpu": "sapphirerapids", "mattr": hidden}), 1, elsewhere=True
    )
    assert not has_feature(target, "avx512f")
    assert has_feature(target, "avx2")


def test_an_arm_cpu_has_its_dot_products():
    cpuinfo = "processor : 0\nFeatures : fp asimd asimdhp asimddp i8mm\n"

    assert unlike_its_name("cortex-a72", cpuinfo) == ["+dotprod", "+fullfp16", "+i8mm"]


def test_a_processor_of_the_users_own_is_taken_as_it_is():
    target = resolve_target('{"kind": "llvm", "mcpu": "x86-64-v3"}', 1)

    assert not target.attrs.get("mattr")
