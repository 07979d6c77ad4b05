"""What a host says of its caches."""

from fewtune.machine import host


def test_the_largest_cache_and_the_one_before_it_count(tmp_path):
    for index, size in enumerate(("32K", "1024K", "32M", "unknown")):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(f"{size}\n")
    assert host.last_level_cache_bytes(tmp_path) == 32 * 2**20
    assert host.own_cache_bytes(tmp_path) == 2**20
    assert host.own_cache_bytes(tmp_path / "index0") is None
    assert host.last_level_cache_bytes(tmp_path / "absent") is None
    assert host.own_cache_bytes(tmp_path / "absent") is None
