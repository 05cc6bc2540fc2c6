"""From files, bytes, PIL images and arrays to images: what is taken, what is refused, and with which words."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from picture_support import encoded, noise, picture, png
from PIL import Image

from lmnb.backends.image_header import read_header
from lmnb.backends.image_preview import LONGEST, SIDE
from lmnb.backends.image_reading import load_image
from lmnb.backends.images import ImageData
from lmnb.errors import ArgumentError, MissingPackageError

EXIF = Image.Exif()
EXIF[0x010F] = "A camera of mine"


def pixels(image: ImageData) -> Image.Image:
    return Image.open(io.BytesIO(image.data))


def shown(preview: str) -> Image.Image:
    import base64

    return Image.open(io.BytesIO(base64.b64decode(preview.partition(",")[2])))


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("PNG", {}),
        ("GIF", {}),
        ("JPEG", {}),
        ("JPEG", {"progressive": True}),
        ("JPEG", {"exif": EXIF, "comment": b"\xff\xc0 is no frame here"}),
        ("WEBP", {}),
        ("WEBP", {"lossless": True}),
        ("WEBP", {"exif": EXIF}),
    ],
)
@pytest.mark.parametrize(("width", "height"), [(1, 1), (257, 3), (640, 481)])
def test_format_and_size_are_what_pillow_says(kind: str, options: dict[str, Any], width: int, height: int) -> None:
    data = encoded(noise(width, height), kind, **options)
    assert read_header(data) == (f"image/{kind.lower()}", width, height)
    image = load_image(data)
    assert image.data is data or image.data == data  # sent as it is
    for cut in range(0, 40, 3):  # a file that ends early is no error of ours
        assert read_header(data[:cut]) in (None, (image.mime, width, height))


def test_a_path_its_bytes_and_a_pil_image_give_the_same_picture(tmp_path: Path) -> None:
    data = png()
    path = tmp_path / "red.png"
    path.write_bytes(data)
    images = [load_image(source) for source in (str(path), path, data, bytearray(data), memoryview(data))]
    assert {image.digest for image in images} == {images[0].digest}
    drawn = load_image(picture())
    assert (drawn.mime, drawn.width, drawn.height) == ("image/png", 4, 3)
    assert pixels(drawn).tobytes() == pixels(images[0]).tobytes()


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "F", "I", "I;16"])
@pytest.mark.parametrize("width", [5, 800])
def test_pil_images_of_every_mode_become_a_png(mode: str, width: int) -> None:
    image = load_image(Image.new(mode, (width, 2)))
    assert (image.mime, pixels(image).size) == ("image/png", (width, 2))
    assert shown(image.preview).size == (min(width, SIDE), 2 if width == 5 else 1)
    assert load_image(image.data).preview == image.preview  # as made from the file itself


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "I;16"])
def test_files_of_every_mode_have_a_preview(mode: str) -> None:
    assert shown(load_image(encoded(Image.new(mode, (400, 200)))).preview).size == (160, 80)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_arrays_have_their_channels_first(channels: int) -> None:
    array = np.arange(channels * 2 * 5, dtype=np.uint8).reshape(channels, 2, 5)
    back = np.asarray(pixels(load_image(array)))
    assert np.array_equal(back, array[0] if channels == 1 else array.transpose(1, 2, 0))


def test_a_torch_tensor_is_an_array_wherever_it_is() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.randint(0, 256, (3, 4, 6), dtype=torch.uint8)
    grown = tensor.flip(2).flip(2)  # other strides
    assert load_image(grown).digest == load_image(tensor.numpy()).digest


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (np.zeros((6, 5, 3), np.uint8), "last axis to the front"),
        (np.zeros((3, 4), np.uint8), r"\(channels, height, width\)"),
        (np.zeros((2, 4, 5), np.uint8), "1, 3 or 4 channels"),
        (np.zeros((3, 0, 5), np.uint8), r"not \(3, 0, 5\)"),
        (np.zeros((3, 4, 5), np.float32), r"uint8.*astype"),
        (Image.new("RGB", (0, 5)), "no pixels: it is 0×5"),
        (None, "not None"),
        (3, "not a int"),
        (b"", "empty"),
        (b"GIF89a\0\0\0\0rest of it", "header says 0×0"),
        (b"<svg/>", "no PNG, JPEG, GIF or WebP"),
        (b"\x89PNG\r\n\x1a\n", "no PNG, JPEG, GIF or WebP"),
        (png()[:-30], "damaged"),
        (encoded(noise(64, 64), "JPEG")[:700], "damaged"),
        (bytes(50_000_001), "50,000,001 bytes"),
        ("http://example.org/cat.png", "not an address.*fetch it first"),
        ("data:image/png;base64,AA", "not an address"),
        ("no/such/cat.png", "there is no image 'no/such/cat.png'"),
        ("\0", "cannot be a path|there is no image"),
    ],
    ids=lambda value: str(value)[:20] if isinstance(value, str) else type(value).__name__,
)
def test_what_is_no_image_is_refused_with_what_to_do(source: Any, says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        load_image(source)


def test_a_folder_and_a_file_that_cannot_be_read_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArgumentError, match=r"^'[^']*' is a folder"):
        load_image(tmp_path)
    path = tmp_path / "cat.png"
    path.write_bytes(png())

    def refuse(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(ArgumentError, match=r"cat\.png.*cannot be read: Permission denied"):
        load_image(path)


def test_a_large_pil_image_is_refused_as_a_large_file_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmnb.backends.image_reading.LARGEST_BYTES", 1000)
    with pytest.raises(ArgumentError, match=r"too large for a prompt: [\d,]+ bytes, of which 1,000 may be"):
        load_image(noise(40, 40))


def test_a_pil_image_whose_file_was_closed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(png())
    with Image.open(path) as image:
        pass
    with pytest.raises(ArgumentError, match="no pixels to read"):
        load_image(image)


def test_other_formats_become_a_png() -> None:
    image = load_image(encoded(picture(), "BMP"))
    assert (image.mime, image.width, image.height) == ("image/png", 4, 3)


@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
def test_a_preview_is_small_and_of_the_same_shape(mode: str) -> None:
    image = load_image(noise(1500, 900).convert(mode))
    assert image.num_bytes > 1_000_000
    assert len(image.preview) <= LONGEST
    assert shown(image.preview).size == (SIDE, 96)
    assert load_image(picture()).preview.startswith("data:image/png;base64,")


def test_a_preview_has_no_place_and_no_camera_and_is_the_right_way_up() -> None:
    turned = Image.Exif()
    turned.update({**EXIF, 0x0112: 6})
    image = load_image(encoded(noise(400, 200), "JPEG", exif=turned))
    assert b"A camera of mine" in image.data
    small = shown(image.preview)
    assert small.size == (80, 160)
    assert not small.getexif()


def test_what_every_fork_needs_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    image = load_image(png())
    assert image.base64 is image.base64
    assert image.preview is image.preview
    assert image.data_uri == f"data:image/png;base64,{image.base64}"


def test_without_pillow_files_are_sent_and_the_rest_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    data, large, bmp = png(), encoded(noise(300, 300)), encoded(picture(), "BMP")
    monkeypatch.setitem(sys.modules, "PIL", None)
    small = load_image(data)
    assert (small.width, small.height, small.preview) == (4, 3, small.data_uri)
    assert load_image(large).preview == ""
    with pytest.raises(ArgumentError, match="pip install pillow"):
        load_image(bmp)
    with pytest.raises(MissingPackageError, match=r"lmnb\[images\]"):
        load_image(np.zeros((3, 4, 5), np.uint8))
