"""Tar against webdataset and tarfile, both ways; DALI reads ours; hostile archives are refused."""

from __future__ import annotations

import io
import json
import os
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset
from hypothesis import given as drawn
from hypothesis import strategies as st

from fastload import FastLoader, PackedDataset
from fastload.errors import StoreError
from fastload.storage import DCT, RAW, Record, open_store, open_writer
from fastload.storage.formats.tar import header, members
from storage.formats import CLASSES, alone, data_of, picture, records

FORMATS = {"pax": tarfile.PAX_FORMAT, "gnu": tarfile.GNU_FORMAT, "ustar": tarfile.USTAR_FORMAT}


def write(path: Path, given: list[Record], **options: Any) -> Path:
    with open_writer(path, classes=CLASSES, **options) as writer:
        writer.append(given)
    return path


def tar(path: Path, entries: list[Any], form: str = "gnu") -> Path:
    """By tarfile; an entry is (name, bytes), or a TarInfo of something without data."""
    with tarfile.open(path, "w", format=FORMATS[form]) as archive:
        for entry in entries:
            if isinstance(entry, tarfile.TarInfo):
                archive.addfile(entry)
                continue
            info = tarfile.TarInfo(entry[0])
            info.size = len(entry[1])
            archive.addfile(info, io.BytesIO(entry[1]))
    return path


def samples(*paths: Path) -> list[dict[str, Any]]:
    """As webdataset's own steps make them; WebDataset itself leaves the files open."""
    found: list[dict[str, Any]] = []
    for path in paths:
        with open(path, "rb") as stream:
            source = [{"url": str(path), "stream": stream}]
            files = webdataset.tariterators.tar_file_expander(source)
            found += webdataset.tariterators.group_by_keys(files)
    return found


def test_webdataset_reads_ours(tmp_path: Path) -> None:
    given = records(9)
    write(tmp_path / "a.tar", given, shards=2, total=9)
    assert sorted(os.listdir(tmp_path)) == ["a-000000.tar", "a-000001.tar", "a.tar.fastload"]
    found = samples(tmp_path / "a-000000.tar", tmp_path / "a-000001.tar")
    assert [sample["__key__"] for sample in found] == [r.key.removesuffix(".jpg") for r in given]
    assert [sample["jpg"] for sample in found] == [record.data for record in given]
    assert [int(sample["cls"]) for sample in found] == [record.label for record in given]
    decoded = webdataset.autodecode.Decoder([webdataset.imagehandler("rgb8")])(found[0])
    assert decoded["cls"] == 0 and decoded["jpg"].shape == (4, 5, 3)


def test_tarfile_reads_ours_without_a_complaint(tmp_path: Path) -> None:
    long = [f"{'tief/' * n}{'x' * 60}{n}.jpg" for n in (1, 30, 60)] + [f"{'y' * 200}.jpg"]
    given = [Record(data=picture(i, 4, 4), label=i, key=k, width=4, height=4)
             for i, k in enumerate(long)]  # fmt: skip
    path = write(tmp_path / "a.tar", given)
    with tarfile.open(path) as archive:
        names = archive.getnames()
        assert names[1::2] == long
        data = [archive.extractfile(name).read() for name in long]  # type: ignore[union-attr]
    assert data == [record.data for record in given]
    path = alone(path)
    assert (tmp_path / "a.tar").stat().st_size % 512 == 0
    assert data_of(path) == [record.data for record in given]


def test_keys_with_one_stem_or_awkward_names_stay_apart(tmp_path: Path) -> None:
    keys = ["a/1.jpg", "a/1.png", "a/1", "../up.jpg", "/root.jpg", "v1.2/b.c.jpg", ".hidden.jpg"]
    keys += ["__meta__.jpg", "a//b.jpg", "a/1~00000001.jpg", "", "x" * 3000 + ".jpg", "e\nf.jpg"]
    given = [Record(data=picture(i, 4, 4), label=i, key=k, width=4, height=4)
             for i, k in enumerate(keys)]  # fmt: skip
    path = write(tmp_path / "a.tar", given)
    assert open_store(path).keys(np.arange(13)) == keys
    found = samples(path)
    assert [sample["jpg"] for sample in found] == [record.data for record in given]
    assert len({sample["__key__"] for sample in found}) == 13
    described = [json.loads(sample["json"])["key"] for sample in found if "json" in sample]
    assert described == [key for key in keys if key != "a/1.jpg"]
    assert found[0]["__key__"] == "a/1"
    path = alone(path)
    assert data_of(path) == [record.data for record in given]


def test_fields_and_labels_are_members(tmp_path: Path) -> None:
    given = [
        Record(
            data=picture(i, 4, 4), label=[i, 0.5], key=f"{i}.jpg", width=4, height=4,
            fields={"box": np.array([i, 2]), "mask": b"\x89PNG...", "note": "ü", "tags": ["a", i]},
        )
        for i in range(3)
    ]  # fmt: skip
    path = write(tmp_path / "a.tar", given)
    sample = samples(path)[2]
    assert sample["mask.png"] == b"\x89PNG..."
    assert json.loads(sample["json"]) == {
        "label": [2.0, 0.5], "box": [2, 2], "note": "ü", "tags": ["a", 2],
    }  # fmt: skip
    path = alone(path)
    store = open_store(path)
    assert store.labels is not None and store.labels.tolist() == [[0, 0.5], [1, 0.5], [2, 0.5]]
    assert store.values("mask.png", np.array([1])) == [b"\x89PNG..."]
    assert set(store.fields) == {"mask.png", "json"}


def test_raw_and_dct_records_are_known_without_the_sidecar(tmp_path: Path) -> None:
    pixels = bytes(range(18))
    given = [
        Record(data=pixels, label=0, key="a", width=2, height=3, kind=RAW),
        Record(data=picture(1, 4, 5), label=1, key="b", width=4, height=5),
        Record(data=b"not really", label=1, key="c", width=4, height=4, kind=DCT),
    ]
    path = write(tmp_path / "a.tar", given)
    path = alone(path)
    store = open_store(path)
    assert store.kinds(np.arange(3)).tolist() == [RAW, 0, DCT]
    assert store.sizes(np.arange(1)).tolist() == [[2, 3]]
    assert data_of(path)[0] == pixels and store.labels.tolist() == [0, 1, 1]  # type: ignore[union-attr]


def test_shards_of_webdataset_are_read(tmp_path: Path) -> None:
    with webdataset.ShardWriter(str(tmp_path / "s-%06d.tar"), maxcount=4, verbose=0) as sink:
        for i in range(10):
            sample = {"__key__": f"cat/ä{i}", "jpg": picture(i, 6, 5), "cls": i % 3}
            sample |= {"json": {"box": [i]}, "txt": f"Text {i} ü"}
            sample |= {"mask.png": bytes([i])} if i % 2 else {}
            sink.write(sample)
    for pattern in ("s-{000000..000002}.tar", "s-*.tar"):
        path = tmp_path / pattern
        assert data_of(path) == [picture(i, 6, 5) for i in range(10)]
        store, every = open_store(path), np.arange(10)
        assert store.labels is not None and store.labels.tolist() == [i % 3 for i in range(10)]
        assert store.keys(every) == [f"cat/ä{i}" for i in range(10)]
        kinds = {name: field.kind for name, field in store.fields.items()}
        assert kinds == {"json": "json", "txt": "text", "mask.png": "bytes"}
        assert store.values("txt", every[::-1]) == [f"Text {i} ü".encode() for i in every[::-1]]
        assert [json.loads(v) for v in store.values("json", every)] == [{"box": [i]} for i in every]
        masks = [bytes([i]) if i % 2 else b"" for i in range(10)]
        assert store.values("mask.png", every) == masks
        assert pickle.loads(pickle.dumps(store)).values("mask.png", every) == masks
    images, labels = next(iter(FastLoader(tmp_path / "s-*.tar", batch_size=10)))[:2]
    assert images.shape == (10, 3, 5, 6) and labels.tolist() == [i % 3 for i in range(10)]


@pytest.mark.parametrize("form", FORMATS)
def test_names_and_headers_of_every_form_are_read(tmp_path: Path, form: str) -> None:
    names = ["./a.jpg", "b/" * 40 + "c" * 90 + ".jpg", "ä/猫.JPG"]
    if form != "ustar":
        names += ["d" * 300 + ".jpg", "/".join(["e" * 80] * 6) + ".jpg"]
    folder = tarfile.TarInfo("b")
    folder.type, folder.mtime = tarfile.DIRTYPE, 1
    entries: list[Any] = [folder, ("README", b"no ending"), ("__note__.txt", b"x")]
    entries += [(name, picture(i, 4, 4)) for i, name in enumerate(names)]
    path = tar(tmp_path / "a.tar", entries, form)
    with tarfile.open(path) as archive:
        expected = [archive.extractfile(name).read() for name in names]  # type: ignore[union-attr]
    assert data_of(path) == expected
    keys = [name.removeprefix("./")[:-4] for name in names]
    assert open_store(path).keys(np.arange(len(names))) == keys
    assert open_store(path).labels is None


def test_sizes_in_base_256_and_extended_headers_count(tmp_path: Path) -> None:
    image = picture(1, 4, 4)
    block = bytearray(header(b"a.jpg", 0))
    block[124:136] = b"\x80" + len(image).to_bytes(11, "big")
    block[148:156] = b"%06o\0 " % sum(block[:148] + b" " * 8 + block[156:])
    padded = image + bytes(-len(image) % 512)
    text = b"%d size=%d\n" % (9 + len(str(len(image))), len(image))
    text = text if len(text) == int(text.split()[0]) else b"12 size=%d\n" % len(image)
    pax = header(b"x", len(text), b"x") + text + bytes(512 - len(text)) + header(b"b.jpg", 0)
    path = tmp_path / "a.tar"
    path.write_bytes(bytes(block) + padded + pax + padded + bytes(1024))
    with tarfile.open(path) as archive:
        assert [member.size for member in archive] == [len(image)] * 2
    assert data_of(path) == [image, image]


def info(name: str, kind: bytes, link: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, link
    return made


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (("../evil.jpg", b"x"), "'../evil.jpg' leads out"),
        (("a/../../evil.jpg", b"x"), "leads out"),
        (("..", b"x"), "leads out"),
        (("/etc/evil.jpg", b"x"), "leads out"),
        (("./" * 200 + "../b.jpg", b"x"), "leads out"),
        (info("a.jpg", tarfile.SYMTYPE, "/etc/passwd"), "'a.jpg' is a symbolic link"),
        (info("a.jpg", tarfile.LNKTYPE, "b.jpg"), "'a.jpg' is a hard link"),
        (info("a.jpg", tarfile.CHRTYPE), "is a device"),
        (info("a.jpg", tarfile.FIFOTYPE), "is a pipe"),
        (info("a.jpg", tarfile.GNUTYPE_SPARSE), "is a sparse file"),
        (info("a.jpg", b"Z"), "of an unknown type"),
    ],
)
def test_members_that_are_no_plain_files_inside_are_refused(
    tmp_path: Path, entry: Any, message: str
) -> None:
    path = tar(tmp_path / "a.tar", [("good.jpg", picture(1, 4, 4)), entry])
    with pytest.raises(StoreError, match=message) as caught:
        open_store(path)
    assert caught.value.path == str(path) and caught.value.offset


def pax(line: bytes, kind: bytes = b"x") -> bytes:
    return header(b"pax", len(line), kind) + line + bytes(-len(line) % 512) + header(b"a.jpg", 0)


END = bytes(1024)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "truncated"),
        (b"abc" * 1000, "expected"),
        (header(b"a.jpg", 5)[:-1] + b"x" + END, "expected the header of a tar member"),
        (header(b"a.jpg", 5), "truncated: expected 5 bytes"),
        (header(b"a.jpg", 8**11 - 1) + END, "truncated: expected 8589934591 bytes"),
        (header(b"a.jpg", 5) + bytes(512), "truncated: expected another header"),
        (header(b"a.jpg", 5) + bytes(511), "truncated: expected another header"),
        (header(b"a.jpg", 0) + END + header(b"b.jpg", 0) + END, "something follows the end"),
        (pax(b"99 path=b.jpg\n") + END, "an extended header is damaged"),
        (pax(b"14 path=b.jpgX") + END, "an extended header is damaged"),
        (pax(b"x path=b.jpg\n") + END, "an extended header is damaged"),
        (pax(b"17 path=../b.jpg\n") + END, "leads out"),
        (pax(b"10 size=x\n") + END, "holds no size"),
        (pax(b"28 size=9999999999999999999\n") + END, "holds no size|extended header"),
        (pax(b"22 GNU.sparse.major=1\n") + END, "a sparse file"),
        (pax(b"14 path=b.jpg\n", b"g") + END, "gives all members one path"),
        (pax(b"14 path=b.jpg\n")[:1024] + END, "ends after an extended header"),
        (header(b"L", 5000, b"L") + bytes(5120) + END, "a name of 5000 bytes"),
    ],
)
def test_damaged_and_absurd_archives_are_refused(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(data)
    with pytest.raises(StoreError, match=message):
        open_store(path)


def test_truncated_archive_is_refused_wherever_it_is_cut(tmp_path: Path) -> None:
    given = records(3)
    whole = write(tmp_path / "a.tar", given).read_bytes()
    cut = tmp_path / "cut.tar"
    for end in range(1, len(whole) - 1024, 300):
        cut.write_bytes(whole[:end])
        with pytest.raises(StoreError, match="truncated"):
            open_store(tmp_path / "[c]ut.tar")


def test_samples_that_make_no_sense_are_named(tmp_path: Path) -> None:
    image = picture(1, 4, 4)
    path = tar(tmp_path / "a.tar", [("a.jpg", image), ("b.cls", b"1"), ("c.jpg", image)])
    with pytest.raises(StoreError, match=r"found none in 'b'; the members .*") as caught:
        open_store(path)
    assert caught.value.record == 1
    path = tar(tmp_path / "b.tar", [("a.jpg", image), ("a.txt", b"1"), ("a.txt", b"2")])
    with pytest.raises(StoreError, match="found two of 'a'"):
        open_store(path)


@pytest.mark.parametrize(
    "other", ["._0.cls", "./._0.jpg", "README", "__note__", ".DS_Store", "PaxHeaders/0"]
)
def test_members_that_are_skipped_do_not_end_a_sample(tmp_path: Path, other: str) -> None:
    entries = []
    for i in range(3):
        entries += [(f"{i}.jpg", picture(i, 4, 4)), (other, b"\0\5\x16\7"), (f"{i}.cls", b"%d" % i)]
    path = tar(tmp_path / "a.tar", entries)
    store = open_store(path)
    assert store.labels is not None and store.labels.tolist() == [0, 1, 2]
    assert data_of(path) == [picture(i, 4, 4) for i in range(3)]
    assert not store.fields
    with open(path, "rb") as stream:
        files = webdataset.tariterators.tar_file_expander([{"url": "a.tar", "stream": stream}])
        samples = list(webdataset.tariterators.group_by_keys(files))
    assert [sorted(name for name in one if name[0] != "_") for one in samples] == [
        ["cls", "jpg"]
    ] * 3


def test_labels_that_are_no_numbers_are_a_field(tmp_path: Path) -> None:
    image = picture(1, 4, 4)
    entries = [("a.jpg", image), ("a.cls", b"cat"), ("b.input.jpg", b"no"), ("b.jpg", image)]
    store = open_store(tar(tmp_path / "a.tar", [*entries, ("b.cls", b"dog")]))
    assert store.labels is None
    assert store.values("cls", np.arange(2)) == [b"cat", b"dog"]
    assert store.values("input.jpg", np.arange(2)) == [b"", b"no"]


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({"cls": [b"1", None, b"0"]}, {"cls": ["1", "", "0"]}),
        ({"cls": [b"cat", b"dog", b"cat"]}, {"cls": ["cat", "dog", "cat"]}),
        (
            {"json": [b'{"label": 3}', b"{}", b'{"label": 4}']},
            {"json": [{"label": 3}, {}, {"label": 4}]},
        ),
        (
            {"json": [None, b'{"label": 3}', b'{"label": "cat"}']},
            {"json": [None, {"label": 3}, {"label": "cat"}]},
        ),
    ],
)
def test_labels_that_some_records_lack_are_shown_as_they_are(
    tmp_path: Path, members: dict[str, list[bytes | None]], expected: dict[str, Any]
) -> None:
    entries = []
    for i in range(3):
        entries.append((f"{i}.jpg", picture(i, 4, 4)))
        for name, values in members.items():
            value = values[i]
            entries += [(f"{i}.{name}", value)] if value is not None else []
    path = tar(tmp_path / "a.tar", [*entries, ("2.txt", b"a field")])
    (batch,) = FastLoader(path, 3)
    assert set(batch) == {"image", *expected} and len(batch["image"]) == 3
    assert {name: batch[name] for name in expected} == expected
    assert [set(sample) for sample in PackedDataset(path)] == [{"image", *expected}] * 3


def test_json_without_labels_and_captions_leave_samples_as_they_are(tmp_path: Path) -> None:
    entries = [("a.jpg", picture(1, 4, 4)), ("a.json", b'{"url": "x"}'), ("a.txt", b"caption")]
    (batch,) = FastLoader(tar(tmp_path / "a.tar", entries), 1)
    assert batch.shape == (1, 3, 4, 4)
    entries[1] = ("a.json", b'{"label": 2}')
    (batch,) = FastLoader(tar(tmp_path / "b.tar", entries), 1)
    assert batch[1].tolist() == [2]


@pytest.mark.native
@drawn(
    st.sampled_from(sorted(FORMATS)),
    st.lists(st.tuples(st.integers(0, 7000), st.integers(0, 255), st.booleans()), max_size=4),
)
def test_of_a_damaged_archive_only_members_with_whole_headers_are_read(
    tmp_path_factory: pytest.TempPathFactory, form: str, changes: list[tuple[int, int, bool]]
) -> None:
    names = ["a.jpg", "./b/c.tar.GZ", "d/" * 60 + "e.cls"] + ["f" * 120 + ".x"] * (form != "ustar")
    path = tmp_path_factory.mktemp("tar") / "a.tar"
    tar(path, [(name, bytes(range(200))) for name in names], form)
    data = bytearray(path.read_bytes())
    for place, value, repair in changes:
        data[place] = value
        start = place // 512 * 512
        if repair and data[start] and data[start + 156] in b"0xL":  # get past the checksum
            block = data[start : start + 148] + b" " * 8 + data[start + 156 : start + 512]
            data[start + 148 : start + 156] = b"%06o\0 " % sum(block)
    try:
        found = members(bytes(data), "")
    except StoreError as error:
        assert error.offset is not None and 0 <= error.offset <= len(data)
        return
    end = 0
    for at, nbytes in zip(found.offset.tolist(), found.nbytes.tolist(), strict=True):
        assert end + 512 <= at <= at + nbytes <= len(data)
        block = bytes(data[at - 512 : at])
        assert tarfile.nti(block[148:156]) in tarfile.calc_chksums(block)  # type: ignore[attr-defined]
        end = at + nbytes


def test_dali_reads_ours(tmp_path: Path, dali: None) -> None:
    import nvidia.dali.fn as fn
    from nvidia.dali import pipeline_def

    given = records(12)
    path = write(tmp_path / "a.tar", given)

    @pipeline_def(batch_size=12, num_threads=1, device_id=None)
    def read() -> Any:
        return tuple(fn.readers.webdataset(paths=[str(path)], ext=["jpg", "cls"]))

    images, labels = read().run()
    assert [images.at(i).tobytes() for i in range(12)] == [record.data for record in given]
    assert [int(labels.at(i).tobytes()) for i in range(12)] == [record.label for record in given]


def test_members_that_a_truncated_archive_has_lost_are_an_error(tmp_path: Path) -> None:
    entries = [(f"{i}.{end}", data) for i in range(6) for end, data in
               (("jpg", picture(i, 8, 8)), ("txt", b"x" * 3000))]  # fmt: skip
    path = tar(tmp_path / "a.tar", entries)
    store = open_store(path)
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(StoreError, match="expected 3000 bytes") as caught:
        store.values("txt", np.arange(6))
    assert caught.value.path == str(path) and caught.value.record is not None
    path.unlink()
    with pytest.raises(StoreError, match="cannot be read"):
        store.values("txt", np.arange(6))
