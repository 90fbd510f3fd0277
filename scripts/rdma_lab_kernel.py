"""Kernel and initial RAM disk of the RDMA lab's guest: Debian's own kernel package, unpacked and cached.

The cache folder holds one folder per version of the package and of what this file puts into the disk, so that a new
kernel package, or a change here, makes a new one; nothing is ever changed in place. Needs apt-get, dpkg-deb and a
static busybox; nothing of it needs root.
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
import re
import shutil
import struct
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
META = "linux-image-amd64"  # the plain kernel: the `cloud` flavour has neither rdma_rxe nor 9p
BUSYBOX = "/bin/busybox"
MODULES = (
    *("virtio_pci", "virtio_net", "virtio_console", "9pnet_virtio", "9p", "overlay"),
    *("veth", "bridge", "sch_netem", "sch_tbf"),
    "crc32_generic",  # nothing names it as needed, and without it rdma_rxe says "failed to init crc32 algorithm"
    *("ib_uverbs", "rdma_ucm", "rdma_rxe"),
)
SHARE = "/run/rdma_lab/share"
"""Where the guest sees the folder that it shares with us; its script `start` is what the guest runs."""

INIT = f"""#!/bin/busybox sh
busybox mount -t proc proc /proc
busybox mount -t sysfs sysfs /sys
busybox mount -t devtmpfs dev /dev
while read name; do busybox insmod /modules/$name || echo "rdma_lab: cannot load $name"; done < /modules/order
busybox mkdir -p /lower /upper /root
busybox mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=loose,ro lab_root /lower
busybox mount -t tmpfs -o mode=0755 tmpfs /upper
busybox mkdir /upper/upper /upper/work
busybox mount -t overlay -o lowerdir=/lower,upperdir=/upper/upper,workdir=/upper/work overlay /root
for folder in proc sys dev; do busybox mount --move /$folder /root/$folder; done
busybox mount -t tmpfs -o mode=0755 tmpfs /root/run
busybox mkdir -p /root/dev/pts /root/dev/shm /root{SHARE}
busybox mount -t devpts devpts /root/dev/pts
busybox mount -t tmpfs -o mode=1777 tmpfs /root/dev/shm
busybox mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=none lab_share /root{SHARE}
exec busybox switch_root /root /bin/sh {SHARE}/start
"""


class KernelError(RuntimeError):
    """There is no kernel for the guest; the text says why, and what to do."""


@dataclass(frozen=True)
class Kernel:
    """What QEMU boots. version: as the package has it."""

    image: Path
    initrd: Path
    version: str


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/ringcomm/rdma_lab where that is set, else in the checkout's build folder, which git ignores."""
    base = os.environ.get("XDG_CACHE_HOME")
    return Path(base, "ringcomm", "rdma_lab") if base else ROOT / "build" / "rdma_lab"


def kernel() -> Kernel:
    """From the cache, or made: half a minute and a download of 70 MB. The newest in the cache where apt knows none."""
    folder, recipe = cache_folder(), _recipe()
    package = _package()
    if package is None:
        made = sorted(folder.glob(f"*+{recipe}/version"), key=lambda path: path.stat().st_mtime)
        if not made:
            raise KernelError(f"apt knows no package {META} (apt-get update?), and there is no kernel in {folder}")
        return _read(made[-1].parent)
    name, version = package
    target = folder / f"{name}_{version.replace(':', '%')}+{recipe}"
    if not (target / "version").exists():
        _make(name, version, target)
    return _read(target)


def _read(folder: Path) -> Kernel:
    return Kernel(folder / "vmlinuz", folder / "initrd", (folder / "version").read_text())


def _recipe() -> str:
    """Changes with what is in the disk. An initrd of an older recipe is not used."""
    return hashlib.sha256(repr((INIT, MODULES)).encode()).hexdigest()[:12]


def _package() -> tuple[str, str] | None:
    """(name, version) of the kernel package that the meta package now means; they change with security updates."""
    if shutil.which("apt-cache") is None:
        return None
    depends = _output(["apt-cache", "depends", "--important", META])
    found = re.search(r"Depends: (linux-image-[0-9]\S*)", depends)
    if found is None:
        return None
    policy = re.search(r"Candidate: (\S+)", _output(["apt-cache", "policy", found[1]]))
    return (found[1], policy[1]) if policy and policy[1] != "(none)" else None


def _make(name: str, version: str, target: Path) -> None:
    if not Path(BUSYBOX).exists() or _needs_loader(Path(BUSYBOX).read_bytes()):
        raise KernelError(f"{BUSYBOX} is missing or not static (Debian: apt-get install busybox-static)")
    target.parent.mkdir(parents=True, exist_ok=True)
    # Beside the target, so that it can be put in place by one rename however many of us do this at once.
    with tempfile.TemporaryDirectory(prefix="new-", dir=target.parent) as scratch:
        folder = Path(scratch)
        # As root, apt would download as a user of its own, who cannot write here.
        _run(["apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", f"{name}={version}"], folder)
        (package,) = folder.glob("*.deb")
        _run(["dpkg-deb", "-x", package.name, "tree"], folder)
        made = folder / "made"
        made.mkdir()
        (image,) = (folder / "tree" / "boot").glob("vmlinuz-*")
        shutil.copy(image, made / "vmlinuz")
        (made / "initrd").write_bytes(gzip.compress(_initrd(folder / "tree" / "lib" / "modules"), 1))
        (made / "version").write_text(f"{name} {version}")
        try:
            made.rename(target)
        except OSError:
            if not (target / "version").exists():  # somebody else was quicker
                raise


def _initrd(modules: Path) -> bytes:
    files = {p.name.partition(".ko")[0].replace("-", "_"): p for p in modules.rglob("*.ko*")}
    builtin = {Path(line).stem.replace("-", "_") for path in modules.glob("*/modules.builtin") for line in _lines(path)}
    order: dict[str, bytes] = {}

    def add(name: str) -> None:
        if name in order or name in builtin:
            return
        if name not in files:
            raise KernelError(f"the kernel package has no module {name}")
        content = _module(files[name])
        needs = re.search(rb"\0depends=([^\0]*)\0", content)
        for other in (needs[1].decode() if needs else "").split(","):
            if other:
                add(other.replace("-", "_"))
        order[name] = content

    for name in MODULES:
        add(name)
    disk = {f"modules/{name}.ko": (0o644, content) for name, content in order.items()}
    disk["modules/order"] = (0o644, "".join(f"{name}.ko\n" for name in order).encode())
    disk["bin/busybox"] = (0o755, Path(BUSYBOX).read_bytes())
    disk["init"] = (0o755, INIT.encode())
    return _cpio(disk)


def _needs_loader(program: bytes) -> bool:
    """Whether a 64-bit ELF file has a segment that names a loader: the disk has no libraries."""
    (start,) = struct.unpack_from("<Q", program, 32)
    size, count = struct.unpack_from("<HH", program, 54)
    return any(struct.unpack_from("<I", program, start + number * size)[0] == 3 for number in range(count))  # PT_INTERP


def _module(path: Path) -> bytes:
    """Uncompressed, as busybox wants it."""
    content = path.read_bytes()
    if path.suffix == ".xz":
        return lzma.decompress(content)
    if path.suffix == ".gz":
        return gzip.decompress(content)
    if path.suffix == ".zst":
        return subprocess.run(["zstd", "-dc", str(path)], stdout=subprocess.PIPE, check=True).stdout
    return content


def _cpio(files: dict[str, tuple[int, bytes]]) -> bytes:
    """An archive of the kernel's `newc` format; the folders that the files need come first."""
    folders = dict.fromkeys(["proc", "sys", "dev", *(path.rpartition("/")[0] for path in files if "/" in path)])
    entries = [(path, 0o040755, b"") for path in folders]
    entries += [(path, 0o100000 | mode, content) for path, (mode, content) in files.items()]
    out = bytearray()
    for number, (path, mode, content) in enumerate([*entries, ("TRAILER!!!", 0, b"")], 1):
        name = path.encode() + b"\0"
        fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name), 0)
        out += b"070701" + b"".join(b"%08X" % field for field in fields) + name
        out += bytes(-len(out) % 4) + content
        out += bytes(-len(out) % 4)
    return bytes(out)


def _lines(path: Path) -> list[str]:
    return path.read_text().split()


def _output(command: list[str]) -> str:
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise KernelError(f"{' '.join(command)} failed: {done.stdout.strip()[-500:]}")
