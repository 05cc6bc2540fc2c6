"""Frames of videos: evenly spaced, in order, none twice; and what is no video."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from picture_support import grey_video, png
from PIL import Image

from lmnb.backends.images import ImageData
from lmnb.backends.video_reading import evenly_spaced, load_video, upright
from lmnb.errors import ArgumentError, MissingPackageError


def grey(frame: ImageData) -> float:
    """The number of the frame, told by its grey value."""
    return (Image.open(io.BytesIO(frame.data)).convert("L").getpixel((30, 20)) - 4) / 2


@pytest.mark.parametrize(
    ("total", "count", "places"),
    [(100, 5, [0, 25, 50, 74, 99]), (10, 1, [0]), (3, 3, [0, 1, 2]), (3, 8, [0, 1, 2]), (10, 2, [0, 9])],
)
def test_places_are_evenly_spaced(total: int, count: int, places: list[int]) -> None:
    assert evenly_spaced(total, count) == places


@pytest.mark.parametrize(
    ("name", "codec"), [("a.mp4", "mpeg4"), ("a.mp4", "libx264"), ("a.webm", "libvpx"), ("a.avi", "mpeg4")]
)
@pytest.mark.parametrize("count", [1, 4, 60])
def test_frames_are_evenly_spaced_in_every_container(tmp_path: Path, name: str, codec: str, count: int) -> None:
    path = grey_video(tmp_path / name, 100, codec)
    video, total = load_video(path, count)
    assert total == 100
    assert [grey(frame) for frame in video.frames] == pytest.approx(evenly_spaced(100, count), abs=2)
    assert (video.width, video.height, video.mime) == (64, 48, "image/png")


def test_a_short_video_gives_all_it_has_and_none_twice(tmp_path: Path) -> None:
    video, total = load_video(grey_video(tmp_path / "a.mp4", 3), 8)
    assert total == len(video.frames) == 3
    assert len({frame.digest for frame in video.frames}) == 3


def test_a_video_that_was_filmed_on_its_side_is_turned() -> None:
    image = Image.new("RGB", (4, 2), "black")
    image.putpixel((0, 0), (255, 255, 255))  # at the left of the upper edge
    for angle, size, place in ((0, (4, 2), (0, 0)), (-90, (2, 4), (1, 0)), (90, (2, 4), (0, 3)), (180, (4, 2), (3, 1))):
        turned = upright(SimpleNamespace(rotation=angle, to_image=image.copy))
        assert turned.size == size
        assert turned.getpixel(place) == (255, 255, 255)


def test_the_wire_form_is_the_frames_behind_each_other(tmp_path: Path) -> None:
    import base64

    video, _ = load_video(grey_video(tmp_path / "a.mp4", 3), 3)
    assert video.base64.startswith("video:")
    data = base64.b64decode(video.base64.removeprefix("video:"))
    assert data == b"".join(frame.data for frame in video.frames)
    assert data.count(b"\x89PNG\r\n\x1a\n") == 3
    assert video.num_bytes == len(data)


def test_what_is_no_video_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = tmp_path / "notes.mp4"
    text.write_text("not a video")
    with pytest.raises(ArgumentError, match=r"notes\.mp4.*cannot be read as a video"):
        load_video(text, 2)
    with pytest.raises(ArgumentError, match=r"there is no video 'none\.mp4'"):
        load_video("none.mp4", 2)
    with pytest.raises(ArgumentError, match="not an address"):
        load_video("https://example.org/a.mp4", 2)
    still = tmp_path / "a.png"
    still.write_bytes(png())
    assert load_video(still, 4)[1] == 1  # a picture is a video of one frame
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(MissingPackageError, match=r"lmnb\[video\]"):
        load_video(text, 2)
