"""Reads `schedules` and `policy`: loads the user's own schedules and checks every rule against what is registered."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ringcomm.config.keys import setting_fields
from ringcomm.config.located import Located, read_yaml
from ringcomm.config.reading import items, mapping, nearest, parse
from ringcomm.config.rule import CHOSEN, COLLECTIVES, PolicyRule
from ringcomm.config.shipped import shipped
from ringcomm.errors import ConfigError

NO_BYTES = {
    "all_to_all": "with uneven splits no rank knows the others' bytes, so they could choose differently",
    "barrier": "it has no message",
}


def schedule_files(item: Located | None, base: Path | None) -> tuple[str, ...]:
    """Loads and verifies each file of `schedules`; their absolute paths. base: the folder they are relative to."""
    found: list[str] = []
    owners: dict[str, Path] = {}
    for entry in items(item, "schedules"):
        if not isinstance(entry.value, str):
            raise ConfigError(f"{entry.where}: schedules is a list of paths of Python files, not {entry.value!r}")
        path = Path(entry.value)
        if base is None and not path.is_absolute():
            raise ConfigError(f"{entry.where}: {entry.value!r} must be absolute, since a dict lies in no folder")
        path = ((base or Path()) / path).absolute()
        if not path.is_file():
            raise ConfigError(f"{entry.where}: schedules names {entry.value!r}, but there is no file {str(path)!r}")
        for name in _load(path, entry.where):
            other = owners.setdefault(name, path)
            if other.read_text(encoding="utf-8") != path.read_text(encoding="utf-8"):
                raise ConfigError(
                    f"{entry.where}: {path} defines schedule {name!r}, and so does {other}; a name stands for one"
                )
        found.append(str(path))
    return tuple(found)


def _load(path: Path, where: str) -> list[str]:
    """The names of its schedules."""
    from ringcomm.schedules import load_user

    try:
        return load_user(path)
    except Exception as error:  # the user's code may raise anything
        raise ConfigError(f"{where}: {path} was not accepted: {type(error).__name__}: {error}") from error


def default_policy() -> dict[str, tuple[PolicyRule, ...]]:
    """The shipped rules, for the collectives a user's policy leaves out."""
    path = shipped("default")
    if path is None:
        raise ConfigError("the shipped configuration default.yaml is missing: the installation is broken")
    return policy_rules(mapping(read_yaml(path, "default.yaml"), "default.yaml", None)["policy"], inherited=True)


def policy_rules(item: Located | None, inherited: bool) -> dict[str, tuple[PolicyRule, ...]]:
    """`policy`, collective by collective. inherited: nobody asked for these rules (see PolicyRule)."""
    policy = {}
    for collective, rules in mapping(item, "policy", COLLECTIVES).items():
        entries = items(rules, f"policy.{collective}")
        if not entries:
            raise ConfigError(
                f"{rules.where}: policy.{collective} has no rule; without the key it has the shipped ones"
            )
        policy[collective] = tuple(_rule(collective, i, entry, inherited) for i, entry in enumerate(entries))
    return policy


def _rule(collective: str, index: int, item: Located, inherited: bool) -> PolicyRule:
    known = {f.name: f for f in setting_fields(PolicyRule)}
    what = f"policy.{collective}[{index}]"
    given = mapping(item, what, known)
    values = {name: parse(f"{what}.{name}", known[name], entry) for name, entry in given.items()}
    rule = PolicyRule(**values, where=item.where, inherited=inherited)
    places = {name: given[name].where if name in given else item.where for name in CHOSEN}
    _check_schedule(collective, rule, f"{places['schedule']}: {what}")
    _check_inside_and_across(collective, rule, what, places)
    if rule.max_bytes is not None and collective in NO_BYTES:
        bound = f"{given['max_bytes'].where}: {what}.max_bytes is {rule.max_bytes}"
        raise ConfigError(f"{bound}, but {collective} takes none: {NO_BYTES[collective]}")
    for counted in ("ranks", "nodes"):
        low, high = (getattr(rule, f"{bound}_{counted}") for bound in ("min", "max"))
        if getattr(rule, counted) is not None and (low is not None or high is not None):
            raise ConfigError(
                f"{given[counted].where}: {what}.{counted} excludes min_{counted} and max_{counted}; "
                "give one or the other"
            )
        if (low or 1) > (high or 65536):
            bounds = f"min_{counted} is {low}, above max_{counted} {high}"
            raise ConfigError(f"{item.where}: {what}: {bounds}; it could never match")
    return rule


def _carried(collective: str) -> str:
    return "all_reduce" if collective == "barrier" else collective  # a barrier runs the all_reduce program


def _check_schedule(collective: str, rule: PolicyRule, what: str) -> None:
    from ringcomm.schedules import SCHEDULES, hierarchical

    carried = _carried(collective)
    allowed = [name for name, schedule in SCHEDULES.items() if carried in [c.name for c in schedule.collectives]]
    if carried in hierarchical.ALLOWED:
        allowed.append(hierarchical.NAME)
    if rule.schedule in allowed:
        return
    near = nearest(rule.schedule, allowed)
    if not rule.schedule:
        problem = "schedule is missing"
    elif rule.schedule in (*SCHEDULES, hierarchical.NAME):
        problem = f"schedule {rule.schedule!r} does not serve {collective}"
    else:
        problem = f"schedule {rule.schedule!r} is not known{near}"
    raise ConfigError(f"{what}: {problem}; allowed are {', '.join(allowed)}")


def _check_inside_and_across(collective: str, rule: PolicyRule, what: str, places: Mapping[str, str]) -> None:
    """Both, and both possible, for hierarchical; neither for any other schedule."""
    from ringcomm.schedules import hierarchical

    if rule.schedule != hierarchical.NAME:
        for name in ("inside", "across", "levels"):
            if getattr(rule, name):
                raise ConfigError(
                    f"{places[name]}: {what}.{name} goes with schedule: hierarchical, not {rule.schedule}"
                )
        return
    for name, allowed in zip(("inside", "across"), hierarchical.ALLOWED[_carried(collective)], strict=True):
        given = getattr(rule, name)
        if given not in allowed:
            problem = f"{name} is missing" if given is None else f"{name} is {given!r}{nearest(given, allowed)}"
            raise ConfigError(f"{places[name]}: {what}: {problem}; allowed in {collective} are {', '.join(allowed)}")
