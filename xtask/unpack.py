"""Unpacks the files of libtorch that the program links against from the wheels that contain them.

usage: unpack.py WHEELS TARGET
WHEELS is a folder of wheels, TARGET a new folder. Fails if any required file is missing.
"""

import pathlib
import shutil
import sys
import zipfile

# libtorch_cuda.so is not unpacked: it has 450 MB, and a build that finds it would require a GPU's libraries.
LIBRARIES = {
    "torch/lib/libtorch_cpu.so",
    "torch/lib/libtorch.so",
    "torch/lib/libc10.so",
    "torch/lib/libgomp.so.1",
    "nvidia/cu13/lib/libcudart.so.13",
    "nvidia/cu13/lib/libcupti.so.13",
}
HEADERS = "torch/include/"


def place_of(member):
    """Target path of a file of a wheel, or None."""
    if member in LIBRARIES:
        return pathlib.Path("lib") / pathlib.Path(member).name
    if member.startswith(HEADERS) and not member.endswith("/"):
        return pathlib.Path("include") / member[len(HEADERS):]
    return None


def main(wheels, target):
    found = set()
    headers = 0
    for wheel in sorted(pathlib.Path(wheels).glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.namelist():
                place = place_of(member)
                if place is None:
                    continue
                if ".." in place.parts:
                    sys.exit(f"{wheel.name}: {member} points outside the target folder")
                path = pathlib.Path(target) / place
                path.parent.mkdir(parents=True, exist_ok=True)
                # zipfile checks each member's CRC while reading.
                with archive.open(member) as source, open(path, "wb") as sink:
                    shutil.copyfileobj(source, sink, 1 << 20)
                found.add(member)
                headers += member.startswith(HEADERS)
    missing = sorted(LIBRARIES - found)
    if missing or not headers:
        sys.exit(f"the wheels do not contain {', '.join(missing) or HEADERS}")
    # torch-sys reads this file and refuses unsupported versions.
    (pathlib.Path(target) / "build-version").write_text("2.11.0\n")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        main(sys.argv[1], sys.argv[2])
    except (OSError, zipfile.BadZipFile) as fault:
        sys.exit(str(fault))
