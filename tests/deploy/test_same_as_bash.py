"""What the reader makes of a script is what bash makes of it, or is said to be unknown."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from vivace.deploy.shell.reader import read_script

SERVER = "python -m sglang.launch_server"
TOLD = """python() {
    shift 2
    local line
    printf -v line '[%s]' "$@"
    printf '%s\\0' "$line"
}
"""
"""what a server is started with, each ended by a NUL"""
SCRIPTS = r"""
A=(a b c d); for h in "${A[@]:1}"; do SRV $h & done
A=(a b c d); for h in ${A[@]:1:2}; do SRV $h & done
A=(a b c d); SRV "${A[@]:0:2}" ${A[@]:2} ${#A[@]} ${!A[@]}
A=(a.x b.x); SRV "${A[@]%.x}" "${A[@]#a}" "${A[@]^^}" "${A[@]/x/y}"
A=(a b); SRV "${A[@]:-z}" "${A[@]+w}"
A=(a b c d); SRV "${A[@]: -1}"
A=(a.x); SRV "${A[@]/%x/y}"
A=(a b); printf -v J ',%s' "${A[@]}"; SRV "${J#,}"
set -- a b c; SRV "${@:2}" "${@:1:2}" $# ${*:3}
set -- a b c; shift 2; SRV $# $1 "$@"
set -- a b c; shift 5; SRV $#
set -e -- a b; SRV $1
set -euo pipefail; SRV "${1-none}"
set -- a b c; while [ $# -gt 0 ]; do SRV $1 & shift; done
set -- a b c; while (($#)); do SRV $1 & shift; done
set -- -t 8 -p 5; while [ $# != 0 ]; do case $1 in -t) T=$2;; *) P=$2;; esac; shift 2; done; SRV $T
f() { while [ $# -gt 0 ]; do SRV $1 & shift; done; wait; }; f a b
x=1; while [ $x -le 3 ]; do SRV $x & let x++; done
x=1; while [ $x -le 3 ]; do SRV $x & let x=x+1; done
x=1; while [ $x -le 3 ]; do SRV $x & printf -v x %d $((x+1)); done
x=1; while (( x <= 3 )); do SRV $x & : $((x++)); done
i=3; until (( i == 0 )); do SRV $i & let i--; done
set -- 1 2 3; for a; do SRV $a & done
[ 1 = 2 ] && SRV y || SRV n
[ 1 = 1 ] && SRV y || SRV n
[ 1 = 2 ] || [ 1 = 1 ] && SRV y
[ 1 = 2 ] && [ 1 = 1 ] && SRV y || SRV n
x=2; [[ $x -eq 1 ]] && y=2 || y=3; SRV $y
x=2; [ $x = 2 ] && { SRV y & } || SRV n
false || SRV a; true && SRV b; false && SRV c
echo y | SRV a
echo "1 2" | { read a b; SRV $a $b; }
printf '%s\n' a:1 b:2 | while IFS=: read h r; do SRV $h $r & done
SRV a | tee launch_server.log
i=0; for h in a b; do SRV $h $((i++)) & done
i=0; for h in a b; do r=$((i++)); SRV $h $r & done
x=1 & y=2; SRV "${x-none}" $y
PORT=$(echo -n 8000); SRV --port $PORT
x=$(echo -e one); SRV $x
x=$(printf "%s\n" a b c); SRV $x
x=$(printf '%s-' a b); SRV $x
x=$(printf "%d" 012); SRV $x
x=$(printf "%d" abc); SRV $x
printf -v x "%s-%s" a b; SRV $x
printf -v x "%03d" 7; SRV $x
printf -v x "%5s" ab; SRV "$x"
i=4; SRV $(( 30000 + -(i++) )) $i
i=4; SRV $(( !i++ )) $i $(( !0 ))
i=4; SRV $(( - --i )) $i
i=4; SRV $(( ~i )) $((i%3)) $((i<<2)) $((i**2)) $((i>3?1:2)) $((i&6)) $((i|1)) $((i^1)) $((i>>1))
i=7; (( i *= 3 )); (( i /= 2 )); (( i %= 7 )); SRV $i
i=7; (( i <<= 1 )); (( i ^= 1 )); SRV $i
i=1; SRV $((i+=2)) $((i=i*2)) $i $((i, 5))
i=010; j=0x10; SRV $((i)) $((j + 1)) $((011))
a=(1 2 3); ((a[1]++)); SRV ${a[@]}
a=(1 2 3); x=$((a[1]++)); SRV ${a[@]}
a=(1 2 3); let a[0]=9; SRV ${a[@]}
x=$(( 7 / 2 )); y=$(( -7 / 2 )); z=$(( -7 % 3 )); SRV $x $y $z
read a b <<< "1 2 3"; SRV $a "$b"
read <<< "  a b  "; SRV "$REPLY"
read -n 1 c <<< "xyz"; SRV $c
read x <<< "a\\b"; SRV "$x"
read -r x <<< "a\\b"; SRV "$x"
read -r -d '' T <<< $'a\nb'; SRV "$T"
SRV $'a\tb' $'\x41\102\u00e9' $'it\'s \\ \q "x"' a$'\n'b
IFS=, read -r a b c <<< "x,,z"; SRV "$a" "$b" "$c"
IFS=, read -ra A <<< "x,y,z,"; SRV "${A[@]}" ${#A[@]}
mapfile -t A < <(printf "%s\n" a b); SRV "${A[@]}" ${#A[@]}
mapfile -t -n 1 A < <(seq 3); SRV "${A[@]}"
mapfile -t -s 1 A < <(seq 3); SRV "${A[@]}" ${#A[@]}
mapfile -t < <(seq 2); SRV "${MAPFILE[@]}"
"""


def known(words: tuple[str, ...]) -> bool:
    return not any("<" in word for word in words)


@pytest.mark.skipif(shutil.which("bash") is None, reason="compares with bash")
@pytest.mark.parametrize("script", SCRIPTS.strip().splitlines())
def test_what_is_known_is_what_bash_does(script: str, tmp_path: Path) -> None:
    script = script.replace("SRV", SERVER)
    command = ["bash", "-c", TOLD + script + "\nwait"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, cwd=tmp_path)
    reading = read_script(script)
    launches = [each.words[3:] for each in reading.launches if each.words[0] == "python"]
    if not reading.notes and all(map(known, launches)):
        started = sorted("".join(f"[{word}]" for word in words) for words in launches)
        assert started == sorted(done.stdout.split("\0")[:-1])
    assert launches or reading.notes
