"""Shell scripts: what they start, word for word as a shell would start it."""

import shlex
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.base.errors import SpecError
from meshwright.frameworks.reading.shell import as_written, read_script, unknown_in

SCRIPTS = {
    "arrays": 'A=(--a 1 # note\n --b "two words")\nA+=(--c)\nrun "${A[@]}" ${#A[@]} ${A[1]}',
    "defaults": 'T=${TP:-8}\n: ${P:=4}\nrun $T $P ${Q:-} ${T:+yes} ${U:+no}',
    "arithmetic": "N=$((8 * 4))\nM=$((N/3 + 1))\nrun $N $M $((M % 2)) $(expr $N \\* 2)",
    "strings": 'O=" --a 1 \\\n  --b 2"\nO="$O --c"\nrun $O "$O" \'$O\'',
    "tests": 'X=2\nif [ "$X" -gt 1 ] && [[ $X != 3 ]]; then A=1; elif [ -z "" ]; then A=2; fi\n'
             'if [ "$X" = 3 ]; then B=1; elif [[ -n $X ]]; then B=2; else B=3; fi\n'
             '[ $X -eq 2 ] && C=1\n[ $X -eq 3 ] || D=1\n((X > 1)) && E=1\nrun $A $B $C $D $E',
    "loops": 'O=""\nfor i in a b "c d"; do O="$O-$i"; done\nrun "$O"',
    "cases": 'M=7b\ncase $M in 7*|8b) H=4096;; *) H=1;; esac\nrun $H',
    "functions": 'go() { run "$@" "$1-$#"; }\ngo x y',
    "cuts": 'P=/a/b.c.json\nrun ${P##*/} ${P%.json} ${P%%.*} ${P#/} ${P^^}',
    "quoted commands": 'T=8\nbash -c "run $T \\"a b\\""\neval "run $T"',
    "set": "set -- one two\nrun $2 $1 $#",
    "joined": 'T=8\nrun --a=$T-x"y z"${T}q',
    "side by side": 'A=1\nB=" x"\nB=" $A ${B} $A \\\n    ${B} \\\n  $A $((1+1)) $(echo c)"\n'
                    'run $B "$B"',
    "documents": "read -r -d '' X <<EOF\n--a 1 \\\n --b $((1+1))\nEOF\n"
                 "run $X\nbash <<EOF\nrun c\nEOF",
    "words of a line": 'IFS== read -r K V <<< "a=b=c"\nread -ra A <<< "x y"\nrun $K $V ${A[1]}',
    "names": 'declare -A S=([7b]=1 [x]=2)\nK=7b\nS[k]=9\nrun ${S[$K]} ${S[x]} ${S[k]} ${S[z]:-d}',
    "counted loops": 'N=3\nfor ((i=0; i<N; i++)); do run $i; done\nj=0\n'
                     'while [ $j -lt 3 ]; do j=$((j+2)); run $j; done\n((j++))\nlet j+=2\nrun $j',
    "left loops": 'for i in 1 2 3 4; do [ $i = 2 ] && continue; run $i; [ $i = 3 ] && break; done\n'
                  'while true; do run once; break; done',
    "printed": 'words() { echo "--a $1"; }\nrun $(words 3)',
    "shifted": 'take() { A=$1; shift; run $A "$@" $#; shift 2; run $1; }\ntake a b c d',
    "negated": 'if ! [ 1 = 2 ]; then A=1; fi\nrun $A',
}  # fmt: skip


def started(text):
    """Return the commands called ``run``, by us."""
    return [list(one.words[1:]) for one in read_script(text).commands if one.words[0] == "run"]


def by_bash(text):
    """Return the same by bash itself."""
    bash = shutil.which("bash")
    function = 'run() { printf "%s\\0" "$#" "$@"; }\nexport -f run\n'
    done = subprocess.run(
        [bash, "-c", function + text],
        capture_output=True,
        check=False,
        env={"PATH": "/usr/bin:/bin"},
    )
    parts = done.stdout.decode().split("\0")[:-1]
    found = []
    while parts:
        count = int(parts.pop(0))
        found.append(parts[:count])
        parts = parts[count:]
    return found


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is the reference")
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_starts_what_bash_starts(name):
    assert started(SCRIPTS[name]) == by_bash(SCRIPTS[name])
    assert started(SCRIPTS[name])


def test_what_only_the_machine_knows_is_marked():
    found = started("N=$(nvidia-smi -L | wc -l)\nrun --n $N --m $HOSTS")
    assert [as_written(word) for word in found[0]] == [
        "--n", "$(nvidia-smi -L | wc -l)", "--m", "$HOSTS",
    ]  # fmt: skip
    assert unknown_in(found[0][3]) == "HOSTS"


def test_files_that_a_script_writes_are_known():
    script = read_script('S=3\ncat <<EOF > out/ds.json\n{"stage": $S, "x": "\\$S"}\nEOF\n')
    assert script.files == {"ds.json": '{"stage": 3, "x": "$S"}\n'}
    literal = read_script("cat <<'EOF' > ds.json\n{$S}\nEOF\n")
    assert literal.files == {"ds.json": "{$S}\n"}


def test_tests_of_files_count_as_false_and_say_so():
    script = read_script("if [ -f model.pt ]; then run a; else run b; fi")
    assert [one.words for one in script.commands] == [("run", "b")]
    assert script.notes == ["line 1: '-f model.pt' is taken as false"]


WORDS = st.text("ab $\"'\\{}()[]=;&|<>\n-#*?!@:+%/1,", max_size=60)


def test_a_script_that_would_end_in_an_error_is_read_on():
    text = "if [ ! -f train.py ]; then echo missing; exit 1; fi\nrun a\nexit 0\nrun b"
    assert started(text) == [["a"]]


@pytest.mark.parametrize(
    "text",
    ["f() { f; }\nf", "run " + "$(" * 900 + "echo a" + ")" * 900,
     "X=ab\nfor i in " + "1 " * 40 + '; do X="$X$X"; done'],
    ids=["endless", "deep", "growing"],
)  # fmt: skip
def test_scripts_without_end_are_refused(text):
    with pytest.raises(SpecError, match=r"calls itself|builds too much text"):
        read_script(text)


def test_what_is_no_shell_is_told():
    assert read_script("run ==\n").notes == ["line 1: '==' is not understood"]


@given(WORDS)
def test_any_text_is_read_without_a_fault_of_ours(text):
    read_script(text)


PLAIN = st.lists(
    st.text("abc XYZ,.:=-_/'\"$", min_size=1, max_size=12).filter(lambda word: word.strip("=")),
    min_size=1, max_size=5,
)  # fmt: skip


@given(PLAIN)
def test_quoted_words_come_back_as_they_are(words):
    assert started(shlex.join(["run", *words])) == [words]
