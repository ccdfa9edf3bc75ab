# shellcheck shell=bash
# Sourced by run: what the benches share.
# shellcheck disable=SC2154 # top, work, bindir: script/lib.sh; here, FILL: run

# about 150 bytes as jsonb; given to both sides as a parameter, parsed each time
payload='{"type": "email.send", "to": "customer-104729@example.com", "template": "order-shipped", "order": 104729, "locale": "en-GB", "tags": ["bulk", "eu"]}'

# sql [psql arguments]: unaligned tuples to stdout; stops at the first error
sql() {
	"$bindir/psql" -X -q -A -t -v ON_ERROR_STOP=1 -h "$work/server" -U postgres -d postgres "$@"
}

# calc EXPRESSION: of decimals
calc() {
	awk "BEGIN { printf \"%.10g\", $1 }"
}

say() {
	echo "bench: $*" >&2
}

# the table that a side works on: idemq, or idemq in some state (idemq-held)
table_of() {
	case $1 in
	idemq*) echo idemq.jobs ;;
	*) echo "bench.${1%%-*}" ;;
	esac
}

# fill side jobs [SQL]: the side's table anew, with what the SQL puts in front
# and that many pending jobs; then as tidy as a quiet database, so that no piece
# pays for what came before it
fill() {
	local side=$1 left=$2 in_front=${3:-} table chunk

	table=$(table_of "$side")
	# A second time where it met the background worker in the middle of a look at the table.
	sql -c "TRUNCATE $table RESTART IDENTITY" 2>/dev/null || sql -c "TRUNCATE $table RESTART IDENTITY"
	{
		echo "$in_front"
		while [ "$left" -gt 0 ]; do
			chunk=$((left < 100000 ? left : 100000))
			left=$((left - chunk))
			fill_statement "$side" "$chunk"
		done
		# the search for jobs in flight that begins after a TRUNCATE, as after a restart
		[ "$table" != idemq.jobs ] || echo "SELECT idemq.reap('bench');"
		echo "VACUUM ANALYZE $table;"
		echo "CHECKPOINT;"
	} | sql -v payload="$payload" >/dev/null
}

fill_statement() {
	local side=$1 chunk=$2 ready=ready_at table

	table=$(table_of "$side")
	case $side in
	idemq-acquire | idemq-claim)
		# numbered through over all chunks
		echo "SELECT count(*) FROM idemq.enqueue_many('bench', array_fill(:'payload'::jsonb, ARRAY[$chunk]),
			keys => (SELECT array_agg((b.base + i)::text ORDER BY i) FROM generate_series(1, $chunk) i,
				(SELECT count(*) AS base FROM idemq.jobs) b));"
		return
		;;
	esac
	if [ "$table" = idemq.jobs ]; then
		echo "SELECT count(*) FROM idemq.enqueue_many('bench', array_fill(:'payload'::jsonb, ARRAY[$chunk]));"
		return
	fi
	[ "$table" != bench.skip ] || ready=run_at
	echo "INSERT INTO $table (queue_id, enqueued_at, priority, max_attempts, status, $ready, payload)
		SELECT 1, now(), 4, 20, 'pending', now(), :'payload' FROM generate_series(1, $chunk);"
}

# bench_client log clients script pgbench-argument...: -T or -t at least
bench_client() {
	local log=$1 clients=$2 script=$3

	shift 3
	"$bindir/pgbench" -h "$work/server" -U postgres -n -M prepared \
		-c "$clients" -j "$((clients < 2 ? 1 : 2))" -f "$here/scripts/$script.sql" \
		-D payload="$payload" -D clients="$clients" -D n=-1 -D id=0 -D token=0 "$@" postgres >"$log" 2>&1
}

# both_at_once command... -- command...: fails when either does
both_at_once() {
	local first=() background status=0

	while [ "$1" != -- ]; do
		first+=("$1")
		shift
	done
	shift
	"${first[@]}" &
	background=$!
	"$@" || status=1
	wait "$background" || status=1
	return "$status"
}

# what pgbench said: transactions, transactions a second, milliseconds of one
client_said() {
	awk '
		/transactions actually processed/ { n = $NF; sub(/\/.*/, "", n) }
		/^latency average/ { l = $4 }
		/^tps/ { t = $3 }
		END { print n, t, l }' "$1"
}

# piece_failed what log...: an aborted client means an error or a queue that ran
# dry, never a number
piece_failed() {
	cat "${@:2}" >&2
	tail -n 5 "$work/server/log" >&2
	die "$1 failed; if a row was expected and none came, the queue ran dry: raise FILL (now $FILL)"
}

# server_cpu: microseconds of processor time that the ended sessions have used,
# which other work on the machine changes least
server_cpu() {
	awk -v hz="$(getconf CLK_TCK)" '{ printf "%.0f", ($16 + $17) * 1000000 / hz }' \
		"/proc/$(head -n 1 "$work/server/data/postmaster.pid")/stat"
}

# sessions that are there throughout
lasting=0

# sessions: of the server, with those that are ending: they have no title any more
sessions() {
	local server pid title count=0

	server=$(head -n 1 "$work/server/data/postmaster.pid")
	for pid in $(pgrep -P "$server"); do
		title=
		IFS= read -r -d '' title 2>/dev/null <"/proc/$pid/cmdline" || true
		case $title in
		'' | *'[local]'*) count=$((count + 1)) ;;
		esac
	done
	echo "$count"
}

# counters side: WAL position, updates and HOT updates of the side's table, and
# the server's processor time; waits for the end of the sessions, since only the
# time of processes that are gone is counted
counters() {
	while [ "$(sessions)" -gt "$lasting" ]; do
		sleep 0.05
	done
	sql -F ' ' -c "SELECT pg_current_wal_insert_lsn() - '0/0', n_tup_upd, n_tup_hot_upd, $(server_cpu)
		FROM pg_stat_all_tables WHERE relid = '$(table_of "$1")'::regclass"
}

# jobs_in status side: what the table says, not what the client says
jobs_in() {
	sql -c "SELECT count(*) FROM $(table_of "$2") WHERE status = '$1'"
}

# ended side sent clients: how many of the transactions ended a job or a batch; the first
# of each client of idemq-next only claims
ended() {
	case $1 in
	*-next) echo "$(($2 - $3))" ;;
	*) echo "$2" ;;
	esac
}

# agree what sent counted
agree() {
	[ "$2" = "$3" ] || die "$1: $2 jobs by what pgbench says, but $3 in the table"
}

# set_guc name value
set_guc() {
	sql -c "ALTER SYSTEM SET $1 = $2" -c "SELECT pg_reload_conf()" >/dev/null
	while [ "$(sql -c "SHOW $1")" != "$2" ]; do
		sleep 0.05
	done
}

# begun: where the latest checkpoint began.  A piece notes it before and after:
# the only checkpoint that it may pay for is none.
begun() {
	sql -c "SELECT redo_lsn FROM pg_control_checkpoint()"
}

# no_checkpoint since what
no_checkpoint() {
	[ "$(begun)" = "$1" ] ||
		say "WARNING: a checkpoint fell into $2: its figures are not to be compared"
}

# write_ahead megabytes: leaves so much WAL recycled for what comes, so that the
# end of a long piece finds its segments as the start did
write_ahead() {
	sql -c "SELECT count(pg_logical_emit_message(false, 'bench', repeat('x', 1000000))) FROM generate_series(1, $1)" \
		-c "CHECKPOINT" >/dev/null
}
