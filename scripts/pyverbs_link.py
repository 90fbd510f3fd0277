"""Links the distribution's pyverbs into the environment that runs this; scripts/pyverbs is the command.

The folder of the package and not dist-packages as a whole: that would bring all other system packages along.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

SYSTEM = Path("/usr/lib/python3/dist-packages/pyverbs")
INSTALL = "Debian, Ubuntu: apt-get install python3-pyverbs ibverbs-providers"


def main() -> int:
    link = Path(sysconfig.get_path("purelib"), "pyverbs")
    why = linked(link, SYSTEM)
    if why:
        print(f"pyverbs: not linked into {sys.prefix}: {why}", file=sys.stderr)
        return 1
    print(f"pyverbs: {link} -> {link.resolve()}")
    return 0


def linked(link: Path, system: Path) -> str:
    """'' once `link` leads to pyverbs and can be imported, else why not; then there is no link."""
    if sys.prefix == sys.base_prefix:
        return "this interpreter belongs to no virtual environment"
    if not system.is_dir():
        return f"there is no {system} ({INSTALL})"
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    if not (system / f"device{suffix}").exists():
        made = ", ".join(sorted(path.name for path in system.glob("device.*.so"))) or "nothing compiled"
        return f"it is compiled for another Python: this one loads device{suffix}, {system} has {made}"
    if link.exists() and not link.is_symlink():
        return f"{link} is there already, and no link"
    link.unlink(missing_ok=True)
    link.symlink_to(system, target_is_directory=True)
    why = why_not_imported()
    if why:
        link.unlink()
    return why


def why_not_imported() -> str:
    """Asks a fresh interpreter: its libraries may not fit, and a failed import cannot be taken back."""
    done = subprocess.run([sys.executable, "-c", "import pyverbs.device"], capture_output=True, text=True)
    return "" if done.returncode == 0 else f"it cannot be imported: {done.stderr.strip().splitlines()[-1]}"


if __name__ == "__main__":
    sys.exit(main())
