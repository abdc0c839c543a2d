#!/usr/bin/env bash
# Builds ../assets/echarts.js from the pinned packages of package-lock.json. Needs Node.js 20 or later and the npm registry.
#
#   build.sh           builds, and replaces the committed bundle
#   build.sh --check   builds into a temporary folder, and fails if the committed bundle differs
set -euo pipefail
cd "$(dirname "$0")"

committed=../assets/echarts.js
bundle=$committed
case "${1:-}" in
  "") ;;
  --check)
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    bundle=$folder/echarts.js
    ;;
  *)
    echo "usage: build.sh [--check]" >&2
    exit 2
    ;;
esac

banner="/*! Apache ECharts 6.1.0, Copyright 2017-2026 The Apache Software Foundation, Apache License 2.0.
 * zrender 6.1.0, Copyright (c) 2017 Baidu Inc., BSD-3-Clause. tslib 2.3.0, Copyright (c) Microsoft Corporation, 0BSD.
 * The full texts: src/report/page/licenses. Built by src/report/page/echarts/build.sh. */"

# esbuild's install script only optimizes its start: the binary comes with the optional package of the platform.
npm ci --ignore-scripts --no-audit --no-fund --loglevel=error
node_modules/.bin/esbuild entry.js --bundle --minify --format=iife --global-name=echarts --target=es2020 \
  --define:process.env.NODE_ENV='"production"' --charset=ascii --legal-comments=inline --log-level=warning \
  --banner:js="$banner" \
  --outfile="$bundle"

if grep -qi "</script" "$bundle"; then
  echo "$bundle contains </script, and cannot be embedded in a page" >&2
  exit 1
fi
if [ "$bundle" != "$committed" ]; then
  if ! cmp "$bundle" "$committed"; then
    echo "$committed is not the bundle of its sources: run build.sh and commit the result" >&2
    exit 1
  fi
  echo "$committed is the bundle of its sources"
fi
