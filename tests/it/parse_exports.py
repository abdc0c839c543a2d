"""Parses exports with the parser of the installed vLLM: `sh`, `vllm-yaml` and `recipe`, given as files in this order.

Prints one JSON object for each: the parsed values by name, as Python writes them.
"""

import argparse
import json
import subprocess
import sys

import yaml
from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.utils.argparse_utils import FlexibleArgumentParser


def serve_parser():
    parser = FlexibleArgumentParser()
    ServeSubcommand().subparser_init(parser.add_subparsers(dest="subparser"))
    return parser


def main():
    options = argparse.ArgumentParser()
    for name in ("script", "config", "recipe", "model"):
        options.add_argument(name)
    options = options.parse_args()
    # The script starts a program that prints its words, each with a NUL byte behind it.
    words = subprocess.run(["sh", options.script], check=True, stdout=subprocess.PIPE, text=True).stdout
    script = words.split("\0")[:-1]
    with open(options.recipe) as file:
        ((_, block),) = yaml.safe_load(file)["hardware_overrides"].items()
    lines = [
        script[script.index("serve") :],
        ["serve", options.model, "--config", options.config],
        ["serve", options.model, *block["extra_args"]],
    ]
    parser = serve_parser()
    for line in lines:
        parsed = vars(parser.parse_args(line))
        # The name of the file is no setting of the server.
        parsed.pop("config", None)
        print(json.dumps({name: repr(value) for name, value in parsed.items()}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
