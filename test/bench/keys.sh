# shellcheck shell=bash
# Sourced by run.  14: what a key costs, what an answer to a duplicate costs, and
# acquire; 15: many sessions that acquire one key.  One line a piece goes to
# $work/pieces; how long another session waits meanwhile, to $work/samples.
# shellcheck disable=SC2154 # work, bindir: script/lib.sh; variables of the user: run

# in_front of the duplicates: finished jobs with a key and a result
answered() {
	case $1 in
	idemq) cat <<-SQL ;;
		WITH done AS MATERIALIZED (
			SELECT idemq.commit_once(id, '{"ok": true}')
			FROM idemq.enqueue_many('bench', array_fill(:'payload'::jsonb, ARRAY[$KEYS14]),
				keys => (SELECT array_agg(i::text) FROM generate_series(1, $KEYS14) i)))
		SELECT count(*) FROM done;
	SQL
	*) cat <<-SQL ;;
		INSERT INTO bench.plain (queue_id, enqueued_at, priority, max_attempts, status, finished_at, payload, result, key)
		SELECT 1, now(), 4, 20, 'completed', now(), :'payload', '{"ok": true}', i FROM generate_series(1, $KEYS14) i;
	SQL
	esac
}

# duplicates side sync round: reads only, so nothing may be added
duplicates() {
	local side=$1 sync=$2 round=$3 log=$work/pgbench.log what before after sent rate latency

	what="duplicate of $side, 8 clients, synchronous_commit $sync, round $round"
	fill "$side" 0 "$(answered "$side")"
	before=$(counters "$side")
	run bench_client "$log" 8 "duplicate_$side" -T "$SECS" -D rows="$KEYS14" || piece_failed "$what" "$log"
	after=$(counters "$side")
	read -r sent rate latency < <(client_said "$log")
	agree "$what" "$KEYS14" "$(jobs_in completed "$side")"
	[ "$side" != idemq ] || agree "$what" 0 "$(jobs_in pending "$side")"
	echo "duplicate $side 8 $sync $round $sent $rate 1 $latency $before $after" >>"$work/pieces"
	say "$what: $(calc "int($rate)") answers/s"
	sql -c "TRUNCATE $(table_of "$side")"
}

# 14; duplicates commit nothing, so synchronous_commit is of no matter to them
keys() {
	local round side

	compare keyed 8 "$SECS" 0 0 1 idemq-key idemq-nokey
	if [ -z "$QUICK" ]; then
		compare acquire 8 "$SECS" 16000 45000 1 idemq-acquire idemq-claim
		# some are there before, since a claim may meet only what others just took
		compare message 8 "$SECS" 500 500 1 idemq-acquire idemq-enqueue
	fi
	for round in $(seq "$ROUNDS"); do
		for side in idemq plain; do
			duplicates "$side" off "$round"
		done
	done
}

# hot side round: CLIENTS15 sessions, and one more that asks for SELECT 1, 20 times a second
hot() {
	local side=$1 round=$2 log=$work/pgbench.log script=hot_idemq what before after sent rate latency

	what="hot key: $side, $CLIENTS15 clients, round $round"
	[ "$side" != one ] || script=hot_one
	before=$(counters idemq)
	run both_at_once bench_client "$work/probe.log" 1 hot_one -T "$SECS" -R 20 \
		-l --log-prefix="$work/probe" -- \
		bench_client "$log" "$CLIENTS15" "$script" -T "$SECS" -D key="${side#idemq-}" ||
		piece_failed "$what" "$log" "$work/probe.log"
	after=$(counters idemq)
	read -r sent rate latency < <(client_said "$log")
	echo "hot $side $CLIENTS15 off $round $sent $rate 1 $latency $before $after" >>"$work/pieces"
	# without the time that the probe came late by itself
	awk -v side="$side" '{ print "hot", side, "off", $3 - $NF }' "$work"/probe.[0-9]* >>"$work/samples"
	rm -f "$work"/probe.[0-9]*
	say "$what: $(calc "int($rate)") answers/s"
}

# 15: the key's job is in somebody's hands; somebody is in the middle of acquiring it
hot_key() {
	local round side holder

	set_guc synchronous_commit off
	fill idemq 0
	sql -c "SELECT 1 / (outcome = 'claimed')::int FROM idemq.acquire('bench', 'held', lease => '1 day')" >/dev/null
	"$bindir/psql" -X -q -h "$work/server" -U postgres postgres -c "BEGIN; SELECT idemq.acquire('bench', 'open'); SELECT pg_sleep(86400)" \
		>/dev/null 2>&1 &
	holder=$!
	lasting=1
	until [ "$(sql -c "SELECT outcome FROM idemq.acquire('bench', 'open')")" = locked ]; do
		sleep 0.05
	done
	for round in $(seq "$ROUNDS"); do
		for side in idemq-held idemq-open one; do
			hot "$side" "$round"
		done
	done
	sql -c "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(86400)%' AND pid <> pg_backend_pid()" >/dev/null
	wait "$holder" || true
	lasting=0
	sql -c "TRUNCATE idemq.jobs"
}
