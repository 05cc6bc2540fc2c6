"""From a video file to evenly spaced frames, through PyAV (FFmpeg's libraries)."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

from lmnb.backends.image_reading import from_pil, local_path
from lmnb.backends.images import VideoData
from lmnb.errors import ArgumentError, MissingPackageError


def load_video(path: str | os.PathLike[str], num_frames: int) -> tuple[VideoData, int]:
    """`num_frames` frames of a local file, the first and the last among them; and how many frames the video has.

    A shorter video gives all its frames, none twice. ArgumentError for what is no video, and for one that is damaged.
    """
    target = local_path(path, "video")
    try:
        import av
        import PIL  # noqa: F401  # which makes images of its frames
    except ImportError as error:
        raise MissingPackageError(f"video needs PyAV and Pillow ({error}); run: pip install 'lmnb[video]'") from error
    try:
        with av.open(str(target)) as container:
            if not container.streams.video:
                raise ArgumentError(f"the file {target.name!r} has no video in it")
            stream = container.streams.video[0]
            packets = [(packet.pts, packet.is_keyframe) for packet in container.demux(stream) if packet.size]
            total = len(packets)
            if not total:
                raise ArgumentError(f"the video {target.name!r} has no frames")
            wanted = evenly_spaced(total, num_frames)
            container.seek(0)
            times = sorted(time for time, _ in packets if time is not None)
            if len(times) < total:
                frames = _by_number(container, stream, wanted)
            else:
                keys = sorted(time for time, is_key in packets if is_key and time is not None)
                frames = _by_time(container, stream, [times[index] for index in wanted], keys)
            images = tuple(from_pil(upright(frame)) for frame in frames)
    except (av.FFmpegError, OSError) as error:
        raise ArgumentError(f"the file {target.name!r} cannot be read as a video: {error}") from error
    if not images:
        raise ArgumentError(f"no frame of the video {target.name!r} could be read")
    return VideoData(images), total


def upright(frame: Any) -> Any:
    """A decoded frame as a PIL image, turned as players turn it: cameras film on their side, and say so."""
    angle = getattr(frame, "rotation", 0)  # counterclockwise
    return frame.to_image().rotate(angle, expand=True) if angle else frame.to_image()


def evenly_spaced(total: int, count: int) -> list[int]:
    """`count` of the numbers 0 to `total` - 1, the first and the last among them; all of them if there are no more."""
    if count >= total:
        return list(range(total))
    if count == 1:
        return [0]
    return [round(index * (total - 1) / (count - 1)) for index in range(count)]


def _by_number(container: Any, stream: Any, wanted: Sequence[int]) -> Iterator[Any]:
    """Frames by their place: everything is decoded."""
    left = set(wanted)
    for number, frame in enumerate(container.decode(stream)):
        if number in left:
            yield frame


def _by_time(container: Any, stream: Any, wanted: Sequence[int], keys: Sequence[int]) -> Iterator[Any]:
    """Frames by their time. `keys`: times at which decoding can begin; what lies before the last of them is skipped."""
    frames: Iterator[Any] | None = None
    at = -1  # time of the latest frame
    for time in wanted:
        key = keys[bisect_right(keys, time) - 1] if keys and keys[0] <= time else None
        if frames is None or (key is not None and key > at):
            container.seek(time, stream=stream)
            frames = container.decode(stream)
        for frame in frames:
            if frame.pts is not None and frame.pts >= time:
                at = frame.pts
                yield frame
                break
