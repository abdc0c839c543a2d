"""Checks of the exports that are files of other programs: vllm-yaml, env, systemd, recipe and benchmark-report.

Each format has one function in FILE_CHECKS. It gets the case and the text of the export.
"""

import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import jsonschema
import yaml
from expectations import SCHEMAS, expect, fail

# Keys of `hardware_overrides` for a model: generations of hardware, and brands.
HARDWARE = {"hopper", "blackwell", "amd", "cpu", "nvidia"}


def variables(case):
    """The variables of the launch that are no secrets."""
    env = case.json()["env"]
    return {name: value for name, value in env.items() if "(redacted)" not in value}


def by_flag(words):
    """The values behind each flag. The flag decides on the meaning of a line, and not the order of flags."""
    flags, name = {}, None
    for word in words:
        if re.match(r"--?[a-zA-Z][^\s]*$", word.split("=")[0]):
            name, *value = word.split("=", 1)
            flags[name] = value
        else:
            flags[name].append(word)
    return {name: values for name, values in flags.items() if not name.startswith("--sim-")}


def words_of_config(config):
    """The words that every release of vLLM makes of these entries (`load_config_file`)."""
    words = []
    for key, value in config.items():
        if value is False or isinstance(value, dict):
            fail(f"{key}: older releases do not read {value!r}")
        words.append(f"--{key}")
        if value is not True:
            words += [str(item) for item in value] if isinstance(value, list) else [str(value)]
    return words


def check_vllm_yaml(case, text):
    config = yaml.safe_load(text) or {}
    expect(f"{case.name}: vllm-yaml: flags", by_flag(words_of_config(config)), by_flag(case.arguments))


def check_env(case, text):
    lines = [line for line in text.split("\n") if line and not line.startswith("#")]
    # docker/cli, `kvfile`: the value is the rest of the line.
    docker = dict(line.split("=", 1) for line in lines)
    # systemd, `parse_env_file`: blanks at the ends, quotes around the value and backslashes are removed.
    systemd = {}
    for name, value in docker.items():
        if value[:1] in "'\"" and value or "\\" in value:
            fail(f"{case.name}: env: systemd changes the value of {name}")
        systemd[name] = value.strip()
    expect(f"{case.name}: env: variables of docker", docker, variables(case))
    expect(f"{case.name}: env: variables of systemd", systemd, variables(case))


def unit_words(text):
    """The words of a line of a unit: quotes and escapes of C."""
    words = []
    for word in re.findall(r'"(?:[^"\\]|\\.)*"|[^ \t]+', text):
        if word.startswith('"'):
            escapes = {"n": "\n", "t": "\t"}
            unescape = lambda match: (
                chr(int(match[1], 16)) if match[1] else chr(int(match[2], 8)) if match[2] else escapes.get(match[3], match[3])
            )
            word = re.sub(r"\\(?:U([0-9a-f]{8})|([0-7]{3})|(.))", unescape, word[1:-1])
        words.append(word)
    return words


def verify_unit(case, text):
    """Has systemd verify a unit. Returns the words of its command as systemd reads them, or None without systemd."""
    if not shutil.which("systemd-analyze"):
        print("skipped, because systemd-analyze is not installed: systemd-analyze verify")
        return None
    with tempfile.TemporaryDirectory() as directory:
        unit = Path(directory) / "setpoint-check.service"
        unit.write_text(text)
        command = ["systemd-analyze", "verify", unit]
        output = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        expect(f"{case.name}: systemd-analyze verify", (output.returncode, output.stdout), (0, ""))
        env = os.environ | {"SYSTEMD_LOG_LEVEL": "debug"}
        output = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env, text=True)
    dumped = re.search(r"-> ExecStart:\n\s*Command Line: (.*)", output.stdout)
    return unit_words(dumped[1])


def check_systemd(case, text):
    joined = text.replace("\\\n", " ")
    values = [unit_words(line.split("=", 1)[1]) for line in joined.split("\n") if line.startswith("Environment=")]
    found = dict(word.replace("%%", "%").split("=", 1) for words in values for word in words)
    expect(f"{case.name}: systemd: variables", found, variables(case))
    (start,) = [line.split("=", 1)[1] for line in joined.split("\n") if line.startswith("ExecStart=")]
    if re.search(r"(?<!\$)(\$\$)*\$(?!\$)", start):
        fail(f"{case.name}: systemd would replace a variable in {start!r}")
    words = [word.replace("%%", "%") for word in unit_words(start)]
    expect(f"{case.name}: systemd: words as systemd reads them", verify_unit(case, text) or words, words)
    words = [word.replace("$$", "$") for word in words]
    expect(f"{case.name}: systemd: program", words[0].startswith("/"), True)
    model, *arguments = words[words.index("serve") + 1 :]
    expect(f"{case.name}: systemd: model", model, case.model)
    expect(f"{case.name}: systemd: arguments", by_flag(arguments), by_flag([*case.arguments, "--port", "8000"]))


def check_recipe(case, text):
    recipe = yaml.safe_load(text)
    ((key, block),) = recipe.pop("hardware_overrides").items()
    expect(f"{case.name}: recipe: further keys", recipe, {})
    expect(f"{case.name}: recipe: {key} is known", key in HARDWARE, True)
    expect(f"{case.name}: recipe: flags", by_flag(block["extra_args"]), by_flag(case.arguments))
    expect(f"{case.name}: recipe: variables", block["extra_env"], variables(case))


def check_benchmark_report(case, text):
    report = yaml.safe_load(text)
    schema = json.loads((SCHEMAS / "benchmark-report/br_v0_2_1.json_schema.json").read_text())
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
    for error in validator.iter_errors(report):
        fail(f"{case.name}: benchmark-report: {error.json_path}: {error.message[:500]}")
    metrics = case.json()["metrics"]
    aggregate = report["results"]["request_performance"]["aggregate"]
    ttft, rate = aggregate["latency"]["time_to_first_token"], aggregate["throughput"]["output_token_rate"]
    expect(f"{case.name}: benchmark-report: TTFT", (ttft["p99"], ttft["units"]), (metrics["p99_ttft_ms"], "ms"))
    expect(f"{case.name}: benchmark-report: rate", (rate["mean"], rate["units"]), (metrics["output_throughput"], "tokens/s"))
    expect(f"{case.name}: benchmark-report: requests", aggregate["requests"]["total"], metrics["completed"] + metrics["failed"])


FILE_CHECKS = {
    "vllm-yaml": check_vllm_yaml,
    "env": check_env,
    "systemd": check_systemd,
    "recipe": check_recipe,
    "benchmark-report": check_benchmark_report,
}
