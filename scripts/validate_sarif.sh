#!/bin/sh
# Validate a SARIF log with Microsoft's SARIF Multitool: the rules of the format and those of GitHub's code scanning.
# Usage: validate_sarif.sh FILE
# Exit status: 0 no error, 1 an error was reported, 2 no such file, 77 the tool cannot be had here (no npm, no package).
set -eu
[ $# -eq 1 ] && [ -f "$1" ] || { echo "usage: validate_sarif.sh FILE (a SARIF log)" >&2; exit 2; }
log=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
command -v npm >/dev/null || { echo "skipped: npm is not installed"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
npm install --prefix "$folder" --no-audit --no-fund --silent @microsoft/sarif-multitool >"$folder/npm.log" 2>&1 ||
  { echo "skipped: npm cannot install @microsoft/sarif-multitool"; exit 77; }
tool=$(find "$folder/node_modules/@microsoft" -name Sarif.Multitool -type f | head -n 1)
[ -n "$tool" ] || { echo "skipped: @microsoft/sarif-multitool has no program for this system"; exit 77; }
# Its own install script does this, where npm runs install scripts.
chmod u+x "$tool"
# The tool reads only files that are called *.sarif, and its exit status does not tell what it found.
cp "$log" "$folder/log.sarif"
cd "$folder"
DOTNET_SYSTEM_GLOBALIZATION_INVARIANT=1 "$tool" validate log.sarif --rule-kind "Sarif;Ghas" \
  --level "Error;Warning;Note" --kind "Fail" >said.txt 2>&1 || true
sed "s|^$folder/||" said.txt
if grep -Eq '^[^ ]*log\.sarif(\([0-9,]+\))?: error ' said.txt; then exit 1; fi
# A tool that fell over has found no error either.
grep -q '^Analysis completed successfully' said.txt || exit 1
