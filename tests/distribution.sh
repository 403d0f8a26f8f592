#!/bin/sh
# distribution.sh FILE CONSTRAINTS: install a wheel or an sdist in an empty environment, and try the commands there.
set -eu
file=$(realpath "$1")
constraints=$(realpath "$2")
folder=$(mktemp -d)
server=
trap 'test -z "$server" || kill "$server"; rm -rf "$folder"' EXIT
cd "$folder"  # not the checkout, whose package would be imported
unset PYTHONPATH
"${PYTHON:-python3}" -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint "$constraints" "$file[serve]"
PATH="$folder/venv/bin:$PATH" REGARD_CACHE="$folder/cache"
export PATH REGARD_CACHE

regard --version
regard recipes bahdanau2015 >/dev/null
regard data make --pairs 300 --out corpus
regard train corpus/train.en corpus/train.de --dev corpus/dev.en corpus/dev.de --out run \
    model.size=32 model.layers=1 training.steps=20 training.validate_every=20 training.device=cpu
regard evaluate run corpus/test.en corpus/test.de --gold corpus/test.align
regard plot run "the old house" --out picture.png
test -s run/report.html
test -s picture.png
python - <<'END'
import importlib.resources

import regard.nn

assert importlib.resources.files("regard").joinpath("py.typed").is_file()
assert str(importlib.resources.files("regard")).startswith(__import__("sys").prefix)
END

regard serve run --port 0 2>log &
server=$!
tries=0
until url=$(grep -so 'http://[0-9.:]*' log); do
    tries=$((tries + 1))
    test "$tries" -lt 120 && kill -0 "$server" || { cat log; exit 1; }
    sleep 1
done
python - "$url" <<'END'
import sys
from urllib.request import Request, urlopen

url = sys.argv[1]
body = b'{"q": "the old house", "source": "en", "target": "de"}'
request = Request(f"{url}/translate", body, {"Content-Type": "application/json"})
print(urlopen(request, timeout=60).read().decode())
for path in ("/", "/metrics", "/openapi.json"):
    assert urlopen(url + path, timeout=60).read()
END
kill "$server"
wait "$server" || true
server=
echo "$file works in an empty environment"
