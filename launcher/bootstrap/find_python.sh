#!/bin/sh
# Prints the Python to make the environment with: the one named in $1, else that of the environment $2 if it is there already, else
# the first of python3, python3.12, 3.11, 3.10 on PATH that really runs (version managers leave names there that only print an error), is 3.10-3.12, and can make environments.
# Otherwise one sentence on standard error and exit 1.
seen=""
unfit=""
try() {
    found=$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || return 1
    case "$found" in
        3.10 | 3.11 | 3.12) ;;
        *) seen="$seen $1 is Python $found;"; return 1 ;;
    esac
    if "$1" -c 'import venv, ensurepip' 2>/dev/null; then
        "$1" -c 'import sys; print(sys.executable)'
        exit 0
    fi
    unfit="$unfit $found"
    return 1
}

if [ -n "$1" ]; then
    candidates="$1"
else
    candidates="python3 python3.12 python3.11 python3.10"
    if [ -n "$2" ] && [ -x "$2/bin/python" ]; then
        try "$2/bin/python"
    fi
fi
for candidate in $candidates; do
    try "$candidate"
done
if [ -n "$unfit" ]; then
    set -- $unfit
    echo "error: Python $1 is here but lacks its venv module; install it (Debian, Ubuntu: apt install python$1-venv) and run again" >&2
elif [ -n "$seen" ]; then
    echo "error: hvdgrab needs Python 3.10, 3.11 or 3.12, but${seen%;}; install one of them, or name it: make setup PYTHON=/path/to/python3.11" >&2
else
    echo "error: no working Python found ($candidates); install Python 3.10, 3.11 or 3.12, or name it: make setup PYTHON=/path/to/python3.11" >&2
fi
exit 1
