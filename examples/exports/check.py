"""Checks every format of `export` with foreign programs and schemas.

    python3 -m venv .exports
    .exports/bin/pip install --requirement examples/exports/requirements.txt
    .exports/bin/python examples/exports/check.py [--program target/debug/setpoint] [--keep DIRECTORY]

It runs a study of the simulated engine, and exports its winner and trials with difficult values. Each format has one
function in CHECKS or FILE_CHECKS. A format of `export --help` without a function is an error. The function validates the file, and
returns the words of the server's command as the file's own consumer would start it, or None if there is no command.
"""

import argparse
import csv
import gzip
import io
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import jsonschema
import kubernetes_validate
import yaml
from expectations import SCHEMAS, expect, fail
from file_checks import FILE_CHECKS

HERE = Path(__file__).resolve().parent

# The oldest and the newest release of Kubernetes to validate against.
KUBERNETES = ["1.29", "1.37"]

# Formats that another script checks.
ELSEWHERE = {
    "optuna": "examples/dashboards/check.py",
    "mlflow": "examples/dashboards/check.py",
    "llama-preset": "tests/it/real_llama_cpp.rs",
}

# A program that prints its words, each with a NUL byte behind it, and its variables.
WORDS = "#!/bin/sh\nfor word in \"$(basename \"$0\")\" \"$@\"; do printf '%s\\0' \"$word\"; done\n"

# What Kubernetes and Compose replace in a text, and YAML 1.1 reads as another type.
DIFFICULT = [
    "--speculative-config",
    '{"method": "ngram", "num_speculative_tokens": 3, "a": "it\'s $HOME $(PATH) ${X:-y} `id` $$"}',
    "--served-model-name", "my model", "no", "1e3", "0x10", "- a: #b", "*a", "", "-1", "{{ now }}",
    "--tensor-parallel-size", "2",
]


# The trials to export


class Case:
    """One trial in a database of its own, and the server that its exports must start."""

    def __init__(self, name, program, database, options, model, arguments, gpus):
        self.name, self.program, self.database, self.options = name, program, database, options
        self.model, self.arguments, self.gpus = model, arguments, gpus
        # The simulated engine has no image, so that its exports name one.
        self.is_simulated = "--image" in options

    def export(self, format, *options):
        command = [self.program, "--db", self.database, "export", "--format", format, *options]
        # A service needs the path of the engine's program.
        env = os.environ | {"PATH": f"{self.database.parent}:{os.environ['PATH']}"}
        output = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, text=True)
        if output.returncode != 0:
            fail(f"{self.name}: export --format {format}: {output.stderr}")
        return output.stdout

    def json(self):
        """The launch and the metrics of the exported trial."""
        return json.loads(self.export("json", *([] if self.is_simulated else self.options)))


def run_study(program, directory):
    database = directory / "study.db"
    (directory / "vllm").write_text(WORDS)
    (directory / "vllm").chmod(0o755)
    command = [program, "--db", database, "--quiet", "tune", HERE / "study.toml"]
    expect("exit code of tune", subprocess.run(command, stdout=subprocess.DEVNULL).returncode, 0)
    # A recipe is for a device, and the machine of the check may have none.
    with sqlite3.connect(database) as connection:
        device = "'$.device.name', 'NVIDIA H100 80GB HBM3', '$.device.count', 1, '$.device.compute_capability', '9.0'"
        connection.execute(f"UPDATE contexts SET context = json_set(context, {device})")
    return database


def simulated_case(program, database):
    trials = subprocess.run(
        [program, "--db", database, "export", "--format", "json"], check=True, stdout=subprocess.PIPE, text=True
    )
    command = json.loads(trials.stdout)["command"]
    model, *arguments = command[command.index("serve") + 1 :]
    arguments = [word for index, word in enumerate(arguments) if not is_simulation(arguments, index)]
    return Case("the simulated engine", program, database, ["--image", "registry.example/server:1"], model, arguments, 1)


def is_simulation(words, index):
    return words[index].startswith("--sim-") or index > 0 and words[index - 1].startswith("--sim-")


def made_case(name, program, source, directory, release, model, flags, config, arguments, gpus):
    """A copy of the study whose winner was launched with other words by the real engine."""
    file = directory / f"{name.replace(' ', '-')}.db"
    old, database = sqlite3.connect(source), sqlite3.connect(file)
    old.backup(database)
    old.close()
    line = ["vllm", "serve", model, *flags, *arguments, "--host", "127.0.0.1", "--port", "1234"]
    parts = {"program": 2, "flags": len(flags), "arguments": len(arguments), "address": 4}
    env = {"HF_TOKEN": "(redacted)", "NOTE": "it's $5 $(id) {{ now }} \"x\"\ty", "EMPTY": "", "NUMBER": "010", "SWITCH": "yes"}
    database.execute(
        "UPDATE trials SET command = ?, command_parts = ?, env = ?, config = ?, engine_version = ?, startup_s = 61.5",
        (json.dumps(line), json.dumps(parts), json.dumps(env), json.dumps(config), release),
    )
    database.execute("UPDATE studies SET definition = json_set(definition, '$.engine.kind', 'vllm')")
    database.commit()
    database.close()
    return Case(name, program, file, ["--trial", "1"], model, flags + arguments, gpus)


def cases(program, directory):
    study = run_study(program, directory)
    flags = ["--enable-prefix-caching", "--max-num-seqs", "64"]
    config = {"enable-prefix-caching": True, "max-num-seqs": 64}
    made = [
        ("difficult values", "0.32.0", "org/model", DIFFICULT, 2),
        ("a directory", "0.32.0", "/models/my $model, \"3\"", ["--data-parallel-size", "2", "--pipeline-parallel-size", "2"], 4),
        ("processors", "0.32.0+cpu", "org/model", [], 0),
    ]
    return [simulated_case(program, study)] + [
        made_case(name, program, study, directory, release, model, flags, config, arguments, gpus)
        for name, release, model, arguments, gpus in made
    ]


# Texts as their consumers read them


def documents(text):
    return list(yaml.safe_load_all(text))


def schema(name):
    opened = gzip.open(SCHEMAS / name) if name.endswith(".gz") else open(SCHEMAS / name, "rb")
    with opened as file:
        return json.load(file)


def strict(node):
    """A schema that refuses fields that it does not name. A server of Kubernetes drops them without an error."""
    if isinstance(node, list):
        return [strict(item) for item in node]
    if not isinstance(node, dict):
        return node
    node = {key: strict(value) for key, value in node.items()}
    open_ended = "additionalProperties" in node or node.get("x-kubernetes-preserve-unknown-fields")
    if isinstance(node.get("properties"), dict) and node.get("type") == "object" and not open_ended:
        node["additionalProperties"] = False
    return node


def validate(what, instance, schema):
    for error in jsonschema.Draft202012Validator(schema).iter_errors(instance):
        fail(f"{what}: {error.json_path}: {error.message[:500]}")


def pod_words(container, env=None):
    """The command of a container after the replacement of `$(NAME)`, as Kubernetes does it."""
    values = {variable["name"]: variable.get("value", "SECRET") for variable in container.get("env", [])}
    return [expanded(word, env or values) for word in container["command"] + container["args"]]


def expanded(text, values):
    known = lambda match: "$" if match[0] == "$$" else values.get(match[1], match[0])
    return re.sub(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_]*)\)", known, text)


def check_pod(case, pod, name):
    """Checks the parts of a pod that a schema cannot check."""
    (container,) = pod["containers"]
    limits = container.get("resources", {}).get("limits", {})
    expect(f"{case.name}: {name}: GPUs", limits.get("nvidia.com/gpu", 0), case.gpus)
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    expect(f"{case.name}: {name}: volumes", {volume["name"] for volume in pod["volumes"]}, mounted)
    return container


def check_variables(case, container, name):
    """Checks the variables of a container: values are equal, and secrets are references."""
    if case.is_simulated:
        return
    values = {variable["name"]: variable for variable in container["env"]}
    expect(f"{case.name}: {name}: NOTE", expanded(values["NOTE"]["value"], {}), "it's $5 $(id) {{ now }} \"x\"\ty")
    expect(f"{case.name}: {name}: SWITCH", values["SWITCH"]["value"], "yes")
    expect(f"{case.name}: {name}: NUMBER", values["NUMBER"]["value"], "010")
    expect(f"{case.name}: {name}: HF_TOKEN", list(values["HF_TOKEN"]["valueFrom"]), ["secretKeyRef"])


def run_script(case, text, program):
    """The words of a script's last command. A stand-in for `program` prints them."""
    with tempfile.TemporaryDirectory() as directory:
        directory = Path(directory)
        script, stand_in = directory / "script.sh", directory / program
        script.write_text(text)
        stand_in.write_text(WORDS)
        stand_in.chmod(0o755)
        command = [shutil.which("shellcheck", path=Path(sys.executable).parent), "--severity=style", "--exclude=SC2016", script]
        output = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        expect(f"{case.name}: shellcheck", (output.returncode, output.stdout), (0, ""))
        env = os.environ | {"PATH": f"{directory}:{os.environ['PATH']}", "HF_TOKEN": "SECRET"}
        words = subprocess.run(["sh", script], check=True, stdout=subprocess.PIPE, env=env, text=True).stdout
        return words.split("\0")[:-1]


# One function for each format


def check_sh(case, text):
    if case.is_simulated:
        # The command of the simulated engine begins with the path of this program.
        text = re.sub(r"^exec \S+ sim serve", "exec vllm serve", text, flags=re.MULTILINE)
        words = run_script(case, text, "vllm")
        return [word for index, word in enumerate(words) if not is_simulation(words, index)]
    return run_script(case, text, "vllm")


def check_docker(case, text):
    words = run_script(case, text, "docker")
    at = words.index("--entrypoint")
    options = words[:at]
    expect(f"{case.name}: GPUs", options[options.index("--gpus") + 1] if case.gpus else "--gpus" in options, str(case.gpus) if case.gpus else False)
    if case.model.startswith("/"):
        (mount,) = csv.reader([options[options.index("--mount") + 1]])
        expect(f"{case.name}: mount", mount, ["type=bind", f"source={case.model}", f"target={case.model}", "readonly"])
    return [words[at + 1], *words[at + 3 :]]


def check_compose(case, text):
    (compose,) = documents(text)
    validate(f"{case.name}: compose", compose, schema("compose-spec.json"))
    (service,) = compose["services"].values()
    devices = service.get("deploy", {}).get("resources", {}).get("reservations", {}).get("devices", [{"count": 0}])
    expect(f"{case.name}: GPUs", devices[0]["count"], case.gpus)
    for word in service["command"]:
        if re.search(r"(?<!\$)(\$\$)*\$(?!\$)", word):
            fail(f"{case.name}: Compose would replace a variable in {word!r}")
    expect(f"{case.name}: HF_TOKEN", service["environment"]["HF_TOKEN"], None)
    return service["entrypoint"] + [word.replace("$$", "$") for word in service["command"]]


def check_k8s(case, text):
    deployment, service = documents(text)
    for release in KUBERNETES:
        for document in (deployment, service):
            kubernetes_validate.validate(document, release, strict=True)
    pod = deployment["spec"]["template"]
    container = check_pod(case, pod["spec"], "k8s")
    check_variables(case, container, "k8s")
    labels = pod["metadata"]["labels"]
    expect(f"{case.name}: selectors", (deployment["spec"]["selector"]["matchLabels"], service["spec"]["selector"]), (labels, labels))
    expect(f"{case.name}: port", service["spec"]["ports"][0]["targetPort"], container["ports"][0]["name"])
    return pod_words(container)


def check_production_stack(case, text):
    (values,) = documents(text)
    rules = schema("production-stack.values.schema.json")
    validate(f"{case.name}: production-stack", values, rules)
    model_rules = rules["properties"]["servingEngineSpec"]["properties"]["modelSpec"]["items"]
    (model,) = values["servingEngineSpec"]["modelSpec"]
    for given, known in [(model, model_rules), (model["vllmConfig"], model_rules["properties"]["vllmConfig"])]:
        expect(f"{case.name}: keys that the chart does not know", set(given) - set(known["properties"]), set())
    expect(f"{case.name}: GPUs", model["resources"]["limits"].get("nvidia.com/gpu", 0), case.gpus)
    check_variables(case, model, "production-stack")
    config = model["vllmConfig"]
    # In the order of the chart's template (helm/templates/deployment-vllm-multi.yaml).
    words = ["--enable-prefix-caching" if config.get("enablePrefixCaching") else "--no-enable-prefix-caching"]
    for key, flag in [
        ("maxModelLen", "--max-model-len"),
        ("dtype", "--dtype"),
        ("tensorParallelSize", "--tensor-parallel-size"),
        ("maxNumSeqs", "--max-num-seqs"),
        ("gpuMemoryUtilization", "--gpu-memory-utilization"),
    ]:
        if key in config:
            words += [flag, str(config[key])]
    words += [expanded(word, {}) for word in config.get("extraArgs", [])]
    # The chart states more than was launched, and in another order.
    missing = [word for word in case.arguments if word not in words]
    expect(f"{case.name}: arguments that the chart does not pass on", missing, [])
    expect(f"{case.name}: model", expanded(model["modelURL"], {}), case.model)


def check_llm_d(case, text):
    (values,) = documents(text)
    validate(f"{case.name}: llm-d", values, schema("llm-d-modelservice.values.schema.json"))
    decode = values["decode"]
    container = check_pod(case, decode, "llm-d")
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"volumes": decode["volumes"]}}
    # The keys of the chart's own, which its template replaces.
    own = ("modelCommand", "mountModelVolume")
    pod["spec"]["containers"] = [{key: value for key, value in container.items() if key not in own}]
    for release in KUBERNETES:
        kubernetes_validate.validate(pod, release, strict=True)
    note = {variable["name"]: variable.get("value") for variable in container["env"]}["NOTE"]
    if "{{ now" in note:
        fail(f"{case.name}: the chart would render {note!r} as a template")
    expect(f"{case.name}: secret", values["modelArtifacts"]["authSecretName"].endswith("-secrets"), True)
    return pod_words(container)


def check_kserve(case, text):
    service, llm_service = documents(text)
    for document, rules in [
        (service, "kserve.inferenceservices.v1beta1.json.gz"),
        (llm_service, "kserve.llminferenceservices.v1alpha2.json.gz"),
    ]:
        validate(f"{case.name}: {document['kind']}", document, strict(schema(rules)))
        if not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", document["metadata"]["name"]):
            fail(f"{case.name}: {document['metadata']['name']!r} is no DNS label")
    container = check_pod(case, service["spec"]["predictor"], "kserve")
    check_variables(case, container, "kserve")
    (template,) = llm_service["spec"]["template"]["containers"]
    check_variables(case, template, "kserve")
    words = shell_words(template)
    expect(f"{case.name}: arguments in the template", words, case.arguments)
    found = pod_words(container)
    expect(f"{case.name}: port", found[-2:], ["--port", "8080"])
    return [*found[:-1], "8000"]


def shell_words(container):
    """The words of VLLM_ADDITIONAL_ARGS in KServe's template: `eval "exec vllm serve ... ${VLLM_ADDITIONAL_ARGS} ..."`."""
    values = {variable["name"]: expanded(variable.get("value", "SECRET"), {}) for variable in container["env"]}
    script = 'print() { printf "%s\\0" "$@"; }; eval "print begin ${VLLM_ADDITIONAL_ARGS}"'
    output = subprocess.run(["bash", "-c", script], check=True, stdout=subprocess.PIPE, env=os.environ | values, text=True)
    return output.stdout.split("\0")[1:-1]


def check_json(case, text):
    command = json.loads(text)["command"]
    expect(f"{case.name}: the command of JSON contains the model", case.model in command, True)


def check_csv(case, text):
    rows = list(csv.DictReader(io.StringIO(text)))
    expect(f"{case.name}: rows", len(rows), 1)


def check_run_dir(case, directory):
    files = {path.name: path.read_text() for path in directory.iterdir()}
    expect(f"{case.name}: files", "engine_params.txt" in files, True)
    for name in files:
        if name.endswith(".json"):
            json.loads(files[name])


CHECKS = {
    "sh": check_sh,
    "docker": check_docker,
    "compose": check_compose,
    "k8s": check_k8s,
    "production-stack": check_production_stack,
    "llm-d": check_llm_d,
    "kserve": check_kserve,
    "json": check_json,
    "csv": check_csv,
    "run-dir": check_run_dir,
    **FILE_CHECKS,
}

# Formats that name a container image.
WITH_IMAGE = {"docker", "compose", "k8s", "production-stack", "llm-d", "kserve"}


def formats(program):
    """The formats that the program offers."""
    text = subprocess.run([program, "export", "--help"], check=True, stdout=subprocess.PIPE, text=True).stdout
    listed = text.split("Possible values:", 1)[1].split("\n\n")[0].split("[default")[0]
    return re.findall(r"^\s+- ([a-z0-9-]+):", listed, flags=re.MULTILINE)


def check_case(case, format, keep):
    options = [option for option in case.options if format in WITH_IMAGE or not case.is_simulated]
    with tempfile.TemporaryDirectory() as directory:
        if format == "run-dir":
            exported = Path(directory) / "run"
            case.export(format, *options, "-o", exported)
        else:
            exported = case.export(format, *options)
            if "an-example-of-a-secret" in exported or re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", exported):
                fail(f"{case.name}: {format}: a secret or a control character")
            if keep:
                (keep / f"{case.name.replace(' ', '-')}.{format}").write_text(exported)
        words = CHECKS[format](case, exported)
    if words is not None:
        address = [] if format == "sh" else ["--host", "0.0.0.0", "--port", "8000"]
        expect(f"{case.name}: {format}: command", words, ["vllm", "serve", case.model, *case.arguments, *address])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="target/debug/setpoint", help="the built program")
    parser.add_argument("--keep", type=Path, help="existing directory for the exported files")
    arguments = parser.parse_args()
    program = Path(arguments.program).resolve()
    offered = formats(program)
    missing = [format for format in offered if format not in CHECKS and format not in ELSEWHERE]
    expect("formats of `export --help` without a check", missing, [])
    expect("checks of formats that do not exist", [format for format in CHECKS if format not in offered], [])
    with tempfile.TemporaryDirectory() as directory:
        all_cases = cases(program, Path(directory))
        for format in CHECKS:
            for case in all_cases:
                check_case(case, format, arguments.keep)
            print(f"{format}: {len(all_cases)} exports are valid")
    for format, script in ELSEWHERE.items():
        print(f"{format}: see {script}")
    print("all passed")


if __name__ == "__main__":
    main()
