# shellcheck shell=bash
# Functions for the other scripts: a private copy of PostgreSQL with idemq, servers in a temporary directory, and their
# removal at the end.
#
# PostgreSQL does not run as root.  Therefore as_server, called as root, runs its command as user postgres, otherwise as
# the current user; in both cases with a PATH of its own.

set -euo pipefail
umask 022
# PostgreSQL's test library deletes LC_ALL.
export LC_ALL=C.UTF-8 LANG=C.UTF-8

# The tree stays as it is.
export PYTHONDONTWRITEBYTECODE=1

# The caller's make flags, server settings and git are not the tests'.
unset MAKEFLAGS MFLAGS MAKELEVEL CDPATH
unset PGHOST PGHOSTADDR PGPORT PGUSER PGDATABASE PGDATA PGOPTIONS PGSERVICE PGAPPNAME PGPASSWORD

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=
declare -A children=() # process groups
pg_config=
bindir=

die() {
	echo "$0: $*" >&2
	exit 1
}

# Unless TAP is set, sets it to the TAP tests that assert no times, and names those that do.
untimed() {
	local file left=() tests=()
	if [ -z "${TAP:-}" ]; then
		for file in "$top"/test/t/*.pl; do
			if grep -qx '# asserts times' "$file"; then left+=("$(basename "$file" .pl)"); else tests+=("$(basename "$file" .pl)"); fi
		done
		TAP=${tests[*]}
		echo "without what asserts times: ${left[*]}"
	fi
	export TAP
}

have_root() { [ "$(id -u)" -eq 0 ]; }

# Of the caller's PATH only the folders that the command may search, since what is looked for and
# not found would else be forbidden; the private PostgreSQL's programs come first.  Nor its cache
# of the compiler, where that is not to be written.
# shellcheck disable=SC2016 # for sh
reachable='set -f; IFS=:; found=
for dir in $PATH; do [ ! -x "$dir" ] || found=$found:$dir; done
PATH=${found#:}; unset IFS
[ -w "${CCACHE_DIR:-/tmp}" ] || unset CCACHE_DIR; exec "$@"'

as_server() {
	local become=()
	if have_root; then become=(setpriv --reuid=postgres --regid=postgres --init-groups --inh-caps=-all --); fi
	HOME=${work:-/} PATH=${bindir:+$bindir:}$PATH "${become[@]}" /bin/sh -c "$reachable" as_server "$@"
}

# A directory of user postgres: in /tmp, because the path of a Unix socket has
# to be short and a root's TMPDIR need not be open to others.
own() { if have_root; then chown -R postgres: "$@"; fi; }

# make_work NAME [ATEXIT]: sets work to a new directory that goes away at exit,
# with every server that runs in it, by cleanup or by ATEXIT, which calls it.
# KEEP=1 keeps the files.
make_work() {
	work=$(mktemp -d "/tmp/idemq-$1.XXXXXX")
	# shellcheck disable=SC2064 # the argument, now
	trap "${2:-cleanup}" EXIT
	trap 'exit 129' HUP
	trap 'exit 130' INT
	trap 'exit 143' TERM
	chmod 755 "$work"
	own "$work"
	export TMPDIR=$work
}

cleanup() {
	trap '' HUP INT TERM
	set +e
	end_children
	[ -n "$work" ] || return 0
	stop_servers "$work"
	cd /
	if [ -n "${KEEP:-}" ]; then echo "kept: $work" >&2; else rm -rf "$work"; fi
}

# start COMMAND...: in the background, in a process group of its own, so that all of it
# ends with an interrupted script; $! is its pid.  It does not inherit descriptor 3, in which script/test keeps its own output: a
# process that outlives its test would keep that pipe open, and whoever reads it would wait for its end.
start() {
	set -m
	"$@" </dev/null 3>&- &
	set +m
	children[$!]=$1
}

# run COMMAND...: likewise, and waits for it.
run() {
	local status=0 pid
	start "$@"
	pid=$!
	wait "$pid" || status=$?
	end_group "$pid"
	return "$status"
}

# A stopped process sees its TERM only when it is continued.
end_group() {
	kill -TERM -- "-$1" 2>/dev/null && kill -CONT -- "-$1" 2>/dev/null || true
	unset "children[$1]"
}

end_children() {
	local pid
	for pid in "${!children[@]}"; do end_group "$pid"; done
}

# stop_servers DIR [SIGNAL]: every PostgreSQL server whose data is below DIR;
# at once (QUIT), or in good order (INT).
stop_servers() {
	local file pid
	while read -r file; do
		read -r pid <"$file" || continue
		kill "-${2:-QUIT}" "$pid" 2>/dev/null || continue
		for _ in {1..100}; do
			kill -0 "$pid" 2>/dev/null || break
			sleep 0.05
		done
	done < <(find "$1" -name postmaster.pid 2>/dev/null)
}

# private_tree DIR: copies PostgreSQL's programs below DIR, where they find
# themselves; sets pg_config to the copy's.
private_tree() {
	local original dir
	original=${PG_CONFIG:-$("$top/script/pg-config")}
	for dir in $("$original" --bindir) $("$original" --pkglibdir) $("$original" --sharedir); do
		[ -d "$1$dir" ] && continue
		mkdir -p "$1$dir"
		# Manual pages nobody reads here, and bitcode, half of it all, nobody writes.
		tar -C "$dir" --exclude=./man --exclude=./bitcode -cf - . | tar -C "$1$dir" -xf -
		[ ! -d "$dir/bitcode" ] || ln -s "$dir/bitcode" "$1$dir/bitcode"
	done
	dir=$("$original" --includedir)
	mkdir -p "$1$(dirname "$dir")"
	[ -e "$1$dir" ] || ln -s "$dir" "$1$dir"
	pg_config=$1$("$original" --bindir)/pg_config
	bindir=$1$("$original" --bindir)
	[ "$("$pg_config" --bindir)" = "$bindir" ] || die "$original does not work from another directory"
}

# build_idemq TREE ARGUMENT...: make in a tree, one at a time.  NO_INSTALL is PGXS's, too.
build_idemq() { flock "$1/Makefile" env -u NO_INSTALL make -s -C "$1" -j"$(nproc)" "${@:2}"; }

# build_with_progress TREE: the same of all, with a line every few seconds that says how far it is.
build_with_progress() {
	local pid all made said=0
	all=$(find "$1/src" "$1/idemq-work" "$1/cluster" -name '*.c' | wc -l)
	build_idemq "$1" all &
	pid=$!
	while kill -0 "$pid" 2>/dev/null; do
		made=$(find "$1/src" "$1/idemq-work" "$1/cluster" -name '*.o' | wc -l)
		if [ "$SECONDS" -ge "$said" ] && [ "$made" -lt "$all" ]; then
			echo "  compiling: $made of $all files"
			said=$((SECONDS + 5))
		fi
		sleep 0.2
	done
	wait "$pid"
}

# install_idemq TREE: builds a tree and installs it into the private PostgreSQL.
install_idemq() { build_idemq "$1" PG_CONFIG="$pg_config" install; }

# tracked_files TREE: the files of its source, each ended by a NUL: those of git that are there, or
# where there is no history, all but what a build makes.
tracked_files() {
	local file
	{
		git -c safe.directory='*' -C "$1" ls-files -z -co --exclude-standard 2>/dev/null ||
			find "$1" -type f -not -path '*/.git/*' -not -path "$1/dist/*" -not -path "$1/.test/*" -not -name '*.[od]' -not -name '*.so' \
				-not -path "$1/src/.flags" -printf '%P\0'
	} | while IFS= read -r -d '' file; do [ ! -f "$1/$file" ] || printf '%s\0' "$file"; done
}

# copy_tree DIR: this source tree with its objects, without its history.
copy_tree() {
	mkdir -p "$1"
	tar -C "$top" --exclude=./.git --exclude=./.test -cf - . | tar -C "$1" --no-same-owner -xf -
}

# start_server DIR [SETTING=VALUE]...: a new server with its data in DIR/data,
# its log in DIR/log and its only socket in DIR; superuser postgres.
start_server() {
	local dir=$1 setting
	shift
	mkdir -p "$dir"
	own "$dir"
	if [ ! -d "$dir/data" ]; then
		as_server "$bindir/initdb" -D "$dir/data" -U postgres -A trust --no-sync >"$dir/initdb.log" 2>&1 ||
			{ cat "$dir/initdb.log" >&2; return 1; }
		echo "include 'idemq.conf'" >>"$dir/data/postgresql.conf"
	fi
	{
		cat "$top/script/server.conf"
		echo "listen_addresses = ''"
		echo "unix_socket_directories = '$dir'"
		for setting in "$@"; do echo "${setting%%=*} = '${setting#*=}'"; done
	} >"$dir/data/idemq.conf"
	as_server "$bindir/pg_ctl" -D "$dir/data" -l "$dir/log" -s -w start >&2 ||
		{ tail -n 20 "$dir/log" >&2; return 1; }
}
